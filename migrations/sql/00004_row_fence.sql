-- Row fences: where a resource is exactly one row that is never deleted, the row can be its own
-- ledger. Its transactions carry the grant, which writes nothing, and the row that an UPDATE has
-- locked anyway says whether the token is current. Resources are sealed in the ledger, though, by
-- revocations too. So what has entered there is looked at as well.

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
    left_ms bigint := least(remaining_ms, 2147483647);
    key     bytea;
    body    text;
BEGIN
    -- The common case, without calls, as in enter: nothing has been entered or carried. admit does
    -- the rest, and refuses.
    IF fencedb.untouched() AND octet_length(resource) BETWEEN 1 AND 512 AND token BETWEEN 1 AND 9007199254740991 AND lease_id IS NOT NULL AND coalesce(remaining_ms > 0, true) THEN
        SELECT k.key, pg_sequence_last_value('fencedb.server_epoch') INTO key, epoch FROM fencedb.signing_key k;
        IF epoch IS NOT NULL THEN
            xid := fencedb.admitted((date_part('epoch', clock_timestamp() - transaction_timestamp()) * 1000)::bigint, left_ms, fencedb.limit_ms(left_ms), NULL, true);
            body := format('{%s: "%s %s"}', to_json(resource), token, lease_id);
            body := set_config('fencedb.carried', fencedb.signature(key, body) || body, true);
            RETURN;
        END IF;
    END IF;
    SELECT a.xid, a.epoch INTO xid, epoch FROM fencedb.admit(false, ARRAY[resource], ARRAY[token], ARRAY[lease_id], remaining_ms, NULL) a;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.carry(text, bigint, uuid, bigint) IS 'Like enter, for tables under fencedb.protect_row: takes no lock and writes nothing; the row that is updated judges the token, and the ledger, if a newer one has entered or was sealed. Nobody who enters waits for a transaction that carries: one that has written its row before a newer token entered can commit after it, and at REPEATABLE READ and SERIALIZABLE one whose snapshot is older can write as well. Until the transaction has updated or locked the row, another holder may change it, so lock it (SELECT ... FOR UPDATE) before deciding by what it holds. At REPEATABLE READ and SERIALIZABLE that refuses a row that has changed since the snapshot, with 40001, but what the transaction reads elsewhere may be older than the lock: there, enter.';

-- The judge of one row. Greater, or equal under the same lease, so that a holder can write RUNNING
-- and then DONE. Plain >= would let two holders of one number both write; plain > would refuse the
-- holder's own second write.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require_any_row(target regclass, operation text, before text, after text, INOUT token bigint, INOUT lease uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until     float8 := fencedb.until();
    carried   text   := fencedb.carried() ->> after;
    own_token bigint := split_part(carried, ' ', 1);
    own_lease uuid   := split_part(carried, ' ', 2);
    overtakes boolean := until IS NULL AND fencedb.overtakes(target);
BEGIN
    IF until IS NULL AND NOT overtakes THEN
        PERFORM fencedb.raise_no_token(target::text, operation, coalesce(after, before), NULL);
    END IF;
    IF NOT overtakes AND fencedb.left_ms() < 0 THEN
        PERFORM fencedb.raise_overdue();
    ELSIF after IS NULL THEN
        RAISE EXCEPTION 'the resource of a row of protected table % is NULL', target
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Every row needs a resource: make the columns of the resource expression NOT NULL.';
    ELSIF operation = 'DELETE' OR before <> after THEN
        RAISE EXCEPTION '% would take the fence of resource "%" away with its row', operation, before
            USING ERRCODE = 'feature_not_supported', HINT = 'Rows under fencedb.protect_row stay, in their partition too, and keep their resource. Nothing was written. Use fencedb.protect for tables whose rows come and go.';
    ELSIF overtakes THEN
        IF lease IS DISTINCT FROM fencedb.overtaking_lease() THEN
            token := fencedb.overtaking_token(after, (SELECT f.last_fencing_token FROM fencedb.fences f WHERE f.resource = after), token);
            lease := fencedb.overtaking_lease();
        END IF;
        RETURN;
    END IF;
    IF carried IS NULL THEN
        SELECT h.token, h.lease_id INTO own_token, own_lease FROM fencedb.held(after) h;
    END IF;
    IF own_token IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'FN003',
            MESSAGE = format('%s on protected table %s: the row belongs to resource "%s", which this transaction has no grant for', operation, target, after),
            DETAIL  = jsonb_build_object('table', target, 'resource', after, 'entered', (SELECT jsonb_agg(k ORDER BY k) FROM jsonb_object_keys(fencedb.grants() || coalesce(fencedb.carried(), '{}')) k))::text,
            HINT    = 'Carry the grants of all resources the transaction writes to. Nothing was written.';
    ELSIF token > own_token OR token = own_token AND lease <> own_lease THEN
        -- Not if fencedb.reset_fence has annulled the stamp: then the fence that it left counts.
        PERFORM fencedb.raise_stale(after, own_token, token)
        WHERE NOT EXISTS (SELECT FROM fencedb.fences f WHERE f.resource = after AND concat_ws(' ', token, lease) = ANY (f.annulled));
    END IF;
    PERFORM fencedb.raise_stale(after, own_token, f.last_fencing_token) FROM fencedb.fences f
    WHERE f.resource = after AND (f.last_fencing_token > own_token OR f.last_fencing_token = own_token AND f.lease_id <> own_lease);
    token := own_token;
    lease := own_lease;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_any_row(regclass, text, text, text, bigint, uuid) IS 'Raises FN001 to FN003 or FN006 unless this transaction carries a token that the row accepts; returns what to stamp on it.';

-- The common case: a row that is updated under a grant that this transaction carries, keeps its
-- resource, and has an older token, or the same, as the ledger has. As in fencedb.require, there is
-- no search_path, and so every name has its schema.
-- +goose StatementBegin
CREATE FUNCTION fencedb.require_row(target regclass, operation text, before text, after text, INOUT token bigint, INOUT lease uuid)
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    signed    pg_catalog.text := pg_catalog.current_setting('fencedb.carried', true);
    key       pg_catalog.bytea;
    own       pg_catalog.text;
    own_token pg_catalog.int8;
    own_lease pg_catalog.uuid;
    fence     pg_catalog.int8;
    holder    pg_catalog.uuid;
BEGIN
    IF signed OPERATOR(pg_catalog.<>) '' AND operation OPERATOR(pg_catalog.=) 'UPDATE' AND before OPERATOR(pg_catalog.=) after THEN
        SELECT k.key, f.last_fencing_token, f.lease_id INTO key, fence, holder
        FROM fencedb.signing_key k LEFT JOIN fencedb.fences f ON f.resource OPERATOR(pg_catalog.=) after;
        own := CASE WHEN pg_catalog."left"(signed, 64) OPERATOR(pg_catalog.=) fencedb.signature(key, pg_catalog.substr(signed, 65)) AND fencedb.left_ms() OPERATOR(pg_catalog.>=) 0
            THEN pg_catalog.substr(signed, 65)::pg_catalog.jsonb OPERATOR(pg_catalog.->>) after END;
        own_token := pg_catalog.split_part(own, ' ', 1)::pg_catalog.int8;
        own_lease := pg_catalog.split_part(own, ' ', 2)::pg_catalog.uuid;
    END IF;
    IF (own_token OPERATOR(pg_catalog.>) token OR own_token OPERATOR(pg_catalog.=) token AND own_lease OPERATOR(pg_catalog.=) lease)
       AND coalesce(own_token OPERATOR(pg_catalog.>) fence OR own_token OPERATOR(pg_catalog.=) fence AND own_lease OPERATOR(pg_catalog.=) holder, true) THEN
        token := own_token;
        lease := own_lease;
    ELSE
        SELECT r.token, r.lease INTO token, lease FROM fencedb.require_any_row(target, operation, before, after, token, lease) r;
    END IF;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION fencedb.require_row(regclass, text, text, text, bigint, uuid) IS 'require_any_row for a row that is updated under a grant that is carried.';

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
DROP FUNCTION fencedb.require_any_row(regclass, text, text, text, bigint, uuid);
DROP FUNCTION fencedb.carry(text, bigint, uuid, bigint);
DROP FUNCTION fencedb.carry_all(text[], bigint[], uuid[], bigint);
