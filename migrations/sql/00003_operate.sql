-- What operators do by hand (prune, reset_fence), and the history of resources. Holding a lease and
-- writing behind a fence need nothing of this file.

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- prune deletes kept data by its age, in batches; operators have no other way to delete it. The
-- minimum ages (floor) protect against slips, and against somebody who wants to remove traces.
--
-- A clock can jump, and a server that trusted its own clock alone would then delete a fence that is
-- minutes old. So prune deletes only rows that are old by two clocks: this server's, and the
-- issuer's, whose time each token carries. The caller passes the issuer's present time; otherwise
-- the newest token stands for it. If the two clocks are more than a day apart, prune refuses,
-- because nobody knows which of them is wrong. (A role that takes over makes tokens by the clock of
-- this server. Where there is such a role, the caller should pass the issuer's time.)
--
-- A fence may go when no token below it can still be in use. This server does not see leases, so
-- the caller must know that no lease lasts longer than older_than, and that the resources are not
-- held now. prune keeps a fence that has advanced since the caller looked, because it is younger; a
-- fence that a transaction holds; and a fence that was set back, because it says which stamps are
-- ignored.
CREATE FUNCTION fencedb.prune(what text, older_than interval, operator text, reason text, issuer_time timestamptz DEFAULT NULL, resources text[] DEFAULT NULL, at_most bigint DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    floor     interval    := CASE what WHEN 'fences' THEN interval '1 day' WHEN 'audit' THEN interval '90 days' WHEN 'once' THEN interval '1 hour' WHEN 'history' THEN interval '0' WHEN 'observed' THEN interval '0' END;
    server    timestamptz := clock_timestamp();
    issuer    timestamptz := coalesce(issuer_time, (SELECT to_timestamp(max(f.last_fencing_token) / 1e6) FROM fencedb.fences f
                  WHERE f.last_fencing_token BETWEEN 1000000000000000 AND 9007199254740991 AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(f.resource, ':', 1))));
    cutoff    timestamptz;
    forgotten bigint;
BEGIN
    IF floor IS NULL THEN
        RAISE EXCEPTION 'fencedb.prune: forgets fences, once, audit, history or observed, got %', quote_nullable(what) USING ERRCODE = 'invalid_parameter_value';
    ELSIF coalesce(localtimestamp - older_than > localtimestamp - floor, true) THEN -- subtracted from a time, because Postgres compares a month as 30 days
        RAISE EXCEPTION 'fencedb.prune: of %, what is younger than % may still be needed, got %', what, floor, quote_nullable(older_than)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF coalesce(operator, '') = '' OR coalesce(reason, '') = '' THEN
        RAISE EXCEPTION 'fencedb.prune: needs an operator and a reason, got % and %', quote_nullable(operator), quote_nullable(reason) USING ERRCODE = 'invalid_parameter_value';
    ELSIF (what = 'fences') <> (resources IS NOT NULL) THEN
        RAISE EXCEPTION 'fencedb.prune: takes resources for fences, where they are required, and for nothing else'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'This server does not know which resources are held. fencedb prune asks Redis.';
    ELSIF issuer IS NULL THEN
        RAISE EXCEPTION 'fencedb.prune: needs the time of the issuer''s clock, and the ledger has no token that shows it'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing was forgotten. Pass issuer_time, what the clock of the issuer says now: in Redis, TIME.';
    ELSIF abs(extract(epoch FROM server - issuer)) > 86400 THEN
        RAISE EXCEPTION 'fencedb.prune: the clock of this server says %, and that of the issuer %', server, concat(issuer, CASE WHEN issuer_time IS NULL THEN ' in its newest token' END)
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing was forgotten. Set the clock that is wrong.' || CASE WHEN issuer_time IS NULL AND issuer < server THEN ' If both are right and no lease was acquired since then, pass issuer_time, what the clock of the issuer says now: in Redis, TIME.' ELSE '' END;
    END IF;
    cutoff := least(server, issuer) - older_than;
    IF what = 'fences' THEN
        DELETE FROM fencedb.fences f WHERE f.ctid = ANY (ARRAY(
            SELECT o.ctid FROM fencedb.fences o
            WHERE o.resource = ANY (resources COLLATE "C") AND o.advanced_at < cutoff AND o.reset_from IS NULL
              AND (o.last_fencing_token < extract(epoch FROM cutoff) * 1000000 OR EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(o.resource, ':', 1)))
            LIMIT at_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS forgotten = ROW_COUNT;
    ELSIF what = 'once' THEN
        DELETE FROM fencedb.once k WHERE k.key = ANY (ARRAY(SELECT o.key FROM fencedb.once o WHERE o.claimed_at < cutoff ORDER BY o.claimed_at LIMIT at_most FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS forgotten = ROW_COUNT;
    ELSE
        forgotten := fencedb.forget_events(what, cutoff, at_most);
        PERFORM setval('fencedb.observations', greatest(1, (SELECT count(*) FROM fencedb.events e WHERE e.kind = 'observed'))) WHERE what = 'observed' AND forgotten < at_most; -- counted once, after the last batch
    END IF;
    IF forgotten > 0 THEN
        PERFORM fencedb.log_event('prune', NULL, operator, reason, jsonb_build_object('what', what, 'rows', forgotten, 'older_than', older_than::text));
    END IF;
    RETURN forgotten;
END
$$;

COMMENT ON FUNCTION fencedb.prune IS 'Forgets what is older than older_than, at most at_most rows at a time; records that, and returns how many. Call it until it returns 0. what is fences, once, audit, history or observed. fences: at least a day old, and only those of resources; any token is then accepted for these again, so older_than must exceed the longest validity of a lease, and no lease may be held on them. once: at least an hour old; if the request of a forgotten key comes again, it runs again. audit: at least 90 days old; the record of who protected a table stays while it is protected. Forgets nothing that is younger by the clock of this server or by that of the issuer, which is issuer_time or else the newest token of the ledger. Refuses clocks that are more than a day apart.';

REVOKE ALL ON FUNCTION fencedb.prune FROM PUBLIC;

-- A token that was entered by mistake shuts out every later holder for good. reset_fence sets the
-- fence back, and records it in the audit.
--
-- Rows may have stamps above the new token, in tables that the caller may not write to. reset_fence
-- does not search for them. The ledger remembers up to which token stamps are ignored (reset_from):
-- a transaction that has entered is current, and its write replaces the stamp.
--
-- The fence gets a lease id that nobody has. So nobody can enter with the token to which it is set:
-- the next holder needs a higher one.
CREATE FUNCTION fencedb.reset_fence(resource text, token bigint, operator text, reason text, wait_ms bigint DEFAULT 10000,
                                    OUT former_token bigint, OUT former_lease_id uuid, OUT lease_id uuid, OUT audit_id bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    noted    text;
    deadline numeric := extract(epoch FROM clock_timestamp()) * 1000 + least(greatest(wait_ms, 0), 2147483647);
BEGIN
    IF reset_fence.token IS NULL OR reset_fence.token < 0 THEN
        RAISE EXCEPTION 'fencedb.reset_fence: the token must be 0 or more, got %', coalesce(reset_fence.token::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF reset_fence.resource IS NULL OR coalesce(operator, '') = '' OR coalesce(reason, '') = '' THEN
        RAISE EXCEPTION 'fencedb.reset_fence: needs a resource, an operator and a reason, got %, % and %', quote_nullable(reset_fence.resource), quote_nullable(operator), quote_nullable(reason)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        SELECT f.last_fencing_token, f.lease_id INTO former_token, former_lease_id
        FROM fencedb.fences f WHERE f.resource = reset_fence.resource COLLATE "C" FOR NO KEY UPDATE SKIP LOCKED;
        EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = reset_fence.resource COLLATE "C");
        PERFORM fencedb.await(reset_fence.resource, false, deadline);
    END LOOP;
    IF former_token IS NULL THEN
        RAISE EXCEPTION 'fencedb.reset_fence: resource "%" has no fence', reset_fence.resource
            USING ERRCODE = 'invalid_parameter_value', HINT = 'If a row refuses tokens although there is no fence, because the ledger was emptied, enter with a token that is not below the stamp of the row: that creates the fence.';
    ELSIF former_token <= reset_fence.token THEN
        RAISE EXCEPTION 'fencedb.reset_fence: the fence of resource "%" is at token %, which is not above %', reset_fence.resource, former_token, reset_fence.token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A reset only sets back. Entering a grant sets a fence forward.';
    END IF;

    UPDATE fencedb.fences f
    SET last_fencing_token = reset_fence.token, lease_id = gen_random_uuid(), advanced_at = clock_timestamp(), reset_from = greatest(f.reset_from, former_token)
    WHERE f.resource = reset_fence.resource COLLATE "C"
    RETURNING f.lease_id INTO lease_id;
    noted := CASE WHEN fencedb.entries() IS NOT NULL THEN set_config('fencedb.entered', replace(fencedb.entries(), fencedb.entry(reset_fence.resource, former_token), ''), true) END; -- removes the entry of this transaction, if it has one
    audit_id := fencedb.log_event('reset', reset_fence.resource, operator, reason, jsonb_build_object('former_token', former_token, 'former_lease_id', former_lease_id,
        'token', reset_fence.token, 'lease_id', reset_fence.lease_id));
END
$$;

COMMENT ON FUNCTION fencedb.reset_fence IS 'Sets the fence of resource back to a lower token, after a token was entered by mistake, and records it. From then on every holder with a higher token than that can write again, including those that were shut out meanwhile: end their leases first, or seal a new grant at once. Waits for open transactions of the resource for wait_ms, then raises 55P03. Rows keep their stamps until the next write.';

REVOKE ALL ON FUNCTION fencedb.reset_fence FROM PUBLIC;

-- A role that may call prune is an operator, and sees lease ids. A policy asks in a subquery, which
-- runs once per query, not once per row.
CREATE POLICY operators ON fencedb.fences FOR SELECT USING ((SELECT has_function_privilege('fencedb.prune'::regproc, 'EXECUTE')));
CREATE POLICY operators ON fencedb.take_overs FOR SELECT USING ((SELECT has_function_privilege('fencedb.prune'::regproc, 'EXECUTE')));
CREATE POLICY operators ON fencedb.events FOR SELECT USING (kind = 'observed' OR (SELECT has_function_privilege('fencedb.prune'::regproc, 'EXECUTE'))); -- what was observed has no lease id

-- The history of a resource: who entered it when, and what was written under which token. While it
-- is off it costs nothing, except on tables that are protected with history.

CREATE TABLE fencedb.history_kept (
    one    boolean     PRIMARY KEY DEFAULT true CHECK (one),
    period interval    NOT NULL,
    since  timestamptz NOT NULL
);

COMMENT ON TABLE  fencedb.history_kept IS 'For how long history is kept, and since when; no row while it is off. Changed by fencedb.keep_history.';
COMMENT ON COLUMN fencedb.history_kept.period IS 'Older events are deleted, some time later.';
COMMENT ON COLUMN fencedb.history_kept.since  IS 'No later event is missing, except events that are older than period, and those of transactions above READ COMMITTED that had begun earlier.';

ALTER TABLE fencedb.history_kept ENABLE ROW LEVEL SECURITY; -- against members of pg_write_all_data
CREATE POLICY operators ON fencedb.history_kept FOR SELECT USING ((SELECT has_function_privilege('fencedb.prune'::regproc, 'EXECUTE')));
REVOKE ALL ON fencedb.history_kept FROM PUBLIC;

-- While history is off, this trigger drops its rows. A trigger, because a look at history_kept
-- would cost time in each statement.
CREATE TRIGGER off BEFORE INSERT ON fencedb.events FOR EACH ROW WHEN (NEW.kind = 'history') EXECUTE FUNCTION fencedb.keep_events();

-- History is bounded by its age: one row in a hundred, at random, deletes two hundred that are too
-- old. It skips rows that are locked, so nobody waits. Under REPEATABLE READ, a row that was
-- deleted since the snapshot raises 40001; then nothing is deleted. Under SERIALIZABLE nothing is
-- read or deleted, because a read could cost the writer its commit. The newest token among the
-- latest events gives the issuer's time, because the clock of this server may have jumped (see
-- prune).
CREATE FUNCTION fencedb.trim_history(added float8) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    issuer timestamptz;
BEGIN
    IF current_setting('transaction_isolation') <> 'serializable' THEN
        issuer := (SELECT to_timestamp(max(e.token) / 1e6) FROM (SELECT h.token FROM fencedb.events h WHERE h.kind = 'history' ORDER BY h.at DESC LIMIT 100) e
                   WHERE e.token BETWEEN 1000000000000000 AND 9007199254740991);
        PERFORM fencedb.forget_events('history', coalesce((SELECT least(clock_timestamp(), issuer) - k.period FROM fencedb.history_kept k), 'infinity'), -- no row in a copy of the schema alone: all history goes
            (200 * ceil(added / 100))::bigint);
    END IF;
EXCEPTION WHEN serialization_failure THEN -- nothing is deleted
END
$$;

CREATE FUNCTION fencedb.note_entry() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    was_reset boolean := NEW.reset_from IS DISTINCT FROM OLD.reset_from OR coalesce(NEW.last_fencing_token < OLD.last_fencing_token, false);
BEGIN
    IF was_reset OR NEW.last_fencing_token > 0 AND (NEW.last_fencing_token, NEW.lease_id) IS DISTINCT FROM (OLD.last_fencing_token, OLD.lease_id) THEN -- 0: overtake creates a fence with this token
        INSERT INTO fencedb.events (kind, at, resource, event, token, lease_id, former_token, role, client)
        VALUES ('history', NEW.advanced_at, NEW.resource, CASE WHEN was_reset THEN 'reset' ELSE 'enter' END, NEW.last_fencing_token, NEW.lease_id, nullif(OLD.last_fencing_token, 0),
            coalesce(nullif(current_setting('role'), 'none'), session_user), inet_client_addr());
        IF random() < 0.01 THEN
            PERFORM fencedb.trim_history(1);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

-- The history triggers of a table run one function, which is in this schema and has the rights of
-- the schema's owner. Like a guard it has no SET, so every name in it has its schema. The table may
-- belong to somebody else. So the function reads only columns that still have the types that were
-- protected (typed): a cast from another type could call a function of the table's owner with the
-- rights of the schema's owner.
--
-- Most statements write to one resource only, which their transaction has entered; one query over
-- their rows (of_one) records that. For any other statement, of_any groups the rows by resource,
-- and records the token of each resource that the transaction has entered or taken over. An
-- observing guard also lets pass rows whose resource is missing or cannot have a fence; history
-- leaves them out. The common case has few expressions, because in PL/pgSQL each costs as much as a
-- column. NEW is NULL in a statement trigger.
CREATE FUNCTION fencedb.write_notes(target regclass) RETURNS regprocedure
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    notes      text;
    resource   text;
    written    text; -- the resource of each row, and whether the row is from before the statement
    changed    text;
    of_one     text := $note$
        INSERT INTO fencedb.events (kind, resource, event, table_schema, table_name, row_count, token)
        SELECT 'history', w.resource, TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, w.n, w.token
        FROM (SELECT pg_catalog.min(r.resource) AS resource, %s AS n, fencedb.token_of(pg_catalog.min(r.resource)) AS token FROM (%s) r HAVING pg_catalog.min(r.resource) OPERATOR(pg_catalog.=) pg_catalog.max(r.resource)) w
        WHERE w.token IS NOT NULL;$note$;
    of_any     text := $note$
            INSERT INTO fencedb.events (kind, resource, event, table_schema, table_name, row_count, token, role, client)
            SELECT 'history', w.resource, TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, w.n, w.token, CASE WHEN w.token IS NULL THEN CASE WHEN pg_catalog.current_setting('role') OPERATOR(pg_catalog.<>) 'none' THEN pg_catalog.current_setting('role') ELSE session_user END END, CASE WHEN w.token IS NULL THEN pg_catalog.inet_client_addr() END
            FROM (SELECT r.resource, greatest(pg_catalog.count(*) FILTER (WHERE NOT r.before), pg_catalog.count(*) FILTER (WHERE r.before)) AS n, fencedb.token_of(r.resource) AS token FROM (%s) r GROUP BY r.resource ORDER BY r.resource) w
            WHERE w.resource OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(w.resource) OPERATOR(pg_catalog.<=) 512;$note$;
BEGIN
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL;
    notes := (SELECT format('fencedb.%I', regexp_replace(p.proname, '^guard_', 'noted_')) FROM pg_proc p WHERE p.oid = protection.guard);
    resource := (SELECT string_agg(format('CASE WHEN ' || r.typed || ' THEN ' || r.expression || ' END', 'NEW'), ', ') FROM unnest(protection.resource) t, fencedb.read_template(target, t) r);
    -- A row that belongs to the same resource twice counts once. A row without a resource is not
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
        format(of_one, 'pg_catalog.count(*) FILTER (WHERE r.before)', changed),
        format(of_one, 'pg_catalog.count(*)', written),
        format(of_any, changed),
        format(of_any, written)));
    -- The owner of the table needs it to make the triggers. Anybody else could put it on a
    -- temporary table.
    EXECUTE format('REVOKE ALL ON FUNCTION %1$s() FROM PUBLIC; GRANT EXECUTE ON FUNCTION %1$s() TO %2$s', notes, (SELECT c.relowner::regrole FROM pg_class c WHERE c.oid = target));
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', notes, jsonb_build_object('table', target::text, 'since', coalesce(protection.history_since, clock_timestamp())));
    RETURN (notes || '()')::regprocedure;
END
$$;

-- Puts the triggers that keep history on every member of a protected table, or removes them.
-- Partitions do not inherit statement triggers, so each member gets its own, as in protect.
CREATE FUNCTION fencedb.set_history(target regclass, wanted boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    notes   regprocedure;
    formers regprocedure[] := ARRAY(SELECT DISTINCT t.tgfoid::regprocedure FROM pg_trigger t JOIN fencedb.members(target) m ON m.member = t.tgrelid WHERE t.tgname ^@ '~fencedb_note_');
    own     record;
BEGIN
    IF wanted THEN
        IF formers = '{}' THEN
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', target); -- otherwise writes of open transactions would not be noted
        END IF;
        notes := fencedb.write_notes(target);
        -- Postgres raises an error for a foreign table: its triggers have no transition tables.
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

CREATE FUNCTION fencedb.keep_history(period interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted interval := nullif(period, interval '0');
    former fencedb.history_kept;
    kept   boolean; -- by the triggers, which a restore of rows alone leaves as they were
BEGIN
    IF wanted NOT BETWEEN interval '0' AND interval '1000 years' THEN -- Postgres has no time before 4713 BC, so pruning would fail
        RAISE EXCEPTION 'fencedb.keep_history: the period must be 0 to 1000 years, got %', wanted
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT fencedb.keep_history(''30 days''). NULL switches it off.';
    END IF;
    LOCK TABLE fencedb.goose_db_version IN SHARE UPDATE EXCLUSIVE MODE; -- against other calls of keep_history, and of allow, which changes the rights on the following tables
    SELECT * INTO former FROM fencedb.history_kept;
    kept := NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'fencedb.events'::regclass AND t.tgname = 'off');
    IF wanted IS NOT DISTINCT FROM former.period AND kept = (wanted IS NOT NULL) THEN
        RETURN;
    ELSIF wanted IS NULL THEN
        DROP TRIGGER IF EXISTS note ON fencedb.fences;
        CREATE OR REPLACE TRIGGER off BEFORE INSERT ON fencedb.events FOR EACH ROW WHEN (NEW.kind = 'history') EXECUTE FUNCTION fencedb.keep_events();
        DELETE FROM fencedb.history_kept;
    ELSIF former.period IS NULL OR NOT kept THEN
        LOCK TABLE fencedb.fences IN EXCLUSIVE MODE; -- waits also for transactions that only share a fence: if they entered another, they could deadlock with what follows
        CREATE OR REPLACE TRIGGER note AFTER INSERT OR UPDATE OF last_fencing_token ON fencedb.fences FOR EACH ROW EXECUTE FUNCTION fencedb.note_entry();
        DROP TRIGGER IF EXISTS off ON fencedb.events; -- waits for transactions that have written to a table with history: they lock fencedb.events also while history is off
        INSERT INTO fencedb.history_kept (period, since) VALUES (wanted, clock_timestamp()) ON CONFLICT (one) DO UPDATE SET period = EXCLUDED.period, since = EXCLUDED.since;
    ELSE
        UPDATE fencedb.history_kept k SET period = wanted, since = greatest(k.since, clock_timestamp() - former.period);
    END IF;
    PERFORM fencedb.log_event('keep_history', NULL, NULL, 'by fencedb.keep_history',
        jsonb_build_object('period', wanted::text, 'former_period', former.period::text));
END
$$;

COMMENT ON FUNCTION fencedb.keep_history(interval) IS 'From now on, fencedb.history keeps for this period, 1000 years at most, who enters which resource, and what is written to tables that are protected with history => true. A row has some 150 bytes; there is one for each token that enters, and for each statement and resource. NULL or 0 switches history off; what was kept stays until fencedb.prune forgets it. Recorded in fencedb.audit. Switching on and off waits for open transactions that have entered, and blocks new ones meanwhile: set lock_timeout and try again.';

REVOKE ALL ON FUNCTION fencedb.keep_history(interval), fencedb.write_notes(regclass), fencedb.note_entry(), fencedb.trim_history(float8) FROM PUBLIC;
-- protect calls these with the rights of the table's owner.
GRANT EXECUTE ON FUNCTION fencedb.set_history(regclass, boolean), fencedb.write_notes(regclass) TO PUBLIC;

-- Functions without a comment are inner ones, which these files explain.
DO $$
DECLARE
    inner_function regprocedure;
BEGIN
    FOR inner_function IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL LOOP
        EXECUTE format('COMMENT ON FUNCTION %s IS ''Inner function, called by others of this schema alone.''', inner_function);
    END LOOP;
END
$$;

-- Takes back what default privileges of the role that migrates have granted on this schema.
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

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    tables text := (SELECT string_agg(p.table_name::text, ', ' ORDER BY p.table_name::text) FROM fencedb.protected_tables p);
BEGIN
    IF tables IS NOT NULL THEN -- unprotect needs the functions of this file
        RAISE EXCEPTION 'still protected: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.unprotect for each, then migrate down.';
    END IF;
END
$$;
DROP TRIGGER IF EXISTS note ON fencedb.fences;
DROP FUNCTION fencedb.keep_history(interval), fencedb.set_history(regclass, boolean), fencedb.write_notes(regclass), fencedb.note_entry(), fencedb.trim_history(float8);
DROP TRIGGER IF EXISTS off ON fencedb.events;
DROP TABLE fencedb.history_kept;
DROP POLICY operators ON fencedb.take_overs;
DROP POLICY operators ON fencedb.events;
DROP POLICY operators ON fencedb.fences;
DROP FUNCTION fencedb.reset_fence, fencedb.prune;
-- +goose StatementEnd
