// What the test of lab/interop runs: takes orders from stdin and tells what came of them, in JSON, a value a line.
//
// Started as `worker.js vectors FILE`, it carries out docs/protocol.json instead.
'use strict';

const assert = require('assert');
const { on } = require('events');
const { readFileSync } = require('fs');
const readline = require('readline');
const Redis = require('ioredis');
const { Client, DatabaseError, types } = require('pg');
const fencedb = require('./fencedb');

const { env } = process;
types.setTypeParser(types.builtins.INT8, Number); // tokens are below 2^53
const tell = (event) => process.stdout.write(JSON.stringify(event) + '\n');

async function connect() {
  const db = new Client({ connectionString: env.POSTGRES, connectionTimeoutMillis: 5000 });
  await db.connect();
  return db;
}

const client = () =>
  new Redis(env.REDIS, { maxRetriesPerRequest: 0, autoResendUnfulfilledCommands: false, commandTimeout: 1000 }).on('error', () => {});

// write reads a counter, adds one, and notes under which token.
async function write(issuer, order, next) {
  const lease = await issuer.acquire(order.resource, order.wait_ms);
  try {
    if (order.hold) {
      tell({ at: 'holding', token: lease.token });
      await next();
    }
    const addOne = async (db) => {
      const { rows } = await db.query('SELECT value FROM counters WHERE resource = $1', [order.resource]);
      const value = rows[0].value + 1;
      await db.query('UPDATE counters SET value = $1 WHERE resource = $2', [value, order.resource]);
      await db.query('INSERT INTO writes (resource, value, token, worker) VALUES ($1, $2, $3, $4)',
        [order.resource, value, lease.token, env.WORKER]);
      return value;
    };
    // Late is for a holder that does not look at its own time.
    const value = await fencedb.transaction(connect, lease, addOne, order.late ? 10000 : undefined);
    return { outcome: 'written', value, token: lease.token };
  } finally {
    await lease.release().catch(() => {}); // what the transaction said stands; the lease runs out by itself
  }
}

async function serve() {
  const options = { ttl: Number(env.TTL_MS), namespace: env.NAMESPACE, holder: env.WORKER };
  const redis = client();
  const issuer = new fencedb.Issuer(redis, env.SCRIPTS, options);
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const next = () => lines.next();
  tell({});
  for (let line; !(line = await next()).done; ) {
    let done;
    try {
      done = await write(issuer, JSON.parse(line.value), next);
    } catch (error) {
      const { Held, Lost, RolledBack, CommitUnknown, Stale } = fencedb;
      const known = [Held, Lost, RolledBack, CommitUnknown, Stale].find((kind) => error instanceof kind);
      const ofPostgres = error instanceof DatabaseError || /^Connection terminated/.test(error.message);
      const outcome = known ? known.name.toLowerCase() : ofPostgres ? 'rolledback' : 'error';
      const { token, stored } = error; // of Stale
      done = { outcome, token, stored, error: String(error) };
    }
    tell(done);
  }
  issuer.close();
  redis.disconnect();
}

// Vectors are the steps of docs/protocol.json. A word that begins with $ stands for a value: the first time for any.
class Vectors {
  known = new Map();
  channels = new Map(); // what came, and who waits for it
  sessions = new Map();
  redis = client();

  fill(text) {
    for (const [name, value] of this.known) text = text.replaceAll(name, value);
    return text;
  }

  same(wanted, got, where) {
    if (Array.isArray(wanted)) {
      assert(Array.isArray(got) && got.length === wanted.length, `${where}: ${got}`);
      wanted.forEach((one, n) => this.same(one, got[n], where));
    } else if (typeof wanted === 'string') {
      const [words, others] = [wanted.split(' '), String(got).split(' ')];
      assert.strictEqual(words.length, others.length, `${where}: ${got}`);
      words.forEach((word, n) => {
        if (word.startsWith('$') && !this.known.has(word)) this.known.set(word, others[n]);
        assert.strictEqual(others[n], this.known.get(word) ?? word, where);
      });
    } else {
      assert.strictEqual(got, wanted, where);
    }
  }

  async call(step, where) {
    let source = fencedb.load(env.SCRIPTS, step.script, this.helpers[step.script]);
    if (step.script === 'eval') source = `local function script(KEYS, ARGV)\nreturn redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))\nend\n${source}`;
    const call = this.redis.eval(source, step.keys.length, ...step.keys, ...step.args.map((arg) => this.fill(arg)));
    const [reply, error] = await call.then((got) => [got], (problem) => [undefined, problem]);
    if (error) assert(step.error && error.message.includes(step.error), `${where}: ${error}`);
    else this.same(step.reply, reply, where);
  }

  async subscribe(channel) {
    const subscriber = client();
    const messages = on(subscriber, 'message')[Symbol.asyncIterator]();
    await subscriber.subscribe(channel);
    this.channels.set(channel, { subscriber, messages });
  }

  async message(step, where) {
    const { value } = await this.channels.get(step.channel).messages.next();
    this.same(step.message, value[1], where);
  }

  async query(step, where) {
    if (!this.sessions.has(step.session)) this.sessions.set(step.session, await connect());
    const query = this.sessions.get(step.session).query({ text: this.fill(step.sql), rowMode: 'array' });
    const [done, error] = await query.then((got) => [got], (problem) => [undefined, problem]);
    assert.strictEqual(error?.code, step.error?.sqlstate, `${where}: ${error}`);
    if (step.error?.detail) {
      const detail = JSON.parse(error.detail);
      for (const [name, value] of Object.entries(step.error.detail)) assert.deepStrictEqual(detail[name], value, where);
    }
    if (step.tag) assert.strictEqual(done.command, step.tag, where);
    if (step.row) this.same(step.row, done.rows[0], where);
  }

  async run({ helpers, names, refused, stories }) {
    this.helpers = helpers;
    for (const { resource, namespace } of refused) assert.throws(() => fencedb.names(resource, namespace), RangeError);
    for (const name of names) {
      const got = fencedb.names(name.resource, name.namespace, name.hashed, name.kind);
      for (const field of ['owner', 'fence', 'wake']) assert.strictEqual(got[field], name[field]);
    }
    for (const story of stories) {
      await this.redis.flushall();
      this.known.clear();
      for (const step of story.steps) {
        const where = `${story.story}: ${JSON.stringify(step)}`;
        if (step.script) await this.call(step, where);
        else if (step.command) await this.redis.call(...step.command.map((word) => this.fill(word)));
        else if (step.subscribe) await this.subscribe(step.subscribe);
        else if (step.message !== undefined) await this.message(step, where);
        else await this.query(step, where);
        tell({ step });
      }
      for (const { subscriber } of this.channels.values()) subscriber.disconnect();
      this.channels.clear();
    }
    for (const session of this.sessions.values()) await session.end();
    this.redis.disconnect();
  }
}

if (process.argv[2] === 'vectors') new Vectors().run(JSON.parse(readFileSync(process.argv[3], 'utf8')));
else serve();
