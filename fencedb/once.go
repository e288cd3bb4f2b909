package fencedb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The statements of an idempotency key; docs/protocol.md has them for every language. onceClaim
// waits for a transaction that has claimed the key. If the key is done or another role's, it only
// locks the row, so that nobody forgets the key before the next statement.
const (
	onceClaim = `INSERT INTO fencedb.once AS o (key, fingerprint) VALUES ($1::pg_catalog.text, $2::pg_catalog.bytea)
		ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, claimed_at = excluded.claimed_at
		WHERE NOT o.done AND o.role OPERATOR(pg_catalog.=) current_user`
	onceResult = `SELECT fingerprint, result FROM fencedb.once
		WHERE key OPERATOR(pg_catalog.=) $1::pg_catalog.text AND role OPERATOR(pg_catalog.=) current_user`
	onceEnd = `UPDATE fencedb.once SET fingerprint = $3::pg_catalog.bytea, result = $2::pg_catalog.bytea, done = true
		WHERE key OPERATOR(pg_catalog.=) $1::pg_catalog.text AND role OPERATOR(pg_catalog.=) current_user AND NOT done`

	maxOnceResult = 1 << 20 // bytes
)

// Once runs fn the first time that key is seen, and replays its result after that. The key is
// stored in the transaction of tx: it is done exactly when the effects of fn are committed.
//
//	err := fencedb.Tx(ctx, pool, lease, func(tx pgx.Tx) error {
//		answer, replayed, err := fencedb.Once(ctx, tx, key, requestBody, func() ([]byte, error) {
//			return reserve(ctx, tx, order)
//		})
//		...
//	})
//
// If a transaction that has claimed the key is still open, a call with the same key waits for it,
// within its own time limits. If that transaction rolls back, the call runs fn; if it commits, the
// call gets the result. At REPEATABLE READ and SERIALIZABLE it gets SQLSTATE 40001 instead, and the
// result when it is repeated.
//
// request is what the key stands for; only its hash is kept. The same key with another request is
// refused with [ErrKeyReused]. A nil request matches only another nil request (in package
// lease/once it matches every request). A key belongs to the database role that used it first (the
// role of SET ROLE, if there was one). Every other role is refused with ErrKeyReused.
//
// A key has no namespace: all that use a database under one role share its keys. So put into it
// what keeps them apart, such as the tenant and the kind of request; once.Key of package lease/once
// makes one key of these. Its Config.Namespace does not reach this function.
//
// key has 1 to 512 bytes, and result at most 1 MiB. If fn fails, Once returns its error and the key
// stays free for that role, even if the transaction commits. A call with the same key within fn
// runs its own function; if the outer fn then fails and the transaction commits all the same, the
// result of the inner call is kept. Cancelling ctx closes the connection, as in every pgx call, and
// nothing is written.
func Once(ctx context.Context, tx pgx.Tx, key string, request []byte,
	fn func() ([]byte, error)) (result []byte, replayed bool, err error) {
	if fn == nil {
		return nil, false, errNoFn
	}
	if len(key) < 1 || len(key) > 512 {
		return nil, false, fmt.Errorf("fencedb: an idempotency key has 1 to 512 bytes, got %d; nothing was written", len(key))
	}
	var fingerprint []byte
	if request != nil {
		sum := sha256.Sum256(request)
		fingerprint = sum[:]
	}
	claimed, err := tx.Exec(ctx, onceClaim, key, fingerprint)
	if err != nil {
		return nil, false, Explain(err)
	}
	if claimed.RowsAffected() == 0 {
		var stored []byte
		err = tx.QueryRow(ctx, onceResult, key).Scan(&stored, &result)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil, false, fmt.Errorf("%w: %q was used by another role; nothing was written, and this role needs a key of its own", ErrKeyReused, key)
		case err != nil:
			return nil, false, Explain(err)
		case (stored == nil) != (fingerprint == nil) || !bytes.Equal(stored, fingerprint):
			return nil, false, fmt.Errorf("%w: %q; nothing was written, and a new request needs a new key", ErrKeyReused, key)
		}
		return result, true, nil
	}
	if result, err = fn(); err != nil {
		return nil, false, err
	}
	if len(result) > maxOnceResult {
		return nil, false, fmt.Errorf("fencedb: the result of idempotency key %q has %d bytes, and can have %d; keep what is larger in a table of your own, "+
			"written in the same transaction, and return what finds it there", key, len(result), maxOnceResult)
	}
	ended, err := tx.Exec(ctx, onceEnd, key, result, fingerprint) // a call within fn that failed has left its own
	if err == nil && ended.RowsAffected() == 0 {                  // a call within fn has ended it, or its claim is gone
		err = tx.QueryRow(ctx, onceResult, key).Scan(nil, nil)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, false, fmt.Errorf("fencedb: the idempotency key %q is not claimed any more, since the function went back to a savepoint before Once, "+
				"or changed the role; roll the transaction back", key)
		}
	}
	if err != nil {
		return nil, false, Explain(err)
	}
	return result, false, nil
}

// OnceJSON is [Once] for a request and a result that encoding/json can write and read.
func OnceJSON[T any](ctx context.Context, tx pgx.Tx, key string, request any,
	fn func() (T, error)) (result T, replayed bool, err error) {
	if fn == nil {
		return result, false, errNoFn
	}
	asked, err := json.Marshal(request)
	if err != nil {
		return result, false, fmt.Errorf("fencedb: the request of key %q: %w", key, err)
	}
	if string(asked) == "null" { // no request: "null" would match every other nil
		asked = nil
	}
	var own T
	answer, replayed, err := Once(ctx, tx, key, asked, func() ([]byte, error) {
		if own, err = fn(); err != nil {
			return nil, err
		}
		return json.Marshal(own)
	})
	if err != nil || !replayed {
		return own, false, err
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return result, true, fmt.Errorf("fencedb: the stored result of key %q is not a %T: %w", key, result, err)
	}
	return result, true, nil
}
