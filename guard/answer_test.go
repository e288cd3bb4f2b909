package guard_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/grant"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func TestAnswer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want guard.Outcome
	}{
		"nothing":               {nil, guard.Done},
		"shutting down":         {&pgconn.PgError{Code: "57P01"}, guard.Unavailable},
		"too many clients":      {&pgconn.PgError{Code: "53300"}, guard.Unavailable},
		"cancelled":             {&pgconn.PgError{Code: "57014"}, guard.Unavailable},
		"on a standby":          {&pgconn.PgError{Code: "25006"}, guard.Unavailable},
		"hung up":               {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), guard.Unavailable},
		"closed":                {net.ErrClosed, guard.Unavailable},
		"closed by pgx":         {fmt.Errorf("fencedb: rolled back: %w", pgconn.ErrConnClosed), guard.Unavailable},
		"closed by the pool":    {driver.ErrBadConn, guard.Unavailable},
		"given back":            {sql.ErrConnDone, guard.Unavailable},
		"no route":              {&net.OpError{Op: "dial", Err: errors.New("no route")}, guard.Unavailable},
		"not connected":         {new(pgconn.ConnectError), guard.Unavailable},
		"too slow":              {context.DeadlineExceeded, guard.Unavailable},
		"given up":              {context.Canceled, guard.Unavailable},
		"full Redis":            {&lease.RefusedError{Code: "OOM"}, guard.Unavailable},
		"no rights in Redis":    {errors.Join(&lease.RefusedError{Code: "NOPERM"}, context.Canceled), guard.Refused},
		"no rights":             {&pgconn.PgError{Code: "42501"}, guard.Refused},
		"a wrong password":      {errors.Join(new(pgconn.ConnectError), &pgconn.PgError{Code: "28P01"}), guard.Refused},
		"no database":           {errors.Join(new(pgconn.ConnectError), &pgconn.PgError{Code: "3D000"}), guard.Refused},
		"a dropped database":    {&pgconn.PgError{Code: "57P04"}, guard.Refused},
		"too long":              {errors.Join(fencedb.ErrTooLong, context.DeadlineExceeded), guard.Refused},
		"a constraint":          {&pgconn.PgError{Code: "23514"}, guard.Refused},
		"without a code":        {&pgconn.PgError{}, guard.Refused},
		"a bug":                 {errors.New("a bug"), guard.Refused},
		"a malformed line":      {grant.ErrMalformed, guard.Refused},
		"a conflict":            {&pgconn.PgError{Code: "40001"}, guard.Busy},
		"a deadlock":            {&pgconn.PgError{Code: "40P01"}, guard.Busy},
		"no lock":               {&pgconn.PgError{Code: "55P03"}, guard.Busy},
		"lost":                  {errors.Join(lease.ErrLost, context.Canceled), guard.Busy},
		"held too long":         {errors.Join(lease.ErrHeld, context.DeadlineExceeded), guard.Busy},
		"done":                  {fmt.Errorf("%w: %w", lease.ErrWorkDone, lease.ErrUnreachable), guard.Done},
		"committed":             {errors.Join(fencedb.ErrCommitted, io.EOF), guard.Done},
		"no row":                {errors.Join(fencedb.ErrCommitted, pgx.ErrNoRows), guard.Refused},
		"not recorded":          {fmt.Errorf("%w: %w", once.ErrNotRecorded, lease.ErrUnreachable), guard.Done},
		"in doubt":              {errors.Join(fencedb.ErrCommitUnknown, io.EOF), guard.Unknown},
		"in doubt, and lost":    {errors.Join(lease.ErrExpired, fencedb.ErrCommitUnknown), guard.Unknown},
		"ended":                 {errors.Join(fencedb.ErrTxEnded, io.EOF), guard.Unknown},
		"settled by a stranger": {settledElsewhere{}, guard.Unknown},

		"a conflict, in lib/pq":     {fmt.Errorf("pay: %w", ofPQ("40001")), guard.Busy},
		"a constraint, in lib/pq":   {ofPQ("23514"), guard.Refused},
		"a conflict, in pgdriver":   {fmt.Errorf("pay: %w", ofPgdriver("40001")), guard.Busy},
		"a constraint, in pgdriver": {ofPgdriver("23514"), guard.Refused},

		"a bank that refuses":                   {call(&net.OpError{Op: "dial", Err: errors.New("refused")}), guard.Unavailable},
		"a bank without an address":             {call(&net.DNSError{}), guard.Unavailable},
		"a bank that hangs up":                  {call(io.EOF), guard.Unavailable},
		"a bank that takes too long":            {call(context.DeadlineExceeded), guard.Unavailable},
		"a bank that is too slow":               {call(tooSlow{}), guard.Unavailable},
		"a bank that closed an idle connection": {call(errors.New("http: server closed idle connection")), guard.Unavailable},
		"a bank of nobody":                      {call(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), guard.Refused},
	} {
		require.Equal(t, tc.want, guard.Answer(tc.err), name)
	}
	const strange = "of somebody else's" // which may say anything
	for name, v := range verdicts {
		require.Equal(t, v.answer, guard.Answer(v.err), name)
		for other, w := range verdicts { // the first in this order decides
			order := []guard.Outcome{guard.Unknown, guard.Refused, guard.Done, guard.Busy, guard.Unavailable}
			if v.err == nil || w.err == nil || name == strange || other == strange {
				continue
			}
			first := min(slices.Index(order, v.answer), slices.Index(order, w.answer))
			require.Equal(t, order[first], guard.Answer(fmt.Errorf("pay: %w", errors.Join(v.err, w.err))), "%s with %s", name, other)
		}
	}
}

type settledElsewhere struct{}

func (settledElsewhere) LeaseLost() bool { return false }
func (settledElsewhere) Error() string   { return "may have been done" }

type ofPQ string

func (e ofPQ) SQLState() string { return string(e) }
func (e ofPQ) Error() string    { return "pq: refused" }

type ofPgdriver string

func (e ofPgdriver) Field(letter byte) string { return map[byte]string{'C': string(e)}[letter] }
func (e ofPgdriver) Error() string            { return "pgdriver: refused" }

func call(err error) error { return &url.Error{Op: "Post", URL: "https://bank/charge", Err: err} }

type tooSlow struct{}

func (tooSlow) Timeout() bool   { return true }
func (tooSlow) Temporary() bool { return true }
func (tooSlow) Error() string   { return "handshake timeout" }

// A context that is over is an outage, also where the caller gave an error of its own as the cause.
func TestTheCauseOfAContextIsNoMistake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := stdlib.OpenDBFromPool(w.pool)
	t.Cleanup(func() { _ = db.Close() })
	errOwn := errors.New("the request was withdrawn")
	calls := calls()
	delete(calls, "Lead")
	for name, call := range calls {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOwn)
		err := call(ctx, w, w.desk, insertAnn)
		require.ErrorIs(t, err, errOwn, name)
		require.Equal(t, guard.Unavailable, guard.Answer(err), "%s: %v", name, err)
	}
	for name, call := range map[string]func(ctx context.Context, h *guard.Holder, cancel func()) error{
		"before Exec": func(ctx context.Context, h *guard.Holder, cancel func()) error {
			cancel()
			_, err := h.Exec(ctx, insertAnn)
			return err
		},
		"before Tx": func(ctx context.Context, h *guard.Holder, cancel func()) error {
			cancel()
			return h.Tx(ctx, func(pgx.Tx) error { return nil })
		},
		"before COMMIT": func(ctx context.Context, h *guard.Holder, cancel func()) error {
			return h.Tx(ctx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, insertAnn); cancel(); return err })
		},
		"before TxSQL": func(ctx context.Context, h *guard.Holder, cancel func()) error {
			cancel()
			return h.TxSQL(ctx, db, func(*sql.Tx) error { return nil })
		},
		"before COMMIT in database/sql": func(ctx context.Context, h *guard.Holder, cancel func()) error {
			return h.TxSQL(ctx, db, func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, insertAnn); cancel(); return err })
		},
		"before AwaitReplay": func(ctx context.Context, h *guard.Holder, cancel func()) error {
			cancel()
			return fencedb.AwaitReplay(ctx, w.pool, h.Grant())
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := w.desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
			return call(ctx, h, func() { cancel(errOwn) })
		})
		cancel(nil)
		require.ErrorIs(t, err, errOwn, name)
		require.Equal(t, guard.Unavailable, guard.Answer(err), "%s: %v", name, err)
	}
	require.Zero(t, w.bookings())
}

// So a program ends: it closes its pools while calls are under way.
func TestAPoolThatIsClosedIsAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := stdlib.OpenDBFromPool(w.pool)
	require.NoError(t, db.Close())
	closed := func(ctx context.Context, h *guard.Holder) error {
		return h.TxSQL(ctx, db, func(*sql.Tx) error { return nil })
	}
	err := w.desk.Do(t.Context(), "table:12", closed)
	require.Equal(t, guard.Unavailable, guard.Answer(err), "%v", err)

	pool, err := pgxpool.NewWithConfig(t.Context(), w.pool.Config())
	require.NoError(t, err)
	pool.Close()
	desk := guard.New(w.issuer, pool)
	calls := calls()
	delete(calls, "Lead")
	for name, call := range calls {
		err := call(t.Context(), w, desk, insertAnn)
		require.Equal(t, guard.Unavailable, guard.Answer(err), "%s: %v", name, err)
	}
}

func TestWhenToTryAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err   error
		after time.Duration
	}{
		"held":        {fmt.Errorf("book: %w", &lease.HeldError{RetryAfter: 3 * time.Second}), 3 * time.Second},
		"waited":      {&lease.HeldError{Cause: context.DeadlineExceeded}, time.Second},
		"in flight":   {&once.InFlightError{RetryAfter: 2 * time.Second}, 2 * time.Second},
		"stale":       {fencedb.ErrStale, time.Second},
		"unavailable": {lease.ErrUnreachable, time.Second},
		"unknown":     {fencedb.ErrCommitUnknown, 0},
		"refused":     {errors.New("a bug"), 0},
		"done":        {nil, 0},
	} {
		require.Equal(t, tc.after, guard.RetryAfter(tc.err), name)
	}
}

// What is written is told at once, though the lease cannot be released.
func TestARedisThatIsAwayHoldsNobodyUpWhoHasWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := testenv.OwnRedis(t)
	w.config.TTL = 8 * time.Second
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
		took := testenv.Stopwatch(t)
		require.NoError(t, call(), name)
		require.Less(t, took(), 4*time.Second, name)
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
				require.Equal(t, guard.Unavailable, guard.Answer(err), "%v", err)
				require.Zero(t, w.bookings())
			})
		}
	}
}

// Before COMMIT a transaction is lost with its connection, whatever it was asked for next.
func TestALostConnectionIsAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := faulty.NewPostgresProxy(t, w.pool.Config().ConnString())
	pool, err := pgxpool.New(t.Context(), proxy.URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	t.Cleanup(proxy.Sever)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	repository := fencedb.NewRepository(pool, func(tx pgx.Tx) pgx.Tx { return tx })
	var armed atomic.Bool
	proxy.OnClient(func(pgproto3.FrontendMessage) faulty.Fate {
		if armed.Swap(false) {
			return faulty.Cut
		}
		return faulty.Pass
	})
	next := map[string]string{"at COMMIT": "", "at the next statement": `SELECT 1`}
	for place, statement := range next {
		in := func(ctx context.Context, tx pgx.Tx) error {
			armed.Store(true)
			if statement == "" {
				return nil
			}
			_, err := tx.Exec(ctx, statement)
			return err
		}
		inSQL := func(tx *sql.Tx) error {
			armed.Store(true)
			if statement == "" {
				return nil
			}
			_, err := tx.ExecContext(t.Context(), statement)
			return err
		}
		for name, call := range map[string]func(ctx context.Context, h *guard.Holder) error{
			"Tx": func(ctx context.Context, h *guard.Holder) error {
				return h.Tx(ctx, func(tx pgx.Tx) error { return in(ctx, tx) })
			},
			"TxSQL": func(ctx context.Context, h *guard.Holder) error { return h.TxSQL(ctx, db, inSQL) },
			"Write": func(ctx context.Context, h *guard.Holder) error {
				return repository.Write(ctx, h.Grant(), func(tx pgx.Tx) error { return in(ctx, tx) })
			},
			"Read": func(ctx context.Context, _ *guard.Holder) error {
				return repository.Read(ctx, func(tx pgx.Tx) error { return in(ctx, tx) })
			},
			"BeginFunc": func(ctx context.Context, _ *guard.Holder) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return in(ctx, tx) })
			},
			"BeginTx": func(ctx context.Context, _ *guard.Holder) error {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				if err := inSQL(tx); err != nil {
					return errors.Join(err, tx.Rollback())
				}
				return tx.Commit()
			},
		} {
			err := guard.New(w.issuer, pool).Do(t.Context(), "table:12", call)
			require.Error(t, err, "%s, %s", name, place)
			require.Equal(t, guard.Unavailable, guard.Answer(err), "%s, %s: %v", name, place, err)
		}
	}

	err = guard.New(w.issuer, pool).Do(t.Context(), "table:12", func(ctx context.Context, h *guard.Holder) error {
		return h.TxSQL(ctx, db, func(tx *sql.Tx) error {
			_, err := tx.QueryContext(ctx, `SELECT 1`)
			return err
		})
	})
	require.Equal(t, guard.Refused, guard.Answer(err), "rows that were left open: %v", err)
}
