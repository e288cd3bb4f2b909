-- A record of what changes who may write, for those who ask later. It comes before protect, which
-- adds to it.

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

CREATE TABLE fencedb.audit (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    role     name        NOT NULL DEFAULT session_user,
    operator text        NOT NULL DEFAULT format('%s@%s', session_user, coalesce(host(inet_client_addr()), 'local')) CHECK (operator <> ''),
    event    text        NOT NULL CHECK (event <> ''),
    resource text COLLATE "C",
    reason   text        NOT NULL CHECK (reason <> ''),
    details  jsonb       NOT NULL DEFAULT '{}'
);

-- It has lease ids, as the ledger does.
ALTER TABLE fencedb.audit ENABLE ROW LEVEL SECURITY;

ALTER TABLE fencedb.audit ALTER COLUMN details SET STATISTICS 0; -- which would show lease ids to who reads all data

CREATE INDEX audit_resource ON fencedb.audit (resource, at);
CREATE INDEX audit_at ON fencedb.audit (at);
CREATE INDEX audit_protection ON fencedb.audit (id) WHERE event IN ('protect', 'observe', 'unprotect');

COMMENT ON TABLE  fencedb.audit IS 'What was done by hand: tables protected or not any more, revocations, forgotten fences. Rows are added by the functions of this schema and cannot be changed; fencedb.forget_audit deletes old ones, and nothing else does.';
COMMENT ON COLUMN fencedb.audit.at       IS 'By the clock of this server.';
COMMENT ON COLUMN fencedb.audit.role     IS 'The role that logged in, whatever SET ROLE said later.';
COMMENT ON COLUMN fencedb.audit.operator IS 'Who it was, as the program that recorded it says: user@host. As this server knows it, of what functions and tables of this schema record themselves.';
COMMENT ON COLUMN fencedb.audit.event    IS 'protect, observe, unprotect, take_over_as, end_take_over, declare_foreign, revoke, reset, keep_history, prune, prune_audit, or what operators record besides.';
COMMENT ON COLUMN fencedb.audit.resource IS 'NULL where it concerns many.';
COMMENT ON COLUMN fencedb.audit.reason   IS 'In the operator''s words.';
COMMENT ON COLUMN fencedb.audit.details  IS 'revoke: token and lease_id of the revocation, former_token, former_lease_id and former_holder of the holder (or null; former_holder is its label, or empty), sealed: whether its fence was entered. reset: former_token and former_lease_id of the fence (or null), token and lease_id that it has instead, row_token of a row that was named (or null). keep_history: period and former_period (null: not kept). declare_foreign: resource_type, a row of foreign_issuers. take_over_as and end_take_over: table, its oid, role, and until. prune: fences, the number that were forgotten, and older_than. prune_audit: rows, likewise, and older_than. protect, observe (guarded, and nothing is refused) and unprotect: table, its oid, and the templates of its resources; recorded when a call of fencedb.protect, observe, enforce or unprotect changes that, or finds that it was changed by hand; reason says which.';

-- The owner could drop the trigger; nobody gets past it by mistake. fencedb.forget_audit runs as
-- the owner and says what it does.
CREATE FUNCTION fencedb.keep_audit() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('fencedb.forgets_audit', true) = 'on'
       AND current_user = (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION '% on fencedb.audit: what was recorded stays', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'Record a correction instead, with fencedb.record. fencedb.forget_audit forgets what is old.';
END
$$;

COMMENT ON FUNCTION fencedb.keep_audit IS 'Trigger of fencedb.audit.';

CREATE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON fencedb.audit FOR EACH STATEMENT EXECUTE FUNCTION fencedb.keep_audit();

CREATE FUNCTION fencedb.record(event text, resource text, operator text, reason text, details jsonb DEFAULT '{}') RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    added bigint;
BEGIN
    IF event IN ('protect', 'observe', 'unprotect', 'take_over_as', 'end_take_over', 'prune_audit', 'reset', 'keep_history', 'declare_foreign') THEN
        RAISE EXCEPTION 'fencedb.record: % is recorded by the function that does it', event
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Only that function may record it, so that the audit says what happened.';
    END IF;
    INSERT INTO fencedb.audit AS a (event, resource, operator, reason, details)
    VALUES (event, resource, operator, reason, details)
    RETURNING a.id INTO added;
    RETURN added;
END
$$;

COMMENT ON FUNCTION fencedb.record IS 'Adds a row to fencedb.audit, under the name of the role that logged in, and returns its id. It stays only if the transaction commits. Refuses what functions of this schema record themselves.';

-- Who admits higher tokens gives up the bound on one that is entered by mistake.
CREATE FUNCTION fencedb.note_foreign() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO fencedb.audit (event, reason, details) VALUES ('declare_foreign', 'INSERT INTO fencedb.foreign_issuers', jsonb_build_object('resource_type', NEW.resource_type));
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION fencedb.note_foreign IS 'Trigger of fencedb.foreign_issuers.';

CREATE TRIGGER note AFTER INSERT ON fencedb.foreign_issuers FOR EACH ROW EXECUTE FUNCTION fencedb.note_foreign();

REVOKE ALL ON fencedb.audit FROM PUBLIC;
REVOKE ALL ON FUNCTION fencedb.keep_audit, fencedb.record, fencedb.note_foreign FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER note ON fencedb.foreign_issuers;
DROP TABLE fencedb.audit;
DROP FUNCTION fencedb.record, fencedb.keep_audit, fencedb.note_foreign;
