package fencedb_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// desk is what an application would have: its reads and writes on one transaction.
type desk struct{ tx pgx.Tx }

func (d desk) book(ctx context.Context, table int, guest string) error {
	return book(ctx, d.tx, table, guest)
}

func (d desk) note(ctx context.Context, text string) error {
	_, err := d.tx.Exec(ctx, `INSERT INTO notes (text) VALUES ($1)`, text) // in a table that is not protected
	return err
}

func (d desk) set(ctx context.Context, statement string) error {
	_, err := d.tx.Exec(ctx, statement)
	return err
}

func (d desk) count(ctx context.Context) (n int, err error) {
	err = d.tx.QueryRow(ctx, `SELECT count(*) FROM bookings`).Scan(&n)
	return n, err
}

func repository(db fencedb.DB) *fencedb.Repository[desk] {
	return fencedb.NewRepository(db, func(tx pgx.Tx) desk { return desk{tx} })
}

func newDesk(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.exec(`CREATE TABLE notes (text text NOT NULL)`)
	return w
}

func TestARepositoryWritesBehindTheFence(t *testing.T) {
	t.Parallel()
	w := newDesk(t)
	repo := repository(w.pool)
	both := func(token int64) error {
		return repo.Write(t.Context(), grant("table:12", token), func(d desk) error {
			if err := d.note(t.Context(), "a guest"); err != nil {
				return err
			}
			return d.book(t.Context(), 12, "ann")
		})
	}

	require.NoError(t, both(42))
	require.ErrorIs(t, both(41), fencedb.ErrStale)

	require.Equal(t, []string{"ann"}, w.guests())
	require.Equal(t, []string{"a guest"}, collect[string](w, `SELECT text FROM notes`))
}

func TestARepositoryDoesNotWriteWhatItReads(t *testing.T) {
	t.Parallel()
	w := newDesk(t)
	conn := w.conn()
	pooled, err := w.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer pooled.Release()
	for name, db := range map[string]fencedb.DB{
		"a pool": w.pool, "a connection of a pool": pooled, "a connection": conn,
		"with options": fencedb.With(w.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})),
	} {
		repo := repository(db)
		for table, write := range map[string]func(desk) error{
			"protected":     func(d desk) error { return d.book(t.Context(), 12, "ann") },
			"not protected": func(d desk) error { return d.note(t.Context(), "a guest") },
		} {
			err := repo.Read(t.Context(), write)
			require.ErrorIs(t, err, fencedb.ErrNoToken, "%s, %s", name, table)
			require.ErrorContains(t, err, "call Write with a grant")
		}
		require.NoError(t, repo.Read(t.Context(), func(d desk) error {
			n, err := d.count(t.Context())
			require.Zero(t, n)
			return err
		}), "%s: its connection can be used again", name)
	}
	require.Empty(t, w.guests())
	require.Empty(t, collect[string](w, `SELECT text FROM notes`))
}

// Whatever fn does with the error, the transaction stays READ ONLY or is aborted.
func TestAReadCannotBeMadeAWrite(t *testing.T) {
	t.Parallel()
	w := newDesk(t)
	simple := w.pool.Config()
	simple.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	strings, err := pgxpool.NewWithConfig(t.Context(), simple)
	require.NoError(t, err)
	t.Cleanup(strings.Close)
	for _, pool := range []*pgxpool.Pool{w.pool, strings} {
		for _, level := range []pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			repo := repository(fencedb.With(pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: level})))
			for _, statement := range []string{
				`SET TRANSACTION READ WRITE`, `SET transaction_read_only = off`,
				`SELECT set_config('transaction_read_only', 'off', true)`,
			} {
				for name, set := range map[string]func(d desk) error{
					"said":      func(d desk) error { return d.set(t.Context(), statement) },
					"swallowed": func(d desk) error { _ = d.set(t.Context(), statement); return nil },
					"undone": func(d desk) error {
						_ = pgx.BeginFunc(t.Context(), d.tx, func(tx pgx.Tx) error { return desk{tx}.set(t.Context(), statement) })
						return nil
					},
				} {
					err := repo.Read(t.Context(), func(d desk) error {
						err := set(d)
						_ = d.note(t.Context(), "a guest")
						return err
					})
					require.Error(t, err, "%s, %s, %s", level, statement, name)
				}
			}
		}
	}
	require.Empty(t, collect[string](w, `SELECT text FROM notes`))
}

// A string of statements can end the READ ONLY transaction and write after it.
func TestAReadCannotBeEndedByItsStatements(t *testing.T) {
	t.Parallel()
	w := newDesk(t)
	const statement = `COMMIT; INSERT INTO notes VALUES ('a guest')`
	for name, send := range map[string]func(tx pgx.Tx) error{
		"exec": func(tx pgx.Tx) error { return desk{tx}.set(t.Context(), statement) },
		"query": func(tx pgx.Tx) error {
			_, err := tx.Query(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
			return err
		},
		"row": func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), statement, pgx.QueryExecModeSimpleProtocol).Scan()
		},
		"batch": func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(`COMMIT`)
			b.Queue(`INSERT INTO notes VALUES ('a guest')`)
			return tx.SendBatch(t.Context(), b).Close()
		},
		"savepoint": func(tx pgx.Tx) error {
			return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error { return desk{tx}.set(t.Context(), statement) })
		},
		"prepared": func(tx pgx.Tx) error {
			if _, err := tx.Prepare(t.Context(), "the end", `COMMIT`); err != nil {
				return err
			}
			if err := (desk{tx}).set(t.Context(), "the end"); err != nil {
				return err
			}
			return desk{tx}.note(t.Context(), "a guest")
		},
		"prepared and swallowed": func(tx pgx.Tx) error {
			if _, err := tx.Prepare(t.Context(), "the very end", `COMMIT`); err != nil {
				return err
			}
			_ = desk{tx}.set(t.Context(), "the very end")
			_ = desk{tx}.note(t.Context(), "a guest")
			return nil
		},
	} {
		err := repository(w.pool).Read(t.Context(), func(d desk) error { return send(d.tx) })
		require.Error(t, err, name)
	}
	require.Empty(t, collect[string](w, `SELECT text FROM notes`))
}

func TestWhatARepositoryReadsIsOfOneMoment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		level pgx.TxIsoLevel
		after int
	}{
		"by default":     {"", 0},
		"read committed": {pgx.ReadCommitted, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDesk(t)
			repo := repository(fencedb.With(w.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: tc.level})))
			var before, after int
			require.NoError(t, repo.Read(t.Context(), func(d desk) (err error) {
				if before, err = d.count(t.Context()); err != nil {
					return err
				}
				err = repository(w.pool).Write(t.Context(), grant("table:12", 41), func(d desk) error { return d.book(t.Context(), 12, "ann") })
				if err != nil {
					return err
				}
				after, err = d.count(t.Context())
				return err
			}))
			require.Equal(t, []int{0, tc.after}, []int{before, after})
		})
	}
}

func TestARepositoryHasTheOptionsOfItsDatabase(t *testing.T) {
	t.Parallel()
	w := newDesk(t)
	repo := repository(fencedb.With(w.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})))
	level := func(d desk) error {
		var now string
		err := d.tx.QueryRow(t.Context(), `SELECT current_setting('transaction_isolation')`).Scan(&now)
		require.Equal(t, "serializable", now)
		return err
	}

	require.NoError(t, repo.Read(t.Context(), level))
	require.NoError(t, repo.Write(t.Context(), grant("table:12", 41), level))

	slow := func(d desk) error {
		_, err := d.tx.Exec(t.Context(), `SELECT pg_sleep(20)`)
		return err
	}
	err := repo.Write(t.Context(), grantFor("table:12", 42, time.Minute), slow, fencedb.Timeout(50*time.Millisecond))
	require.ErrorIs(t, err, fencedb.ErrTooLong, "an option of the call")
}

func TestARepositoryRefusesADatabaseOnWhichNothingCanBegin(t *testing.T) {
	t.Parallel()
	w := newDesk(t)
	closed, busy := w.conn(), w.conn()
	require.NoError(t, closed.Close(t.Context()))
	_, err := busy.Exec(t.Context(), `BEGIN; INSERT INTO notes VALUES ('of the application')`)
	require.NoError(t, err)
	nothing := func(desk) error { panic("it ran") }
	for says, db := range map[string]fencedb.DB{
		"the database is nil":      (*pgxpool.Pool)(nil),
		"does not show its conn":   fencedb.With(counting{DB: w.pool}),
		"the connection is closed": closed,
		"is in a transaction":      busy,
	} {
		require.ErrorContains(t, repository(db).Read(t.Context(), nothing), says)
		write := func(d desk) error { return d.note(t.Context(), "no") }
		require.ErrorContains(t, repository(db).Write(t.Context(), grant("table:12", 41), write), says)
	}
	require.ErrorContains(t, new(fencedb.Repository[desk]).Read(t.Context(), nothing), "the database is nil")
	require.ErrorContains(t, repository(w.pool).Read(t.Context(), nil), "the function is nil")
	require.ErrorContains(t, repository(w.pool).Write(t.Context(), grant("table:12", 41), nil), "the function is nil")

	_, err = busy.Exec(t.Context(), `ROLLBACK`)
	require.NoError(t, err)
	require.Empty(t, collect[string](w, `SELECT text FROM notes`))
}

func TestAReadThatPanicsGivesItsConnectionBack(t *testing.T) {
	t.Parallel()
	w := newDesk(t)

	require.Panics(t, func() {
		_ = repository(w.pool).Read(t.Context(), func(d desk) error {
			_, err := d.count(t.Context())
			require.NoError(t, err)
			panic("a bug")
		})
	})

	w.awaitIdle(w.pool)
}
