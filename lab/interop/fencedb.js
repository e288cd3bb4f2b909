// Leases of fencedb for Node, written from docs/protocol.md: copy it, and the scripts beside it.
//
// Needs ioredis 5 and pg 8. Times are in milliseconds.
'use strict';
const { createHash, randomUUID } = require('crypto');
const { EventEmitter, once } = require('events');
const { readFileSync } = require('fs');
const { join } = require('path');
const { setTimeout: sleep } = require('timers/promises');

const RETENTION = 24 * 60 * 60 * 1000; // for which Redis remembers the last token
const ASK_AGAIN = 5000; // a waiter that does not ask for 6 seconds counts as dead
const HELPERS = '-- The helpers come here.\n';

class Held extends Error {} // another holds the resource; nothing was changed
class Lost extends Error {} // the lease is over: stop working
class Stale extends Error {} // a newer token has entered in Postgres; nothing was written
class RolledBack extends Error {} // nothing was written
class CommitUnknown extends Error {} // COMMIT was sent, and nobody knows whether it was carried out

const now = () => performance.now(); // monotonic
const margin = (ms) => Math.min(ms / 100 + 1, ms / 4);
const escape = (text) =>
  text.replace(/[%{}/]/g, (sign) => '%' + sign.charCodeAt(0).toString(16).toUpperCase());

// names are the keys of a resource and, as wake, its channel.
function names(resource, namespace = '', hashed = false, kind = 'lease') {
  for (const [what, text, least, most] of [['resource', resource, 1, 512], ['namespace', namespace, 0, 128]]) {
    const bytes = Buffer.byteLength(text);
    if (bytes < least || bytes > most || text.includes('\0') || Buffer.from(text).toString() !== text) {
      throw new RangeError(`${what} ${JSON.stringify(text)} must have ${least} to ${most} bytes of UTF-8 without NUL`);
    }
  }
  if (hashed) resource = 'sha256:' + createHash('sha256').update(resource).digest('hex');
  const tag = (namespace ? escape(namespace) + '/' : '') + escape(resource);
  const fields = ['owner', 'fence', 'queue', 'alive', 'ended', 'wake'];
  return Object.fromEntries(fields.map((field) => [field, `${kind}:v1:{${tag}}:${field}`]));
}

// load is the source of a script: its common case, if it has one, the helpers (here those of leases), the rest.
function load(directory, name, helpers = ['common', 'holder']) {
  const [script, ...between] = [name, ...helpers].map((file) => readFileSync(join(directory, file + '.lua'), 'utf8') + '\n');
  const at = script.indexOf(HELPERS);
  return at < 0 ? between.join('') + script : script.slice(0, at) + between.join('') + script.slice(at + HELPERS.length);
}

// answered tells an error that Redis answered from no answer.
const answered = (error) => error.name === 'ReplyError';
// passes tells whether to send the request again.
const passes = (error) => !answered(error) || /^(LOADING|CLUSTERDOWN|TRYAGAIN|READONLY|MASTERDOWN|BUSY)/.test(error.message);

// Issuer makes leases of one Redis. The client sends nothing twice by itself:
//
//     new Redis(url, { maxRetriesPerRequest: 0, autoResendUnfulfilledCommands: false, commandTimeout: 1000 })
//
// Waiting takes a second connection. close() ends it.
class Issuer {
  constructor(client, scripts, { ttl = 10000, namespace = '', hashed = false, holder = 'node' } = {}) {
    Object.assign(this, { client, ttl, namespace, hashed });
    const code = (byte) => 'Z' + byte.toString(16).padStart(2, '0');
    this.label = holder.replace(/[^A-Ya-z0-9-]/gu, (sign) => [...Buffer.from(sign)].map(code).join('')).slice(0, 64);
    this.scripts = {};
    for (const name of ['acquire', 'extend', 'release', 'withdraw']) {
      const source = load(scripts, name);
      this.scripts[name] = { source, sha: createHash('sha1').update(source).digest('hex') };
    }
    this.news = new EventEmitter().setMaxListeners(0); // by channel
  }

  async run(name, keys, ...args) {
    const { source, sha } = this.scripts[name];
    const reply = await this.client.evalsha(sha, keys.length, ...keys, ...args).catch((error) => {
      if (!/^NOSCRIPT/.test(error.message)) throw error;
      return this.client.eval(source, keys.length, ...keys, ...args);
    });
    if (reply[0] === 'corrupt' || reply[0] === 'exhausted') throw new Error(`${name} answered ${reply}`);
    return reply;
  }

  // insist sends a release or a withdrawal until it is answered, or the lease has expired anyway.
  async insist(name, keys, ...args) {
    const end = now() + this.ttl;
    for (let pause = 20; ; pause = Math.min(2 * pause, 500)) {
      try {
        return (await this.run(name, keys, ...args))[0];
      } catch (error) {
        if (!passes(error) || now() > end) throw error;
      }
      await sleep(pause);
    }
  }

  // acquire is a lease that is renewed until it is released. It waits for its turn, or fails with Held.
  async acquire(resource, wait = 0) {
    const asking = new Acquisition(this, resource);
    let lease;
    try {
      lease = await asking.ask('try', now() + this.ttl);
      if (!lease && wait > 0) lease = await asking.wait(now() + wait);
    } finally { // a place in the queue, or a grant whose answer was lost
      if (!lease && (asking.waits || asking.unsure)) await asking.withdraw();
    }
    if (!lease) throw new Held(resource);
    return lease;
  }

  // subscribe resolves when the subscription is confirmed. ioredis subscribes again by itself.
  async subscribe(channel) {
    if (!this.subscriber) {
      this.subscriber = this.client.duplicate({ maxRetriesPerRequest: null, commandTimeout: undefined });
      this.subscriber.on('error', () => {}).on('message', (to, text) => this.news.emit(to, text));
      this.subscriber.on('ready', () => this.news.eventNames().forEach((to) => this.news.emit(to, null))); // ask
    }
    await this.subscriber.subscribe(channel);
  }

  close() { this.subscriber?.disconnect(); }
}

class Acquisition {
  constructor(issuer, resource) {
    Object.assign(this, { issuer, resource, retryAfter: 0, waits: false, unsure: false });
    const n = (this.names = names(resource, issuer.namespace, issuer.hashed));
    this.keys = [n.owner, n.fence, n.queue, n.alive];
    this.leaseId = randomUUID(); // also the name of the listener
  }

  // ask is the lease, or undefined if another holds it. It asks again while there is no answer.
  async ask(mode, end) {
    const { issuer } = this;
    for (;;) {
      const sent = now(); // trust counts from before the request
      let reply;
      try {
        reply = await issuer.run('acquire', this.keys, this.leaseId, issuer.label, issuer.ttl, RETENTION, mode, 'PUBLISH',
          this.leaseId);
      } catch (error) {
        this.unsure ||= !answered(error);
        if (!passes(error) || now() > end) throw error;
        await sleep(20 + 30 * Math.random());
        continue;
      }
      this.retryAfter = Math.min(Number(reply[1]), ASK_AGAIN);
      if (reply[0] === 'held') return undefined;
      if (reply[0] !== 'granted') throw new Error(`acquire answered ${reply}`);
      const until = sent + issuer.ttl - margin(issuer.ttl);
      if (now() < until) return new Lease(this, Number(reply[1]), until);
      // An answer that comes after its own time counts as none.
    }
  }

  async wait(end) {
    const channel = `${this.names.wake}:${this.leaseId}`;
    const heard = []; // what came and was not looked at
    const receive = (text) => heard.push(text);
    this.issuer.news.on(channel, receive);
    try {
      await Promise.race([this.issuer.subscribe(channel), sleep(end - now(), null, { ref: false })]);
      while (now() < end) {
        this.waits = true;
        heard.length = 0; // older than the next answer
        const lease = await this.ask('wait', end);
        if (lease) return lease;
        await this.listen(channel, heard, end);
      }
    } finally {
      this.issuer.news.off(channel, receive);
      this.issuer.subscriber.unsubscribe(channel).catch(() => {});
    }
  }

  // listen returns when it is time to ask.
  async listen(channel, heard, end) {
    let look = now() + this.retryAfter * (1 + Math.random() / 20);
    for (;;) {
      while (heard.length > 0) {
        const text = heard.shift();
        if (text === null) return; // subscribed again: a message may have been lost
        const [word, id, ...numbers] = text.split(' ');
        if (id !== this.leaseId) continue;
        if (word !== 'look') return;
        look = now() + Number(numbers[0]);
      }
      const left = Math.min(look, end) - now();
      if (left <= 0) return;
      const timer = new AbortController();
      await Promise.race([once(this.issuer.news, channel, timer), sleep(left, null, timer)]).catch(() => {});
      timer.abort();
    }
  }

  withdraw() {
    const { owner, queue, alive } = this.names;
    return this.issuer.insist('withdraw', [owner, queue, alive], this.leaseId, 'PUBLISH');
  }
}

// Lease is held until remaining() is 0.
class Lease {
  constructor(by, token, until) {
    Object.assign(this, { by, resource: by.resource, leaseId: by.leaseId, token, until, lost: null });
    this.stop = new AbortController();
    this.renewing = this.renew(by.issuer.ttl / 3);
  }

  remaining() { return this.lost ? 0 : Math.max(this.until - now(), 0); }

  async extend() {
    const { issuer, names: n } = this.by;
    const sent = now();
    const [answer] = await issuer.run('extend', [n.owner, n.fence, n.ended], this.leaseId, this.token, issuer.ttl, RETENTION);
    if (answer !== 'extended') {
      this.lost = answer; // why Redis says that it is over
      throw new Lost(`${this.resource}: ${answer}`);
    }
    this.until = Math.max(this.until, sent + issuer.ttl - margin(issuer.ttl));
  }

  async renew(pause) {
    const { ttl } = this.by.issuer;
    const most = now() + 3600e3; // who is stuck must not hold for ever
    for (;;) {
      await sleep(pause, null, this.stop).catch(() => {});
      if (this.stop.signal.aborted || this.remaining() === 0 || now() > most) return;
      pause = await this.extend().then(() => ttl / 3, () => ttl / 12);
    }
  }

  // release answers released; or gone, taken or revoked, if the lease was over before.
  async release() {
    this.stop.abort();
    await this.renewing;
    const { issuer, names: n } = this.by;
    return issuer.insist('release', [n.owner, n.queue, n.alive, n.ended], this.leaseId, this.token, 'PUBLISH');
  }
}

// transaction resolves to what work(client) resolves to, committed behind the fence. connect opens a client of pg.
//
// Lost, Stale, RolledBack and errors of Postgres: nothing was written. CommitUnknown: nobody knows.
async function transaction(connect, lease, work, milliseconds) {
  const db = (await connect()).on('error', () => {}); // of a session that the server ends; the next query fails
  let ids, result, left, committing = false;
  try {
    await db.query('BEGIN ISOLATION LEVEL READ COMMITTED');
    left = milliseconds ?? Math.floor(lease.remaining());
    if (left <= 0) throw new Lost(lease.resource); // connecting may have taken long
    const entered = await db.query('SELECT xid::text, epoch::text FROM fencedb.enter($1::text, $2::bigint, $3::uuid, $4::bigint)',
      [lease.resource, lease.token, lease.leaseId, left]);
    ids = [entered.rows[0].xid, entered.rows[0].epoch];
    result = await work(db);
    await db.query('SELECT fencedb.require_entered($1::text::xid8)', [ids[0]]);
    committing = true;
    const { command } = await db.query('COMMIT');
    if (command !== 'COMMIT') throw new RolledBack(lease.resource); // ROLLBACK of a failed transaction is no error
    return result;
  } catch (error) {
    if (committing && !(error instanceof RolledBack) && error.severity !== 'ERROR') {
      if (await outcome(connect, ids, left + 5000)) return result;
      throw new RolledBack(lease.resource, { cause: error });
    }
    if (error.code === 'FN001') throw Object.assign(new Stale(error.message), JSON.parse(error.detail));
    throw error;
  } finally {
    await db.end().catch(() => {}); // which rolls back what was not committed
  }
}

// outcome tells whether a transaction was committed whose answer to COMMIT was lost.
async function outcome(connect, ids, milliseconds) {
  for (const end = now() + milliseconds; now() < end; await sleep(50)) {
    let db;
    try {
      db = await connect();
      const { rows } = await db.query('SELECT fencedb.outcome($1::text::xid8, $2::bigint)', ids);
      if (rows[0].outcome === null) break;
      if (rows[0].outcome !== 'in progress') return rows[0].outcome === 'committed';
    } catch { // not reachable now
    } finally {
      await db?.end().catch(() => {});
    }
  }
  throw new CommitUnknown(ids.join(' '));
}

module.exports = { names, load, Issuer, transaction, Held, Lost, Stale, RolledBack, CommitUnknown };
