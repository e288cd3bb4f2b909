-- What operators do by hand, and a role for them. Nothing here is needed to hold a lease or to
-- write behind a fence.

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- A fence may go when no token below it can still be in use. The limit here is a floor against
-- slips; that no lease lasts longer, and that the resources are not held now, is for the caller to
-- know: this server does not see leases. A fence that has advanced since the caller looked is
-- younger, so it stays. One that is held by a transaction stays too, and one that was set back,
-- because it says which stamps do not count.
CREATE FUNCTION fencedb.forget_fences(resources text[], older_than interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten bigint;
BEGIN
    IF coalesce(localtimestamp - older_than > localtimestamp - interval '1 day', true) THEN -- compared as intervals, a month would be 30 days
        RAISE EXCEPTION 'fencedb.forget_fences: fences younger than a day may still be needed, got %', coalesce(older_than::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH old AS (
        SELECT f.resource FROM fencedb.fences f
        WHERE f.resource = ANY (resources COLLATE "C") AND f.advanced_at < clock_timestamp() - older_than AND f.reset_from IS NULL
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM fencedb.fences f USING old WHERE f.resource = old.resource;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END
$$;

COMMENT ON FUNCTION fencedb.forget_fences IS 'Forgets the fences of resources that have not advanced for older_than, at least a day; returns how many. Any token is then accepted for them again, so older_than must be longer than any lease can still be valid, and no lease may be held on them. fencedb prune sees to both.';

REVOKE ALL ON FUNCTION fencedb.forget_fences FROM PUBLIC;

-- A token entered by mistake shuts every later holder out, for good. This sets the fence back, and
-- says so in the audit.
--
-- Rows have stamps from before, in tables that the caller may not write to. So they are not looked
-- for. The ledger remembers instead up to which token stamps do not count: whoever has entered is
-- current by the ledger, and the next write replaces the stamp.
-- The fence gets a lease id that nobody has. So the token that it is set to is no one's: the next
-- holder needs a higher one.
CREATE FUNCTION fencedb.reset_fence(resource text, token bigint, operator text, reason text, row_token bigint DEFAULT NULL, wait_ms bigint DEFAULT 10000,
                                    OUT former_token bigint, OUT former_lease_id uuid, OUT lease_id uuid, OUT audit_id bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    limited  text    := current_setting('lock_timeout');
    deadline numeric := extract(epoch FROM clock_timestamp()) * 1000 + least(greatest(wait_ms, 0), 2147483647);
    created  boolean := false;
BEGIN
    IF reset_fence.token IS NULL OR reset_fence.token < 0 THEN
        RAISE EXCEPTION 'fencedb.reset_fence: the token must be 0 or more, got %', coalesce(reset_fence.token::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF reset_fence.resource IS NULL THEN
        RAISE EXCEPTION 'fencedb.reset_fence: needs a resource, got NULL' USING ERRCODE = 'invalid_parameter_value';
    ELSIF row_token <= reset_fence.token THEN
        RAISE EXCEPTION 'fencedb.reset_fence: the row''s token (%) is not above %, so it refuses nobody', row_token, reset_fence.token
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF row_token IS NOT NULL THEN -- where the ledger was emptied, a refused holder has left no fence
        BEGIN
            PERFORM fencedb.lower_limit('lock_timeout', greatest(1, ceil(deadline - extract(epoch FROM clock_timestamp()) * 1000))::bigint); -- another transaction may be inserting it
            INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, reset_from)
            VALUES (reset_fence.resource, reset_fence.token, gen_random_uuid(), row_token) ON CONFLICT DO NOTHING;
            created := FOUND;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM fencedb.await(reset_fence.resource, false, 0); -- raises
        END;
        PERFORM set_config('lock_timeout', limited, true);
    END IF;
    LOOP
        SELECT f.last_fencing_token, f.lease_id INTO former_token, former_lease_id
        FROM fencedb.fences f WHERE f.resource = reset_fence.resource COLLATE "C" FOR NO KEY UPDATE SKIP LOCKED;
        EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = reset_fence.resource COLLATE "C");
        PERFORM fencedb.await(reset_fence.resource, false, deadline);
    END LOOP;
    IF former_token IS NULL THEN
        RAISE EXCEPTION 'fencedb.reset_fence: resource "%" has no fence', reset_fence.resource
            USING ERRCODE = 'invalid_parameter_value', HINT = 'If a row refuses tokens all the same, name its stamp: row_token.';
    ELSIF former_token < reset_fence.token OR former_token = reset_fence.token AND row_token IS NULL THEN
        RAISE EXCEPTION 'fencedb.reset_fence: the fence of resource "%" is at token %, which is not above %', reset_fence.resource, former_token, reset_fence.token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A reset only sets back. Entering a grant sets a fence forward.';
    END IF;

    UPDATE fencedb.fences f
    SET last_fencing_token = reset_fence.token,
        lease_id = CASE WHEN former_token > reset_fence.token THEN gen_random_uuid() ELSE f.lease_id END,
        advanced_at = clock_timestamp(),
        reset_from = greatest(f.reset_from, former_token, row_token)
    WHERE f.resource = reset_fence.resource COLLATE "C"
    RETURNING f.lease_id INTO lease_id;
    limited := CASE WHEN former_token > reset_fence.token AND fencedb.entries() IS NOT NULL THEN set_config('fencedb.entered', replace(fencedb.entries(), fencedb.entry(reset_fence.resource, former_token), ''), true) END; -- this transaction may have entered it
    IF created THEN
        former_token := NULL;
        former_lease_id := NULL;
    END IF;

    INSERT INTO fencedb.audit AS a (event, resource, operator, reason, details)
    VALUES ('reset', reset_fence.resource, operator, reason, jsonb_build_object('former_token', former_token, 'former_lease_id', former_lease_id,
        'token', reset_fence.token, 'lease_id', reset_fence.lease_id, 'row_token', row_token))
    RETURNING a.id INTO audit_id;
END
$$;

COMMENT ON FUNCTION fencedb.reset_fence IS 'Sets the fence of resource back to a lower token, after one was entered by mistake, and records it. From then on every holder with a higher token can write again, also those that were shut out since: end them first, or seal a new grant at once. Waits for open transactions of the resource for wait_ms, then raises 55P03. Rows keep their stamps until the next write. row_token names the stamp of a row that refuses tokens although the fence of its resource is below, as where the ledger was emptied: stamps up to it do not count any more.';

REVOKE ALL ON FUNCTION fencedb.reset_fence FROM PUBLIC;

-- Who protected a table is worth knowing for as long as it is protected.
CREATE FUNCTION fencedb.old_audit(older_than interval) RETURNS SETOF bigint
    LANGUAGE sql
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT a.id FROM fencedb.audit a
    WHERE a.at < clock_timestamp() - older_than
      AND NOT (a.event IN ('protect', 'observe') AND EXISTS (SELECT FROM fencedb.protected_tables p
               WHERE p.table_name::oid::text = a.details ->> 'oid' OR p.table_name::text = a.details ->> 'table'))
    ORDER BY a.id
$$;

COMMENT ON FUNCTION fencedb.old_audit IS 'The rows of fencedb.audit that fencedb.forget_audit would delete, by their ids.';

-- The limit is a floor against slips, and against traces that somebody would like to be rid of.
CREATE FUNCTION fencedb.forget_audit(older_than interval, operator text, reason text, at_most int DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten bigint;
BEGIN
    IF coalesce(localtimestamp - older_than > localtimestamp - interval '90 days', true) THEN -- as in forget_fences
        RAISE EXCEPTION 'fencedb.forget_audit: what was recorded stays for 90 days at least, got %', coalesce(older_than::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM set_config('fencedb.forgets_audit', 'on', true);
    DELETE FROM fencedb.audit a WHERE a.id IN (SELECT o FROM fencedb.old_audit(older_than) o LIMIT at_most);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    PERFORM set_config('fencedb.forgets_audit', '', true);
    IF forgotten > 0 THEN
        INSERT INTO fencedb.audit AS a (event, operator, reason, details)
        VALUES ('prune_audit', operator, reason, jsonb_build_object('rows', forgotten, 'older_than', older_than::text));
    END IF;
    RETURN forgotten;
END
$$;

COMMENT ON FUNCTION fencedb.forget_audit IS 'Deletes rows of fencedb.audit that are older than older_than, at least 90 days, and at most so many at a time; records that, and returns how many. Call again until it returns 0. Who protected a table stays while it is protected.';

REVOKE ALL ON FUNCTION fencedb.old_audit, fencedb.forget_audit FROM PUBLIC;

CREATE FUNCTION fencedb.allow_operator(operator regrole) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    door regprocedure;
BEGIN
    IF operator IS NULL THEN
        RAISE EXCEPTION 'fencedb.allow_operator: needs a role, got NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM fencedb.allow(operator);
    FOR door IN SELECT p.oid FROM pg_proc p
                WHERE p.pronamespace = 'fencedb'::regnamespace AND p.proname IN ('prepared_writers', 'record', 'forget_fences', 'old_audit', 'forget_audit', 'reset_fence', 'keep_history') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, operator);
    END LOOP;
    EXECUTE format('GRANT SELECT ON fencedb.fences, fencedb.foreign_issuers, fencedb.audit, fencedb.observations, fencedb.take_overs, fencedb.history, fencedb.history_kept TO %s', operator);
END
$$;

REVOKE ALL ON FUNCTION fencedb.allow_operator FROM PUBLIC;

CREATE POLICY operators ON fencedb.fences FOR SELECT USING (has_function_privilege('fencedb.forget_fences(text[], interval)', 'EXECUTE'));
CREATE POLICY operators ON fencedb.audit  FOR SELECT USING (has_function_privilege('fencedb.forget_fences(text[], interval)', 'EXECUTE'));
COMMENT ON FUNCTION fencedb.allow_operator IS 'Lets a role see the ledger, its history and what was observed, revoke, keep history, set fences back, forget old fences and old records, and record it: all that the command fencedb does, but for migrations. An application needs fencedb.allow instead.';

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
DROP POLICY operators ON fencedb.audit;
DROP POLICY operators ON fencedb.fences;
DROP FUNCTION fencedb.allow_operator, fencedb.reset_fence, fencedb.forget_audit, fencedb.old_audit, fencedb.forget_fences;
