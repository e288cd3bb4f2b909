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
            ERRCODE = 'FN004',
            MESSAGE = 'the lease is over: the validity that this transaction entered with has passed',
            HINT    = 'Nothing was written. Acquire the lease again; do the work in a shorter transaction, or under a longer lease.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_lease(jsonb) IS 'Inner function. Raises FN004 when the validity given to enter has passed.';

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

    -- The ledger has already refused stale tokens. This catches a ledger that was emptied under its rows.
    token := (grants -> before[1] ->> 'token')::bigint;
    IF token < stored THEN
        PERFORM fencedb.raise_stale(before[1], token, stored);
    END IF;
    RETURN (grants -> after[1] ->> 'token')::bigint;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require(regclass, text, text[], text[], bigint) IS 'Raises FN001 to FN004 unless this transaction entered the fences of all resources of a row; returns the token to stamp on it.';

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
    IF granted ->> 'until' IS NOT NULL THEN
        PERFORM fencedb.bound(greatest(1, (granted ->> 'until')::numeric - extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    END IF;
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

CREATE VIEW fencedb.protected_tables AS
SELECT t.tgrelid::regclass                                                    AS table_name,
       (obj_description(t.tgfoid, 'pg_proc')::jsonb) ->> 'resource'            AS resource,
       (obj_description(t.tgfoid, 'pg_proc')::jsonb ->> 'column_added')::boolean AS column_added,
       t.tgfoid::regprocedure                                                 AS guard,
       t.tgenabled <> 'D'                                                     AS enabled
FROM pg_trigger t
WHERE t.tgname = '~fencedb_row' AND t.tgparentid = 0;

COMMENT ON VIEW fencedb.protected_tables IS 'The tables that fencedb.protect guards, with their resource expressions. enabled is false when somebody has switched the trigger off.';

-- Refuses what could not give a resource for every row, now instead of at the first write, and returns the expression as
-- Postgres understood it: every function and operator named with its schema, so that no search_path changes its meaning.
-- A CHECK constraint on an empty copy of the table is the probe: it admits expressions over one row and nothing else.
-- +goose StatementBegin
CREATE FUNCTION fencedb.compile_resource(target regclass, resource text) RETURNS text
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

    SELECT string_agg(DISTINCT p.proname, ', ') INTO offender
    FROM regexp_matches(probe.tree, ':(?:funcid|opfuncid) (\d+)', 'g') AS m
    JOIN pg_proc p ON p.oid = m[1]::oid AND p.provolatile = 'v';
    IF offender IS NOT NULL THEN
        RAISE EXCEPTION 'it calls volatile functions (%), so one row could have two resources', offender;
    END IF;

    SELECT string_agg(a.attname, ', ') INTO offender
    FROM pg_attribute a
    WHERE a.attrelid = target AND a.attname = ANY (probe.columns) AND (a.attgenerated <> '' OR a.attnum < 0);
    IF offender IS NOT NULL THEN
        RAISE EXCEPTION 'it reads columns that have no value yet when a row is judged (%)', offender;
    END IF;

    RETURN regexp_replace(probe.source, '^\((.*) IS NOT NULL\)$', '\1');
EXCEPTION WHEN OTHERS THEN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = format('fencedb.protect: the resource expression for %s cannot be used: %s', target, SQLERRM),
        DETAIL  = format('resource => %s', resource),
        HINT    = 'It must be a text (or text[]) expression over one row of the table, for example ''table:'' || table_id.';
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.compile_resource(regclass, text) IS 'Checks a resource expression against a table; returns it fully qualified.';

-- The guard of one table: its resource expression, compiled. It reads the row as a table of the old name and no declared
-- types, so that renaming the table or changing a column's type does not break it. The trigger that runs it is named to
-- sort after every other BEFORE trigger of the table, so that it judges the row as it will be stored.
-- +goose StatementBegin
CREATE FUNCTION fencedb.create_guard(target regclass, expression text) RETURNS text
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

    EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS %L', guard, format($body$
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
$body$, expression, relname));
    RETURN guard;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.create_guard(regclass, text) IS 'Creates the trigger function of a protected table, in the schema of the table, and returns its name.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.protect(target regclass, resource text) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    present     text := (SELECT p.resource FROM fencedb.protected_tables p WHERE p.table_name = target);
    column_type oid  := (SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = target AND a.attname = 'last_fencing_token' AND NOT a.attisdropped);
    guard       text;
    m           record;
BEGIN
    IF target IS NULL OR coalesce(btrim(resource), '') = '' THEN
        RAISE EXCEPTION 'fencedb.protect: needs a table and a resource expression'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT fencedb.protect(''bookings'', resource => $resource$ ''table:'' || table_id $resource$)';
    ELSIF NOT EXISTS (SELECT FROM fencedb.members(target)) OR (SELECT relnamespace FROM pg_class WHERE oid = target) = 'fencedb'::regnamespace THEN
        RAISE EXCEPTION 'fencedb.protect: % is not a table that can be protected', target
            USING ERRCODE = 'wrong_object_type', HINT = 'Protect ordinary and partitioned tables; the writes through a view reach the tables under it.';
    ELSIF present IS NOT NULL AND present <> resource THEN
        RAISE EXCEPTION 'fencedb.protect: % is already protected, with resource => %', target, present
            USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change the expression.';
    ELSIF column_type <> 'bigint'::regtype THEN
        RAISE EXCEPTION 'fencedb.protect: %.last_fencing_token is %, it must be bigint', target, column_type::regtype
            USING ERRCODE = 'datatype_mismatch';
    END IF;

    IF present IS NULL THEN
        guard := fencedb.create_guard(target, fencedb.compile_resource(target, resource));
        EXECUTE format('COMMENT ON FUNCTION %s() IS %L', guard, jsonb_build_object('resource', resource, 'column_added', column_type IS NULL));
        IF column_type IS NULL THEN
            EXECUTE format('ALTER TABLE %s ADD COLUMN last_fencing_token bigint NOT NULL DEFAULT 0', target);
        END IF;
    ELSE
        guard := (SELECT p.guard::oid::regproc FROM fencedb.protected_tables p WHERE p.table_name = target);
    END IF;

    -- Protecting again does nothing, but for members that have come since.
    FOR m IN SELECT * FROM fencedb.members(target) LOOP
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row') AND NOT m.is_partition THEN
            EXECUTE format('CREATE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s()', m.member, guard);
        END IF;
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_truncate') THEN
            EXECUTE format('CREATE TRIGGER "~fencedb_statement" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION fencedb.guard_statement()', m.member);
            EXECUTE format('CREATE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_statement()', m.member);
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.protect(regclass, text) IS 'From now on, no INSERT, UPDATE, DELETE, TRUNCATE, COPY or MERGE on target commits without a current token for each row''s own resource. resource is a text expression over one row of target (text[] where a row belongs to several resources). Adds last_fencing_token, the token of the last write to the row. Waits for open transactions on target and blocks new ones meanwhile: set lock_timeout and try again. Call it once more after adding a partition, to guard that partition against TRUNCATE by name.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.unprotect(target regclass, keep_column boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    protection fencedb.protected_tables;
    m          record;
BEGIN
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF NOT FOUND THEN
        RAISE NOTICE 'fencedb.unprotect: % is not protected', target;
        RETURN;
    END IF;
    FOR m IN SELECT * FROM fencedb.members(target) LOOP
        IF NOT m.is_partition THEN
            EXECUTE format('DROP TRIGGER IF EXISTS "~fencedb_row" ON %s', m.member);
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS "~fencedb_statement" ON %s', m.member);
        EXECUTE format('DROP TRIGGER IF EXISTS "~fencedb_truncate" ON %s', m.member);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', protection.guard);
    IF protection.column_added AND NOT keep_column THEN
        EXECUTE format('ALTER TABLE %s DROP COLUMN last_fencing_token', target);
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.unprotect(regclass, boolean) IS 'Undoes protect: any client can write without a token again. Drops last_fencing_token if protect had added it, unless keep_column.';

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
DROP FUNCTION fencedb.create_guard(regclass, text);
DROP FUNCTION fencedb.compile_resource(regclass, text);
DROP VIEW fencedb.protected_tables;
DROP FUNCTION fencedb.members(regclass);
DROP FUNCTION fencedb.guard_statement();
DROP FUNCTION fencedb.require(regclass, text, text[], text[], bigint);
DROP FUNCTION fencedb.require_lease(jsonb);
DROP FUNCTION fencedb.raise_no_token(text, text);
DROP FUNCTION fencedb.resources_of(text[]);
DROP FUNCTION fencedb.resources_of(text);
