// The timeline: records in, elements on the plane out. Each element carries the data of its record, for people's tools and for tests.

import { Clock, lead } from "./clock.js";
import { chip } from "./tokens.js";

const lanes = ["A", "B", "C", "redis", "postgres"];

export class Timeline {
  constructor(plane) {
    this.plane = plane;
    this.pixels = 64; // per second
    this.clock = new Clock();
    this.open = new Map(); // key: a span that has not ended
    this.holder = null; // the worker who got the last lease
    this.labelled = -Infinity; // where the last label of the axis is
    this.at = new Map(); // seq: shown time, for the cursor
    this.cursor = null;
    // A label of which the edge of the picture, or of its span, would cut a part is not shown.
    this.whole = new IntersectionObserver((labels) => {
      for (const l of labels) l.target.toggleAttribute("data-cut", !l.isIntersecting);
    }, { root: plane.parentElement, threshold: 0.99 });
  }

  add(r) {
    const gap = this.clock.advance(r.at);
    this.t = this.clock.shown(r.at);
    this.at.set(r.seq, this.t);
    if (gap) this.mark("gap-line", "", { t: this.t - lead });
    this.label(r, gap);
    draw[r.kind]?.call(this, r);
    this.trim();
  }

  // label writes the time of day under what comes after a gap, and now and then.
  label(r, gap) {
    if (!gap && this.t < this.labelled + 1) return;
    this.labelled = this.t;
    this.mark("when", "", { text: new Date(r.at).toLocaleTimeString([], { hour12: false }) });
    this.thin();
  }

  // thin hides the labels that have no room.
  thin() {
    const room = 72; // px for one
    let free = -Infinity;
    for (const e of this.plane.querySelectorAll(".when")) {
      const x = Number(e.style.getPropertyValue("--t")) * this.pixels;
      e.hidden = x < free;
      if (!e.hidden) free = x + room;
    }
  }

  /** zoom sets how many pixels a second has. */
  zoom(pixels) {
    this.pixels = pixels;
    this.plane.style.setProperty("--pps", pixels.toFixed(1));
    this.thin();
  }

  /** frame moves the right end to a time. */
  frame(at) { this.plane.style.setProperty("--now", this.clock.now(at).toFixed(3)); }

  running(at) { return this.clock.running(at); }

  select(seq) {
    this.cursor?.remove();
    this.cursor = null;
    if (seq === null || !this.at.has(seq)) return null;
    this.cursor = this.mark("cursor", "", { t: this.at.get(seq) });
    return this.cursor;
  }

  // mark puts an element at a time.
  mark(kind, lane, { t = this.t, text = "", record, data = {} } = {}) {
    const e = document.createElement("div");
    e.className = kind;
    if (lane) e.dataset.lane = lane;
    if (record) {
      e.dataset.seq = record.seq;
      e.dataset.kind = record.kind;
      for (const key of ["token", "stored", "worker"]) if (record[key]) e.dataset[key] = record[key];
      e.title = record.title.replace("{token}", record.token).replace("{stored}", record.stored);
    }
    Object.assign(e.dataset, data);
    e.style.setProperty("--t", t.toFixed(3));
    e.append(...[text].flat());
    this.plane.append(e);
    const labels = e.classList.contains("span") ? e.children : text || data.label ? [e] : [];
    for (const l of labels) this.whole.observe(l);
    return e;
  }

  // begin opens a span; another one under its key ends.
  begin(key, kind, lane, options) {
    this.end(key);
    const e = this.mark(`${kind} span open`, lane, options);
    this.open.set(key, e);
    return e;
  }

  // end closes a span, if there is one.
  end(key, t = this.t) {
    const e = this.open.get(key);
    if (!e) return null;
    this.open.delete(key);
    e.classList.remove("open");
    e.style.setProperty("--u", t.toFixed(3));
    return e;
  }

  // over is the end of all that a worker was at.
  over(worker) {
    for (const kind of ["job", "wait", "lease", "ghost", "step"]) this.end(`${kind} ${worker}`);
    this.idle(`job ${worker}`);
  }

  busy(what) { this.clock.busy.add(what); }
  idle(what) { this.clock.busy.delete(what); }

  // drop is a write on its way from a worker to Postgres, and what became of it.
  drop(r, kind, text) {
    this.mark(`drop ${kind}`, r.worker, { record: r });
    this.mark(`pill ${kind}`, "postgres", { record: r, text });
  }

  // hand draws the way from the last holder to one that has waited.
  hand(r) {
    if (!this.holder || this.holder === r.worker || !r.took_ms) return;
    const [from, to] = [this.holder, r.worker].map((w) => lanes.indexOf(w));
    const e = this.mark(`hand ${from < to ? "down" : "up"}`, lanes[Math.min(from, to)]);
    e.style.setProperty("--rows", Math.abs(from - to));
  }

  // trim forgets what is far away.
  trim() {
    const most = 3000;
    while (this.plane.childElementCount > most) this.plane.firstElementChild.remove();
  }
}

// label is a text of a span, which shows all of it or nothing.
function label(text) {
  const e = document.createElement("span");
  e.textContent = text;
  return e;
}

function lost(r, by) {
  const lease = this.open.get(`lease ${by}`);
  if (!lease || lease.dataset.token !== r.token) return;
  this.end(`lease ${by}`).classList.add("cut-short");
  this.begin(`ghost ${by}`, "ghost", by, { record: r, text: [label("believes it holds")] });
}

function released(r) {
  this.end(`lease ${r.worker}`);
  this.end(`ghost ${r.worker}`);
  if (this.open.get("owner")?.dataset.token === r.token) this.end("owner");
}

// draw says what each kind of record looks like.
const draw = {
  asked(r) {
    this.busy(`job ${r.worker}`);
    const name = document.createElement("b");
    name.textContent = r.guest;
    this.begin(`job ${r.worker}`, "job", r.worker, { record: r, text: [name] });
  },
  told(r) {
    const job = this.open.get(`job ${r.worker}`);
    this.over(r.worker);
    if (!job) return;
    const i = document.createElement("i");
    i.textContent = r.tone === "bad" ? "▲ booked too" : r.cause === "booked" ? "✓ booked" : "✕ no";
    job.dataset.tone = r.tone ?? "";
    job.append(i);
    this.whole.observe(i);
  },
  waiting(r) { this.begin(`wait ${r.worker}`, "wait", r.worker, { record: r }); },
  held(r) { this.end(`wait ${r.worker}`); },
  granted(r) {
    this.end(`wait ${r.worker}`);
    this.hand(r);
    this.holder = r.worker;
    this.begin(`lease ${r.worker}`, "bar", r.worker, { record: r, text: [chip(r.token)] });
    this.begin("owner", "own", "redis", { record: r, text: [label(r.worker), chip(r.token)] });
  },
  extended(r) { this.mark("tick", r.worker, { record: r }); },
  expired(r) {
    lost.call(this, r, r.worker);
    if (this.open.get("owner")?.dataset.token === r.token) this.end("owner");
  },
  released,
  lost(r) {
    released.call(this, r);
  },
  card(r) { this.begin(`step ${r.worker}`, "step card", r.worker, { record: r, text: [label("bank")] }); },
  writing(r) { this.begin(`step ${r.worker}`, "step write", r.worker, { record: r, text: [label("→")] }); },
  sealed(r) {
    this.end(`step ${r.worker}`);
    this.begin("fence", "fence", "postgres", { record: r, text: [chip(r.token)] });
  },
  committed(r) {
    this.end(`step ${r.worker}`);
    this.drop(r, "yes", ["✓ ", r.guest]);
  },
  refused(r) {
    this.end(`step ${r.worker}`);
    this.drop(r, "no", ["✕ ", chip(r.token), " < ", chip(r.stored)]);
  },
  not_sealed(r) { this.end(`step ${r.worker}`); },
  failed(r) { this.end(`step ${r.worker}`); },
  wrote(r) {
    this.end(`step ${r.worker}`);
    this.drop(r, r.tone === "bad" ? "bad" : "yes", [r.tone === "bad" ? "▲ " : "✓ ", r.guest]);
  },
  paused(r) {
    this.busy(`pause ${r.worker}`);
    this.begin(`pause ${r.worker}`, "pause", r.worker, { record: r, text: [label("‖ stopped")] });
  },
  woken(r) {
    this.end(`pause ${r.worker}`);
    this.idle(`pause ${r.worker}`);
  },
  killed(r) {
    draw.woken.call(this, r);
    const lease = this.open.get(`lease ${r.worker}`);
    this.over(r.worker);
    lease?.classList.add("cut-short");
    this.busy(`gone ${r.worker}`);
    this.begin(`gone ${r.worker}`, "gone", r.worker, { record: r, text: [label("✕ killed")] });
  },
  started(r) {
    this.end(`gone ${r.worker}`);
    this.idle(`gone ${r.worker}`);
  },
  forgotten(r) { draw.expired.call(this, r); },
  flushed(r) {
    lost.call(this, r, r.worker);
    this.end("owner");
    this.mark("all", "", { record: r, data: { label: "FLUSHALL" } });
  },
  redis_down(r) {
    this.end("owner");
    this.busy("redis");
    this.begin("outage", "outage", "redis", { record: r, text: [label("✕ down")] });
  },
  redis_up(r) {
    lost.call(this, r, r.worker);
    this.end("outage");
    this.idle("redis");
  },
  speed(r) { this.clock.pace(r.ttl_ms, r.at); },
  unprotected(r) { this.begin("unfenced", "unfenced", "postgres", { record: r, text: [label("▲ no fence")] }); },
  protected() { this.end("unfenced"); },
};
