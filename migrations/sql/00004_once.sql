-- Durable idempotency keys: a key is done in the transaction that has the effect, or not at all.
--   FN005  the key was used before, for another request, or by another role and without a request

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

CREATE TABLE fencedb.once (
    key         text COLLATE "C" PRIMARY KEY CHECK (key <> '' AND octet_length(key) <= 512),
    fingerprint bytea,
    role        name        NOT NULL,
    result      bytea CHECK (octet_length(result) <= 1048576),
    done        boolean     NOT NULL DEFAULT false,
    claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX once_claimed_at ON fencedb.once (claimed_at);

COMMENT ON TABLE  fencedb.once IS 'Idempotency keys that are done, with their results. Forgetting a key lets its request run again; see fencedb.once_forget.';
COMMENT ON COLUMN fencedb.once.key         IS 'Chosen by the client of the application; 1 to 512 bytes.';
COMMENT ON COLUMN fencedb.once.fingerprint IS 'SHA-256 of the request, to refuse the same key with another one; NULL if the application does not tell.';
COMMENT ON COLUMN fencedb.once.role        IS 'Who claimed it, after SET ROLE if there was one. Without a fingerprint the key is this role''s alone.';
COMMENT ON COLUMN fencedb.once.result      IS 'What the first run answered, replayed to the others; up to 1 MiB.';
COMMENT ON COLUMN fencedb.once.done        IS 'False where a transaction claimed the key and committed without a result: the next one to come runs again.';
COMMENT ON COLUMN fencedb.once.claimed_at  IS 'By the clock of this server; keys are forgotten by age.';

REVOKE ALL ON fencedb.once FROM PUBLIC;

-- A second transaction with the key waits in the INSERT for the first one to end. If that commits,
-- the next statement sees its result; if it rolls back, the second one is now the first. A result
-- goes to whoever knows the request. Where no request was told, it goes to the role that stored it:
-- a key alone can be guessed. The setting role is what SET ROLE last said, and is not changed by
-- calling this function, as current_user is.
CREATE FUNCTION fencedb.once_begin(key text, fingerprint bytea, OUT first boolean, OUT result bytea)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    caller name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    claim  fencedb.once;
BEGIN
    IF once_begin.key IS NULL OR once_begin.key = '' OR octet_length(once_begin.key) > 512 THEN
        RAISE EXCEPTION 'fencedb.once_begin: the key must be 1 to 512 bytes, got %', coalesce(octet_length(once_begin.key)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        INSERT INTO fencedb.once (key, fingerprint, role) VALUES (once_begin.key, once_begin.fingerprint, caller) ON CONFLICT DO NOTHING;
        first := FOUND;
        EXIT WHEN first;
        SELECT * INTO claim FROM fencedb.once o WHERE o.key = once_begin.key COLLATE "C" FOR UPDATE;
        EXIT WHEN FOUND; -- otherwise it was forgotten between the two statements
    END LOOP;
    IF claim.done AND (claim.fingerprint IS DISTINCT FROM once_begin.fingerprint OR claim.fingerprint IS NULL AND claim.role <> caller COLLATE "C") THEN
        RAISE EXCEPTION 'the idempotency key "%" was used before, for another request, or by another role and without a request', once_begin.key
            USING ERRCODE = 'FN005', HINT = 'Nothing was written. A new request needs a new key; a request sent again needs the same fingerprint.';
    END IF;
    IF NOT claim.done THEN
        first := true;
        UPDATE fencedb.once o SET fingerprint = once_begin.fingerprint, role = caller, claimed_at = clock_timestamp() WHERE o.key = once_begin.key COLLATE "C";
    END IF;
    result := claim.result;
END
$$;

COMMENT ON FUNCTION fencedb.once_begin IS 'Claims an idempotency key in this transaction. first: do the work, then once_end in the same transaction. Otherwise result is what the first run answered: replayed to the same fingerprint; without one, to the role that stored it; else FN005. Waits for a transaction that has claimed the key.';

CREATE FUNCTION fencedb.once_end(key text, result bytea) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    claimant name;
BEGIN
    UPDATE fencedb.once o SET result = once_end.result, done = true WHERE o.key = once_end.key COLLATE "C" AND NOT o.done RETURNING o.role INTO claimant;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM fencedb.once o WHERE o.key = once_end.key COLLATE "C") THEN
        RAISE EXCEPTION 'fencedb.once_end: the idempotency key "%" is not claimed', once_end.key
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing was written. Call fencedb.once_begin first, in the same transaction; ROLLBACK TO a savepoint before that takes it back.';
    ELSIF claimant <> coalesce(nullif(current_setting('role'), 'none'), session_user) COLLATE "C" THEN
        RAISE EXCEPTION 'fencedb.once_end: the idempotency key "%" was claimed by role %', once_end.key, claimant
            USING ERRCODE = 'insufficient_privilege', HINT = 'Nothing was written. Call fencedb.once_begin first, under the same role.';
    END IF;
END
$$;

COMMENT ON FUNCTION fencedb.once_end IS 'Stores the result of a key that this transaction has claimed. Does nothing if it has one; raises if nobody has claimed it.';

CREATE FUNCTION fencedb.once_forget(older_than interval, at_most int DEFAULT 10000) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    WITH forgotten AS (
        DELETE FROM fencedb.once o
        WHERE o.key IN (SELECT p.key FROM fencedb.once p WHERE p.claimed_at < clock_timestamp() - older_than
                        ORDER BY p.claimed_at LIMIT at_most FOR UPDATE SKIP LOCKED)
        RETURNING 1
    )
    SELECT count(*) FROM forgotten
$$;

COMMENT ON FUNCTION fencedb.once_forget IS 'Forgets keys claimed longer ago than older_than, at_most at a time; returns how many. Call again until it returns 0. A forgotten key runs again if its request comes again.';

REVOKE ALL ON FUNCTION fencedb.once_begin, fencedb.once_end, fencedb.once_forget FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION fencedb.once_begin, fencedb.once_end, fencedb.once_forget;
DROP TABLE fencedb.once;
