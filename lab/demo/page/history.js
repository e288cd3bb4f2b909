// The list of events and the sentence under the picture. One event is selected, or the newest is shown as it comes.

import { sentence } from "./tokens.js";

const most = 400; // in the list
const hold = 2500; // ms for which a punch line stays, whatever happens meanwhile

// punch tells what a scene is about: a write that was refused, or one that destroyed another.
const punch = (r) => r.kind === "refused" || (r.tone === "bad" && (r.kind === "wrote" || r.kind === "told"));

export class History {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.log = document.getElementById("log");
    this.records = []; // that have an item, oldest first
    this.selected = null; // seq
    this.live = false; // announce what comes
    this.punches = []; // that were not shown yet
    this.until = 0; // when the one that is shown may go
    this.log.addEventListener("click", (e) => {
      const item = e.target.closest("li");
      if (item) this.select(Number(item.dataset.seq));
    });
  }

  add(r) {
    if (r.kind === "extended") return; // a tick in the picture is enough
    this.records.push(r);
    this.log.prepend(item(r));
    if (this.records.length > most) {
      this.records.shift();
      this.log.lastElementChild.remove();
    }
    if (!this.live) return;
    if (punch(r)) this.punches.push(r);
    this.next();
  }

  /** next shows the oldest punch line that was not shown yet, or else the newest event, once the one before has had its time. */
  next() {
    if (this.selected !== null || performance.now() < this.until) return;
    const r = this.punches.shift() ?? this.records.at(-1);
    if (!r || r.seq === this.shown) return;
    this.caption(r);
    if (!punch(r)) return;
    this.until = performance.now() + hold;
    setTimeout(() => this.next(), hold);
  }

  /** caughtUp shows the newest, and from now on each that comes. */
  caughtUp() {
    this.live = true;
    const last = this.records.at(-1);
    if (last && last.kind !== "started" && this.selected === null) this.caption(last);
  }

  caption(r) {
    const caption = document.getElementById("caption");
    this.shown = r.seq;
    caption.dataset.seq = r.seq;
    caption.dataset.tone = r.tone ?? "";
    const title = document.getElementById("caption-title");
    sentence(title, r.title, r);
    title.className = "sign";
    sentence(document.getElementById("caption-why"), r.why, r);
    promise(document.getElementById("caption-promise"), r.promise);
    const tokens = [r.token, r.stored].filter(Boolean);
    document.getElementById("caption-token").textContent = tokens.length === 0 ? "" : `${tokens.length > 1 ? "carried, stored" : "token"}: ${tokens.join(", ")}`;
  }

  /** select shows one event, or with null the newest again. */
  select(seq) {
    this.log.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    this.log.removeAttribute("aria-activedescendant");
    const r = this.records.find((x) => x.seq === seq);
    this.selected = r ? seq : null;
    if (r) {
      const e = document.getElementById(`event-${seq}`);
      e.setAttribute("aria-selected", "true");
      this.log.setAttribute("aria-activedescendant", e.id);
      this.log.scrollTop = e.offsetTop - this.log.offsetTop - this.log.clientHeight / 3;
      this.caption(r);
    } else {
      this.until = 0;
      this.next();
    }
    this.onSelect(this.selected);
  }

  /** step goes to an older (-1) or newer (+1) event. */
  step(by) {
    const at = this.records.findIndex((r) => r.seq === this.selected);
    const to = at < 0 ? this.records.length - 1 : Math.min(Math.max(at + by, 0), this.records.length - 1);
    if (this.records[to]) this.select(this.records[to].seq);
  }

  first() { if (this.records.length) this.select(this.records[0].seq); }
  last() { if (this.records.length) this.select(this.records.at(-1).seq); }
}

function item(r) {
  const li = document.createElement("li");
  li.id = `event-${r.seq}`;
  li.role = "option";
  li.setAttribute("aria-selected", "false");
  for (const key of ["seq", "kind", "token", "stored", "tone", "worker", "cause"]) if (r[key]) li.dataset[key] = r[key];
  const time = document.createElement("time");
  const at = new Date(r.at);
  time.dateTime = at.toISOString();
  time.textContent = at.toLocaleTimeString([], { hour12: false }) + "." + Math.floor(at.getMilliseconds() / 100);
  const who = document.createElement("span");
  who.className = "who-cell";
  if (r.worker) {
    const b = document.createElement("b");
    b.className = "who";
    b.textContent = r.worker;
    who.append(b);
  }
  const body = document.createElement("div");
  body.className = "body";
  const title = document.createElement("b");
  title.className = "sign";
  sentence(title, r.title, r);
  const why = document.createElement("p");
  sentence(why, r.why, r);
  body.append(title, why);
  const p = document.createElement("i");
  promise(p, r.promise);
  li.append(time, who, body, p);
  return li;
}

// promise writes S2 and the like, with the words of the page's own list as a hint.
function promise(e, name) {
  e.hidden = !name;
  if (!name) return;
  e.textContent = name;
  e.dataset.promise = name;
  e.title = hints.get(name) ?? "";
}

const hints = new Map([...document.querySelectorAll("#promises dl > div")].map((d) => [d.children[0].textContent, d.children[1].textContent]));
