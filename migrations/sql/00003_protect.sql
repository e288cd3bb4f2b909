-- Protected tables: every write to them, by any client, needs the token of each row's own resource.

-- +goose Up

-- +goose StatementBegin
CREATE FUNCTION fencedb.resources_of(resource text) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ARRAY[resource] $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION fencedb.resources_of(resources text[]) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN cardinality(resources) > 0 THEN resources ELSE ARRAY[NULL]::text[] END $$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.resources_of(text)   IS 'Gives resource expressions of either type one type.';
COMMENT ON FUNCTION fencedb.resources_of(text[]) IS 'Gives resource expressions of either type one type.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.raise_no_token(target text, operation text) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'FN002',
        MESSAGE = format('%s on protected table %s without a fencing token', operation, target),
        HINT    = CASE operation
            WHEN 'TRUNCATE' THEN 'TRUNCATE names no rows, so it can carry no token for them; use DELETE.'
            ELSE 'Call fencedb.enter first in the transaction (in Go: fencedb.Tx). Nothing was written.'
        END;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.raise_no_token(text, text) IS 'Inner function. Raises FN002.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.require_lease(granted jsonb) RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    IF (granted ->> 'until')::numeric < extract(epoch FROM clock_timestamp()) * 1000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'FN006',
            MESSAGE = 'the transaction has outlasted the validity that it entered with',
            HINT    = 'Nothing was written. Use a shorter transaction, or enter with more time: under a longer lease, or, if the lease is renewed meanwhile, with what it will be renewed to.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_lease(jsonb) IS 'Inner function. Raises FN006 when the validity given to enter has passed.';

-- The judge of one row. before and after are the resources of the old and the new row; stored is the token in the old row.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require(target regclass, operation text, before text[], after text[], stored bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    granted  jsonb := fencedb.granted();
    grants   jsonb := granted -> 'grants';
    resource text;
    token    bigint;
BEGIN
    IF granted IS NULL THEN
        PERFORM fencedb.raise_no_token(target::text, operation);
    END IF;
    PERFORM fencedb.require_lease(granted);

    FOREACH resource IN ARRAY before || after LOOP
        IF resource IS NULL THEN
            RAISE EXCEPTION 'the resource of a row of protected table % is NULL', target
                USING ERRCODE = 'null_value_not_allowed', HINT = 'Every row needs a resource: make the columns of the resource expression NOT NULL.';
        ELSIF (grants -> resource ->> 'entered')::boolean IS NOT TRUE THEN
            RAISE EXCEPTION USING
                ERRCODE = 'FN003',
                MESSAGE = format('%s on protected table %s: the row belongs to resource "%s", whose fence this transaction did not enter', operation, target, resource),
                DETAIL  = jsonb_build_object('resource', resource, 'entered', (SELECT coalesce(jsonb_agg(g.key ORDER BY g.key) FILTER (WHERE (g.value ->> 'entered')::boolean), '[]') FROM jsonb_each(grants) g))::text,
                HINT    = 'Enter with the grants of all resources the transaction writes to. Nothing was written.';
        END IF;
    END LOOP;

    -- The ledger has already refused stale tokens. This catches a ledger that was emptied under its rows. Where the
    -- fence was set back on purpose, rows still have the stamps from before.
    token := (grants -> before[1] ->> 'token')::bigint;
    IF token < stored THEN
        PERFORM fencedb.raise_stale(before[1], token, stored)
        WHERE NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = before[1] AND f.annulled IS NOT NULL);
    END IF;
    RETURN (grants -> after[1] ->> 'token')::bigint;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require(regclass, text, text[], text[], bigint) IS 'Raises FN001 to FN003 or FN006 unless this transaction entered the fences of all resources of a row; returns the token to stamp on it.';

-- Refuses before the first row is touched, also where no row matches. A cascade from another table
-- is left to the row trigger: it may match nothing, and then it writes nothing.
-- Later statements of a long transaction get only what is left of the lease.
-- +goose StatementBegin
CREATE FUNCTION fencedb.guard_statement() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    granted jsonb := fencedb.granted();
BEGIN
    IF granted IS NULL OR TG_OP = 'TRUNCATE' THEN
        PERFORM fencedb.raise_no_token(TG_RELID::regclass::text, TG_OP);
    END IF;
    PERFORM fencedb.require_lease(granted);
    PERFORM fencedb.bound((granted ->> 'until')::numeric);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guard_statement() IS 'Statement trigger of protected tables.';

-- The table itself, its partitions and its children. Row triggers of a partitioned table come to its partitions by
-- themselves, statement triggers do not, and a TRUNCATE may name the partition.
-- +goose StatementBegin
CREATE FUNCTION fencedb.members(target regclass) RETURNS TABLE (member regclass, is_partition boolean)
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE tree(member) AS (
        SELECT target::oid
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.member
    )
    SELECT c.oid::regclass, c.relispartition AND c.oid <> target
    FROM tree JOIN pg_class c ON c.oid = tree.member
    WHERE c.relkind IN ('r', 'p')
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.members(regclass) IS 'A table with all its partitions and inheritance children.';

-- Anybody can create a trigger of our name on a table of their own; a comment that is not ours must not break the list.
-- +goose StatementBegin
CREATE FUNCTION fencedb.guard_facts(guard oid, OUT mode text, OUT resource text, OUT columns_added text[])
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT * INTO mode, resource, columns_added
    FROM jsonb_to_record(obj_description(guard, 'pg_proc')::jsonb) AS facts(mode text, resource text, columns_added text[]);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    -- not JSON, or not of this form
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guard_facts(oid) IS 'Inner function. What protect has noted on a guard, NULLs if nothing.';

CREATE VIEW fencedb.protected_tables AS
SELECT t.tgrelid::regclass     AS table_name,
       facts.mode              AS mode,
       facts.resource          AS resource,
       facts.columns_added     AS columns_added,
       t.tgfoid::regprocedure  AS guard,
       t.tgenabled IN ('O', 'A') AS enabled
FROM pg_trigger t, fencedb.guard_facts(t.tgfoid) AS facts
WHERE t.tgname = '~fencedb_row' AND t.tgparentid = 0 AND facts.mode IN ('ledger', 'row');

COMMENT ON VIEW fencedb.protected_tables IS 'The tables that are guarded, with their resource expressions. mode is ledger (fencedb.protect) or row (fencedb.protect_row); enabled is false when somebody has switched the trigger off, or left it to replication.';

-- protect and unprotect run as whoever calls them, who may not write to the audit but may call this, as often as they
-- like. So nothing here is theirs to say, and calling it again adds nothing: it records what the catalog says of a
-- table, if that is not what was recorded of it last. A temporary table is nobody else's business.
-- +goose StatementBegin
CREATE FUNCTION fencedb.record_protection(target regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class      pg_class := (SELECT c FROM pg_class c WHERE c.oid = target);
    protection record;
    recorded   record;
    event      text;
BEGIN
    IF class.relpersistence IS NULL OR class.relpersistence = 't' THEN
        RAISE EXCEPTION 'fencedb.protect: % is temporary', target USING ERRCODE = 'wrong_object_type';
    ELSIF NOT pg_has_role(session_user, class.relowner, 'MEMBER') THEN
        RAISE EXCEPTION 'fencedb.protect: % does not own %', session_user, target
            USING ERRCODE = 'insufficient_privilege', HINT = 'Log in as the owner of the table, or as a member of that role: the audit names who logged in.';
    END IF;

    SELECT p.mode, left(p.resource, 1000) AS resource INTO protection
    FROM fencedb.protected_tables p
    WHERE p.table_name = target AND p.enabled
      AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname = '~fencedb_truncate' AND t.tgfoid = 'fencedb.guard_statement'::regproc);
    event := CASE WHEN FOUND THEN 'protect' ELSE 'unprotect' END;
    -- By its oid, as it may have been renamed; by its name where the database is a copy.
    SELECT a.event, a.details INTO recorded
    FROM fencedb.audit a
    WHERE a.event IN ('protect', 'unprotect') AND (a.details ->> 'oid' = target::oid::text OR a.details ->> 'table' = target::text)
    ORDER BY a.details ->> 'oid' = target::oid::text DESC, a.id DESC LIMIT 1;
    IF event = coalesce(recorded.event, 'unprotect') THEN
        RETURN;
    END IF;
    INSERT INTO fencedb.audit (event, operator, reason, details)
    VALUES (event, format('%s@%s', session_user, coalesce(host(inet_client_addr()), 'local')), 'seen in the catalog',
        coalesce(recorded.details, '{}') || jsonb_build_object('table', target::text, 'oid', target::oid::text)
        || CASE event WHEN 'protect' THEN jsonb_build_object('mode', protection.mode, 'expression', protection.resource) ELSE '{}' END);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.record_protection(regclass) IS 'Inner function. Adds to fencedb.audit that a table is protected, or is not any more, if that is news.';

-- Refuses what could not give a resource for every row, now instead of at the first write, and returns the expression as
-- Postgres understood it: every function and operator named with its schema, so that no search_path changes its meaning.
-- A CHECK constraint on an empty copy of the table is the probe: it admits expressions over one row and nothing else.
-- +goose StatementBegin
CREATE FUNCTION fencedb.compile_resource(target regclass, resource text, OUT expression text, OUT columns name[], OUT several boolean)
    LANGUAGE plpgsql
AS $$
DECLARE
    relname  name := (SELECT c.relname FROM pg_class c WHERE c.oid = target);
    path     text := current_setting('search_path');
    query    refcursor;
    probe    record;
    offender text;
BEGIN
    -- A cursor takes one query only; EXECUTE would run whatever follows a semicolon.
    -- The cast refuses a text that closes our parenthesis itself.
    OPEN query FOR EXECUTE format(E'SELECT (fencedb.resources_of(%s\n))::text[] FROM ONLY %s AS %I LIMIT 0', resource, target, relname);
    CLOSE query;

    EXECUTE format('CREATE TEMPORARY TABLE %I (LIKE %s)', relname, target);
    EXECUTE format(E'ALTER TABLE pg_temp.%I ADD CONSTRAINT fencedb_probe CHECK (fencedb.resources_of(%s\n) IS NOT NULL)', relname, resource);
    PERFORM set_config('search_path', 'pg_catalog', true);
    SELECT c.conbin::text AS tree, pg_get_expr(c.conbin, c.conrelid) AS source,
           ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) AS columns
    INTO probe
    FROM pg_constraint c
    WHERE c.conrelid = format('pg_temp.%I', relname)::regclass AND c.conname = 'fencedb_probe';
    PERFORM set_config('search_path', path, true);
    EXECUTE format('DROP TABLE pg_temp.%I', relname);

    -- Stable functions of Postgres itself are needed to make text of other types; the guard pins the settings they look at.
    SELECT string_agg(DISTINCT p.proname, ', ') INTO offender
    FROM regexp_matches(probe.tree, ':(?:funcid|opfuncid) (\d+)', 'g') AS m
    JOIN pg_proc p ON p.oid = m[1]::oid
     AND (p.provolatile = 'v' OR p.provolatile = 's' AND (p.oid >= 16384 OR p.pronargs = 0 OR p.proname = 'current_setting'));
    IF offender IS NOT NULL OR probe.tree ~ '\{SQLVALUEFUNCTION' THEN
        RAISE EXCEPTION 'it depends on more than the row (%), so one row could have two resources; functions must be immutable',
            coalesce(offender, 'the time or the user');
    END IF;

    SELECT string_agg(a.attname, ', ') INTO offender
    FROM pg_attribute a
    WHERE a.attrelid = target AND a.attname = ANY (probe.columns) AND (a.attgenerated <> '' OR a.attnum < 0);
    IF offender IS NOT NULL THEN
        RAISE EXCEPTION 'it reads columns that have no value yet when a row is judged (%)', offender;
    END IF;

    expression := regexp_replace(probe.source, '^\((.*) IS NOT NULL\)$', '\1');
    columns    := probe.columns;
    several    := probe.tree ~ format(':funcid %s ', 'fencedb.resources_of(text[])'::regprocedure::oid);
EXCEPTION WHEN OTHERS THEN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = format('fencedb.protect: the resource expression for %s cannot be used as text or text[] over one row: %s', target, SQLERRM),
        DETAIL  = format('resource => %s', resource),
        HINT    = 'It must be a text (or text[]) expression over one row of the table, for example ''table:'' || table_id.';
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.compile_resource(regclass, text) IS 'Inner function. Checks a resource expression against a table; returns it fully qualified, the columns it reads, and whether it gives several resources.';

-- The guard of one table is a trigger function in the schema of that table. It reads the row as a table of the old name
-- and declares no types, so that renaming the table or changing a column's type does not break it.
-- +goose StatementBegin
CREATE FUNCTION fencedb.create_guard(target regclass, facts jsonb, body text) RETURNS text
    LANGUAGE plpgsql
AS $$
DECLARE
    relname name;
    schema  name;
    guard   text;
BEGIN
    SELECT c.relname, n.nspname INTO relname, schema
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;

    guard := format('%I.%I', schema, left(relname, 40) || '_fencedb_guard');
    IF to_regprocedure(guard || '()') IS NOT NULL THEN -- left by a table that was renamed since
        guard := format('%I.%I', schema, left(relname, 40) || '_fencedb_guard_' || target::oid);
    END IF;
    -- Pinned: whatever a session could set to make the same row read as another resource.
    EXECUTE format($create$
        CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql
            SET search_path = pg_catalog, pg_temp
            SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
            SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET lc_numeric = 'C' SET lc_time = 'C'
            AS %L $create$, guard, body);
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', guard, facts);
    RETURN guard;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.create_guard(regclass, jsonb, text) IS 'Inner function. Creates the trigger function of a protected table and returns its name.';

-- The row trigger is named to fire after the other BEFORE triggers of the table, so that it judges the row as it will be
-- stored; triggers fire in the byte order of their names.
-- +goose StatementBegin
CREATE FUNCTION fencedb.check_triggers(member regclass, guard text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    later name := (SELECT min(t.tgname) FROM pg_trigger t
                   WHERE t.tgrelid = member AND t.tgname COLLATE "C" > '~fencedb_row' AND t.tgtype & 3 = 3); -- BEFORE, FOR EACH ROW
BEGIN
    IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = member AND (t.tgname = '~fencedb_row' AND t.tgfoid <> (guard || '()')::regprocedure
               OR t.tgname IN ('~fencedb_statement', '~fencedb_truncate') AND t.tgfoid <> 'fencedb.guard_statement'::regproc)) THEN
        RAISE EXCEPTION 'fencedb.protect: % has a trigger with the name of a guard that is none', member
            USING ERRCODE = 'duplicate_object', HINT = 'Somebody with the TRIGGER privilege put it there. Drop it and protect again.';
    ELSIF later IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect: the trigger "%" of % would change rows after they were judged', later, member
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Triggers fire in the byte order of their names. Rename it to begin with an ASCII letter.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_triggers(regclass, text) IS 'Inner function. Raises if another trigger of the table stands in the way of the guard.';

-- Protecting again adds guards to members that have come since, and switches on those that were switched off or left to
-- replication.
-- +goose StatementBegin
CREATE FUNCTION fencedb.create_triggers(target regclass, guard text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    m   record;
    own name;
BEGIN
    FOR m IN SELECT * FROM fencedb.members(target) LOOP
        PERFORM fencedb.check_triggers(m.member, guard);
        IF NOT m.is_partition AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row') THEN
            EXECUTE format('CREATE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s()', m.member, guard);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_truncate') THEN
            EXECUTE format('CREATE TRIGGER "~fencedb_statement" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION fencedb.guard_statement()', m.member);
            EXECUTE format('CREATE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_statement()', m.member);
        END IF;
        FOR own IN SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname ~ '^~fencedb_' AND t.tgenabled NOT IN ('O', 'A') LOOP
            EXECUTE format('ALTER TABLE %s ENABLE TRIGGER %I', m.member, own);
        END LOOP;
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.create_triggers(regclass, text) IS 'Inner function. Puts a guard before every member of a table, and switches on those that are switched off.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.check_target(target regclass, resource text, mode text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    present fencedb.protected_tables;
    odd     text;
BEGIN
    IF target IS NULL OR coalesce(btrim(resource), '') = '' THEN
        RAISE EXCEPTION 'fencedb.protect: needs a table and a resource expression'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT fencedb.protect(''bookings'', resource => $resource$ ''table:'' || table_id $resource$)';
    ELSIF NOT EXISTS (SELECT FROM fencedb.members(target))
       OR (SELECT relnamespace = 'fencedb'::regnamespace OR relpersistence = 't' FROM pg_class WHERE oid = target) THEN
        RAISE EXCEPTION 'fencedb.protect: % is not a table that can be protected', target
            USING ERRCODE = 'wrong_object_type', HINT = 'Protect ordinary and partitioned tables; the writes through a view reach the tables under it.';
    END IF;

    SELECT * INTO present FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF present.resource <> resource OR present.mode <> mode THEN
        RAISE EXCEPTION 'fencedb.protect: % is already protected, in mode %, with resource => %', target, present.mode, present.resource
            USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change that.';
    END IF;

    SELECT format('%I is %s, it must be %s that a trigger can set', a.attname, a.atttypid::regtype, own.type) INTO odd
    FROM pg_attribute a JOIN (VALUES ('last_fencing_token', 'bigint'::regtype), ('last_lease_id', 'uuid')) own(name, type) ON a.attname = own.name
    WHERE a.attrelid = target AND NOT a.attisdropped AND (a.atttypid <> own.type OR a.attgenerated <> '') AND (mode = 'row' OR own.name = 'last_fencing_token');
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect: column % of %', odd, target USING ERRCODE = 'datatype_mismatch';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_target(regclass, text, text) IS 'Inner function. Raises unless target can be protected with this expression in this mode.';

-- body is the trigger function, a template: %1$s is the resource expression, %2$I the name it knows the row by.
-- +goose StatementBegin
CREATE FUNCTION fencedb.guard_table(target regclass, resource text, mode text, body text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    guard    text := (SELECT p.guard::oid::regproc FROM fencedb.protected_tables p WHERE p.table_name = target);
    compiled record;
    added    text[];
    col      text;
BEGIN
    PERFORM fencedb.check_target(target, resource, mode);
    PERFORM fencedb.record_protection(target); -- if somebody has taken the guard away by hand
    IF guard IS NULL THEN
        compiled := fencedb.compile_resource(target, resource);
        IF mode = 'row' THEN
            PERFORM fencedb.check_row_key(target, compiled.columns, compiled.several);
        END IF;
        added := ARRAY(SELECT own.name FROM (VALUES ('last_fencing_token', 'ledger'), ('last_lease_id', 'row')) own(name, since)
                       WHERE (mode = 'row' OR own.since = 'ledger')
                         AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = own.name AND NOT a.attisdropped));
        FOREACH col IN ARRAY added LOOP
            EXECUTE format('ALTER TABLE %s ADD COLUMN %I %s', target, col,
                CASE col WHEN 'last_lease_id' THEN 'uuid' ELSE 'bigint NOT NULL DEFAULT 0' END);
        END LOOP;
        guard := fencedb.create_guard(target,
            jsonb_build_object('mode', mode, 'resource', resource, 'columns_added', added),
            format(body, compiled.expression, (SELECT c.relname FROM pg_class c WHERE c.oid = target)));
    END IF;
    PERFORM fencedb.create_triggers(target, guard);
    PERFORM fencedb.record_protection(target);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guard_table(regclass, text, text, text) IS 'Inner function. What protect and protect_row have in common.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.protect(target regclass, resource text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    body CONSTANT text := $body$
#variable_conflict use_column
DECLARE
    "~before" text[] := '{}';
    "~after"  text[] := '{}';
    "~stored" bigint;
    "~token"  bigint;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        "~before" := (SELECT %1$s FROM (SELECT OLD.*) AS %2$I);
        "~stored" := OLD.last_fencing_token;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        "~after" := (SELECT %1$s FROM (SELECT NEW.*) AS %2$I);
    END IF;
    "~token" := fencedb.require(TG_RELID, TG_OP, "~before", "~after", "~stored");
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.last_fencing_token := "~token";
    RETURN NEW;
END
$body$;
BEGIN
    PERFORM fencedb.guard_table(target, resource, 'ledger', body);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.protect(regclass, text) IS 'From now on, no INSERT, UPDATE, DELETE, TRUNCATE, COPY or MERGE on target commits without a current token for each row''s own resource. resource is a text expression over one row of target (text[] where a row belongs to several resources). Adds last_fencing_token, the token of the last write to the row. Waits for open transactions on target and blocks new ones meanwhile: set lock_timeout and try again. Call it once more after adding a partition (to guard that against TRUNCATE by name) or an inheritance child (to guard it at all).';

-- +goose StatementBegin
CREATE FUNCTION fencedb.unprotect(target regclass, keep_columns boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    protection fencedb.protected_tables;
    m          record;
    col        text;
BEGIN
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF NOT FOUND THEN
        RAISE NOTICE 'fencedb.unprotect: % is not protected', target;
        RETURN;
    END IF;
    PERFORM fencedb.record_protection(target); -- what is not known to have been protected, as in a copy of the schema alone
    FOR m IN SELECT * FROM fencedb.members(target) LOOP
        IF NOT m.is_partition THEN
            EXECUTE format('DROP TRIGGER IF EXISTS "~fencedb_row" ON %s', m.member);
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS "~fencedb_statement" ON %s', m.member);
        EXECUTE format('DROP TRIGGER IF EXISTS "~fencedb_truncate" ON %s', m.member);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', protection.guard);
    IF NOT keep_columns THEN
        FOREACH col IN ARRAY protection.columns_added LOOP
            EXECUTE format('ALTER TABLE %s DROP COLUMN %I', target, col);
        END LOOP;
    END IF;
    PERFORM fencedb.record_protection(target);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.unprotect(regclass, boolean) IS 'Undoes protect and protect_row: any client can write without a token again. Drops the columns that they had added, unless keep_columns.';

REVOKE ALL ON FUNCTION fencedb.raise_no_token(text, text), fencedb.require_lease(jsonb) FROM PUBLIC;
GRANT SELECT ON fencedb.protected_tables TO PUBLIC;

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    tables text := (SELECT string_agg(p.table_name::text, ', ' ORDER BY p.table_name::text) FROM fencedb.protected_tables p);
BEGIN
    IF tables IS NOT NULL THEN
        RAISE EXCEPTION 'still protected: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.unprotect for each, then migrate down.';
    END IF;
END
$$;
-- +goose StatementEnd
DROP FUNCTION fencedb.unprotect(regclass, boolean);
DROP FUNCTION fencedb.protect(regclass, text);
DROP FUNCTION fencedb.guard_table(regclass, text, text, text);
DROP FUNCTION fencedb.check_target(regclass, text, text);
DROP FUNCTION fencedb.create_triggers(regclass, text);
DROP FUNCTION fencedb.check_triggers(regclass, text);
DROP FUNCTION fencedb.create_guard(regclass, jsonb, text);
DROP FUNCTION fencedb.compile_resource(regclass, text);
DROP FUNCTION fencedb.record_protection(regclass);
DROP VIEW fencedb.protected_tables;
DROP FUNCTION fencedb.guard_facts(oid);
DROP FUNCTION fencedb.members(regclass);
DROP FUNCTION fencedb.guard_statement();
DROP FUNCTION fencedb.require(regclass, text, text[], text[], bigint);
DROP FUNCTION fencedb.require_lease(jsonb);
DROP FUNCTION fencedb.raise_no_token(text, text);
DROP FUNCTION fencedb.resources_of(text[]);
DROP FUNCTION fencedb.resources_of(text);
