package fencedb_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// once runs fn once for key, in a transaction of its own.
func (w *world) once(key string, request []byte,
	fn func(pgx.Tx) ([]byte, error)) (result []byte, replayed bool, err error) {
	err = pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
		result, replayed, err = fencedb.Once(w.Context(), tx, key, request, func() ([]byte, error) { return fn(tx) })
		return err
	})
	return result, replayed, err
}

func TestOnceRunsTheFirstTimeAndReplaysAfterwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE effects (n int)`)
	charge := func(tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(t.Context(), `INSERT INTO effects VALUES (1)`)
		return []byte("charged"), err
	}

	for i := range 3 {
		result, replayed, err := w.once("order:1", []byte("12 EUR"), charge)
		require.NoError(t, err)
		require.Equal(t, "charged", string(result))
		require.Equal(t, i > 0, replayed)
	}

	require.Len(t, collect[int](w, `SELECT n FROM effects`), 1)
}

func TestAStoredResultCannotBeReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answer := func(pgx.Tx) ([]byte, error) { return []byte("first"), nil }
	_, _, err := w.once("order:1", nil, answer)
	require.NoError(t, err)

	w.exec(`UPDATE fencedb.once SET result = 'second', done = true WHERE key = 'order:1' AND role = current_user AND NOT done`)

	result, replayed, err := w.once("order:1", nil, answer)
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, "first", string(result))
}

// Otherwise the work would commit without its key, and run again.
func TestAKeyWhoseClaimWasTakenBackIsNotDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SAVEPOINT before`)
		require.NoError(t, err)
		_, _, err = fencedb.Once(t.Context(), tx, "order:1", nil, func() ([]byte, error) {
			_, err := tx.Exec(t.Context(), `ROLLBACK TO before`)
			return []byte("charged"), err
		})
		return err
	})
	require.ErrorContains(t, err, `the idempotency key "order:1" is not claimed`)
}

func TestOnceRefusesTheKeyOfAnotherRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answer := func(pgx.Tx) ([]byte, error) { return nil, nil }
	_, _, err := w.once("order:1", []byte("12 EUR"), answer)
	require.NoError(t, err)

	_, _, err = w.once("order:1", []byte("13 EUR"), answer)
	require.ErrorIs(t, err, fencedb.ErrKeyReused)

	_, _, err = w.once("order:1", nil, answer)
	require.ErrorIs(t, err, fencedb.ErrKeyReused, "a key alone can be guessed")

	_, _, err = w.once("order:2", nil, answer)
	require.NoError(t, err)
	_, _, err = w.once("order:2", []byte("12 EUR"), answer)
	require.ErrorIs(t, err, fencedb.ErrKeyReused)
}

func TestACallWithinOneThatFailsGivesTheKeyItsResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failed := errors.New("failed")
	require.NoError(t, pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		_, _, err := fencedb.Once(t.Context(), tx, "order:1", nil, func() ([]byte, error) {
			_, replayed, err := fencedb.Once(t.Context(), tx, "order:1", nil, func() ([]byte, error) { return []byte("inner"), nil })
			require.False(t, replayed)
			return nil, errors.Join(err, failed)
		})
		require.ErrorIs(t, err, failed)
		return nil
	}))

	result, replayed, err := w.once("order:1", nil, func(pgx.Tx) ([]byte, error) { return []byte("outer"), nil })

	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, "inner", string(result))
}

// Others may have been told what the inner call stored, where it came behind a COMMIT.
func TestACallWithinOneThatEndsKeepsItsResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answers := func(tx pgx.Tx) ([]byte, error) {
		_, _, err := fencedb.Once(t.Context(), tx, "order:1", nil, func() ([]byte, error) { return []byte("inner"), nil })
		return []byte("outer"), err
	}
	for _, want := range []string{"outer", "inner"} { // the first is the caller's own
		result, _, err := w.once("order:1", nil, answers)
		require.NoError(t, err)
		require.Equal(t, want, string(result))
	}
}

// The key stands for the request whose result is stored.
func TestACallWithinOneThatFailsLeavesWhatTheKeyStandsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	requests := map[string][]byte{"one": []byte("12 EUR"), "another": []byte("99 EUR"), "none": nil}
	for outer, request := range requests {
		for inner, other := range requests {
			key := outer + ", within it " + inner
			run := func(tx pgx.Tx) ([]byte, error) {
				declined := errors.New("declined")
				_, _, err := fencedb.Once(t.Context(), tx, key, other, func() ([]byte, error) { return nil, declined })
				require.ErrorIs(t, err, declined)
				return []byte("charged"), nil
			}
			_, _, err := w.once(key, request, run)
			require.NoError(t, err, key)
			for again, asked := range requests {
				result, replayed, err := w.once(key, asked, run)
				if again != outer {
					require.ErrorIs(t, err, fencedb.ErrKeyReused, "%s, then %s", key, again)
					continue
				}
				require.NoError(t, err, key)
				require.True(t, replayed, key)
				require.Equal(t, "charged", string(result), key)
			}
		}
	}
}

// Nobody else is told a result, and nobody runs its work a second time.
func TestAKeyOfAnotherRoleIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := pgx.Identifier{"other_" + collect[string](w, `SELECT current_database()`)[0]}.Sanitize()
	w.exec(`CREATE ROLE ` + role + `; SELECT fencedb.allow('` + role + `')`)
	defer w.exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role)
	stored := func(pgx.Tx) ([]byte, error) { return []byte("mine"), nil }
	_, _, err := w.once("done", []byte("a"), stored)
	require.NoError(t, err)
	w.exec(`INSERT INTO fencedb.once (key) VALUES ('claimed')`)

	for _, key := range []string{"done", "claimed"} {
		for _, request := range [][]byte{nil, []byte("a"), []byte("b")} {
			err = pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role)
				require.NoError(t, err)
				_, _, err = fencedb.Once(t.Context(), tx, key, request, func() ([]byte, error) {
					require.Fail(t, "it ran")
					return nil, nil
				})
				return err
			})
			require.ErrorIs(t, err, fencedb.ErrKeyReused, "%s %s", key, request)
		}
	}
}

func TestAFailedRunLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	declined := errors.New("declined")
	fail := func(pgx.Tx) ([]byte, error) { return nil, declined }
	succeed := func(pgx.Tx) ([]byte, error) { return []byte("ok"), nil }

	_, _, err := w.once("rolled back", nil, fail)
	require.ErrorIs(t, err, declined)
	require.NoError(t, pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		_, _, err := fencedb.Once(t.Context(), tx, "committed all the same", []byte("a"), func() ([]byte, error) { return fail(tx) })
		require.ErrorIs(t, err, declined)
		return nil
	}))

	for _, key := range []string{"rolled back", "committed all the same"} {
		result, replayed, err := w.once(key, []byte("b"), succeed)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, "ok", string(result))
	}
}

func TestConcurrentDuplicatesRunOnceAndGetTheSameResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs atomic.Int32
	var group sync.WaitGroup
	results := make([]string, 30)

	for i := range results {
		group.Go(func() {
			result, _, err := w.once("order:1", []byte("x"), func(pgx.Tx) ([]byte, error) {
				runs.Add(1)
				return []byte("the one"), nil
			})
			if err != nil {
				t.Error(err)
			}
			results[i] = string(result)
		})
	}
	group.Wait()

	require.EqualValues(t, 1, runs.Load())
	for _, result := range results {
		require.Equal(t, "the one", result)
	}
}

// The duplicate waits for the first, which rolls back: now it is the first.
func TestADuplicateRunsWhenTheFirstRollsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, _, err = fencedb.Once(t.Context(), first, "order:1", nil, func() ([]byte, error) { return []byte("first"), nil })
	require.NoError(t, err)

	conn := w.conn()
	done := make(chan error, 1)
	var result []byte
	var replayed bool
	go func() {
		done <- pgx.BeginFunc(context.Background(), conn, func(tx pgx.Tx) (err error) {
			result, replayed, err = fencedb.Once(context.Background(), tx, "order:1", nil, func() ([]byte, error) { return []byte("second"), nil })
			return err
		})
	}()
	w.awaitBlocked(conn.PgConn().PID())
	require.NoError(t, first.Rollback(t.Context()))

	require.NoError(t, received(t, done))
	require.False(t, replayed)
	require.Equal(t, "second", string(result))
}

func TestOnceInsideTxAndSavepoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	reserve := func() (answer string, replayed bool) {
		err := fencedb.Tx(ctx, w.pool, grant("table:12", w.fence("table:12")+1), func(tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) (err error) {
				answer, replayed, err = fencedb.OnceJSON(ctx, savepoint, "key", map[string]int{"table": 12}, func() (string, error) {
					return "booked", book(ctx, savepoint, 12, "ann")
				})
				return err
			})
		})
		require.NoError(t, err)
		return answer, replayed
	}

	answer, replayed := reserve()
	require.Equal(t, "booked", answer)
	require.False(t, replayed)
	answer, replayed = reserve()
	require.Equal(t, "booked", answer)
	require.True(t, replayed)
	require.Equal(t, []string{"ann"}, w.guests())
}

func TestOnceRefusesBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ok := func(pgx.Tx) ([]byte, error) { return nil, nil }

	for _, key := range []string{"", strings.Repeat("x", 513)} {
		_, _, err := w.once(key, nil, ok)
		require.ErrorContains(t, err, "1 to 512 bytes")
	}
	_, _, err := w.once("big", nil, func(pgx.Tx) ([]byte, error) { return make([]byte, 1<<20+1), nil })
	require.ErrorContains(t, err, `the result of idempotency key "big" has 1048577 bytes, and can have 1048576`)
	_, _, err = w.once("just right", nil, func(pgx.Tx) ([]byte, error) { return make([]byte, 1<<20), nil })
	require.NoError(t, err)

	require.NoError(t, pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		_, _, err := fencedb.OnceJSON(t.Context(), tx, "json", make(chan int), func() (int, error) { return 1, nil })
		require.ErrorContains(t, err, `the request of key "json"`)
		return nil
	}))
	_, _, err = w.once("json", nil, func(pgx.Tx) ([]byte, error) { return []byte("{"), nil })
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		_, _, err := fencedb.OnceJSON(t.Context(), tx, "json", nil, func() (int, error) { return 1, nil })
		require.ErrorContains(t, err, "is not a int")
		_, _, err = fencedb.OnceJSON[int](t.Context(), tx, "json", nil, nil)
		require.ErrorContains(t, err, "the function is nil")
		_, _, err = fencedb.Once(t.Context(), tx, "json", nil, nil)
		require.ErrorContains(t, err, "the function is nil")
		return nil
	}))
}

func TestKeysAreForgottenByAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, key := range []string{"a", "b", "c"} {
		_, _, err := w.once(key, nil, func(pgx.Tx) ([]byte, error) { return nil, nil })
		require.NoError(t, err)
	}
	w.exec(`UPDATE fencedb.once SET claimed_at = now() - interval '2 days' WHERE key <> 'c'`)

	forget := func() int {
		return collect[int](w, `SELECT fencedb.prune('once', '1 day', 'ann@desk', 'weekly', clock_timestamp(), at_most => 1)`)[0]
	}
	require.Equal(t, []int{1, 1, 0}, []int{forget(), forget(), forget()})
	require.Equal(t, []string{"c"}, collect[string](w, `SELECT key FROM fencedb.once`))
}
