// What Redis, Postgres and the workers are at now.

import { chip } from "./tokens.js";

const $ = (id) => document.getElementById(id);

let left = { ends: 0, ttl: 0 };

export function show(state) {
  showRedis(state.redis);
  showPostgres(state.postgres);
  showCrew(state.workers);
  showScenes(state);
  const speed = document.querySelector(`input[name=speed][value=${state.speed}]`);
  if (speed) speed.checked = true;
}

function who(worker) {
  const b = document.createElement("b");
  b.className = "who";
  b.dataset.worker = b.textContent = worker;
  return b;
}

function showRedis(r) {
  $("redis").dataset.up = r.up;
  $("redis").dataset.owner = r.owner ?? "";
  $("redis").dataset.token = r.token ?? "";
  $("redis").dataset.fence = r.fence ?? "";
  $("redis").dataset.label = r.label ?? "";
  $("redis-owner").replaceChildren(...(r.token ? [...(r.owner ? [who(r.owner)] : []), "token ", chip(r.token)] : ["nobody"]));
  $("redis-label").textContent = r.label || "–";
  $("redis-fence").replaceChildren(r.fence ? chip(r.fence) : "none");
  $("redis-queue").textContent = r.waiters === 0 ? "nobody waits" : `${r.waiters} ${r.waiters === 1 ? "waits" : "wait"}`;
  left = { ends: r.token ? r.ends : 0, ttl: r.ttl_ms };
}

/** countDown shows what is left of the lease at a time of the server's clock. */
export function countDown(at) {
  const ms = Math.max(left.ends - at, 0);
  const text = left.ends ? `${(ms / 1000).toFixed(1)} s` : "–";
  if ($("redis-ends").textContent !== text) $("redis-ends").textContent = text;
  $("redis-left").value = left.ends ? Math.min(ms / left.ttl, 1) : 0;
}

function showPostgres(p) {
  $("postgres").dataset.up = p.up;
  $("ledger").dataset.token = p.fence ?? "";
  $("ledger").replaceChildren(...(p.fence ? ["nothing older than ", chip(p.fence)] : ["none"]));
  $("fence").setAttribute("aria-checked", p.protected);
  $("bookings").replaceChildren(...(p.bookings.length ? p.bookings.map(booking) : [none()]));
}

function booking(b) {
  const tr = document.createElement("tr");
  Object.assign(tr.dataset, { evening: b.evening, guest: b.guest, token: b.token ?? "0" });
  const [evening, guest, token] = [0, 1, 2].map(() => tr.insertCell());
  evening.textContent = b.evening;
  guest.textContent = b.guest;
  token.append(b.token ? chip(b.token) : "none");
  for (const other of (b.told ?? []).filter((name) => name !== b.guest)) {
    const s = document.createElement("span");
    s.className = "broken";
    s.textContent = `▲ ${other} was told: booked`;
    guest.append(s);
  }
  return tr;
}

function none() {
  const tr = document.createElement("tr");
  const td = tr.insertCell();
  td.colSpan = 3;
  td.className = "none";
  td.textContent = "no bookings yet";
  return tr;
}

// The cards stay the same elements, or a button would lose the focus with every state.
function showCrew(workers) {
  for (const w of workers) {
    const card = $(`worker-${w.name}`) ?? crewCard(w.name);
    card.dataset.status = w.status;
    card.dataset.pid = w.pid ?? "";
    card.querySelector(".status").textContent = doing(w);
    believes(card.querySelector(".believes"), w.believes);
    card.querySelector(".pid").textContent = w.pid ? `pid ${w.pid}` : "";
    const [reserve, pause, kill] = card.querySelectorAll("button");
    pause.dataset.do = w.status === "paused" ? "wake" : "pause";
    pause.textContent = w.status === "paused" ? "Wake" : "Pause";
    pause.setAttribute("aria-label", `${pause.textContent} ${w.name}`);
    off(reserve, w.status !== "idle");
    off(pause, w.status === "dead");
    off(kill, w.status === "dead");
  }
}

function doing(w) {
  const guest = w.guest ? ` at ${w.guest}'s booking` : "";
  return { idle: "idle", busy: `works for ${w.guest}`, paused: `stopped${guest}`, dead: "gone, starts again soon" }[w.status];
}

// believes shows a holder that Redis has forgotten as what it is.
function believes(p, token) {
  p.hidden = !token;
  if (token && p.dataset.token !== token) p.replaceChildren("only believes that it holds ", chip(token));
  p.dataset.token = token ?? "";
}

function crewCard(name) {
  const card = document.createElement("article");
  card.id = `worker-${name}`;
  card.dataset.worker = name;
  const h2 = document.createElement("h2");
  const status = document.createElement("span");
  const pid = document.createElement("span");
  status.className = "status";
  pid.className = "pid";
  h2.append(who(name), status, pid);
  const buttons = document.createElement("p");
  buttons.className = "buttons";
  for (const [action, text] of [["reserve", "Reserve"], ["pause", "Pause"], ["kill", "Kill"]]) {
    const b = document.createElement("button");
    b.dataset.do = action;
    b.dataset.with = name;
    b.textContent = text;
    b.setAttribute("aria-label", `${text} ${name}`);
    buttons.append(b);
  }
  const belief = document.createElement("p");
  belief.className = "believes";
  card.append(h2, belief, buttons);
  $("crew").append(card);
  return card;
}

function showScenes(state) {
  const idle = state.workers.filter((w) => w.status === "idle").length;
  for (const b of document.querySelectorAll("#scenes button")) {
    b.dataset.playing = b.dataset.do === state.scene;
    off(b, Boolean(state.scene) || idle < 2);
  }
}

// off marks a button that will be refused. It stays in the tab order and answers why.
function off(button, is) { button.setAttribute("aria-disabled", is); }
