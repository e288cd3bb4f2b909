-- Adopting fences where writers cannot all be deployed on one day: guards that only observe, and
-- roles that write without a token of their own.

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

-- What an observing guard lets pass is an event, of each kind of write one in a minute: no row of
-- the log is changed or waited for. This sequence numbers them, and its end is the end of the list:
-- a list that grows without bound takes the database along.
CREATE SEQUENCE fencedb.observations MAXVALUE 1000000;

-- When a write was not recorded that should have been. What setval writes stays, whatever becomes
-- of the transaction.
CREATE SEQUENCE fencedb.unrecorded;

COMMENT ON SEQUENCE fencedb.observations IS 'How many writes were observed, about. When it is at its end, no more are recorded (see unrecorded), until fencedb.prune forgets some.';
COMMENT ON SEQUENCE fencedb.unrecorded IS 'When a write that a guard observed could not be recorded last, of any table, in milliseconds since 1970; the log of the server says why. Never while is_called is false.';

REVOKE ALL ON fencedb.observations, fencedb.unrecorded FROM PUBLIC;
GRANT SELECT ON fencedb.unrecorded TO PUBLIC; -- owners of tables want to know

-- By the oid, because tables change their names, with each other too; in a copy of the database by
-- the name, because there the oid may be that of another table. What was observed before a table
-- was unprotected is not of now.
CREATE VIEW fencedb.unfenced_writes WITH (security_barrier) AS
SELECT c.oid::regclass AS table_name, e.role, e.application, e.event AS statement, e.reason,
       min(e.at) AS first_at, max(e.at) AS last_at, greatest(1, sum(e.row_count)::bigint) AS times, max(e.resource) AS resource
FROM fencedb.events e
LEFT JOIN (SELECT t.oid, t.relname, n.nspname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace) named ON named.relname = e.table_name AND named.nspname = e.table_schema
JOIN pg_class c ON c.oid = CASE WHEN e.details ->> 'ledger' = 'fencedb.fences'::regclass::oid::text THEN (e.details ->> 'oid')::oid ELSE named.oid END
LEFT JOIN (SELECT a.details ->> 'oid' AS oid, max(a.at) AS at FROM fencedb.events a WHERE a.kind = 'audit' AND a.event = 'unprotect' GROUP BY 1) given_up ON given_up.oid = c.oid::text
WHERE e.kind = 'observed' AND e.at > coalesce(given_up.at, '-infinity') AND (pg_has_role(c.relowner, 'USAGE') OR has_table_privilege('fencedb.events', 'SELECT'))
GROUP BY c.oid, e.role, e.application, e.event, e.reason;

COMMENT ON VIEW fencedb.unfenced_writes IS 'Writes that guards would have refused if they were enforced: who, how, why (an SQLSTATE), when first and last (to a minute), how often it was recorded, and one resource. Of a kind of write (role, application, statement, reason) one is recorded in a minute. Owners see those to their own tables. Since the table was protected, and as long as fencedb.prune leaves it. What was rolled back is not in it, nor what open transactions have written.';

GRANT SELECT ON fencedb.unfenced_writes TO PUBLIC;

-- A session records a kind of write at once, and again a minute later at the earliest. Until when
-- is in a setting, which goes back with a transaction as the record does. The setting has fixed
-- places: whether a row was seen (1 character), until when (14), and of whom. Whoever forges the
-- setting hides its own writes from the list, and opens nothing: only a guard that refuses nothing
-- reads it.
--
-- recorded is the common case, as an expression, because PL/pgSQL sets every expression up anew in
-- every transaction. It does not look who writes a row: the guard of statements has. Where there is
-- none, a second writer of a session may be missed for a minute.
CREATE FUNCTION fencedb.recorded(target oid, operation text, of_row boolean) RETURNS boolean
    LANGUAGE sql
    RETURN CASE
        WHEN current_setting('fencedb.entered', true) <> '' AND fencedb.entries() IS NOT NULL THEN false
        WHEN of_row THEN date_part('epoch', clock_timestamp()) + 10000000000 <= concat('0', "left"(current_setting(concat('fencedb.seen_', target, '_', operation), true), 15))::float8
        WHEN substr(current_setting(concat('fencedb.seen_', target, '_', operation), true), 16) = concat('FN002 ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'))
            THEN substr(current_setting(concat('fencedb.seen_', target, '_', operation), true), 2, 14)::float8 > date_part('epoch', clock_timestamp())
        ELSE false
    END;

-- A writer is never refused by its own observation, nor does it wait. What is lost like that is
-- said in the log, and when, in fencedb.unrecorded: nobody may take an empty list for the end of
-- the adoption. Another session's record of the last minute is as good; above READ COMMITTED that
-- is not looked for: a snapshot may be old, and what SERIALIZABLE reads could cost the writer its
-- commit. The guard of statements has counted a statement without a token, but not one that comes
-- from another trigger.
CREATE FUNCTION fencedb.let_pass(target oid, operation text, reason text, of_row boolean, resource text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms'
AS $$
#variable_conflict use_variable
DECLARE
    setting  text    := concat('fencedb.seen_', target, '_', operation);
    seen     text    := current_setting(setting, true);
    writer   text    := concat(reason, ' ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'));
    its_own  boolean := coalesce(substr(seen, 16) = writer, false);
    row_seen boolean := its_own AND left(seen, 1) = '1';
    role     name    := coalesce(nullif(current_setting('role'), 'none'), session_user);
    root     oid     := fencedb.guarded_root(target);
BEGIN
    IF pg_trigger_depth() = 0 THEN
        RAISE EXCEPTION 'fencedb.let_pass: for guards alone' USING ERRCODE = 'insufficient_privilege';
    ELSIF its_own AND (row_seen OR NOT of_row) AND substr(seen, 2, 14)::float8 > date_part('epoch', clock_timestamp()) THEN
        RETURN seen;
    END IF;
    BEGIN
        INSERT INTO fencedb.events (kind, id, event, resource, table_schema, table_name, row_count, role, reason, details)
        SELECT 'observed', nextval('fencedb.observations'), operation, left(resource, 512), n.nspname, c.relname, CASE WHEN of_row AND reason = 'FN002' AND pg_trigger_depth() < 2 THEN 0 ELSE 1 END,
            role, reason, jsonb_build_object('oid', root::text, 'ledger', 'fencedb.fences'::regclass::oid::text)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = root AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' -- or it is younger than the snapshot, or is none, or nobody else's business
          AND CASE WHEN current_setting('transaction_isolation') LIKE 'read %' THEN NOT EXISTS (
              SELECT FROM fencedb.events e
              WHERE e.kind = 'observed' AND e.at > clock_timestamp() - interval '1 minute' AND e.details ->> 'oid' = root::text AND e.event = operation AND e.reason = reason
                AND e.role = role AND e.application = current_setting('application_name') AND (e.resource IS NOT NULL OR NOT of_row)) ELSE true END;
    EXCEPTION WHEN OTHERS THEN
        PERFORM setval('fencedb.unrecorded', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
        RAISE LOG 'fencedb: % on % by % (%) would have been refused and could not be recorded: %', operation, root::regclass, role, current_setting('application_name'), SQLERRM;
    END;
    RETURN set_config(setting, concat((of_row OR row_seen)::int, to_char(date_part('epoch', clock_timestamp()) + 60, 'FM0000000000.000'), writer), false);
END
$$;

-- The mode of a table is the text of its guard: writing a function anew needs no lock on the table,
-- and a guard that is enforced pays nothing for the other mode.
CREATE FUNCTION fencedb.enforce(target regclass, observing boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    off        text := array_to_string(fencedb.switched_off(target), ', ');
BEGIN
    PERFORM fencedb.require_owner(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fencedb.enforce: % is not protected', target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first, with mode => ''observe'' if it shall refuse nothing yet.';
    ELSIF observing IS NULL THEN
        RAISE EXCEPTION 'fencedb.enforce: observing must be true or false, got NULL' USING ERRCODE = 'null_value_not_allowed';
    ELSIF off IS NOT NULL AND NOT observing THEN
        RAISE EXCEPTION 'fencedb.enforce: the guard of % is switched off', off
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('What was written meanwhile was not observed. Call fencedb.protect for %s once more, with the same resource: that switches it on.', target);
    ELSIF protection.observed <> observing THEN
        PERFORM fencedb.record_protection(target, true); -- as in unprotect
        PERFORM fencedb.order_guard(target, jsonb_build_object('resource', protection.resource, 'observes', observing, 'columns_added', protection.columns_added));
        IF fencedb.write_guard(target) <> protection.guard THEN
            RAISE EXCEPTION 'fencedb.enforce: % has its guard together with another table, since one has inherited from the other', target
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('Call fencedb.protect for %s once more, with the same resource, to give it a guard of its own.', target);
        END IF;
        PERFORM fencedb.record_protection(target, false);
        IF off IS NOT NULL THEN
            RAISE WARNING 'fencedb.enforce: the guard of % is switched off, so nothing is observed there', off;
        END IF;
    END IF;
END
$$;

COMMENT ON FUNCTION fencedb.enforce IS 'From now on, the guard of target refuses what it has observed so far. With observing => true it refuses nothing, and records what it would refuse, for fencedb.unfenced_writes; fencedb.enter refuses stale tokens all the same. Raises if the guard of target, or of a part of it, is switched off. Does not read the rows: one whose resource is NULL cannot be written any more. Takes no lock on the table; a transaction that has already written to it may meet the guard as it was, and end without being judged.';

-- A role that cannot be taught to enter overtakes: each of its transactions enters the fences of
-- the rows that it writes, with a token above the stored one and a lease id of its own. So whoever
-- holds the lease meanwhile is stale from then on.
CREATE TABLE fencedb.take_overs (
    target     oid         NOT NULL,
    role       oid         NOT NULL,
    until      timestamptz NOT NULL,
    ledger     oid         NOT NULL DEFAULT 'fencedb.fences'::regclass,
    PRIMARY KEY (target, role)
);

COMMENT ON TABLE  fencedb.take_overs IS 'Roles that write to a protected table without a token, as holders that overtake. Changed by fencedb.take_over_as and fencedb.end_take_over.';
COMMENT ON COLUMN fencedb.take_overs.target IS 'The oid of the table.';
COMMENT ON COLUMN fencedb.take_overs.role   IS 'The oid of the role of the last SET ROLE, or the one that logged in.';
COMMENT ON COLUMN fencedb.take_overs.until  IS 'From then on it is refused like everybody else.';
COMMENT ON COLUMN fencedb.take_overs.ledger IS 'The oid of fencedb.fences. In a copy of the database it is another, so there nobody overtakes, whichever table has the number of target.';

-- Members of pg_write_all_data may write to every table without policies.
ALTER TABLE fencedb.take_overs ENABLE ROW LEVEL SECURITY;
CREATE POLICY operators ON fencedb.take_overs FOR SELECT USING ((SELECT fencedb.operates()));

REVOKE ALL ON fencedb.take_overs FROM PUBLIC;

CREATE FUNCTION fencedb.overtakes(target oid) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM fencedb.take_overs t
                   WHERE t.role = to_regrole(quote_ident(coalesce(nullif(current_setting('role'), 'none'), session_user))) AND t.until > clock_timestamp() AND t.ledger = 'fencedb.fences'::regclass
                     AND t.target = fencedb.guarded_root(overtakes.target))
$$;

COMMENT ON FUNCTION fencedb.overtakes IS 'Whether the role of the last SET ROLE, or the one that logged in, writes to a table as a holder that overtakes.';

-- The guard enters the fences of a row for its role, above the stored tokens, where this
-- transaction has not entered them, with a lease id that nobody knows. These are entries as any
-- other, but no time limits this transaction. Package lease issues the time in microseconds, so a
-- token of now also overtakes a holder that has not entered yet. Tokens of others count from 1:
-- such a token would shut them out for good. former is the resource of the row as it was, whose
-- stamp is overtaken too. A guard that observes has no row refused for its resource (lenient).
--
-- The guard of rows comes when Postgres has locked the row, so the one who overtakes waits for the
-- fence while it holds a row, and the holder of the fence may come to wait for that row. That is a
-- deadlock, and Postgres ends one of the two.
--
-- By hand, a role that overtakes can enter any fence so: it is allowed to, like one that may enter.
CREATE FUNCTION fencedb.overtake(target oid, resources text[], former text, stamp bigint, lenient boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted text;
    stored record;
    fence  bigint;
    noted  text;
BEGIN
    IF NOT fencedb.overtakes(target) THEN
        RAISE EXCEPTION 'fencedb.overtake: this role does not take over %', target::regclass USING ERRCODE = 'insufficient_privilege';
    ELSIF fencedb.entries() IS NULL THEN
        noted := set_config('fencedb.entered', concat(pg_current_xact_id(), '   '), true); -- neither in time nor late
    END IF;
    FOR wanted IN SELECT DISTINCT r COLLATE "C" FROM unnest(resources) r WHERE r IS NOT NULL AND (fencedb.token_of(r) IS NULL OR r = former AND stamp > fencedb.token_of(r) AND stamp > coalesce(fencedb.ignored_stamps(r), 0)) ORDER BY 1 LOOP
        CONTINUE WHEN lenient AND (octet_length(wanted) NOT BETWEEN 1 AND 512 OR strpos(wanted, E'\x01') > 0);
        PERFORM fencedb.check_grant(wanted, 1, gen_random_uuid()); -- the constraint of the ledger would show the lease id
        INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES (wanted, 0, gen_random_uuid()) ON CONFLICT DO NOTHING;
        SELECT f.last_fencing_token AS token, f.reset_from INTO stored FROM fencedb.fences f WHERE f.resource = wanted FOR NO KEY UPDATE;
        fence := greatest(stored.token, CASE WHEN wanted = former AND stamp > coalesce(stored.reset_from, 0) THEN stamp END) + 1;
        IF fence NOT BETWEEN 2 AND 1000000000000000 AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(wanted, ':', 1)) THEN
            fence := greatest(fence, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
        END IF;
        PERFORM fencedb.check_grant(wanted, fence, gen_random_uuid()); -- the stamp is what a session says
        UPDATE fencedb.fences f SET last_fencing_token = fence, lease_id = gen_random_uuid(), advanced_at = greatest(clock_timestamp(), transaction_timestamp()) WHERE f.resource = wanted;
        noted := set_config('fencedb.entered', concat(replace(fencedb.entries(), coalesce(fencedb.entry(wanted, fencedb.token_of(wanted)), ''), ''), fencedb.entry(wanted, fence)), true);
    END LOOP;
END
$$;

-- Whoever overtakes can raise the fence of any resource, so only who may enter lets others
-- overtake: anybody can own a table, and say of it what they like. Who owns the table orders it
-- (take_over_as), and Postgres lets only those who may enter carry it out (let_overtake).
CREATE FUNCTION fencedb.take_over_as(target regclass, role regrole, until timestamptz) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    login name := (SELECT r.rolname FROM pg_roles r WHERE r.oid = take_over_as.role);
BEGIN
    PERFORM fencedb.require_owner(target);
    IF NOT has_function_privilege('fencedb.let_overtake(regclass)', 'EXECUTE') THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % may not enter fences, so it cannot let others overtake', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'The role that ran the migrations can let it enter, with fencedb.allow.';
    ELSIF NOT EXISTS (SELECT FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL) THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % is not protected', target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first.';
    ELSIF login IS NULL OR until IS NULL OR until <= clock_timestamp() OR until > clock_timestamp() + interval '1 year' THEN
        RAISE EXCEPTION 'fencedb.take_over_as: needs a role and a time within the next year, got % and %', coalesce(login, 'no role'), coalesce(until::text, 'no time')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A service that cannot be changed by then can be given more time by calling this again.';
    END IF;
    PERFORM fencedb.order_guard(target, jsonb_build_object('take_overs', coalesce(fencedb.ordered(target) -> 'take_overs', '{}') || jsonb_build_object(login, until)));
    PERFORM fencedb.let_overtake(target);
END
$$;

COMMENT ON FUNCTION fencedb.take_over_as IS 'Until a time within a year, statements of role without a token write to target as holders that overtake: each transaction enters the fences of its rows with a fresh token, and waits for transactions that have entered them. A holder that it has overtaken is refused as stale. role is that of the last SET ROLE, or the one that logged in. Called again it changes the time. TRUNCATE stays refused. The caller must own target and may enter (fencedb.allow). fencedb.end_take_over ends it early.';

CREATE FUNCTION fencedb.let_overtake(target regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    o record;
BEGIN
    FOR o IN SELECT r.oid AS role, r.rolname, w.value::timestamptz AS until FROM jsonb_each_text(fencedb.ordered(target) -> 'take_overs') w JOIN pg_roles r ON r.rolname = w.key LOOP
        INSERT INTO fencedb.take_overs AS t (target, role, until) VALUES (let_overtake.target, o.role, o.until)
        ON CONFLICT ON CONSTRAINT take_overs_pkey DO UPDATE SET until = EXCLUDED.until, ledger = EXCLUDED.ledger WHERE (t.until, t.ledger) <> (EXCLUDED.until, EXCLUDED.ledger);
        IF FOUND THEN
            INSERT INTO fencedb.audit (event, reason, details)
            VALUES ('take_over_as', 'by fencedb.take_over_as', jsonb_build_object('table', target::text, 'oid', target::oid::text, 'role', o.rolname, 'until', o.until));
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION fencedb.end_take_over(target regclass, role regrole DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    others jsonb := coalesce(fencedb.ordered(target) -> 'take_overs', '{}') - (SELECT r.rolname::text FROM pg_roles r WHERE r.oid = end_take_over.role);
BEGIN
    PERFORM fencedb.require_owner(target);
    IF fencedb.ordered(target) IS NOT NULL THEN
        PERFORM fencedb.order_guard(target, jsonb_build_object('take_overs', coalesce(others, '{}')));
    END IF;
    PERFORM fencedb.end_overtaking(target);
END
$$;

COMMENT ON FUNCTION fencedb.end_take_over IS 'From now on, role (all roles, if none is named) writes to target with a token or not at all. Waits for nobody.';

CREATE FUNCTION fencedb.end_overtaking(target regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    login text;
BEGIN
    FOR login IN DELETE FROM fencedb.take_overs t
                 WHERE t.target = end_overtaking.target
                   AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = t.role AND fencedb.ordered(end_overtaking.target) -> 'take_overs' ? r.rolname::text)
                 RETURNING coalesce((SELECT r.rolname FROM pg_roles r WHERE r.oid = t.role), t.role::text) LOOP
        RAISE NOTICE 'fencedb.end_take_over: % does not write to % without a token any more', login, target;
        PERFORM fencedb.log_event('end_take_over', NULL, NULL, 'by fencedb.end_take_over',
            jsonb_build_object('table', target::text, 'oid', target::oid::text, 'role', login));
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION fencedb.let_overtake FROM PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- What nobody calls by hand is explained in these files alone.
DO $$
DECLARE
    inner_function regprocedure;
BEGIN
    FOR inner_function IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype <> 'trigger'::regtype AND obj_description(p.oid, 'pg_proc') IS NULL LOOP
        EXECUTE format('COMMENT ON FUNCTION %s IS ''Inner function, called by others of this schema alone.''', inner_function);
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
    IF tables IS NOT NULL THEN -- every guard calls what is here
        RAISE EXCEPTION 'still protected: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.unprotect for each, then migrate down.';
    END IF;
END
$$;
DROP FUNCTION fencedb.end_take_over, fencedb.end_overtaking, fencedb.take_over_as, fencedb.let_overtake, fencedb.overtake, fencedb.overtakes, fencedb.enforce;
DROP FUNCTION fencedb.let_pass, fencedb.recorded;
DROP VIEW fencedb.unfenced_writes;
DROP SEQUENCE fencedb.observations, fencedb.unrecorded;
DROP TABLE fencedb.take_overs;
-- +goose StatementEnd
