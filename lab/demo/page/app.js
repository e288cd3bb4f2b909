// The page: a stream of events in, requests of buttons out.

import { History } from "./history.js";
import { countDown, show } from "./panels.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const scroll = $("scroll");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const timeline = new Timeline($("plane"));
const history = new History(selected);

let offset = 0; // of the server's clock against ours, in ms
let following = true; // the right end is in view
let drawing = false; // a frame is due
let greeted = false; // by the program

const serverNow = () => Date.now() + offset;

// The stream

const stream = new EventSource("events");
stream.addEventListener("open", () => link(true));
stream.addEventListener("error", () => link(false)); // it connects again by itself
stream.addEventListener("hello", (e) => {
  if (greeted) location.reload(); // this is another run of the program, which knows nothing of what is shown
  greeted = true;
  offset = JSON.parse(e.data).now - Date.now();
});
stream.addEventListener("record", (e) => {
  const r = JSON.parse(e.data);
  timeline.add(r);
  history.add(r);
  if (r.kind !== "started") $("empty").hidden = true;
  draw();
});
stream.addEventListener("state", (e) => {
  const state = JSON.parse(e.data);
  document.body.dataset.speed = state.speed;
  show(state);
  draw();
});
stream.addEventListener("caught-up", () => {
  history.caughtUp();
  document.body.dataset.ready = "true";
});

function link(up) {
  $("link").dataset.up = up;
  $("link").textContent = up ? "connected" : "connecting again";
}

// The picture

// zoom shows about one scene, and no less than can be read.
function zoom() {
  timeline.zoom(Math.max(scroll.clientWidth / 17, 25));
  follow(following);
}

// draw asks for frames for as long as something moves: smoothly, or twice a second for people who want it still.
function draw() {
  if (drawing) return;
  drawing = true;
  const frame = () => {
    drawing = false;
    const now = serverNow();
    timeline.frame(now);
    countDown(now);
    if (following) scroll.scrollLeft = scroll.scrollWidth;
    if (timeline.running(now)) draw();
  };
  if (still.matches) setTimeout(frame, 500);
  else requestAnimationFrame(frame);
}

// follow keeps the right end in view, or lets people look back.
function follow(on) {
  following = on;
  $("to-now").hidden = on;
  if (on) scroll.scrollLeft = scroll.scrollWidth;
}

const atEnd = () => scroll.scrollLeft + scroll.clientWidth > scroll.scrollWidth - 24;
scroll.addEventListener("scroll", () => { if (history.selected === null) follow(atEnd()); }, { passive: true });
$("to-now").addEventListener("click", () => history.select(null));
$("plane").addEventListener("click", (e) => {
  const seq = e.target.closest("[data-seq]")?.dataset.seq;
  if (seq) history.select(Number(seq));
});
addEventListener("resize", () => { zoom(); draw(); });
zoom();

function selected(seq) {
  const cursor = timeline.select(seq);
  if (seq === null) follow(true);
  else if (cursor) {
    follow(false);
    scroll.scrollLeft = cursor.offsetLeft - scroll.clientWidth / 2;
  }
}

const keys = {
  ArrowLeft: () => history.step(-1), ArrowRight: () => history.step(+1),
  ArrowDown: () => history.step(-1), ArrowUp: () => history.step(+1), // the newest is on top
  Home: () => history.first(), End: () => history.last(), Escape: () => history.select(null),
};
for (const e of [scroll, $("log")]) {
  e.addEventListener("keydown", (key) => {
    if (!keys[key.key] || key.ctrlKey || key.altKey || key.metaKey) return;
    key.preventDefault();
    keys[key.key]();
  });
}

// The buttons

async function act(action, what) {
  try {
    const answer = await fetch(`do/${action}?with=${encodeURIComponent(what)}`, { method: "POST" });
    if (!answer.ok) toast((await answer.json()).error);
  } catch {
    toast("The program does not answer. Is it still running?");
  }
}

let toasting;
function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toasting);
  toasting = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

document.addEventListener("click", (e) => {
  const button = e.target.closest("button[data-do]");
  if (!button) return;
  if (button.closest("#scenes") && innerWidth < 1100) scrollTo({ top: $("picture").offsetTop - 6 }); // with the sentence under it
  act(button.dataset.do, button.dataset.with ?? "");
});
$("fence").addEventListener("click", () => act("fence", $("fence").getAttribute("aria-checked") === "true" ? "off" : "on"));
for (const input of document.querySelectorAll("input[name=speed]")) input.addEventListener("change", () => act("speed", input.value));

// The colours

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.querySelector(`input[name=theme][value=${name}]`).checked = true;
}
for (const input of document.querySelectorAll("input[name=theme]")) {
  input.addEventListener("change", () => {
    localStorage.setItem("theme", input.value);
    theme(input.value);
  });
}
const kept = localStorage.getItem("theme");
if (["light", "dark"].includes(kept)) theme(kept);
