package fencedb

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Once runs fn the first time that key is seen, and replays its result every other time. The key is
// stored in the transaction of tx: it is done exactly when the effects of fn are committed.
//
//	err := fencedb.Tx(ctx, pool, lease, func(tx pgx.Tx) error {
//		answer, replayed, err := fencedb.Once(ctx, tx, key, requestBody, func() ([]byte, error) {
//			return reserve(ctx, tx, order)
//		})
//		...
//	})
//
// A call with the key of a transaction that is still open waits for it, within the limits of its
// own; then it runs fn if that was rolled back, and gets the result if it has committed: at
// REPEATABLE READ and SERIALIZABLE SQLSTATE 40001 instead, and the result when it is repeated.
//
// request is what the key stands for; only its hash is kept. The same key with another request is
// refused with ErrKeyReused. nil stands for no request, which equals nothing but nil (in package
// lease/once it matches every request), and is replayed only to the database role that stored it
// (the role of SET ROLE, if there was one): with a request, knowing it is what entitles a caller to
// its result. result can be up to 1 MiB. If fn fails, Once returns its error and the key stays
// free, whether the transaction then rolls back or not. So a call with the same key within fn runs
// its function too, and what that one returns is the result if fn fails afterwards and the
// transaction commits all the same. Cancelling ctx closes the connection, as in every pgx call, and
// nothing is written.
func Once(ctx context.Context, tx pgx.Tx, key string, request []byte,
	fn func() ([]byte, error)) (result []byte, replayed bool, err error) {
	if fn == nil {
		return nil, false, errNoFn
	}
	var fingerprint []byte
	if request != nil {
		sum := sha256.Sum256(request)
		fingerprint = sum[:]
	}
	var first bool
	row := tx.QueryRow(ctx, `SELECT first, result FROM fencedb.once_begin($1::pg_catalog.text, $2::pg_catalog.bytea)`, key, fingerprint)
	if err := row.Scan(&first, &result); err != nil {
		return nil, false, Explain(err)
	}
	if !first {
		return result, true, nil
	}
	if result, err = fn(); err != nil {
		return nil, false, err
	}
	if _, err := tx.Exec(ctx, `SELECT fencedb.once_end($1::pg_catalog.text, $2::pg_catalog.bytea)`, key, result); err != nil {
		return nil, false, Explain(err)
	}
	return result, false, nil
}

// OnceJSON is Once for a request and a result that encoding/json can write and read.
func OnceJSON[T any](ctx context.Context, tx pgx.Tx, key string, request any,
	fn func() (T, error)) (result T, replayed bool, err error) {
	if fn == nil {
		return result, false, errNoFn
	}
	asked, err := json.Marshal(request)
	if err != nil {
		return result, false, fmt.Errorf("fencedb: the request of key %q: %w", key, err)
	}
	if string(asked) == "null" { // anybody could guess that
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
