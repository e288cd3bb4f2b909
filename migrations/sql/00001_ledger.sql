-- The ledger of fences and the one way to pass it: fencedb.enter.
--
-- Three steps are all there is:
--     enter locks the fence of a resource in the ledger (fencedb.fences), which refuses old tokens.
--     Then it writes the resource and the token into an open list, the setting fencedb.entered,
--     which is local to the transaction.
--     The guard of a table looks the resource of each row up in that list (00002).
-- The lock of a row and a local setting live and die together: ROLLBACK TO, exception blocks,
-- COMMIT and PREPARE take back or keep both. So an entry is the lock, and the guard asks neither
-- the ledger nor the clock again.
--
-- The list is no secret and no proof. A login that may not enter is refused by the guard whatever
-- the list says (fencedb.may_enter). A login that may enter could enter with any token: it is
-- believed.
--
-- Errors raised here and in later migrations (stable, for clients in any language):
--   FN001  the token is stale: the fence has a newer one, or the same one under another lease
--   FN002  no token: the transaction wrote to a protected table without having entered a fence
--   FN003  wrong resource: the transaction entered, but not the fence of this row's resource
--   FN004  lease over: the validity given to enter is not positive, or ended while it entered
--   FN006  too long: the transaction outlasted the validity that it entered with
--   FN007  ended: the transaction that entered is not open any more
-- Of Postgres's own, enter raises
--   55P03  busy: an open transaction held the fence for as long as this one could wait
--   40001  not sealed: above READ COMMITTED, the token has not entered yet (see take), or a newer
--          one is entering
-- FN001 to FN003, and 55P03 where the fence was there before, carry their values as a JSON object
-- in DETAIL.

-- +goose Up
-- +goose StatementBegin

-- In every migration: what is read now (defaults, constraints, views, function bodies with RETURN)
-- is not read in the search_path of whoever migrates, where others may have put functions and
-- operators of their own. That path comes back at the end.
SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- Ordinary and logged on purpose: a fence that a crash forgets is no fence.
-- Half of each page is left free, so that advancing a fence stays a heap-only update.
CREATE TABLE fencedb.fences (
    resource           text COLLATE "C" PRIMARY KEY CHECK (resource <> '' AND octet_length(resource) <= 512 AND strpos(resource, E'\x01') = 0),
    last_fencing_token bigint      NOT NULL CHECK (last_fencing_token >= 0),
    lease_id           uuid        NOT NULL,
    advanced_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    reset_from         bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE  fencedb.fences IS 'The ledger: the highest fencing token that has entered, per resource. It outlives the rows it protects; deleting from it by hand lets stale holders write again.';
COMMENT ON COLUMN fencedb.fences.resource           IS 'type:id, as the lease names it; compared byte by byte.';
COMMENT ON COLUMN fencedb.fences.last_fencing_token IS 'No transaction with a lower token commits for this resource again, unless fencedb.reset_fence sets it back.';
COMMENT ON COLUMN fencedb.fences.lease_id           IS 'The lease that carries this token. The same token under another lease is stale: issuers that lose their data can issue a number twice.';
COMMENT ON COLUMN fencedb.fences.advanced_at        IS 'When this token entered first, by the clock of this server, but not before that transaction began.';
COMMENT ON COLUMN fencedb.fences.reset_from         IS 'NULL unless fencedb.reset_fence has set this fence back: tokens in rows do not count up to this one.';

-- Who knows a lease id and its token can enter in the name of that lease, so members of
-- pg_read_all_data must not read it here; row security keeps them out. There is a policy for
-- operators (00003).
ALTER TABLE fencedb.fences ENABLE ROW LEVEL SECURITY;
ALTER TABLE fencedb.fences ALTER COLUMN lease_id SET STATISTICS 0; -- which would show some to them

-- Tokens end at 2^53 - 1 (the largest whole number that Lua, JavaScript and JSON keep exactly), so
-- that a token entered by mistake cannot shut every later holder out.
CREATE TABLE fencedb.foreign_issuers (
    resource_type text COLLATE "C" PRIMARY KEY CHECK (resource_type <> '' AND strpos(resource_type, ':') = 0)
);

COMMENT ON TABLE fencedb.foreign_issuers IS 'The types of resources (the part of their names before the colon) whose tokens may exceed 2^53 - 1, because something else than package lease issues them. The owner of this schema inserts them.';

-- Which functions and operators a function means must not depend on the search_path of its caller.
-- So each one fixes its own, with SET or, where the body is a single expression, with RETURN, which
-- is read when the migration runs. Functions marked SECURITY DEFINER are the doors. SET costs time
-- in every call, so the inner functions that a door calls each time have none: they run under the
-- door's, and are for no one else (see the REVOKE at the end).

-- The open list, the setting fencedb.entered, has three words: the transaction id; when the limits
-- of statements have to be lowered again; and when the transaction has to have ended, both in
-- milliseconds since 1970. Entries follow without anything between them, each
--     U+0001, the transaction id, r, the resource, U+0001, t, the token, U+0001
-- A list with another transaction id was kept by the session for longer, and counts for nothing.
-- Here a NULL, as of a transaction that has no id yet, is no match.
CREATE FUNCTION fencedb.entries() RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN starts_with(current_setting('fencedb.entered', true), concat(pg_current_xact_id_if_assigned(), ' ')) THEN current_setting('fencedb.entered') END;

COMMENT ON FUNCTION fencedb.entries IS 'The open list of this transaction. NULL unless it has entered.';

CREATE FUNCTION fencedb.entry(resource text, token bigint) RETURNS text
    LANGUAGE sql
    RETURN concat(E'\x01', pg_current_xact_id(), 'r', resource, E'\x01t', token, E'\x01');

CREATE FUNCTION fencedb.token_of(resource text) RETURNS bigint
    LANGUAGE sql
    RETURN nullif(split_part(split_part(current_setting('fencedb.entered', true), concat(E'\x01', pg_current_xact_id_if_assigned(), 'r', resource, E'\x01t') COLLATE "C", 2), E'\x01', 1), '')::bigint;

COMMENT ON FUNCTION fencedb.token_of IS 'The token with which this transaction has entered the fence of resource. NULL unless it has.';

-- VOLATILE, as the clock is, or it would cost a call.
CREATE FUNCTION fencedb.left_ms() RETURNS float8
    LANGUAGE sql
    RETURN nullif(split_part(fencedb.entries(), ' ', 3), '')::float8 - date_part('epoch', clock_timestamp()) * 1000;

COMMENT ON FUNCTION fencedb.left_ms IS 'How many milliseconds this transaction may still write, by its open list. NULL unless it has entered.';

-- A limit counts from the start of each statement, so a later statement would get more time than is
-- left. What the application or the role set tighter stays.
CREATE FUNCTION fencedb.lower_limit(name text, limit_ms bigint) RETURNS text
    LANGUAGE sql
    RETURN CASE WHEN coalesce(nullif(current_setting(name), '0')::interval > interval '1 ms' * limit_ms, true) THEN set_config(name, limit_ms::text, true) END;

COMMENT ON FUNCTION fencedb.lower_limit IS 'Lowers a time limit of Postgres to limit_ms milliseconds in this transaction, unless it is lower.';

-- transaction_timeout, of Postgres 17 and newer, counts from the start of the transaction, or from
-- when it is switched on anew, hence the 0 before it.
CREATE FUNCTION fencedb.lower_transaction_timeout(limit_ms bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN concat(set_config('transaction_timeout', '0', true), set_config('transaction_timeout', limit_ms::text, true))
    WHERE transaction_timestamp() + current_setting('transaction_timeout')::interval > clock_timestamp() + interval '1 ms' * limit_ms;
END
$$;

-- admitted writes the open list, and bounds the transaction: none may outlive its lease, and the
-- server itself ends it. ends is in milliseconds since 1970, left_ms counts from now. The limits of
-- statements are one part in 256 short of what is left, and a guard draws them in again when that
-- much has passed, not in each millisecond. As an expression this costs no call. Its first word is
-- the transaction id, its last the epoch.
--
-- Only the first entry of a transaction lowers transaction_timeout. Postgres does not set its timer
-- back with ROLLBACK TO, so a later, shorter entry behind a savepoint would leave it too short.
CREATE FUNCTION fencedb.admitted(ends float8, left_ms bigint, entries text, may_idle boolean, epoch bigint) RETURNS text
    LANGUAGE sql
    RETURN concat_ws(' ',
        pg_current_xact_id(),
        CASE WHEN coalesce(current_setting('fencedb.entered', true), '') = '' THEN
            CASE WHEN current_setting('transaction_timeout', true) = '0' THEN set_config('transaction_timeout', left_ms::text, true)
                 WHEN current_setting('transaction_timeout', true) <> '0' THEN fencedb.lower_transaction_timeout(left_ms) END END,
        set_config('fencedb.entered', concat(pg_current_xact_id(), ' ', (ends - left_ms + left_ms / 256)::bigint, ' ', ends::bigint, ' ', entries), true),
        fencedb.lower_limit('statement_timeout', left_ms - left_ms / 256),
        CASE WHEN may_idle IS NOT FALSE THEN fencedb.lower_limit('idle_in_transaction_session_timeout', left_ms - left_ms / 256) END,
        epoch);

-- The common cases are one query each: nobody stands in the way, and the fence has this token and
-- this lease already, or an older token. What take says of the order of locks, holds here too.
-- enter_all does the rest, also where the epoch of this run of the server is not drawn yet. There
-- is no SET, which costs more than all of it, so every name has its schema.
CREATE FUNCTION fencedb.enter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, wait_ms bigint DEFAULT NULL, first boolean DEFAULT false, may_idle boolean DEFAULT true, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    start   pg_catalog.timestamptz := CASE WHEN first THEN pg_catalog.transaction_timestamp() ELSE pg_catalog.clock_timestamp() END; -- reenter may have waited for a lock on the ledger
    ends    pg_catalog.float8;
    left_ms pg_catalog.int8;
    noted   pg_catalog.text;
BEGIN
    IF coalesce(pg_catalog.current_setting('fencedb.entered', true), '') OPERATOR(pg_catalog.=) '' THEN
        SELECT pg_catalog.pg_sequence_last_value('fencedb.server_epoch'), t.ends, pg_catalog.floor(t.ends OPERATOR(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000))::pg_catalog.int8
        INTO epoch, ends, left_ms
        FROM (SELECT pg_catalog.date_part('epoch', start) OPERATOR(pg_catalog.*) 1000 OPERATOR(pg_catalog.+) coalesce(least(remaining_ms, 2147483647), 2147483647) AS ends) t, fencedb.fences f
        WHERE f.resource OPERATOR(pg_catalog.=) enter.resource COLLATE pg_catalog."C" AND f.last_fencing_token OPERATOR(pg_catalog.=) token AND f.lease_id OPERATOR(pg_catalog.=) enter.lease_id AND token OPERATOR(pg_catalog.>) 0
        FOR SHARE OF f SKIP LOCKED;
        IF left_ms IS NULL AND (remaining_ms OPERATOR(pg_catalog.>) 0) IS NOT FALSE AND token OPERATOR(pg_catalog.<=) 9007199254740991 AND lease_id IS NOT NULL AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.~~) 'read %' THEN
            UPDATE fencedb.fences f SET last_fencing_token = token, lease_id = enter.lease_id, advanced_at = greatest(pg_catalog.clock_timestamp(), pg_catalog.transaction_timestamp())
            FROM (SELECT o.ctid, pg_catalog.date_part('epoch', start) OPERATOR(pg_catalog.*) 1000 OPERATOR(pg_catalog.+) coalesce(least(remaining_ms, 2147483647), 2147483647) AS ends FROM fencedb.fences o
                  WHERE o.resource OPERATOR(pg_catalog.=) enter.resource COLLATE pg_catalog."C" AND o.last_fencing_token OPERATOR(pg_catalog.<) token FOR NO KEY UPDATE SKIP LOCKED) older
            WHERE f.ctid OPERATOR(pg_catalog.=) older.ctid
            RETURNING pg_catalog.pg_sequence_last_value('fencedb.server_epoch'), older.ends, pg_catalog.floor(older.ends OPERATOR(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000))::pg_catalog.int8
            INTO epoch, ends, left_ms;
        END IF;
        IF epoch OPERATOR(pg_catalog.&) 16777215 OPERATOR(pg_catalog.=) fencedb.started() AND left_ms OPERATOR(pg_catalog.>) 0 THEN
            noted := fencedb.admitted(ends, left_ms, fencedb.entry(resource, token), may_idle, epoch);
            xid := pg_catalog.pg_current_xact_id();
            RETURN;
        END IF;
    END IF;
    SELECT a.xid, a.epoch INTO xid, epoch
    FROM fencedb.enter_all(ARRAY[resource], ARRAY[token], ARRAY[lease_id], pg_catalog.floor(least(remaining_ms, 2147483647) OPERATOR(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) start) OPERATOR(pg_catalog.*) 1000))::pg_catalog.int8, wait_ms) a;
END
$$;

COMMENT ON FUNCTION fencedb.enter IS 'Enters the fence of resource: the first statement of every fenced transaction. Refuses a stale token (FN001) at once; otherwise holds the fence until the transaction ends, waiting for open transactions of the previous holder for wait_ms, remaining_ms and lock_timeout at the most, whichever is least, then 55P03. remaining_ms, the rest of the lease''s validity in milliseconds, bounds this transaction, which otherwise has 24 days, the longest that Postgres can limit; with first it counts from the start of the transaction, in which nothing came before. Where may_idle is false, nothing limits the time in which the transaction waits for its client: for one that is sent as a whole. Behind a savepoint, ROLLBACK TO gives the fence back, and what is written after it is refused until the transaction enters again. Above READ COMMITTED a token that has not entered before is refused with 40001. Returns what fencedb.outcome asks for after a lost COMMIT: the transaction id and the epoch of the server.';

CREATE FUNCTION fencedb.enter_all(resources text[], tokens bigint[], lease_ids uuid[], remaining_ms bigint DEFAULT NULL, wait_ms bigint DEFAULT NULL, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    n        int     := coalesce(cardinality(resources), 0);
    start    float8  := date_part('epoch', clock_timestamp()) * 1000;
    had_ms   float8  := fencedb.left_ms(); -- NULL if this transaction has not entered before
    entries  text    := CASE WHEN had_ms IS NOT NULL THEN regexp_replace(fencedb.entries(), '^[^ ]+ [^ ]+ [^ ]+ ', '') END;
    until    float8;
    deadline numeric; -- of the wait for all fences together
    twice    text;
    now      float8;
    noted    text;
BEGIN
    IF n = 0 OR n IS DISTINCT FROM cardinality(tokens) OR n IS DISTINCT FROM cardinality(lease_ids) THEN
        RAISE EXCEPTION 'fencedb.enter: needs as many tokens and lease ids as resources, and at least one; got %, % and %',
            n, coalesce(cardinality(tokens), 0), coalesce(cardinality(lease_ids), 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM fencedb.check_grant(g.resource, g.token, g.lease_id) FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id)
    WHERE NOT coalesce(octet_length(g.resource) BETWEEN 1 AND 512 AND g.token BETWEEN 1 AND 9007199254740991 AND g.lease_id IS NOT NULL AND strpos(g.resource COLLATE "C", E'\x01') = 0, false); -- most cost no call
    SELECT g.resource INTO twice FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id)
    GROUP BY g.resource HAVING count(DISTINCT (g.token, g.lease_id)) > 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'fencedb.enter: two different grants for resource "%"', twice
            USING ERRCODE = 'invalid_parameter_value', HINT = 'One transaction works under one grant per resource; begin another for the other grant.';
    ELSIF remaining_ms <= 0 THEN
        RAISE EXCEPTION 'the lease is over: % ms of its validity remain', remaining_ms
            USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
    END IF;
    until := start + least(had_ms, remaining_ms, 2147483647); -- where settings of Postgres end
    deadline := least(until, start + wait_ms,
        start + nullif(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000, 0));

    PERFORM fencedb.take(resources, tokens, lease_ids, deadline); -- in one order for everybody, so that two transactions cannot wait for each other
    now := date_part('epoch', clock_timestamp()) * 1000;
    IF until < now THEN
        RAISE EXCEPTION 'the lease is over: its validity ended while its fences were entered'
            USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
    END IF;
    epoch := fencedb.epoch();
    xid := pg_current_xact_id();
    entries := concat(entries, (SELECT string_agg(DISTINCT fencedb.entry(g.resource, g.token), '') FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id) WHERE fencedb.token_of(g.resource) IS NULL));
    noted := fencedb.admitted(until, greatest(1, floor(until - now))::bigint, entries, true, epoch);
END
$$;

COMMENT ON FUNCTION fencedb.enter_all IS 'Enters the fences of several resources, all or none, in byte order of their names. See enter.';

-- take holds the fence of one resource until the transaction ends, or raises FN001, 40001, or 55P03
-- at the deadline. Why transactions of one lease share it and a newcomer locks it exclusively:
--     A (41) holds the row FOR SHARE and reads. B (42) must update the row, so it waits for A.
--     A commits. B goes on, and its next statement reads what A wrote.
--     A's next transaction finds 42: stale.
--     Two transactions of A share the row and run side by side.
-- A first transaction locks exclusively straight away: two that shared first and updated then would
-- deadlock. Each round reads anew, so a fence that moved while we waited is judged by its new
-- state. A lock that was taken behind a savepoint goes with ROLLBACK TO, and the settings that
-- enter leaves go with it.
--
-- Under REPEATABLE READ and SERIALIZABLE the fence must have been advanced before the snapshot was
-- taken. Otherwise:
--     A (41) holds the row FOR SHARE. B (42) takes its snapshot with this statement, and waits.
--     A books the table and commits. A has only locked the row, so B's update is no conflict for
--     Postgres: no 40001.
--     B reads from its old snapshot that the table is free, and books it as well.
-- A snapshot that shows B's token was taken after B's fence had waited for every A; and if a newer
-- token has entered since, locking the row raises 40001.
--
-- Each round takes those that need no waiting, in one query, in byte order. After the first that is
-- not free it tries none: whoever waits for one fence while it holds a later one can end in a
-- deadlock. So each row of the query looks whether one before it was busy; Postgres begins with a
-- row when it has done with the one before. Then that first one is refused, waited for, or made
-- together with those behind it that are not there either. A round looks at twice as many as the
-- one before has taken, so that many rounds cost no more than what they take.
CREATE FUNCTION fencedb.take(resources text[], tokens bigint[], lease_ids uuid[], deadline numeric) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    level   text COLLATE "C" := current_setting('transaction_isolation');
    limited text := current_setting('lock_timeout');
    taken   int  := 0;
    width   int  := cardinality(resources);
    free    record;
    next    record;
    stored  record;
BEGIN
    SELECT array_agg(g.resource), array_agg(g.token), array_agg(g.lease_id) INTO resources, tokens, lease_ids
    FROM (SELECT * FROM unnest(resources, tokens, lease_ids) AS u(resource, token, lease_id) ORDER BY u.resource COLLATE "C") g;
    WHILE taken < cardinality(resources) LOOP
        PERFORM set_config('fencedb.busy', '', true);
        SELECT count(*) FILTER (WHERE CASE WHEN same.resource IS NULL AND older.resource IS NULL THEN set_config('fencedb.busy', 'x', true) IS NULL ELSE true END) AS n,
               array_agg(older.resource) FILTER (WHERE older.resource IS NOT NULL) AS older,
               array_agg(u.token) FILTER (WHERE older.resource IS NOT NULL) AS tokens,
               array_agg(u.lease_id) FILTER (WHERE older.resource IS NOT NULL) AS lease_ids
        INTO free
        FROM unnest(resources[taken + 1:taken + width], tokens[taken + 1:taken + width], lease_ids[taken + 1:taken + width]) AS u(resource, token, lease_id)
        LEFT JOIN LATERAL (
            SELECT f.resource FROM fencedb.fences f
            WHERE f.resource = u.resource COLLATE "C" AND f.last_fencing_token = u.token AND f.lease_id = u.lease_id AND current_setting('fencedb.busy') = ''
            FOR SHARE SKIP LOCKED) same ON true
        LEFT JOIN LATERAL (
            SELECT f.resource FROM fencedb.fences f
            WHERE same.resource IS NULL AND f.resource = u.resource COLLATE "C" AND f.last_fencing_token < u.token AND current_setting('fencedb.busy') = ''
              AND level LIKE 'read %' AND fencedb.token_of(u.resource) IS NULL
            FOR NO KEY UPDATE SKIP LOCKED) older ON true;
        IF free.older IS NOT NULL THEN
            UPDATE fencedb.fences f SET last_fencing_token = u.token, lease_id = u.lease_id, advanced_at = greatest(clock_timestamp(), transaction_timestamp())
            FROM unnest(free.older, free.tokens, free.lease_ids) u(resource, token, lease_id)
            WHERE f.resource = u.resource COLLATE "C";
        END IF;
        taken := taken + free.n;
        width := greatest(16, 2 * free.n);
        CONTINUE WHEN current_setting('fencedb.busy') = '';

        SELECT resources[taken + 1] AS resource, tokens[taken + 1] AS token, lease_ids[taken + 1] AS lease_id INTO next;
        SELECT f.last_fencing_token AS token, f.lease_id INTO stored FROM fencedb.fences f WHERE f.resource = next.resource COLLATE "C";
        IF (stored.token, stored.lease_id) <> (next.token, next.lease_id) AND fencedb.token_of(next.resource) IS NOT NULL THEN
            RAISE EXCEPTION 'fencedb.enter: this transaction has another grant for resource "%", with token %', next.resource, stored.token
                USING ERRCODE = 'invalid_parameter_value', HINT = 'One transaction works under one grant per resource; begin another for the other grant.';
        ELSIF stored.token > next.token OR stored.token = next.token AND stored.lease_id <> next.lease_id THEN
            PERFORM fencedb.raise_stale(next.resource, next.token, stored.token);
        ELSIF level NOT LIKE 'read %' AND stored.token IS DISTINCT FROM next.token THEN
            RAISE EXCEPTION USING
                ERRCODE = 'serialization_failure',
                MESSAGE = format('fencing token %s has not entered resource "%s" yet, so a transaction at %s cannot', next.token, next.resource, upper(level)),
                DETAIL  = 'Its snapshot could be older than the last write of the holder before.',
                HINT    = 'Nothing was written. Call fencedb.enter with the same grant in a READ COMMITTED transaction, commit that, and begin this one again.';
        ELSIF stored.token IS NULL THEN
            WHILE taken < cardinality(resources) LOOP
                PERFORM set_config('lock_timeout', greatest(1, ceil(deadline - extract(epoch FROM clock_timestamp()) * 1000))::text, true); -- another transaction may be inserting the fence
                INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, advanced_at)
                VALUES (resources[taken + 1], tokens[taken + 1], lease_ids[taken + 1], greatest(clock_timestamp(), transaction_timestamp())) ON CONFLICT DO NOTHING;
                EXIT WHEN NOT FOUND; -- this one is there
                taken := taken + 1;
            END LOOP;
            PERFORM set_config('lock_timeout', limited, true);
        ELSE
            PERFORM fencedb.await(next.resource, stored.token = next.token, deadline);
        END IF;
    END LOOP;
END
$$;

-- await returns when the fence could be locked, or raises 55P03 at the deadline, in milliseconds
-- since 1970. It waits as every statement waits for a row, so the deadlock detector and
-- pg_blocking_pids see it. lock_timeout starts anew for each of several lockers, and an error
-- cannot be taken back outside a subtransaction. So the wait is one of many short ones, each in a
-- subtransaction that is rolled back: the lock that it got would belong to the subtransaction.
CREATE FUNCTION fencedb.await(resource text, shared boolean, deadline numeric) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    left_ms numeric;
BEGIN
    LOOP
        left_ms := deadline - extract(epoch FROM clock_timestamp()) * 1000;
        IF left_ms < 1 THEN
            RAISE EXCEPTION USING
                ERRCODE = 'lock_not_available',
                MESSAGE = format('the fence of resource "%s" is held by an open transaction', resource),
                DETAIL  = jsonb_build_object('resource', resource, 'blockers', (SELECT coalesce(jsonb_agg(b), '[]') FROM fencedb.blockers(ARRAY[resource]) b))::text,
                HINT    = 'Nothing was written. The holder before has to end its transaction first; fencedb.blockers names it.';
        END IF;
        BEGIN
            PERFORM set_config('lock_timeout', ceil(least(2147483647, left_ms, greatest(20, left_ms / 8)))::text, true);
            IF shared THEN
                PERFORM FROM fencedb.fences f WHERE f.resource = await.resource COLLATE "C" FOR SHARE;
            ELSE
                PERFORM FROM fencedb.fences f WHERE f.resource = await.resource COLLATE "C" FOR NO KEY UPDATE;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'FN000';
        EXCEPTION
            WHEN SQLSTATE 'FN000' THEN
                RETURN;
            WHEN lock_not_available THEN
                -- not yet
        END;
    END LOOP;
END
$$;

-- check_grant raises 22023 for a grant that no issuer can have issued.
CREATE FUNCTION fencedb.check_grant(resource text, token bigint, lease_id uuid) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF resource IS NULL OR resource = '' OR octet_length(resource) > 512 THEN
        RAISE EXCEPTION 'fencedb.enter: the resource must be 1 to 512 bytes, got %', coalesce(octet_length(resource)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF strpos(resource COLLATE "C", E'\x01') > 0 THEN
        RAISE EXCEPTION 'fencedb.enter: the resource % contains the character U+0001, which no resource can have', quote_literal(resource) USING ERRCODE = 'invalid_parameter_value';
    ELSIF token IS NULL OR token <= 0 THEN
        RAISE EXCEPTION 'fencedb.enter: the token for resource "%" must be positive, got %', resource, coalesce(token::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF token > 9007199254740991 AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(resource COLLATE "C", ':', 1)) THEN
        RAISE EXCEPTION 'fencedb.enter: the token for resource "%" must be at most 2^53 - 1 (9007199254740991), got %', resource, token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Package lease cannot issue a greater token. If another issuer makes the tokens of such resources, insert their type into fencedb.foreign_issuers.';
    ELSIF lease_id IS NULL THEN
        RAISE EXCEPTION 'fencedb.enter: the lease id for resource "%" must not be NULL', resource
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

CREATE FUNCTION fencedb.raise_stale(resource text, token bigint, stored bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'FN001',
        MESSAGE = CASE
            WHEN stored > token THEN format('fencing token %s for resource "%s" is stale: token %s has entered since', token, resource, stored)
            ELSE format('fencing token %s for resource "%s" is stale: another lease entered with the same token', token, resource)
        END,
        DETAIL = jsonb_build_object('resource', resource, 'token', token, 'stored', stored)::text,
        HINT = 'Another holder has taken over. Nothing was written; drop this work, or acquire the lease again for a new token.';
END
$$;

-- A prepared transaction has no process. What it has locked is listed under a virtual transaction
-- of its own.
CREATE FUNCTION fencedb.prepared_writers() RETURNS TABLE (xid xid)
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT own.transactionid
    FROM pg_locks l JOIN pg_locks own ON own.virtualtransaction = l.virtualtransaction AND own.locktype = 'transactionid' AND own.pid IS NULL
    WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowExclusiveLock', 'RowShareLock') AND l.pid IS NULL
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

COMMENT ON FUNCTION fencedb.prepared_writers IS 'The prepared transactions that hold fences, those too that they have made.';

-- Whose open transactions keep the fences of resources. The xmax of a fence names its locker, or a
-- multixact of several; a fence that is being inserted cannot be seen, so where one is missing,
-- whoever is changing the ledger is named as well.
CREATE FUNCTION fencedb.blockers(resources text[]) RETURNS TABLE (pid int, application text, state text, open_ms bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    lockers xid[]   := ARRAY(SELECT f.xmax FROM fencedb.fences f WHERE f.resource = ANY (resources COLLATE "C"));
    missing boolean := EXISTS (SELECT FROM unnest(resources) r WHERE NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = r COLLATE "C"));
    locker  xid;
BEGIN
    FOREACH locker IN ARRAY lockers LOOP
        BEGIN
            lockers := lockers || ARRAY(SELECT m.xid FROM pg_get_multixact_members(locker) m);
        EXCEPTION WHEN internal_error OR invalid_parameter_value THEN -- it is no multixact
        END;
    END LOOP;

    RETURN QUERY
    SELECT DISTINCT a.pid, coalesce(a.application_name, ''),
           CASE WHEN a.xact_start IS NULL AND NOT pg_has_role('pg_read_all_stats', 'USAGE') AND NOT pg_has_role(a.usesysid, 'USAGE') THEN format('not visible: grant pg_read_all_stats to %I', current_user)
                WHEN a.state = 'active' AND a.wait_event IN ('ClientRead', 'ClientWrite') THEN 'active, waits for its client'
                ELSE coalesce(a.state, '') END,
           (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE a.pid <> pg_backend_pid() AND l.granted
      AND (l.locktype = 'transactionid' AND l.transactionid = ANY (lockers)
           OR missing AND l.relation = 'fencedb.fences'::regclass AND l.mode = 'RowExclusiveLock'
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    UNION ALL
    SELECT 0, p.gid, 'prepared transaction', (extract(epoch FROM clock_timestamp() - p.prepared) * 1000)::bigint
    FROM pg_prepared_xacts p
    WHERE p.transaction = ANY (lockers)
       OR missing AND p.transaction IN (SELECT h.xid FROM fencedb.prepared_writers() h);
END
$$;

COMMENT ON FUNCTION fencedb.blockers IS 'The sessions whose open transactions hold the fences of resources now, and for how many milliseconds they have been open. state is that of pg_stat_activity, or "active, waits for its client" where the server waits for the rest of a request, or for its client to read a result. Where the owner of this schema may not see other sessions, state says so and open_ms is NULL. pid 0 is a prepared transaction, which no time limit ends. Of a resource that has no fence yet it cannot be told who is making it: then all sessions that are changing fences are named, also those of other resources.';

CREATE FUNCTION fencedb.last_token(resource text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.last_fencing_token FROM fencedb.fences f WHERE f.resource = last_token.resource COLLATE "C"
$$;

COMMENT ON FUNCTION fencedb.last_token IS 'The highest token that has entered for resource, as committed now; NULL when none has.';

-- What enter leaves for the guards is local to the transaction, so it tells whether that is still
-- open.
CREATE FUNCTION fencedb.require_entered(xid xid8 DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF fencedb.left_ms() IS NULL OR xid IS NOT NULL AND xid <> pg_current_xact_id_if_assigned() THEN
        RAISE EXCEPTION 'the transaction that entered the fence has ended'
            USING ERRCODE = 'FN007',
            DETAIL = 'A statement since then was COMMIT, ROLLBACK, PREPARE TRANSACTION or the like.',
            HINT = 'What was written since is outside the fence; roll it back.';
    END IF;
END
$$;

COMMENT ON FUNCTION fencedb.require_entered IS 'Raises FN007 unless this transaction has entered; if xid is given, as what enter returned, unless it is that transaction. For the last statement before COMMIT, in the same round trip, where statements in between may have ended the transaction.';

-- A transaction id proves nothing where the server may have given it to two transactions: after a
-- crash that lost its WAL, on a standby that lagged when it was promoted, and on a copy of the data
-- directory. So enter returns an epoch with it, a number that is drawn anew for each start of the
-- server: its last 24 bits are the time of the start, the next 16 name the server and this ledger,
-- so that a restored dump has others, and the rest is random. A crash and a promotion also put
-- unlogged sequences back to their start. After a start that follows a clean stop, the ids of the
-- run before are still true, up to the one that the stop has noted (former_end). A copy that was
-- made after a clean stop has them too.
CREATE UNLOGGED SEQUENCE fencedb.server_epoch;
CREATE UNLOGGED SEQUENCE fencedb.former_epoch;
CREATE UNLOGGED SEQUENCE fencedb.former_end;
CREATE UNLOGGED SEQUENCE fencedb.unbroken_since;
SELECT setval('fencedb.unbroken_since', (date_part('epoch', clock_timestamp()) * 1000)::bigint);

COMMENT ON SEQUENCE fencedb.server_epoch IS 'The epoch of this run of the server. Not yet drawn while is_called is false, or while its last 24 bits are not fencedb.started.';
COMMENT ON SEQUENCE fencedb.former_epoch IS 'The epoch of the run before, if it was stopped cleanly. None while is_called is false.';
COMMENT ON SEQUENCE fencedb.unbroken_since IS 'In milliseconds since 1970: what was committed since then is here. It is drawn anew with an epoch whose run before was not stopped cleanly or is of another server, since a crash, a fail-over or a restored copy may have lost commits.';
COMMENT ON SEQUENCE fencedb.former_end   IS 'The first transaction id that the run before did not give.';

CREATE FUNCTION fencedb.started() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint & 16777215;

-- One of the sessions that find no epoch draws it, under a lock that it gives back at once. If the
-- others do not see it within a tenth of a second, they draw one too: who entered with a number
-- that is overwritten cannot be asked about, which is unknown, and so true.
--
-- The checkpoint of a clean stop is the last one until the next is due, and where it is not, the
-- run before is not known. Where unlogged data survives a crash, as some managed servers have it,
-- the checkpoint at the end of recovery has the same form, and what it says is as true.
CREATE FUNCTION fencedb.epoch() RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    lock   CONSTANT bigint := 7302139487162534; -- any number that nobody else has
    former bigint := pg_sequence_last_value('fencedb.server_epoch');
    known  bigint := CASE WHEN former & 16777215 = fencedb.started() THEN former WHEN current_setting('transaction_read_only')::bool THEN 0 END; -- 0 is no epoch, so there is no outcome
    server bigint;
    alone  boolean;
BEGIN
    FOR try IN 1..100 LOOP
        EXIT WHEN known IS NOT NULL;
        alone := pg_try_advisory_lock(lock);
        former := pg_sequence_last_value('fencedb.server_epoch');
        known := CASE WHEN former & 16777215 = fencedb.started() THEN former END;
        IF known IS NULL AND (alone OR try = 100) THEN
            server := (SELECT hashint8extended(s.system_identifier, 'fencedb.fences'::regclass::oid::bigint) & 65535 FROM pg_control_system() s) << 24;
            PERFORM setval('fencedb.former_end', split_part(c.next_xid, ':', 1)::bigint << 32 | split_part(c.next_xid, ':', 2)::bigint), setval('fencedb.former_epoch', former)
            FROM pg_control_checkpoint() c
            WHERE (former >> 24) & 65535 = server >> 24 AND c.checkpoint_lsn = c.redo_lsn AND c.checkpoint_time <= pg_postmaster_start_time();
            IF NOT FOUND THEN
                PERFORM setval('fencedb.former_epoch', 1, false);
                IF former IS NOT NULL OR pg_sequence_last_value('fencedb.unbroken_since') IS NULL THEN -- or it is the first ever
                    PERFORM setval('fencedb.unbroken_since', (date_part('epoch', clock_timestamp()) * 1000)::bigint);
                END IF;
            END IF;
            known := setval('fencedb.server_epoch', hashtextextended(gen_random_uuid()::text, 0) & 9223370937343148032 | server | fencedb.started()); -- not by random(), which a session can seed
        END IF;
        IF alone THEN
            PERFORM pg_advisory_unlock(lock);
        ELSE
            PERFORM pg_sleep(0.001);
        END IF;
    END LOOP;
    RETURN known;
END
$$;

CREATE FUNCTION fencedb.outcome(xid xid8, epoch bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this_run bigint := fencedb.epoch();
    answer   text   := CASE WHEN epoch = this_run OR epoch = pg_sequence_last_value('fencedb.former_epoch') AND xid::text::bigint < pg_sequence_last_value('fencedb.former_end')
        AND this_run <> 0 -- or what is noted is of another run
        THEN pg_xact_status(xid) END;
BEGIN
    -- A COMMIT whose wait for a standby was cancelled is visible here, and lost if that standby is
    -- promoted. So the transaction that asks writes something: its own COMMIT then waits for the
    -- standby too, and what is received there in order includes the other.
    IF answer = 'committed' THEN
        PERFORM pg_logical_emit_message(true, 'fencedb', '');
    END IF;
    RETURN answer;
END
$$;

COMMENT ON FUNCTION fencedb.outcome IS 'What became of a transaction, by what enter returned in it: committed, aborted or in progress. NULL if that cannot be known: the server has crashed, failed over or been stopped twice since, or is another, or the transaction is too old. Ask the server that is the primary now. committed is as durable as synchronous_commit of the session that asks makes a commit, once the statement (or, in a transaction, its COMMIT) has returned without a warning: it waits for the standbys that the other waited for.';

-- Postgres lets a role lock rows of which it may update a column. That column is share, which
-- nobody can update, because the view computes it. Members of pg_read_all_data may read every view,
-- but not call what this one calls; for who may, it costs nothing. Members of pg_write_all_data may
-- write to every view that can be written to, and one with a join cannot.
CREATE FUNCTION fencedb.shown(lease_id uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN lease_id;

CREATE VIEW fencedb.fences_to_share AS
SELECT f.resource, f.last_fencing_token, fencedb.shown(f.lease_id) AS lease_id, NULL::boolean AS share FROM fencedb.fences f CROSS JOIN (SELECT) once;

COMMENT ON VIEW fencedb.fences_to_share IS 'The ledger, as fencedb.reenter reads and locks it.';

-- enter as an expression: a function in FROM that is marked STABLE and has no settings of its own
-- is read into the query that calls it, and costs no call. It cannot be called any other way;
-- Postgres refuses the lock then.
CREATE FUNCTION fencedb.reenter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, may_idle boolean DEFAULT true) RETURNS SETOF text
    LANGUAGE sql STABLE ROWS 1
BEGIN ATOMIC
    SELECT fencedb.admitted(locked.ends, locked.left_ms, fencedb.entry(reenter.resource, reenter.token), reenter.may_idle, locked.epoch)
    FROM (SELECT t.ends, floor(t.ends - date_part('epoch', clock_timestamp()) * 1000)::bigint AS left_ms, pg_sequence_last_value('fencedb.server_epoch') AS epoch
          FROM (SELECT date_part('epoch', transaction_timestamp()) * 1000 + coalesce(least(reenter.remaining_ms, 2147483647), 2147483647) AS ends) t, fencedb.fences_to_share f
          WHERE f.resource = reenter.resource COLLATE "C" AND f.last_fencing_token = reenter.token AND f.lease_id = reenter.lease_id
            AND reenter.token > 0 AND coalesce(current_setting('fencedb.entered', true), '') = ''
          FOR SHARE OF f SKIP LOCKED) locked -- what is selected is computed before the lock is tried, so what may not happen without the lock has a query of its own
    WHERE locked.epoch & 16777215 = fencedb.started() AND locked.left_ms > 0;
END;

COMMENT ON FUNCTION fencedb.reenter IS 'enter for a token that has entered before, where nobody stands in the way: a text whose first word is the transaction id and whose last is the epoch, or nothing, and then call enter. Only in FROM. What is left counts from the start of the transaction.';

-- Whether the one who writes may enter. The login is asked, or the role that it has set. So a role
-- that is set behind the fence, the owner of a table in a cascade, and a function with the rights
-- of another role write as their login may. In the session of a superuser the acting role is asked,
-- and the role that is set, which a cascade hides behind the owner of its table: Postgres runs the
-- code of others there with their rights, in ANALYZE and VACUUM for example. Only
-- a superuser may TRUNCATE pg_authid, whatever is granted. A guard calls this with the rights of
-- whoever writes.
CREATE FUNCTION fencedb.may_enter() RETURNS boolean
    LANGUAGE sql
    RETURN CASE WHEN session_user = current_user AND current_setting('role') = 'none' THEN has_function_privilege('fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)'::regprocedure, 'EXECUTE')
        WHEN has_table_privilege(session_user, 'pg_catalog.pg_authid'::regclass, 'TRUNCATE') THEN has_function_privilege('fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)'::regprocedure, 'EXECUTE')
            AND has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), current_user)::name, 'fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)'::regprocedure, 'EXECUTE')
        ELSE has_function_privilege(session_user, 'fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)'::regprocedure, 'EXECUTE')
            OR has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user)::name, 'fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)'::regprocedure, 'EXECUTE') END;

COMMENT ON FUNCTION fencedb.may_enter IS 'Whether guards let this session write at all: its login may enter, or the role that it has set; if the login is a superuser, the role that it acts as.';

-- The common case of it, in as few functions as PL/pgSQL has to set up: the login writes as itself.
CREATE FUNCTION fencedb.login_may_enter() RETURNS boolean
    LANGUAGE sql
    RETURN session_user = current_user AND current_setting('role') = 'none' AND has_function_privilege('fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)'::regprocedure, 'EXECUTE');

-- Least privilege: who may raise a fence can shut others out, so enter is granted (fencedb.allow),
-- not public.
REVOKE ALL ON ALL TABLES IN SCHEMA fencedb FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA fencedb FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM PUBLIC;
GRANT USAGE ON SCHEMA fencedb TO PUBLIC;
DO $$
BEGIN
    IF NOT has_schema_privilege('public', 'fencedb', 'USAGE') THEN -- the GRANT of a stranger to the schema is only a warning
        RAISE EXCEPTION 'the schema fencedb belongs to another role, so % cannot let others use it', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'Let its owner run GRANT USAGE ON SCHEMA fencedb TO PUBLIC, or ALTER SCHEMA fencedb OWNER TO the role that migrates; then migrate again.';
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION fencedb.left_ms, fencedb.lower_limit, fencedb.require_entered, fencedb.entries, fencedb.token_of, fencedb.may_enter, fencedb.login_may_enter TO PUBLIC; -- whatever role is set once it has entered

-- 00003 makes some of the functions and views that it opens to operators.
CREATE FUNCTION fencedb.allow(role regrole, operator boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    door regprocedure;
BEGIN
    IF role IS NULL OR operator IS NULL THEN
        RAISE EXCEPTION 'fencedb.allow: needs a role, and operator as true or false, got % and %', coalesce(role::text, 'NULL'), coalesce(operator::text, 'NULL') USING ERRCODE = 'null_value_not_allowed';
    END IF;
    LOCK TABLE fencedb.goose_db_version IN SHARE UPDATE EXCLUSIVE MODE; -- two GRANTs at once on one function fail
    FOR door IN SELECT p.oid FROM pg_proc p
                WHERE p.pronamespace = 'fencedb'::regnamespace AND (p.proname IN ('enter', 'enter_all', 'outcome', 'last_token', 'blockers', 'reenter',
                    'admitted', 'shown', 'entry', 'started', 'lower_transaction_timeout', 'let_overtake') -- reenter calls these in the name of its caller, who may also let others overtake
                    OR operator AND p.proname IN ('prepared_writers', 'record', 'prune', 'reset_fence', 'keep_history')) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, role);
    END LOOP;
    EXECUTE format('GRANT SELECT, UPDATE (share) ON fencedb.fences_to_share TO %s', role);
    EXECUTE format('GRANT SELECT ON fencedb.server_epoch, fencedb.goose_db_version TO %s', role); -- to ask whether it is migrated
    EXECUTE format('GRANT SELECT, INSERT (key, fingerprint), UPDATE (fingerprint, claimed_at, result, done) ON fencedb.once TO %s', role);
    IF operator THEN
        EXECUTE format('GRANT SELECT ON fencedb.fences, fencedb.foreign_issuers, fencedb.events, fencedb.audit, fencedb.history, fencedb.take_overs, fencedb.history_kept, fencedb.unbroken_since TO %s', role);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION fencedb.allow FROM PUBLIC;
COMMENT ON FUNCTION fencedb.allow IS 'Lets a role enter fences: all that an application needs. With operator => true it may also see the ledger, its history and what was observed, revoke, keep history, set fences back, forget old fences and old records, and record it: all that the command fencedb does, except migrations. The role that ran the migrations needs no grant.';

-- One log of what happened, for those who ask later: what was done by hand (audit), who entered and
-- wrote (history, 00003), and what guards let pass that only observe (unfenced_writes, 00002). It
-- comes before protect, which adds to it.

-- Writers pay for each column, default and index, and most of all for a constraint, which Postgres
-- plans anew in every statement. So there is none, and functions of this schema alone add rows.
CREATE TABLE fencedb.events (
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    kind         text COLLATE "C" NOT NULL,
    event        text        NOT NULL,
    resource     text COLLATE "C",
    token        bigint,
    lease_id     uuid,
    former_token bigint,
    table_schema text,
    table_name   text,
    row_count    bigint,
    application  text        NOT NULL DEFAULT current_setting('application_name'),
    role         name,
    client       inet,
    id           bigint,
    operator     text,
    reason       text,
    details      jsonb
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX events_resource ON fencedb.events (resource, kind, at);
CREATE INDEX events_kind ON fencedb.events (kind, at);
ALTER TABLE fencedb.events REPLICA IDENTITY FULL; -- Postgres refuses to prune a table without a key that is published

CREATE SEQUENCE fencedb.event_id;
COMMENT ON SEQUENCE fencedb.event_id IS 'Numbers what was done by hand.';

-- It has lease ids, as the ledger does. There is a policy for operators (00003).
ALTER TABLE fencedb.events ENABLE ROW LEVEL SECURITY;
ALTER TABLE fencedb.events ALTER COLUMN lease_id SET STATISTICS 0, ALTER COLUMN details SET STATISTICS 0; -- which would show some to who reads all data

COMMENT ON TABLE  fencedb.events IS 'What happened. Rows are added by functions of this schema, in the transaction that did it, and cannot be changed; fencedb.prune forgets old ones. Read it through fencedb.audit, fencedb.history and fencedb.unfenced_writes.';
COMMENT ON COLUMN fencedb.events.at           IS 'By the clock of this server. Of entries, what fencedb.fences has as advanced_at.';
COMMENT ON COLUMN fencedb.events.xid          IS 'The transaction. What it has added was committed together.';
COMMENT ON COLUMN fencedb.events.kind         IS 'audit: done by hand. history: entered or written, while fencedb.keep_history says so. observed: a guard that only observes would have refused it.';
COMMENT ON COLUMN fencedb.events.event        IS 'Of audit: protect, observe, unprotect, take_over_as, end_take_over, declare_foreign, revoke, reset, keep_history, prune, or what operators record besides. Of history: enter, a token that has entered for the first time, by a seal or a role that takes over too; reset: fencedb.reset_fence has set the fence to token; INSERT, UPDATE, DELETE: a statement. Of observed: INSERT, UPDATE, DELETE or TRUNCATE.';
COMMENT ON COLUMN fencedb.events.resource     IS 'NULL where it concerns many, or no row was seen.';
COMMENT ON COLUMN fencedb.events.token        IS 'Of a statement, the token that it was written under. NULL: it was written without a lease of this resource, to a table that is only observed; or the statement has cleared what its transaction says.';
COMMENT ON COLUMN fencedb.events.lease_id     IS 'Of enter and reset. A statement was written under the lease that its token has entered with.';
COMMENT ON COLUMN fencedb.events.former_token IS 'Of enter and reset, the token that the fence had before. NULL: there was no fence, or it was set back to 0.';
COMMENT ON COLUMN fencedb.events.table_name   IS 'Of a statement, the table that it named: of a partitioned one, or a partition. Of observed, the table that was protected.';
COMMENT ON COLUMN fencedb.events.row_count    IS 'Of a statement, its rows of this resource. Where an UPDATE moves rows, it counts for both resources, and the greater of what the resource had of them before and after.';
COMMENT ON COLUMN fencedb.events.role         IS 'Of audit, the role that logged in, whatever SET ROLE said later; of others, the role of the last SET ROLE, or the one that logged in. NULL of a statement that has a token.';
COMMENT ON COLUMN fencedb.events.client       IS 'NULL of a statement that has a token, and over a socket of Unix.';
COMMENT ON COLUMN fencedb.events.id           IS 'Of audit alone.';
COMMENT ON COLUMN fencedb.events.operator     IS 'Of audit: who it was, as the program that recorded it says: user@host. As this server knows it, of what functions and tables of this schema record themselves.';
COMMENT ON COLUMN fencedb.events.reason       IS 'Of audit, in the operator''s words. Of observed, the SQLSTATE that an enforcing guard would have raised.';
COMMENT ON COLUMN fencedb.events.details      IS 'revoke: token and lease_id of the revocation, former_token, former_lease_id and former_holder of the holder (or null; former_holder is its label, or empty), sealed: whether its fence was entered; of a permit of a semaphore none of the first two, and permit: revoked, or unanswered where Redis has not said. reset: former_token and former_lease_id of the fence, token and lease_id that it has instead. keep_history: period and former_period (null: not kept). declare_foreign: resource_type, a row of foreign_issuers. take_over_as and end_take_over: table, its oid, role, and until. prune: what, the number of rows, and older_than. protect, observe (guarded, and nothing is refused) and unprotect: table, its oid, and the templates of its resources; recorded when a call of fencedb.protect, enforce or unprotect changes that, or finds that it was changed by hand; reason says which. observed: oid of the table, and ledger, the oid of fencedb.fences, which is another in a copy of the database.';

CREATE VIEW fencedb.audit WITH (security_invoker) AS
SELECT id, at, role, operator, event, resource, reason, details FROM fencedb.events WHERE kind = 'audit';

COMMENT ON VIEW fencedb.audit IS 'What was done by hand: tables protected or not any more, revocations, forgotten fences. What was recorded stays; fencedb.prune forgets what is older than 90 days, and nothing else does.';

CREATE VIEW fencedb.history WITH (security_invoker) AS
SELECT at, xid, resource, event, token, lease_id, former_token, table_schema, table_name, row_count, application, role, client FROM fencedb.events WHERE kind = 'history';

COMMENT ON VIEW fencedb.history IS 'Who entered which resource, and what was written to tables that are protected with history. Only while fencedb.keep_history says so, and for as long. What was rolled back is not in it.';

-- The owner could drop the trigger; nobody gets past it by mistake.
CREATE FUNCTION fencedb.keep_events() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'INSERT' -- by the trigger off (00003)
       OR TG_OP = 'DELETE' AND current_setting('fencedb.forgets', true) = 'on' AND current_user = (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% on fencedb.events: what was recorded stays', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'Record a correction instead, with fencedb.record. fencedb.prune forgets what is old.';
END
$$;

COMMENT ON FUNCTION fencedb.keep_events IS 'Trigger of fencedb.events.';

CREATE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON fencedb.events FOR EACH STATEMENT EXECUTE FUNCTION fencedb.keep_events();

-- Who protected a table is worth knowing for as long as it is protected.
CREATE FUNCTION fencedb.forget_events(kind text, older_than timestamptz, at_most bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten bigint;
BEGIN
    PERFORM set_config('fencedb.forgets', 'on', true);
    DELETE FROM fencedb.events e WHERE e.ctid = ANY (ARRAY(
        SELECT o.ctid FROM fencedb.events o
        WHERE o.kind = forget_events.kind COLLATE "C" AND o.at < older_than
          AND NOT (o.kind = 'audit' AND o.event IN ('protect', 'observe') AND EXISTS (
              SELECT FROM fencedb.protected_tables p WHERE p.table_name::oid::text = o.details ->> 'oid' OR p.table_name::text = o.details ->> 'table'))
        ORDER BY o.at LIMIT at_most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    PERFORM set_config('fencedb.forgets', '', true);
    RETURN forgotten;
END
$$;

CREATE FUNCTION fencedb.log_event(event text, resource text, operator text, reason text, details jsonb) RETURNS bigint
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO fencedb.events (kind, id, event, resource, role, operator, reason, details)
    VALUES ('audit', nextval('fencedb.event_id'), event, resource, session_user, coalesce(operator, format('%s@%s', session_user, coalesce(host(inet_client_addr()), 'local'))), reason, details)
    RETURNING id
$$;

-- Whoever is told that a holder was shut out relies on it, so it is on disk by then (see
-- fencedb.Seal).
CREATE FUNCTION fencedb.record(event text, resource text, operator text, reason text, details jsonb DEFAULT '{}') RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(event, '') = '' OR coalesce(operator, '') = '' OR coalesce(reason, '') = '' OR details IS NULL THEN
        RAISE EXCEPTION 'fencedb.record: needs an event, an operator, a reason and details, got %, %, % and %', quote_nullable(event), quote_nullable(operator), quote_nullable(reason), quote_nullable(details)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF event IN ('protect', 'observe', 'unprotect', 'take_over_as', 'end_take_over', 'prune', 'reset', 'keep_history', 'declare_foreign') THEN
        RAISE EXCEPTION 'fencedb.record: % is recorded by the function that does it', event
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Only that function may record it, so that the audit says what happened.';
    END IF;
    PERFORM set_config('synchronous_commit', 'local', true) WHERE current_setting('synchronous_commit') = 'off';
    RETURN fencedb.log_event(event, resource, operator, reason, details);
END
$$;

COMMENT ON FUNCTION fencedb.record IS 'Adds a row to fencedb.audit, under the name of the role that logged in, and returns its id. It stays only if the transaction commits, which waits for the disk then, also where synchronous_commit is off. Refuses what functions of this schema record themselves.';

-- Who admits higher tokens gives up the bound on one that is entered by mistake.
CREATE FUNCTION fencedb.note_foreign() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM fencedb.log_event('declare_foreign', NULL, NULL, 'INSERT INTO fencedb.foreign_issuers', jsonb_build_object('resource_type', NEW.resource_type));
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION fencedb.note_foreign IS 'Trigger of fencedb.foreign_issuers.';

CREATE TRIGGER note AFTER INSERT ON fencedb.foreign_issuers FOR EACH ROW EXECUTE FUNCTION fencedb.note_foreign();

REVOKE ALL ON fencedb.events, fencedb.event_id, fencedb.audit, fencedb.history FROM PUBLIC;
REVOKE ALL ON FUNCTION fencedb.keep_events, fencedb.forget_events, fencedb.log_event, fencedb.record, fencedb.note_foreign FROM PUBLIC;

-- Durable idempotency keys: a key is done in the transaction that has the effect, or not at all.
-- Three statements use them, as the role that writes; docs/protocol.md has them, and fencedb.Once.

CREATE TABLE fencedb.once (
    key         text COLLATE "C" PRIMARY KEY CHECK (key <> '' AND octet_length(key) <= 512),
    fingerprint bytea,
    role        name        NOT NULL DEFAULT current_user,
    result      bytea CHECK (octet_length(result) <= 1048576),
    done        boolean     NOT NULL DEFAULT false,
    claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX once_claimed_at ON fencedb.once (claimed_at);

COMMENT ON TABLE  fencedb.once IS 'Idempotency keys that are done, with their results. A role sees and answers its own; a key alone can be guessed. Forgetting a key lets its request run again; see fencedb.prune.';
COMMENT ON COLUMN fencedb.once.key         IS 'Chosen by the client of the application; 1 to 512 bytes.';
COMMENT ON COLUMN fencedb.once.fingerprint IS 'SHA-256 of the request, to refuse the same key with another one; NULL if the application does not tell.';
COMMENT ON COLUMN fencedb.once.role        IS 'Who claimed it, after SET ROLE if there was one. The key is this role''s.';
COMMENT ON COLUMN fencedb.once.result      IS 'What the first run answered, replayed to the others; up to 1 MiB.';
COMMENT ON COLUMN fencedb.once.done        IS 'False where a transaction claimed the key and committed without a result: the next one to come runs again.';
COMMENT ON COLUMN fencedb.once.claimed_at  IS 'By the clock of this server; keys are forgotten by age.';

ALTER TABLE fencedb.once ENABLE ROW LEVEL SECURITY;
ALTER TABLE fencedb.once ALTER COLUMN result SET STATISTICS 0, ALTER COLUMN fingerprint SET STATISTICS 0; -- which would show some to who reads all data
CREATE POLICY own ON fencedb.once USING (role = current_user) WITH CHECK (role = current_user);

REVOKE ALL ON fencedb.once FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE fencedb.once;
DROP TRIGGER note ON fencedb.foreign_issuers;
DROP VIEW fencedb.audit, fencedb.history;
DROP TABLE fencedb.events;
DROP SEQUENCE fencedb.event_id;
DROP FUNCTION fencedb.record, fencedb.log_event, fencedb.forget_events, fencedb.keep_events, fencedb.note_foreign;
DROP FUNCTION fencedb.reenter;
DROP VIEW fencedb.fences_to_share;
DROP FUNCTION fencedb.allow, fencedb.shown, fencedb.enter, fencedb.enter_all, fencedb.take, fencedb.await, fencedb.check_grant, fencedb.raise_stale, fencedb.prepared_writers,
    fencedb.blockers, fencedb.last_token, fencedb.require_entered, fencedb.outcome, fencedb.epoch, fencedb.started, fencedb.admitted, fencedb.lower_transaction_timeout, fencedb.lower_limit,
    fencedb.may_enter, fencedb.login_may_enter, fencedb.left_ms, fencedb.token_of, fencedb.entry, fencedb.entries;
DROP SEQUENCE fencedb.server_epoch, fencedb.former_epoch, fencedb.former_end, fencedb.unbroken_since;
DROP TABLE fencedb.foreign_issuers, fencedb.fences;
REVOKE USAGE ON SCHEMA fencedb FROM PUBLIC;
-- +goose StatementEnd
