-- Adopting fences where writers cannot all be deployed on one day: guards that only observe.

-- +goose Up

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- A kind of write has one row, or a few while transactions that have recorded it are open. No row is ever waited for.
CREATE TABLE fencedb.observations (
    target      oid         NOT NULL,
    table_name  text        NOT NULL,
    role        name        NOT NULL,
    application text        NOT NULL,
    statement   text        NOT NULL,
    reason      text        NOT NULL,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    times       bigint      NOT NULL,
    resource    text
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX observations_target ON fencedb.observations (target, role, application, statement, reason);

COMMENT ON TABLE  fencedb.observations IS 'What guards that only observe would have refused. Read it through fencedb.unfenced_writes.';
COMMENT ON COLUMN fencedb.observations.target      IS 'The oid of the table that was protected.';
COMMENT ON COLUMN fencedb.observations.table_name  IS 'Its name at that time, for a copy of the database, where it has another oid.';
COMMENT ON COLUMN fencedb.observations.role        IS 'Who wrote: the role of the last SET ROLE, or the one that logged in.';
COMMENT ON COLUMN fencedb.observations.application IS 'Its application_name; "(others)" after 500 kinds of writes to one table.';
COMMENT ON COLUMN fencedb.observations.statement   IS 'INSERT, UPDATE, DELETE or TRUNCATE, as triggers know it.';
COMMENT ON COLUMN fencedb.observations.reason      IS 'The SQLSTATE of the refusal that an enforcing guard would have raised.';
COMMENT ON COLUMN fencedb.observations.first_at    IS 'By the clock of this server.';
COMMENT ON COLUMN fencedb.observations.last_at     IS 'At most five seconds before the last such write of a session.';
COMMENT ON COLUMN fencedb.observations.times       IS 'Statements without a token, and rows with a wrong or stale one. A session that ends may take up to half of its own along.';
COMMENT ON COLUMN fencedb.observations.resource    IS 'The resource of one of the rows, NULL if none was written.';

REVOKE ALL ON fencedb.observations FROM PUBLIC;

CREATE VIEW fencedb.unfenced_writes WITH (security_barrier) AS
SELECT c.oid::regclass AS table_name, o.role, o.application, o.statement, o.reason,
       min(o.first_at) AS first_at, max(o.last_at) AS last_at, sum(o.times)::bigint AS times, max(o.resource) AS resource
FROM fencedb.observations o
JOIN pg_class c ON c.oid = o.target OR NOT EXISTS (SELECT FROM pg_class t WHERE t.oid = o.target) AND o.table_name = format('%I.%I', (SELECT n.nspname FROM pg_namespace n WHERE n.oid = c.relnamespace), c.relname)
WHERE pg_has_role(c.relowner, 'USAGE') OR has_table_privilege('fencedb.observations', 'SELECT')
GROUP BY c.oid, o.role, o.application, o.statement, o.reason;

COMMENT ON VIEW fencedb.unfenced_writes IS 'Writes that guards would have refused if they were enforced: who, how, why (an SQLSTATE), when first and last, how often, and one resource. Owners see those to their own tables. What was rolled back is not in it, nor what open transactions have written.';

GRANT SELECT ON fencedb.unfenced_writes TO PUBLIC;

-- record_observation may fail and may not be heard: a writer is never refused by its own observation, nor does it wait.
--     READ COMMITTED: it takes the rows of this kind that it can lock, and leaves one in their place. A row that another
--     transaction has locked stays, and a later call takes it along.
--     REPEATABLE READ: a row that has gone since the snapshot raises 40001. Then another transaction has recorded the same
--     since, and this one need not.
--     SERIALIZABLE: what it read here could cost the writer its commit. So it reads nothing and only adds a row, up to a
--     size that a few of them never reach.
-- +goose StatementBegin
CREATE FUNCTION fencedb.record_observation(guarded oid, role name, application text, operation text, reason text, times bigint, resource text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms'
AS $$
#variable_conflict use_variable
DECLARE
    root oid;
BEGIN
    WITH RECURSIVE up(rel, depth) AS (
        SELECT guarded, 0
        UNION
        SELECT i.inhparent, up.depth + 1 FROM up JOIN pg_inherits i ON i.inhrelid = up.rel JOIN pg_trigger t ON t.tgrelid = i.inhparent AND t.tgname = '~fencedb_row'
    )
    SELECT up.rel INTO root FROM up ORDER BY up.depth DESC LIMIT 1;

    IF current_setting('transaction_isolation') = 'serializable' THEN
        INSERT INTO fencedb.observations
        SELECT root, root::regclass::text, role, application, operation, reason, clock_timestamp(), clock_timestamp(), times, resource
        WHERE pg_relation_size('fencedb.observations') < 16777216;
        RETURN;
    END IF;

    IF NOT EXISTS (SELECT FROM fencedb.observations o
                   WHERE o.target = root AND o.role = role AND o.application = application AND o.statement = operation AND o.reason = reason)
       AND (SELECT count(*) FROM fencedb.observations o WHERE o.target = root) >= 500 THEN
        application := '(others)';
    END IF;
    WITH taken AS (
        DELETE FROM fencedb.observations o
        WHERE o.ctid = ANY (ARRAY(
            SELECT c.ctid FROM fencedb.observations c
            WHERE c.target = root AND c.role = role AND c.application = application AND c.statement = operation AND c.reason = reason
            FOR UPDATE SKIP LOCKED))
        RETURNING o.first_at, o.times, o.resource
    )
    INSERT INTO fencedb.observations
    SELECT root, root::regclass::text, role, application, operation, reason,
           coalesce(min(t.first_at), clock_timestamp()), clock_timestamp(), coalesce(sum(t.times), 0) + times, coalesce(resource, max(t.resource))
    FROM taken t;
EXCEPTION WHEN OTHERS THEN
    -- see above
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.record_observation(oid, name, text, text, text, bigint, text) IS 'Inner function. Adds to what is known of one kind of write, if that can be had without waiting.';

-- A session records a kind of write at once, then every five seconds, and when it has counted as many again. In between it
-- counts in a setting, which goes back with a transaction as the record does. The setting has fixed places: until when (14
-- characters), whether a row was seen (1), how many it has recorded (10), for whom, and how many are not recorded yet (the
-- last 10). The guard of rows reads the first two by itself. Whoever forges the setting hides its own writes from the list,
-- and opens nothing: the guard of rows says by its own text whether it refuses. What happens each time is one expression,
-- because PL/pgSQL sets every expression up anew in every transaction.
-- +goose StatementBegin
CREATE FUNCTION fencedb.observe_write(guarded oid, operation text, reason text, of_row boolean, detail text DEFAULT NULL) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seen     text := current_setting(concat('fencedb.seen_', guarded, '_', operation), true);
    role     text;
    writer   text;
    now      float8;
    counted  bigint;
    recorded bigint;
    sampled  boolean;
BEGIN
    IF (CASE WHEN right(seen, 10) < substr(seen, 16, 10) AND (NOT of_row OR substr(seen, 15, 1) = '1') AND operation <> 'TRUNCATE'
                 AND substr(seen, 1, 14)::float8 - date_part('epoch', clock_timestamp()) BETWEEN 0 AND 5
                 AND substr(seen, 26) = concat(reason, ' ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'), right(seen, 10))
            THEN set_config(concat('fencedb.seen_', guarded, '_', operation), left(seen, -10) || to_char(right(seen, 10)::int8 + 1, 'FM0000000000'), false) IS NOT NULL
        END) THEN
        RETURN true;
    ELSIF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = guarded AND t.tgname = '~fencedb_row' AND fencedb.observes(t.tgfoid)) THEN
        RETURN false;
    END IF;

    role := coalesce(nullif(current_setting('role'), 'none'), session_user);
    writer := concat(reason, ' ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'));
    now := date_part('epoch', clock_timestamp());
    -- The guard of statements has counted a statement without a token, but not one that comes from another trigger.
    counted := CASE WHEN of_row AND reason = 'FN002' AND pg_trigger_depth() < 2 THEN 0 ELSE 1 END;
    recorded := counted;
    sampled := of_row;
    IF substr(seen, 26) = writer || right(seen, 10) THEN -- its own
        counted := counted + right(seen, 10)::int8;
        recorded := counted + substr(seen, 16, 10)::int8;
        sampled := of_row OR substr(seen, 15, 1) = '1';
    END IF;
    PERFORM fencedb.record_observation(guarded, role::name, current_setting('application_name'), operation, reason, counted,
        CASE WHEN detail LIKE '{%' AND reason LIKE 'FN%' THEN left(detail::jsonb ->> 'resource', 512) END);
    PERFORM set_config(concat('fencedb.seen_', guarded, '_', operation),
        concat(to_char(now + 5, 'FM0000000000.000'), sampled::int, to_char(least(recorded, 9999999999), 'FM0000000000'), writer, '0000000000'), false);
    RETURN true;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.observe_write(oid, text, text, boolean, text) IS 'Inner function. Whether the guard of a table only observes; if so, it remembers a write that it would have refused.';

-- The mode of a table is the text of its guard: CREATE OR REPLACE FUNCTION needs no lock on the table, and a guard that is
-- enforced pays nothing for the other mode. The text that observes has the other one inside, in a block that turns a
-- refusal into a record. It does not come to that for rows of a writer without a token
-- that was recorded lately.
-- +goose StatementBegin
CREATE FUNCTION fencedb.switch_guard(guard regprocedure, observe boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    enforced text := E'\n#variable_conflict use_column\n';
    head     text := fencedb.observing() || $head$    "~code"   pg_catalog.text;
    "~detail" pg_catalog.text;
BEGIN
    IF coalesce(pg_catalog.current_setting('fencedb.granted', true), '') OPERATOR(pg_catalog.=) ''
       AND pg_catalog.substr(pg_catalog.current_setting(pg_catalog.concat('fencedb.seen_', TG_RELID, '_', TG_OP), true), 15, 1) OPERATOR(pg_catalog.=) '1'
       AND pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
           OPERATOR(pg_catalog.<=) pg_catalog.substr(pg_catalog.current_setting(pg_catalog.concat('fencedb.seen_', TG_RELID, '_', TG_OP), true), 1, 14)::pg_catalog.float8 THEN
        IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END IF;
    BEGIN -- what is enforced
$head$;
    tail     text := $tail$;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS "~code" = RETURNED_SQLSTATE, "~detail" = PG_EXCEPTION_DETAIL;
    END;
    PERFORM fencedb.observe_write(TG_RELID, TG_OP, "~code", true, "~detail");
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$tail$;
    text     text := (SELECT p.prosrc FROM pg_proc p WHERE p.oid = guard);
BEGIN
    EXECUTE replace(pg_get_functiondef(guard), text,
        CASE WHEN observe THEN head || substr(text, length(enforced) + 1) || tail
             ELSE enforced || substr(text, length(head) + 1, length(text) - length(head) - length(tail)) END);
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', guard, obj_description(guard, 'pg_proc')::jsonb - 'observed_since'
        || CASE WHEN observe THEN jsonb_build_object('observed_since', clock_timestamp()) ELSE '{}' END);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.switch_guard(regprocedure, boolean) IS 'Inner function. Makes a guard that is enforced observe, or the other way round.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.set_mode(target regclass, observe boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
BEGIN
    PERFORM fencedb.check_no_member(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.mode IS NOT NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fencedb.%: % is not protected', CASE WHEN observe THEN 'observe' ELSE 'enforce' END, target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first, with mode => ''observe'' if it shall refuse nothing yet.';
    ELSIF protection.observed <> observe THEN
        PERFORM fencedb.record_protection(target); -- as in unprotect
        PERFORM fencedb.switch_guard(protection.guard, observe);
        PERFORM fencedb.record_protection(target);
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.set_mode(regclass, boolean) IS 'Inner function. What observe and enforce have in common.';

CREATE FUNCTION fencedb.observe(target regclass) RETURNS void
    LANGUAGE sql
    RETURN fencedb.set_mode(target, true);

CREATE FUNCTION fencedb.enforce(target regclass) RETURNS void
    LANGUAGE sql
    RETURN fencedb.set_mode(target, false);

COMMENT ON FUNCTION fencedb.observe(regclass) IS 'From now on, the guard of target refuses nothing and records what it would refuse, for fencedb.unfenced_writes. fencedb.enter refuses stale tokens all the same. Takes no lock on the table; a transaction that has already written to it may meet the guard as it was.';
COMMENT ON FUNCTION fencedb.enforce(regclass) IS 'From now on, the guard of target refuses what it has observed so far. Takes no lock on the table; a transaction that has already written to it may end without being judged.';

-- unprotect runs as the owner of the table, who may not write to the list.
-- +goose StatementBegin
CREATE FUNCTION fencedb.forget_observations(target regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = forget_observations.target), 'MEMBER') THEN
        DELETE FROM fencedb.observations o WHERE o.ctid = ANY (ARRAY(
            SELECT c.ctid FROM fencedb.observations c WHERE c.target = forget_observations.target FOR UPDATE SKIP LOCKED));
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.forget_observations(regclass) IS 'Forgets what was observed of a table so far, if the caller owns it: to see what still comes.';

REVOKE ALL ON FUNCTION fencedb.record_observation(oid, name, text, text, text, bigint, text) FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    tables text := (SELECT string_agg(p.table_name::text, ', ' ORDER BY p.table_name::text) FROM fencedb.protected_tables p WHERE p.observed);
BEGIN
    IF tables IS NOT NULL THEN
        RAISE EXCEPTION 'only observed: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.enforce or fencedb.unprotect for each, then migrate down.';
    END IF;
END
$$;
-- +goose StatementEnd
DROP FUNCTION fencedb.forget_observations(regclass);
DROP FUNCTION fencedb.enforce(regclass);
DROP FUNCTION fencedb.observe(regclass);
DROP FUNCTION fencedb.set_mode(regclass, boolean);
DROP FUNCTION fencedb.switch_guard(regprocedure, boolean);
DROP FUNCTION fencedb.observe_write(oid, text, text, boolean, text);
DROP FUNCTION fencedb.record_observation(oid, name, text, text, text, bigint, text);
DROP VIEW fencedb.unfenced_writes;
DROP TABLE fencedb.observations;
