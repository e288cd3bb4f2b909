-- What happened to a resource: who entered it when, and what was written under which token. Nothing
-- here is needed to hold a lease or to write behind a fence, and while it is off it costs nothing,
-- except to tables that are protected with history.

-- +goose Up

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

CREATE TABLE fencedb.history_kept (
    one    boolean     PRIMARY KEY DEFAULT true CHECK (one),
    period interval    NOT NULL,
    since  timestamptz NOT NULL
);

COMMENT ON TABLE  fencedb.history_kept IS 'For how long history is kept, and since when; no row if it is not. Changed by fencedb.keep_history.';
COMMENT ON COLUMN fencedb.history_kept.period IS 'What is older goes, some time after.';
COMMENT ON COLUMN fencedb.history_kept.since  IS 'Nothing that is younger is missing, unless it is older than period, or was written above READ COMMITTED by a transaction that had begun before.';

ALTER TABLE fencedb.history_kept ENABLE ROW LEVEL SECURITY; -- against members of pg_write_all_data
CREATE POLICY operators ON fencedb.history_kept FOR SELECT USING ((SELECT fencedb.operates()));
REVOKE ALL ON fencedb.history_kept FROM PUBLIC;

-- What is off keeps nothing. It is a trigger, and not a look at history_kept, which each statement
-- would pay for.
CREATE TRIGGER off BEFORE INSERT ON fencedb.events FOR EACH ROW WHEN (NEW.kind = 'history') EXECUTE FUNCTION fencedb.keep_events();

-- History is bounded by its age: one row in a hundred, at random, takes along two hundred that are
-- too old. Nobody waits for that. Under REPEATABLE READ a row that has gone since the snapshot
-- raises 40001, and then none is taken; under SERIALIZABLE what is read here could cost the writer
-- its commit. The newest token of late has the time of the issuer: this clock may have jumped (see
-- prune).
-- +goose StatementBegin
CREATE FUNCTION fencedb.trim_history(added float8) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    issuer timestamptz := (SELECT to_timestamp(max(e.token) / 1e6) FROM (SELECT h.token FROM fencedb.events h WHERE h.kind = 'history' ORDER BY h.at DESC LIMIT 100) e
                           WHERE e.token BETWEEN 1000000000000000 AND 9007199254740991);
BEGIN
    IF current_setting('transaction_isolation') <> 'serializable' THEN
        PERFORM fencedb.forget_events('history', coalesce((SELECT least(clock_timestamp(), issuer) - k.period FROM fencedb.history_kept k), 'infinity'), -- of a copy of the schema alone, all goes
            (200 * ceil(added / 100))::bigint);
    END IF;
EXCEPTION WHEN serialization_failure THEN -- see above
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.trim_history(float8) IS 'Inner function. Forgets some of the history that is too old.';

CREATE FUNCTION fencedb.caller() RETURNS name
    LANGUAGE sql STABLE
    RETURN coalesce(nullif(current_setting('role'), 'none'), session_user);

COMMENT ON FUNCTION fencedb.caller() IS 'Inner function. The role of the last SET ROLE, or the one that logged in: in functions of ours, current_user is their owner.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.note_entry() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was_reset boolean := NEW.reset_from IS DISTINCT FROM OLD.reset_from OR coalesce(NEW.last_fencing_token < OLD.last_fencing_token, false);
BEGIN
    IF was_reset OR NEW.last_fencing_token > 0 AND (NEW.last_fencing_token, NEW.lease_id) IS DISTINCT FROM (OLD.last_fencing_token, OLD.lease_id) THEN -- 0: see overtake
        INSERT INTO fencedb.events (kind, at, resource, event, token, lease_id, former_token, role, client)
        VALUES ('history', NEW.advanced_at, NEW.resource, CASE WHEN was_reset THEN 'reset' ELSE 'enter' END, NEW.last_fencing_token, NEW.lease_id, nullif(OLD.last_fencing_token, 0),
            fencedb.caller(), inet_client_addr());
        IF random() < 0.01 THEN
            PERFORM fencedb.trim_history(1);
        END IF;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.note_entry() IS 'Trigger of fencedb.fences while history is kept.';

-- The triggers of a table that keeps history run one function, in this schema, as its owner. It has
-- no SET, as a guard has none: every name in it has its schema. It may be on a table of somebody
-- else, so it reads columns only of the types that were protected (typed): a cast of another one
-- could call a function of theirs with our rights.
--
-- Most statements write to the one resource that the guard has judged last, and then one query over
-- their rows is all there is. Any other has its rows sorted by resource, and looks whose fences
-- this transaction has entered, or taken over. Rows without a resource, or with one that no fence
-- can have, come past a guard that observes, and are nobody's history. Each expression of PL/pgSQL
-- costs as much as a column, so there are few on the common way; NEW of a statement is NULL.
-- +goose StatementBegin
CREATE FUNCTION fencedb.write_notes(target regclass) RETURNS regprocedure
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    notes      text;
    resource   text;
    written    text; -- the resource of each row, and whether it is one that was there before
    changed    text;
    of_one     text := $note$
        INSERT INTO fencedb.events (kind, resource, event, table_schema, table_name, row_count, token)
        SELECT 'history', pg_catalog.min(w.resource), TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, %s, fencedb.token_of(pg_catalog.min(w.resource))
        FROM (%s) w
        HAVING pg_catalog.min(w.resource) OPERATOR(pg_catalog.=) pg_catalog.max(w.resource) AND fencedb.token_of(pg_catalog.min(w.resource)) IS NOT NULL;$note$;
    of_any     text := $note$
            INSERT INTO fencedb.events (kind, resource, event, table_schema, table_name, row_count, token, role, client)
            SELECT 'history', w.resource, TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, w.n, fencedb.token_of(w.resource), CASE WHEN fencedb.token_of(w.resource) IS NULL THEN fencedb.caller() END, CASE WHEN fencedb.token_of(w.resource) IS NULL THEN pg_catalog.inet_client_addr() END
            FROM (SELECT r.resource, greatest(pg_catalog.count(*) FILTER (WHERE NOT r.before), pg_catalog.count(*) FILTER (WHERE r.before)) AS n FROM (%s) r GROUP BY r.resource ORDER BY r.resource) w
            WHERE w.resource OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(w.resource) OPERATOR(pg_catalog.<=) 512;$note$;
BEGIN
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL;
    notes := (SELECT format('fencedb.%I', regexp_replace(p.proname, '^guard_', 'noted_')) FROM pg_proc p WHERE p.oid = protection.guard);
    resource := (SELECT string_agg(format('CASE WHEN ' || r.typed || ' THEN ' || r.expression || ' END', 'NEW'), ', ') FROM unnest(protection.resource) t, fencedb.read_template(target, t) r);
    -- A row that belongs to one resource twice is one row of it. One without a resource is not
    -- counted with those of another.
    resource := format(CASE WHEN cardinality(protection.resource) > 1 THEN 'pg_catalog.unnest(ARRAY(SELECT DISTINCT u COLLATE pg_catalog."C" FROM pg_catalog.unnest(ARRAY[%s]) u))' ELSE 'coalesce(%s, '''')' END || ' COLLATE pg_catalog."C" AS resource', resource);
    written := format('SELECT %s, false AS before FROM written AS NEW', resource);
    changed := format('%s UNION ALL SELECT %s, true FROM former AS NEW', written, resource);
    EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %L', notes, format($notes$
#variable_conflict use_column
DECLARE
    n pg_catalog.float8;
BEGIN
    IF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN%s
    ELSE%s
    END IF;
    IF FOUND AND pg_catalog.random() OPERATOR(pg_catalog.>) 0.01 THEN
        RETURN NEW;
    ELSIF FOUND THEN
        n := 100;
    ELSIF NOT EXISTS (SELECT FROM written, fencedb.history_kept) THEN
        RETURN NEW;
    ELSE
        IF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN%s
        ELSE%s
        END IF;
        GET DIAGNOSTICS n = ROW_COUNT;
    END IF;
    IF pg_catalog.random() OPERATOR(pg_catalog.*) 100 OPERATOR(pg_catalog.<) n THEN
        PERFORM fencedb.trim_history(n);
    END IF;
    RETURN NEW;
END
$notes$,
        format(of_one, 'pg_catalog.count(*) FILTER (WHERE w.before)', changed),
        format(of_one, 'pg_catalog.count(*)', written),
        format(of_any, changed),
        format(of_any, written)));
    -- Whoever makes the triggers needs it. Anybody else could make one on a temporary table.
    EXECUTE format('REVOKE ALL ON FUNCTION %1$s() FROM PUBLIC; GRANT EXECUTE ON FUNCTION %1$s() TO %2$s', notes, (SELECT c.relowner::regrole FROM pg_class c WHERE c.oid = target));
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', notes, jsonb_build_object('table', target::text, 'since', coalesce(protection.history_since, clock_timestamp())));
    RETURN (notes || '()')::regprocedure;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.write_notes(regclass) IS 'Inner function. Writes the function anew that keeps the history of a protected table, and returns it.';

-- Statement triggers do not come to partitions by themselves, as in protect.
-- +goose StatementBegin
CREATE FUNCTION fencedb.set_history(target regclass, wanted boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    notes   regprocedure;
    formers regprocedure[] := ARRAY(SELECT DISTINCT t.tgfoid::regprocedure FROM pg_trigger t JOIN fencedb.members(target) m ON m.member = t.tgrelid WHERE t.tgname ^@ '~fencedb_note_');
    own     record;
    far     regclass := (SELECT m.member FROM fencedb.members(target) m JOIN pg_class c ON c.oid = m.member WHERE c.relkind = 'f' LIMIT 1);
BEGIN
    IF wanted THEN
        IF far IS NOT NULL THEN -- Postgres refuses writes to it, too
            RAISE EXCEPTION 'fencedb.protect: % is a foreign table, of which no history can be kept', far
                USING ERRCODE = 'feature_not_supported', HINT = format('Protect %s with history => false, or take that part out of it.', target);
        ELSIF formers = '{}' THEN
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', target); -- whoever writes meanwhile would not be noted
        END IF;
        notes := fencedb.write_notes(target);
        FOR own IN SELECT m.member, k.* FROM fencedb.members(target) m,
                (VALUES ('insert', 'NEW TABLE AS written'), ('update', 'OLD TABLE AS former NEW TABLE AS written'), ('delete', 'OLD TABLE AS written')) k(kind, transition)
                WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_note_' || k.kind AND t.tgfoid = notes AND t.tgenabled IN ('O', 'A')) LOOP
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_note_%1$s" AFTER %1$s ON %2$s REFERENCING %3$s FOR EACH STATEMENT EXECUTE FUNCTION %4$s', own.kind, own.member, own.transition, notes);
        END LOOP;
    ELSE
        FOR own IN SELECT t.tgname, m.member FROM fencedb.members(target) m JOIN pg_trigger t ON t.tgrelid = m.member WHERE t.tgname ^@ '~fencedb_note_' LOOP
            EXECUTE format('DROP TRIGGER %I ON %s', own.tgname, own.member);
        END LOOP;
    END IF;
    PERFORM fencedb.drop_guard(f) FROM unnest(formers) f WHERE f IS DISTINCT FROM notes;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.set_history(regclass, boolean) IS 'Inner function. Puts the triggers that keep history behind every member of a protected table, or takes them away.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.keep_history(period interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted interval := nullif(period, interval '0');
    former fencedb.history_kept;
    kept   boolean; -- by the triggers, which a dump of the rows alone leaves as they were
BEGIN
    IF wanted NOT BETWEEN interval '0' AND interval '1000 years' THEN -- Postgres has no time before 4713 BC, and pruning would fail
        RAISE EXCEPTION 'fencedb.keep_history: the period must be 0 to 1000 years, got %', wanted
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT fencedb.keep_history(''30 days''). NULL switches it off.';
    END IF;
    LOCK TABLE fencedb.history_kept IN SHARE ROW EXCLUSIVE MODE; -- another session may be at it
    SELECT * INTO former FROM fencedb.history_kept;
    kept := NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'fencedb.events'::regclass AND t.tgname = 'off');
    IF wanted IS NOT DISTINCT FROM former.period AND kept = (wanted IS NOT NULL) THEN
        RETURN;
    ELSIF wanted IS NULL THEN
        DROP TRIGGER IF EXISTS note ON fencedb.fences;
        CREATE OR REPLACE TRIGGER off BEFORE INSERT ON fencedb.events FOR EACH ROW WHEN (NEW.kind = 'history') EXECUTE FUNCTION fencedb.keep_events();
        DELETE FROM fencedb.history_kept;
    ELSIF former.period IS NULL OR NOT kept THEN
        LOCK TABLE fencedb.fences IN EXCLUSIVE MODE; -- also after whoever has only shared a fence and may enter another: they would be in a deadlock with what follows
        CREATE OR REPLACE TRIGGER note AFTER INSERT OR UPDATE OF last_fencing_token ON fencedb.fences FOR EACH ROW EXECUTE FUNCTION fencedb.note_entry();
        DROP TRIGGER IF EXISTS off ON fencedb.events; -- after whoever writes to a table with history: they have locked it, also while there is none
        INSERT INTO fencedb.history_kept (period, since) VALUES (wanted, clock_timestamp()) ON CONFLICT (one) DO UPDATE SET period = EXCLUDED.period, since = EXCLUDED.since;
    ELSE
        UPDATE fencedb.history_kept k SET period = wanted, since = greatest(k.since, clock_timestamp() - former.period);
    END IF;
    PERFORM fencedb.log_event('keep_history', NULL, NULL, 'by fencedb.keep_history',
        jsonb_build_object('period', wanted::text, 'former_period', former.period::text));
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.keep_history(interval) IS 'From now on, who enters which resource is kept in fencedb.history for so long, 1000 years at most, and what is written to tables that are protected with history => true. A row has some 150 bytes; there is one for each token that enters, and for each statement and resource. NULL or 0 switches it off; what was kept stays until fencedb.prune forgets it. Recorded in fencedb.audit. Switching on and off waits for open transactions that have entered, and blocks new ones meanwhile: set lock_timeout and try again.';

REVOKE ALL ON FUNCTION fencedb.keep_history(interval), fencedb.write_notes(regclass), fencedb.note_entry(), fencedb.trim_history(float8), fencedb.caller() FROM PUBLIC;
-- Who protects a table calls these.
GRANT EXECUTE ON FUNCTION fencedb.set_history(regclass, boolean), fencedb.write_notes(regclass) TO PUBLIC;

-- Nobody has a right here because whoever migrates gives it to them on everything that they make.
-- +goose StatementBegin
DO $$
DECLARE
    grantee regrole;
BEGIN
    FOR grantee IN SELECT DISTINCT a.grantee FROM pg_default_acl d, aclexplode(d.defaclacl) a
                   WHERE d.defaclrole = current_user::regrole AND d.defaclnamespace = 0 AND a.grantee NOT IN (0, d.defaclrole) LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA fencedb FROM %1$s; REVOKE ALL ON ALL TABLES IN SCHEMA fencedb FROM %1$s;
            REVOKE ALL ON ALL SEQUENCES IN SCHEMA fencedb FROM %1$s; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM %1$s', grantee);
    END LOOP;
END
$$;
-- +goose StatementEnd

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    tables text := (SELECT string_agg(DISTINCT t.tgrelid::regclass::text, ', ') FROM pg_trigger t WHERE t.tgname ^@ '~fencedb_note_');
BEGIN
    IF tables IS NOT NULL THEN
        RAISE EXCEPTION 'keep history: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.unprotect for each, then migrate down.';
    END IF;
END
$$;
-- +goose StatementEnd
DROP TRIGGER IF EXISTS note ON fencedb.fences;
DROP FUNCTION fencedb.keep_history(interval), fencedb.set_history(regclass, boolean), fencedb.write_notes(regclass), fencedb.note_entry(), fencedb.trim_history(float8), fencedb.caller();
DROP TRIGGER IF EXISTS off ON fencedb.events;
DROP TABLE fencedb.history_kept;
