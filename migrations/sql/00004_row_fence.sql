-- Row fences: where a resource is exactly one row that is never deleted, the row can be its own ledger. Its transactions
-- carry the grant, which writes nothing, and the row that an UPDATE has locked anyway says whether the token is current.

-- +goose Up

SELECT pg_catalog.set_config('fencedb.callers_path', pg_catalog.current_setting('search_path'), true), pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb GRANT EXECUTE ON FUNCTIONS TO PUBLIC;

-- +goose StatementBegin
CREATE FUNCTION fencedb.carry_all(resources text[], tokens bigint[], lease_ids uuid[], remaining_ms bigint DEFAULT NULL, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT a.xid, a.epoch INTO xid, epoch FROM fencedb.admit(false, resources, tokens, lease_ids, remaining_ms, NULL) a;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.carry_all(text[], bigint[], uuid[], bigint) IS 'Carries the grants of several resources. See carry.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.carry(resource text, token bigint, lease_id uuid, remaining_ms bigint DEFAULT NULL, OUT xid xid8, OUT epoch bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    limit_ms text    := least(remaining_ms, 2147483647);
    until    numeric := extract(epoch FROM clock_timestamp()) * 1000 + CASE WHEN remaining_ms > 2147483647 THEN 2147483647 ELSE remaining_ms END;
    key      bytea;
    body     text;
BEGIN
    -- The common case, without calls, as in enter: nothing has been entered or carried. admit does the rest, and refuses.
    IF coalesce(current_setting('fencedb.granted', true), '') = '' AND octet_length(resource) BETWEEN 1 AND 512
       AND token BETWEEN 1 AND 9007199254740991 AND lease_id IS NOT NULL AND coalesce(remaining_ms > 0, true) THEN
        key := (SELECT k.key FROM fencedb.signing_key k);
        epoch := pg_sequence_last_value('fencedb.server_epoch');
        IF key IS NOT NULL AND epoch IS NOT NULL THEN
            xid := pg_current_xact_id();
            IF current_setting('lock_timeout') = '0' AND current_setting('statement_timeout') = '0' AND remaining_ms IS NOT NULL
               AND current_setting('idle_in_transaction_session_timeout') = '0' AND coalesce(current_setting('transaction_timeout', true), '0') = '0' THEN
                body := set_config('lock_timeout', limit_ms, true) || set_config('statement_timeout', limit_ms, true)
                     || set_config('idle_in_transaction_session_timeout', limit_ms, true) || set_config('fencedb.limit', limit_ms, true)
                     || CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', limit_ms, true) END;
            ELSIF remaining_ms IS NOT NULL THEN
                PERFORM fencedb.bound(until), fencedb.bound(until, '{transaction_timeout}');
            END IF;
            body := format('{"until": %s, "grants": {%s: {"token": %s, "lease": "%s", "entered": false}}}', coalesce(until::text, 'null'), to_json(resource), token, lease_id);
            body := set_config('fencedb.granted', fencedb.signature(key, body) || body, true);
            RETURN;
        END IF;
    END IF;
    SELECT a.xid, a.epoch INTO xid, epoch FROM fencedb.admit(false, ARRAY[resource], ARRAY[token], ARRAY[lease_id], remaining_ms, NULL) a;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.carry(text, bigint, uuid, bigint) IS 'Like enter, for tables under fencedb.protect_row: takes no lock and writes nothing; the row that is updated judges the token. Until the transaction has updated or locked the row, another holder may change it, so lock it (SELECT ... FOR UPDATE) before deciding by what it holds. At REPEATABLE READ and SERIALIZABLE that refuses a row that has changed since the snapshot, with 40001, but what the transaction reads elsewhere may be older than the lock: there, enter.';

-- The judge of one row. Greater, or equal under the same lease, so that a holder can write RUNNING and then DONE.
-- Plain >= would let two holders of one number both write; plain > would refuse the holder's own second write.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require_row(target regclass, operation text, before text, after text, INOUT token bigint, INOUT lease uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    granted jsonb := fencedb.granted();
    own     jsonb := granted -> 'grants' -> after;
    carried bigint := (own ->> 'token')::bigint;
    overtakes boolean := granted IS NULL AND fencedb.overtakes(target);
BEGIN
    IF granted IS NULL AND NOT overtakes THEN
        PERFORM fencedb.raise_no_token(target::text, operation, coalesce(after, before), NULL);
    END IF;
    IF (granted ->> 'until')::numeric < extract(epoch FROM clock_timestamp()) * 1000 THEN
        PERFORM fencedb.raise_overdue();
    ELSIF after IS NULL THEN
        RAISE EXCEPTION 'the resource of a row of protected table % is NULL', target
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Every row needs a resource: make the columns of the resource expression NOT NULL.';
    ELSIF operation = 'DELETE' OR before <> after THEN
        RAISE EXCEPTION '% would take the fence of resource "%" away with its row', operation, before
            USING ERRCODE = 'feature_not_supported', HINT = 'Rows under fencedb.protect_row stay, in their partition too, and keep their resource. Nothing was written. Use fencedb.protect for tables whose rows come and go.';
    ELSIF overtakes THEN
        IF lease IS DISTINCT FROM fencedb.overtaking_lease() THEN
            token := fencedb.overtaking_token(after, NULL, token);
            lease := fencedb.overtaking_lease();
        END IF;
        RETURN;
    ELSIF own IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'FN003',
            MESSAGE = format('%s on protected table %s: the row belongs to resource "%s", which this transaction has no grant for', operation, target, after),
            DETAIL  = jsonb_build_object('table', target, 'resource', after, 'entered', (SELECT jsonb_agg(k ORDER BY k) FROM jsonb_object_keys(granted -> 'grants') k))::text,
            HINT    = 'Carry the grants of all resources the transaction writes to. Nothing was written.';
    ELSIF token > carried OR token = carried AND lease <> (own ->> 'lease')::uuid THEN
        -- A stamp that fencedb.reset_fence has annulled counts as the fence that it left. What a later holder stamps
        -- counts again.
        PERFORM fencedb.raise_stale(after, carried, token)
        WHERE NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = after AND concat_ws(' ', token, lease) = ANY (f.annulled)
                          AND (carried > f.last_fencing_token OR carried = f.last_fencing_token AND (own ->> 'lease')::uuid = f.lease_id));
    END IF;
    token := carried;
    lease := (own ->> 'lease')::uuid;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_row(regclass, text, text, text, bigint, uuid) IS 'Raises FN001 to FN003 or FN006 unless this transaction carries a token that the row accepts; returns what to stamp on it.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.check_row_key(target regclass, columns name[], several boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF several OR NOT EXISTS (
        SELECT FROM pg_index i
        WHERE i.indrelid = target AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
          AND (SELECT array_agg(a.attname) <@ columns AND (i.indnullsnotdistinct OR bool_and(a.attnotnull)) -- or many rows have the key NULL
               FROM pg_attribute a WHERE a.attrelid = target AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
    ) THEN
        RAISE EXCEPTION 'fencedb.protect_row: the resource of % does not name a unique key: a row must be one resource, and a resource one row', target
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Build one text from all columns of the primary key, or of a unique constraint on columns that are NOT NULL, with separators between them, or use fencedb.protect.';
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.check_row_key(regclass, name[], boolean) IS 'Inner function. Raises unless columns contain a unique key of target. That different keys give different texts is for the author of the expression to see to.';

-- +goose StatementBegin
CREATE FUNCTION fencedb.protect_row(target regclass, resource text, mode text DEFAULT NULL) RETURNS void
    LANGUAGE sql
    RETURN fencedb.guard_table(target, btrim(resource), 'row', $body$
#variable_conflict use_column
DECLARE
    "~old"   pg_catalog.text := CASE WHEN TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN %1$s END;
    "~new"   pg_catalog.text := CASE WHEN TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN "~old" ELSE %2$s END;
    "~stamp" pg_catalog.record := fencedb.require_row(TG_RELID, TG_OP, "~old", "~new", OLD.last_fencing_token, OLD.last_lease_id);
BEGIN
    NEW.last_fencing_token := "~stamp".token;
    NEW.last_lease_id      := "~stamp".lease;
    RETURN NEW;
END
$body$, pg_catalog.current_setting('search_path'), mode, NULL);
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.protect_row(regclass, text, text) IS 'Like protect, where every row is a resource of its own that is never deleted: the row is its own ledger, in last_fencing_token and last_lease_id. resource is a text expression over a unique key of target. Its transactions call fencedb.carry (or enter). DELETE is refused, and so is changing a row''s resource.';

REVOKE ALL ON FUNCTION fencedb.carry(text, bigint, uuid, bigint), fencedb.carry_all(text[], bigint[], uuid[], bigint) FROM PUBLIC;

ALTER DEFAULT PRIVILEGES IN SCHEMA fencedb REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('fencedb.callers_path'), true);

-- +goose Down
DROP FUNCTION fencedb.protect_row(regclass, text, text);
DROP FUNCTION fencedb.check_row_key(regclass, name[], boolean);
DROP FUNCTION fencedb.require_row(regclass, text, text, text, bigint, uuid);
DROP FUNCTION fencedb.carry(text, bigint, uuid, bigint);
DROP FUNCTION fencedb.carry_all(text[], bigint[], uuid[], bigint);
