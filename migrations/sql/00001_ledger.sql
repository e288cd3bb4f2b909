-- The ledger of fences and the one way to pass it: fencedb.enter.
--
-- Errors raised here and in later migrations (stable, for clients in any language):
--   FN001  the token is stale: a newer one, or the same one under another lease, is stored for the resource
--   FN002  no token: the transaction wrote to a protected table without having entered a fence
--   FN003  wrong resource: the transaction entered, but not the fence of this row's resource
--   FN004  lease over: the remaining validity given to enter has passed
-- FN001 and FN003 carry their values as a JSON object in DETAIL.

-- +goose Up

-- Ordinary and logged on purpose: a fence that a crash forgets is no fence.
-- Half of each page is left free, so that advancing a fence stays a heap-only update.
CREATE TABLE fencedb.fences (
    resource           text COLLATE "C" PRIMARY KEY CHECK (resource <> '' AND octet_length(resource) <= 512),
    last_fencing_token bigint      NOT NULL CHECK (last_fencing_token > 0),
    lease_id           uuid        NOT NULL,
    advanced_at        timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE  fencedb.fences IS 'The ledger: the highest fencing token that has entered, per resource. It outlives the rows it protects; deleting from it by hand lets stale holders write again.';
COMMENT ON COLUMN fencedb.fences.resource           IS 'type:id, as the lease names it; compared byte by byte.';
COMMENT ON COLUMN fencedb.fences.last_fencing_token IS 'No transaction with a lower token commits for this resource again.';
COMMENT ON COLUMN fencedb.fences.lease_id           IS 'The lease that carries this token. The same token under another lease is stale: issuers that lose their data can issue a number twice.';
COMMENT ON COLUMN fencedb.fences.advanced_at        IS 'When this token entered first, by the clock of this server.';

CREATE TABLE fencedb.signing_key (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    key       bytea   NOT NULL CHECK (octet_length(key) >= 32)
);

COMMENT ON TABLE fencedb.signing_key IS 'Signs what enter leaves for the triggers, so that set_config by hand opens nothing. Read only by the functions of this schema.';

INSERT INTO fencedb.signing_key (key)
VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

REVOKE ALL ON fencedb.fences, fencedb.signing_key FROM PUBLIC;

-- The signature covers the transaction id: a setting copied from another transaction does not verify.
-- The key is hashed twice, inside and outside, so that a signed text cannot be extended.
-- +goose StatementBegin
CREATE FUNCTION fencedb.signature(body text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT encode(sha256(k.key || sha256(k.key || convert_to(pg_current_xact_id()::text || ' ' || body, 'UTF8'))), 'hex')
    FROM fencedb.signing_key k
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.signature(text) IS 'Signature of body for this transaction. Not for callers: whoever can sign can forge.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.entered() RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- A local setting of an earlier transaction reads as '', not as NULL.
    signed text := nullif(current_setting('fencedb.entered', true), '');
BEGIN
    IF signed IS NULL OR left(signed, 64) <> fencedb.signature(substr(signed, 65)) THEN
        RETURN NULL;
    END IF;
    RETURN substr(signed, 65)::jsonb;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.entered() IS 'What this transaction has entered: {"tokens": {resource: token}, "until": milliseconds since 1970 or null}. NULL when it entered nothing, or when the setting was not written by enter.';

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

COMMENT ON FUNCTION fencedb.raise_stale(text, bigint, bigint) IS 'Raises FN001.';

-- Only a lock owned by the transaction itself lasts until its end. One taken after a savepoint is given
-- back by ROLLBACK TO, and with it the fence, while the transaction goes on and commits.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require_outermost(locker xid) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF locker <> pg_current_xact_id()::xid THEN
        RAISE EXCEPTION USING
            ERRCODE = 'active_sql_transaction',
            MESSAGE = 'fencedb.enter must come before any savepoint',
            DETAIL  = 'ROLLBACK TO SAVEPOINT would give the fence back and leave the transaction open.',
            HINT    = 'Enter first in the outermost transaction (in PL/pgSQL: outside any block with EXCEPTION), then open savepoints.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_outermost(xid) IS 'Raises unless locker, the transaction that owns a fence''s lock, is the outermost one.';

-- take holds the fence of one resource until the transaction ends.
--
-- Three lines prove why the newcomer locks exclusively and everyone else shares:
--     A (41) holds the row FOR SHARE and reads. B (42) updates the row, so it waits for A to end.
--     A commits. B goes on, and its next statement reads what A wrote. A new transaction of A reads 42: stale.
--     Two transactions of A share the row and run side by side.
-- A first transaction locks exclusively straight away: two that shared first and updated then would deadlock.
-- Each round reads anew, so a fence that moved while we waited is judged by its new state. Under REPEATABLE READ
-- and SERIALIZABLE the lock itself raises 40001 instead.
-- +goose StatementBegin
CREATE FUNCTION fencedb.take(resource text, token bigint, lease_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stored fencedb.fences;
    locker xid;
BEGIN
    LOOP
        SELECT * INTO stored FROM fencedb.fences f WHERE f.resource = take.resource;

        IF NOT FOUND THEN
            INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id)
            VALUES (take.resource, take.token, take.lease_id)
            ON CONFLICT DO NOTHING
            RETURNING xmin INTO locker;
        ELSIF stored.last_fencing_token > token
           OR stored.last_fencing_token = token AND stored.lease_id <> take.lease_id THEN
            PERFORM fencedb.raise_stale(take.resource, token, stored.last_fencing_token);
        ELSIF stored.last_fencing_token = token THEN
            PERFORM FROM fencedb.fences f
            WHERE f.resource = take.resource AND f.last_fencing_token = token AND f.lease_id = take.lease_id
            FOR SHARE;
            IF FOUND THEN
                PERFORM fencedb.require_outermost(fencedb.share_locker(take.resource));
                RETURN;
            END IF;
        ELSE
            UPDATE fencedb.fences f
            SET last_fencing_token = token, lease_id = take.lease_id, advanced_at = clock_timestamp()
            WHERE f.resource = take.resource AND token > f.last_fencing_token
            RETURNING f.xmin INTO locker;
        END IF;

        IF FOUND THEN
            PERFORM fencedb.require_outermost(locker);
            RETURN;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.take(text, bigint, uuid) IS 'Takes one fence for this transaction or raises FN001. Not for callers: enter checks, bounds and signs around it.';

-- Ask only for a row that this transaction has just locked FOR SHARE. Then its xmax is our id, or the id of a subtransaction
-- of ours, or, where several share, a multixact that lists them. The second and the third are both bare numbers: to
-- look up a subtransaction as a multixact fails, or finds one without us.
-- +goose StatementBegin
CREATE FUNCTION fencedb.share_locker(resource text) RETURNS xid
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    me     xid := pg_current_xact_id()::xid;
    locker xid;
BEGIN
    SELECT CASE WHEN f.xmin = me THEN f.xmin ELSE f.xmax END INTO locker
    FROM fencedb.fences f WHERE f.resource = share_locker.resource;

    IF locker <> me AND EXISTS (SELECT FROM pg_get_multixact_members(locker) m WHERE m.xid = me) THEN
        RETURN me;
    END IF;
    RETURN locker;
EXCEPTION WHEN internal_error OR invalid_parameter_value THEN
    RETURN locker;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.share_locker(text) IS 'The transaction that owns our share lock on a fence: ours, or something else when the lock was taken after a savepoint.';

-- No transaction may outlive its lease, and the server itself ends it. What the application or the role set tighter stays.
-- transaction_timeout (17 and newer) counts from now only when it is switched on anew, hence the 0 before it.
-- +goose StatementBegin
CREATE FUNCTION fencedb.bound(remaining_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    limits  text[] := ARRAY['lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout'];
    name    text;
    current numeric;
BEGIN
    IF current_setting('server_version_num')::int >= 170000 THEN
        limits := limits || 'transaction_timeout'::text;
    END IF;
    FOREACH name IN ARRAY limits LOOP
        current := extract(epoch FROM current_setting(name)::interval) * 1000;
        CONTINUE WHEN current > 0 AND current <= remaining_ms;
        IF name = 'transaction_timeout' THEN
            PERFORM set_config(name, '0', true);
        END IF;
        PERFORM set_config(name, least(remaining_ms, 2147483647)::text, true);
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.bound(bigint) IS 'Lowers the time limits of this transaction to remaining_ms milliseconds; they go back when it ends.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.check_grant(resource text, token bigint, lease_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    already bigint := (fencedb.entered() -> 'tokens' ->> resource)::bigint;
BEGIN
    IF resource IS NULL OR resource = '' OR octet_length(resource) > 512 THEN
        RAISE EXCEPTION 'fencedb.enter: the resource must be 1 to 512 bytes, got %', coalesce(octet_length(resource)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF token IS NULL OR token <= 0 THEN
        RAISE EXCEPTION 'fencedb.enter: the token for resource "%" must be positive, got %', resource, coalesce(token::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF lease_id IS NULL THEN
        RAISE EXCEPTION 'fencedb.enter: the lease id for resource "%" must not be NULL', resource
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF already <> token THEN
        RAISE EXCEPTION 'fencedb.enter: this transaction already entered resource "%" with token %, not %', resource, already, token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'One transaction works under one grant per resource; begin another for the new grant.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_grant(text, bigint, uuid) IS 'Raises 22023 for a grant that no issuer can have issued.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.enter(resources text[], tokens bigint[], lease_ids uuid[], remaining_ms bigint DEFAULT NULL) RETURNS xid8
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before  jsonb := fencedb.entered();
    entered jsonb := coalesce(before -> 'tokens', '{}');
    until   numeric := (before ->> 'until')::numeric;
    body    text;
    g       record;
BEGIN
    IF coalesce(cardinality(resources), 0) = 0
       OR cardinality(resources) IS DISTINCT FROM cardinality(tokens)
       OR cardinality(resources) IS DISTINCT FROM cardinality(lease_ids) THEN
        RAISE EXCEPTION 'fencedb.enter: needs as many tokens and lease ids as resources, and at least one; got %, % and %',
            coalesce(cardinality(resources), 0), coalesce(cardinality(tokens), 0), coalesce(cardinality(lease_ids), 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR g IN SELECT * FROM unnest(resources, tokens, lease_ids) AS u(resource, token, lease_id) LOOP
        PERFORM fencedb.check_grant(g.resource, g.token, g.lease_id);
    END LOOP;

    IF remaining_ms IS NOT NULL THEN
        IF remaining_ms <= 0 THEN
            RAISE EXCEPTION 'the lease is over: % ms of its validity remain', remaining_ms
                USING ERRCODE = 'FN004', HINT = 'Nothing was written. Acquire the lease again.';
        END IF;
        PERFORM fencedb.bound(remaining_ms);
        until := least(until, floor(extract(epoch FROM clock_timestamp()) * 1000) + remaining_ms);
    END IF;

    -- One order for everybody (bytes, not collation), so that two transactions cannot wait for each other.
    FOR g IN SELECT DISTINCT u.resource COLLATE "C" AS resource, u.token, u.lease_id
             FROM unnest(resources, tokens, lease_ids) AS u(resource, token, lease_id)
             ORDER BY resource LOOP
        CONTINUE WHEN before -> 'tokens' ? g.resource;
        IF entered ? g.resource THEN
            RAISE EXCEPTION 'fencedb.enter: two different grants for resource "%"', g.resource USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM fencedb.take(g.resource, g.token, g.lease_id);
        entered := entered || jsonb_build_object(g.resource, g.token);
    END LOOP;

    body := jsonb_build_object('tokens', entered, 'until', until)::text;
    PERFORM set_config('fencedb.entered', fencedb.signature(body) || body, true);
    RETURN pg_current_xact_id();
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.enter(text[], bigint[], uuid[], bigint) IS 'Enters the fences of several resources, all or none, in byte order of their names. See the form for one resource.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.enter(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL) RETURNS xid8
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT fencedb.enter(ARRAY[resource], ARRAY[token], ARRAY[lease_id], remaining_ms)
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.enter(text, bigint, uuid, bigint) IS 'Enters the fence of resource: the first statement of every fenced transaction, before any savepoint. Refuses a stale token (FN001) at once; otherwise holds the fence until the transaction ends, waiting for open transactions of the previous holder. remaining_ms, the rest of the lease''s validity in milliseconds, bounds this transaction. Returns the transaction id, to ask pg_xact_status after a lost COMMIT.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.last_token(resource text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.last_fencing_token FROM fencedb.fences f WHERE f.resource = last_token.resource
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.last_token(text) IS 'The highest token that has entered for resource, as committed now; NULL when none has.';

-- Least privilege: who may raise a fence can shut others out, so enter is granted, not public.
-- What the triggers of 00002 call stays public: a writer without the grant is to be told FN002, not "permission denied".
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM PUBLIC;
GRANT USAGE ON SCHEMA fencedb TO PUBLIC;
GRANT EXECUTE ON FUNCTION fencedb.entered() TO PUBLIC;

-- +goose StatementBegin
CREATE FUNCTION fencedb.allow(writer regrole) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT EXECUTE ON FUNCTION fencedb.enter(text, bigint, uuid, bigint), fencedb.enter(text[], bigint[], uuid[], bigint), fencedb.last_token(text) TO %s', writer);
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION fencedb.allow(regrole) FROM PUBLIC;
COMMENT ON FUNCTION fencedb.allow(regrole) IS 'Lets a role enter fences. The role that ran the migrations needs no grant.';

-- +goose Down
DROP FUNCTION fencedb.allow(regrole);
DROP FUNCTION fencedb.last_token(text);
DROP FUNCTION fencedb.enter(text, bigint, uuid, bigint);
DROP FUNCTION fencedb.enter(text[], bigint[], uuid[], bigint);
DROP FUNCTION fencedb.check_grant(text, bigint, uuid);
DROP FUNCTION fencedb.bound(bigint);
DROP FUNCTION fencedb.share_locker(text);
DROP FUNCTION fencedb.take(text, bigint, uuid);
DROP FUNCTION fencedb.require_outermost(xid);
DROP FUNCTION fencedb.raise_stale(text, bigint, bigint);
DROP FUNCTION fencedb.entered();
DROP FUNCTION fencedb.signature(text);
DROP TABLE fencedb.signing_key;
DROP TABLE fencedb.fences;
REVOKE USAGE ON SCHEMA fencedb FROM PUBLIC;
