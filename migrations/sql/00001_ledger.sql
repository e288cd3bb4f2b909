-- The ledger of fences, and fencedb.enter, by which a transaction enters them. This file also has
-- the outcome of a COMMIT that got no answer, the log of events, and the idempotency keys.
--
-- A fenced write has three steps:
--     1. enter locks the resource's row in the ledger (fencedb.fences). It refuses a stale token.
--     2. enter adds the resource and the token to the open list: the setting fencedb.entered, which
--        is local to the transaction.
--     3. For each row that is written, the table's guard looks the row's resource up in the open
--        list (00002).
-- The functions of the first two steps, in the order of their calls:
--     enter            handles the two common cases, and leaves every other one to enter_all
--       enter_all      checks the grants, calls take, then admitted
--         take         locks the fences, or refuses the token (raise_stale)
--           await      waits for a fence that another transaction holds
--         admitted     writes the open list, and bounds the transaction in time; enter calls it too
--     reenter          repeats the first common case of enter, as an expression
--
-- The open list never outlives the lock. ROLLBACK TO and exception blocks undo both; COMMIT and
-- ROLLBACK end both; PREPARE TRANSACTION ends the list and keeps the lock. So a resource in the
-- open list is locked, and the guard need not read the ledger.
--
-- The open list is neither a secret nor a proof: a session can forge it, and gains nothing. A login
-- that may not enter is refused by the guard, whatever the list says (fencedb.may_enter). A login
-- that may enter could have called enter with any token.
--
-- Errors raised here and in later migrations (stable, for clients in any language):
--   FN001  the token is stale: the fence has a newer one, or the same one under another lease
--   FN002  no token: the transaction wrote to a protected table without having entered a fence
--   FN003  wrong resource: the transaction entered, but not the fence of this row's resource
--   FN004  lease over: the validity given to enter is not positive, or ended while enter waited
--   FN006  too long: the transaction outlasted the validity that it entered with
--   FN007  ended: the transaction that entered is not open any more
-- enter also raises these of Postgres's own:
--   22023  usage error: a grant that no issuer can have issued, or two grants for one resource
--   55P03  busy: an open transaction held the fence for as long as this one could wait
--   40001  not sealed: above READ COMMITTED, the token has not entered yet (see take), or a newer
--          token has entered since the snapshot was taken
-- FN001 to FN003 carry their values as a JSON object in DETAIL. So does 55P03, except while another
-- transaction is creating the fence: then Postgres itself raises it.

-- +goose Up
-- +goose StatementBegin

-- Every migration sets a safe search_path here and restores the caller's at its end. Postgres
-- resolves the names in defaults, constraints, views and RETURN bodies when it runs the migration,
-- and the schemas in the migrating role's search_path may have functions and operators of others.
SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- The table is logged, because a fence must survive a crash. Half of each page is left free, so
-- that advancing a fence is a heap-only (HOT) update.
CREATE TABLE fencedb.fences (
    resource           text COLLATE "C" PRIMARY KEY CHECK (resource <> '' AND octet_length(resource) <= 512 AND strpos(resource, E'\x01') = 0),
    last_fencing_token bigint      NOT NULL CHECK (last_fencing_token >= 0),
    lease_id           uuid        NOT NULL,
    advanced_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    reset_from         bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE  fencedb.fences IS 'The ledger: per resource, the highest fencing token that has entered. A fence outlives the rows that it protects; deleting it by hand lets stale holders write again.';
COMMENT ON COLUMN fencedb.fences.resource           IS 'type:id, as the lease names it; compared byte by byte.';
COMMENT ON COLUMN fencedb.fences.last_fencing_token IS 'No transaction with a lower token commits for this resource again, unless fencedb.reset_fence sets the fence back.';
COMMENT ON COLUMN fencedb.fences.lease_id           IS 'The lease that this token belongs to. The same token under another lease is stale: an issuer that loses its data can issue a number twice.';
COMMENT ON COLUMN fencedb.fences.advanced_at        IS 'When this token first entered, by the clock of this server; never before the start of that transaction.';
COMMENT ON COLUMN fencedb.fences.reset_from         IS 'NULL unless fencedb.reset_fence has set this fence back. Then the stamps of rows up to this token are ignored.';

-- A role that may enter, and knows a lease id and its token, can enter in the name of that lease.
-- So row security hides both from members of pg_read_all_data. Operators get a policy in 00003.
ALTER TABLE fencedb.fences ENABLE ROW LEVEL SECURITY;
ALTER TABLE fencedb.fences ALTER COLUMN lease_id SET STATISTICS 0; -- pg_statistic would show some values

-- No token of package lease exceeds 2^53 - 1, the largest whole number that Lua, JavaScript and
-- JSON keep exactly. enter refuses greater tokens: if one entered by mistake, no lease could ever
-- follow it. Resources of the types listed here are exempt.
CREATE TABLE fencedb.foreign_issuers (
    resource_type text COLLATE "C" PRIMARY KEY CHECK (resource_type <> '' AND strpos(resource_type, ':') = 0),
    declared_by   name        NOT NULL DEFAULT session_user,
    declared_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE fencedb.foreign_issuers IS 'The types of resources (the part of their names before the colon) whose tokens may exceed 2^53 - 1, because an issuer other than package lease makes them. The owner of this schema inserts them.';

ALTER TABLE fencedb.foreign_issuers ENABLE ROW LEVEL SECURITY; -- against members of pg_write_all_data
CREATE POLICY readers ON fencedb.foreign_issuers FOR SELECT USING (true);

-- No function resolves names in the search_path of its caller. A function sets its own, has a
-- RETURN body, whose names Postgres resolves when the migration runs, or gives every name with its
-- schema. The entry points are SECURITY DEFINER. SET costs time in every call, so the inner
-- functions that an entry point calls each time have none: they run under its setting, and nobody
-- else may call them (see REVOKE below).

-- The open list, the setting fencedb.entered, begins with three words:
--     - the transaction id
--     - when the statement limits must be lowered again, in milliseconds since 1970
--     - when the transaction must have ended, in milliseconds since 1970
-- The entries follow, with nothing between them. Each is
--     U+0001, the transaction id, r, the resource, U+0001, t, the token, U+0001
-- For example, with | for U+0001:
--     751 1795178573037 1795178582500 |751rtable:12|t41||751rtable:13|t42|
-- A list with another transaction id counts for nothing: a session can keep a list beyond its
-- transaction. Each entry has the id too, so that a guard can find an entry of this transaction in
-- one look-up. A transaction that has no id yet has no list.
CREATE FUNCTION fencedb.entries() RETURNS text
    LANGUAGE sql STABLE
    RETURN CASE WHEN starts_with(current_setting('fencedb.entered', true), concat(pg_current_xact_id_if_assigned(), ' ')) THEN current_setting('fencedb.entered') END;

COMMENT ON FUNCTION fencedb.entries IS 'The open list of this transaction. NULL if it has not entered.';

CREATE FUNCTION fencedb.entry(resource text, token bigint) RETURNS text
    LANGUAGE sql
    RETURN concat(E'\x01', pg_current_xact_id(), 'r', resource, E'\x01t', token, E'\x01');

CREATE FUNCTION fencedb.token_of(resource text) RETURNS bigint
    LANGUAGE sql
    RETURN nullif(split_part(split_part(current_setting('fencedb.entered', true), concat(E'\x01', pg_current_xact_id_if_assigned(), 'r', resource, E'\x01t') COLLATE "C", 2), E'\x01', 1), '')::bigint;

COMMENT ON FUNCTION fencedb.token_of IS 'The token with which this transaction has entered the fence of resource. NULL if it has not.';

-- VOLATILE, as clock_timestamp is: Postgres inlines no function that is declared less volatile than
-- what it calls.
CREATE FUNCTION fencedb.left_ms() RETURNS float8
    LANGUAGE sql
    RETURN nullif(split_part(fencedb.entries(), ' ', 3), '')::float8 - date_part('epoch', clock_timestamp()) * 1000;

COMMENT ON FUNCTION fencedb.left_ms IS 'For how many more milliseconds this transaction may write, by its open list. NULL if it has not entered.';

-- statement_timeout counts anew in each statement, and idle_in_transaction_session_timeout in each
-- pause. So a later statement needs a lower limit to end in time. A limit of the application or the
-- role that is lower already stays.
CREATE FUNCTION fencedb.lower_limit(name text, limit_ms bigint) RETURNS text
    LANGUAGE sql
    RETURN CASE WHEN coalesce(nullif(current_setting(name), '0')::interval > interval '1 ms' * limit_ms, true) THEN set_config(name, limit_ms::text, true) END;

COMMENT ON FUNCTION fencedb.lower_limit IS 'Lowers a time limit of Postgres to limit_ms milliseconds in this transaction, unless it is lower already.';

-- transaction_timeout (Postgres 17 and newer) counts from the start of the transaction, or from
-- when it is switched on again. So it is switched off first.
CREATE FUNCTION fencedb.lower_transaction_timeout(limit_ms bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN concat(set_config('transaction_timeout', '0', true), set_config('transaction_timeout', limit_ms::text, true))
    WHERE transaction_timestamp() + current_setting('transaction_timeout')::interval > clock_timestamp() + interval '1 ms' * limit_ms;
END
$$;

-- admitted writes the open list and bounds the transaction: the server itself ends a transaction
-- that would outlive its lease. ends, in milliseconds since 1970, is when the transaction must have
-- ended; left_ms is the time until then. For reenter, admitted returns a text that begins with the
-- transaction id and ends with the epoch. It is one expression, so that Postgres inlines it.
--
-- The limits of statements are a 256th of left_ms shorter than left_ms. So a guard has to lower
-- them again only when that time has passed (check_statement), not in every millisecond.
--
-- Only the first entry of a transaction lowers transaction_timeout. Postgres does not reset its
-- timer on ROLLBACK TO: a shorter limit that was set after the savepoint would stay in force.
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

-- The two common cases take one query each: the fence has this token and lease already, or it has
-- an older token; and no other transaction is in the way. take explains the locks. enter_all
-- handles every other case, including that this run of the server has no epoch yet. enter has no
-- SET, which would cost more than its queries, so every name has its schema.
CREATE FUNCTION fencedb.enter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, wait_ms bigint DEFAULT NULL, first boolean DEFAULT false, may_idle boolean DEFAULT true, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    start   pg_catalog.timestamptz := CASE WHEN first THEN pg_catalog.transaction_timestamp() ELSE pg_catalog.clock_timestamp() END; -- first: the time for which reenter waited for a lock on the ledger counts too
    ends    pg_catalog.float8;
    left_ms pg_catalog.int8;
    noted   pg_catalog.text;
BEGIN
    IF coalesce(pg_catalog.current_setting('fencedb.entered', true), '') OPERATOR(pg_catalog.=) '' THEN
        -- The token has entered before: share the fence.
        SELECT pg_catalog.pg_sequence_last_value('fencedb.server_epoch'), t.ends, pg_catalog.floor(t.ends OPERATOR(pg_catalog.-) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000))::pg_catalog.int8
        INTO epoch, ends, left_ms
        FROM (SELECT pg_catalog.date_part('epoch', start) OPERATOR(pg_catalog.*) 1000 OPERATOR(pg_catalog.+) coalesce(least(remaining_ms, 2147483647), 2147483647) AS ends) t, fencedb.fences f
        WHERE f.resource OPERATOR(pg_catalog.=) enter.resource COLLATE pg_catalog."C" AND f.last_fencing_token OPERATOR(pg_catalog.=) token AND f.lease_id OPERATOR(pg_catalog.=) enter.lease_id AND token OPERATOR(pg_catalog.>) 0
        FOR SHARE OF f SKIP LOCKED;
        IF left_ms IS NULL AND (remaining_ms OPERATOR(pg_catalog.>) 0) IS NOT FALSE AND token OPERATOR(pg_catalog.<=) 9007199254740991 AND lease_id IS NOT NULL AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.~~) 'read %' THEN
            -- An older token has entered: advance the fence.
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

COMMENT ON FUNCTION fencedb.enter IS 'Enters the fence of resource: the first statement of every fenced transaction. Refuses a stale token at once (FN001). Otherwise holds the fence until the transaction ends. If open transactions of the previous holder have the fence, waits for them for the least of wait_ms, remaining_ms and lock_timeout, then raises 55P03. remaining_ms, the remaining validity of the lease in milliseconds, bounds this transaction; NULL stands for 24 days, the longest limit of Postgres. With first, it counts from the start of the transaction, which must have done nothing before. may_idle => false is for a transaction that is sent as a whole: enter need not limit for how long such a transaction waits for its client. ROLLBACK TO a savepoint from before enter gives the fence back, and later writes are refused until the transaction enters again. Above READ COMMITTED, a token that has not entered before is refused (40001). Returns the transaction id and the epoch of the server, which fencedb.outcome needs after a lost COMMIT.';

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
    WHERE NOT coalesce(octet_length(g.resource) BETWEEN 1 AND 512 AND g.token BETWEEN 1 AND 9007199254740991 AND g.lease_id IS NOT NULL AND strpos(g.resource COLLATE "C", E'\x01') = 0, false); -- an ordinary grant costs no call
    SELECT g.resource INTO twice FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id)
    GROUP BY g.resource HAVING count(DISTINCT (g.token, g.lease_id)) > 1 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'fencedb.enter: two different grants for resource "%"', twice
            USING ERRCODE = 'invalid_parameter_value', HINT = 'One transaction works under one grant per resource; begin another for the other grant.';
    ELSIF remaining_ms <= 0 THEN
        RAISE EXCEPTION 'the lease is over: % ms of its validity remain', remaining_ms
            USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
    END IF;
    until := start + least(had_ms, remaining_ms, 2147483647); -- 2^31 - 1, the longest limit of Postgres
    deadline := least(until, start + wait_ms,
        start + nullif(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000, 0));

    PERFORM fencedb.take(resources, tokens, lease_ids, deadline); -- in byte order, so that two transactions cannot deadlock
    now := date_part('epoch', clock_timestamp()) * 1000;
    IF until < now THEN
        RAISE EXCEPTION 'the lease is over: its validity ended while its fences were entered'
            USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
    END IF;
    epoch := fencedb.epoch();
    xid := pg_current_xact_id();
    entries := concat(entries, (SELECT string_agg(DISTINCT fencedb.entry(g.resource, g.token), '') FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id) WHERE fencedb.token_of(g.resource) IS NULL));
    noted := fencedb.admitted(until, greatest(1, floor(until - now))::bigint, entries, true, epoch); -- may_idle is true for every transaction: one that is sent as a whole is never idle, so its limit does not matter
END
$$;

COMMENT ON FUNCTION fencedb.enter_all IS 'Enters the fences of several resources, all or none, in byte order of their names. See enter.';

-- take locks the fences of all resources until the transaction ends, or raises FN001, 40001, or
-- 55P03 at the deadline.
--
-- Transactions of one lease share its fence; a transaction with a newer token locks it exclusively:
--     A (41) holds the fence FOR SHARE and reads. B (42) must update the fence, so it waits for A.
--     A commits. B goes on, and its next statement reads what A wrote.
--     A's next transaction finds 42: A is stale.
--     Two transactions of A share the fence and run side by side.
-- The first transaction of a token takes the exclusive lock at once: two that shared the fence and
-- then updated it would deadlock.
--
-- Under REPEATABLE READ and SERIALIZABLE, the token must have entered before the snapshot was
-- taken. Otherwise:
--     A (41) holds the fence FOR SHARE. B (42) takes its snapshot with this statement, and waits.
--     A books the table and commits. A has locked the fence without updating it, so Postgres does
--     not refuse B's update of the fence with 40001.
--     B reads from its old snapshot that the table is free, and books it as well.
-- If a snapshot shows B's token, every transaction of A had ended before it was taken. If a newer
-- token has entered since, locking the fence raises 40001.
--
-- Each round takes the fences that need no waiting, in one query, in byte order. It stops at the
-- first fence that is busy or missing: a transaction that waits for one fence while it holds a
-- later one can deadlock. The query stops by the setting fencedb.busy, which each row reads and a
-- busy row sets; Postgres finishes a row before it begins the next. Then take handles this fence:
-- it refuses the token, waits for the fence, or creates it, and with it the missing fences that
-- follow. The next round reads the fence again, so a token that has entered during the wait counts.
-- It tries twice as many fences as this one took, so that the cost of all rounds is in proportion
-- to the number of fences.
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
        -- same: the fence has this token and lease, and is shared. older: it has an older token,
        -- and is advanced below. Neither: the fence is busy or missing, or the token is refused.
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

        -- The first fence that this round has not taken.
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
            WHILE taken < cardinality(resources) AND NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = resources[taken + 1] COLLATE "C") LOOP -- INSERT would wait for a transaction that advances the fence
                PERFORM set_config('lock_timeout', greatest(1, ceil(deadline - extract(epoch FROM clock_timestamp()) * 1000))::text, true); -- bounds the wait for a transaction that is inserting the fence
                INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, advanced_at)
                VALUES (resources[taken + 1], tokens[taken + 1], lease_ids[taken + 1], greatest(clock_timestamp(), transaction_timestamp())) ON CONFLICT DO NOTHING;
                EXIT WHEN NOT FOUND; -- this fence exists
                taken := taken + 1;
            END LOOP;
            PERFORM set_config('lock_timeout', limited, true);
        ELSE
            PERFORM fencedb.await(next.resource, stored.token = next.token, deadline);
        END IF;
    END LOOP;
END
$$;

-- await returns once it could lock the fence, or raises 55P03 at the deadline, in milliseconds
-- since 1970. It holds no lock when it returns: take locks the fence in its next round. It waits
-- for an ordinary row lock, so the deadlock detector and pg_blocking_pids see the wait.
--
-- It waits in many short steps, because lock_timeout counts anew for each of several lockers. Each
-- step is a subtransaction, because only that can catch the timeout. A step that gets the lock is
-- rolled back too (by FN000): the lock would belong to the subtransaction.
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
                -- try again, until the deadline
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

-- pg_locks shows the locks of a prepared transaction without a pid, under a virtual transaction of
-- its own. One of them is the lock on its transaction id, which gives the id.
CREATE FUNCTION fencedb.prepared_writers() RETURNS TABLE (xid xid)
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT own.transactionid
    FROM pg_locks l JOIN pg_locks own ON own.virtualtransaction = l.virtualtransaction AND own.locktype = 'transactionid' AND own.pid IS NULL
    WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowExclusiveLock', 'RowShareLock') AND l.pid IS NULL
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

COMMENT ON FUNCTION fencedb.prepared_writers IS 'The prepared transactions that hold fences, or have created some.';

-- The xmax of a fence names its locker, or a multixact of several lockers. A fence that is being
-- inserted is not visible. So where a fence is missing, every session that is changing the ledger
-- is named as well.
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
        EXCEPTION WHEN internal_error OR invalid_parameter_value THEN -- a single locker, not a multixact
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

COMMENT ON FUNCTION fencedb.blockers IS 'The sessions whose open transactions hold the fences of resources now; open_ms says for how many milliseconds they have been open. state is that of pg_stat_activity, or "active, waits for its client" where the server waits for the rest of a request, or for its client to read a result. Where the owner of this schema may not see other sessions, state says so and open_ms is NULL. pid 0 is a prepared transaction, which no time limit ends. Postgres does not show who is creating the fence of a resource that has none yet: then all sessions that are changing fences are named, also those of other resources.';

CREATE FUNCTION fencedb.last_token(resource text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.last_fencing_token FROM fencedb.fences f WHERE f.resource = last_token.resource COLLATE "C"
$$;

COMMENT ON FUNCTION fencedb.last_token IS 'The token of the fence of resource, as this transaction sees it; NULL if there is no fence.';

-- The open list is local to the transaction, so it shows whether the transaction is still open.
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

COMMENT ON FUNCTION fencedb.require_entered IS 'Raises FN007 unless this transaction has entered and, if xid is given (as enter returned it), is that transaction. Call it as the last statement before COMMIT, in the same round trip, where statements in between may have ended the transaction.';

-- A transaction id does not suffice to find a transaction again: a server may give the same id
-- twice. This happens after a crash that lost WAL, on a standby that lagged when it was promoted,
-- and on a copy of the data directory. So enter also returns an epoch, a number that is drawn anew
-- for each start of the server:
--     - the last 24 bits are the time of the start
--     - the next 16 bits name the server and this ledger, so that a restored dump has others
--     - the rest is random
-- The sequences are unlogged, so a crash and a promotion reset them. After a clean stop, the ids of
-- the previous run stay valid, up to the last one before the stop (former_end). They are also valid
-- in a copy that was made after a clean stop.
CREATE UNLOGGED SEQUENCE fencedb.server_epoch;
CREATE UNLOGGED SEQUENCE fencedb.former_epoch;
CREATE UNLOGGED SEQUENCE fencedb.former_end;
CREATE UNLOGGED SEQUENCE fencedb.unbroken_since;
SELECT setval('fencedb.unbroken_since', (date_part('epoch', clock_timestamp()) * 1000)::bigint);

COMMENT ON SEQUENCE fencedb.server_epoch IS 'The epoch of this run of the server. Not drawn yet while is_called is false, or while its last 24 bits differ from fencedb.started.';
COMMENT ON SEQUENCE fencedb.former_epoch IS 'The epoch of the previous run, if that was stopped cleanly. None while is_called is false.';
COMMENT ON SEQUENCE fencedb.unbroken_since IS 'In milliseconds since 1970: every commit since then is still here. Set to the present when an epoch is drawn and the previous run was not stopped cleanly or was of another server: a crash, a fail-over or a restored copy may have lost commits.';
COMMENT ON SEQUENCE fencedb.former_end   IS 'The first transaction id that the previous run did not assign.';

CREATE FUNCTION fencedb.started() RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint & 16777215;

-- One of the sessions that find no epoch draws it, under an advisory lock that it releases at once.
-- A session that does not see an epoch within a tenth of a second draws one too. If this overwrites
-- an epoch, the outcomes of its transactions are unknown, which is safe.
--
-- The last checkpoint shows whether the previous run was stopped cleanly. After the next checkpoint
-- nothing shows it, and the outcomes of the previous run are unknown. Where unlogged data survives
-- a crash, as on some managed servers, the checkpoint at the end of recovery looks like that of a
-- clean stop, and its transaction id is as good.
CREATE FUNCTION fencedb.epoch() RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    lock   CONSTANT bigint := 7302139487162534; -- an arbitrary key
    former bigint := pg_sequence_last_value('fencedb.server_epoch');
    known  bigint := CASE WHEN former & 16777215 = fencedb.started() THEN former WHEN current_setting('transaction_read_only')::bool THEN 0 END; -- a read-only transaction cannot draw an epoch: 0, for which outcome answers NULL
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
                IF former IS NOT NULL OR pg_sequence_last_value('fencedb.unbroken_since') IS NULL THEN -- otherwise this is the first epoch ever
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
        AND this_run <> 0 -- at 0, former_epoch is that of an earlier run
        THEN pg_xact_status(xid) END;
BEGIN
    -- If a COMMIT's wait for a standby was cancelled, the commit is visible here, and lost if that
    -- standby is promoted. So the asking transaction writes a WAL record: its own COMMIT waits for
    -- the standby too, and a standby that has received this COMMIT has received the earlier one.
    IF answer = 'committed' THEN
        PERFORM pg_logical_emit_message(true, 'fencedb', '');
    END IF;
    RETURN answer;
END
$$;

COMMENT ON FUNCTION fencedb.outcome IS 'What became of a transaction, by the xid and epoch that enter returned in it: committed, aborted or in progress. NULL if that cannot be known: since then the server has crashed, failed over or been stopped twice, or it is another server, or the transaction is too old. Ask the server that is the primary now. committed is as durable as a COMMIT under the asking session''s synchronous_commit, once the statement (or, in a transaction, its COMMIT) has returned without a warning: it waits for the standbys that the asked-about COMMIT waited for.';

-- reenter locks fences with the rights of its caller, through this view. Postgres lets a role lock
-- rows if it may update one of their columns. That column is share: allow grants UPDATE on it, and
-- nobody can update it, because the view computes it. Members of pg_read_all_data may read every
-- view, but not call shown; so they cannot read this one. For roles that may call shown, Postgres
-- inlines it. Members of pg_write_all_data may write to every updatable view; this one is not
-- updatable, because it has a join.
CREATE FUNCTION fencedb.shown(lease_id uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    RETURN lease_id;

CREATE VIEW fencedb.fences_to_share AS
SELECT f.resource, f.last_fencing_token, fencedb.shown(f.lease_id) AS lease_id, NULL::boolean AS share FROM fencedb.fences f CROSS JOIN (SELECT) once;

COMMENT ON VIEW fencedb.fences_to_share IS 'The ledger, as fencedb.reenter reads and locks it.';

-- reenter is enter as an expression: in FROM, Postgres inlines a STABLE function without SET into
-- the calling query. Called in any other way it fails, because Postgres refuses a row lock in a
-- STABLE function.
CREATE FUNCTION fencedb.reenter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, may_idle boolean DEFAULT true) RETURNS SETOF text
    LANGUAGE sql STABLE ROWS 1
BEGIN ATOMIC
    SELECT fencedb.admitted(locked.ends, locked.left_ms, fencedb.entry(reenter.resource, reenter.token), reenter.may_idle, locked.epoch)
    FROM (SELECT t.ends, floor(t.ends - date_part('epoch', clock_timestamp()) * 1000)::bigint AS left_ms, pg_sequence_last_value('fencedb.server_epoch') AS epoch
          FROM (SELECT date_part('epoch', transaction_timestamp()) * 1000 + coalesce(least(reenter.remaining_ms, 2147483647), 2147483647) AS ends) t, fencedb.fences_to_share f
          WHERE f.resource = reenter.resource COLLATE "C" AND f.last_fencing_token = reenter.token AND f.lease_id = reenter.lease_id
            AND reenter.token > 0 AND coalesce(current_setting('fencedb.entered', true), '') = ''
          FOR SHARE OF f SKIP LOCKED) locked -- Postgres computes a select list before it tries the lock, so admitted is called in the outer query
    WHERE locked.epoch & 16777215 = fencedb.started() AND locked.left_ms > 0;
END;

COMMENT ON FUNCTION fencedb.reenter IS 'enter for a token that has entered before, in a transaction that has not entered yet, where no other transaction is in the way. Returns a text whose first word is the transaction id and whose last is the epoch, or no row: then call enter. Works only in FROM. remaining_ms counts from the start of the transaction.';

-- Whether the writer may enter. A guard calls this with the writer's rights.
--
-- One of the two must be allowed to enter: the login, or the role that it has set. So these write
-- with the right of their login: a transaction that sets another role behind the fence, a cascade,
-- which acts as the owner of the table, and a function that is SECURITY DEFINER.
--
-- A superuser may enter, and Postgres runs code of other roles in its session, with their rights:
-- in ANALYZE and VACUUM, for example. So there the acting role must be allowed, and so must the
-- role that is set: in a cascade the acting role is the owner of the table. A login is a superuser
-- if it has TRUNCATE on pg_authid, which no GRANT gives to others.
--
-- It is in PL/pgSQL so that Postgres does not inline it: each function in an expression of a guard
-- costs time in every transaction, even one that is not called.
CREATE FUNCTION fencedb.may_enter() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE WHEN has_table_privilege(session_user, 'pg_catalog.pg_authid'::regclass, 'TRUNCATE') THEN has_function_privilege('fencedb.enter'::regproc, 'EXECUTE')
            AND has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), current_user)::name, 'fencedb.enter'::regproc, 'EXECUTE')
        ELSE has_function_privilege(session_user, 'fencedb.enter'::regproc, 'EXECUTE')
            OR has_function_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user)::name, 'fencedb.enter'::regproc, 'EXECUTE') END;
END
$$;

COMMENT ON FUNCTION fencedb.may_enter IS 'Whether guards let this session write at all: its login may enter, or the role that it has set. If the login is a superuser, both the role that it acts as and the role that it has set.';

-- The common case of may_enter: the login writes as itself. It calls as few functions as possible,
-- because guards inline it.
CREATE FUNCTION fencedb.login_may_enter() RETURNS boolean
    LANGUAGE sql
    RETURN session_user = current_user AND current_setting('role') = 'none' AND has_function_privilege('fencedb.enter'::regproc, 'EXECUTE');

-- Whoever may raise a fence can shut others out. So enter is not public; fencedb.allow grants it.
REVOKE ALL ON ALL TABLES IN SCHEMA fencedb FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA fencedb FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM PUBLIC;
GRANT USAGE ON SCHEMA fencedb TO PUBLIC;
DO $$
BEGIN
    IF NOT has_schema_privilege('public', 'fencedb', 'USAGE') THEN -- a GRANT by a role that does not own the schema only warns
        RAISE EXCEPTION 'the schema fencedb belongs to another role, so % cannot let others use it', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'Let its owner run GRANT USAGE ON SCHEMA fencedb TO PUBLIC, or ALTER SCHEMA fencedb OWNER TO the role that migrates; then migrate again.';
    END IF;
END
$$;
GRANT EXECUTE ON FUNCTION fencedb.left_ms, fencedb.lower_limit, fencedb.require_entered, fencedb.entries, fencedb.token_of, fencedb.may_enter, fencedb.login_may_enter TO PUBLIC; -- the writer calls these, directly or through a guard, and its role may change after enter

-- 00003 creates some of the functions and views that allow opens to operators.
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
                    'admitted', 'shown', 'entry', 'started', 'lower_transaction_timeout', 'let_overtake') -- reenter calls these with its caller's rights; let_overtake: who may enter may let others overtake
                    OR operator AND p.proname IN ('prepared_writers', 'record', 'prune', 'reset_fence', 'keep_history')) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, role);
    END LOOP;
    EXECUTE format('GRANT SELECT, UPDATE (share) ON fencedb.fences_to_share TO %s', role);
    EXECUTE format('GRANT SELECT ON fencedb.server_epoch, fencedb.goose_db_version TO %s', role); -- to see whether the schema is migrated
    EXECUTE format('GRANT SELECT, INSERT (key, fingerprint), UPDATE (fingerprint, claimed_at, result, done) ON fencedb.once TO %s', role);
    IF operator THEN
        EXECUTE format('GRANT SELECT ON fencedb.fences, fencedb.foreign_issuers, fencedb.events, fencedb.audit, fencedb.history, fencedb.take_overs, fencedb.history_kept, fencedb.unbroken_since TO %s', role);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION fencedb.allow FROM PUBLIC;
COMMENT ON FUNCTION fencedb.allow IS 'Lets a role enter fences: all that an application needs. With operator => true the role may also do all that the command fencedb does, except migrations: see the ledger, its history and what was observed; revoke; keep history; set fences back; forget old fences and old records; and record what it did. The role that ran the migrations needs no grant.';

-- One log of what happened: what was done by hand (audit), who entered and wrote (history, 00003),
-- and what observing guards let pass (unfenced_writes, 00002). It comes before protect, which adds
-- to it.

-- Writers pay for each column, default and index, and most for a constraint, which Postgres plans
-- anew in every statement. So NOT NULL is the only one: functions of this schema alone add rows.
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
ALTER TABLE fencedb.events REPLICA IDENTITY FULL; -- Postgres refuses DELETE on a published table that has no key

CREATE SEQUENCE fencedb.event_id;
COMMENT ON SEQUENCE fencedb.event_id IS 'Numbers what was done by hand.';

-- Row security, because events have lease ids, as the ledger does. Operators get a policy in 00003.
ALTER TABLE fencedb.events ENABLE ROW LEVEL SECURITY;
ALTER TABLE fencedb.events ALTER COLUMN lease_id SET STATISTICS 0, ALTER COLUMN details SET STATISTICS 0; -- pg_statistic would show some values to members of pg_read_all_data

COMMENT ON TABLE  fencedb.events IS 'What happened. Functions of this schema add rows, in the transaction that did it. Rows cannot be changed; fencedb.prune forgets old ones. Read it through fencedb.audit, fencedb.history and fencedb.unfenced_writes.';
COMMENT ON COLUMN fencedb.events.at           IS 'By the clock of this server. Of entries, advanced_at of fencedb.fences.';
COMMENT ON COLUMN fencedb.events.xid          IS 'The transaction. All that it has added was committed together.';
COMMENT ON COLUMN fencedb.events.kind         IS 'audit: done by hand. history: an entry or a write, while fencedb.keep_history is on. observed: a write that an enforcing guard would have refused.';
COMMENT ON COLUMN fencedb.events.event        IS 'Of audit: protect, observe, unprotect, take_over_as, revoke, reset, keep_history, prune, or what operators record besides. Of history: enter: a token has entered for the first time, also by a seal or a role that takes over; reset: fencedb.reset_fence has set the fence to token; INSERT, UPDATE, DELETE: a statement. Of observed: INSERT, UPDATE, DELETE or TRUNCATE.';
COMMENT ON COLUMN fencedb.events.resource     IS 'NULL if the event concerns many resources, or no row was seen.';
COMMENT ON COLUMN fencedb.events.token        IS 'Of a statement, the token under which it was written. NULL if it was written without a lease of this resource, to a table that is only observed, or if the statement has cleared its transaction''s open list.';
COMMENT ON COLUMN fencedb.events.lease_id     IS 'Of enter and reset. The lease of a statement is that of the enter event with its token.';
COMMENT ON COLUMN fencedb.events.former_token IS 'Of enter and reset, the token that the fence had before. NULL if there was no fence, or it was set back to 0.';
COMMENT ON COLUMN fencedb.events.table_name   IS 'Of a statement, the table that it named, which may be a partition of the protected table. Of observed, the protected table.';
COMMENT ON COLUMN fencedb.events.row_count    IS 'Of a statement, how many of its rows belong to this resource. If an UPDATE moves rows to another resource, both are counted, each with the greater of its rows before and after.';
COMMENT ON COLUMN fencedb.events.role         IS 'Of audit, the role that logged in, whatever SET ROLE said later. Of others, the role of the last SET ROLE, or the one that logged in. NULL of a statement that has a token.';
COMMENT ON COLUMN fencedb.events.client       IS 'NULL of a statement that has a token, and over a Unix socket.';
COMMENT ON COLUMN fencedb.events.id           IS 'Numbers the events of audit, and separately those of observed.';
COMMENT ON COLUMN fencedb.events.operator     IS 'Of audit: who did it, as user@host, in the words of the program that recorded it. Where functions and tables of this schema record themselves what is done, user and host as this server knows them.';
COMMENT ON COLUMN fencedb.events.reason       IS 'Of audit, in the operator''s words. Of observed, the SQLSTATE that an enforcing guard would have raised.';
COMMENT ON COLUMN fencedb.events.details      IS 'revoke: token and lease_id of the revocation; former_token, former_lease_id and former_holder (its label, or empty) of the holder, or null; sealed: whether the token of the revocation entered the fence. revoke of a permit of a semaphore: no token and no lease_id, but permit: revoked, or unanswered if Redis has not answered. reset: former_token and former_lease_id of the fence, token and lease_id that it has instead. keep_history: period and former_period (null: not kept). take_over_as: table, its oid, role, and until (none: it has ended). prune: what, rows (how many), and older_than. protect, observe (guarded, and nothing is refused) and unprotect: table, its oid, and resource, the templates; recorded when a call of fencedb.protect, enforce or unprotect changes the protection, or finds that it was changed by hand; reason says which. observed: oid of the table, and ledger, the oid of fencedb.fences, which is another in a copy of the database.';

CREATE VIEW fencedb.audit WITH (security_invoker) AS
SELECT id, at, role, operator, event, resource, reason, details FROM fencedb.events WHERE kind = 'audit';

COMMENT ON VIEW fencedb.audit IS 'What was done by hand: tables protected and unprotected, leases revoked, fences forgotten, and so on. Only fencedb.prune deletes rows, and only rows that are older than 90 days.';

CREATE VIEW fencedb.history WITH (security_invoker) AS
SELECT at, xid, resource, event, token, lease_id, former_token, table_schema, table_name, row_count, application, role, client FROM fencedb.events WHERE kind = 'history';

COMMENT ON VIEW fencedb.history IS 'Who entered which resource, and what was written to tables that are protected with history. Kept only while fencedb.keep_history is on, and for its period. Transactions that rolled back are not in it.';

-- This protects against mistakes: the owner could drop the trigger.
CREATE FUNCTION fencedb.keep_events() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'INSERT' -- the trigger off (00003): the row is not stored
       OR TG_OP = 'DELETE' AND current_setting('fencedb.forgets', true) = 'on' AND current_user = (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% on fencedb.events: what was recorded stays', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'Record a correction instead, with fencedb.record. fencedb.prune forgets what is old.';
END
$$;

CREATE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON fencedb.events FOR EACH STATEMENT EXECUTE FUNCTION fencedb.keep_events();

-- forget_events keeps the events that say who protected a table, for as long as it is protected.
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
          AND NOT (o.kind = 'audit' AND o.event IN ('protect', 'observe')
                   AND coalesce(o.details ->> 'oid' IN (SELECT p.table_name::oid::text FROM fencedb.protected_tables p) OR o.details ->> 'table' IN (SELECT p.table_name::text FROM fencedb.protected_tables p), false))
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

-- The COMMIT waits for the disk, because whoever learns that a holder was shut out relies on it
-- (see fencedb.Seal).
CREATE FUNCTION fencedb.record(event text, resource text, operator text, reason text, details jsonb DEFAULT '{}') RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(event, '') = '' OR coalesce(operator, '') = '' OR coalesce(reason, '') = '' OR details IS NULL THEN
        RAISE EXCEPTION 'fencedb.record: needs an event, an operator, a reason and details, got %, %, % and %', quote_nullable(event), quote_nullable(operator), quote_nullable(reason), quote_nullable(details)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF event IN ('protect', 'observe', 'unprotect', 'take_over_as', 'prune', 'reset', 'keep_history') THEN
        RAISE EXCEPTION 'fencedb.record: % is recorded by the function that does it', event
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Only that function may record it, so that the audit says what happened.';
    END IF;
    PERFORM set_config('synchronous_commit', 'local', true) WHERE current_setting('synchronous_commit') = 'off';
    RETURN fencedb.log_event(event, resource, operator, reason, details);
END
$$;

COMMENT ON FUNCTION fencedb.record IS 'Adds a row to fencedb.audit, under the name of the role that logged in, and returns its id. The row stays only if the transaction commits; its COMMIT waits for the disk, also where synchronous_commit is off. Refuses events that functions of this schema record themselves.';

REVOKE ALL ON fencedb.events, fencedb.event_id, fencedb.audit, fencedb.history FROM PUBLIC;
REVOKE ALL ON FUNCTION fencedb.keep_events, fencedb.forget_events, fencedb.log_event, fencedb.record FROM PUBLIC;

-- Durable idempotency keys: a key becomes done in the same transaction as its effect, or not at
-- all. Roles that write use this table directly, with three statements: see docs/protocol.md and
-- fencedb.Once.

CREATE TABLE fencedb.once (
    key         text COLLATE "C" PRIMARY KEY CHECK (key <> '' AND octet_length(key) <= 512),
    fingerprint bytea,
    role        name        NOT NULL DEFAULT current_user,
    result      bytea CHECK (octet_length(result) <= 1048576),
    done        boolean     NOT NULL DEFAULT false,
    claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX once_claimed_at ON fencedb.once (claimed_at);

COMMENT ON TABLE  fencedb.once IS 'Idempotency keys that are done, with their results. Each role sees and changes only its own: a key alone can be guessed. Forgetting a key lets its request run again; see fencedb.prune.';
COMMENT ON COLUMN fencedb.once.key         IS 'Chosen by the client of the application; 1 to 512 bytes.';
COMMENT ON COLUMN fencedb.once.fingerprint IS 'SHA-256 of the request, to refuse another request with the same key; NULL if the application gives none.';
COMMENT ON COLUMN fencedb.once.role        IS 'Who claimed it, after SET ROLE if there was one. Other roles do not see the key.';
COMMENT ON COLUMN fencedb.once.result      IS 'The answer of the first run, replayed to the others; up to 1 MiB.';
COMMENT ON COLUMN fencedb.once.done        IS 'False if a transaction claimed the key and committed without a result: then the next call with this key runs again.';
COMMENT ON COLUMN fencedb.once.claimed_at  IS 'By the clock of this server; keys are forgotten by age.';

ALTER TABLE fencedb.once ENABLE ROW LEVEL SECURITY;
ALTER TABLE fencedb.once ALTER COLUMN result SET STATISTICS 0, ALTER COLUMN fingerprint SET STATISTICS 0; -- pg_statistic would show some values to members of pg_read_all_data
CREATE POLICY own ON fencedb.once USING (role = current_user) WITH CHECK (role = current_user);

REVOKE ALL ON fencedb.once FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE fencedb.once;
DROP VIEW fencedb.audit, fencedb.history;
DROP TABLE fencedb.events;
DROP SEQUENCE fencedb.event_id;
DROP FUNCTION fencedb.record, fencedb.log_event, fencedb.forget_events, fencedb.keep_events;
DROP FUNCTION fencedb.reenter;
DROP VIEW fencedb.fences_to_share;
DROP FUNCTION fencedb.allow, fencedb.shown, fencedb.enter, fencedb.enter_all, fencedb.take, fencedb.await, fencedb.check_grant, fencedb.raise_stale, fencedb.prepared_writers,
    fencedb.blockers, fencedb.last_token, fencedb.require_entered, fencedb.outcome, fencedb.epoch, fencedb.started, fencedb.admitted, fencedb.lower_transaction_timeout, fencedb.lower_limit,
    fencedb.may_enter, fencedb.login_may_enter, fencedb.left_ms, fencedb.token_of, fencedb.entry, fencedb.entries;
DROP SEQUENCE fencedb.server_epoch, fencedb.former_epoch, fencedb.former_end, fencedb.unbroken_since;
DROP TABLE fencedb.foreign_issuers, fencedb.fences;
REVOKE USAGE ON SCHEMA fencedb FROM PUBLIC;
-- +goose StatementEnd
