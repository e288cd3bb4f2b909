-- Protected tables: every write to them, by any client, needs the token of each row's own resource.
--
-- protect creates the guard of a table (write_guard, from guard_text) and its triggers
-- (create_triggers). The guard is one function for two kinds of triggers:
--     - The statement trigger checks whether the writer may enter, the transaction has entered, and
--       its limits need not be lowered yet (in_time). If not, it calls check_statement, which
--       lowers the limits or refuses.
--     - The row trigger looks the row's resource up in the open list (00001) and stamps the row
--       with the token. If it finds no token, or the row has a newer one, it calls check_row, which
--       checks in full, and refuses the row or returns its token.
-- Both raise their errors through refuse. For rows with the resource table:{table_id}, the row
-- trigger of a guard is in essence
--     NEW.last_fencing_token := CASE WHEN login_may_enter() AND an UPDATE has not changed table_id
--         THEN the token after U+0001<xid>rtable:<table_id>U+0001t in the open list END;
--     IF that is not above 0, or is below OLD.last_fencing_token THEN
--         NEW.last_fencing_token := check_row(...); -- raises an error, or returns the token
--     END IF;
--
-- psql shows the guard of a table (outside the schema public, fencedb.protected_tables has its
-- name) with
--     \sf fencedb.guard_<table>

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- The owners of tables call these functions, even if the role that migrates has revoked EXECUTE on
-- new functions from PUBLIC.
ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

-- Guards, and the functions that they call, run with the rights of the writer. A few functions have
-- the rights of this schema's owner (SECURITY DEFINER); called by hand, they give nobody more. What
-- runs for each statement or row has no SET, which would cost more than the work itself. So every
-- name in it has its schema, operators included; it has no NULLIF and no IN, whose operator cannot
-- be qualified. A RETURN body needs no schemas: its names were resolved when the migration ran.

-- Whether this transaction has entered and the limits of statements need not be lowered yet. A
-- guard asks this before each statement, and at each row whose statement may have fired no
-- statement trigger. The list of a role that takes over has no times (overtake): greatest turns the
-- empty text into 0, so the answer is false.
CREATE FUNCTION fencedb.in_time() RETURNS boolean
    LANGUAGE sql
    RETURN split_part(current_setting('fencedb.entered', true), ' ', 1) = pg_current_xact_id_if_assigned()::text AND date_part('epoch', clock_timestamp()) * 1000 < greatest(split_part(current_setting('fencedb.entered', true), ' ', 2), '0')::float8;

-- refuse raises the error of a guard: FN002, FN003 or FN006. A TRUNCATE always gets FN002. resource
-- is NULL for a statement, and for a row that has none.
CREATE FUNCTION fencedb.refuse(code text, target oid, operation text, resource text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    templates text[] := (SELECT p.resource FROM fencedb.protected_tables p WHERE p.table_name = fencedb.guarded_root(target));
    entries   text   := fencedb.entries();
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = code,
        MESSAGE = CASE
            WHEN code = 'FN006' THEN 'the transaction has outlasted the validity that it entered with'
            WHEN operation = 'TRUNCATE' THEN format('TRUNCATE on protected table %s is refused', target::regclass)
            WHEN code = 'FN002' THEN format('%s on protected table %s without a fencing token', operation, target::regclass)
            WHEN resource IS NULL THEN format('%s on protected table %s: the row has no resource, since a column of the template is NULL or a date is not between the years 1 and 9999', operation, target::regclass)
            ELSE format('%s on protected table %s: the row belongs to resource "%s", whose fence this transaction did not enter', operation, target::regclass, resource)
        END,
        DETAIL = jsonb_strip_nulls(jsonb_build_object('table', target::regclass, 'resource', resource, 'entered', CASE code WHEN 'FN003' THEN ARRAY(SELECT m[1] FROM regexp_matches(entries, E'\x01[0-9]+r([^\x01]*)\x01t', 'g') m) END))::text,
        HINT = CASE
            WHEN code = 'FN006' THEN 'Nothing was written. Use a shorter transaction, or enter with a longer remaining_ms: under a longer lease or, if the lease is renewed while the transaction runs, with the validity that it will have then.'
            WHEN operation = 'TRUNCATE' THEN 'Nothing was written. Use DELETE, which names its rows.'
            WHEN code = 'FN002' AND entries IS NOT NULL AND NOT fencedb.may_enter() THEN format('%s may not enter fences, so what is written here is refused. The role that ran the migrations can let it enter, with fencedb.allow. Nothing was written.',
                CASE WHEN has_table_privilege(session_user, 'pg_authid', 'TRUNCATE') THEN format('The role %I, as which the superuser %I acts,', current_user, session_user) ELSE format('The login %I', session_user) END)
            WHEN code = 'FN002' THEN format('Call fencedb.enter for %s first in the transaction (in Go: package guard, or fencedb.Tx; with psql: fencedb with %s -- sh -c ''psql "$FENCEDB_POSTGRES_URL" -v ON_ERROR_STOP=1 -1 -c "$FENCEDB_ENTER" -f plain.sql''). ROLLBACK TO a savepoint before it, and RESET ALL, take an entry back. Nothing was written.',
                coalesce(quote_literal(resource), concat('the resource of the row', ', which is ' || array_to_string(templates, ' and ') || ',')), coalesce('''' || replace(resource, '''', $q$'\''$q$) || '''', 'RESOURCE'))
            WHEN resource IS NULL THEN format('Nothing was written. Every row needs a resource, by %s: make these columns NOT NULL.', array_to_string(templates, ' and '))
            ELSE 'Enter with the grants of all resources the transaction writes to. Nothing was written.'
        END;
END
$$;

-- check_row checks a row that the guard does not pass by itself: a row that an UPDATE moves to
-- another resource, a row that is not written by the login itself, a row of a role that takes over
-- (below), a row for which in_time is not true, and every row that is to be refused. An observing
-- guard leaves to it every row of which it has no record (recorded). own has the resources of the
-- row as it will be, former of the row as it was; for INSERT and DELETE they are the same. Returns
-- the token to stamp, that of the first resource, or NULL where an observing guard lets the row
-- pass unfenced.
--
-- enter has already refused stale tokens, and holds the fence. So a row whose stamp is newer than
-- the token of its fence shows that the ledger was emptied (FN001), unless fencedb.reset_fence has
-- set the fence back.
CREATE FUNCTION fencedb.check_row(target oid, operation text, own text[], former text[], stamp bigint, observing boolean) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    left_ms    float8  := CASE WHEN fencedb.may_enter() THEN fencedb.left_ms() END;
    takes_over boolean := left_ms IS NULL AND fencedb.overtakes(target); -- also where the guard observes: otherwise a holder could lose its writes
    wanted     text;
    fence      bigint;
    token      bigint;
    code       text;
BEGIN
    IF takes_over THEN
        PERFORM fencedb.overtake(target, own || former, former[1], stamp, observing);
    END IF;
    FOREACH wanted IN ARRAY own || CASE WHEN (own = former) IS NOT TRUE THEN former END LOOP
        fence := fencedb.token_of(wanted);
        code := CASE WHEN left_ms IS NULL AND NOT takes_over THEN 'FN002'
                     WHEN left_ms < 0 THEN 'FN006'
                     WHEN wanted IS NULL OR fence IS NULL THEN 'FN003'
                     WHEN wanted = former[1] COLLATE "C" AND stamp > fence AND stamp > coalesce(fencedb.ignored_stamps(wanted), 0) THEN 'FN001' END;
        IF code IS NOT NULL AND observing THEN
            PERFORM fencedb.let_pass(target, operation, code, true, wanted);
            RETURN NULL;
        ELSIF code = 'FN001' THEN
            PERFORM fencedb.raise_stale(wanted, fence, stamp);
        ELSIF code IS NOT NULL THEN
            PERFORM fencedb.refuse(code, target, operation, wanted);
        END IF;
        token := coalesce(token, fence);
    END LOOP;
    RETURN token;
END
$$;

CREATE FUNCTION fencedb.ignored_stamps(resource text) RETURNS bigint
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.reset_from FROM fencedb.fences f WHERE f.resource = ignored_stamps.resource COLLATE "C" AND fencedb.token_of(f.resource) IS NOT NULL
$$;

COMMENT ON FUNCTION fencedb.ignored_stamps IS 'The token up to which stamps of rows are ignored, for a resource that this transaction has entered: fencedb.reset_fence has set its fence back. NULL if every stamp counts.';

-- check_statement checks a statement before its first row, so it refuses a statement that matches
-- no row, too. It leaves a statement of another trigger, such as a cascade, to the row trigger: the
-- statement may match no row, and then it writes nothing. For later statements of a long
-- transaction, check_statement lowers the limits to what is left of the lease.
--
-- A partition gets its row trigger from its parent, and loses it by DETACH PARTITION. So the
-- statement trigger of a partition has the protected table as arguments (oid, and name for a copy
-- of the database), and check_statement checks that it is still an ancestor. It calls a function
-- for this, which reads the catalog as it is now: a query would use the transaction's snapshot.
CREATE FUNCTION fencedb.check_statement(target oid, operation text, args text[], observing boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ledger   text   := args[1]; -- NULL unless it is a partition; TG_ARGV counts from 0, so this is the second argument
    root     text   := args[2];
    name     text   := args[3];
    left_ms  float8 := CASE WHEN operation <> 'TRUNCATE' AND fencedb.may_enter() THEN ceil(fencedb.left_ms()) END; -- NULL: it has not entered
    limit_ms bigint := greatest(1, least(2147483647, left_ms - floor(left_ms / 256)))::bigint;
BEGIN
    IF root IS NOT NULL AND NOT EXISTS (SELECT FROM pg_partition_ancestors(target) a
            WHERE a.relid = CASE WHEN ledger = 'fencedb.fences'::regclass::oid::text THEN root::oid ELSE to_regclass(name) END) THEN
        IF observing THEN
            RETURN;
        END IF;
        RAISE EXCEPTION '% on table %, which was detached from a protected table and has lost its guard of rows', operation, target::regclass
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Nothing was written. As owner of the table call fencedb.protect to guard it again, or fencedb.unprotect to let any client write to it.';
    ELSIF left_ms >= 0 THEN -- the part by which the limits were short has passed
        PERFORM fencedb.lower_limit('statement_timeout', limit_ms), fencedb.lower_limit('idle_in_transaction_session_timeout', limit_ms),
            set_config('fencedb.entered', concat(pg_current_xact_id(), ' ', split_part(fencedb.entries(), ' ', 3)::bigint - limit_ms, ' ', regexp_replace(fencedb.entries(), '^[^ ]+ [^ ]+ ', '')), true);
        RETURN;
    ELSIF operation <> 'TRUNCATE' AND left_ms IS NULL AND (pg_trigger_depth() > 1 OR fencedb.overtakes(target)) THEN
        RETURN; -- the row trigger checks its rows
    END IF;
    IF observing THEN
        PERFORM fencedb.let_pass(target, operation, CASE WHEN left_ms IS NULL THEN 'FN002' ELSE 'FN006' END, false, NULL);
    ELSE
        PERFORM fencedb.refuse(CASE WHEN left_ms IS NULL THEN 'FN002' ELSE 'FN006' END, target, operation, NULL);
    END IF;
END
$$;

-- A partitioned table passes its row triggers on to its partitions, but not its statement triggers,
-- and a TRUNCATE may name a partition. So protect adds triggers to every member.
--
-- Postgres expects a thousand rows of a function, and would read whole catalogs to join them. With
-- ROWS 1 it looks each member up.
CREATE FUNCTION fencedb.members(target regclass) RETURNS TABLE (member regclass, is_partition boolean)
    LANGUAGE sql STABLE ROWS 1
    SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE tree(member) AS (
        SELECT target::oid
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.member
    )
    SELECT c.oid::regclass, c.relispartition AND c.oid <> target
    FROM tree JOIN pg_class c ON c.oid = tree.member
    WHERE c.relkind IN ('r', 'p', 'f')
$$;

COMMENT ON FUNCTION fencedb.members IS 'A table with all its partitions and inheritance children.';

-- The table that was protected: this one, or a parent of this partition or child. In PL/pgSQL,
-- which keeps the plan: guards call it for each row of a role that takes over.
CREATE FUNCTION fencedb.guarded_root(guarded oid) RETURNS oid
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        WITH RECURSIVE up(rel, depth) AS (
            SELECT guarded, 0
            UNION
            SELECT i.inhparent, up.depth + 1 FROM up JOIN pg_inherits i ON i.inhrelid = up.rel JOIN pg_trigger t ON t.tgrelid = i.inhparent AND t.tgname = '~fencedb_row'
        )
        SELECT up.rel FROM up ORDER BY up.depth DESC LIMIT 1
    );
END
$$;

-- protect keeps its facts in the comment on the guard, which a dump of the schema includes. The
-- guard is in this schema, so others cannot change the comment. Whether a guard observes is read
-- from its source, which every transaction sees as it is now, whatever its snapshot.
CREATE VIEW fencedb.protected_tables AS
SELECT guarded.*,
       (SELECT array_agg(DISTINCT m.member::text) FROM fencedb.members(guarded.table_name) m JOIN pg_trigger t ON t.tgrelid = m.member
        WHERE t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') AND t.tgenabled NOT IN ('O', 'A')) AS switched_off
FROM (
SELECT t.tgrelid::regclass AS table_name,
       nullif(ARRAY(SELECT jsonb_array_elements_text(facts -> 'resource')), '{}') AS resource,
       (facts ->> 'column_added')::boolean AS column_added,
       t.tgfoid::regprocedure AS guard,
       (SELECT count(*) FROM pg_trigger s WHERE s.tgrelid = t.tgrelid AND s.tgfoid = t.tgfoid AND s.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') AND s.tgenabled IN ('O', 'A')) = 3 AS enabled,
       observes AS observed,
       CASE WHEN observes THEN (facts ->> 'observed_since')::timestamptz END AS observed_since,
       (SELECT (obj_description(n.oid, 'pg_proc')::jsonb ->> 'since')::timestamptz FROM pg_trigger h JOIN pg_proc n ON n.oid = h.tgfoid AND n.pronamespace = 'fencedb'::regnamespace
        WHERE h.tgrelid = t.tgrelid AND h.tgname = '~fencedb_note_update') AS history_since
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = 'fencedb'::regnamespace, LATERAL (
    SELECT CASE WHEN c.comment ^@ '{' THEN c.comment::jsonb END AS facts, pg_get_functiondef(p.oid) ~ 'DECLARE -- observes' AS observes FROM (SELECT obj_description(p.oid, 'pg_proc') AS comment) c) noted -- Postgres may read the comments of other functions too, which are not JSON
WHERE t.tgname = '~fencedb_row' AND t.tgparentid = 0
UNION ALL
SELECT DISTINCT t.tgrelid::regclass, NULL::text[], NULL::boolean, t.tgfoid::regprocedure, false, NULL::boolean, NULL::timestamptz, NULL::timestamptz
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = 'fencedb'::regnamespace
WHERE t.tgname IN ('~fencedb_statement', '~fencedb_truncate')
  AND NOT EXISTS (SELECT FROM pg_trigger r WHERE r.tgrelid = t.tgrelid AND r.tgname = '~fencedb_row' AND r.tgfoid = t.tgfoid)) guarded;

COMMENT ON VIEW fencedb.protected_tables IS 'The tables that are guarded, with the templates of their resources. resource is NULL where the row trigger is gone, as after DETACH PARTITION. enabled is false if a trigger of the guard is missing, disabled or left to replication. observed says that the guard refuses nothing (see fencedb.enforce), and observed_since since when. history_since says since when statements are noted while history is kept; NULL if they are not. switched_off names those of the table, its partitions and inheritance children that have a trigger of the guard disabled or left to replication; NULL if there are none.';

-- A template is literal text with columns in braces; a double brace stands for one in the text. The
-- text of a column must not depend on settings of the session, and must be equal for values that
-- the table takes for equal. So a template reads columns only with functions that no setting
-- changes: output functions, which concat calls, and to_char for a date.
--     expression  the resource of the row %1$s; NULL if it has none
--     key         what stands before the token of the guard's row in the open list; NULL if the row
--                 has no resource. Not for an UPDATE that moves the row
--     same        whether NEW and OLD have the same resource
--     longest     how many bytes the resource can have; NULL if it can be empty or of any length
--     typed       whether the columns of the row %1$s still have the types that they have now
CREATE FUNCTION fencedb.read_template(target regclass, template text, OUT columns name[], OUT expression text, OUT longest int, OUT key text, OUT same text, OUT typed text)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
AS $$
DECLARE
    pieces  text[] := ARRAY(SELECT m[1] FROM regexp_matches(template, '\{\{|\}\}|\{[^{}]*\}|[^{}]+', 'g') WITH ORDINALITY r(m, i) ORDER BY r.i);
    piece   text;
    after_column boolean := false;
    col     pg_attribute;
    base    pg_type;
    typmod  int;
    type    text;
    read    text;
    either  text; -- a guard's row is NEW, or OLD for a DELETE; then NEW is NULL
    written text;
    filled  text;
    args    text[] := '{}';
    there   text[] := '{}';
    keys    text[] := '{}';
    found   text[] := '{}';
    sames   text[] := '{}';
    types   text[] := '{}';
    bytes   int := 0;
    problem text;
    way_out text;
BEGIN
    columns := '{}';
    IF coalesce(template, '') = '' OR array_to_string(pieces, '') <> template OR template ~ '\|\|' OR template ~ '[''()]' AND template !~ '\{'
       OR template ~ '\}::[a-z]' OR template !~ '\{' AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = split_part(template, '::', 1) AND NOT a.attisdropped) THEN
        problem := CASE WHEN coalesce(template, '') = '' THEN 'it is empty' WHEN array_to_string(pieces, '') <> template THEN 'a brace in it has no partner' ELSE 'it looks like an expression' END;
        way_out := format('A template is text with columns in braces, as in %s. Write {{ and }} for braces of the text.',
            CASE WHEN template ~ '\}::[a-z]' THEN split_part(template, '::', 1) WHEN template ~ '^\w+(::|$)' THEN format('{%s}', split_part(template, '::', 1)) ELSE 'sku:{sku}' END);
    END IF;
    FOREACH piece IN ARRAY pieces LOOP
        EXIT WHEN problem IS NOT NULL;
        IF piece !~ '^\{[^{]' THEN
            piece := CASE piece WHEN '{{' THEN '{' WHEN '}}' THEN '}' ELSE piece END;
            args := args || replace(quote_literal(piece), '%', '%%');
            keys := keys || quote_literal(piece);
            bytes := bytes + octet_length(piece);
            after_column := false;
            CONTINUE;
        END IF;
        SELECT * INTO col FROM pg_attribute a WHERE a.attrelid = target AND a.attname = substr(piece, 2, length(piece) - 2) AND a.attnum > 0 AND NOT a.attisdropped;
        typmod := col.atttypmod;
        SELECT * INTO base FROM pg_type t WHERE t.oid = col.atttypid;
        WHILE base.typtype = 'd' LOOP
            typmod := greatest(typmod, base.typtypmod);
            SELECT * INTO base FROM pg_type t WHERE t.oid = base.typbasetype;
        END LOOP;
        type := base.oid::regtype;
        read := '%1$s.' || replace(quote_ident(col.attname), '%', '%%');
        either := format('coalesce(%s, %s)', format(read, 'NEW'), format(read, 'OLD'));
        way_out := 'Use a column of its own for it, of type text for example, tied to the others by a CHECK or a composite foreign key.';
        IF col.attname IS NULL THEN
            problem := format('there is no column "%s"', substr(piece, 2, length(piece) - 2));
            way_out := 'Name columns as the catalog has them, without quotes. If one was renamed, protect the table again with its new name.';
        ELSIF after_column THEN
            problem := format('there is no text between column "%s" and the column before, so other values could give the same resource', col.attname);
            way_out := 'Put a separator between them, as in {a}:{b}.';
        ELSIF col.attname = 'last_fencing_token' THEN
            problem := 'column "last_fencing_token" is the stamp of the guard';
        ELSIF col.attgenerated <> '' THEN
            problem := format('column "%s" is generated: it gets its value after the guard has looked', col.attname);
        ELSIF base.typtype <> 'e' AND type NOT IN ('smallint', 'integer', 'bigint', 'boolean', 'text', 'character varying', 'character', 'uuid', 'date')
              AND NOT (type = 'numeric' AND typmod >= 4 AND (typmod - 4) & 2047 = 0) THEN -- scale 0
            problem := format('column "%s" has type %s, of which equal values can have different texts, or a text that depends on settings', col.attname, format_type(col.atttypid, col.atttypmod));
        ELSIF EXISTS (SELECT FROM pg_collation c WHERE c.oid = col.attcollation AND NOT c.collisdeterministic) THEN
            problem := format('column "%s" has a collation that takes different texts for equal', col.attname);
        ELSIF EXISTS (SELECT FROM fencedb.members(target) m JOIN pg_attribute a ON a.attrelid = m.member
                      WHERE a.attname = col.attname AND (NOT a.attnotnull OR EXISTS (SELECT FROM pg_constraint c -- Postgres 18 and newer: NOT NULL may be NOT VALID
                          WHERE c.conrelid = m.member AND c.contype = 'n' AND NOT c.convalidated AND a.attnum = ANY (c.conkey)))) THEN
            problem := format('column "%s" may be NULL', col.attname);
            way_out := format('Fill it, and ALTER TABLE %s ALTER COLUMN %I SET NOT NULL; in inheritance children as well.', target, col.attname);
        END IF;
        columns := columns || col.attname;
        written := CASE type
            WHEN 'boolean' THEN 'CASE WHEN ~ THEN ''true'' ELSE ''false'' END'
            WHEN 'date' THEN 'pg_catalog.to_char(~::pg_catalog.timestamp, ''YYYY-MM-DD'')'
            WHEN 'character' THEN 'pg_catalog.rtrim(pg_catalog.concat(~), '' '')'
            ELSE '~' END;
        filled := CASE type WHEN 'date' THEN '~ OPERATOR(pg_catalog.>=) ''0001-01-01''::pg_catalog.date AND ~ OPERATOR(pg_catalog.<=) ''9999-12-31''::pg_catalog.date' ELSE '~ IS NOT NULL' END;
        args := args || replace(written, '~', read);
        there := there || replace(filled, '~', read);
        keys := keys || replace(written, '~', either);
        found := found || replace(filled, '~', either);
        types := types || format('pg_catalog.pg_typeof(%s) OPERATOR(pg_catalog.=) ''%s''::pg_catalog.oid', read, col.atttypid);
        sames := sames || format(CASE WHEN base.typtype = 'e' THEN 'pg_catalog.concat(%s) OPERATOR(pg_catalog.=) pg_catalog.concat(%s)' ELSE '%s OPERATOR(pg_catalog.=) %s' END || CASE WHEN col.attcollation <> 0 THEN ' COLLATE pg_catalog."C"' ELSE '' END,
            format(read, 'NEW'), format(read, 'OLD'));
        bytes := bytes + CASE
            WHEN base.typtype = 'e' THEN 63
            WHEN type IN ('character varying', 'character') AND typmod >= 4 THEN least(typmod - 4, 1000) * 4
            WHEN type = 'numeric' THEN (typmod - 4) / 65536 + 1
            ELSE (SELECT l.bytes FROM (VALUES ('smallint', 6), ('integer', 11), ('bigint', 20), ('boolean', 5), ('uuid', 36)) l(name, bytes) WHERE l.name = type)
        END;
        after_column := true;
    END LOOP;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect: the template % gives no resource for the rows of %: %', quote_nullable(template), target, problem
            USING ERRCODE = 'invalid_parameter_value', HINT = way_out;
    END IF;
    expression := format('CASE WHEN %s THEN pg_catalog.concat(%s) END', coalesce(nullif(array_to_string(there, ' AND '), ''), 'true'), array_to_string(args, ', '));
    key := format($key$CASE WHEN %s THEN pg_catalog.concat(E'\x01', pg_catalog.pg_current_xact_id_if_assigned(), 'r', %s, E'\x01t') END$key$, coalesce(nullif(array_to_string(found, ' AND '), ''), 'true'), array_to_string(keys, ', '));
    typed := coalesce(nullif(array_to_string(types, ' AND '), ''), 'true');
    same := coalesce(nullif(array_to_string(sames, ' AND '), ''), 'true');
    longest := CASE WHEN template !~ '^\{[^{}]*\}$' OR type NOT IN ('text', 'character varying', 'character') THEN bytes END;
END
$$;

-- Raises unless the caller owns the table and the table is not guarded as a part of another. This
-- gives a clear error; the proof that the owner wants a change is an order (see order_guard). Then
-- lock_guard locks the table against other changes of its guard, not against writers. What the
-- caller reads of the guard from here on stays true until its transaction ends.
CREATE FUNCTION fencedb.lock_guard(target regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class  pg_class := (SELECT c FROM pg_class c WHERE c.oid = target);
    parent regclass;
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'fencedb: needs a table, got NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'to_regclass returns NULL if no table has that name; a cast to regclass raises an error.';
    ELSIF class.relpersistence IS NULL OR class.relpersistence = 't' THEN
        RAISE EXCEPTION 'fencedb: % is temporary, or does not exist', target USING ERRCODE = 'wrong_object_type';
    ELSIF NOT pg_has_role(current_user, class.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'fencedb: % does not own %', current_user, target
            USING ERRCODE = 'insufficient_privilege', HINT = 'Log in as the owner of the table, or SET ROLE to it.';
    ELSIF class.relkind IN ('r', 'p') THEN
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', target);
    END IF;
    parent := (SELECT min(i.inhparent) FROM pg_inherits i JOIN pg_trigger t ON t.tgrelid = i.inhparent WHERE i.inhrelid = target AND t.tgname = '~fencedb_row');
    IF parent IS NOT NULL THEN
        RAISE EXCEPTION '% is guarded as a part of %', target, parent
            USING ERRCODE = 'object_in_use', HINT = format('Call fencedb.protect or fencedb.unprotect for %s, or take %s out of it first (ALTER TABLE ... DETACH PARTITION or NO INHERIT).', parent, target);
    END IF;
END
$$;

-- guard_text returns the source of a guard. A guard is in this schema, so that dropping the table's
-- schema cannot take a part of the guard away. It runs with the rights of the writer, never with
-- those of this schema's owner, so a column or type with a crafted name gains nothing.
--
-- Statement triggers have arguments, the row trigger has none. The row trigger does not rely on the
-- statement trigger: a partition that is younger than protect has none, and a statement on an
-- unprotected parent fires none. So one expression (glance) checks everything: the writer may
-- enter, the row's resource is in the open list of this transaction, and an UPDATE has not changed
-- the resource. It yields the token of the row; if it yields NULL or 0, check_row decides. It is
-- one expression because PL/pgSQL sets up each expression anew in every transaction, which costs as
-- much as another column.
--     %1$s  the resources of NEW, %2$s of OLD
--     %3$s  glance
--
-- An observing guard has a source of its own, which lets everybody pass and records the writes that
-- it would refuse. A column of the template may have been renamed, so it reads the columns in a
-- block that catches the error. The block writes nothing, so it uses up no subtransaction id of the
-- writer.
CREATE FUNCTION fencedb.guard_text(target regclass, templates text[], observes boolean, seen oid[]) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    unseen  text := CASE WHEN EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = target) THEN 'fencedb.in_time()'
        WHEN (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = target) THEN format('CASE WHEN TG_RELID OPERATOR(pg_catalog.<>) ALL (%L::pg_catalog.oid[]) THEN fencedb.in_time() ELSE true END', seen) END; -- for rows whose statement trigger may be missing, and with it the check of the time
    new     text;
    old     text;
    same    text;
    lookups text[]; -- for each template: the token of the row in the open list, or 0 if it is not there
BEGIN
    SELECT format('ARRAY[%s]', string_agg(format(r.expression, 'NEW'), ', ' ORDER BY i)), format('ARRAY[%s]', string_agg(format(r.expression, 'OLD'), ', ' ORDER BY i)), string_agg(r.same, ' AND '),
        array_agg(format($look$greatest(pg_catalog.split_part(pg_catalog.split_part(pg_catalog.current_setting('fencedb.entered', true),
            %s COLLATE pg_catalog."C", 2), E'\x01', 1), '0')::pg_catalog.int8$look$, r.key) ORDER BY i)
    INTO new, old, same, lookups
    FROM unnest(templates) WITH ORDINALITY u(t, i), fencedb.read_template(target, t) r;
    IF observes THEN
        RETURN format($guard$
DECLARE -- observes
    own    pg_catalog.text[];
    former pg_catalog.text[];
    token  pg_catalog.int8;
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.>) 0 THEN -- a statement
        IF TG_OP OPERATOR(pg_catalog.=) 'TRUNCATE' OR TG_NARGS OPERATOR(pg_catalog.>) 1 OR (fencedb.in_time() AND fencedb.may_enter() OR fencedb.recorded(TG_RELID, TG_OP, false)) IS NOT TRUE THEN
            PERFORM fencedb.check_statement(TG_RELID, TG_OP, TG_ARGV, true);
        END IF;
    ELSIF fencedb.recorded(TG_RELID, TG_OP, true) IS NOT TRUE THEN
        BEGIN
            own := CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN %2$s ELSE %1$s END;
            former := CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'INSERT' THEN %1$s ELSE %2$s END;
            token := OLD.last_fencing_token;
        EXCEPTION WHEN OTHERS THEN
            PERFORM fencedb.let_pass(TG_RELID, TG_OP, SQLSTATE, true, NULL);
            RETURN coalesce(NEW, OLD);
        END;
        token := fencedb.check_row(TG_RELID, TG_OP, own, former, token, true);
        IF token OPERATOR(pg_catalog.>) 0 AND TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN
            NEW.last_fencing_token := token;
        END IF;
    END IF;
    RETURN coalesce(NEW, OLD);
END
$guard$, new, old);
    END IF;
    RETURN format($guard$
DECLARE -- enforces
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.>) 0 THEN -- a statement
        IF TG_OP OPERATOR(pg_catalog.=) 'TRUNCATE' OR TG_NARGS OPERATOR(pg_catalog.>) 1 OR (fencedb.in_time() AND (fencedb.login_may_enter() OR fencedb.may_enter())) IS NOT TRUE THEN
            PERFORM fencedb.check_statement(TG_RELID, TG_OP, TG_ARGV, false);
        END IF;
        RETURN NULL;
    END IF;
    NEW.last_fencing_token := %3$s;
    IF (NEW.last_fencing_token OPERATOR(pg_catalog.>) 0 AND (OLD.last_fencing_token OPERATOR(pg_catalog.<=) NEW.last_fencing_token) IS NOT FALSE) IS NOT TRUE THEN
        NEW.last_fencing_token := fencedb.check_row(TG_RELID, TG_OP, CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN %2$s ELSE %1$s END, CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'INSERT' THEN %1$s ELSE %2$s END, OLD.last_fencing_token, false);
    END IF;
    RETURN NEW; -- a DELETE goes on for any row but NULL
END
$guard$, new, old, format('CASE WHEN %s THEN %s END', concat_ws(E'\n        AND ',
        'fencedb.login_may_enter()',
        unseen,
        format('(TG_OP OPERATOR(pg_catalog.<>) ''UPDATE'' OR %s)', same),
        (SELECT string_agg(l || ' OPERATOR(pg_catalog.>) 0', ' AND ') FROM unnest(lookups[2:]) l)), lookups[1]));
END
$$;

-- The owner of a table orders its guard: an order is a JSON object in the comment on the guard's
-- row trigger. Only the owner of a table can comment on its triggers, and Postgres checks this
-- against whoever calls order_guard. write_guard, let_overtake and end_overtaking carry orders out
-- with the rights of this schema's owner. They take the order from the catalog alone, so calling
-- them by hand does only what the table's owner has ordered. ledger makes an order void in a copy
-- of the database, where oids mean other roles and tables.
CREATE FUNCTION fencedb.order_guard(target regclass, wanted jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname = '~fencedb_row') THEN -- it runs a function of Postgres until create_triggers gives it the guard
        EXECUTE format('CREATE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()', target);
    END IF;
    EXECUTE format('COMMENT ON TRIGGER "~fencedb_row" ON %s IS %L', target, 'fencedb: ' || (coalesce(fencedb.ordered(target), '{}') || wanted || jsonb_build_object('ledger', 'fencedb.fences'::regclass::oid::text))::text);
END
$$;

-- The order for a table; NULL if there is none, or it is void.
CREATE FUNCTION fencedb.ordered(target regclass) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT substr(o.comment, 10)::jsonb
    FROM (SELECT obj_description(t.oid, 'pg_trigger') AS comment FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname = '~fencedb_row') o
    WHERE CASE WHEN o.comment ^@ 'fencedb: {' THEN substr(o.comment, 10)::jsonb ->> 'ledger' = 'fencedb.fences'::regclass::oid::text END
$$;

-- Writes the guard of a table as its owner has ordered it, and records the change in the audit.
CREATE FUNCTION fencedb.write_guard(target regclass) RETURNS regprocedure
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted    jsonb   := fencedb.ordered(target);
    templates text[]  := ARRAY(SELECT jsonb_array_elements_text(wanted -> 'resource'));
    observes  boolean := (wanted ->> 'observes')::boolean;
    present   record;
    guard     text;
    unused    regprocedure;
BEGIN
    IF wanted -> 'resource' IS NULL THEN
        RAISE EXCEPTION 'fencedb.write_guard: the owner of % has not ordered a guard', target USING ERRCODE = 'insufficient_privilege', HINT = 'Call fencedb.protect.';
    END IF;
    SELECT p.guard, p.observed_since INTO present FROM fencedb.protected_tables p
    WHERE p.table_name = target AND p.resource IS NOT NULL AND NOT EXISTS ( -- this guard is also on a child that no longer inherits, or on somebody else's table
        SELECT FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE t.tgfoid = p.guard AND (t.tgname = '~fencedb_row' OR c.relowner <> (SELECT o.relowner FROM pg_class o WHERE o.oid = target))
          AND t.tgrelid <> ALL (ARRAY(SELECT m.member FROM fencedb.members(target) m)));
    guard := (SELECT format('fencedb.%I', p.proname) FROM pg_proc p WHERE p.oid = present.guard);
    -- No two tables get the same name for their guards, even if two sessions protect them at once
    -- and neither sees the other's. In the schema public, table names are unique; elsewhere, and
    -- where the name does not suffice, the table's oid comes first. The cast cuts at 63 bytes,
    -- between characters. If the name is taken, as after a rename, the guard gets another, and does
    -- not replace the function: a trigger that is younger than the snapshot of this transaction may
    -- run it.
    FOR i IN 0 .. 2147483647 LOOP
        EXIT WHEN guard IS NOT NULL AND (present.guard IS NOT NULL OR to_regprocedure(guard || '()') IS NULL);
        guard := (SELECT format('fencedb.%I', concat('guard_',
                CASE WHEN i > 0 OR c.relnamespace <> to_regnamespace('public') OR octet_length(c.relname) > 57 OR c.relname ~ '^[0-9]' THEN concat(c.oid, '_', nullif(i, 0) || '_') END, c.relname)::name)
            FROM pg_class c WHERE c.oid = target);
    END LOOP;
    EXECUTE format('CREATE %s FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS %L', CASE WHEN present.guard IS NOT NULL THEN 'OR REPLACE' END, guard, fencedb.guard_text(target, templates, observes, ARRAY(SELECT jsonb_array_elements_text(wanted -> 'seen')::oid)));
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s() TO PUBLIC', guard); -- for roles that create a partition
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', guard, jsonb_strip_nulls(jsonb_build_object('resource', templates, 'column_added', wanted -> 'column_added',
        'observed_since', CASE WHEN observes THEN coalesce(present.observed_since, clock_timestamp()) END)));
    PERFORM fencedb.record_protection(target, false) WHERE present.guard IS NOT NULL; -- no trigger runs a new guard yet: protect records it
    -- DROP TABLE leaves the guard of its table, which is dropped here, by one session at a time.
    FOR unused IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype = 'trigger'::regtype AND p.proname ~ '^(guard|noted)_' AND p.oid <> to_regprocedure(guard || '()')
                  AND p.oid NOT IN (SELECT t.tgfoid FROM pg_trigger t) AND pg_try_advisory_xact_lock(7302139487162535) LOOP -- NOT IN is one scan; NOT EXISTS may be one for each guard
        PERFORM fencedb.drop_guard(unused);
    END LOOP;
    RETURN (guard || '()')::regprocedure;
END
$$;

-- Drops a guard, or a function that notes history, if no trigger runs it.
CREATE FUNCTION fencedb.drop_guard(guard regprocedure) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_proc p WHERE p.oid = guard AND p.pronamespace = 'fencedb'::regnamespace AND p.prorettype = 'trigger'::regtype AND p.proname ~ '^(guard|noted)_')
       AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = guard) THEN -- it may still guard a child that no longer inherits
        EXECUTE format('DROP FUNCTION %s', guard);
    END IF;
END
$$;

-- The owner of a table may not write to the audit, but anybody may call record_protection, as often
-- as they like. So it takes no facts from the caller: it records what the catalog says of the
-- table, if that differs from the last record. already says that the caller has not changed
-- anything yet, so a difference is somebody else's change.
CREATE FUNCTION fencedb.record_protection(target regclass, already boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection record;
    recorded   record;
    event      text;
BEGIN
    SELECT p.observed, to_jsonb(p.resource) AS resource INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.enabled AND p.resource IS NOT NULL;
    event := CASE WHEN NOT FOUND THEN 'unprotect' WHEN protection.observed THEN 'observe' ELSE 'protect' END;
    -- By oid, because the table may have been renamed; by name in a copy of the database.
    SELECT a.event, a.details INTO recorded
    FROM fencedb.audit a
    WHERE a.event IN ('protect', 'observe', 'unprotect') AND (a.details ->> 'oid' = target::oid::text OR a.details ->> 'table' = target::text)
    ORDER BY a.details ->> 'oid' = target::oid::text DESC, a.id DESC LIMIT 1;
    IF event = coalesce(recorded.event, 'unprotect') AND (event = 'unprotect' OR recorded.details -> 'resource' = protection.resource) THEN
        RETURN;
    END IF;
    PERFORM fencedb.log_event(event, NULL, NULL, CASE WHEN already OR NOT pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = target), 'MEMBER') THEN 'found by this role: changed by hand, or restored' ELSE 'changed by this role' END,
        coalesce(recorded.details, '{}') || jsonb_build_object('table', target::text, 'oid', target::oid::text)
        || CASE event WHEN 'unprotect' THEN '{}' ELSE jsonb_build_object('resource', protection.resource) END);
END
$$;

-- Triggers fire in the byte order of their names. The row trigger is named to fire after the other
-- BEFORE triggers, so that it checks the row as it will be stored. ~fencedb_truncate also names the
-- columns of the template (UPDATE OF), so that Postgres refuses to drop them or to change their
-- type; before an UPDATE it only repeats the check of ~fencedb_statement.
--
-- Protecting again adds triggers to new members, and enables those that were disabled or left to
-- replication.
CREATE FUNCTION fencedb.create_triggers(target regclass, guard regprocedure, former regprocedure, columns name[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    update_of text := (SELECT ' OR UPDATE OF ' || string_agg(quote_ident(c), ', ') FROM unnest(columns) c);
    m         record;
    later     name;
    args      text[]; -- see check_statement
    list      text;
    own       name;
BEGIN
    FOR m IN SELECT member, is_partition, c.relkind FROM fencedb.members(target) JOIN pg_class c ON c.oid = member LOOP
        later := (SELECT min(t.tgname) FROM pg_trigger t
                  WHERE t.tgrelid = m.member AND t.tgname COLLATE "C" > '~fencedb_row' AND t.tgtype & 3 = 3 -- BEFORE, FOR EACH ROW
                    AND t.tgfoid NOT IN (guard, coalesce(former, guard)));
        IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') AND t.tgfoid NOT IN (guard, coalesce(former, guard), 'pg_catalog.suppress_redundant_updates_trigger()'::regprocedure)) THEN
            RAISE EXCEPTION 'fencedb.protect: a trigger of % has a name that is reserved for fencedb', m.member
                USING ERRCODE = 'duplicate_object', HINT = 'Either the table is protected by itself: call fencedb.unprotect for it first. Or somebody with the TRIGGER privilege made the trigger: drop it and protect again.';
        ELSIF later IS NOT NULL THEN
            RAISE EXCEPTION 'fencedb.protect: the trigger "%" of % would change rows after the guard has checked them', later, m.member
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Triggers fire in the byte order of their names. Rename it to begin with an ASCII letter.';
        END IF;
        IF NOT m.is_partition AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row' AND t.tgfoid = guard) THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s', m.member, guard);
        END IF;
        CONTINUE WHEN m.relkind = 'f'; -- Postgres 15 has no TRUNCATE trigger on foreign tables
        args := CASE WHEN m.is_partition THEN ARRAY['statement', 'fencedb.fences'::regclass::oid::text, target::oid::text, target::text] ELSE ARRAY['statement'] END;
        IF (SELECT count(*) FROM pg_trigger t
            WHERE t.tgrelid = m.member AND t.tgfoid = guard AND t.tgargs = (SELECT string_agg(convert_to(a, getdatabaseencoding()) || '\x00', '' ORDER BY i) FROM unnest(args) WITH ORDINALITY u(a, i))
              AND (t.tgname = '~fencedb_statement' OR t.tgname = '~fencedb_truncate'
                   AND (SELECT coalesce(array_agg(a.attname ORDER BY a.attname), '{}') FROM pg_attribute a WHERE a.attrelid = m.member AND a.attnum = ANY (t.tgattr)) = columns)) < 2 THEN
            list := (SELECT string_agg(quote_literal(a), ', ' ORDER BY i) FROM unnest(args) WITH ORDINALITY u(a, i));
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_statement" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s(%s)', m.member, guard::oid::regproc, list);
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE%s ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s(%s)', update_of, m.member, guard::oid::regproc, list);
        END IF;
        FOR own IN SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') AND t.tgenabled NOT IN ('O', 'A') LOOP
            EXECUTE format('ALTER TABLE %s ENABLE TRIGGER %I', m.member, own);
        END LOOP;
    END LOOP;
END
$$;

CREATE FUNCTION fencedb.protect(target regclass, resource text[], mode text DEFAULT NULL, history boolean DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
#variable_conflict use_variable
DECLARE
    present  record;
    columns  name[];
    stamp    text; -- the type of last_fencing_token
    key      text;
    template record;
    n        bigint;
    first    text;
    added    boolean;
    guard    regprocedure;
    former   regprocedure; -- a part that was taken out of a protected table still has that table's guard
BEGIN
    IF target IS NULL OR coalesce(cardinality(resource), 0) = 0 THEN
        RAISE EXCEPTION 'fencedb.protect: needs a table and a template of its rows'' resource'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT fencedb.protect(''bookings'', resource => ''table:{table_id}'')';
    ELSIF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = target AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.relnamespace <> 'fencedb'::regnamespace) THEN
        RAISE EXCEPTION 'fencedb.protect: % is not a table that can be protected', target
            USING ERRCODE = 'wrong_object_type', HINT = 'Protect ordinary and partitioned tables; the writes through a view reach the tables under it.';
    ELSIF mode NOT IN ('enforce', 'observe') THEN
        RAISE EXCEPTION 'fencedb.protect: the mode must be enforce or observe, got %', quote_literal(mode) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM fencedb.lock_guard(target);
    PERFORM fencedb.record_protection(target, true); -- in case somebody has removed the guard by hand
    SELECT * INTO present FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL;
    IF FOUND THEN
        IF present.resource <> resource AND NOT EXISTS ( -- allowed after a column of the template was renamed
            SELECT FROM unnest(present.resource) t, regexp_matches(replace(replace(t, '{{', ''), '}}', ''), '\{([^{}]+)\}', 'g') m
            WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = m[1] AND NOT a.attisdropped)) THEN
            RAISE EXCEPTION 'fencedb.protect: % is already protected, with resource => %', target, array_to_string(present.resource, ' and ')
                USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change that.';
        ELSIF present.observed <> (mode = 'observe') THEN
            RAISE EXCEPTION 'fencedb.protect: % is already %', target, CASE WHEN present.observed THEN 'observed' ELSE 'enforced' END
                USING ERRCODE = 'duplicate_object', HINT = 'fencedb.enforce changes that, without a lock on the table.';
        END IF;
    END IF;
    former := (SELECT p.guard FROM fencedb.protected_tables p WHERE p.table_name = target ORDER BY p.resource IS NULL LIMIT 1);

    SELECT array_agg(DISTINCT c ORDER BY c) INTO columns FROM unnest(resource) t, unnest((fencedb.read_template(target, t)).columns) c;
    -- The strongest lock comes first. A transaction that takes a weaker one and then a stronger one
    -- can deadlock with a writer of the table.
    added := coalesce(present.column_added, false);
    stamp := (SELECT concat(CASE WHEN a.attgenerated <> '' THEN 'generated, ' END, a.atttypid::regtype) FROM pg_attribute a WHERE a.attrelid = target AND a.attname = 'last_fencing_token' AND NOT a.attisdropped);
    IF stamp IS NULL THEN
        EXECUTE format('ALTER TABLE %s ADD COLUMN last_fencing_token bigint NOT NULL DEFAULT 0', target);
        added := true;
    ELSIF stamp <> 'bigint' THEN
        RAISE EXCEPTION 'fencedb.protect: column last_fencing_token of % must be bigint, and not generated; it is %', target, stamp USING ERRCODE = 'datatype_mismatch';
    END IF;
    IF present.resource IS DISTINCT FROM resource THEN
        -- A row without a resource could not be written again, not even deleted. With row_security
        -- off, Postgres raises an error if a policy hides rows from their owner.
        key := (SELECT string_agg(format('t.%I', a.attname), ', ' ORDER BY a.attnum) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                WHERE i.indrelid = target AND i.indisprimary);
        FOR template IN SELECT t AS text, (fencedb.read_template(target, t)).* FROM unnest(resource) t LOOP
            CONTINUE WHEN template.longest <= 512;
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', target);
            EXECUTE format('SELECT count(*), (array_agg(concat_ws('', '', %1$s)))[1] FROM %2$s t WHERE NOT coalesce(octet_length(%3$s) BETWEEN 1 AND 512, false)',
                coalesce(key, 't.tableoid::regclass, t.ctid'), target, format(template.expression, 't')) INTO n, first;
            IF n > 0 THEN
                RAISE EXCEPTION 'fencedb.protect: % rows of % have no resource of 1 to 512 bytes by the template %, so nobody could write to them again', n, target, quote_literal(template.text)
                    USING ERRCODE = 'invalid_parameter_value', DETAIL = format('The first by %s: (%s).', replace(coalesce(key, 'table and ctid'), 't.', ''), first),
                          HINT = 'Change the columns of the template in these rows, or use a column of its own for it.';
            END IF;
        END LOOP;
    END IF;
    PERFORM fencedb.order_guard(target, jsonb_build_object('resource', resource, 'observes', coalesce(present.observed, mode = 'observe', false), 'column_added', added,
        'seen', (SELECT coalesce(jsonb_agg(m.member::oid::text), '[]') FROM fencedb.members(target) m JOIN pg_class c ON c.oid = m.member AND c.relkind <> 'f'))); -- the members that get statement triggers from create_triggers
    guard := fencedb.write_guard(target);
    PERFORM fencedb.create_triggers(target, guard, former, coalesce(columns, '{}'));
    PERFORM fencedb.drop_guard(former);
    PERFORM fencedb.set_history(target, coalesce(history, EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname ^@ '~fencedb_note_')));
    PERFORM fencedb.record_protection(target, false) WHERE (guard = present.guard AND present.enabled) IS NOT TRUE; -- otherwise write_guard has recorded it
END
$$;

COMMENT ON FUNCTION fencedb.protect(regclass, text[], text, boolean) IS 'From now on, no INSERT, UPDATE, DELETE, TRUNCATE, COPY or MERGE on target commits without a current token for each row''s own resource. resource is a template over its columns, such as table:{table_id}, or an array of templates if a row belongs to several resources. The columns must be NOT NULL, and of type integer, numeric without scale, boolean, text, varchar, char, uuid, date or an enum. Adds the column last_fencing_token, the token of the last write to the row, or uses the one that is there. With mode => ''observe'' nothing is refused: see fencedb.enforce. Without a mode, the guard of a table that is protected already keeps its mode. history => true notes what statements write while fencedb.keep_history is on, false stops it, and NULL leaves it as it is. Waits for open transactions on target and blocks new ones meanwhile: set lock_timeout and try again. Call it once more after adding a partition (to guard it against TRUNCATE by name, and to keep its history) or an inheritance child (to guard it at all); after attaching target to a parent that is not protected (its row trigger then checks the time) or detaching it; and after renaming a column of the template.';

CREATE FUNCTION fencedb.protect(target regclass, resource text, mode text DEFAULT NULL, history boolean DEFAULT NULL) RETURNS void
    LANGUAGE sql
    RETURN fencedb.protect(target, ARRAY[resource], mode, history);

COMMENT ON FUNCTION fencedb.protect(regclass, text, text, boolean) IS 'protect for rows that belong to one resource.';

-- Also removes a protection of which only a part is left.
CREATE FUNCTION fencedb.unprotect(target regclass, keep_column boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    own        record;
    detail     text;
BEGIN
    PERFORM fencedb.lock_guard(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF NOT FOUND THEN
        RAISE NOTICE 'fencedb.unprotect: % is not protected', target;
        RETURN;
    END IF;
    PERFORM fencedb.record_protection(target, true); -- if the audit does not know of the protection, as in a copy of the schema alone
    FOR own IN SELECT t.tgname, m.member FROM fencedb.members(target) m JOIN pg_trigger t ON t.tgrelid = m.member
               WHERE t.tgparentid = 0 AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', own.tgname, own.member);
    END LOOP;
    PERFORM fencedb.set_history(target, false);
    PERFORM fencedb.drop_guard(protection.guard);
    IF protection.column_added AND NOT keep_column THEN
        BEGIN
            EXECUTE format('ALTER TABLE %s DROP COLUMN IF EXISTS last_fencing_token', target);
            RAISE NOTICE 'fencedb.unprotect: last_fencing_token of % is dropped', target;
        EXCEPTION WHEN dependent_objects_still_exist THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            RAISE EXCEPTION 'fencedb.unprotect: %', SQLERRM
                USING ERRCODE = 'dependent_objects_still_exist', DETAIL = detail, HINT = 'Drop these first, or keep the column, with keep_column => true.';
        END;
    END IF;
    PERFORM fencedb.record_protection(target, false);
    PERFORM fencedb.end_overtaking(target);
END
$$;

COMMENT ON FUNCTION fencedb.unprotect IS 'Undoes protect: any client can write without a token again. Drops the column last_fencing_token if protect added it, unless keep_column. Ends take-overs. Waits for open transactions on target and blocks new ones meanwhile, as protect does: set lock_timeout and try again.';

GRANT SELECT ON fencedb.protected_tables TO PUBLIC;

-- Adopting fences where not all writers can be deployed at once: guards that only observe, and
-- roles that write without a token of their own.

-- What an observing guard lets pass is an event. Each kind of write is recorded at most once a
-- minute, so no row of the log is updated or waited for. This sequence numbers the records, and at
-- its maximum recording stops, so that the log cannot fill the disk.
CREATE SEQUENCE fencedb.observations MAXVALUE 1000000;

-- When a write could not be recorded. A sequence, because a rollback does not undo setval.
CREATE SEQUENCE fencedb.unrecorded;

COMMENT ON SEQUENCE fencedb.observations IS 'About how many writes were observed. At its maximum no more are recorded (see unrecorded), until fencedb.prune has forgotten some and returned less than at_most.';
COMMENT ON SEQUENCE fencedb.unrecorded IS 'When a write that a guard observed could last not be recorded, for any table, in milliseconds since 1970; the log of the server says why. Never while is_called is false.';

REVOKE ALL ON fencedb.observations, fencedb.unrecorded FROM PUBLIC;
GRANT SELECT ON fencedb.unrecorded TO PUBLIC; -- for the owners of tables

-- Tables are found by oid, because names change; in a copy of the database by name, because there
-- the oid may be another table's. Writes that were observed before the last unprotect of a table
-- are left out.
CREATE VIEW fencedb.unfenced_writes WITH (security_barrier) AS
SELECT c.oid::regclass AS table_name, e.role, e.application, e.event AS statement, e.reason,
       min(e.at) AS first_at, max(e.at) AS last_at, greatest(1, sum(e.row_count)::bigint) AS times, max(e.resource) AS resource
FROM fencedb.events e
LEFT JOIN (SELECT t.oid, t.relname, n.nspname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace) named ON named.relname = e.table_name AND named.nspname = e.table_schema
JOIN pg_class c ON c.oid = CASE WHEN e.details ->> 'ledger' = 'fencedb.fences'::regclass::oid::text THEN (e.details ->> 'oid')::oid ELSE named.oid END
LEFT JOIN (SELECT a.details ->> 'oid' AS oid, max(a.at) AS at FROM fencedb.events a WHERE a.kind = 'audit' AND a.event = 'unprotect' GROUP BY 1) given_up ON given_up.oid = c.oid::text
WHERE e.kind = 'observed' AND e.at > coalesce(given_up.at, '-infinity') AND (pg_has_role(c.relowner, 'USAGE') OR has_table_privilege('fencedb.events', 'SELECT'))
GROUP BY c.oid, e.role, e.application, e.event, e.reason;

COMMENT ON VIEW fencedb.unfenced_writes IS 'Writes that guards would have refused if they were enforced: who, how, why (an SQLSTATE), when first and last (to a minute), how often recorded, and one resource. Each kind of write (role, application, statement, reason) is recorded at most once a minute. Owners see the writes to their own tables. Covers the time since the table was protected, as far as fencedb.prune has left it. Writes that were rolled back, or whose transactions are still open, are not in it.';

GRANT SELECT ON fencedb.unfenced_writes TO PUBLIC;

-- A session records a kind of write at once, and again after a minute at the earliest. A setting
-- says until when; it is rolled back with the transaction, as the record is. Its parts have fixed
-- lengths: whether a row was seen (1 character), until when (14), and then whose write it was. A
-- session that forges it only hides its own writes from the list: no enforcing guard reads it.
--
-- recorded decides the common case in one expression, because PL/pgSQL sets up each one anew in
-- every transaction. For a row it does not compare the writer, because the statement trigger has
-- done so. Without a statement trigger, a second writer in the same session may be missed for a
-- minute.
CREATE FUNCTION fencedb.recorded(target oid, operation text, of_row boolean) RETURNS boolean
    LANGUAGE sql
    RETURN CASE
        WHEN current_setting('fencedb.entered', true) <> '' AND fencedb.entries() IS NOT NULL THEN false
        WHEN of_row THEN date_part('epoch', clock_timestamp()) + 10000000000 <= concat('0', "left"(current_setting(concat('fencedb.seen_', target, '_', operation), true), 15))::float8
        WHEN substr(current_setting(concat('fencedb.seen_', target, '_', operation), true), 16) = concat('FN002 ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'))
            THEN substr(current_setting(concat('fencedb.seen_', target, '_', operation), true), 2, 14)::float8 > date_part('epoch', clock_timestamp())
        ELSE false
    END;

-- Observing never refuses a writer, and waits for locks for 10 ms at most. If a record cannot be
-- made, the server log says so and fencedb.unrecorded says when, so that nobody takes an empty list
-- for the end of the adoption. A record that another session made in the last minute counts too.
-- Above READ COMMITTED let_pass does not look for one: the snapshot may be old, and under
-- SERIALIZABLE the read could cost the writer its commit. row_count is 0 for a row whose statement
-- was counted by the statement trigger already.
CREATE FUNCTION fencedb.let_pass(target oid, operation text, reason text, of_row boolean, resource text) RETURNS void
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
        RETURN;
    END IF;
    BEGIN
        INSERT INTO fencedb.events (kind, id, event, resource, table_schema, table_name, row_count, role, reason, details)
        SELECT 'observed', nextval('fencedb.observations'), operation, left(resource, 512), n.nspname, c.relname, CASE WHEN of_row AND reason = 'FN002' AND pg_trigger_depth() < 2 THEN 0 ELSE 1 END,
            role, reason, jsonb_build_object('oid', root::text, 'ledger', 'fencedb.fences'::regclass::oid::text)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = root AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' -- no record of a table that the snapshot does not show, of a view, or of a temporary table
          AND CASE WHEN current_setting('transaction_isolation') LIKE 'read %' THEN NOT EXISTS (
              SELECT FROM fencedb.events e
              WHERE e.kind = 'observed' AND e.at > clock_timestamp() - interval '1 minute' AND e.details ->> 'oid' = root::text AND e.event = operation AND e.reason = reason
                AND e.role = role AND e.application = current_setting('application_name') AND (e.resource IS NOT NULL OR NOT of_row)) ELSE true END;
    EXCEPTION WHEN OTHERS THEN
        PERFORM setval('fencedb.unrecorded', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
        RAISE LOG 'fencedb: % on % by % (%) would have been refused and could not be recorded: %', operation, root::regclass, role, current_setting('application_name'), SQLERRM;
    END;
    PERFORM set_config(setting, concat((of_row OR row_seen)::int, to_char(date_part('epoch', clock_timestamp()) + 60, 'FM0000000000.000'), writer), false);
END
$$;

-- The mode of a table is in the source of its guard. Replacing a function takes no lock that a
-- writer waits for, and an enforcing guard pays nothing for the other mode.
CREATE FUNCTION fencedb.enforce(target regclass, observing boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    off        text;
BEGIN
    PERFORM fencedb.lock_guard(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL;
    off := array_to_string(protection.switched_off, ', ');
    IF protection.table_name IS NULL THEN
        RAISE EXCEPTION 'fencedb.enforce: % is not protected', target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first, with mode => ''observe'' if it shall refuse nothing yet.';
    ELSIF observing IS NULL THEN
        RAISE EXCEPTION 'fencedb.enforce: observing must be true or false, got NULL' USING ERRCODE = 'null_value_not_allowed';
    ELSIF off IS NOT NULL AND NOT observing THEN
        RAISE EXCEPTION 'fencedb.enforce: the guard of % is switched off', off
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('What was written meanwhile was not observed. Call fencedb.protect for %s once more, with the same resource: that switches it on.', target);
    ELSIF protection.observed <> observing THEN
        PERFORM fencedb.record_protection(target, true); -- if the audit does not know of the protection
        PERFORM fencedb.order_guard(target, jsonb_build_object('resource', protection.resource, 'observes', observing, 'column_added', protection.column_added));
        IF fencedb.write_guard(target) <> protection.guard THEN
            RAISE EXCEPTION 'fencedb.enforce: % shares its guard with another table, since one has inherited from the other', target
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('Call fencedb.protect for %s once more, with the same resource, to give it a guard of its own.', target);
        END IF;
        IF off IS NOT NULL THEN
            RAISE WARNING 'fencedb.enforce: the guard of % is switched off, so nothing is observed there', off;
        END IF;
    END IF;
END
$$;

COMMENT ON FUNCTION fencedb.enforce IS 'From now on, the guard of target refuses what it has only observed so far. With observing => true it refuses nothing, and records what it would refuse for fencedb.unfenced_writes; fencedb.enter still refuses stale tokens. Raises if the guard of target, or of a part of it, is switched off. Does not read the rows: a row whose resource is NULL cannot be written any more. Takes no lock on the table that a writer waits for, so a transaction that has already written to it may still run the former guard.';

-- A role whose program cannot be changed to enter can take over instead. Each of its transactions
-- enters the fences of the rows that it writes, with a token above the stored one and a lease id of
-- its own. So a holder of the lease is stale from then on.
CREATE TABLE fencedb.take_overs (
    target     oid         NOT NULL,
    role       oid         NOT NULL,
    until      timestamptz NOT NULL,
    ledger     oid         NOT NULL DEFAULT 'fencedb.fences'::regclass,
    PRIMARY KEY (target, role)
);

COMMENT ON TABLE  fencedb.take_overs IS 'Roles that write to a protected table without a token, as holders that take over. Changed by fencedb.take_over_as.';
COMMENT ON COLUMN fencedb.take_overs.target IS 'The oid of the table.';
COMMENT ON COLUMN fencedb.take_overs.role   IS 'The oid of the role of the last SET ROLE, or the one that logged in.';
COMMENT ON COLUMN fencedb.take_overs.until  IS 'From then on the role is refused like everybody else.';
COMMENT ON COLUMN fencedb.take_overs.ledger IS 'The oid of fencedb.fences. It is another in a copy of the database: so nobody takes over there, even if a table has the oid in target.';

-- Row security keeps members of pg_write_all_data from writing here: there is no policy for them.
ALTER TABLE fencedb.take_overs ENABLE ROW LEVEL SECURITY;

REVOKE ALL ON fencedb.take_overs FROM PUBLIC;

CREATE FUNCTION fencedb.overtakes(target oid) RETURNS boolean
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM fencedb.take_overs t
                   WHERE t.role = to_regrole(quote_ident(coalesce(nullif(current_setting('role'), 'none'), session_user))) AND t.until > clock_timestamp() AND t.ledger = 'fencedb.fences'::regclass
                     AND t.target = fencedb.guarded_root(overtakes.target))
$$;

COMMENT ON FUNCTION fencedb.overtakes IS 'Whether the role of the last SET ROLE, or the one that logged in, writes to a table as a holder that takes over.';

-- For a role that takes over, check_row calls overtake, which enters the fences of a row unless
-- this transaction has entered them already: with tokens above the stored ones, and with a lease id
-- that nobody knows. The entries are like any other, but no time limits this transaction. former is
-- the resource of the row as it was; its token is above the stamp of the row too. lenient is for an
-- observing guard: a resource that no fence can have is skipped, not refused.
--
-- Package lease issues the time in microseconds as its tokens. So a token of the present time also
-- overtakes a holder that has not entered yet. Other issuers may count from 1: such a token would
-- shut their holders out for good, so theirs is the stored token plus 1.
--
-- The row trigger fires when Postgres has locked the row. So a role that takes over waits for the
-- fence while it holds a row, and the fence's holder may come to wait for that row. Postgres ends
-- one of the two with a deadlock error.
--
-- Called by hand, overtake lets such a role enter any fence. This is allowed to it, as to a role
-- that may enter.
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
        noted := set_config('fencedb.entered', concat(pg_current_xact_id(), '   '), true); -- no times: never in_time, never too late
    END IF;
    FOR wanted IN SELECT DISTINCT r COLLATE "C" FROM unnest(resources) r WHERE r IS NOT NULL AND (fencedb.token_of(r) IS NULL OR r = former AND stamp > fencedb.token_of(r) AND stamp > coalesce(fencedb.ignored_stamps(r), 0)) ORDER BY 1 LOOP
        CONTINUE WHEN lenient AND (octet_length(wanted) NOT BETWEEN 1 AND 512 OR strpos(wanted, E'\x01') > 0);
        PERFORM fencedb.check_grant(wanted, 1, gen_random_uuid()); -- before the constraint of the ledger, whose error would show the lease id
        INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES (wanted, 0, gen_random_uuid()) ON CONFLICT DO NOTHING;
        SELECT f.last_fencing_token AS token, f.reset_from INTO stored FROM fencedb.fences f WHERE f.resource = wanted FOR NO KEY UPDATE;
        fence := greatest(stored.token, CASE WHEN wanted = former AND stamp > coalesce(stored.reset_from, 0) THEN stamp END) + 1;
        IF fence NOT BETWEEN 2 AND 1000000000000000 AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(wanted, ':', 1)) THEN
            fence := greatest(fence, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
        END IF;
        PERFORM fencedb.check_grant(wanted, fence, gen_random_uuid()); -- the stamp may be forged
        UPDATE fencedb.fences f SET last_fencing_token = fence, lease_id = gen_random_uuid(), advanced_at = greatest(clock_timestamp(), transaction_timestamp()) WHERE f.resource = wanted;
        noted := set_config('fencedb.entered', concat(replace(fencedb.entries(), coalesce(fencedb.entry(wanted, fencedb.token_of(wanted)), ''), ''), fencedb.entry(wanted, fence)), true);
    END LOOP;
END
$$;

-- Whoever takes over can raise the fence of any resource, and anybody can own a table. So both are
-- needed: the owner of the table orders a take-over (take_over_as), and only those who may enter
-- can carry it out (let_overtake). To end it, the owner suffices.
CREATE FUNCTION fencedb.take_over_as(target regclass, role regrole, until timestamptz) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    login   text := (SELECT r.rolname FROM pg_roles r WHERE r.oid = take_over_as.role);
    ordered jsonb;
BEGIN
    PERFORM fencedb.lock_guard(target);
    ordered := fencedb.ordered(target);
    IF until IS NULL AND (login IS NOT NULL OR role IS NULL) THEN
        PERFORM fencedb.order_guard(target, jsonb_build_object('take_overs', coalesce((ordered -> 'take_overs') - login, '{}'))) WHERE ordered IS NOT NULL;
        PERFORM fencedb.end_overtaking(target);
        RETURN;
    ELSIF NOT has_function_privilege('fencedb.let_overtake(regclass)', 'EXECUTE') THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % may not enter fences, so it cannot let others overtake', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'The role that ran the migrations can let it enter, with fencedb.allow.';
    ELSIF NOT EXISTS (SELECT FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL) THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % is not protected', target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first.';
    ELSIF login IS NULL OR until IS NULL OR until <= clock_timestamp() OR until > clock_timestamp() + interval '1 year' THEN
        RAISE EXCEPTION 'fencedb.take_over_as: needs a role and a time within the next year, got % and %', coalesce(login, 'no role'), coalesce(until::text, 'no time')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A service that cannot be changed by then can be given more time by calling this again.';
    END IF;
    PERFORM fencedb.order_guard(target, jsonb_build_object('take_overs', coalesce(ordered -> 'take_overs', '{}') || jsonb_build_object(login, until)));
    PERFORM fencedb.let_overtake(target);
END
$$;

COMMENT ON FUNCTION fencedb.take_over_as IS 'Until a time within a year, statements of role without a token write to target as holders that take over: each transaction enters the fences of its rows with a fresh token, and waits for transactions that have entered them. A holder that was overtaken is refused as stale. role is that of the last SET ROLE, or the one that logged in. Calling it again changes the time. TRUNCATE stays refused. The caller must own target and be allowed to enter (fencedb.allow). until => NULL ends it, and waits for no writer: role, or every role if that is NULL too, needs a token from now on.';

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
            PERFORM fencedb.log_event('take_over_as', NULL, NULL, 'by fencedb.take_over_as', jsonb_build_object('table', target::text, 'oid', target::oid::text, 'role', o.rolname, 'until', o.until));
        END IF;
    END LOOP;
END
$$;

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
        RAISE NOTICE 'fencedb.take_over_as: % does not write to % without a token any more', login, target;
        PERFORM fencedb.log_event('take_over_as', NULL, NULL, 'by fencedb.take_over_as', jsonb_build_object('table', target::text, 'oid', target::oid::text, 'role', login));
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION fencedb.let_overtake FROM PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
SELECT fencedb.drop_guard(p.oid) FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype = 'trigger'::regtype AND p.proname ~ '^(guard|noted)_'; -- left by tables that were dropped
DROP FUNCTION fencedb.end_overtaking, fencedb.take_over_as, fencedb.let_overtake, fencedb.overtake, fencedb.overtakes, fencedb.enforce;
DROP FUNCTION fencedb.let_pass, fencedb.recorded;
DROP VIEW fencedb.unfenced_writes;
DROP SEQUENCE fencedb.observations, fencedb.unrecorded;
DROP TABLE fencedb.take_overs;
DROP FUNCTION fencedb.protect(regclass, text, text, boolean), fencedb.protect(regclass, text[], text, boolean), fencedb.unprotect, fencedb.create_triggers, fencedb.record_protection,
    fencedb.drop_guard, fencedb.write_guard, fencedb.order_guard, fencedb.ordered, fencedb.guard_text, fencedb.lock_guard, fencedb.read_template;
DROP VIEW fencedb.protected_tables;
DROP FUNCTION fencedb.guarded_root, fencedb.members, fencedb.check_statement, fencedb.ignored_stamps, fencedb.check_row, fencedb.refuse, fencedb.in_time;
-- +goose StatementEnd
