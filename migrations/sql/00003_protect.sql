-- Protected tables: every write to them, by any client, needs the token of each row's own resource.
--
-- In the order of what happens: protect writes the guard of a table (write_guard) and its triggers
-- (create_triggers). Before each statement the guard looks whether the transaction has entered, and
-- judge_statement does the rest. For each row it looks whether it has judged that resource last
-- (signature). If not, judge looks whether the transaction entered the resource of the row, and
-- judge_any judges every other row, and refuses. To read the guard of a table in psql:
--     \sf fencedb.guard_<table>

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- Whoever protects a table runs our functions, also where those who migrate have taken that right
-- from everybody.
ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

-- The functions that guards call for each statement or row run under the guard, as the owner of
-- this schema. They have no SET, because that costs more than what they do, and so every name in
-- them has its schema: operators too, also the one that NULLIF or IN would look for. Where the body
-- is an expression with RETURN, names were read when the migration ran.

-- The one secret there is, and it is a session's. What a guard has judged last is in a setting, and
-- a statement could write that in its WHERE. So the guard signs it with this number
-- (fencedb.signature), which currval tells only to who may read the sequence.
CREATE UNLOGGED SEQUENCE fencedb.session_key MINVALUE -9223372036854775808;

COMMENT ON SEQUENCE fencedb.session_key IS 'currval is a random number of this session, with which guards sign what they have judged. Only the owner of this schema may read it.';

REVOKE ALL ON SEQUENCE fencedb.session_key FROM PUBLIC;

-- What a guard has judged last: a setting says the token, another this hash of the resource, the
-- token and the transaction, with the key of the session. What a role that overtakes (00006) has
-- entered is good for one table alone. A hash of 64 bits stops forging by hand, not cryptanalysis.
-- A session without a key fails. A member of pg_write_all_data (6182) could set the key, so there
-- is no signature in its sessions, and their rows are judged one by one.
CREATE FUNCTION fencedb.signature(resource text, token bigint, of_table oid DEFAULT 0) RETURNS text
    LANGUAGE sql
    RETURN CASE WHEN NOT pg_has_role(session_user, 6182::oid, 'MEMBER') OR current_setting('is_superuser') = 'on'
                THEN hashtextextended(resource COLLATE "C", hashint8extended(token, hashint8extended(of_table::bigint, hashint8extended(txid_current(), currval('fencedb.session_key')))))::text END;

-- A member of pg_read_all_data can read every sequence, so its sessions get no key either.
-- fencedb.keyed remembers the sequence, or no: who forges that is refused, or judged row by row.
CREATE FUNCTION fencedb.draw_key() RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    may_read boolean := (SELECT NOT r.rolsuper AND (pg_has_role(session_user, 'pg_read_all_data', 'MEMBER') OR pg_has_role(session_user, 'pg_write_all_data', 'MEMBER')) FROM pg_roles r WHERE r.rolname = session_user);
BEGIN
    IF NOT may_read THEN
        PERFORM setval('fencedb.session_key', hashtextextended(gen_random_uuid()::text, 0));
    END IF;
    PERFORM set_config('fencedb.keyed', CASE WHEN may_read THEN 'no' ELSE 'fencedb.session_key'::regclass::oid::text END, false);
    RETURN NOT may_read;
END
$$;

CREATE FUNCTION fencedb.keyed() RETURNS boolean
    LANGUAGE sql
    RETURN current_setting('fencedb.keyed', true) = 'fencedb.session_key'::regclass::oid::text;

CREATE FUNCTION fencedb.refuse(code text, target oid, operation text, resource text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    templates text[] := (SELECT p.resource FROM fencedb.protected_tables p WHERE p.table_name = fencedb.guarded_root(target));
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
        DETAIL = jsonb_strip_nulls(jsonb_build_object('table', target::regclass, 'resource', resource, 'entered', CASE code WHEN 'FN003' THEN string_to_array(current_setting('fencedb.entered', true), E'\n') END))::text,
        HINT = CASE
            WHEN code = 'FN006' THEN 'Nothing was written. Use a shorter transaction, or enter with more time: under a longer lease, or, if the lease is renewed meanwhile, with what it will be renewed to.'
            WHEN operation = 'TRUNCATE' THEN 'Nothing was written. Use DELETE, which names its rows.'
            WHEN code = 'FN002' THEN format('Call fencedb.enter for %s first in the transaction (in Go: package guard, or fencedb.Tx; with psql: fencedb with %s -- sh -c ''psql "$FENCEDB_POSTGRES_URL" -v ON_ERROR_STOP=1 -1 -c "$FENCEDB_ENTER" -f plain.sql''). Nothing was written.',
                coalesce(quote_literal(resource), concat('the resource of the row', ', which is ' || array_to_string(templates, ' and ') || ',')), coalesce('''' || replace(resource, '''', $q$'\''$q$) || '''', 'RESOURCE'))
            WHEN resource IS NULL THEN format('Nothing was written. Every row needs a resource, by %s: make these columns NOT NULL.', array_to_string(templates, ' and '))
            ELSE 'Enter with the grants of all resources the transaction writes to. Nothing was written.'
        END;
END
$$;

-- The judge of a row of one resource: the token to stamp on it, if the fence is one that this
-- transaction says it has entered, with this token under this lease, and the row is not newer. It
-- locks the fence: a transaction that entered has that lock, and one that only says so gets it
-- here, or is refused. It remembers what it has judged. Otherwise NULL, and judge_any finds out
-- why.
CREATE FUNCTION fencedb.judge(resource text, stamp bigint) RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    token pg_catalog.int8;
    noted pg_catalog.text;
BEGIN
    SELECT f.last_fencing_token INTO token FROM fencedb.fences f
    WHERE f.resource OPERATOR(pg_catalog.=) judge.resource COLLATE pg_catalog."C" AND fencedb.says_entered(f.resource, f.last_fencing_token, f.lease_id)
      AND f.last_fencing_token OPERATOR(pg_catalog.>=) stamp AND fencedb.keyed()
    FOR SHARE SKIP LOCKED;
    IF token IS NOT NULL THEN
        noted := pg_catalog.concat(pg_catalog.set_config('fencedb.token', token::pg_catalog.text, true), pg_catalog.set_config('fencedb.judged', fencedb.signature(judge.resource, token), true));
    END IF;
    RETURN token;
END
$$;

-- Judges any row, and refuses. own and former are its resources (see write_guard), memo what to
-- remember them by. What overtakes is a role that was admitted without a token, and let_pass
-- records what a guard that observes would refuse (00006). A fence that was not entered is not
-- locked, so a guard that observes meets no conflict with a newer holder, above READ COMMITTED
-- either. Returns the token to stamp, that of the first resource, or NULL where it only observes.
--
-- The ledger has refused stale tokens already. That a row has a newer token than its fence means
-- that the ledger was emptied under it, unless it was set back on purpose.
CREATE FUNCTION fencedb.judge_any(target oid, operation text, own text[], former text[], stamp bigint, memo text, observing boolean) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    left_ms float8 := fencedb.left_ms();
    keyed   boolean := CASE WHEN current_setting('fencedb.keyed', true) = 'no' THEN false WHEN fencedb.keyed() THEN true ELSE fencedb.draw_key() END;
    wanted  text;
    fence   bigint;
    ignored bigint; -- stamps up to it
    token   bigint;
    code    text;
BEGIN
    IF left_ms IS NULL AND fencedb.overtakes(target) THEN
        RETURN fencedb.overtake(target, operation, own, former, stamp, memo); -- also observing, or holders could lose what they have written
    END IF;
    FOREACH wanted IN ARRAY own || CASE WHEN (own = former) IS NOT TRUE THEN former END LOOP
        fence := NULL;
        IF left_ms >= 0 THEN
            SELECT f.last_fencing_token, f.reset_from INTO fence, ignored FROM fencedb.fences f
            WHERE f.resource = wanted COLLATE "C" AND fencedb.says_entered(f.resource, f.last_fencing_token, f.lease_id)
            FOR SHARE SKIP LOCKED;
        END IF;
        code := CASE WHEN left_ms IS NULL THEN 'FN002'
                     WHEN left_ms < 0 THEN 'FN006'
                     WHEN fence IS NULL THEN 'FN003'
                     WHEN wanted = former[1] COLLATE "C" AND stamp > fence AND stamp > coalesce(ignored, 0) THEN 'FN001' END;
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
    IF keyed THEN
        PERFORM set_config('fencedb.token', token::text, true), set_config('fencedb.judged', fencedb.signature(memo, token), true);
    END IF;
    RETURN token; -- of the first resource
END
$$;

-- Refuses before the first row is touched, also where no row matches. A statement of another
-- trigger, as a cascade is, is left to the guard of rows: it may match nothing, and then it writes
-- nothing. Later statements of a long transaction get only what is left of the lease.
--
-- A partition has its guard of rows from its parent, and DETACH PARTITION takes that away. So the
-- statement guard of a partition is told which table was protected, by oid, and by name for a copy
-- of the database, and looks whether that is still above it: not with a query, which would read in
-- the snapshot of the transaction.
CREATE FUNCTION fencedb.judge_statement(target oid, operation text, args text[], observing boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ledger   text   := args[1]; -- of a partition alone; Postgres counts a trigger's arguments from 0
    root     text   := args[2];
    name     text   := args[3];
    left_ms  float8 := ceil(fencedb.left_ms());
    limit_ms bigint := (left_ms - floor(left_ms / 256))::bigint;
BEGIN
    IF root IS NOT NULL AND NOT EXISTS (SELECT FROM pg_partition_ancestors(target) a
            WHERE a.relid = CASE WHEN ledger = 'fencedb.fences'::regclass::oid::text THEN root::oid ELSE to_regclass(name) END) THEN
        IF observing THEN
            RETURN;
        END IF;
        RAISE EXCEPTION '% on table %, which was detached from a protected table and has lost its guard of rows', operation, target::regclass
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Nothing was written. As owner of the table call fencedb.protect to guard it again, or fencedb.unprotect to let any client write to it.';
    ELSIF operation = 'TRUNCATE' THEN
        left_ms := NULL;
    ELSIF left_ms IS NULL AND (pg_trigger_depth() > 1 OR fencedb.overtakes(target)) THEN
        RETURN;
    ELSIF left_ms >= 0 THEN -- what the limits were short has passed
        PERFORM fencedb.lower_limit('statement_timeout', greatest(1, limit_ms)), fencedb.lower_limit('idle_in_transaction_session_timeout', greatest(1, limit_ms)),
            set_config('fencedb.lease', regexp_replace(current_setting('fencedb.lease'), E'^(\\S+) \\S+', concat(E'\\1 ', split_part(current_setting('fencedb.lease'), ' ', 3)::bigint - limit_ms)), true);
        RETURN;
    END IF;
    IF observing THEN
        PERFORM fencedb.let_pass(target, operation, CASE WHEN left_ms IS NULL THEN 'FN002' ELSE 'FN006' END, false, NULL);
    ELSE
        PERFORM fencedb.refuse(CASE WHEN left_ms IS NULL THEN 'FN002' ELSE 'FN006' END, target, operation, NULL);
    END IF;
END
$$;

-- The table itself, its partitions and its children. Row triggers of a partitioned table come to
-- its partitions by themselves, statement triggers do not, and a TRUNCATE may name the partition.
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
    WHERE c.relkind IN ('r', 'p', 'f')
$$;

COMMENT ON FUNCTION fencedb.members IS 'A table with all its partitions and inheritance children.';

-- The table that was protected: this one, or the parent of a partition or child.
CREATE FUNCTION fencedb.guarded_root(guarded oid) RETURNS oid
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE up(rel, depth) AS (
        SELECT guarded, 0
        UNION
        SELECT i.inhparent, up.depth + 1 FROM up JOIN pg_inherits i ON i.inhrelid = up.rel JOIN pg_trigger t ON t.tgrelid = i.inhparent AND t.tgname = '~fencedb_row'
    )
    SELECT up.rel FROM up ORDER BY up.depth DESC LIMIT 1
$$;

-- What protect has noted on a guard stands in the comment on its function: a dump of the schema
-- takes that along. The function is in this schema, so nobody else can write there. Whether a guard
-- observes is read in its text, which every transaction sees as it is now.
CREATE VIEW fencedb.protected_tables AS
SELECT t.tgrelid::regclass AS table_name,
       nullif(ARRAY(SELECT jsonb_array_elements_text(facts -> 'resource')), '{}') AS resource,
       ARRAY(SELECT jsonb_array_elements_text(facts -> 'columns_added')) AS columns_added,
       t.tgfoid::regprocedure AS guard,
       t.tgenabled IN ('O', 'A') AND EXISTS (SELECT FROM pg_trigger s WHERE s.tgrelid = t.tgrelid AND s.tgfoid = t.tgfoid AND s.tgname = '~fencedb_statement' AND s.tgenabled IN ('O', 'A'))
           AND EXISTS (SELECT FROM pg_trigger s WHERE s.tgrelid = t.tgrelid AND s.tgfoid = t.tgfoid AND s.tgname = '~fencedb_truncate' AND s.tgenabled IN ('O', 'A')) AS enabled,
       (facts -> 'stamp')::boolean AS stamp,
       substring(pg_get_functiondef(t.tgfoid) FROM 'DECLARE -- (\w+)') = 'observes' AS observed,
       CASE WHEN substring(pg_get_functiondef(t.tgfoid) FROM 'DECLARE -- (\w+)') = 'observes' THEN (facts ->> 'observed_since')::timestamptz END AS observed_since,
       (SELECT (obj_description(n.oid, 'pg_proc')::jsonb ->> 'since')::timestamptz FROM pg_trigger h JOIN pg_proc n ON n.oid = h.tgfoid AND n.pronamespace = 'fencedb'::regnamespace
        WHERE h.tgrelid = t.tgrelid AND h.tgname = '~fencedb_note_update') AS history_since
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = 'fencedb'::regnamespace, LATERAL (SELECT obj_description(p.oid, 'pg_proc')::jsonb AS facts) noted
WHERE t.tgname = '~fencedb_row' AND t.tgparentid = 0
UNION ALL
SELECT DISTINCT t.tgrelid::regclass, NULL::text[], NULL::text[], t.tgfoid::regprocedure, false, NULL::boolean, NULL::boolean, NULL::timestamptz, NULL::timestamptz
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = 'fencedb'::regnamespace
WHERE t.tgname IN ('~fencedb_statement', '~fencedb_truncate')
  AND NOT EXISTS (SELECT FROM pg_trigger r WHERE r.tgrelid = t.tgrelid AND r.tgname = '~fencedb_row' AND r.tgfoid = t.tgfoid);

COMMENT ON VIEW fencedb.protected_tables IS 'The tables that are guarded, with the templates of their resources. resource is NULL where the guard of rows has gone, as DETACH PARTITION takes it away. enabled is false when somebody has switched a trigger of ours off, or left it to replication, or it has gone. observed says that the guard refuses nothing (fencedb.observe), and observed_since when that began. history_since says since when statements on it are noted while history is kept, NULL if they are not. stamp is false where the ledger alone judges.';

CREATE FUNCTION fencedb.switched_off(target regclass) RETURNS text[]
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(DISTINCT m.member::text)
    FROM fencedb.members(target) m JOIN pg_trigger t ON t.tgrelid = m.member
    WHERE t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') AND t.tgenabled NOT IN ('O', 'A')
$$;

COMMENT ON FUNCTION fencedb.switched_off IS 'Of a table, its partitions and inheritance children, those with a trigger of ours that is switched off or left to replication; NULL if there are none.';

-- A template is literal text with columns in braces; two braces are one of the text. The text of a
-- column must be the same whatever a session has set, and equal for values that the table takes for
-- equal. expression computes the resource over the row %1$s; it is NULL where the row has none.
-- longest is how many bytes it can have, NULL if it can be empty or of any length.
--
-- A guard runs as the owner of this schema, and anybody can put it on a table of theirs, or give a
-- column another type by force. A cast of such a type would call a function of theirs, in planning
-- too. So typed tells whether the columns of NEW have the types of Postgres that they had, and must
-- be asked first. Other types are read by concat, which calls their output functions alone; a date
-- goes that way and back, since its text depends on settings. printed is an expression that reads
-- all columns so: it is slower, and nothing has to be asked.
CREATE FUNCTION fencedb.read_template(target regclass, template text, OUT columns name[], OUT expression text, OUT longest int, OUT typed text, OUT printed text)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off
AS $$
DECLARE
    parts   text[] := ARRAY(SELECT m[1] FROM regexp_matches(template, '\{\{|\}\}|\{[^{}]*\}|[^{}]+', 'g') WITH ORDINALITY r(m, i) ORDER BY r.i);
    part    text;
    after_column boolean := false;
    col     pg_attribute;
    base    pg_type;
    typmod  int;
    type    text;
    read    text;
    terms   text[] := '{}';
    prints  text[] := '{}';
    cast_only boolean; -- a type of Postgres whose text is what a cast gives
    bytes   int := 0;
    problem text;
    way_out text;
BEGIN
    columns := '{}';
    typed := 'true';
    IF coalesce(template, '') = '' OR array_to_string(parts, '') <> template OR template ~ '\|\|' OR template ~ '[''()]' AND template !~ '\{'
       OR template ~ '\}::[a-z]' OR template !~ '\{' AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = split_part(template, '::', 1) AND NOT a.attisdropped) THEN
        problem := CASE WHEN coalesce(template, '') = '' THEN 'it is empty' WHEN array_to_string(parts, '') <> template THEN 'a brace in it has no partner' ELSE 'it looks like an expression' END;
        way_out := format('A template is text with columns in braces, as in %s. Write {{ and }} for braces of the text.',
            CASE WHEN template ~ '\}::[a-z]' THEN split_part(template, '::', 1) WHEN template ~ '^\w+(::|$)' THEN format('{%s}', split_part(template, '::', 1)) ELSE 'sku:{sku}' END);
    END IF;
    FOREACH part IN ARRAY parts LOOP
        EXIT WHEN problem IS NOT NULL;
        IF part !~ '^\{[^{]' THEN
            part := CASE part WHEN '{{' THEN '{' WHEN '}}' THEN '}' ELSE part END;
            terms := terms || replace(quote_literal(part), '%', '%%');
            prints := prints || replace(quote_literal(part), '%', '%%');
            bytes := bytes + octet_length(part);
            after_column := false;
            CONTINUE;
        END IF;
        SELECT * INTO col FROM pg_attribute a WHERE a.attrelid = target AND a.attname = substr(part, 2, length(part) - 2) AND a.attnum > 0 AND NOT a.attisdropped;
        typmod := col.atttypmod;
        SELECT * INTO base FROM pg_type t WHERE t.oid = col.atttypid;
        WHILE base.typtype = 'd' LOOP
            typmod := greatest(typmod, base.typtypmod);
            SELECT * INTO base FROM pg_type t WHERE t.oid = base.typbasetype;
        END LOOP;
        type := base.oid::regtype;
        read := '%1$s.' || replace(quote_ident(col.attname), '%', '%%');
        way_out := 'Use a column of its own for it, of type text for example, tied to the others by a CHECK or a composite foreign key.';
        IF col.attname IS NULL THEN
            problem := format('there is no column "%s"', substr(part, 2, length(part) - 2));
            way_out := 'Name columns as the catalog has them, without quotes. If one was renamed, protect the table again with its new name.';
        ELSIF after_column THEN
            problem := format('there is no text between column "%s" and the column before, so other values could give the same resource', col.attname);
            way_out := 'Put a separator between them, as in {a}:{b}.';
        ELSIF col.attname = 'last_fencing_token' THEN
            problem := 'column "last_fencing_token" is the stamp of the guard';
        ELSIF col.attgenerated <> '' THEN
            problem := format('column "%s" is generated: it gets its value after the guard has looked', col.attname);
        ELSIF base.typtype <> 'e' AND type NOT IN ('smallint', 'integer', 'bigint', 'boolean', 'text', 'character varying', 'character', 'uuid', 'date')
              AND NOT (type = 'numeric' AND typmod >= 4 AND (typmod - 4) & 2047 = 0) THEN -- the scale
            problem := format('column "%s" has type %s, of which equal values can have different texts, or a text that depends on settings', col.attname, format_type(col.atttypid, col.atttypmod));
        ELSIF EXISTS (SELECT FROM pg_collation c WHERE c.oid = col.attcollation AND NOT c.collisdeterministic) THEN
            problem := format('column "%s" has a collation that takes different texts for equal', col.attname);
        ELSIF EXISTS (SELECT FROM fencedb.members(target) m JOIN pg_attribute a ON a.attrelid = m.member
                      WHERE a.attname = col.attname AND (NOT a.attnotnull OR EXISTS (SELECT FROM pg_constraint c -- of Postgres 18
                          WHERE c.conrelid = m.member AND c.contype = 'n' AND NOT c.convalidated AND a.attnum = ANY (c.conkey)))) THEN
            problem := format('column "%s" may be NULL', col.attname);
            way_out := format('Fill it, and ALTER TABLE %s ALTER COLUMN %I SET NOT NULL; in inheritance children as well.', target, col.attname);
        END IF;
        columns := columns || col.attname;
        cast_only := col.atttypid = base.oid AND type IN ('smallint', 'integer', 'bigint', 'numeric', 'text', 'character varying', 'uuid');
        typed := concat_ws(' AND ', typed, CASE WHEN cast_only THEN format('pg_catalog.pg_typeof(%s) OPERATOR(pg_catalog.=) ''%s''::pg_catalog.oid', 'NEW.' || quote_ident(col.attname), base.oid) END);
        prints := prints || replace(CASE type WHEN 'boolean' THEN 'CASE WHEN pg_catalog.concat(~) OPERATOR(pg_catalog.=) ''t'' THEN ''true'' WHEN pg_catalog.concat(~) OPERATOR(pg_catalog.=) ''f'' THEN ''false'' END'
            WHEN 'date' THEN 'CASE WHEN ~ IS NOT NULL THEN CASE WHEN pg_catalog.concat(~)::pg_catalog.date OPERATOR(pg_catalog.>=) ''0001-01-01''::pg_catalog.date AND pg_catalog.concat(~)::pg_catalog.date OPERATOR(pg_catalog.<=) ''9999-12-31''::pg_catalog.date
                THEN pg_catalog.to_char(pg_catalog.concat(~)::pg_catalog.date::pg_catalog.timestamp, ''YYYY-MM-DD'') END END'
            WHEN 'character' THEN 'CASE WHEN ~ IS NOT NULL THEN pg_catalog.rtrim(pg_catalog.concat(~), '' '') END'
            ELSE 'CASE WHEN ~ IS NOT NULL THEN pg_catalog.concat(~) END' END, '~', read);
        terms := terms || CASE WHEN cast_only THEN read || '::pg_catalog.text' ELSE prints[cardinality(prints)] END;
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
    expression := array_to_string(terms, ' OPERATOR(pg_catalog.||) ');
    printed := array_to_string(prints, ' OPERATOR(pg_catalog.||) ');
    longest := CASE WHEN template !~ '^\{[^{}]*\}$' OR type NOT IN ('text', 'character varying', 'character') THEN bytes END;
END
$$;

CREATE FUNCTION fencedb.resources_of(protected_row anyelement) RETURNS text[]
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target    oid    := fencedb.guarded_root((SELECT t.typrelid FROM pg_type t WHERE t.oid = pg_typeof(protected_row)));
    templates text[] := (SELECT p.resource FROM fencedb.protected_tables p WHERE p.table_name = target);
    resources text[];
BEGIN
    IF templates IS NULL THEN
        RAISE EXCEPTION 'fencedb.resources_of: needs a row of a protected table, got %', pg_typeof(protected_row)
            USING ERRCODE = 'wrong_object_type', HINT = 'For example: SELECT fencedb.resources_of(b) FROM bookings b';
    END IF;
    EXECUTE format('SELECT ARRAY[%s] FROM (SELECT ($1).*) AS r', (SELECT string_agg(format((fencedb.read_template(target, t)).expression, 'r'), ', ') FROM unnest(templates) t))
    INTO resources USING protected_row;
    RETURN resources;
END
$$;

COMMENT ON FUNCTION fencedb.resources_of IS 'The resources that a row of a protected table belongs to: SELECT fencedb.resources_of(b) FROM bookings b.';

-- Raises unless who has logged in owns the table, and it is not guarded as a part of another.
CREATE FUNCTION fencedb.require_owner(target regclass) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class  pg_class := (SELECT c FROM pg_class c WHERE c.oid = target);
    parent regclass := (SELECT min(i.inhparent) FROM pg_inherits i JOIN pg_trigger t ON t.tgrelid = i.inhparent
                        WHERE i.inhrelid = target AND t.tgname = '~fencedb_row');
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'fencedb: needs a table, got NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'to_regclass gives NULL where there is no table of that name; a cast to regclass says so.';
    ELSIF class.relpersistence IS NULL OR class.relpersistence = 't' THEN
        RAISE EXCEPTION 'fencedb: % is temporary', target USING ERRCODE = 'wrong_object_type';
    ELSIF NOT pg_has_role(session_user, class.relowner, 'MEMBER') THEN
        RAISE EXCEPTION 'fencedb: % does not own %', session_user, target
            USING ERRCODE = 'insufficient_privilege', HINT = 'Log in as the owner of the table, or as a member of that role: the audit names who logged in.';
    ELSIF parent IS NOT NULL THEN
        RAISE EXCEPTION '% is guarded as a part of %', target, parent
            USING ERRCODE = 'object_in_use', HINT = format('Call fencedb.protect or fencedb.unprotect for %s, or take %s out of it first (ALTER TABLE ... DETACH PARTITION or NO INHERIT).', parent, target);
    END IF;
END
$$;

-- The guard of a table is one trigger function for its statements and its rows, in this schema, so
-- that no change of the table's schema takes half of it away. It runs as the owner of this schema,
-- who may read the session's key. Comparing, it relies on no statement trigger having run before:
-- a partition that is younger than protect has none.
-- Its triggers for statements have arguments, the one for rows has none. Where rows may be written
-- by a statement that no guard sees, by the name of such a partition or of a parent that is not
-- protected, a row looks at the clock too.
--     own     the resource of the row, as it will be, or as it was before a DELETE; of several, the
--             text of the array, behind more spaces than a resource can have
--     former  the same, but of the row before an UPDATE
--     token   the token to stamp: from what was judged last, if that is about this resource
-- A guard that observes has the same in a block that turns every error into a record; rows of a
-- writer that was recorded lately do not come to that.
CREATE FUNCTION fencedb.write_guard(target regclass, templates text[], stamp boolean, observes boolean, added text[]) RETURNS regprocedure
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    expressions text := (SELECT string_agg((fencedb.read_template(target, t)).expression, ', ' ORDER BY i) FROM unnest(templates) WITH ORDINALITY u(t, i));
    several     boolean := cardinality(templates) > 1;
    unseen      boolean := (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = target) OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = target);
    resource    text := CASE WHEN several THEN format('pg_catalog.concat(pg_catalog.repeat('' '', 512), ARRAY[%s])', expressions) ELSE expressions END;
    set_stamp   text := CASE WHEN stamp THEN 'NEW.last_fencing_token := coalesce(token, NEW.last_fencing_token);' ELSE '' END;
    old_stamp   text := CASE WHEN stamp THEN 'OLD.last_fencing_token' ELSE '0' END;
    typed       text := (SELECT string_agg((fencedb.read_template(target, t)).typed, ' AND ') FROM unnest(templates) t) || CASE WHEN stamp THEN ' AND pg_catalog.pg_typeof(NEW.last_fencing_token) OPERATOR(pg_catalog.=) ''20''::pg_catalog.oid' ELSE '' END;
    present     record;
    guard       text;
BEGIN
    PERFORM fencedb.require_owner(target);
    SELECT p.guard, p.observed_since INTO present FROM fencedb.protected_tables p
    WHERE p.table_name = target AND p.resource IS NOT NULL AND NOT EXISTS ( -- a child that no longer inherits has it too, or a table of somebody else
        SELECT FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE t.tgfoid = p.guard AND (t.tgname = '~fencedb_row' OR NOT pg_has_role(session_user, c.relowner, 'MEMBER'))
          AND t.tgrelid <> ALL (ARRAY(SELECT m.member FROM fencedb.members(target) m)));
    guard := (SELECT format('fencedb.%I', p.proname) FROM pg_proc p WHERE p.oid = present.guard);
    -- The cast cuts at 63 bytes and at no other place than between characters. A name that is taken
    -- is not taken over: what runs it may be younger than the snapshot of this transaction.
    FOR i IN 0 .. 2147483647 LOOP
        EXIT WHEN guard IS NOT NULL AND (present.guard IS NOT NULL OR to_regprocedure(guard || '()') IS NULL);
        guard := (SELECT format('fencedb.%I', ('guard_' || coalesce(nullif(i, 0) || '_', '') || c.relname)::name) FROM pg_class c WHERE c.oid = target);
    END LOOP;
    EXECUTE format('CREATE %s FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS %L', CASE WHEN present.guard IS NOT NULL THEN 'OR REPLACE' END, guard, format($guard$
DECLARE -- %1$s
    own    pg_catalog.text;
    former pg_catalog.text;
    token  pg_catalog.int8;
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.>) 0 THEN -- a statement
        IF TG_OP OPERATOR(pg_catalog.=) 'TRUNCATE' OR TG_NAME OPERATOR(pg_catalog.<>) '~fencedb_truncate' AND (TG_NARGS OPERATOR(pg_catalog.>) 1
           OR NOT (CASE WHEN pg_catalog.split_part(pg_catalog.current_setting('fencedb.lease', true), ' ', 1) OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text
               THEN pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.transaction_timestamp()) OPERATOR(pg_catalog.*) 1000 OPERATOR(pg_catalog.<=) pg_catalog.split_part(pg_catalog.current_setting('fencedb.lease'), ' ', 2)::pg_catalog.float8
               ELSE pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.>) 1%2$s END)) THEN
            PERFORM fencedb.judge_statement(TG_RELID, TG_OP, TG_ARGV, %3$s);
        END IF;
        RETURN NULL;
    END IF;
    %4$s
    %14$s
    IF NOT (%12$s) THEN
        RAISE EXCEPTION 'columns of %% have other types than those that were protected', TG_RELID::pg_catalog.regclass USING ERRCODE = 'datatype_mismatch', HINT = 'Call fencedb.unprotect and fencedb.protect for the table.';
    END IF;
    own := CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN %5$s ELSE %6$s END;
    former := CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN %5$s ELSE own END;
    IF pg_catalog.current_setting('fencedb.judged', true) OPERATOR(pg_catalog.<>) '' THEN
        token := pg_catalog.current_setting('fencedb.token', true)::pg_catalog.int8;
        token := CASE WHEN own OPERATOR(pg_catalog.=) former COLLATE pg_catalog."C"
            AND (TG_OP OPERATOR(pg_catalog.=) 'INSERT' OR %7$s OPERATOR(pg_catalog.<=) token)
            AND pg_catalog.current_setting('fencedb.judged') OPERATOR(pg_catalog.=) fencedb.signature(own, token) THEN token END;
    END IF;
    IF token IS NULL THEN
        token := coalesce(%13$s, fencedb.judge_any(TG_RELID, TG_OP, %8$s, %9$s, CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN %7$s END, own, %3$s));
    END IF;
    %10$s
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;
    %11$s
    RETURN NEW;
END
$guard$,
        CASE WHEN observes THEN 'observes' ELSE 'enforces' END,
        CASE WHEN observes THEN ' OR fencedb.recorded(TG_RELID, TG_OP, false)' ELSE '' END,
        observes::text,
        CASE WHEN observes THEN $observe$IF fencedb.recorded(TG_RELID, TG_OP, true) THEN
        IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END IF;
    BEGIN$observe$ ELSE '' END,
        format(resource, 'OLD'), format(resource, 'NEW'), old_stamp,
        CASE WHEN several THEN format('CASE WHEN TG_OP OPERATOR(pg_catalog.=) ''DELETE'' THEN ARRAY[%s] ELSE ARRAY[%s] END', format(expressions, 'OLD'), format(expressions, 'NEW')) ELSE 'ARRAY[own]' END,
        CASE WHEN several THEN format('CASE WHEN TG_OP OPERATOR(pg_catalog.=) ''INSERT'' THEN ARRAY[%s] ELSE ARRAY[%s] END', format(expressions, 'NEW'), format(expressions, 'OLD')) ELSE 'ARRAY[former]' END,
        CASE WHEN observes THEN replace($observe$IF TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN
            ~stamp
        END IF;
    EXCEPTION WHEN OTHERS THEN
        PERFORM fencedb.let_pass(TG_RELID, TG_OP, SQLSTATE, true, NULL);
    END;$observe$, '~stamp', coalesce(nullif(set_stamp, ''), 'NULL;')) ELSE '' END,
        CASE WHEN observes THEN '' ELSE replace(set_stamp, 'coalesce(token, NEW.last_fencing_token)', 'token') END,
        typed,
        CASE WHEN observes OR several THEN 'NULL' ELSE format($fast$CASE WHEN own OPERATOR(pg_catalog.=) former COLLATE pg_catalog."C"
            THEN fencedb.judge(own, CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'INSERT' THEN 0 ELSE %s END) END$fast$, old_stamp) END,
        CASE WHEN unseen THEN format($clock$IF (CASE WHEN pg_catalog.split_part(pg_catalog.current_setting('fencedb.lease', true), ' ', 1) OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text
        THEN pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.transaction_timestamp()) OPERATOR(pg_catalog.*) 1000 OPERATOR(pg_catalog.>) pg_catalog.split_part(pg_catalog.current_setting('fencedb.lease'), ' ', 2)::pg_catalog.float8 END) THEN
        PERFORM fencedb.judge_statement(TG_RELID, TG_OP, NULL, %s);
    END IF;$clock$, observes::text) ELSE '' END));
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s() TO PUBLIC', guard); -- whoever creates a partition needs it
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', guard, jsonb_strip_nulls(jsonb_build_object('resource', templates, 'stamp', stamp, 'columns_added', added,
        'observed_since', CASE WHEN observes THEN coalesce(present.observed_since, clock_timestamp()) END)));
    RETURN (guard || '()')::regprocedure;
END
$$;

-- Drops a guard, or what keeps the history of a table, that no trigger runs.
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

-- protect and unprotect run as whoever calls them, who may not write to the audit but may call
-- this, as often as they like. So nothing here is theirs to say, and calling it again adds nothing:
-- it records what the catalog says of a table, if that is not what was recorded of it last.
-- already: the caller has changed nothing yet, so somebody else did.
CREATE FUNCTION fencedb.record_protection(target regclass, already boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection record;
    recorded   record;
    event      text;
BEGIN
    PERFORM fencedb.require_owner(target);
    SELECT p.observed, p.resource INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.enabled AND p.resource IS NOT NULL;
    event := CASE WHEN NOT FOUND THEN 'unprotect' WHEN protection.observed THEN 'observe' ELSE 'protect' END;
    -- By its oid, as it may have been renamed; by its name where the database is a copy.
    SELECT a.event, a.details INTO recorded
    FROM fencedb.audit a
    WHERE a.event IN ('protect', 'observe', 'unprotect') AND (a.details ->> 'oid' = target::oid::text OR a.details ->> 'table' = target::text)
    ORDER BY a.details ->> 'oid' = target::oid::text DESC, a.id DESC LIMIT 1;
    IF event = coalesce(recorded.event, 'unprotect') THEN
        RETURN;
    END IF;
    INSERT INTO fencedb.audit (event, reason, details)
    VALUES (event, CASE WHEN already THEN 'found by this role: changed by hand, or restored' ELSE 'changed by this role' END,
        coalesce(recorded.details, '{}') || jsonb_build_object('table', target::text, 'oid', target::oid::text)
        || CASE event WHEN 'unprotect' THEN '{}' ELSE jsonb_build_object('resource', protection.resource) END);
END
$$;

-- The row trigger is named to fire after the other BEFORE triggers of the table, so that it judges
-- the row as it will be stored; triggers fire in the byte order of their names. ~fencedb_truncate
-- names the columns of the template, so that Postgres refuses to drop them or to change their type;
-- it does nothing before an UPDATE.
-- Protecting again adds guards to members that have come since, and switches on those that were
-- switched off or left to replication.
CREATE FUNCTION fencedb.create_triggers(target regclass, guard regprocedure, former regprocedure, columns name[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    update_of text := (SELECT ' OR UPDATE OF ' || string_agg(quote_ident(c), ', ') FROM unnest(columns) c);
    m         record;
    later     name;
    args      text[]; -- see judge_statement
    list      text;
    own       name;
BEGIN
    FOR m IN SELECT member, is_partition, c.relkind FROM fencedb.members(target) JOIN pg_class c ON c.oid = member LOOP
        later := (SELECT min(t.tgname) FROM pg_trigger t
                  WHERE t.tgrelid = m.member AND t.tgname COLLATE "C" > '~fencedb_row' AND t.tgtype & 3 = 3 -- BEFORE, FOR EACH ROW
                    AND t.tgfoid NOT IN (guard, coalesce(former, guard)));
        IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') AND t.tgfoid NOT IN (guard, coalesce(former, guard))) THEN
            RAISE EXCEPTION 'fencedb.protect: a trigger of % has a name that is reserved for fencedb', m.member
                USING ERRCODE = 'duplicate_object', HINT = 'Either the table is protected by itself: call fencedb.unprotect for it first. Or somebody with the TRIGGER privilege made the trigger: drop it and protect again.';
        ELSIF later IS NOT NULL THEN
            RAISE EXCEPTION 'fencedb.protect: the trigger "%" of % would change rows after the guard has checked them', later, m.member
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Triggers fire in the byte order of their names. Rename it to begin with an ASCII letter.';
        END IF;
        IF NOT m.is_partition AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row' AND t.tgfoid = guard) THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s', m.member, guard);
        END IF;
        CONTINUE WHEN m.relkind = 'f'; -- Postgres 15 has no trigger of its TRUNCATE
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

CREATE FUNCTION fencedb.protect(target regclass, resource text[], mode text DEFAULT NULL, stamp boolean DEFAULT NULL, history boolean DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
#variable_conflict use_variable
DECLARE
    present  record;
    columns  name[];
    odd      text;
    key      text;
    template record;
    n        bigint;
    first    text;
    added    text[];
    guard    regprocedure;
    former   regprocedure; -- a part that was taken out of a protected table has that one's
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
    PERFORM fencedb.require_owner(target);
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', target); -- another session may be at it
    PERFORM fencedb.record_protection(target, true); -- if somebody has taken the guard away by hand
    SELECT * INTO present FROM fencedb.protected_tables p WHERE p.table_name = target AND p.resource IS NOT NULL;
    IF FOUND THEN
        IF present.resource <> resource AND NOT EXISTS ( -- a column of it was renamed
            SELECT FROM unnest(present.resource) t, regexp_matches(replace(replace(t, '{{', ''), '}}', ''), '\{([^{}]+)\}', 'g') m
            WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = m[1] AND NOT a.attisdropped)) THEN
            RAISE EXCEPTION 'fencedb.protect: % is already protected, with resource => %', target, array_to_string(present.resource, ' and ')
                USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change that.';
        ELSIF present.observed <> (mode = 'observe') THEN
            RAISE EXCEPTION 'fencedb.protect: % is already %', target, CASE WHEN present.observed THEN 'observed' ELSE 'enforced' END
                USING ERRCODE = 'duplicate_object', HINT = 'fencedb.enforce and fencedb.observe change that, without a lock on the table.';
        ELSIF present.stamp <> stamp THEN
            RAISE EXCEPTION 'fencedb.protect: % is already protected, with stamp => %', target, present.stamp
                USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change that.';
        END IF;
    END IF;
    stamp := coalesce(present.stamp, stamp, true);
    former := (SELECT p.guard FROM fencedb.protected_tables p WHERE p.table_name = target ORDER BY p.resource IS NULL LIMIT 1);

    SELECT array_agg(DISTINCT c ORDER BY c) INTO columns FROM unnest(resource) t, unnest((fencedb.read_template(target, t)).columns) c;
    SELECT format('%I is %s, it must be bigint that a trigger can set', a.attname, a.atttypid::regtype) INTO odd
    FROM pg_attribute a
    WHERE a.attrelid = target AND a.attname = 'last_fencing_token' AND NOT a.attisdropped AND (a.atttypid <> 'bigint'::regtype OR a.attgenerated <> '') AND stamp;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect: column % of %', odd, target USING ERRCODE = 'datatype_mismatch';
    END IF;
    -- The strongest lock comes first: a writer that has the table already would be in a deadlock
    -- with who wants more of it later.
    added := coalesce(present.columns_added, '{}');
    IF stamp AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = 'last_fencing_token' AND NOT a.attisdropped) THEN
        EXECUTE format('ALTER TABLE %s ADD COLUMN last_fencing_token bigint NOT NULL DEFAULT 0', target);
        added := '{last_fencing_token}';
    END IF;
    IF present.resource IS DISTINCT FROM resource THEN
        -- A row without a resource could not be written again, not even deleted; nor one that a
        -- policy hides from its owner, hence row_security.
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
    guard := fencedb.write_guard(target, resource, stamp, coalesce(present.observed, mode = 'observe', false), added);
    PERFORM fencedb.create_triggers(target, guard, former, coalesce(columns, '{}'));
    PERFORM fencedb.drop_guard(former);
    PERFORM fencedb.set_history(target, coalesce(history, EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname ^@ '~fencedb_note_')));
    PERFORM fencedb.record_protection(target, false);
END
$$;

COMMENT ON FUNCTION fencedb.protect(regclass, text[], text, boolean, boolean) IS 'From now on, no INSERT, UPDATE, DELETE, TRUNCATE, COPY or MERGE on target commits without a current token for each row''s own resource. resource is a template over its columns, table:{table_id}, or an array of templates where a row belongs to several resources; the columns are NOT NULL, and of type integer, numeric without scale, boolean, text, varchar, char, uuid, date or an enum. Adds last_fencing_token, the token of the last write to the row, or uses the column that is there; with stamp => false it adds none, and the ledger judges alone. With mode => ''observe'' nothing is refused: see fencedb.observe. With history => true what statements write is kept, while fencedb.keep_history says so; with false no more, and without it as before. Waits for open transactions on target and blocks new ones meanwhile: set lock_timeout and try again. Call it once more after adding a partition (to guard that against TRUNCATE by name, and to keep its history) or an inheritance child (to guard it at all), for a table after attaching it to a parent that is not protected (its rows look at the clock then) or detaching it, and after renaming a column of the template.';

CREATE FUNCTION fencedb.protect(target regclass, resource text, mode text DEFAULT NULL, stamp boolean DEFAULT NULL, history boolean DEFAULT NULL) RETURNS void
    LANGUAGE sql
    RETURN fencedb.protect(target, ARRAY[resource], mode, stamp, history);

COMMENT ON FUNCTION fencedb.protect(regclass, text, text, boolean, boolean) IS 'protect for rows that belong to one resource.';

-- Takes away whatever is there of ours, also half of it.
CREATE FUNCTION fencedb.unprotect(target regclass, keep_columns boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    own        record;
    detail     text;
BEGIN
    PERFORM fencedb.require_owner(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF NOT FOUND THEN
        RAISE NOTICE 'fencedb.unprotect: % is not protected', target;
        RETURN;
    END IF;
    PERFORM fencedb.record_protection(target, true); -- what is not known to have been protected, as in a copy of the schema alone
    FOR own IN SELECT t.tgname, m.member FROM fencedb.members(target) m JOIN pg_trigger t ON t.tgrelid = m.member
               WHERE t.tgparentid = 0 AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', own.tgname, own.member);
    END LOOP;
    PERFORM fencedb.set_history(target, false);
    PERFORM fencedb.drop_guard(protection.guard);
    IF NOT keep_columns AND 'last_fencing_token' = ANY (protection.columns_added) THEN
        BEGIN
            EXECUTE format('ALTER TABLE %s DROP COLUMN IF EXISTS last_fencing_token', target);
            RAISE NOTICE 'fencedb.unprotect: last_fencing_token of % is dropped', target;
        EXCEPTION WHEN dependent_objects_still_exist THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            RAISE EXCEPTION 'fencedb.unprotect: %', SQLERRM
                USING ERRCODE = 'dependent_objects_still_exist', DETAIL = detail, HINT = 'Drop these first, or keep the column, with keep_columns => true.';
        END;
    END IF;
    PERFORM fencedb.record_protection(target, false);
    PERFORM fencedb.forget_observations(target), fencedb.end_take_over(target);
END
$$;

COMMENT ON FUNCTION fencedb.unprotect IS 'Undoes protect: any client can write without a token again. Drops the column that it had added, unless keep_columns. Forgets what was observed, and ends take-overs. Waits for open transactions on target and blocks new ones meanwhile, as protect does: set lock_timeout and try again.';

REVOKE ALL ON FUNCTION fencedb.signature, fencedb.draw_key, fencedb.keyed, fencedb.refuse, fencedb.judge, fencedb.judge_any, fencedb.judge_statement FROM PUBLIC;
GRANT SELECT ON fencedb.protected_tables TO PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE
    tables text := (SELECT string_agg(p.table_name::text, ', ' ORDER BY p.table_name::text) FROM fencedb.protected_tables p);
    guard  regprocedure;
BEGIN
    IF tables IS NOT NULL THEN
        RAISE EXCEPTION 'still protected: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.unprotect for each, then migrate down.';
    END IF;
    FOR guard IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace AND p.prorettype = 'trigger'::regtype AND p.proname ~ '^(guard|noted)_' LOOP
        PERFORM fencedb.drop_guard(guard); -- of a table that was dropped
    END LOOP;
END
$$;
DROP FUNCTION fencedb.protect(regclass, text, text, boolean, boolean), fencedb.protect(regclass, text[], text, boolean, boolean), fencedb.unprotect, fencedb.create_triggers, fencedb.record_protection,
    fencedb.drop_guard, fencedb.write_guard, fencedb.require_owner, fencedb.resources_of, fencedb.read_template, fencedb.switched_off;
DROP VIEW fencedb.protected_tables;
DROP FUNCTION fencedb.guarded_root, fencedb.members, fencedb.judge_statement, fencedb.judge_any, fencedb.judge, fencedb.refuse, fencedb.keyed, fencedb.draw_key, fencedb.signature;
DROP SEQUENCE fencedb.session_key;
-- +goose StatementEnd
