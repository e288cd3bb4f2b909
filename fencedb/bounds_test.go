package fencedb_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// S7. The holder stops in the middle of its transaction, as in a long GC pause, and keeps its connection open.
func TestAStoppedHolderDelaysTheNextByNoMoreThanItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const validity = time.Second
	stopped, resume := make(chan time.Time), make(chan struct{})
	zombie := make(chan error, 1)
	go func() {
		zombie <- fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, validity), func(tx pgx.Tx) error {
			if err := book(t.Context(), tx, 12, "ann"); err != nil {
				return err
			}
			stopped <- time.Now()
			<-resume
			return nil
		})
	}()
	since := <-stopped

	err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 42, 10*time.Second), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ben")
	})

	require.NoError(t, err)
	require.Less(t, time.Since(since), validity+time.Second)
	close(resume)
	require.ErrorIs(t, received(t, zombie), fencedb.ErrLeaseOver)
	require.Equal(t, []string{"ben"}, w.guests())
}

// Transactions of one lease share the fence, and a new one need not wait behind a newcomer who wants it alone. So they could
// keep it out for as long as they come; but they come for no longer than the lease is valid.
func TestAStreamOfTransactionsDelaysTheNextByNoMoreThanTheirLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const validity = time.Second
	old := grantFor("table:12", 41, validity)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, old))
	start := time.Now()
	ended := make(chan error)
	for range 3 {
		go func() {
			for {
				err := fencedb.Tx(t.Context(), w.pool, old, func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") })
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grantFor("table:12", 42, 10*time.Second)))

	require.Less(t, time.Since(start), validity+time.Second)
	for range 3 {
		err := received(t, ended)
		require.True(t, errors.Is(err, fencedb.ErrStale) || errors.Is(err, fencedb.ErrLeaseOver), "%v", err)
	}
}

func TestAStatementEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := time.Now()

	err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, 300*time.Millisecond), func(tx pgx.Tx) error {
		if err := book(t.Context(), tx, 12, "ann"); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `SELECT pg_sleep(60)`)
		return err
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.Less(t, time.Since(start), 30*time.Second)
	require.Empty(t, w.guests())
}

func TestAContextThatEndsWithTheLeaseSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grantFor("table:12", 41, 300*time.Millisecond)
	ctx, cancel := context.WithDeadline(t.Context(), g.(interface{ ValidUntil() time.Time }).ValidUntil())
	defer cancel()

	err := fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
		return err
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver, "whether the context or the server ended it")
}

func TestHoldReplacesTheRemainingValidity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	timeout := func(opts ...fencedb.Option) (setting string) {
		err := fencedb.Tx(t.Context(), w.pool, grantFor("table:12", 41, time.Minute), func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&setting)
		}, opts...)
		require.True(t, err == nil || setting != "", "%v", err)
		return setting
	}

	require.Regexp(t, `^(59\d\d\dms|1min)$`, timeout())
	w.exec(`DELETE FROM fencedb.fences`)
	require.Regexp(t, `^(359\d\d\d\dms|1h)$`, timeout(fencedb.Hold(time.Hour)))
}

// The settings go back with the transaction: a pooled connection must not carry them to its next user.
func TestTheBoundsEndWithTheTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn := w.conn()

	_, err := fencedb.Exec(t.Context(), conn, grantFor("table:12", 41, time.Minute), `SELECT 1`)
	require.NoError(t, err)

	var lock, idle, entered string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_setting('lock_timeout'),
		current_setting('idle_in_transaction_session_timeout'), current_setting('fencedb.granted')`).Scan(&lock, &idle, &entered))
	require.Equal(t, []string{"0", "0", ""}, []string{lock, idle, entered})
}

func TestANewcomerThatCannotGetTheFenceLearnsWhoHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, g := range map[string]fencedb.Grant{"first": grant("table:12", 41), "shared": nil} {
		if g == nil {
			g = grant("table:13", 41)
			require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
		}
		blocker := w.holder(g).enter()

		newcomer := grantFor(g.Resource(), 42, 200*time.Millisecond)
		err := fencedb.Seal(t.Context(), w.pool, newcomer)

		var busy *fencedb.BusyError
		require.ErrorAs(t, err, &busy, name)
		require.ErrorIs(t, err, fencedb.ErrBusy)
		require.Equal(t, []string{g.Resource()}, busy.Resources)
		require.Len(t, busy.Blockers, 1, name)
		require.EqualValues(t, blocker.conn.PgConn().PID(), busy.Blockers[0].PID)
		require.Equal(t, "idle in transaction", busy.Blockers[0].State)
		require.Contains(t, err.Error(), "idle in transaction")
		blocker.commit()
		require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant(g.Resource(), 42)))
	}
}

func TestAnExpiredGrantIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool.Close()
	expired := grantFor("table:12", 41, -time.Second)

	err := fencedb.Tx(t.Context(), w.pool, expired, func(tx pgx.Tx) error {
		return book(t.Context(), tx, 12, "ann")
	})

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	_, err = fencedb.Exec(t.Context(), w.pool, expired, `SELECT 1`)
	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	err = fencedb.Tx(t.Context(), w.pool, expired, func(tx pgx.Tx) error { return nil }, fencedb.Hold(time.Hour))
	require.ErrorIs(t, err, fencedb.ErrLeaseOver, "Hold is for transactions that begin within the lease")
}
