-- Protected tables: every write to them, by any client, needs the token of each row's own resource.

-- +goose Up

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- Whoever writes to a protected table runs our functions, also where those who migrate have taken
-- that right from everybody.
ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

CREATE FUNCTION fencedb.resources_of(resource text) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY[resource];

CREATE FUNCTION fencedb.resources_of(resources text[]) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN cardinality(resources) > 0 THEN ARRAY(SELECT unnest(resources)) ELSE ARRAY[NULL]::text[] END;

COMMENT ON FUNCTION fencedb.resources_of(text)   IS 'Gives resource expressions of either type one type.';
COMMENT ON FUNCTION fencedb.resources_of(text[]) IS 'Gives resource expressions of either type one type, and lists one shape: a single dimension that begins at 1.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.text_of(value anyelement) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
    SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C'
AS $$
BEGIN
    RETURN value::text;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.text_of(anyelement) IS 'The text of a value, whatever the session has set. For columns that have got another type since their table was protected.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.raise_no_token(target text, operation text, resource text, expression text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'FN002',
        MESSAGE = format('%s on protected table %s ', operation, target)
            || CASE operation WHEN 'TRUNCATE' THEN 'is refused, since it names no rows; use DELETE' ELSE 'without a fencing token' END,
        DETAIL  = jsonb_strip_nulls(jsonb_build_object('resource', resource))::text,
        HINT    = CASE operation
            WHEN 'TRUNCATE' THEN 'TRUNCATE names no rows, so it can carry no token for them; use DELETE.'
            ELSE format('Call fencedb.enter for %s first in the transaction (in Go: fencedb.Tx). Nothing was written.',
                coalesce(quote_literal(resource), 'the resource of the row' || coalesce(', which is ' || expression, '')))
        END;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.raise_no_token(text, text, text, text) IS 'Inner function. Raises FN002.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.raise_overdue() RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'FN006',
        MESSAGE = 'the transaction has outlasted the validity that it entered with',
        HINT    = 'Nothing was written. Use a shorter transaction, or enter with more time: under a longer lease, or, if the lease is renewed meanwhile, with what it will be renewed to.';
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.raise_overdue() IS 'Inner function. Raises FN006.';

-- The judge of one row. before and after are the resources of the old and the new row, as far as
-- operation has them; stored is the token in the old row.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require_all(target regclass, operation text, before text[], after text[], stored bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted   text[] := CASE operation WHEN 'INSERT' THEN after WHEN 'DELETE' THEN before ELSE before || after END;
    own      text   := CASE operation WHEN 'DELETE' THEN before[1] ELSE after[1] END; -- that gives its token to the row
    until    float8 := fencedb.until();
    resource text;
    held     bigint;
    token    bigint;
BEGIN
    IF until IS NULL THEN
        token := fencedb.overtake(target, operation, before, after, stored);
        IF token IS NOT NULL THEN
            RETURN token;
        END IF;
        PERFORM fencedb.raise_no_token(target::text, operation, coalesce(after[1], before[1]), NULL);
    ELSIF fencedb.left_ms() < 0 THEN
        PERFORM fencedb.raise_overdue();
    END IF;

    FOREACH resource IN ARRAY wanted LOOP
        IF resource IS NULL THEN
            RAISE EXCEPTION 'the resource of a row of protected table % is NULL', target
                USING ERRCODE = 'null_value_not_allowed', HINT = 'Every row needs a resource: make the columns of the resource expression NOT NULL.';
        END IF;
        CONTINUE WHEN resource = own AND token IS NOT NULL;
        held := (SELECT h.token FROM fencedb.held(resource) h);
        IF held IS NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'FN003',
                MESSAGE = format('%s on protected table %s: the row belongs to resource "%s", whose fence this transaction did not enter', operation, target, resource),
                DETAIL  = jsonb_build_object('table', target, 'resource', resource, 'entered', (SELECT coalesce(jsonb_agg(k ORDER BY k), '[]') FROM jsonb_object_keys(fencedb.grants()) k))::text,
                HINT    = 'Enter with the grants of all resources the transaction writes to. Nothing was written.';
        -- The ledger has already refused stale tokens. This catches a ledger that was emptied under
        -- its rows. Where the fence was set back on purpose, rows still have the stamps from
        -- before.
        ELSIF resource = before[1] AND held < stored THEN
            PERFORM fencedb.raise_stale(resource, held, stored)
            WHERE NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = before[1] AND f.annulled IS NOT NULL);
        END IF;
        IF resource = own THEN
            token := held;
        END IF;
    END LOOP;

    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_all(regclass, text, text[], text[], bigint) IS 'Raises FN001 to FN003 or FN006 unless this transaction entered the fences of all resources of a row; returns the token to stamp on it.';

-- The common case: a row that has one resource and keeps it, and whose fence this transaction has
-- locked alone (see fencedb.held). A note pays only if rows of one resource follow each other. So
-- the first is only marked, and the second noted. As in guard_statement, there is no search_path,
-- and so every name has its schema. A PERFORM costs more than an assignment, and what is behind the
-- query is prepared once in a transaction, not for each row.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require(target regclass, operation text, before text, after text, stored bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    me    pg_catalog.xid := pg_catalog.pg_current_xact_id()::pg_catalog.xid;
    own   pg_catalog.text := CASE WHEN operation OPERATOR(pg_catalog.=) 'DELETE' THEN before ELSE after END; -- as in require_all
    token pg_catalog.int8;
    noted pg_catalog.text;
BEGIN
    SELECT f.last_fencing_token INTO token
    FROM fencedb.fences f
    WHERE f.resource OPERATOR(pg_catalog.=) own AND f.annulled IS NULL
      AND (f.xmax OPERATOR(pg_catalog.=) me AND pg_catalog.mxid_age(me) OPERATOR(pg_catalog.<=) 0
           OR f.xmin OPERATOR(pg_catalog.=) me AND f.advanced_at OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp())
      AND f.lease_id OPERATOR(pg_catalog.<>) fencedb.overtaking_lease();
    IF token IS NULL OR token OPERATOR(pg_catalog.<) stored OR fencedb.left_ms() OPERATOR(pg_catalog.<) 0
       OR operation OPERATOR(pg_catalog.=) 'UPDATE' AND coalesce(before OPERATOR(pg_catalog.<>) after, true) THEN
        token := fencedb.require_all(target, operation, ARRAY[before], ARRAY[after], stored);
        IF fencedb.until() IS NULL THEN -- its role overtakes, for this row alone
            RETURN token;
        END IF;
    END IF;
    IF pg_catalog.current_setting('fencedb.last_judged', true) OPERATOR(pg_catalog.=) own THEN
        noted := fencedb.note(own, token, fencedb.until());
    ELSE
        noted := pg_catalog.set_config('fencedb.last_judged', own, true);
    END IF;
    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require(regclass, text, text, text, bigint) IS 'require_all for a row of one resource.';

-- Refuses before the first row is touched, also where no row matches. A cascade from another table
-- is left to the row trigger: it may match nothing, and then it writes nothing. Later statements of
-- a long transaction get only what is left of the lease. A partition has its row trigger from its
-- parent, and DETACH PARTITION takes that away. So the triggers of a partition have an argument:
-- look whether it is still there.
-- +goose StatementBegin
CREATE FUNCTION fencedb.judge_statement(target oid, operation text, guard text, inherited boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    said     text   := current_setting('fencedb.entered', true);
    until    float8 := fencedb.until();
    left_ms  float8 := ceil(fencedb.left_ms());
    limit_ms bigint := fencedb.limit_ms(greatest(1, left_ms)::bigint);
BEGIN
    IF inherited THEN
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname = '~fencedb_row' AND t.tgparentid <> 0) THEN
            IF fencedb.observes(to_regprocedure(guard || '()')) THEN
                RETURN;
            END IF;
            RAISE EXCEPTION '% on table %, which was detached from a protected table and has lost its guard of rows', operation, target::regclass
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'Nothing was written. As owner of the table call fencedb.protect to guard it again, or fencedb.unprotect to let any client write to it.';
        ELSIF pg_trigger_depth() > 1 AND operation <> 'TRUNCATE' THEN
            RETURN;
        END IF;
    END IF;
    IF until IS NULL OR operation = 'TRUNCATE' THEN
        IF NOT fencedb.let_pass(target, operation, 'FN002', false, guard) THEN
            PERFORM fencedb.raise_no_token(target::regclass::text, operation, NULL, (SELECT facts.resource FROM fencedb.guard_facts(to_regprocedure(guard || '()')) AS facts));
        END IF;
        RETURN;
    END IF;
    IF left_ms < 0 THEN
        IF NOT fencedb.let_pass(target, operation, 'FN006', false, guard) THEN
            PERFORM fencedb.raise_overdue();
        END IF;
    ELSIF left_ms < split_part(said, ' ', 3)::float8 THEN -- what the limits were short has passed
        PERFORM fencedb.lower_limit('statement_timeout', limit_ms), fencedb.lower_limit('idle_in_transaction_session_timeout', limit_ms),
            set_config('fencedb.entered', regexp_replace(said, E'^(\\S+ \\S+) \\S+', E'\\1 ' || limit_ms), true);
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.judge_statement(oid, text, text, boolean) IS 'Inner function. What guard_statement does beside the common cases.';

-- The common cases: a statement of another trigger, one right after enter, and one that a guard
-- which observes has recorded lately (the same as in fencedb.let_pass). Each is one expression,
-- because PL/pgSQL sets each expression up anew in every transaction. The function has no
-- search_path of its own, and its trigger no WHEN, because either costs more than the expression.
-- So every name in it has its schema. (NULLIF, IN and BETWEEN have operators without one.)
-- +goose StatementBegin
CREATE FUNCTION fencedb.guard_statement() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    said    pg_catalog.text := coalesce(pg_catalog.current_setting('fencedb.entered', true), '');
    setting pg_catalog.text;
    noted   pg_catalog.text;
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.=) 1 AND TG_OP OPERATOR(pg_catalog.<>) 'TRUNCATE' THEN
        IF said OPERATOR(pg_catalog.<>) '' THEN
            IF pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.>) 1
               OR pg_catalog.split_part(said, ' ', 1) OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text
               AND pg_catalog.ceil(fencedb.left_ms()) OPERATOR(pg_catalog.>=) pg_catalog.concat('0', pg_catalog.split_part(said, ' ', 3))::pg_catalog.float8 THEN
                RETURN NULL;
            END IF;
        ELSE
            setting := pg_catalog.concat('fencedb.seen_', TG_RELID, '_', TG_OP);
            noted := coalesce(pg_catalog.current_setting(setting, true), '');
            IF (CASE
                WHEN pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.>) 1 THEN true
                WHEN noted OPERATOR(pg_catalog.=) '' THEN false
                WHEN pg_catalog.substr(noted, 36) OPERATOR(pg_catalog.=) pg_catalog.concat('FN002 ', pg_catalog.current_setting('role'), ' ', session_user, ' ', pg_catalog.current_setting('application_name'))
                     AND pg_catalog.substr(noted, 16, 10) OPERATOR(pg_catalog.<>) '1000000000'
                     AND pg_catalog.substr(noted, 2, 14)::pg_catalog.float8 OPERATOR(pg_catalog.>) pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) THEN
                    pg_catalog.set_config(setting, pg_catalog.concat(pg_catalog."left"(noted, 15), pg_catalog.substr(noted, 16, 10)::pg_catalog.int8 OPERATOR(pg_catalog.-) 1, pg_catalog.substr(noted, 26)), false) IS NOT NULL
                ELSE false
            END) THEN
                RETURN NULL;
            END IF;
        END IF;
    END IF;
    PERFORM fencedb.judge_statement(TG_RELID, TG_OP, TG_ARGV[0], TG_NARGS OPERATOR(pg_catalog.>) 1);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guard_statement() IS 'Statement trigger of protected tables. Its arguments: the guard of rows, and whether that is inherited from a partitioned table, and may have gone.';

-- The table itself, its partitions and its children. Row triggers of a partitioned table come to
-- its partitions by themselves, statement triggers do not, and a TRUNCATE may name the partition.
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
    WHERE c.relkind IN ('r', 'p', 'f')
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.members(regclass) IS 'A table with all its partitions and inheritance children.';

-- Anybody can create a trigger of our name on a table of their own; a comment that is not ours must
-- not break the list.
-- +goose StatementBegin
CREATE FUNCTION fencedb.guard_facts(guard oid, OUT mode text, OUT resource text, OUT columns_added text[], OUT stamp boolean, OUT observed_since timestamptz)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT * INTO mode, resource, columns_added, stamp, observed_since
    FROM jsonb_to_record(obj_description(guard, 'pg_proc')::jsonb) AS facts(mode text, resource text, columns_added text[], stamp boolean, observed_since timestamptz);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    -- not JSON, or not of this form
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guard_facts(oid) IS 'Inner function. What protect has noted on a guard, NULLs if nothing.';

-- The first lines of a guard that only observes. See fencedb.switch_guard.
CREATE FUNCTION fencedb.observing() RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN E'\n#variable_conflict use_column\nDECLARE -- this guard refuses nothing\n';

COMMENT ON FUNCTION fencedb.observing() IS 'Inner function. How the text of a guard begins that only observes.';

-- Not read with a query: a transaction above READ COMMITTED may be older than the guard, or than
-- its mode, and would be refused where nothing is. NULL if there is no such function.
-- +goose StatementBegin
CREATE FUNCTION fencedb.observes(guard oid) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT strpos(pg_get_functiondef(guard), fencedb.observing()) > 0
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.observes(oid) IS 'Inner function. Whether a guard refuses nothing.';

CREATE VIEW fencedb.protected_tables AS
SELECT t.tgrelid::regclass     AS table_name,
       facts.mode              AS mode,
       facts.resource          AS resource,
       facts.columns_added     AS columns_added,
       t.tgfoid::regprocedure  AS guard,
       t.tgenabled IN ('O', 'A') AS enabled,
       facts.stamp             AS stamp,
       fencedb.observes(t.tgfoid) AS observed,
       CASE WHEN fencedb.observes(t.tgfoid) THEN facts.observed_since END AS observed_since
FROM pg_trigger t, fencedb.guard_facts(t.tgfoid) AS facts
WHERE t.tgname = '~fencedb_row' AND t.tgparentid = 0 AND facts.mode IN ('ledger', 'row')
UNION
SELECT t.tgrelid::regclass, NULL, NULL, NULL, NULL, false, NULL, false, NULL
FROM pg_trigger t
WHERE t.tgfoid = 'fencedb.guard_statement'::regproc
  AND NOT EXISTS (SELECT FROM pg_trigger r, fencedb.guard_facts(r.tgfoid) AS facts
                  WHERE r.tgrelid = t.tgrelid AND r.tgname = '~fencedb_row' AND facts.mode IN ('ledger', 'row'));

COMMENT ON VIEW fencedb.protected_tables IS 'The tables that are guarded, with their resource expressions. mode is ledger (fencedb.protect) or row (fencedb.protect_row), and NULL where the guard of rows has gone, as DETACH PARTITION takes it away. enabled is false when somebody has switched the trigger off, or left it to replication, or it has gone. observed says that the guard refuses nothing (fencedb.observe), and observed_since when that began. stamp is false where the ledger alone judges.';

-- A member of a protected table is guarded by that table's guard.
-- +goose StatementBegin
CREATE FUNCTION fencedb.check_no_member(target regclass) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parent regclass := (SELECT min(i.inhparent) FROM pg_inherits i JOIN pg_trigger t ON t.tgrelid = i.inhparent
                        WHERE i.inhrelid = target AND t.tgname = '~fencedb_row');
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'fencedb: needs a table, got NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'to_regclass gives NULL where there is no table of that name; a cast to regclass says so.';
    ELSIF parent IS NOT NULL THEN
        RAISE EXCEPTION '% is guarded as a part of %', target, parent
            USING ERRCODE = 'object_in_use', HINT = format('Call fencedb.protect or fencedb.unprotect for %s, or take %s out of it first (ALTER TABLE ... DETACH PARTITION or NO INHERIT).', parent, target);
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_no_member(regclass) IS 'Inner function. Raises for NULL, and for a partition or inheritance child of a protected table.';

-- protect and unprotect run as whoever calls them, who may not write to the audit but may call
-- this, as often as they like. So nothing here is theirs to say, and calling it again adds nothing:
-- it records what the catalog says of a table, if that is not what was recorded of it last. A
-- temporary table is nobody else's business.
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

    SELECT p.mode, p.observed, left(p.resource, 1000) AS resource INTO protection
    FROM fencedb.protected_tables p
    WHERE p.table_name = target AND p.enabled
      AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = target AND t.tgname = '~fencedb_truncate' AND t.tgfoid = 'fencedb.guard_statement'::regproc);
    event := CASE WHEN NOT FOUND THEN 'unprotect' WHEN protection.observed THEN 'observe' ELSE 'protect' END;
    -- By its oid, as it may have been renamed; by its name where the database is a copy.
    SELECT a.event, a.details INTO recorded
    FROM fencedb.audit a
    WHERE a.event IN ('protect', 'observe', 'unprotect') AND (a.details ->> 'oid' = target::oid::text OR a.details ->> 'table' = target::text)
    ORDER BY a.details ->> 'oid' = target::oid::text DESC, a.id DESC LIMIT 1;
    IF event = coalesce(recorded.event, 'unprotect') THEN
        RETURN;
    END IF;
    INSERT INTO fencedb.audit (event, operator, reason, details)
    VALUES (event, format('%s@%s', session_user, coalesce(host(inet_client_addr()), 'local')), 'seen in the catalog',
        coalesce(recorded.details, '{}') || jsonb_build_object('table', target::text, 'oid', target::oid::text)
        || CASE event WHEN 'unprotect' THEN '{}' ELSE jsonb_build_object('mode', protection.mode, 'expression', protection.resource) END);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.record_protection(regclass) IS 'Inner function. Adds to fencedb.audit that a table is protected, observed, or neither any more, if that is news.';

-- What in an expression depends on more than the values in one row, NULL if nothing. What is not
-- known to be harmless is named, so a construct of a future Postgres is refused and not overlooked.
--   Functions and operators must be immutable. Of the stable ones, those may be used that only put
--   text together.
--   A value may become text only if its type's text depends on the value and on settings that the
--   guard pins: a date may. A regclass, whose text is a name from the catalog, or a row, which
--   contains our stamp, may not.
--   Text may become a value only if that is immutable: 'today' is another date tomorrow.
-- +goose StatementBegin
CREATE FUNCTION fencedb.foreign_parts(tree text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE used(type) AS (
        SELECT m[1]::oid FROM regexp_matches(tree, ':[a-z_]*type(?:id|Id)? ([1-9][0-9]*)', 'g') m
        UNION
        SELECT part.type FROM used JOIN pg_type t ON t.oid = used.type LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid),
            LATERAL (VALUES (t.typelem), (t.typbasetype), (r.rngsubtype)) part(type)
    ), foreign_part(name) AS (
        SELECT CASE node WHEN 'SQLVALUEFUNCTION' THEN 'the time or the user' WHEN 'ROWEXPR' THEN 'a row' ELSE lower(node) END
        FROM (SELECT m[1] AS node FROM regexp_matches(tree, '[{]([A-Z]+)', 'g') m) n
        WHERE node NOT IN ('VAR', 'CONST', 'FUNCEXPR', 'NAMEDARGEXPR', 'OPEXPR', 'DISTINCTEXPR', 'NULLIFEXPR', 'SCALARARRAYOPEXPR', 'BOOLEXPR',
            'NULLTEST', 'BOOLEANTEST', 'COALESCEEXPR', 'MINMAXEXPR', 'CASEEXPR', 'CASEWHEN', 'CASETESTEXPR', 'ARRAYEXPR', 'SUBSCRIPTINGREF',
            'RELABELTYPE', 'COERCEVIAIO', 'ARRAYCOERCEEXPR', 'COLLATEEXPR')
        UNION
        SELECT 'function ' || p.oid::regprocedure
        FROM regexp_matches(tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') m JOIN pg_proc p ON p.oid = m[1]::oid
        WHERE p.pronamespace = pg_my_temp_schema()
           OR p.provolatile <> 'i' AND NOT (p.pronamespace = 'pg_catalog'::regnamespace
              AND (p.proname IN ('textanycat', 'anytextcat', 'concat', 'concat_ws', 'format', 'array_to_string')
                   OR p.proname = 'to_char' AND p.proargtypes[0] <> 'timestamptz'::regtype))
        UNION
        SELECT 'type ' || t.oid::regtype
        FROM used JOIN pg_type t ON t.oid = used.type JOIN pg_proc p ON p.oid = t.typoutput
        WHERE p.provolatile <> 'i' AND p.oid <> ALL ('{date_out, timestamp_out, timestamptz_out, interval_out, cash_out, enum_out,
              array_out, range_out, multirange_out}'::regproc[])
        UNION
        SELECT 'cast to ' || t.oid::regtype
        FROM regexp_matches(tree, ':resulttype ([0-9]+) :resultcollid', 'g') m JOIN pg_type t ON t.oid = m[1]::oid JOIN pg_proc p ON p.oid = t.typinput
        WHERE p.provolatile <> 'i'
    )
    SELECT string_agg(name, ', ' ORDER BY name COLLATE "C") FROM foreign_part
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.foreign_parts(text) IS 'Inner function. What in an expression (a pg_node_tree, as text) depends on more than one row; NULL if nothing.';

-- Refuses what could not give a resource for every row, now instead of at the first write, and
-- returns the expression as Postgres understood it: every function and operator named with its
-- schema, so that no search_path changes its meaning. A statistics object is the probe: it admits
-- expressions over the columns of one row and nothing else, needs no right that a guard does not
-- need, and keeps nobody from reading or writing. Only the two commands that contain the expression
-- run in the caller's search_path, and they name all else in full.
-- +goose StatementBegin
CREATE FUNCTION fencedb.compile_resource(target regclass, resource text, mode text, path text, OUT expression text, OUT plain text, OUT columns name[], OUT several boolean, OUT never_null boolean)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relname  name := (SELECT c.relname FROM pg_class c WHERE c.oid = target);
    probe    text := (SELECT format('%s.%I', c.relnamespace::regnamespace, '~fencedb_probe_' || c.oid) FROM pg_class c WHERE c.oid = target);
    -- A cursor takes one query only; EXECUTE would run whatever follows a semicolon.
    -- The cast refuses a text that closes our parenthesis itself.
    parse    text := format(E'SELECT (fencedb.resources_of(%s\n))::pg_catalog.text[] FROM ONLY %s AS %I LIMIT 0', resource, target, relname);
    describe text := format(E'CREATE STATISTICS %s ON (fencedb.resources_of(%s\n)) FROM %s', probe, resource, target);
    query    refcursor;
    tree     text;
    offender text;
    never    boolean := false;
BEGIN
    PERFORM set_config('search_path', path, true);
    OPEN query FOR EXECUTE parse;
    CLOSE query;
    EXECUTE describe;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    SELECT s.stxexprs::text, pg_get_expr(s.stxexprs, s.stxrelid) INTO tree, expression
    FROM pg_statistic_ext s WHERE s.stxrelid = target AND s.stxname = '~fencedb_probe_' || target::oid;
    EXECUTE format('DROP STATISTICS %s', probe);
    columns := ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = target
                     AND a.attnum IN (SELECT m[1]::int FROM regexp_matches(tree, ':varattno ([0-9]+)', 'g') m));

    offender := fencedb.foreign_parts(tree);
    IF offender IS NOT NULL THEN
        RAISE EXCEPTION 'it depends on more than the row (%), so one row could have two resources', offender;
    END IF;
    SELECT string_agg(a.attname, ', ') INTO offender
    FROM pg_attribute a
    WHERE a.attrelid = target AND a.attname = ANY (columns) AND (a.attgenerated <> '' OR a.attname = 'last_fencing_token' OR mode = 'row' AND a.attname = 'last_lease_id');
    IF offender IS NOT NULL THEN
        RAISE EXCEPTION 'it reads columns that get their value after the guard has checked the row (%)', offender;
    END IF;
    IF columns = '{}' THEN
        EXECUTE format('SELECT array_position(%s, NULL) IS NOT NULL', expression) INTO never;
    END IF;
    IF never THEN
        RAISE EXCEPTION 'it gives no row a resource';
    END IF;

    plain := fencedb.plain_text(target, tree, expression);
    several := tree ~ format(':funcid %s ', 'fencedb.resources_of(text[])'::regprocedure::oid);
    -- Put together, by functions that give no NULL, from columns without NULL. A list can contain
    -- one.
    never_null := tree !~ format('(:constisnull true|:elements <>|:(?:var|const|result)type %s )', 'text[]'::regtype::oid)
        AND NOT EXISTS (SELECT FROM regexp_matches(tree, '[{]([A-Z]+)', 'g') m
                        WHERE m[1] NOT IN ('VAR', 'CONST', 'FUNCEXPR', 'OPEXPR', 'ARRAYEXPR', 'RELABELTYPE', 'COERCEVIAIO'))
        AND NOT EXISTS (SELECT FROM regexp_matches(tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') m JOIN pg_proc p ON p.oid = m[1]::oid
                        WHERE (p.pronamespace::regnamespace::text, p.proname) NOT IN (('fencedb', 'resources_of'), ('pg_catalog', 'textcat'), ('pg_catalog', 'textanycat'),
                              ('pg_catalog', 'anytextcat'), ('pg_catalog', 'text'), ('pg_catalog', 'lower'), ('pg_catalog', 'upper'))
                           OR p.proname IN ('lower', 'upper') AND p.prorettype <> 'text'::regtype) -- of a range
        AND NOT EXISTS (SELECT FROM fencedb.members(target) m JOIN pg_attribute a ON a.attrelid = m.member
                        WHERE a.attname = ANY (columns) AND (NOT a.attnotnull OR EXISTS (SELECT FROM pg_constraint c
                            WHERE c.conrelid = m.member AND c.contype = 'n' AND NOT c.convalidated AND a.attnum = ANY (c.conkey))));
EXCEPTION
    WHEN insufficient_privilege OR object_not_in_prerequisite_state OR transaction_rollback OR operator_intervention OR insufficient_resources THEN
        RAISE; -- not the expression's fault
    WHEN OTHERS THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('fencedb.protect: the resource expression for %s cannot be used as text or text[] over one row: %s', target, SQLERRM),
            DETAIL  = format('resource => %s', resource),
            HINT    = 'It must be a text (or text[]) expression over columns of one row of the table, not the row as a whole or its system columns: for example ''table:'' || table_id.';
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.compile_resource(regclass, text, text, text) IS 'Inner function. Checks a resource expression, as read in the search_path path, against a table; returns it fully qualified, in its plain form if it has one, the columns it reads, whether it gives several resources, and whether it is certain that no row gives NULL.';

-- A row without a resource could not be written again, not even deleted. Nor one that a policy
-- hides from its owner.
-- +goose StatementBegin
CREATE FUNCTION fencedb.check_rows(target regclass, expression text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET row_security = off
AS $$
DECLARE
    relname name := (SELECT c.relname FROM pg_class c WHERE c.oid = target);
    key     text := (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                     WHERE i.indrelid = target AND i.indisprimary);
    nulls   bigint;
    first   text;
BEGIN
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', target);
    EXECUTE format(
        'WITH bad AS (SELECT (SELECT concat_ws('', '', %s)) AS id FROM %s AS %I WHERE array_position(%s, NULL) IS NOT NULL)
         SELECT count(*), (SELECT string_agg(format(''(%%s)'', id), '', '') FROM (SELECT id FROM bad LIMIT 3) f) FROM bad',
        coalesce(key, 'tableoid::regclass, ctid'), target, relname, expression) INTO nulls, first;
    IF nulls > 0 THEN
        RAISE EXCEPTION 'fencedb.protect: the resource of % rows of % is NULL, so nobody could write to them again', nulls, target
            USING ERRCODE = 'null_value_not_allowed',
                  DETAIL = format('The first by %s: %s.', coalesce(key, 'table and ctid'), first),
                  HINT = 'Fill the columns of the resource expression in these rows and make them NOT NULL, or give these rows a resource with coalesce.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_rows(regclass, text) IS 'Inner function. Raises if the resource of a row is NULL; keeps writers out until the end of the transaction.';

-- An expression that only puts text together, from constants and columns whose text no setting
-- changes, is given back as one that means the same in every search_path: over the row %1$s, for a
-- guard without settings of its own. NULL for any other. Its parts stand in the tree in the order
-- in which they stand in the text.
-- +goose StatementBegin
CREATE FUNCTION fencedb.plain_text(target regclass, tree text, expression text) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    read text[] := ARRAY(SELECT quote_ident(a.attname) FROM regexp_matches(tree, ':varattno ([0-9]+)', 'g') WITH ORDINALITY m(n, i)
                         JOIN pg_attribute a ON a.attrelid = target AND a.attnum = m.n[1]::int ORDER BY i);
    said text[];
    text text;
BEGIN
    IF expression ~ E'\\\\' OR EXISTS (
        SELECT FROM regexp_matches(tree, '[{]([A-Z]+)|:(?:funcid|opfuncid) ([0-9]+)|:(?:const|var|result)type ([0-9]+)|:constisnull (true)', 'g') m
        WHERE m[1] NOT IN ('VAR', 'CONST', 'FUNCEXPR', 'OPEXPR', 'RELABELTYPE', 'COERCEVIAIO') OR m[4] IS NOT NULL
           OR m[2]::oid NOT IN ('fencedb.resources_of(text)'::regprocedure, 'textcat'::regproc, 'textanycat'::regproc, 'anytextcat'::regproc)
           OR m[3]::oid NOT IN ('text'::regtype, 'varchar'::regtype, 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype, 'uuid'::regtype)) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(m[3] ORDER BY i) FILTER (WHERE m[3] IS NOT NULL),
           string_agg(coalesce(replace(m[1], '%', '%%'), format('CASE WHEN pg_catalog.pg_typeof(%%1$s.%1$s) OPERATOR(pg_catalog.=) %2$s::pg_catalog.oid THEN %%1$s.%1$s::pg_catalog.text ELSE fencedb.text_of(%%1$s.%1$s) END',
               replace(m[3], '%', '%%'), (SELECT a.atttypid::oid FROM pg_attribute a WHERE a.attrelid = target AND quote_ident(a.attname) = m[3]))), ' OPERATOR(pg_catalog.||) ' ORDER BY i)
    INTO said, text
    FROM regexp_matches(substr(expression, length('fencedb.resources_of(')), $re$('(?:[^']|'')*')|(::[a-z ]+)|("(?:[^"]|"")*"|[a-z_][a-z0-9_$]*)$re$, 'g') WITH ORDINALITY parts(m, i)
    WHERE m[2] IS NULL;
    RETURN CASE WHEN said = read THEN text END;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.plain_text(regclass, text, text) IS 'Inner function. A resource expression in a form that no setting changes, NULL if it has none.';

-- Without a column for it, every stamp is as old as can be, and none is written. body is a template
-- of ours: the expression of the table comes into it later, since a column or a constant in that
-- may read the same.
CREATE FUNCTION fencedb.stamped(stamp boolean, body text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN stamp THEN body ELSE replace(replace(body, 'NEW.last_fencing_token := "~token";', ''), 'OLD.last_fencing_token', '0::pg_catalog.int8') END;

COMMENT ON FUNCTION fencedb.stamped(boolean, text) IS 'Inner function. The template of a guard, with or without a stamp on each row.';

-- The guard of one table is a trigger function in the schema of that table. It declares no types,
-- so that renaming the table or changing a column's type does not break it, but for sessions that
-- have used it with the former type. Settings cost time in every row. So it has none where the
-- expression has a plain form; otherwise it pins those that guard_table runs under, but for those
-- that cannot matter to this text, and reads the row as a table of the old name.
-- +goose StatementBegin
CREATE FUNCTION fencedb.create_guard(target regclass, facts jsonb, body text, compiled record) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    guard text;
    stamp boolean := facts ->> 'stamp';
    read  text := coalesce(compiled.plain, format('(SELECT (%s)%s FROM (SELECT %%s.*) AS %s)', replace(compiled.expression, '%', '%%'),
        CASE WHEN NOT compiled.several THEN '[1]' END, (SELECT replace(quote_ident(c.relname), '%', '%%') FROM pg_class c WHERE c.oid = target)));
BEGIN
    -- The cast cuts at 63 bytes and at no other place than between characters. Another table may
    -- have had the name before.
    FOR i IN 0 .. 2147483647 LOOP
        guard := (SELECT format('%s.%I', c.relnamespace::regnamespace, ('fencedb_guard_' || coalesce(nullif(i, 0) || '_', '') || c.relname)::name)
                  FROM pg_class c WHERE c.oid = target);
        EXIT WHEN to_regprocedure(guard || '()') IS NULL;
    END LOOP;
    EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql %s AS %L', guard,
        (SELECT string_agg(format('SET %I FROM CURRENT', name), ' ')
         FROM pg_proc p, unnest(p.proconfig) setting, split_part(setting, '=', 1) name
         WHERE p.oid = 'fencedb.guard_table'::regproc AND compiled.plain IS NULL
           AND CASE name
                   WHEN 'standard_conforming_strings' THEN strpos(compiled.expression, E'\\') > 0
                   WHEN 'quote_all_identifiers' THEN compiled.expression ~ '(format|quote_ident)'
                   WHEN 'array_nulls' THEN compiled.expression ~* 'null'
                   ELSE true
               END),
        format(fencedb.stamped(stamp, body), format(read, 'OLD'), format(read, 'NEW'), CASE WHEN compiled.several THEN 'pg_catalog.text[]' ELSE 'pg_catalog.text' END,
            CASE WHEN compiled.several THEN 'false' ELSE fencedb.stamped(stamp, $fast$pg_catalog.hashtextextended(coalesce("~new", "~old"), pg_catalog.currval('fencedb.noted_salt') OPERATOR(pg_catalog.#) pg_catalog.txid_current()) OPERATOR(pg_catalog.=) pg_catalog.currval('fencedb.noted_sum')
       AND pg_catalog.hashtextextended(coalesce("~new", "~old"), pg_catalog.currval('fencedb.noted_sum')) OPERATOR(pg_catalog.=) pg_catalog.currval('fencedb.noted_check')
       AND pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000 OPERATOR(pg_catalog.<=) pg_catalog.currval('fencedb.noted_until')
       AND (TG_OP OPERATOR(pg_catalog.<>) 'UPDATE' OR "~new" OPERATOR(pg_catalog.=) "~old")
       AND (TG_OP OPERATOR(pg_catalog.=) 'INSERT' OR OLD.last_fencing_token OPERATOR(pg_catalog.<=) pg_catalog.currval('fencedb.noted_token'))$fast$) END, CASE WHEN compiled.several THEN 'fencedb.require_all' ELSE 'fencedb.require' END));
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', guard, facts);
    RETURN guard;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.create_guard(regclass, jsonb, text, record) IS 'Inner function. Creates the trigger function of a protected table and returns its name.';

-- The row trigger is named to fire after the other BEFORE triggers of the table, so that it judges
-- the row as it will be stored; triggers fire in the byte order of their names.
-- +goose StatementBegin
CREATE FUNCTION fencedb.check_triggers(member regclass, guard text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    later name := (SELECT min(t.tgname) FROM pg_trigger t
                   WHERE t.tgrelid = member AND t.tgname COLLATE "C" > '~fencedb_row' AND t.tgtype & 3 = 3); -- BEFORE, FOR EACH ROW
BEGIN
    IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = member AND (t.tgname = '~fencedb_row' AND t.tgfoid <> (guard || '()')::regprocedure
               OR t.tgname IN ('~fencedb_statement', '~fencedb_truncate') AND t.tgfoid <> 'fencedb.guard_statement'::regproc))
       -- A comment on a function can be forged, its owner cannot.
       OR NOT (SELECT pg_has_role(p.proowner, c.relowner, 'MEMBER') FROM pg_proc p, pg_class c WHERE p.oid = (guard || '()')::regprocedure AND c.oid = member) THEN
        RAISE EXCEPTION 'fencedb.protect: a trigger of % uses a name that is reserved for fencedb, or its guard belongs to another owner', member
            USING ERRCODE = 'duplicate_object', HINT = 'Either the table is protected by itself, or somebody with the TRIGGER privilege made the trigger: drop it and protect again. If the table has another owner now: ALTER FUNCTION ... OWNER TO for its guard.';
    ELSIF later IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect: the trigger "%" of % would change rows after the guard has checked them', later, member
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Triggers fire in the byte order of their names. Rename it to begin with an ASCII letter.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_triggers(regclass, text) IS 'Inner function. Raises if another trigger of the table stands in the way of the guard.';

-- Protecting again adds guards to members that have come since, and switches on those that were
-- switched off or left to replication.
-- +goose StatementBegin
CREATE FUNCTION fencedb.create_triggers(target regclass, guard text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
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
        CONTINUE WHEN (SELECT c.relkind = 'f' FROM pg_class c WHERE c.oid = m.member); -- Postgres 15 has no trigger of its TRUNCATE
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_truncate' AND (t.tgnargs > 1) = m.is_partition)
           OR NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_statement' AND (t.tgnargs > 1) = m.is_partition) THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_statement" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_statement(%L%s)', m.member, guard,
                CASE WHEN m.is_partition THEN ', partition' END);
            EXECUTE format('CREATE OR REPLACE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_statement(%L%s)', m.member, guard,
                CASE WHEN m.is_partition THEN ', partition' END);
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
CREATE FUNCTION fencedb.check_target(target regclass, resource text, mode text, starts text, stamp boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    present fencedb.protected_tables;
    odd     text;
BEGIN
    IF target IS NULL OR coalesce(btrim(resource), '') = '' THEN
        RAISE EXCEPTION 'fencedb.protect: needs a table and a resource expression'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example: SELECT fencedb.protect(''bookings'', resource => $resource$ ''table:'' || table_id $resource$)';
    ELSIF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = target AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.relnamespace <> 'fencedb'::regnamespace) THEN
        RAISE EXCEPTION 'fencedb.protect: % is not a table that can be protected', target
            USING ERRCODE = 'wrong_object_type', HINT = 'Protect ordinary and partitioned tables; the writes through a view reach the tables under it.';
    END IF;

    IF starts NOT IN ('enforce', 'observe') THEN
        RAISE EXCEPTION 'fencedb.protect: the mode must be enforce or observe, got %', quote_literal(starts) USING ERRCODE = 'invalid_parameter_value';
    END IF;

    PERFORM fencedb.check_no_member(target);
    SELECT string_agg(m.member::text, ', ') INTO odd FROM fencedb.members(target) m WHERE mode = 'row' AND NOT m.is_partition AND m.member <> target;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect_row: % inherits from %, and no unique key spans both', odd, target
            USING ERRCODE = 'feature_not_supported', HINT = 'A resource would be a row in each of them. Use fencedb.protect, or take the table out (ALTER TABLE ... NO INHERIT).';
    END IF;
    SELECT string_agg(m.member::text, ', ') INTO odd FROM fencedb.members(target) m JOIN pg_class c ON c.oid = m.member WHERE mode = 'row' AND c.relpersistence = 'u';
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect_row: % is unlogged, and a crash would empty it', odd
            USING ERRCODE = 'feature_not_supported', HINT = 'Its rows would be the fences. Use fencedb.protect, or ALTER TABLE ... SET LOGGED.';
    END IF;
    SELECT * INTO present FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF present.resource <> resource OR present.mode <> mode THEN
        RAISE EXCEPTION 'fencedb.protect: % is already protected, in mode %, with resource => %', target, present.mode, present.resource
            USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change that.';
    ELSIF present.mode IS NOT NULL AND present.observed <> (starts = 'observe') THEN
        RAISE EXCEPTION 'fencedb.protect: % is already %', target, CASE WHEN present.observed THEN 'observed' ELSE 'enforced' END
            USING ERRCODE = 'duplicate_object', HINT = 'fencedb.enforce and fencedb.observe change that, without a lock on the table.';
    ELSIF present.stamp <> stamp THEN
        RAISE EXCEPTION 'fencedb.protect: % is already protected, with stamp => %', target, present.stamp
            USING ERRCODE = 'duplicate_object', HINT = 'Call fencedb.unprotect first to change that.';
    END IF;

    SELECT format('%I is %s, it must be %s that a trigger can set', a.attname, a.atttypid::regtype, own.type) INTO odd
    FROM pg_attribute a JOIN (VALUES ('last_fencing_token', 'bigint'::regtype), ('last_lease_id', 'uuid')) own(name, type) ON a.attname = own.name
    WHERE a.attrelid = target AND NOT a.attisdropped AND (a.atttypid <> own.type OR a.attgenerated <> '') AND (mode = 'row' OR own.name = 'last_fencing_token') AND stamp IS NOT FALSE;
    IF odd IS NOT NULL THEN
        RAISE EXCEPTION 'fencedb.protect: column % of %', odd, target USING ERRCODE = 'datatype_mismatch';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_target(regclass, text, text, text, boolean) IS 'Inner function. Raises unless target can be protected with this expression in this mode.';

-- path is the search_path of the caller, in which the expression is read. body is the trigger
-- function, a template:
--     %1$s, %2$s  the resource expression over the old and the new row
--     %3$s        its type
--     %4$s        whether fencedb.note says that the row may be written
--     %5$s        the function that judges it otherwise
-- The settings are those with which a session could make the same row read as another resource. The
-- guard has them from here.
-- +goose StatementBegin
CREATE FUNCTION fencedb.guard_table(target regclass, resource text, mode text, body text, path text, starts text, stamp boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET standard_conforming_strings = on SET quote_all_identifiers = off SET array_nulls = on
    SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET timezone = 'UTC'
    SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET lc_numeric = 'C' SET lc_time = 'C'
AS $$
DECLARE
    guard    text := (SELECT p.guard::oid::regproc FROM fencedb.protected_tables p WHERE p.table_name = target);
    compiled record;
    added    text[];
    col      text;
BEGIN
    IF guard IS NULL AND (SELECT c.relkind IN ('r', 'p') FROM pg_class c WHERE c.oid = target) THEN -- another session may be at it
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', target);
        guard := (SELECT p.guard::oid::regproc FROM fencedb.protected_tables p WHERE p.table_name = target);
    END IF;
    PERFORM fencedb.check_target(target, resource, mode, starts, stamp);
    PERFORM fencedb.record_protection(target); -- if somebody has taken the guard away by hand
    IF guard IS NULL THEN
        compiled := fencedb.compile_resource(target, resource, mode, path);
        IF mode = 'row' THEN
            PERFORM fencedb.check_row_key(target, compiled.columns, compiled.several);
        END IF;
        IF NOT compiled.never_null THEN
            PERFORM fencedb.check_rows(target, compiled.expression);
        END IF;
        added := ARRAY(SELECT own.name FROM (VALUES ('last_fencing_token', 'ledger'), ('last_lease_id', 'row')) own(name, since)
                       WHERE (mode = 'row' OR own.since = 'ledger') AND stamp IS NOT FALSE
                         AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = own.name AND NOT a.attisdropped));
        FOREACH col IN ARRAY added LOOP
            EXECUTE format('ALTER TABLE %s ADD COLUMN %I %s', target, col,
                CASE col WHEN 'last_lease_id' THEN 'uuid' ELSE 'bigint NOT NULL DEFAULT 0' END);
        END LOOP;
        guard := fencedb.create_guard(target,
            jsonb_build_object('mode', mode, 'resource', resource, 'columns_added', added, 'stamp', stamp IS NOT FALSE),
            body, compiled);
        IF starts = 'observe' THEN
            PERFORM fencedb.switch_guard((guard || '()')::regprocedure, true);
        END IF;
    END IF;
    PERFORM fencedb.create_triggers(target, guard);
    PERFORM fencedb.record_protection(target);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guard_table(regclass, text, text, text, text, text, boolean) IS 'Inner function. What protect and protect_row have in common.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.protect(target regclass, resource text, mode text DEFAULT NULL, stamp boolean DEFAULT NULL) RETURNS void
    LANGUAGE sql
    RETURN fencedb.guard_table(target, btrim(resource), 'ledger', $body$
#variable_conflict use_column
DECLARE
    "~old"   %3$s := CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN %1$s END;
    "~new"   %3$s := CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN %2$s END;
    "~token" pg_catalog.int8;
BEGIN
    IF pg_catalog.current_setting('fencedb.noted', true) OPERATOR(pg_catalog.<>) '' THEN
        "~token" := CASE WHEN %4$s THEN pg_catalog.currval('fencedb.noted_token') END;
    END IF;
    IF "~token" IS NULL THEN
        "~token" := %5$s(TG_RELID, TG_OP, "~old", "~new", CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN OLD.last_fencing_token END);
    END IF;
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.last_fencing_token := "~token";
    RETURN NEW;
END
$body$, current_setting('search_path'), mode, stamp);
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.protect(regclass, text, text, boolean) IS 'From now on, no INSERT, UPDATE, DELETE, TRUNCATE, COPY or MERGE on target commits without a current token for each row''s own resource. resource is a text expression over one row of target (text[] where a row belongs to several resources), and no row may have NULL. Adds last_fencing_token, the token of the last write to the row, or uses the column that is there; with stamp => false it adds none, and the ledger judges alone. With mode => ''observe'' nothing is refused: see fencedb.observe. Waits for open transactions on target and blocks new ones meanwhile: set lock_timeout and try again. Call it once more after adding a partition (to guard that against TRUNCATE by name) or an inheritance child (to guard it at all), and for a partition after detaching it.';

-- Takes away whatever is there of ours, also half of it.
-- +goose StatementBegin
CREATE FUNCTION fencedb.unprotect(target regclass, keep_columns boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    own        record;
    col        text;
    detail     text;
BEGIN
    PERFORM fencedb.check_no_member(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target;
    IF NOT FOUND THEN
        RAISE NOTICE 'fencedb.unprotect: % is not protected', target;
        RETURN;
    END IF;
    PERFORM fencedb.record_protection(target); -- what is not known to have been protected, as in a copy of the schema alone
    FOR own IN SELECT t.tgname, m.member FROM fencedb.members(target) m JOIN pg_trigger t ON t.tgrelid = m.member
               WHERE t.tgparentid = 0 AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', own.tgname, own.member);
    END LOOP;
    -- It may still guard a child that no longer inherits, and it did not change owner with its
    -- table.
    IF (SELECT pg_has_role(p.proowner, 'USAGE') FROM pg_proc p WHERE p.oid = protection.guard) AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = protection.guard) THEN
        EXECUTE format('DROP FUNCTION %s', protection.guard);
    END IF;
    IF NOT keep_columns THEN
        FOR col IN SELECT unnest(protection.columns_added) INTERSECT VALUES ('last_fencing_token'), ('last_lease_id') LOOP
            BEGIN
                EXECUTE format('ALTER TABLE %s DROP COLUMN IF EXISTS %I', target, col);
                RAISE NOTICE 'fencedb.unprotect: % of % is dropped', col, target;
            EXCEPTION WHEN dependent_objects_still_exist THEN
                GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
                RAISE EXCEPTION 'fencedb.unprotect: %', SQLERRM
                    USING ERRCODE = 'dependent_objects_still_exist', DETAIL = detail, HINT = 'Drop these first, or keep the column, with keep_columns => true.';
            END;
        END LOOP;
    END IF;
    PERFORM fencedb.record_protection(target);
    PERFORM fencedb.forget_observations(target), fencedb.end_take_over(target);
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.unprotect(regclass, boolean) IS 'Undoes protect and protect_row: any client can write without a token again. Drops the columns that they had added, unless keep_columns. Forgets what was observed, and ends take-overs. Waits for open transactions on target and blocks new ones meanwhile, as protect does: set lock_timeout and try again.';

REVOKE ALL ON FUNCTION fencedb.raise_no_token(text, text, text, text), fencedb.raise_overdue() FROM PUBLIC;
GRANT SELECT ON fencedb.protected_tables TO PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);

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
DROP FUNCTION fencedb.protect(regclass, text, text, boolean);
DROP FUNCTION fencedb.guard_table(regclass, text, text, text, text, text, boolean);
DROP FUNCTION fencedb.check_target(regclass, text, text, text, boolean);
DROP FUNCTION fencedb.create_triggers(regclass, text);
DROP FUNCTION fencedb.check_triggers(regclass, text);
DROP FUNCTION fencedb.create_guard(regclass, jsonb, text, record);
DROP FUNCTION fencedb.stamped(boolean, text);
DROP FUNCTION fencedb.plain_text(regclass, text, text);
DROP FUNCTION fencedb.check_rows(regclass, text);
DROP FUNCTION fencedb.compile_resource(regclass, text, text, text);
DROP FUNCTION fencedb.foreign_parts(text);
DROP FUNCTION fencedb.record_protection(regclass);
DROP FUNCTION fencedb.check_no_member(regclass);
DROP VIEW fencedb.protected_tables;
DROP FUNCTION fencedb.observes(oid);
DROP FUNCTION fencedb.observing();
DROP FUNCTION fencedb.guard_facts(oid);
DROP FUNCTION fencedb.members(regclass);
DROP FUNCTION fencedb.guard_statement();
DROP FUNCTION fencedb.judge_statement(oid, text, text, boolean);
DROP FUNCTION fencedb.require(regclass, text, text, text, bigint);
DROP FUNCTION fencedb.require_all(regclass, text, text[], text[], bigint);
DROP FUNCTION fencedb.raise_overdue();
DROP FUNCTION fencedb.raise_no_token(text, text, text, text);
DROP FUNCTION fencedb.text_of(anyelement);
DROP FUNCTION fencedb.resources_of(text[]);
DROP FUNCTION fencedb.resources_of(text);
