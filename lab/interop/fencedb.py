"""Leases of fencedb for Python, written from docs/protocol.md: copy it, and the scripts beside it.

Needs redis-py 4 or newer and psycopg 3. Times are in seconds here, and in milliseconds on the wire.
"""

import hashlib
import json
import random
import re
import threading
import time
import urllib.parse
import uuid
from pathlib import Path

import psycopg
import redis

RETENTION = 24 * 60 * 60 * 1000  # milliseconds for which Redis remembers the last token
ASK_AGAIN = 5.0  # a waiter that does not ask for 6 seconds counts as dead
PASSING = ("LOADING", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "MASTERDOWN", "BUSY")
HELPERS = "-- The helpers come here.\n"


class Held(Exception): "Another holds the resource. Nothing was changed."
class Lost(Exception): "The lease is over. Stop working."
class Stale(Exception): "A newer token has entered in Postgres. Nothing was written."
class RolledBack(Exception): "The transaction was rolled back. Nothing was written."
class Malformed(Exception): "The text is not a grant."
class CommitUnknown(Exception): "COMMIT was sent, and nobody knows whether it was carried out."


def names(resource, namespace="", hashed=False, kind="lease"):
    """The keys of a resource and, as wake, its channel."""
    for what, text, least, most in (("resource", resource, 1, 512), ("namespace", namespace, 0, 128)):
        if not least <= len(text.encode()) <= most or "\0" in text:
            raise ValueError(f"{what} {text!r} must have {least} to {most} bytes of UTF-8 without NUL")
    if hashed:
        resource = "sha256:" + hashlib.sha256(resource.encode()).hexdigest()
    tag = escape(resource)
    if namespace:
        tag = escape(namespace) + "/" + tag
    return {field: f"{kind}:v1:{{{tag}}}:{field}" for field in ("owner", "fence", "queue", "alive", "ended", "wake")}


def escape(text):
    for sign, code in (("%", "%25"), ("{", "%7B"), ("}", "%7D"), ("/", "%2F")):
        text = text.replace(sign, code)
    return text


def load(directory, name, helpers=("common", "holder")):
    """The source of a script: its common case, if it has one, the helpers (here those of leases), the rest."""
    script, *between = ((Path(directory) / f"{file}.lua").read_text() + "\n" for file in (name, *helpers))
    before, found, after = script.partition(HELPERS)
    return before + "".join(between) + after if found else "".join(between) + script


def margin(seconds):
    return min(seconds / 100 + 0.001, seconds / 4)


def passes(error):
    """Whether to send the request again: no answer, or an error that is usually over soon."""
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        return not isinstance(error, redis.AuthenticationError)
    return isinstance(error, redis.ReadOnlyError) or str(error).startswith(PASSING)


class Issuer:
    """Leases of one Redis. The client decodes replies to text and sends nothing twice by itself:

    redis.Redis(decode_responses=True, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    """

    def __init__(self, client, scripts, ttl=10.0, namespace="", hashed=False, holder="python"):
        self.client, self.ttl, self.namespace, self.hashed = client, ttl, namespace, hashed
        self.label = re.sub(r"[^A-Ya-z0-9-]", lambda m: "".join(f"Z{b:02x}" for b in m[0].encode()), holder)[:64]
        sources = {name: load(scripts, name) for name in ("acquire", "extend", "release", "withdraw", "inspect")}
        self.scripts = {name: (text, hashlib.sha1(text.encode()).hexdigest()) for name, text in sources.items()}

    def run(self, name, keys, *args):
        source, sha = self.scripts[name]
        try:
            reply = self.client.evalsha(sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            reply = self.client.eval(source, len(keys), *keys, *args)
        if reply[0] in ("corrupt", "exhausted"):
            raise RuntimeError(f"{name} answered {reply}")
        return reply

    def insist(self, name, keys, *args):
        """Sends a release or a withdrawal until it is answered, or the lease has expired anyway."""
        end, pause = time.monotonic() + self.ttl, 0.02
        while True:
            try:
                return self.run(name, keys, *args)[0]
            except redis.RedisError as error:
                if not passes(error) or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def acquire(self, resource, wait=0.0):
        """A lease that is renewed until it is released. Waits for its turn for that long, or raises Held."""
        asking, lease = _Acquisition(self, resource), None
        try:
            lease = asking.ask("try", time.monotonic() + self.ttl)
            if not lease and wait > 0:
                lease = asking.wait(time.monotonic() + wait)
        finally:
            if not lease and (asking.waits or asking.unsure):  # a place in the queue, or a grant whose answer was lost
                asking.withdraw()
        if not lease:
            raise Held(resource)
        return lease


    def verify(self, grant):
        """Raises Lost unless the grant is of the current lease, for grants that came from elsewhere."""
        keys = names(grant.resource, self.namespace, self.hashed)
        answer = self.run("inspect", [keys[field] for field in ("owner", "fence", "queue", "alive", "ended")])
        if answer[0] != "inspected":
            raise RuntimeError(f"inspect answered {answer}")
        if answer[1:3] != [grant.lease_id, str(grant.token)]:
            raise Lost(f"{grant.resource}: another holds it, or nobody")
        if int(answer[4]) > grant.token:
            raise Lost(f"{grant.resource}: its token was passed")


class _Acquisition:
    def __init__(self, issuer, resource):
        self.issuer, self.resource = issuer, resource
        self.names = names(resource, issuer.namespace, issuer.hashed)
        self.keys = [self.names[field] for field in ("owner", "fence", "queue", "alive")]
        self.lease_id = str(uuid.uuid4())  # also the name of the listener
        self.retry_after = 0.0
        self.waits, self.unsure = False, False

    def ask(self, mode, end):
        """The lease, or None if another holds it. Asks again while there is no answer."""
        while True:
            sent = time.monotonic()  # trust counts from before the request
            try:
                reply = self.issuer.run(
                    "acquire", self.keys, self.lease_id, self.issuer.label, int(self.issuer.ttl * 1000), RETENTION, mode,
                    "PUBLISH", self.lease_id)
            except redis.RedisError as error:
                self.unsure = self.unsure or not isinstance(error, redis.ResponseError)
                if not passes(error) or time.monotonic() > end:
                    raise
                time.sleep(random.uniform(0.02, 0.05))
                continue
            if reply[0] == "held":
                self.retry_after = min(int(reply[1]) / 1000, ASK_AGAIN)
                return None
            if reply[0] != "granted":
                raise RuntimeError(f"acquire answered {reply}")
            until = sent + self.issuer.ttl - margin(self.issuer.ttl)
            if time.monotonic() < until:
                return Lease(self, int(reply[1]), until)
            # An answer that comes after its own time counts as none.

    def wait(self, end):
        while time.monotonic() < end:
            try:
                with self.issuer.client.pubsub() as subscription:
                    subscription.subscribe(f"{self.names['wake']}:{self.lease_id}")
                    self.listen(subscription, end)  # until the subscription is confirmed
                    while time.monotonic() < end:
                        self.waits = True
                        if lease := self.ask("wait", end):
                            return lease
                        self.listen(subscription, end)
            except redis.ConnectionError:
                time.sleep(0.1)  # subscribe again
        return None

    def listen(self, subscription, end):
        """Returns when it is time to ask."""
        look = time.monotonic() + self.retry_after * random.uniform(1, 1.05)
        while (left := min(look, end) - time.monotonic()) > 0:
            message = subscription.get_message(timeout=left)
            if message is None:
                continue
            if message["type"] == "subscribe":  # from now on, messages are heard: ask
                return
            word, _, rest = message["data"].partition(" ")
            lease_id, *numbers = rest.split(" ")
            if lease_id != self.lease_id:
                continue
            if word != "look":
                return
            look = time.monotonic() + int(numbers[0]) / 1000

    def withdraw(self):
        keys = [self.names[field] for field in ("owner", "queue", "alive")]
        self.issuer.insist("withdraw", keys, self.lease_id, "PUBLISH")


class Lease:
    """Held until remaining() is 0. A context manager that releases."""

    def __init__(self, acquisition, token, until):
        self.resource, self.lease_id, self.token = acquisition.resource, acquisition.lease_id, token
        self.until = until
        self.lost = None  # why Redis says that it is over
        self._by, self._issuer = acquisition, acquisition.issuer
        self._stop, self._most = threading.Event(), time.monotonic() + 3600  # who is stuck must not hold for ever
        self._thread = threading.Thread(target=self._renew, args=(self._issuer.ttl / 3,), daemon=True)
        self._thread.start()

    def remaining(self):
        return 0.0 if self.lost else max(self.until - time.monotonic(), 0.0)

    def extend(self):
        keys = [self._by.names[field] for field in ("owner", "fence", "ended")]
        sent = time.monotonic()
        answer = self._issuer.run("extend", keys, self.lease_id, self.token, int(self._issuer.ttl * 1000), RETENTION)[0]
        if answer != "extended":
            self.lost = answer
            raise Lost(f"{self.resource}: {answer}")
        self.until = max(self.until, sent + self._issuer.ttl - margin(self._issuer.ttl))

    def _renew(self, pause):
        while not self._stop.wait(pause) and self.remaining() > 0 and time.monotonic() < self._most:
            try:
                self.extend()
                pause = self._issuer.ttl / 3
            except Lost:
                return
            except redis.RedisError:
                pause = self._issuer.ttl / 12

    def release(self):
        """Answers released; or gone, taken or revoked, if the lease was over before."""
        self._stop.set()
        self._thread.join()
        keys = [self._by.names[field] for field in ("owner", "queue", "alive", "ended")]
        return self._issuer.insist("release", keys, self.lease_id, self.token, "PUBLISH")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.release()
        except (redis.RedisError, RuntimeError):
            pass  # what the work has said stands; the lease runs out by itself


class Received:
    """A grant that came from another process. transaction takes it as a lease."""

    def __init__(self, resource, token, lease_id, until):
        self.resource, self.token, self.lease_id, self.until = resource, token, lease_id, until

    def remaining(self):
        return max(self.until - time.monotonic(), 0.0)


def encode(lease):
    """The line of a lease, for the header Fencing-Grant of one request. It is the right to write: log it nowhere."""
    left = int(lease.remaining() * 1000)
    if left <= 0:
        raise Lost(lease.resource)
    return f"v1 {lease.token} {lease.lease_id} {left} {time.time_ns() // 10**6} {urllib.parse.quote(lease.resource, safe=':')}"


def decode(line, at_most):
    """The grant of a line, for what remained when it was sent and at_most seconds. Pass it to Issuer.verify."""
    words = re.fullmatch(r"v1 ([1-9]\d{0,18}) ([0-9a-f-]{36}) (\d{1,19}) (\d{1,19}) ([!-~]+)", line, re.ASCII)
    try:
        resource = urllib.parse.unquote(words[5], errors="strict")
    except (TypeError, UnicodeDecodeError):
        raise Malformed() from None  # without the line
    token, left, sent = int(words[1]), int(words[3]), int(words[4])
    seconds = min((left - max(time.time_ns() // 10**6 + 1 - sent, 0)) / 1000, at_most)
    if seconds <= 0:
        raise Lost(resource)
    return Received(resource, token, words[2], time.monotonic() + seconds)


def transaction(connect, lease, work, milliseconds=None):
    """Returns what work(connection) returns, committed behind the fence. connect opens a psycopg connection.

    Lost, Stale, RolledBack and errors of psycopg: nothing was written. CommitUnknown: nobody knows.
    """
    ids, committing = None, False
    db = connect()
    try:
        db.autocommit = True  # BEGIN and COMMIT are sent here
        db.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        left = int(lease.remaining() * 1000) if milliseconds is None else milliseconds
        if left <= 0:  # connecting may have taken long
            raise Lost(lease.resource)
        ids = db.execute("SELECT xid::text, epoch FROM fencedb.enter(%s::text, %s::bigint, %s::uuid, %s::bigint)",
                         (lease.resource, lease.token, lease.lease_id, left)).fetchone()
        result = work(db)
        db.execute("SELECT fencedb.require_entered(%s::xid8)", (ids[0],))
        committing = True
        tag = db.execute("COMMIT").statusmessage
        if tag != "COMMIT":  # of a transaction that has failed: ROLLBACK, which is no error
            raise RolledBack(lease.resource)
        return result
    except psycopg.Error as error:
        if committing and error.diag.severity_nonlocalized != "ERROR":
            if outcome(connect, ids, left / 1000 + 5):
                return result
            raise RolledBack(lease.resource) from error
        if error.sqlstate == "FN001":
            raise Stale(json.loads(error.diag.message_detail)) from error
        raise
    finally:
        db.close()  # which rolls back what was not committed


def outcome(connect, ids, seconds):
    """Whether a transaction was committed whose answer to COMMIT was lost."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with connect() as db:
                row = db.execute("SELECT fencedb.outcome(%s::xid8, %s::bigint)", ids).fetchone()
            if row[0] is None:
                break
            if row[0] != "in progress":
                return row[0] == "committed"
        except psycopg.Error:
            pass
        time.sleep(0.05)
    raise CommitUnknown(ids)
