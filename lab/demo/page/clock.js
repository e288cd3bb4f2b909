// The picture's clock. It counts in leases, so that a scene is as wide at every speed, and it stands still while nothing happens, so
// that what happened stays in view.

const unit = 3000; // ms: the TTL at which a second of the picture is a second

/** lead is what is shown after the last event, and before the next one, in seconds of the picture. */
export const lead = 0.9;

export class Clock {
  constructor() {
    this.origin = null; // a time...
    this.base = 0; // ...and where it is in the picture; nothing later is left of it
    this.rate = 1; // seconds of the picture in a second
    this.last = 0; // time of the last event
    this.busy = new Set(); // what is going on
  }

  /** advance notes an event at a time, and tells whether something was left out before it. */
  advance(at) {
    this.origin ??= at;
    const gap = this.busy.size === 0 && this.last > 0 && at - this.last > 2 * this.tail();
    if (gap) this.rebase(at, this.shown(this.last) + 2 * lead);
    this.last = Math.max(this.last, at);
    return gap;
  }

  /** pace makes a lease of so many ms as wide as every other. */
  pace(ttl, at) {
    this.rebase(at, this.shown(at));
    this.rate = unit / ttl;
  }

  rebase(at, shown) {
    this.origin = at;
    this.base = shown;
  }

  tail() { return (lead / this.rate) * 1000; }

  /** shown is where a time is in the picture, in its seconds. */
  shown(at) { return this.base + (Math.max(at - this.origin, 0) / 1000) * this.rate; }

  /** now is the right end of the picture. */
  now(at) {
    if (this.origin === null) return 0;
    return this.running(at) ? this.shown(Math.max(at, this.last)) : this.shown(this.last) + lead;
  }

  running(at) { return this.origin !== null && (this.busy.size > 0 || at < this.last + this.tail()); }
}
