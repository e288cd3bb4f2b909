-- Adopting fences where writers cannot all be deployed on one day: guards that only observe, and
-- roles that write without a token of their own.

-- +goose Up

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

-- A kind of write has one row, or a few while transactions that have recorded it are open. No row
-- is ever waited for.
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
    resource    text,
    ledger      oid         NOT NULL DEFAULT 'fencedb.fences'::regclass
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX observations_target ON fencedb.observations (target, role, application, statement, reason);

-- It has no key, and rows are deleted: a publication of all tables would refuse that.
ALTER TABLE fencedb.observations REPLICA IDENTITY FULL;

-- When a write was not recorded that should have been. What setval writes stays, whatever becomes
-- of the transaction.
CREATE SEQUENCE fencedb.unrecorded;

COMMENT ON TABLE  fencedb.observations IS 'What guards that only observe would have refused. Read it through fencedb.unfenced_writes.';
COMMENT ON COLUMN fencedb.observations.target      IS 'The oid of the table that was protected.';
COMMENT ON COLUMN fencedb.observations.table_name  IS 'Its name at that time, with its schema.';
COMMENT ON COLUMN fencedb.observations.role        IS 'Who wrote: the role of the last SET ROLE, or the one that logged in.';
COMMENT ON COLUMN fencedb.observations.application IS 'Its application_name; "(others)" after 500 kinds of writes to one table.';
COMMENT ON COLUMN fencedb.observations.statement   IS 'INSERT, UPDATE, DELETE or TRUNCATE, as triggers know it.';
COMMENT ON COLUMN fencedb.observations.reason      IS 'The SQLSTATE of the refusal that an enforcing guard would have raised.';
COMMENT ON COLUMN fencedb.observations.first_at    IS 'By the clock of this server.';
COMMENT ON COLUMN fencedb.observations.last_at     IS 'At most five seconds before the last such write of a session.';
COMMENT ON COLUMN fencedb.observations.times       IS 'Statements without a token, and rows with a wrong or stale one. A session that ends may take up to half of its own along.';
COMMENT ON COLUMN fencedb.observations.resource    IS 'The resource of one of the rows, NULL if none was written.';
COMMENT ON COLUMN fencedb.observations.ledger      IS 'The oid of fencedb.fences. In a copy of the database it is another.';

COMMENT ON SEQUENCE fencedb.unrecorded IS 'When a write that a guard observed could not be recorded last, of any table, in milliseconds since 1970; the log of the server says why. Never while is_called is false.';

REVOKE ALL ON fencedb.observations, fencedb.unrecorded FROM PUBLIC;
GRANT SELECT ON fencedb.unrecorded TO PUBLIC; -- owners of tables want to know

-- By the oid, because tables change their names, with each other too; in a copy of the database by
-- the name, because there the oid may be that of another table.
CREATE VIEW fencedb.unfenced_writes WITH (security_barrier) AS
SELECT c.oid::regclass AS table_name, o.role, o.application, o.statement, o.reason,
       min(o.first_at) AS first_at, max(o.last_at) AS last_at, sum(o.times)::bigint AS times, max(o.resource) AS resource
FROM fencedb.observations o
LEFT JOIN (SELECT t.oid, format('%I.%I', n.nspname, t.relname) AS name FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace) named ON named.name = o.table_name
JOIN pg_class c ON c.oid = CASE WHEN o.ledger = 'fencedb.fences'::regclass THEN o.target ELSE named.oid END
WHERE pg_has_role(c.relowner, 'USAGE') OR has_table_privilege('fencedb.observations', 'SELECT')
GROUP BY c.oid, o.role, o.application, o.statement, o.reason;

COMMENT ON VIEW fencedb.unfenced_writes IS 'Writes that guards would have refused if they were enforced: who, how, why (an SQLSTATE), when first and last, how often, and one resource. Owners see those to their own tables. What was rolled back is not in it, nor what open transactions have written.';

GRANT SELECT ON fencedb.unfenced_writes TO PUBLIC;

-- +goose StatementBegin
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
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.guarded_root(oid) IS 'Inner function. The table that was protected, of itself, a partition or a child.';

-- record_observation may fail without an error: a writer is never refused by its own observation,
-- nor does it wait. What is lost like that is said in the log, and when, in fencedb.unrecorded:
-- nobody may take an empty list for the end of the adoption.
--     READ COMMITTED: it takes the rows of this kind that it can lock, and leaves one in their
--     place. A row that another transaction has locked stays, and a later call takes it along.
--     REPEATABLE READ: a row that has gone since the snapshot raises 40001. Then another
--     transaction has recorded the same since, and this one need not.
--     SERIALIZABLE: what it read here could cost the writer its commit. So it reads nothing and
--     only adds a row, up to a size that a few of them never reach.
-- +goose StatementBegin
CREATE FUNCTION fencedb.record_observation(guarded oid, role name, application text, operation text, reason text, times bigint, resource text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms'
AS $$
#variable_conflict use_variable
DECLARE
    root oid := fencedb.guarded_root(guarded);
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = root AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't') THEN
        RETURN; -- it is younger than the snapshot, or is none, or nobody else's business
    END IF;
    IF current_setting('transaction_isolation') = 'serializable' THEN
        IF pg_relation_size('fencedb.observations') >= 16777216 THEN
            RAISE EXCEPTION 'fencedb.observations is full; call fencedb.forget_observations and vacuum it';
        END IF;
        INSERT INTO fencedb.observations
        VALUES (root, root::regclass::text, role, application, operation, reason, clock_timestamp(), clock_timestamp(), times, resource);
        RETURN;
    END IF;

    IF NOT EXISTS (SELECT FROM fencedb.observations o
                   WHERE o.target = root AND o.role = role AND o.application = application AND o.statement = operation AND o.reason = reason)
       AND (SELECT count(*) FROM (SELECT DISTINCT o.role, o.application, o.statement, o.reason FROM fencedb.observations o WHERE o.target = root) kinds) >= 500 THEN
        application := '(others)';
        reason := CASE WHEN reason ~ '^FN00[0-9]$' THEN reason ELSE 'other' END;
    END IF;
    WITH taken AS (
        DELETE FROM fencedb.observations o
        WHERE o.ctid = ANY (ARRAY(
            SELECT c.ctid FROM fencedb.observations c
            WHERE c.target = root AND c.role = role AND c.application = application AND c.statement = operation AND c.reason = reason AND c.ledger = 'fencedb.fences'::regclass
            FOR UPDATE SKIP LOCKED))
        RETURNING o.first_at, o.times, o.resource
    )
    INSERT INTO fencedb.observations
    SELECT root, root::regclass::text, role, application, operation, reason,
           coalesce(min(t.first_at), clock_timestamp()), clock_timestamp(), coalesce(sum(t.times), 0) + times, coalesce(resource, max(t.resource))
    FROM taken t;
EXCEPTION
    WHEN transaction_rollback THEN
        -- see above
    WHEN OTHERS THEN
        PERFORM setval('fencedb.unrecorded', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
        RAISE LOG 'fencedb: % on % by % (%) would have been refused and could not be recorded: %', operation, root::regclass, role, application, SQLERRM;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.record_observation(oid, name, text, text, text, bigint, text) IS 'Inner function. Adds to what is known of one kind of write, if that can be had without waiting.';

-- A session records a kind of write at once, then every five seconds, and when it has counted as
-- many again. In between it counts in a setting, which goes back with a transaction as the record
-- does. The setting has fixed places: whether a row was seen (1 character), until when (14), how
-- many more to count (10), how many were recorded (10), and of whom; counts begin at 1000000000, so
-- that they have ten digits. The guard of rows reads the first two as one number, and the guard of
-- statements counts by itself. Whoever forges the setting hides its own writes from the list, and
-- opens nothing: the guard of rows says by its own text whether it refuses. What happens each time
-- is one expression, because PL/pgSQL sets every expression up anew in every transaction.
-- +goose StatementBegin
CREATE FUNCTION fencedb.let_pass(guarded oid, operation text, reason text, of_row boolean, about text) RETURNS boolean
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
    IF seen <> '' AND (CASE WHEN substr(seen, 36) = concat(reason, ' ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'))
                 AND (NOT of_row OR left(seen, 1) = '1') AND operation <> 'TRUNCATE'
                 AND substr(seen, 16, 10) <> '1000000000' AND substr(seen, 2, 14)::float8 > date_part('epoch', clock_timestamp())
            THEN set_config(concat('fencedb.seen_', guarded, '_', operation), concat(left(seen, 15), substr(seen, 16, 10)::int8 - 1, substr(seen, 26)), false) IS NOT NULL
        END) THEN
        RETURN true;
    ELSIF reason = 'FN002' AND operation <> 'TRUNCATE' AND NOT of_row AND fencedb.overtakes(guarded) THEN
        RETURN true;
    ELSIF operation NOT IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') -- anybody can call this
          OR of_row AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = guarded AND t.tgname = '~fencedb_row' AND fencedb.observes(t.tgfoid))
          OR NOT of_row AND NOT coalesce(fencedb.observes((SELECT t.tgfoid FROM pg_trigger t WHERE t.tgrelid = guarded AND t.tgname = '~fencedb_row')),
                                         fencedb.observes(to_regprocedure(about || '()')), false) THEN -- the name may be another's; a snapshot may have no trigger yet
        RETURN false;
    END IF;

    role := coalesce(nullif(current_setting('role'), 'none'), session_user);
    writer := concat(reason, ' ', current_setting('role'), ' ', session_user, ' ', current_setting('application_name'));
    now := date_part('epoch', clock_timestamp());
    -- The guard of statements has counted a statement without a token, but not one that comes from
    -- another trigger.
    counted := CASE WHEN of_row AND reason = 'FN002' AND pg_trigger_depth() < 2 THEN 0 ELSE 1 END;
    recorded := counted;
    sampled := of_row;
    IF substr(seen, 36) = writer THEN -- its own
        recorded := substr(seen, 26, 10)::int8 - 1000000000;
        counted := counted + recorded - (substr(seen, 16, 10)::int8 - 1000000000);
        recorded := recorded + counted;
        sampled := of_row OR left(seen, 1) = '1';
    END IF;
    PERFORM fencedb.record_observation(guarded, role::name, current_setting('application_name'), operation, reason, counted,
        CASE WHEN of_row AND about LIKE '{%' AND reason LIKE 'FN%' THEN left(about::jsonb ->> 'resource', 512) END);
    PERFORM set_config(concat('fencedb.seen_', guarded, '_', operation),
        concat(sampled::int, to_char(now + 5, 'FM0000000000.000'), repeat((1000000000 + least(recorded, 8999999999))::text, 2), writer), false);
    RETURN true;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.let_pass(oid, text, text, boolean, text) IS 'Inner function. Whether a statement that a guard would refuse goes on: its role overtakes, and the guard of rows will see to that, or the guard only observes, which then remembers it. about is the DETAIL of the refusal of a row, and of a statement the guard of its rows.';

-- The mode of a table is the text of its guard: CREATE OR REPLACE FUNCTION needs no lock on the
-- table, and a guard that is enforced pays nothing for the other mode. The text that observes has
-- the other one inside, in a block that turns a refusal into a record. It does not come to that for
-- rows of a writer without a token that was recorded lately.
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
    IF coalesce(pg_catalog.current_setting('fencedb.entered', true), '') OPERATOR(pg_catalog.=) ''
       AND pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.+) 10000000000
           OPERATOR(pg_catalog.<=) pg_catalog.concat('0', pg_catalog."left"(pg_catalog.current_setting(pg_catalog.concat('fencedb.seen_', TG_RELID, '_', TG_OP), true), 15))::pg_catalog.float8 THEN
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
    PERFORM fencedb.let_pass(TG_RELID, TG_OP, "~code", true, "~detail");
    IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$tail$;
    text     text := (SELECT p.prosrc FROM pg_proc p WHERE p.oid = guard);
BEGIN
    IF starts_with(text, fencedb.observing()) = observe THEN
        RAISE EXCEPTION 'another transaction has switched the guard % meanwhile', guard USING ERRCODE = 'serialization_failure';
    END IF;
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
CREATE FUNCTION fencedb.switched_off(target regclass) RETURNS text[]
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(DISTINCT m.member::text)
    FROM fencedb.members(target) m JOIN pg_trigger t ON t.tgrelid = m.member
    WHERE t.tgname ~ '^~fencedb_' AND t.tgenabled NOT IN ('O', 'A')
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.switched_off(regclass) IS 'Of a table, its partitions and inheritance children, those with a trigger of ours that is switched off or left to replication; NULL if there are none.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.set_mode(target regclass, observe boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    protection fencedb.protected_tables;
    off        text := array_to_string(fencedb.switched_off(target), ', ');
BEGIN
    PERFORM fencedb.check_no_member(target);
    SELECT * INTO protection FROM fencedb.protected_tables p WHERE p.table_name = target AND p.mode IS NOT NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fencedb.%: % is not protected', CASE WHEN observe THEN 'observe' ELSE 'enforce' END, target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first, with mode => ''observe'' if it shall refuse nothing yet.';
    ELSIF off IS NOT NULL AND NOT observe THEN
        RAISE EXCEPTION 'fencedb.enforce: the guard of % is switched off', off
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('What was written meanwhile was not observed. Call fencedb.%s for %s once more, with the same expression: that switches it on.',
                CASE protection.mode WHEN 'row' THEN 'protect_row' ELSE 'protect' END, target);
    ELSIF protection.observed <> observe THEN
        PERFORM fencedb.record_protection(target); -- as in unprotect
        IF NOT pg_has_role((SELECT p.proowner FROM pg_proc p WHERE p.oid = protection.guard), 'USAGE') THEN
            RAISE EXCEPTION 'fencedb.%: the guard of % belongs to another role', CASE WHEN observe THEN 'observe' ELSE 'enforce' END, target
                USING ERRCODE = 'insufficient_privilege', HINT = format('It did not change owner with the table. Let its owner or a superuser run: ALTER FUNCTION %s OWNER TO %s; or call fencedb.unprotect with keep_columns => true and fencedb.protect in one transaction, and fencedb.take_over_as again.',
                    protection.guard, (SELECT c.relowner::regrole FROM pg_class c WHERE c.oid = target));
        END IF;
        PERFORM fencedb.switch_guard(protection.guard, observe);
        PERFORM fencedb.record_protection(target);
        IF off IS NOT NULL THEN
            RAISE WARNING 'fencedb.observe: the guard of % is switched off, so nothing is observed there', off;
        END IF;
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
COMMENT ON FUNCTION fencedb.enforce(regclass) IS 'From now on, the guard of target refuses what it has observed so far. Raises if the guard of target, or of a part of it, is switched off. Does not read the rows: one whose resource is NULL cannot be written any more. Takes no lock on the table; a transaction that has already written to it may end without being judged.';

-- unprotect runs as the owner of the table, who may not write to the list.
-- +goose StatementBegin
CREATE FUNCTION fencedb.forget_observations(target regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = forget_observations.target), 'MEMBER') THEN
        DELETE FROM fencedb.observations o WHERE o.ctid = ANY (ARRAY(
            SELECT c.ctid FROM fencedb.observations c
            WHERE CASE WHEN c.ledger = 'fencedb.fences'::regclass THEN c.target = forget_observations.target ELSE c.table_name = forget_observations.target::text END FOR UPDATE SKIP LOCKED));
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.forget_observations(regclass) IS 'Forgets what was observed of a table so far, if the caller owns it: to see what still comes.';

-- A role that cannot be taught to enter overtakes: each of its transactions enters the fences of
-- the rows that it writes, with a token above the stored one and a lease id of its own. So whoever
-- holds the lease meanwhile is stale from then on.
CREATE TABLE fencedb.take_overs (
    target     oid         NOT NULL,
    role       oid         NOT NULL,
    until      timestamptz NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ledger     oid         NOT NULL DEFAULT 'fencedb.fences'::regclass,
    PRIMARY KEY (target, role)
);

COMMENT ON TABLE  fencedb.take_overs IS 'Roles that write to a protected table without a token, as holders that overtake. Changed by fencedb.take_over_as and fencedb.end_take_over.';
COMMENT ON COLUMN fencedb.take_overs.target IS 'The oid of the table.';
COMMENT ON COLUMN fencedb.take_overs.role   IS 'The oid of the role of the last SET ROLE, or the one that logged in.';
COMMENT ON COLUMN fencedb.take_overs.until  IS 'From then on it is refused like everybody else.';
COMMENT ON COLUMN fencedb.take_overs.ledger IS 'The oid of fencedb.fences. In a copy of the database it is another, so there nobody overtakes, whichever table has the number of target.';

REVOKE ALL ON fencedb.take_overs FROM PUBLIC;

-- +goose StatementBegin
CREATE FUNCTION fencedb.overtakes(guarded oid) RETURNS boolean
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM fencedb.take_overs t
                   WHERE t.role = to_regrole(quote_ident(coalesce(nullif(current_setting('role'), 'none'), session_user))) AND t.until > clock_timestamp() AND t.ledger = 'fencedb.fences'::regclass AND t.target = fencedb.guarded_root(guarded))
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.overtakes(oid) IS 'Inner function. Whether the role of this session may write to a table without a token.';

CREATE FUNCTION fencedb.overtaking_lease() RETURNS uuid
    LANGUAGE sql VOLATILE
    RETURN md5(concat(pg_current_xact_id(), ' ', extract(epoch FROM transaction_timestamp())))::uuid; -- a number: the text of a time is what a session has set

COMMENT ON FUNCTION fencedb.overtaking_lease() IS 'Inner function. The lease id of a transaction that overtakes.';

-- Package lease issues the time in microseconds, so a token of now also overtakes a holder that has
-- not entered yet. Tokens of others count from 1: such a token would shut them out for good. The
-- stamp is what a session says, so the token is checked as if it had been entered.
-- +goose StatementBegin
CREATE FUNCTION fencedb.overtaking_token(resource text, fence bigint, stamp bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stored bigint := greatest(fence, stamp, 0);
    token  bigint;
BEGIN
    IF stored BETWEEN 1 AND 1000000000000000 OR EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(resource, ':', 1)) THEN
        token := stored + 1;
    ELSE
        token := greatest(stored + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    END IF;
    PERFORM fencedb.check_grant(resource, token, fencedb.overtaking_lease());
    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.overtaking_token(text, bigint, bigint) IS 'Inner function. A token above that of the fence and that of the row; raises 22023 if fencedb.enter would refuse it.';

-- The guard of rows comes when Postgres has locked the row, so the one who overtakes waits for the
-- fence while it holds a row. The holder of the fence may come to wait for that row. Whose wait
-- reaches deadlock_timeout first is ended, which should be the holder: so the other one waits in
-- steps that are shorter, but not by half, where a holder that comes at once looks just between two
-- of them. On a busy server a step may last longer: if its deadlock is found then, the next step
-- follows. A holder that looks between two steps finds nothing, and waits until its lease ends. Two
-- who overtake could wait for each other like that for ever, hence the last step without a limit.
-- +goose StatementBegin
CREATE FUNCTION fencedb.overtake_fence(resource text, stamp bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    lease    uuid    := fencedb.overtaking_lease();
    own      text    := current_setting('lock_timeout');
    own_ms   numeric := nullif(extract(epoch FROM own::interval) * 1000, 0);
    step_ms  numeric := extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000 * 0.7;
    start    numeric := extract(epoch FROM clock_timestamp()) * 1000;
    waited   numeric;
    stored   record;
    token    bigint;
    known    boolean;
BEGIN
    LOOP
        SELECT f.last_fencing_token AS token, f.lease_id INTO stored
        FROM fencedb.fences f WHERE f.resource = overtake_fence.resource FOR NO KEY UPDATE SKIP LOCKED;
        IF stored.lease_id = lease THEN
            RETURN stored.token;
        END IF;
        token := fencedb.overtaking_token(resource, stored.token, stamp);
        IF stored.lease_id IS NOT NULL THEN
            UPDATE fencedb.fences f SET last_fencing_token = token, lease_id = lease, advanced_at = clock_timestamp()
            WHERE f.resource = overtake_fence.resource;
            RETURN token;
        END IF;
        known := EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = overtake_fence.resource);
        BEGIN
            waited := extract(epoch FROM clock_timestamp()) * 1000 - start;
            IF waited >= own_ms THEN
                PERFORM fencedb.raise_busy(resource);
            END IF;
            PERFORM set_config('lock_timeout', CASE WHEN waited > 14 * step_ms THEN coalesce(ceil(own_ms - waited), 0) ELSE ceil(least(step_ms, own_ms - waited)) END::text, true);
            IF known THEN
                PERFORM FROM fencedb.fences f WHERE f.resource = overtake_fence.resource FOR NO KEY UPDATE;
            ELSE -- somebody may be inserting it
                INSERT INTO fencedb.fences AS f (resource, last_fencing_token, lease_id) VALUES (overtake_fence.resource, token, lease) ON CONFLICT DO NOTHING;
                IF FOUND THEN
                    PERFORM set_config('lock_timeout', own, true);
                    RETURN token;
                END IF;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'FN000';
        EXCEPTION
            WHEN SQLSTATE 'FN000' THEN
                -- it is free: once more, outside of a subtransaction
            WHEN lock_not_available THEN
                IF waited >= own_ms THEN
                    RAISE;
                END IF;
            WHEN deadlock_detected THEN
                IF waited > 14 * step_ms THEN
                    RAISE;
                END IF;
        END;
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.overtake_fence(text, bigint) IS 'Inner function. Enters the fence of one resource above the stored token, once in a transaction; waits for who has entered it for as long as lock_timeout says. Returns the token.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.overtake(target regclass, operation text, before text[], after text[], stamp bigint) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own      text := CASE operation WHEN 'DELETE' THEN before[1] ELSE after[1] END;
    resource text;
    token    bigint;
BEGIN
    IF NOT fencedb.overtakes(target) THEN
        RETURN NULL;
    END IF;
    FOR resource IN SELECT DISTINCT r COLLATE "C" FROM unnest(CASE operation WHEN 'INSERT' THEN after WHEN 'DELETE' THEN before ELSE before || after END) r ORDER BY 1 LOOP
        IF resource IS NULL THEN
            RAISE EXCEPTION 'the resource of a row of protected table % is NULL', target
                USING ERRCODE = 'null_value_not_allowed', HINT = 'Every row needs a resource: make the columns of the resource expression NOT NULL.';
        ELSIF resource = own THEN
            token := fencedb.overtake_fence(resource, stamp);
        ELSE
            PERFORM fencedb.overtake_fence(resource, stamp);
        END IF;
    END LOOP;
    RETURN token;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.overtake(regclass, text, text[], text[], bigint) IS 'Inner function. Enters the fences of a row for a role that overtakes, and returns the token to stamp on it; NULL for any other role.';

-- Whoever overtakes can raise the fence of any resource, so only who may enter lets others
-- overtake: anybody can own a table, and say of it what they like.
-- +goose StatementBegin
CREATE FUNCTION fencedb.take_over_as(target regclass, role regrole, until timestamptz) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    login name := (SELECT r.rolname FROM pg_roles r WHERE r.oid = take_over_as.role);
BEGIN
    PERFORM fencedb.check_no_member(target);
    IF NOT coalesce(pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = target), 'MEMBER'), false) THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % does not own %', session_user, target
            USING ERRCODE = 'insufficient_privilege', HINT = 'Log in as the owner of the table, or as a member of that role: the audit names who logged in.';
    ELSIF NOT has_function_privilege(session_user, 'fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)', 'EXECUTE') THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % may not enter fences, so it cannot let others overtake', session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'The role that ran the migrations can let it enter, with fencedb.allow.';
    ELSIF (SELECT c.relpersistence = 't' FROM pg_class c WHERE c.oid = target) THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % is temporary', target USING ERRCODE = 'wrong_object_type';
    ELSIF NOT EXISTS (SELECT FROM fencedb.protected_tables p WHERE p.table_name = target AND p.mode IS NOT NULL) THEN
        RAISE EXCEPTION 'fencedb.take_over_as: % is not protected', target
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call fencedb.protect first.';
    ELSIF login IS NULL OR until IS NULL OR until <= clock_timestamp() OR until > clock_timestamp() + interval '1 year' THEN
        RAISE EXCEPTION 'fencedb.take_over_as: needs a role and a time within the next year, got % and %', coalesce(login, 'no role'), coalesce(until::text, 'no time')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A service that cannot be changed by then can be given more time by calling this again.';
    END IF;
    INSERT INTO fencedb.take_overs AS t (target, role, until) VALUES (take_over_as.target, take_over_as.role, take_over_as.until)
    ON CONFLICT ON CONSTRAINT take_overs_pkey DO UPDATE SET until = EXCLUDED.until, granted_at = EXCLUDED.granted_at, ledger = EXCLUDED.ledger WHERE (t.until, t.ledger) <> (EXCLUDED.until, EXCLUDED.ledger);
    IF FOUND THEN
        INSERT INTO fencedb.audit (event, operator, reason, details)
        VALUES ('take_over_as', format('%s@%s', session_user, coalesce(host(inet_client_addr()), 'local')), 'by fencedb.take_over_as',
            jsonb_build_object('table', target::text, 'oid', target::oid::text, 'role', login, 'until', until));
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.take_over_as(regclass, regrole, timestamptz) IS 'Until a time within a year, statements of role without a token write to target as holders that overtake: each transaction enters the fences of its rows with a fresh token, and waits for transactions that have entered them. A holder that it has overtaken is refused as stale. role is that of the last SET ROLE, or the one that logged in. Called again it changes the time. TRUNCATE stays refused. The caller must own target and may enter (fencedb.allow). fencedb.end_take_over ends it early.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.end_take_over(target regclass, role regrole DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    login text;
BEGIN
    IF NOT coalesce(pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = end_take_over.target), 'MEMBER'), false) THEN
        RAISE EXCEPTION 'fencedb.end_take_over: % does not own %', session_user, target
            USING ERRCODE = 'insufficient_privilege', HINT = 'Log in as the owner of the table, or as a member of that role: the audit names who logged in.';
    END IF;
    FOR login IN DELETE FROM fencedb.take_overs t
                 WHERE t.target = end_take_over.target AND (end_take_over.role IS NULL OR t.role = end_take_over.role)
                 RETURNING coalesce((SELECT r.rolname FROM pg_roles r WHERE r.oid = t.role), t.role::text) LOOP
        RAISE NOTICE 'fencedb.end_take_over: % does not write to % without a token any more', login, target;
        INSERT INTO fencedb.audit (event, operator, reason, details)
        VALUES ('end_take_over', format('%s@%s', session_user, coalesce(host(inet_client_addr()), 'local')), 'by fencedb.end_take_over',
            jsonb_build_object('table', target::text, 'oid', target::oid::text, 'role', login));
    END LOOP;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.end_take_over(regclass, regrole) IS 'From now on, role (all roles, if none is named) writes to target with a token or not at all. Waits for nobody.';

REVOKE ALL ON FUNCTION fencedb.overtake_fence(text, bigint), fencedb.overtake(regclass, text, text[], text[], bigint), fencedb.overtakes(oid),
    fencedb.overtaking_token(text, bigint, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION fencedb.record_observation(oid, name, text, text, text, bigint, text) FROM PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

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
    tables text := (SELECT string_agg(p.table_name::text, ', ' ORDER BY p.table_name::text) FROM fencedb.protected_tables p WHERE p.observed);
BEGIN
    IF tables IS NOT NULL THEN
        RAISE EXCEPTION 'only observed: %', tables
            USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Call fencedb.enforce or fencedb.unprotect for each, then migrate down.';
    END IF;
END
$$;
-- +goose StatementEnd
DROP FUNCTION fencedb.end_take_over(regclass, regrole);
DROP FUNCTION fencedb.take_over_as(regclass, regrole, timestamptz);
DROP FUNCTION fencedb.overtake(regclass, text, text[], text[], bigint);
DROP FUNCTION fencedb.overtake_fence(text, bigint);
DROP FUNCTION fencedb.overtaking_token(text, bigint, bigint);
DROP FUNCTION fencedb.overtaking_lease();
DROP FUNCTION fencedb.overtakes(oid);
DROP TABLE fencedb.take_overs;
DROP FUNCTION fencedb.forget_observations(regclass);
DROP FUNCTION fencedb.enforce(regclass);
DROP FUNCTION fencedb.observe(regclass);
DROP FUNCTION fencedb.set_mode(regclass, boolean);
DROP FUNCTION fencedb.switched_off(regclass);
DROP FUNCTION fencedb.switch_guard(regprocedure, boolean);
DROP FUNCTION fencedb.let_pass(oid, text, text, boolean, text);
DROP FUNCTION fencedb.record_observation(oid, name, text, text, text, bigint, text);
DROP FUNCTION fencedb.guarded_root(oid);
DROP VIEW fencedb.unfenced_writes;
DROP SEQUENCE fencedb.unrecorded;
DROP TABLE fencedb.observations;
