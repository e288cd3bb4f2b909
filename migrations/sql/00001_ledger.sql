-- The ledger of fences and the one way to pass it: fencedb.enter.
--
-- Errors raised here and in later migrations (stable, for clients in any language):
--   FN001  the token is stale: the fence has a newer one, or the same one under another lease
--   FN002  no token: the transaction wrote to a protected table without having entered a fence
--   FN003  wrong resource: the transaction entered, but not the fence of this row's resource
--   FN004  lease over: the validity given to enter is not positive, or ended while it entered
--   FN005  key reused: an idempotency key was used before, for another request
--   FN006  too long: the transaction outlasted the validity that it entered with
--   FN007  ended: the transaction that entered is not open any more
-- Of Postgres's own, enter raises
--   55P03  busy: an open transaction held the fence for as long as this one could wait
--   40001  not sealed: above READ COMMITTED, the token has not entered yet (see take), or a newer
--          one is entering
-- FN001 to FN003, and 55P03 where the fence was there before, carry their values as a JSON object
-- in DETAIL.

-- +goose Up

-- In every migration: what is read now (defaults, constraints, views, function bodies with RETURN)
-- is not read in the search_path of whoever migrates, where others may have put functions and
-- operators of their own. That path comes back at the end.
SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- Ordinary and logged on purpose: a fence that a crash forgets is no fence.
-- Half of each page is left free, so that advancing a fence stays a heap-only update.
CREATE TABLE fencedb.fences (
    resource           text COLLATE "C" PRIMARY KEY CHECK (resource <> '' AND octet_length(resource) <= 512),
    last_fencing_token bigint      NOT NULL CHECK (last_fencing_token >= 0),
    lease_id           uuid        NOT NULL,
    advanced_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    annulled           text[],
    share              boolean CHECK (share IS NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE  fencedb.fences IS 'The ledger: the highest fencing token that has entered, per resource. It outlives the rows it protects; deleting from it by hand lets stale holders write again.';
COMMENT ON COLUMN fencedb.fences.resource           IS 'type:id, as the lease names it; compared byte by byte.';
COMMENT ON COLUMN fencedb.fences.last_fencing_token IS 'No transaction with a lower token commits for this resource again, unless fencedb.reset_fence sets it back.';
COMMENT ON COLUMN fencedb.fences.lease_id           IS 'The lease that carries this token. The same token under another lease is stale: issuers that lose their data can issue a number twice.';
COMMENT ON COLUMN fencedb.fences.advanced_at        IS 'When this token entered first, by the clock of this server, but not before that transaction began.';
COMMENT ON COLUMN fencedb.fences.annulled           IS 'NULL unless fencedb.reset_fence has set this fence back: the tokens from which, each followed by its lease id. Rows that were stamped before do not count any more.';

COMMENT ON COLUMN fencedb.fences.share              IS 'Always NULL. Postgres lets those lock a row who may update one of its columns: this one, for fencedb.reenter.';

CREATE TABLE fencedb.signing_key (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    key       bytea   NOT NULL CHECK (octet_length(key) >= 32)
                      DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
);

COMMENT ON TABLE fencedb.signing_key IS 'Signs what carry leaves for the triggers, so that set_config by hand opens nothing. Read only by the functions of this schema.';

INSERT INTO fencedb.signing_key DEFAULT VALUES;

-- Members of pg_read_all_data and pg_write_all_data reach every table, whatever is revoked, but not
-- past row security. There is no policy, so only the owner reads the key, and with it the functions
-- that run as the owner.
ALTER TABLE fencedb.signing_key ENABLE ROW LEVEL SECURITY;

-- Postgres hands transaction ids out again after a crash that lost their WAL, and on a standby that
-- lagged when it was promoted. So an id proves nothing unless the server has run on since it was
-- given. Crash recovery and promotion put every unlogged sequence back to its start, which is how
-- this one tells; and unlike a row, what setval writes is there at once for everybody, whatever
-- becomes of the transaction. A dump takes it to other servers, so it names the server in its last
-- 24 bits.
CREATE UNLOGGED SEQUENCE fencedb.server_epoch;

COMMENT ON SEQUENCE fencedb.server_epoch IS 'A random number, drawn anew after each crash recovery and promotion of the server. Not yet drawn while is_called is false.';

-- A guard need not judge every row anew: where rows of one resource follow each other, fencedb.note
-- keeps the answer for it. Anybody can set a setting, so the answer is in sequences: what currval
-- gives is the session's own, and only who may change a sequence can set it. The setting
-- fencedb.noted only says that there is something. Sequences outlast the transaction, so its id is
-- in one sum. They do not go back with a savepoint, and need not: none can begin before a fence was
-- entered. Of the resource there are two sums of 64 bits, with a salt that nobody knows before: for
-- one of them a name could be made that has it.
CREATE UNLOGGED SEQUENCE fencedb.noted_salt MINVALUE -9223372036854775808;
CREATE UNLOGGED SEQUENCE fencedb.noted_sum MINVALUE -9223372036854775808;
CREATE UNLOGGED SEQUENCE fencedb.noted_check MINVALUE -9223372036854775808;
CREATE UNLOGGED SEQUENCE fencedb.noted_token MINVALUE 0;
CREATE UNLOGGED SEQUENCE fencedb.noted_until MINVALUE 0;

COMMENT ON SEQUENCE fencedb.noted_salt  IS 'A random number, drawn anew for each note.';
COMMENT ON SEQUENCE fencedb.noted_sum   IS 'The sum of the resource that was judged, with the salt and the transaction id.';
COMMENT ON SEQUENCE fencedb.noted_check IS 'The sum of the same resource, with noted_sum.';
COMMENT ON SEQUENCE fencedb.noted_token IS 'The token to stamp on its rows.';
COMMENT ON SEQUENCE fencedb.noted_until IS 'Until when its rows may be written, in milliseconds since 1970.';

-- Tokens end at 2^53 - 1 (the largest whole number that Lua, JavaScript and JSON keep exactly), so
-- that a token entered by mistake cannot shut every later holder out.
CREATE TABLE fencedb.foreign_issuers (
    resource_type text COLLATE "C" PRIMARY KEY CHECK (resource_type <> '' AND strpos(resource_type, ':') = 0)
);

COMMENT ON TABLE  fencedb.foreign_issuers IS 'The types of resources (the part of their names before the colon) whose tokens may exceed 2^53 - 1, because something else than package lease issues them. See fencedb.declare_foreign.';

REVOKE ALL ON ALL TABLES IN SCHEMA fencedb FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA fencedb FROM PUBLIC;
GRANT SELECT ON fencedb.noted_salt, fencedb.noted_sum, fencedb.noted_check, fencedb.noted_token, fencedb.noted_until TO PUBLIC; -- for currval, by the guards

-- Which functions and operators a function means must not depend on the search_path of its caller.
-- So each one fixes its own, with SET or, where the body is a single expression, with RETURN, which
-- is read when the migration runs. Functions marked SECURITY DEFINER are the doors. SET costs time
-- in every call, so the inner functions that a door calls each time have none: they run under the
-- door's, and are for no one else (see the REVOKE at the end).

-- The signature covers the transaction id: a setting copied from another transaction does not
-- verify. The key is hashed in twice, or a signed text could be extended without it. A body with
-- RETURN that reads no table becomes part of the expression that calls it, and costs no call.
CREATE FUNCTION fencedb.signature(key bytea, body text) RETURNS text
    LANGUAGE sql STABLE
    RETURN encode(sha256(key || sha256(key || convert_to(pg_current_xact_id()::text || ' ' || body, 'UTF8'))), 'hex');

COMMENT ON FUNCTION fencedb.signature(bytea, text) IS 'Inner function. The signature of body for this transaction with key: 64 hexadecimal digits.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.sign(body text) RETURNS text
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    key bytea := (SELECT k.key FROM fencedb.signing_key k);
BEGIN
    RETURN fencedb.signature(key, body);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.sign(text) IS 'Inner function. The signature of body for this transaction: 64 hexadecimal digits.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.carried() RETURNS jsonb
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    -- A local setting of an earlier transaction reads as '', not as NULL.
    signed text := nullif(current_setting('fencedb.carried', true), '');
BEGIN
    IF signed IS NULL THEN -- to sign takes a transaction id, which a refusal must not use up
        RETURN NULL;
    ELSIF left(signed, 64) = (SELECT fencedb.signature(k.key, substr(signed, 65)) FROM fencedb.signing_key k) THEN -- sign, without a call
        RETURN substr(signed, 65)::jsonb;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.carried() IS 'Inner function. The grants that this transaction carries: {resource: "token lease"}. NULL when it carries none, or when somebody else wrote the setting.';

-- What a transaction says of itself once it has entered or carries, in the setting fencedb.entered:
-- its id, how many milliseconds from its start it may write, its time limit for statements (0
-- without one), and what it has entered: the token, the lease id and the resource, or, if these are
-- several, an object of JSON in fencedb.grants. The id tells the setting from one that a session
-- has set for longer. No guard believes it: it shortens what a transaction may do, and is for
-- messages.
CREATE FUNCTION fencedb.until() RETURNS float8
    LANGUAGE sql STABLE
    RETURN CASE WHEN split_part(current_setting('fencedb.entered', true), ' ', 1) = pg_current_xact_id_if_assigned()::text
                THEN date_part('epoch', transaction_timestamp()) * 1000 + split_part(current_setting('fencedb.entered', true), ' ', 2)::float8 END;

COMMENT ON FUNCTION fencedb.until() IS 'Until when this transaction may write, in milliseconds since 1970, by what it said when it entered or carried. NULL when it did neither.';

-- Where it is known that the setting is of this transaction. VOLATILE, as the clock is, or it would
-- cost a call.
CREATE FUNCTION fencedb.left_ms() RETURNS float8
    LANGUAGE sql
    RETURN ('0' || split_part(current_setting('fencedb.entered', true), ' ', 2))::float8 - date_part('epoch', clock_timestamp() - transaction_timestamp()) * 1000;

COMMENT ON FUNCTION fencedb.left_ms() IS 'How many milliseconds are left until then.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.grants() RETURNS jsonb
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    entered text[] := regexp_match(current_setting('fencedb.entered', true), E'^\\S+ \\S+ \\S+ (\\S+ \\S+) (.*)');
BEGIN
    IF fencedb.until() IS NULL THEN
        RETURN '{}';
    ELSIF entered IS NOT NULL THEN
        RETURN jsonb_build_object(entered[2], entered[1]);
    END IF;
    RETURN coalesce(nullif(current_setting('fencedb.grants', true), ''), '{}');
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.grants() IS 'Inner function. What this transaction says that it has entered: {resource: "token lease"}.';

-- The values of concat are computed from left to right.
CREATE FUNCTION fencedb.note(resource text, token bigint, until float8) RETURNS text
    LANGUAGE sql
    RETURN concat(setval('fencedb.noted_salt', hashtextextended(gen_random_uuid()::text, 0)),
        setval('fencedb.noted_sum', hashtextextended(resource, currval('fencedb.noted_salt') # txid_current())),
        setval('fencedb.noted_check', hashtextextended(resource, currval('fencedb.noted_sum'))),
        setval('fencedb.noted_token', token), setval('fencedb.noted_until', floor(until)::bigint),
        set_config('fencedb.noted', CASE WHEN resource <> '' THEN 'yes' ELSE '' END, true));

COMMENT ON FUNCTION fencedb.note(text, bigint, float8) IS 'Inner function. Notes for the guards that rows of resource may be written, until when (milliseconds since 1970), and the token to stamp on them; none for an empty resource. The note before is void then.';

-- +goose StatementBegin
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
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.raise_stale(text, bigint, bigint) IS 'Inner function. Raises FN001.';

-- Only a lock owned by the outermost transaction lasts until its end. One taken after a savepoint
-- is given back by ROLLBACK TO, and the fence with it, while the transaction goes on and commits.
-- +goose StatementBegin
CREATE FUNCTION fencedb.outermost(locker xid) RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    me xid := pg_current_xact_id()::xid;
BEGIN
    IF locker = me THEN
        RETURN true;
    END IF;
    -- A fence that several transactions share has a multixact there, which lists them. So a bare
    -- number is either that or one transaction; to look up the latter as a multixact fails, or
    -- finds one without us.
    BEGIN
        RETURN EXISTS (SELECT FROM pg_get_multixact_members(locker) m WHERE m.xid = me);
    EXCEPTION WHEN internal_error OR invalid_parameter_value THEN
        RETURN false;
    END;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.outermost(xid) IS 'Inner function. Whether locker, the xmax of a fence, is the outermost transaction, or several with it among them. Numbers begin anew: for a fence that this transaction has not locked itself, true may be by chance.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.require_outermost(locker xid) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT fencedb.outermost(locker) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'active_sql_transaction',
            MESSAGE = 'fencedb.enter must come before any savepoint',
            DETAIL  = 'ROLLBACK TO SAVEPOINT would give the fence back and leave the transaction open.',
            HINT    = 'Enter first in the outermost transaction (in PL/pgSQL: outside any block with EXCEPTION), then open savepoints. Some clients set one before each statement: psql under ON_ERROR_ROLLBACK, JDBC under autosave.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_outermost(xid) IS 'Inner function. Raises unless locker, as found on a fence that this transaction has just locked, is the outermost transaction.';

-- The lock itself is the witness that a transaction has entered: only who may enter can lock a
-- fence, and no setting forged by hand does. It has to be of the outermost transaction. An xmin may
-- be of four billion transactions ago, and an xmax may be the number of a multixact, unless none
-- has come as far as ours. Where others share the lock, a number proves nothing: who locks rows of
-- his own can make a multixact of it. There the transaction has to say, too, that it has entered,
-- and the lock is taken once more, in a subtransaction that is rolled back: xmax stays only where
-- the transaction had it. A reset of a fence changes it too, and is no entry; after one, the lease
-- id has to be ours as well. Nor is it one what a role that overtakes has locked (00007): that is
-- for one table.
-- +goose StatementBegin
CREATE FUNCTION fencedb.held(resource text, OUT token bigint, OUT lease_id uuid)
    LANGUAGE plpgsql
AS $$
DECLARE
    me     xid := pg_current_xact_id()::xid;
    locker xid;
    own    boolean;
BEGIN
    SELECT f.last_fencing_token, f.lease_id, f.xmax,
           f.xmax = me AND mxid_age(me) <= 0 OR f.xmin = me AND f.advanced_at >= transaction_timestamp()
    INTO token, lease_id, locker, own
    FROM fencedb.fences f
    WHERE f.resource = held.resource COLLATE "C" AND f.lease_id <> fencedb.overtaking_lease()
      AND (f.annulled IS NULL OR concat_ws(' ', f.last_fencing_token, f.lease_id) = fencedb.grants() ->> held.resource);
    FOR try IN 1..10 LOOP -- another that shares it may come in between
        EXIT WHEN own IS NOT FALSE OR locker = '0' OR NOT fencedb.grants() ? resource OR NOT fencedb.outermost(locker);
        BEGIN
            PERFORM FROM fencedb.fences f
            WHERE f.resource = held.resource COLLATE "C" AND f.last_fencing_token = token AND f.lease_id = held.lease_id
            FOR SHARE SKIP LOCKED;
            own := FOUND AND locker = (SELECT f.xmax FROM fencedb.fences f WHERE f.resource = held.resource COLLATE "C");
            RAISE EXCEPTION USING ERRCODE = 'FN000';
        EXCEPTION WHEN SQLSTATE 'FN000' THEN
            locker := (SELECT f.xmax FROM fencedb.fences f WHERE f.resource = held.resource COLLATE "C");
        END;
    END LOOP;
    IF own IS NOT TRUE THEN
        token := NULL;
        lease_id := NULL;
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.held(text) IS 'Inner function. The token and lease id of a fence that this transaction has entered; NULLs if it has not.';

CREATE FUNCTION fencedb.server() RETURNS bigint
    LANGUAGE sql
    RETURN (SELECT hashint8extended(c.system_identifier, 0) & 16777215 | 1 FROM pg_control_system() c);

COMMENT ON FUNCTION fencedb.server() IS 'Inner function. The last 24 bits of every epoch of this server.';

-- One of the sessions that find no epoch draws it, under a lock that it gives back at once. If the
-- others do not see it within a tenth of a second, they draw one too: who entered with a number
-- that is overwritten cannot be asked about, which is unknown, and so true.
-- +goose StatementBegin
CREATE FUNCTION fencedb.epoch() RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    lock  CONSTANT bigint := 7302139487162534; -- any number that nobody else has
    drawn bigint := coalesce(pg_sequence_last_value('fencedb.server_epoch'), CASE current_setting('transaction_read_only') WHEN 'on' THEN 0 END); -- which no epoch is: there is no outcome
    mine  boolean;
BEGIN
    FOR try IN 1..100 LOOP
        EXIT WHEN drawn IS NOT NULL;
        mine := pg_try_advisory_lock(lock);
        drawn := pg_sequence_last_value('fencedb.server_epoch');
        IF drawn IS NULL AND (mine OR try = 100) THEN -- not by random(), which a session can seed
            drawn := setval('fencedb.server_epoch', hashtextextended(gen_random_uuid()::text, 0) & 9223372036837998592 | fencedb.server());
        END IF;
        mine := CASE WHEN mine THEN pg_advisory_unlock(lock) ELSE pg_sleep(0.001) IS NULL END;
    END LOOP;
    RETURN drawn;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.epoch() IS 'Inner function. The epoch of the server, drawn if there is none yet.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.raise_busy(resource text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'lock_not_available',
        MESSAGE = format('the fence of resource "%s" is held by an open transaction', resource),
        DETAIL  = jsonb_build_object('resource', resource, 'blockers', (SELECT coalesce(jsonb_agg(b), '[]') FROM fencedb.blockers(ARRAY[resource]) b))::text,
        HINT    = 'Nothing was written. The holder before has to end its transaction first; fencedb.blockers names it.';
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.raise_busy(text) IS 'Inner function. Raises 55P03 with the sessions that hold the fence in DETAIL.';

-- await waits as every statement waits for a row, so the deadlock detector and pg_blocking_pids see
-- it. lock_timeout starts anew for each of several lockers, and an error cannot be taken back
-- outside a subtransaction. So the wait is one of many short ones, each in a subtransaction that is
-- rolled back: the lock that it got would belong to the subtransaction.
-- +goose StatementBegin
CREATE FUNCTION fencedb.await(resource text, shared boolean, deadline numeric) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    left_ms numeric;
BEGIN
    LOOP
        left_ms := deadline - extract(epoch FROM clock_timestamp()) * 1000;
        IF left_ms < 1 THEN
            PERFORM fencedb.raise_busy(resource);
        END IF;
        BEGIN
            IF left_ms IS NOT NULL THEN
                PERFORM set_config('lock_timeout', ceil(least(2147483647, left_ms, greatest(20, left_ms / 8)))::text, true);
            END IF;
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
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.await(text, boolean, numeric) IS 'Inner function. Returns when the fence could be locked, or raises 55P03 at the deadline, in milliseconds since 1970; NULL for none.';

-- take holds the fence of one resource until the transaction ends. Why transactions of one lease
-- share it and a newcomer locks it exclusively:
--     A (41) holds the row FOR SHARE and reads. B (42) must update the row, so it waits for A.
--     A commits. B goes on, and its next statement reads what A wrote.
--     A's next transaction finds 42: stale.
--     Two transactions of A share the row and run side by side.
-- A first transaction locks exclusively straight away: two that shared first and updated then would
-- deadlock. Each round reads anew, so a fence that moved while we waited is judged by its new
-- state.
--
-- Under REPEATABLE READ and SERIALIZABLE the fence must have been advanced before the snapshot was
-- taken. Otherwise:
--     A (41) holds the row FOR SHARE. B (42) takes its snapshot with this statement, and waits.
--     A books the table and commits. A has only locked the row, so B's update is no conflict for
--     Postgres: no 40001.
--     B reads from its old snapshot that the table is free, and books it as well.
-- A snapshot that shows B's token was taken after B's fence had waited for every A; and if a newer
-- token has entered since, locking the row raises 40001.
-- +goose StatementBegin
CREATE FUNCTION fencedb.take(resource text, token bigint, lease_id uuid, deadline numeric) RETURNS void
    LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    level  text := current_setting('transaction_isolation');
    own    text := current_setting('lock_timeout');
    stored record;
    locker xid;
BEGIN
    LOOP
        PERFORM FROM fencedb.fences f
        WHERE f.resource = take.resource COLLATE "C" AND f.last_fencing_token = token AND f.lease_id = take.lease_id
        FOR SHARE SKIP LOCKED;
        IF FOUND THEN
            SELECT f.xmax INTO locker FROM fencedb.fences f WHERE f.resource = take.resource COLLATE "C";
            EXIT;
        END IF;

        SELECT f.last_fencing_token AS token, f.lease_id INTO stored
        FROM fencedb.fences f WHERE f.resource = take.resource COLLATE "C";
        IF stored.token > token OR stored.token = token AND stored.lease_id <> take.lease_id THEN
            PERFORM fencedb.raise_stale(take.resource, token, stored.token);
        ELSIF level IN ('repeatable read', 'serializable') AND stored.token IS DISTINCT FROM token THEN
            RAISE EXCEPTION USING
                ERRCODE = 'serialization_failure',
                MESSAGE = format('fencing token %s has not entered resource "%s" yet, so a transaction at %s cannot', token, take.resource, upper(level)),
                DETAIL  = 'Its snapshot could be older than the last write of the holder before.',
                HINT    = 'Nothing was written. Call fencedb.enter with the same grant in a READ COMMITTED transaction, commit that, and begin this one again.';
        ELSIF stored.token IS NULL THEN
            PERFORM fencedb.lower_limit('lock_timeout', greatest(1, ceil(deadline - extract(epoch FROM clock_timestamp()) * 1000))::bigint); -- another transaction may be inserting the fence
            INSERT INTO fencedb.fences AS f (resource, last_fencing_token, lease_id, advanced_at)
            VALUES (take.resource, token, take.lease_id, greatest(clock_timestamp(), transaction_timestamp()))
            ON CONFLICT DO NOTHING
            RETURNING f.xmin INTO locker;
            PERFORM set_config('lock_timeout', own, true);
            EXIT WHEN locker IS NOT NULL;
            CONTINUE;
        ELSIF stored.token < token THEN
            PERFORM FROM fencedb.fences f WHERE f.resource = take.resource COLLATE "C" FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                UPDATE fencedb.fences f
                SET last_fencing_token = token, lease_id = take.lease_id, advanced_at = greatest(clock_timestamp(), transaction_timestamp())
                WHERE f.resource = take.resource COLLATE "C" AND token > f.last_fencing_token
                RETURNING f.xmin INTO locker;
                EXIT WHEN FOUND;
                CONTINUE; -- a newer token came in between
            END IF;
        END IF;
        PERFORM fencedb.await(take.resource, stored.token = token, deadline);
    END LOOP;
    PERFORM fencedb.require_outermost(locker);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.take(text, bigint, uuid, numeric) IS 'Inner function. Takes one fence until the end of the transaction, or raises FN001, 40001, or 55P03 at the deadline.';

-- A limit counts from the start of each statement, so a later statement would get more time than is
-- left. The limits are one part in 256 short of what is left, and a guard draws them in again when
-- that much has passed, not in each millisecond.
CREATE FUNCTION fencedb.limit_ms(left_ms bigint) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN left_ms - left_ms / 256;

COMMENT ON FUNCTION fencedb.limit_ms(bigint) IS 'How long a statement may take of which left_ms milliseconds are left.';

-- No transaction may outlive its lease, and the server itself ends it. What the application or the
-- role set tighter stays.
CREATE FUNCTION fencedb.lower_limit(name text, limit_ms bigint) RETURNS text
    LANGUAGE sql
    RETURN CASE WHEN coalesce(nullif(current_setting(name), '0')::interval > interval '1 ms' * limit_ms, true) THEN set_config(name, limit_ms::text, true) END;

COMMENT ON FUNCTION fencedb.lower_limit(text, bigint) IS 'Lowers a time limit of Postgres to limit_ms milliseconds in this transaction, unless it is lower.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.check_grant(resource text, token bigint, lease_id uuid) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF resource IS NULL OR resource = '' OR octet_length(resource) > 512 THEN
        RAISE EXCEPTION 'fencedb.enter: the resource must be 1 to 512 bytes, got %', coalesce(octet_length(resource)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF token IS NULL OR token <= 0 THEN
        RAISE EXCEPTION 'fencedb.enter: the token for resource "%" must be positive, got %', resource, coalesce(token::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF token > 9007199254740991 AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(resource COLLATE "C", ':', 1)) THEN
        RAISE EXCEPTION 'fencedb.enter: the token for resource "%" must be at most 2^53 - 1 (9007199254740991), got %', resource, token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Package lease cannot issue a greater token. If another issuer makes the tokens of such resources, call fencedb.declare_foreign.';
    ELSIF lease_id IS NULL THEN
        RAISE EXCEPTION 'fencedb.enter: the lease id for resource "%" must not be NULL', resource
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_grant(text, bigint, uuid) IS 'Inner function. Raises 22023 for a grant that no issuer can have issued.';

-- take_free takes those of several fences that need no waiting, in one query, and returns how many.
-- After the first that is not free, in byte order, it tries none: whoever waits for one fence while
-- it holds a later one can end in a deadlock. So each row of the query looks whether one before it
-- was busy; Postgres begins with a row when it has done with the one before.
-- +goose StatementBegin
CREATE FUNCTION fencedb.take_free(resources text[], tokens bigint[], lease_ids uuid[]) RETURNS int
    LANGUAGE plpgsql
AS $$
DECLARE
    me     xid := pg_current_xact_id()::xid;
    free   record;
    locker xid;
BEGIN
    PERFORM set_config('fencedb.busy', '', true);
    SELECT count(*) FILTER (WHERE CASE WHEN same.resource IS NULL AND older.resource IS NULL THEN set_config('fencedb.busy', 'x', true) IS NULL ELSE true END) AS n,
           array_agg(same.resource) FILTER (WHERE same.resource IS NOT NULL) AS same,
           array_agg(older.resource) FILTER (WHERE older.resource IS NOT NULL) AS older,
           array_agg(u.token) FILTER (WHERE older.resource IS NOT NULL) AS tokens,
           array_agg(u.lease_id) FILTER (WHERE older.resource IS NOT NULL) AS lease_ids
    INTO free
    FROM (SELECT * FROM unnest(resources, tokens, lease_ids) AS g(resource, token, lease_id) ORDER BY g.resource COLLATE "C") u
    LEFT JOIN LATERAL (
        SELECT f.resource FROM fencedb.fences f
        WHERE f.resource = u.resource COLLATE "C" AND f.last_fencing_token = u.token AND f.lease_id = u.lease_id AND current_setting('fencedb.busy') = ''
        FOR SHARE SKIP LOCKED) same ON true
    LEFT JOIN LATERAL (
        SELECT f.resource FROM fencedb.fences f
        WHERE same.resource IS NULL AND f.resource = u.resource COLLATE "C" AND f.last_fencing_token < u.token AND current_setting('fencedb.busy') = ''
          AND current_setting('transaction_isolation') LIKE 'read %'
        FOR NO KEY UPDATE SKIP LOCKED) older ON true;
    IF free.same IS NOT NULL THEN
        PERFORM fencedb.require_outermost(f.xmax) FROM fencedb.fences f WHERE f.resource = ANY (free.same COLLATE "C") AND f.xmax <> me;
    END IF;
    IF free.older IS NOT NULL THEN
        WITH raised AS (
            UPDATE fencedb.fences f SET last_fencing_token = u.token, lease_id = u.lease_id, advanced_at = greatest(clock_timestamp(), transaction_timestamp())
            FROM unnest(free.older, free.tokens, free.lease_ids) u(resource, token, lease_id)
            WHERE f.resource = u.resource COLLATE "C"
            RETURNING f.xmin)
        SELECT r.xmin INTO locker FROM raised r LIMIT 1;
        PERFORM fencedb.require_outermost(locker);
    END IF;
    RETURN free.n;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.take_free(text[], bigint[], uuid[]) IS 'Inner function. Takes fences until the end of the transaction, in byte order, up to the first for which take would have to do more: it is held, new, or stale. Returns how many.';

CREATE FUNCTION fencedb.untouched() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN coalesce(current_setting('fencedb.entered', true), '') = '';

COMMENT ON FUNCTION fencedb.untouched() IS 'Inner function. Whether this transaction has neither entered nor carries anything.';

-- transaction_timeout, of Postgres 17 and newer, counts from the start of the transaction, or from
-- when it is switched on anew, hence the 0 before it.
-- +goose StatementBegin
CREATE FUNCTION fencedb.lower_transaction_timeout(limit_ms bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN set_config('transaction_timeout', '0', true) || set_config('transaction_timeout', limit_ms::text, true)
    WHERE transaction_timestamp() + current_setting('transaction_timeout')::interval > clock_timestamp() + interval '1 ms' * limit_ms;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.lower_transaction_timeout(bigint) IS 'Inner function. lower_limit for transaction_timeout, where there is one.';

-- What is left behind for a transaction that enters or carries: as an expression it costs no call,
-- nor does a limit that idle, a constant, leaves out.
CREATE FUNCTION fencedb.admitted(since_start_ms bigint, remaining_ms bigint, limit_ms bigint, entered text, idle boolean) RETURNS xid8
    LANGUAGE sql
    RETURN CASE WHEN concat(fencedb.lower_limit('statement_timeout', limit_ms), CASE WHEN idle IS NOT FALSE THEN fencedb.lower_limit('idle_in_transaction_session_timeout', limit_ms) END,
        CASE WHEN current_setting('transaction_timeout', true) = '0' THEN set_config('transaction_timeout', remaining_ms::text, true)
             WHEN current_setting('transaction_timeout', true) <> '0' THEN fencedb.lower_transaction_timeout(remaining_ms) END,
        set_config('fencedb.entered', concat_ws(' ', pg_current_xact_id(), since_start_ms + remaining_ms, limit_ms, entered), true)) IS NOT NULL
    THEN pg_current_xact_id() END;

COMMENT ON FUNCTION fencedb.admitted(bigint, bigint, bigint, text, boolean) IS 'Inner function. Bounds this transaction to remaining_ms from now, which is since_start_ms from its start, and notes what it has entered; returns its id. For idle, see enter.';

-- admit checks and bounds, takes the fences if enter is true, or else (fencedb.carry of 00004)
-- signs the grants for the triggers. A transaction may be admitted several times, for more
-- resources.
-- +goose StatementBegin
CREATE FUNCTION fencedb.admit(enter boolean, resources text[], tokens bigint[], lease_ids uuid[], remaining_ms bigint, wait_ms bigint, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql
AS $$
DECLARE
    n        int     := coalesce(cardinality(resources), 0);
    until    float8  := fencedb.until();
    entered  jsonb   := fencedb.grants();
    carried  jsonb   := fencedb.carried();
    start    float8  := date_part('epoch', clock_timestamp()) * 1000;
    now      float8;
    left_ms  bigint;
    deadline numeric; -- of the wait for all fences together
    grants   jsonb;
    other    record;
    taken    int     := 0;
    u        record;
    signed   text;
BEGIN
    IF n = 0 OR n IS DISTINCT FROM cardinality(tokens) OR n IS DISTINCT FROM cardinality(lease_ids) THEN
        RAISE EXCEPTION 'fencedb.enter: needs as many tokens and lease ids as resources, and at least one; got %, % and %',
            n, coalesce(cardinality(tokens), 0), coalesce(cardinality(lease_ids), 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM fencedb.check_grant(g.resource, g.token, g.lease_id) FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id)
    WHERE NOT coalesce(octet_length(g.resource) BETWEEN 1 AND 512 AND g.token BETWEEN 1 AND 9007199254740991 AND g.lease_id IS NOT NULL, false); -- most cost no call
    grants := (SELECT jsonb_object(array_agg(g.resource), array_agg(g.token || ' ' || g.lease_id)) FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id));
    SELECT g.resource, split_part(own.given, ' ', 1) AS token INTO other
    FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id), coalesce(entered ->> g.resource, carried ->> g.resource, grants ->> g.resource) own(given)
    WHERE (entered <> '{}' OR carried IS NOT NULL OR n > (SELECT count(*) FROM jsonb_object_keys(grants)))
      AND own.given <> g.token || ' ' || g.lease_id -- which it can be only if something is given twice
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'fencedb.enter: this transaction has another grant for resource "%", with token %', other.resource, other.token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'One transaction works under one grant per resource; begin another for the other grant.';
    END IF;

    IF remaining_ms <= 0 THEN
        RAISE EXCEPTION 'the lease is over: % ms of its validity remain', remaining_ms
            USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
    END IF;
    until := least(until, start + least(remaining_ms, 2147483647)); -- where settings of Postgres end
    deadline := least(until, start + wait_ms,
        start + nullif(extract(epoch FROM current_setting('lock_timeout')::interval) * 1000, 0));

    -- One order for everybody (bytes, not collation), so that two transactions cannot wait for each
    -- other.
    IF enter AND n > 1 AND entered = '{}' THEN
        taken := fencedb.take_free(resources, tokens, lease_ids);
    END IF;
    IF enter AND taken < n THEN
        FOR u IN SELECT * FROM unnest(resources, tokens, lease_ids) g(resource, token, lease_id) ORDER BY g.resource COLLATE "C" OFFSET taken LOOP
            IF NOT entered ? u.resource OR (SELECT h.token FROM fencedb.held(u.resource) h) IS NULL THEN
                PERFORM fencedb.take(u.resource, u.token, u.lease_id, deadline);
            END IF;
        END LOOP;
    END IF;
    now := date_part('epoch', clock_timestamp()) * 1000;
    IF until < now THEN
        RAISE EXCEPTION 'the lease is over: its validity ended while its fences were entered'
            USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
    END IF;
    IF NOT enter THEN
        carried := coalesce(carried, '{}') || grants;
        signed := fencedb.sign(carried::text);
        IF signed IS NULL THEN -- a database made from a dump of the schema alone has no key
            INSERT INTO fencedb.signing_key DEFAULT VALUES ON CONFLICT DO NOTHING;
            signed := fencedb.sign(carried::text);
        END IF;
        PERFORM set_config('fencedb.carried', signed || carried::text, true);
    END IF;
    epoch := fencedb.epoch();
    left_ms := greatest(1, floor(until - now));
    xid := fencedb.admitted(floor(now - date_part('epoch', transaction_timestamp()) * 1000)::bigint, left_ms, fencedb.limit_ms(left_ms), NULL, true);
    PERFORM set_config('fencedb.grants', (entered || CASE WHEN enter THEN grants ELSE '{}' END)::text, true),
            -- What was noted so far may have another limit. In a READ ONLY transaction nothing was.
            CASE current_setting('transaction_read_only') WHEN 'off' THEN fencedb.note('', 0, 0) END;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.admit(boolean, text[], bigint[], uuid[], bigint, bigint) IS 'Inner function. What enter and carry have in common.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.enter_all(resources text[], tokens bigint[], lease_ids uuid[], remaining_ms bigint DEFAULT NULL, wait_ms bigint DEFAULT NULL, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT a.xid, a.epoch INTO xid, epoch FROM fencedb.admit(true, resources, tokens, lease_ids, remaining_ms, wait_ms) a;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.enter_all(text[], bigint[], uuid[], bigint, bigint) IS 'Enters the fences of several resources, all or none, in byte order of their names. See enter.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.enter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, wait_ms bigint DEFAULT NULL, first boolean DEFAULT false, idle boolean DEFAULT true, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    start   timestamptz := CASE WHEN first THEN transaction_timestamp() ELSE clock_timestamp() END;
    left_ms bigint := least(remaining_ms, 2147483647);
    now     timestamptz;
    locker  xid;
BEGIN
    -- The common cases, without calls: nobody stands in the way, and the fence has an older token,
    -- or this one and this lease already. admit does the rest. What take says of the order of
    -- locks, holds here too.
    IF fencedb.untouched() AND coalesce(remaining_ms > 0, true) AND token BETWEEN 1 AND 9007199254740991 AND lease_id IS NOT NULL THEN
        IF current_setting('transaction_isolation') LIKE 'read %' THEN
            UPDATE fencedb.fences f SET last_fencing_token = token, lease_id = enter.lease_id, advanced_at = greatest(clock_timestamp(), transaction_timestamp())
            FROM (SELECT o.ctid FROM fencedb.fences o WHERE o.resource = enter.resource COLLATE "C" AND o.last_fencing_token < token FOR NO KEY UPDATE SKIP LOCKED) older
            WHERE f.ctid = older.ctid
            RETURNING f.xmin, pg_sequence_last_value('fencedb.server_epoch') INTO locker, epoch;
        END IF;
        IF locker IS NULL THEN
            PERFORM FROM fencedb.fences f
            WHERE f.resource = enter.resource COLLATE "C" AND f.last_fencing_token = token AND f.lease_id = enter.lease_id
            FOR SHARE SKIP LOCKED;
            IF FOUND THEN
                SELECT f.xmax, pg_sequence_last_value('fencedb.server_epoch') INTO locker, epoch FROM fencedb.fences f WHERE f.resource = enter.resource COLLATE "C";
            END IF;
        END IF;
        -- A lock on the whole ledger, as VACUUM FULL takes it, may have been waited for; then what
        -- is left is less.
        now := clock_timestamp();
        IF epoch IS NOT NULL AND now < start + interval '20 milliseconds' THEN
            xid := fencedb.admitted((date_part('epoch', now - transaction_timestamp()) * 1000)::bigint, left_ms, fencedb.limit_ms(left_ms), concat_ws(' ', token, lease_id, resource), idle);
            IF locker <> xid::xid THEN
                PERFORM fencedb.require_outermost(locker);
            END IF;
            RETURN;
        END IF;
    END IF;
    SELECT a.xid, a.epoch INTO xid, epoch
    FROM fencedb.admit(true, ARRAY[resource], ARRAY[token], ARRAY[lease_id],
        floor(remaining_ms - extract(epoch FROM clock_timestamp() - start) * 1000)::bigint, wait_ms) a;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean) IS 'Enters the fence of resource: the first statement of every fenced transaction, before any savepoint. Refuses a stale token (FN001) at once; otherwise holds the fence until the transaction ends, waiting for open transactions of the previous holder for wait_ms, remaining_ms and lock_timeout at the most, whichever is least, then 55P03. remaining_ms, the rest of the lease''s validity in milliseconds, bounds this transaction, which otherwise has 24 days, the longest that Postgres can limit; with first it counts from the start of the transaction, in which nothing came before. Without idle there is no limit for the time in which the transaction waits for its client: for one that is sent as a whole. Above READ COMMITTED a token that has not entered before is refused with 40001. Returns what fencedb.outcome asks for after a lost COMMIT: the transaction id and the epoch of the server.';

-- enter as an expression: a function in FROM that is marked STABLE and has no settings of its own
-- is read into the query that calls it, and costs no call. It cannot be called any other way;
-- Postgres refuses the lock then.
-- +goose StatementBegin
CREATE FUNCTION fencedb.reenter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, idle boolean DEFAULT true) RETURNS SETOF text
    LANGUAGE sql STABLE ROWS 1
BEGIN ATOMIC
    SELECT '(' || fencedb.admitted(0, locked.left_ms, locked.limit_ms, concat_ws(' ', reenter.token, reenter.lease_id, reenter.resource), reenter.idle)
           || ',' || pg_sequence_last_value('fencedb.server_epoch') || ')'
    FROM (SELECT least(reenter.remaining_ms, 2147483647) AS left_ms, fencedb.limit_ms(least(reenter.remaining_ms, 2147483647)) AS limit_ms FROM fencedb.fences f
          WHERE f.resource = reenter.resource COLLATE "C" AND f.last_fencing_token = reenter.token AND f.lease_id = reenter.lease_id
            AND reenter.token > 0 AND coalesce(reenter.remaining_ms > 0, true) AND fencedb.untouched()
            AND clock_timestamp() < transaction_timestamp() + interval '20 milliseconds' -- as in enter
          FOR SHARE SKIP LOCKED) locked; -- what is selected is computed before the lock is tried, so it has a query of its own
END;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.reenter(text, bigint, uuid, bigint, boolean) IS 'enter for a token that has entered before, where nobody stands in the way: what enter returns, as text, or nothing, and then call enter. Only in FROM, and only right after BEGIN: it does not look for savepoints.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.outcome(xid xid8, epoch bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF epoch = pg_sequence_last_value('fencedb.server_epoch') THEN
        IF epoch & 16777215 = fencedb.server() THEN
            RETURN pg_xact_status(xid);
        ELSIF current_setting('transaction_read_only') = 'off' THEN -- it came with a dump; whoever enters next draws another
            PERFORM setval('fencedb.server_epoch', 1, false);
        END IF;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.outcome(xid8, bigint) IS 'What became of a transaction, by what enter returned in it: committed, aborted or in progress. NULL if that cannot be known: the server has crashed or failed over since, or is another, or the transaction is too old. Ask the server that is the primary now.';

-- What enter leaves for the triggers is local to the transaction, so it tells whether that is still
-- open.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require_entered(xid xid8 DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF fencedb.until() IS NULL OR xid IS NOT NULL AND xid <> pg_current_xact_id_if_assigned() THEN
        RAISE EXCEPTION 'the transaction that entered the fence has ended'
            USING ERRCODE = 'FN007',
            DETAIL = 'A statement since then was COMMIT, ROLLBACK, PREPARE TRANSACTION or the like.',
            HINT = 'What was written since is outside the fence; roll it back.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_entered(xid8) IS 'Raises FN007 unless this transaction has entered; if xid is given, as what enter returned, unless it is that transaction. For the last statement before COMMIT, in the same round trip, where statements in between may have ended the transaction.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.last_token(resource text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.last_fencing_token FROM fencedb.fences f WHERE f.resource = last_token.resource COLLATE "C"
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.last_token(text) IS 'The highest token that has entered for resource, as committed now; NULL when none has.';

-- A prepared transaction has no process. What it has locked is listed under a virtual transaction
-- of its own.
-- +goose StatementBegin
CREATE FUNCTION fencedb.prepared_writers() RETURNS TABLE (xid xid)
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT own.transactionid
    FROM pg_locks l JOIN pg_locks own ON own.virtualtransaction = l.virtualtransaction AND own.locktype = 'transactionid' AND own.pid IS NULL
    WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowExclusiveLock', 'RowShareLock') AND l.pid IS NULL
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.prepared_writers() IS 'The prepared transactions that hold fences, those too that they have made.';

-- Whose open transactions keep the fences of resources. The xmax of a fence names its locker, or a
-- multixact of several; a fence that is being inserted cannot be seen, so where one is missing,
-- whoever is changing the ledger is named as well.
-- +goose StatementBegin
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
    SELECT DISTINCT a.pid, a.application_name, CASE WHEN a.state = 'active' AND a.wait_event IN ('ClientRead', 'ClientWrite') THEN 'active, waits for its client' ELSE coalesce(a.state, '') END, coalesce(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000, 0)::bigint
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
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.blockers(text[]) IS 'The sessions whose open transactions hold the fences of resources now, and for how many milliseconds they have been open. state is that of pg_stat_activity, or "active, waits for its client" where the server waits for the rest of a request, or for its client to read a result. What a role may not see of other sessions is empty (see pg_read_all_stats). pid 0 is a prepared transaction, which no time limit ends. Of a resource that has no fence yet it cannot be told who is making it: then all sessions that are changing fences are named, also those of other resources.';

-- Least privilege: who may raise a fence can shut others out, so enter is granted (fencedb.allow),
-- not public.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM PUBLIC;
GRANT USAGE ON SCHEMA fencedb TO PUBLIC;
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT has_schema_privilege('public', 'fencedb', 'USAGE') THEN -- the GRANT of a stranger to the schema is only a warning
        RAISE EXCEPTION 'the schema fencedb belongs to another role, so % cannot let others use it', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'Let its owner run GRANT USAGE ON SCHEMA fencedb TO PUBLIC, or ALTER SCHEMA fencedb OWNER TO the role that migrates; then migrate again.';
    END IF;
END
$$;
-- +goose StatementEnd
GRANT EXECUTE ON FUNCTION fencedb.until(), fencedb.left_ms(), fencedb.limit_ms(bigint), fencedb.lower_limit(text, bigint), fencedb.lower_transaction_timeout(bigint) TO PUBLIC; -- by the guards and reenter
GRANT EXECUTE ON FUNCTION fencedb.require_entered(xid8) TO PUBLIC; -- whatever role is set once it has entered

-- +goose StatementBegin
CREATE FUNCTION fencedb.allow(writer regrole) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    door regprocedure;
BEGIN
    IF writer IS NULL THEN
        RAISE EXCEPTION 'fencedb.allow: needs a role, got NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    LOCK TABLE fencedb.goose_db_version IN SHARE UPDATE EXCLUSIVE MODE; -- two GRANTs at once on one function fail
    FOR door IN SELECT p.oid FROM pg_proc p
                WHERE p.pronamespace = 'fencedb'::regnamespace AND p.proname IN ('enter', 'enter_all', 'reenter', 'admitted', 'untouched', 'carry', 'carry_all', 'outcome', 'last_token', 'blockers', 'once_begin', 'once_end') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, writer);
    END LOOP;
    EXECUTE format('GRANT SELECT (resource, last_fencing_token, lease_id), UPDATE (share) ON fencedb.fences TO %s', writer); -- for reenter,
    EXECUTE format('GRANT SELECT ON fencedb.server_epoch, fencedb.goose_db_version TO %s', writer); -- and to ask whether it is migrated
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION fencedb.allow(regrole) FROM PUBLIC;
COMMENT ON FUNCTION fencedb.allow(regrole) IS 'Lets a role enter fences. The role that ran the migrations needs no grant.';

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);

-- +goose Down
DROP FUNCTION fencedb.allow(regrole);
DROP FUNCTION fencedb.blockers(text[]);
DROP FUNCTION fencedb.prepared_writers();
DROP FUNCTION fencedb.last_token(text);
DROP FUNCTION fencedb.require_entered(xid8);
DROP FUNCTION fencedb.outcome(xid8, bigint);
DROP FUNCTION fencedb.reenter(text, bigint, uuid, bigint, boolean);
DROP FUNCTION fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean);
DROP FUNCTION fencedb.enter_all(text[], bigint[], uuid[], bigint, bigint);
DROP FUNCTION fencedb.admit(boolean, text[], bigint[], uuid[], bigint, bigint);
DROP FUNCTION fencedb.admitted(bigint, bigint, bigint, text, boolean);
DROP FUNCTION fencedb.lower_transaction_timeout(bigint);
DROP FUNCTION fencedb.untouched();
DROP FUNCTION fencedb.take_free(text[], bigint[], uuid[]);
DROP FUNCTION fencedb.check_grant(text, bigint, uuid);
DROP FUNCTION fencedb.lower_limit(text, bigint);
DROP FUNCTION fencedb.limit_ms(bigint);
DROP FUNCTION fencedb.take(text, bigint, uuid, numeric);
DROP FUNCTION fencedb.await(text, boolean, numeric);
DROP FUNCTION fencedb.raise_busy(text);
DROP FUNCTION fencedb.epoch();
DROP FUNCTION fencedb.server();
DROP FUNCTION fencedb.held(text);
DROP FUNCTION fencedb.require_outermost(xid);
DROP FUNCTION fencedb.outermost(xid);
DROP FUNCTION fencedb.raise_stale(text, bigint, bigint);
DROP FUNCTION fencedb.note(text, bigint, float8);
DROP FUNCTION fencedb.grants();
DROP FUNCTION fencedb.left_ms();
DROP FUNCTION fencedb.until();
DROP FUNCTION fencedb.carried();
DROP FUNCTION fencedb.sign(text);
DROP FUNCTION fencedb.signature(bytea, text);
DROP TABLE fencedb.foreign_issuers;
DROP SEQUENCE fencedb.noted_salt, fencedb.noted_sum, fencedb.noted_check, fencedb.noted_token, fencedb.noted_until;
DROP SEQUENCE fencedb.server_epoch;
DROP TABLE fencedb.signing_key;
DROP TABLE fencedb.fences;
REVOKE USAGE ON SCHEMA fencedb FROM PUBLIC;
