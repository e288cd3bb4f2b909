package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// Read, charge, write, as the README shows. One seller is stopped between the charge and its first
// transaction, for longer than its lease lasts; it wakes when the next one has read. Sealed, it is
// refused. Unsealed, the last piece is sold twice.
func TestAStoppedSellerSellsNothingTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []guard.Option
		sold int
	}{"sealed": {nil, 1}, "unsealed": {[]guard.Option{guard.Unsealed()}, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, err := w.pool.Exec(t.Context(), `CREATE TABLE stock (sku int PRIMARY KEY, pieces int NOT NULL);
				INSERT INTO stock VALUES (3, 1); SELECT fencedb.protect('stock', 'sku:{sku}')`)
			require.NoError(t, err)
			leases := fencedbtest.NewIssuer(t, lease.Config{})
			postgres := fencedbtest.NewPostgres(t, w.pool.Config().ConnString())
			slow, err := pgxpool.New(t.Context(), postgres.URL())
			require.NoError(t, err)
			t.Cleanup(slow.Close)

			sell := func(pool *pgxpool.Pool, charge func()) error {
				return guard.New(leases.Issuer, pool, c.opts...).Do(t.Context(), "sku:3", func(ctx context.Context, h *guard.Holder) error {
					var left int
					if err := pool.QueryRow(ctx, `SELECT pieces FROM stock WHERE sku = 3`).Scan(&left); err != nil {
						return err
					}
					if left == 0 {
						return errSoldOut
					}
					charge()
					return h.Tx(ctx, func(tx pgx.Tx) error {
						_, err := tx.Exec(ctx, `UPDATE stock SET pieces = $1 WHERE sku = 3`, left-1)
						return err
					})
				})
			}
			charged, awake, next := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			postgres.Pause("UPDATE stock", func() {
				fencedbtest.Expire(t, leases, "sku:3")
				go func() { next <- sell(w.pool, func() { close(charged); <-awake }) }()
				<-charged
			})

			stopped := sell(slow, func() {})
			close(awake)

			sold := 0
			for _, err := range []error{stopped, <-next} {
				if err == nil {
					sold++
				}
			}
			require.Equal(t, c.sold, sold)
			if c.sold == 1 {
				fencedbtest.Refused(t, stopped)
			}
		})
	}
}

// desk.Tx needs no seal, Do does if it reads first, and a read is seen by nobody: so the events of
// both are the same without a seal, and no server can tell who should have sealed.
func TestNobodySeesWhoReadBeforeItWrote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	heard := &ends{}
	w.config.Tracers = []lease.Tracer{heard}
	issuer, err := lease.New(w.redis, w.config)
	require.NoError(t, err)
	db := fencedb.With(w.pool, fencedb.Trace(heard))
	do := func(desk *guard.Desk) error {
		return desk.Do(t.Context(), "table:12", func(ctx context.Context, h *guard.Holder) error {
			read := w.bookings()
			return h.Tx(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO bookings VALUES (12, $1)`, fmt.Sprint("guest ", read))
				return err
			})
		})
	}

	require.NoError(t, guard.New(issuer, db).Tx(t.Context(), "table:12", w.insert))
	unread := heard.take(t)
	require.NoError(t, do(guard.New(issuer, db, guard.Unsealed())))
	require.Equal(t, unread, heard.take(t))

	require.NoError(t, do(guard.New(issuer, db)))
	require.NotEqual(t, unread, heard.take(t), "a seal is heard, where there is one")
}

// ends are those of an acquisition, its lease and its writes, in order.
type ends struct {
	mu    sync.Mutex
	heard []string // guarded by mu
}

func (e *ends) note(op, outcome string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, op+" "+outcome)
}

// take waits until the lease has ended.
func (e *ends) take(t *testing.T) (heard []string) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !slices.Contains(e.heard, "hold released") {
			return false
		}
		heard, e.heard = e.heard, nil
		return true
	}, time.Minute, time.Millisecond)
	return heard
}

func (e *ends) TraceLeaseStart(ctx context.Context, _ lease.TraceStart) context.Context { return ctx }

func (e *ends) TraceLeaseEnd(_ context.Context, end lease.TraceEnd) {
	switch end.Op {
	case lease.OpExtend, lease.OpRelease: // when they end depends on how fast this machine is
	default:
		e.note(string(end.Op), end.Outcome())
	}
}

func (e *ends) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context { return ctx }

func (e *ends) TraceWriteEnd(_ context.Context, end fencedb.TraceEnd) {
	e.note(string(end.Op), end.Outcome())
}

// As many functions as the pool has connections, here one, acquire or write within their
// transactions: nobody gets another connection. The error names the pool, also if the acquisition
// would wait.
func TestAnAcquisitionWithinATransactionNamesThePool(t *testing.T) {
	t.Parallel()
	for name, call := range calls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			config := w.pool.Config().Copy()
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			w.pool = pool
			outer, err := lease.New(w.redis, w.config)
			require.NoError(t, err)
			w.config.TTL = 2 * time.Second // so long one waits to seal
			issuer, err := lease.New(w.redis, w.config)
			require.NoError(t, err)
			desk := guard.New(issuer, w.pool)

			var within error
			err = guard.New(outer, w.pool).Do(t.Context(), "table:13:bill", func(ctx context.Context, h *guard.Holder) error {
				return h.Tx(ctx, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `SELECT`)
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // so long one waits to write; more than to seal
					defer cancel()
					within = errors.Join(err, call(ctx, w, desk, insertAnn))
					return nil
				})
			})

			require.NoError(t, err)
			require.ErrorContains(t, within, "1 of 1 connections of the pool are in use; acquire leases before you open a transaction")
			require.False(t, lease.IsLost(within), "%v", within)
		})
	}
}
