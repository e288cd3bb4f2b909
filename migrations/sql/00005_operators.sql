-- What operators do by hand, and a role for them. Nothing here is needed to hold a lease or to
-- write behind a fence.

-- +goose Up
-- +goose StatementBegin

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- What is kept goes by its age, in batches, and by this door alone. The floors are against slips,
-- and against traces that somebody would like to be rid of.
--
-- A clock can jump, and a server that believes its own forgets a fence of minutes ago. So nothing
-- goes that is younger by either of two clocks: this server's, and that of the issuer, of which
-- each token carries the time. What the issuer's clock says now, the caller knows, or else the
-- newest token tells when it said so last. Two clocks that are a day apart are refused; nobody
-- knows then which of them is wrong. (A role that takes over has tokens by the clock of this
-- server, so where one does, the caller should ask the issuer.)
--
-- A fence may go when no token below it can still be in use. That no lease lasts longer, and that
-- the resources are not held now, is for the caller to know: this server does not see leases. A
-- fence that has advanced since the caller looked is younger, so it stays. One that is held by a
-- transaction stays too, and one that was set back, because it says which stamps do not count.
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
    ELSIF coalesce(localtimestamp - older_than > localtimestamp - floor, true) THEN -- compared as intervals, a month would be 30 days
        RAISE EXCEPTION 'fencedb.prune: of %, what is younger than % may still be needed, got %', what, floor, quote_nullable(older_than)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF coalesce(operator, '') = '' OR coalesce(reason, '') = '' THEN
        RAISE EXCEPTION 'fencedb.prune: needs an operator and a reason, got % and %', quote_nullable(operator), quote_nullable(reason) USING ERRCODE = 'invalid_parameter_value';
    ELSIF (what = 'fences') <> (resources IS NOT NULL) THEN
        RAISE EXCEPTION 'fencedb.prune: resources are named of fences, and of nothing else'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'This server does not know which resources are held. fencedb prune asks Redis.';
    ELSIF issuer IS NULL THEN
        RAISE EXCEPTION 'fencedb.prune: needs the time of a second clock, and no token of the ledger tells one'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing was forgotten. Pass issuer_time, what the clock of the issuer says now: in Redis, TIME.';
    ELSIF abs(extract(epoch FROM server - issuer)) > 86400 THEN
        RAISE EXCEPTION 'fencedb.prune: the clock of this server says %, and that of the issuer %', server, concat(issuer, CASE WHEN issuer_time IS NULL THEN ' in its newest token' END)
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing was forgotten. Set the clock that is wrong.' || CASE WHEN issuer_time IS NULL AND issuer < server THEN ' If only no lease was acquired since, pass issuer_time, what the clock of the issuer says now: in Redis, TIME.' ELSE '' END;
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
        PERFORM setval('fencedb.observations', greatest(1, (SELECT count(*) FROM fencedb.events e WHERE e.kind = 'observed'))) WHERE what = 'observed';
    END IF;
    IF forgotten > 0 THEN
        PERFORM fencedb.log_event('prune', NULL, operator, reason, jsonb_build_object('what', what, 'rows', forgotten, 'older_than', older_than::text));
    END IF;
    RETURN forgotten;
END
$$;

COMMENT ON FUNCTION fencedb.prune IS 'Forgets what is older than older_than, at most so many rows at a time; records that, and returns how many. Call again until it returns 0. what is fences (a day old at least), of the resources that are named: any token is then accepted for them again, so older_than must be longer than any lease can still be valid, and no lease may be held on them; once (an hour): a forgotten key runs again if its request comes again; audit (90 days; who protected a table stays while it is protected); history; or observed. Nothing goes that is younger by the clock of this server or by that of the issuer, which issuer_time says, or else the newest token of the ledger; clocks that are a day apart are refused.';

REVOKE ALL ON FUNCTION fencedb.prune FROM PUBLIC;

-- A token entered by mistake shuts every later holder out, for good. This sets the fence back, and
-- says so in the audit.
--
-- Rows have stamps from before, in tables that the caller may not write to. So they are not looked
-- for. The ledger remembers instead up to which token stamps do not count: whoever has entered is
-- current by the ledger, and the next write replaces the stamp.
-- The fence gets a lease id that nobody has. So the token that it is set to is no one's: the next
-- holder needs a higher one.
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
            USING ERRCODE = 'invalid_parameter_value', HINT = 'If a row refuses tokens all the same, as where the ledger was emptied, enter with a token that is not below its stamp: that makes the fence.';
    ELSIF former_token <= reset_fence.token THEN
        RAISE EXCEPTION 'fencedb.reset_fence: the fence of resource "%" is at token %, which is not above %', reset_fence.resource, former_token, reset_fence.token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A reset only sets back. Entering a grant sets a fence forward.';
    END IF;

    UPDATE fencedb.fences f
    SET last_fencing_token = reset_fence.token, lease_id = gen_random_uuid(), advanced_at = clock_timestamp(), reset_from = greatest(f.reset_from, former_token)
    WHERE f.resource = reset_fence.resource COLLATE "C"
    RETURNING f.lease_id INTO lease_id;
    noted := CASE WHEN fencedb.entries() IS NOT NULL THEN set_config('fencedb.entered', replace(fencedb.entries(), fencedb.entry(reset_fence.resource, former_token), ''), true) END; -- this transaction may have entered it
    audit_id := fencedb.log_event('reset', reset_fence.resource, operator, reason, jsonb_build_object('former_token', former_token, 'former_lease_id', former_lease_id,
        'token', reset_fence.token, 'lease_id', reset_fence.lease_id));
END
$$;

COMMENT ON FUNCTION fencedb.reset_fence IS 'Sets the fence of resource back to a lower token, after one was entered by mistake, and records it. From then on every holder with a higher token can write again, also those that were shut out since: end them first, or seal a new grant at once. Waits for open transactions of the resource for wait_ms, then raises 55P03. Rows keep their stamps until the next write.';

REVOKE ALL ON FUNCTION fencedb.reset_fence FROM PUBLIC;

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
                WHERE p.pronamespace = 'fencedb'::regnamespace AND p.proname IN ('prepared_writers', 'record', 'prune', 'reset_fence', 'keep_history') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, operator);
    END LOOP;
    EXECUTE format('GRANT SELECT ON fencedb.fences, fencedb.foreign_issuers, fencedb.events, fencedb.audit, fencedb.history, fencedb.take_overs, fencedb.history_kept TO %s', operator);
END
$$;

REVOKE ALL ON FUNCTION fencedb.allow_operator FROM PUBLIC;

-- May the role of now see lease ids? A policy asks once, where it asks in a query of its own.
CREATE FUNCTION fencedb.operates() RETURNS boolean
    LANGUAGE sql STABLE
    RETURN has_function_privilege('fencedb.prune(text, interval, text, text, timestamptz, text[], bigint)', 'EXECUTE');

COMMENT ON FUNCTION fencedb.operates IS 'Whether the role of now was let in by fencedb.allow_operator, or owns this schema.';
GRANT EXECUTE ON FUNCTION fencedb.operates TO PUBLIC;

CREATE POLICY operators ON fencedb.fences FOR SELECT USING ((SELECT fencedb.operates()));
CREATE POLICY operators ON fencedb.events FOR SELECT USING (kind = 'observed' OR (SELECT fencedb.operates())); -- there is no lease id in what was observed
COMMENT ON FUNCTION fencedb.allow_operator IS 'Lets a role see the ledger, its history and what was observed, revoke, keep history, set fences back, forget old fences and old records, and record it: all that the command fencedb does, but for migrations. An application needs fencedb.allow instead.';

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);
-- +goose StatementEnd

-- +goose Down
DROP POLICY operators ON fencedb.events;
DROP POLICY operators ON fencedb.fences;
DROP FUNCTION fencedb.allow_operator, fencedb.operates, fencedb.reset_fence, fencedb.prune;
