package guard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func TestIsUnavailableTellsServersThatAreAwayFromThoseThatRefuse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		away bool
	}{
		"nothing":          {nil, false},
		"shutting down":    {&pgconn.PgError{Code: "57P01"}, true},
		"too many clients": {&pgconn.PgError{Code: "53300"}, true},
		"hung up":          {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		"closed":           {net.ErrClosed, true},
		"no route":         {&net.OpError{Op: "dial", Err: errors.New("no route")}, true},
		"not connected":    {new(pgconn.ConnectError), true},
		"too slow":         {context.DeadlineExceeded, true},
		"given up":         {context.Canceled, true},
		"too long":         {fencedb.ErrTooLong, true},
		"no Redis":         {lease.ErrUnreachable, true},
		"full Redis":       {&lease.RefusedError{Code: "OOM"}, true},
		"a constraint":     {&pgconn.PgError{Code: "23514"}, false},
		"without a code":   {&pgconn.PgError{}, false},
		"no fence":         {fencedb.ErrNoToken, false},
		"a bug":            {errors.New("a bug"), false},
		"lost":             {errors.Join(lease.ErrLost, context.Canceled), false},
		"held too long":    {errors.Join(lease.ErrHeld, context.DeadlineExceeded), false},
		"done":             {fmt.Errorf("%w: %w", lease.ErrWorkDone, lease.ErrUnreachable), false},
		"committed":        {errors.Join(fencedb.ErrCommitted, io.EOF), false},
		"in doubt":         {errors.Join(fencedb.ErrCommitUnknown, io.EOF), false},
		"not recorded":     {fmt.Errorf("%w: %w", once.ErrNotRecorded, lease.ErrUnreachable), false},
		"written before":   {errors.Join(fencedb.ErrAlreadyWritten, context.Canceled), false},
		"given back":       {errors.Join(fencedb.ErrInvalidGrant, context.Canceled), false},
		"ended":            {errors.Join(fencedb.ErrTxEnded, io.EOF), false},
	} {
		require.Equal(t, tc.away, guard.IsUnavailable(tc.err), name)
	}
}

// What is written is told at once, though the lease cannot be released.
func TestARedisThatIsAwayHoldsNobodyUpWhoHasWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := testenv.OwnRedis(t)
	w.config.TTL = 2 * time.Minute
	issuer, err := lease.New(server.Client(), w.config)
	require.NoError(t, err)
	desk := guard.New(issuer, w.pool)
	for name, call := range map[string]func() error{
		"Do": func() error {
			return desk.Do(t.Context(), "table:12", func(context.Context, *guard.Holder) error { server.Pause(); return nil })
		},
		"Tx": func() error {
			return desk.Tx(t.Context(), "table:12", func(context.Context, pgx.Tx) error { server.Pause(); return nil })
		},
		"Query": func() error {
			rows, err := desk.Query(t.Context(), "table:12", insertAnn)
			server.Pause()
			return read(rows, err)
		},
	} {
		begin := time.Now()
		require.NoError(t, call(), name)
		require.Less(t, time.Since(begin), time.Minute, name)
		server.Resume()
	}
}

// Lead has no answer: it goes on until its context ends.
func TestEveryCallSaysThatAServerIsUnavailable(t *testing.T) {
	t.Parallel()
	nowhere, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nothing")
	require.NoError(t, err)
	t.Cleanup(nowhere.Close)
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = away.Close() })
	calls := calls()
	delete(calls, "Lead")
	for name, call := range calls {
		for _, server := range []string{"Postgres", "Redis"} {
			t.Run(name+" without "+server, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				desk := guard.New(w.issuer, nowhere)
				if server == "Redis" {
					w.config.TTL = 500 * time.Millisecond // so long is waited for the answer
					lost, err := lease.New(away, w.config)
					require.NoError(t, err)
					desk = guard.New(lost.With(lease.NoWait()), w.pool)
				}

				err := call(t.Context(), w, desk, insertAnn)

				require.Error(t, err)
				require.True(t, guard.IsUnavailable(err), "%v", err)
				require.Zero(t, w.bookings())
			})
		}
	}
}
