"""What the test of lab/interop runs: takes orders from stdin and tells what came of them, in JSON, a value a line.

Started as `worker.py vectors FILE`, it carries out docs/protocol.json instead.
"""

import json
import os
import sys

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import fencedb


def connect():
    return psycopg.connect(os.environ["POSTGRES"], connect_timeout=5)


def client():
    return redis.Redis.from_url(os.environ["REDIS"], decode_responses=True, socket_timeout=1, retry=Retry(NoBackoff(), 0))


def tell(**event):
    print(json.dumps(event), flush=True)


def write(issuer, order):
    """Reads a counter, adds one, and notes under which token."""

    def add_one(db):
        value = db.execute("SELECT value FROM counters WHERE resource = %s", (order["resource"],)).fetchone()[0] + 1
        db.execute("UPDATE counters SET value = %s WHERE resource = %s", (value, order["resource"]))
        db.execute("INSERT INTO writes (resource, value, token, worker) VALUES (%s, %s, %s, %s)",
                   (order["resource"], value, lease.token, os.environ["WORKER"]))
        return value

    if line := order.get("line"):  # under the lease of another
        lease = fencedb.decode(line, issuer.ttl)
        issuer.verify(lease)
        return {"outcome": "written", "value": fencedb.transaction(connect, lease, add_one), "token": lease.token}
    with issuer.acquire(order["resource"], wait=order["wait_ms"] / 1000) as lease:
        if order.get("hold"):
            tell(at="holding", token=lease.token, line=fencedb.encode(lease))
            sys.stdin.readline()
        # Late is for a holder that does not look at its own time.
        value = fencedb.transaction(connect, lease, add_one, 10000 if order.get("late") else None)
        return {"outcome": "written", "value": value, "token": lease.token}


def serve():
    issuer = fencedb.Issuer(client(), os.environ["SCRIPTS"], ttl=int(os.environ["TTL_MS"]) / 1000,
                            namespace=os.environ["NAMESPACE"], holder=os.environ["WORKER"])
    tell()
    for line in sys.stdin:
        try:
            done = write(issuer, json.loads(line))
        except fencedb.Stale as stale:
            done = {"outcome": "stale", **stale.args[0]}
        except (fencedb.Held, fencedb.Lost, fencedb.Malformed, fencedb.RolledBack, fencedb.CommitUnknown) as error:
            done = {"outcome": type(error).__name__.lower(), "error": str(error)}
        except psycopg.Error as error:
            done = {"outcome": "rolledback", "error": repr(error)}
        except Exception as error:
            done = {"outcome": "error", "error": repr(error)}
        tell(**done)


class Vectors:
    """Steps of docs/protocol.json. A word that begins with $ stands for a value: the first time for any."""

    def __init__(self):
        self.known, self.channels, self.sessions, self.redis = {}, {}, {}, client()

    def fill(self, text):
        for name, value in self.known.items():
            text = text.replace(name, value)
        return text

    def same(self, wanted, got, where):
        if isinstance(wanted, list):
            assert isinstance(got, list) and len(wanted) == len(got), (where, wanted, got)
            for one, other in zip(wanted, got):
                self.same(one, other, where)
        elif isinstance(wanted, str):
            words, others = wanted.split(" "), str(got).split(" ")
            assert len(words) == len(others), (where, wanted, got)
            for word, other in zip(words, others):
                assert word == other or word.startswith("$") and self.known.setdefault(word, other) == other, (where, wanted, got)
        else:
            assert wanted == got, (where, wanted, got)

    def call(self, step):
        source = fencedb.load(os.environ["SCRIPTS"], step["script"], self.helpers[step["script"]])
        if step["script"] == "eval":
            source = f"local function script(KEYS, ARGV)\nreturn redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))\nend\n{source}"
        try:
            reply = self.redis.eval(source, len(step["keys"]), *step["keys"], *map(self.fill, step["args"]))
        except redis.ResponseError as error:
            assert "error" in step and step["error"] in str(error), (step, error)
        else:
            self.same(step["reply"], reply, step)

    def message(self, step):
        while (got := self.channels[step["channel"]].get_message(timeout=10)) and got["type"] != "message":
            pass
        self.same(step["message"], got["data"], step)

    def query(self, step):
        name = step["session"]
        if name not in self.sessions:
            self.sessions[name] = connect()
            self.sessions[name].autocommit = True
        try:
            done = self.sessions[name].execute(self.fill(step["sql"]))
        except psycopg.Error as error:
            wanted = step.get("error", {})
            assert wanted.get("sqlstate") == error.sqlstate, (step, error)
            detail = json.loads(error.diag.message_detail) if "detail" in wanted else {}
            assert wanted.get("detail", {}).items() <= detail.items(), (step, detail)
        else:
            assert "error" not in step, step
            self.same(step.get("tag", done.statusmessage), done.statusmessage, step)
            if "row" in step:
                self.same(step["row"], list(done.fetchone()), step)

    def run(self, vectors):
        self.helpers = vectors["helpers"]
        for name in vectors["names"]:
            names = fencedb.names(name["resource"], name["namespace"], name["hashed"], name["kind"])
            assert all(names[field] == name[field] for field in ("owner", "fence", "wake")), (name, names)
        for name in vectors["refused"]:
            try:
                fencedb.names(name["resource"], name["namespace"])
            except ValueError:
                continue
            raise AssertionError(name)
        for story in vectors["stories"]:
            self.redis.flushall()
            self.known = {}
            for step in story["steps"]:
                if "script" in step:
                    self.call(step)
                elif "command" in step:
                    self.redis.execute_command(*map(self.fill, step["command"]))
                elif "subscribe" in step:
                    self.channels[step["subscribe"]] = subscription = self.redis.pubsub()
                    subscription.subscribe(step["subscribe"])
                    assert subscription.get_message(timeout=10)["type"] == "subscribe"
                elif "message" in step:
                    self.message(step)
                else:
                    self.query(step)
                tell(step=step)


if sys.argv[1:2] == ["vectors"]:
    with open(sys.argv[2], encoding="utf-8") as file:
        Vectors().run(json.load(file))
else:
    serve()
