package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// An order service on its way from a lock of another library to leases and fences:
// docs/adopting.md shows this code.

const ttl = 10 * time.Second

// Shop sells what is in stock.
type Shop struct {
	pool   *pgxpool.Pool
	locker *redislock.Client
	rs     *redsync.Redsync
	desk   *guard.Desk
	pay    func() // while the customer pays, between what was read and what is written
}

var errSoldOut = errors.New("sold out")

func (s *Shop) sell(ctx context.Context, tx pgx.Tx, sku string) error {
	var left int
	if err := tx.QueryRow(ctx, `SELECT amount FROM stock WHERE sku = $1`, sku).Scan(&left); err != nil {
		return err
	}
	if left <= 0 {
		return errSoldOut
	}
	s.pay()
	_, err := tx.Exec(ctx, `UPDATE stock SET amount = $2 WHERE sku = $1`, sku, left-1)
	return err
}

// Order, as it was.
func (s *Shop) OrderUnderRedislock(ctx context.Context, sku string) error {
	lock, err := s.locker.Obtain(ctx, "lock:sku:"+sku, ttl, nil)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.sell(ctx, tx, sku) })
}

// The same with the other library.
func (s *Shop) OrderUnderRedsync(ctx context.Context, sku string) error {
	mutex := s.rs.NewMutex("lock:sku:"+sku, redsync.WithExpiry(ttl))
	if err := mutex.TryLockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.sell(ctx, tx, sku) })
}

// Order, as it will be.
func (s *Shop) Order(ctx context.Context, sku string) error {
	return s.desk.Do(ctx, "sku:"+sku, func(ctx context.Context, h *guard.Holder) error {
		var left int
		if err := s.pool.QueryRow(ctx, `SELECT amount FROM stock WHERE sku = $1`, sku).Scan(&left); err != nil {
			return err
		}
		if left <= 0 {
			return errSoldOut
		}
		s.pay() // with a key that stays the same: if the write is refused, the customer has paid
		_, err := h.Exec(ctx, `UPDATE stock SET amount = $2 WHERE sku = $1`, sku, left-1)
		return err
	}, lease.NoWait())
}

// Order under both locks, while old instances run.
func (s *Shop) OrderUnderRedislockAndLease(ctx context.Context, sku string) error {
	asked := time.Now()
	lock, err := s.locker.Obtain(ctx, "lock:sku:"+sku, ttl, nil)
	if err != nil {
		return err
	}
	refresh := func(ctx context.Context) error { return lock.Refresh(ctx, ttl, nil) }
	return underOldLock(ctx, asked, refresh, lock.Release, func(ctx context.Context) error { return s.Order(ctx, sku) })
}

// The same with the other library.
func (s *Shop) OrderUnderRedsyncAndLease(ctx context.Context, sku string) error {
	asked := time.Now()
	mutex := s.rs.NewMutex("lock:sku:"+sku, redsync.WithExpiry(ttl))
	if err := mutex.TryLockContext(ctx); err != nil {
		return err
	}
	extend := func(ctx context.Context) error { _, err := mutex.ExtendContext(ctx); return err }
	unlock := func(ctx context.Context) error { _, err := mutex.UnlockContext(ctx); return err }
	return underOldLock(ctx, asked, extend, unlock, func(ctx context.Context) error { return s.Order(ctx, sku) })
}

var errOldLockLost = errors.New("the old lock could not be renewed in time")

// underOldLock does work under a lock that lasts for ttl from when it was asked for. It renews the
// lock meanwhile, ends the context of the work before the lock ends, and releases the lock last.
func underOldLock(ctx context.Context, asked time.Time, renew, release, work func(context.Context) error) error {
	working, end := context.WithCancelCause(ctx)
	lost := time.AfterFunc(time.Until(asked.Add(ttl*9/10)), func() { end(errOldLockLost) })
	var renewing sync.WaitGroup
	renewing.Go(func() {
		ticks := time.NewTicker(ttl / 3)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
			case <-working.Done():
				return
			}
			asked := time.Now()
			attempt, cancel := context.WithTimeout(working, ttl/6)
			if renew(attempt) == nil {
				lost.Reset(time.Until(asked.Add(ttl * 9 / 10)))
			}
			cancel()
		}
	})
	defer func() {
		end(nil)
		renewing.Wait()
		lost.Stop()
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
		defer cancel()
		_ = release(releasing) // if it fails, the lock expires
	}()
	return work(working)
}

// version is one of the service, as it is deployed.
type version string

const (
	before version = "the old lock"
	both   version = "both locks"
	after  version = "the lease"
)

var versions = []version{before, both, after}

// street is a shop in all versions, on real servers.
type street struct {
	*testing.T
	client    *redis.Client
	pool      *pgxpool.Pool
	old       string // the library
	space     string // so that its locks are not those of other tests
	issuer    *lease.Issuer
	skus      int // in use
	instances [3]instance
	served    atomic.Int64 // orders that the table let in or refused
}

func newStreet(t *testing.T, old string) *street {
	t.Helper()
	w := &street{
		T: t, client: testenv.Redis(t), pool: testenv.Postgres(t), old: old,
		space: testenv.Namespace(t),
	}
	var err error
	w.issuer, err = lease.New(w.client, lease.Config{TTL: ttl})
	require.NoError(t, err)
	w.exec(`CREATE TABLE stock (sku text PRIMARY KEY, amount int NOT NULL); INSERT INTO stock SELECT '` + w.space + `' || i, 1 FROM generate_series(1, 100) i`)
	return w
}

func (w *street) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err, sql)
}

// order is one order with an instance of a version.
func (w *street) order(ctx context.Context, v version, sku string, pay func()) error {
	s := &Shop{
		pool: w.pool, locker: redislock.New(w.client), rs: redsync.New(goredis.NewPool(w.client)),
		desk: guard.New(w.issuer, w.pool), pay: pay,
	}
	switch {
	case v == after:
		return s.Order(ctx, sku)
	case v == both && w.old == "redsync":
		return s.OrderUnderRedsyncAndLease(ctx, sku)
	case v == both:
		return s.OrderUnderRedislockAndLease(ctx, sku)
	case w.old == "redsync":
		return s.OrderUnderRedsync(ctx, sku)
	}
	return s.OrderUnderRedislock(ctx, sku)
}

func busy(err error) bool {
	taken := (*redsync.ErrTaken)(nil)
	return errors.Is(err, redislock.ErrNotObtained) || errors.As(err, &taken) || lease.IsLost(err)
}

// next is a kind of which there is one piece.
func (w *street) next() string {
	w.skus++
	return w.space + strconv.Itoa(w.skus)
}

func (w *street) left(sku string) (amount int) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT amount FROM stock WHERE sku = $1`, sku).Scan(&amount))
	return amount
}

// The states of the table, in the order of the guide, and what leads to each.
var states = []struct{ name, sql string }{
	{"unprotected", `SELECT 1`},
	{"observed", `SELECT fencedb.protect('stock', 'sku:{sku}', mode => 'observe')`},
	{"enforced", `SELECT fencedb.enforce('stock')`},
}

// deferred is an order whose customer pays until it is told to go on.
type deferred struct {
	goOn chan struct{}
	done chan error
}

func (w *street) begin(v version, sku string) *deferred {
	w.Helper()
	d, paying := &deferred{make(chan struct{}), make(chan error, 1)}, make(chan struct{})
	go func() { d.done <- w.order(w.Context(), v, sku, func() { close(paying); <-d.goOn }) }()
	select {
	case <-paying:
	case err := <-d.done:
		require.NoError(w, err)
	}
	return d
}

func (d *deferred) end() error {
	close(d.goOn)
	return <-d.done
}

func immediately() {}

// Which versions may run side by side: one customer has decided and pays while another instance
// gets the next order. All pairs, in each state of the table. Only an old instance beside one with
// the lease alone sells what is gone.
func TestWhichVersionsMayRunSideBySide(t *testing.T) {
	t.Parallel()
	for _, library := range []string{"redislock", "redsync"} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			w := newStreet(t, library)
			for _, state := range states {
				w.exec(state.sql)
				for _, first := range versions {
					for _, second := range versions {
						w.sideBySide(state.name, first, second)
					}
				}
			}
		})
	}
}

func (w *street) sideBySide(state string, first, second version) {
	w.Helper()
	name := fmt.Sprintf("%s: %s, then %s", state, first, second)
	excluded := first == second || first == both || second == both
	sku, sold := w.next(), 0
	count := func(v version, err error) {
		switch {
		case err == nil:
			sold++
		case errors.Is(err, errSoldOut):
		default:
			require.ErrorIs(w, fencedb.Explain(err), fencedb.ErrNoToken, name)
			require.True(w, state == "enforced" && v == before, name)
		}
	}

	paying := w.begin(first, sku)
	err := w.order(w.Context(), second, sku, immediately)
	if excluded {
		require.True(w, busy(err), "%s: %v", name, err)
	} else {
		count(second, err)
	}
	count(first, paying.end())
	if excluded {
		count(second, w.order(w.Context(), second, sku, immediately))
	}

	if excluded || state == "enforced" {
		require.Equal(w, 1, sold+w.left(sku), name)
	} else {
		require.Equal(w, 2, sold, name) // and there was one
	}
}

// The old version takes no lock but that of the row. It excludes a new one that keeps its SELECT
// ... FOR UPDATE in the transaction of the desk. One without it has read before the old one
// commits, so both sell the last piece.
func TestAVersionThatLocksTheRowExcludesOneThatLocksItToo(t *testing.T) {
	t.Parallel()
	w := newStreet(t, "")
	w.exec(states[1].sql)
	desk := guard.New(w.issuer, w.pool)
	sell := func(tx pgx.Tx, sku, lock string, pay func()) error {
		var left int
		if err := tx.QueryRow(t.Context(), `SELECT amount FROM stock WHERE sku = $1`+lock, sku).Scan(&left); err != nil {
			return err
		}
		if left <= 0 {
			return errSoldOut
		}
		pay()
		_, err := tx.Exec(t.Context(), `UPDATE stock SET amount = $2 WHERE sku = $1`, sku, left-1)
		return err
	}
	for lock, want := range map[string]error{" FOR UPDATE": errSoldOut, "": nil} {
		sku := w.next()
		paying, paid := make(chan struct{}), make(chan struct{})
		results := make(chan error, 1)
		go func() {
			results <- pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
				return sell(tx, sku, " FOR UPDATE", func() { close(paying); <-paid })
			})
		}()
		<-paying
		later := make(chan error, 1)
		go func() {
			later <- desk.Tx(t.Context(), "sku:"+sku, func(_ context.Context, tx pgx.Tx) error {
				return sell(tx, sku, lock, immediately)
			})
		}()
		require.Eventually(t, func() bool {
			var waits bool
			err := w.pool.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waits)
			return err == nil && waits
		}, time.Minute, time.Millisecond)
		close(paid)

		require.NoError(t, <-results)
		require.ErrorIs(t, <-later, want, "with %q", lock)
		require.Zero(t, w.left(sku))
	}
}

// A lock that runs out while the customer pays. The old instance then writes over what its
// successor has sold, until the table refuses it.
func TestAnOldInstanceThatWakesLateIsRefusedOnceTheTableIsEnforced(t *testing.T) {
	t.Parallel()
	for _, library := range []string{"redislock", "redsync"} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			w := newStreet(t, library)
			for _, state := range states {
				w.exec(state.sql)
				for _, successor := range []version{both, after} {
					sku := w.next()
					late := w.begin(before, sku)
					require.EqualValues(t, 1, w.client.Del(t.Context(), "lock:sku:"+sku).Val())
					require.NoError(t, w.order(t.Context(), successor, sku, immediately))

					err := late.end()

					if state.name == "enforced" {
						require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrNoToken, successor)
					} else {
						require.NoError(t, err, "%s: sold twice", successor)
					}
					require.Zero(t, w.left(sku))
				}
			}
		})
	}
}

// Three instances are replaced one after the other while customers order. Where the steps of the
// deployment and those of the table meet in another order than that of the guide, old instances are
// refused, and nothing is sold twice.
func TestARollingDeploymentSellsNothingTwice(t *testing.T) {
	t.Parallel()
	deploy := []step{roll(both), roll(after)}
	protect := []step{{"observed", state(1)}, {"enforced", state(2)}}
	back := []step{{"observed again", func(w *street) { w.exec(`SELECT fencedb.enforce('stock', observing => true)`) }}, roll(both), roll(before)}
	for _, steps := range interleavings(deploy, protect) {
		t.Run(names(steps), func(t *testing.T) {
			t.Parallel()
			w := newStreet(t, "redislock")
			refused := w.underLoad(append(steps, back...))

			require.Equal(t, strings.Index(names(steps), "enforced") < strings.Index(names(steps), string(both)), refused > 0)
		})
	}
}

// step changes the table or the instances.
type step struct {
	name string
	take func(w *street)
}

func state(n int) func(*street) { return func(w *street) { w.exec(states[n].sql) } }

// instance is one process of the service.
type instance struct {
	mu      sync.RWMutex // read while it serves
	version version
}

// roll replaces the instances one by one, and lets customers come in between.
func roll(to version) step {
	return step{string(to), func(w *street) {
		for n := range w.instances {
			w.instances[n].mu.Lock()
			w.instances[n].version = to
			w.instances[n].mu.Unlock()
			w.customers()
		}
	}}
}

func names(steps []step) string {
	all := make([]string, len(steps))
	for n, s := range steps {
		all[n] = s.name
	}
	return strings.Join(all, ", ")
}

// interleavings are all orders of a and b in which each keeps its own.
func interleavings(a, b []step) (all [][]step) {
	if len(a) == 0 || len(b) == 0 {
		return [][]step{slices.Concat(a, b)}
	}
	for _, rest := range interleavings(a[1:], b) {
		all = append(all, slices.Concat(a[:1], rest))
	}
	for _, rest := range interleavings(a, b[1:]) {
		all = append(all, slices.Concat(b[:1], rest))
	}
	return all
}

// underLoad takes the steps while customers order from all instances, and says how many orders the
// table has refused. The books must be right: each of them reads, decides and writes.
func (w *street) underLoad(steps []step) (refused int64) {
	w.Helper()
	const initial = 1000000
	sku := w.next()
	w.exec(`UPDATE stock SET amount = $2 WHERE sku = $1`, sku, initial)
	var sold, refusals atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for n := range w.instances {
		w.instances[n].version = before
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w.instances[n].mu.RLock()
				err := w.order(w.Context(), w.instances[n].version, sku, runtime.Gosched)
				w.instances[n].mu.RUnlock()
				switch {
				case err == nil:
					sold.Add(1)
				case errors.Is(fencedb.Explain(err), fencedb.ErrNoToken):
					refusals.Add(1)
				case busy(err):
					continue // thirty of these pass while one order waits for the table
				default:
					assert.NoError(w, err)
					return
				}
				w.served.Add(1)
			}
		})
	}
	w.customers()
	for _, s := range steps {
		s.take(w)
		w.customers()
	}
	close(stop)
	all.Wait()
	require.EqualValues(w, initial, sold.Load()+int64(w.left(sku)))
	return refusals.Load()
}

// customers waits until the table has let thirty more orders in, or refused them.
func (w *street) customers() {
	w.Helper()
	want := w.served.Load() + 30
	require.Eventually(w, func() bool { return w.served.Load() >= want || w.Failed() }, time.Minute, time.Millisecond)
}

// An order that takes longer than the old lock lasts keeps it by renewals, and ends before it does
// when these fail.
func TestTheWorkEndsBeforeTheOldLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, fails, released := time.Now(), 1, 0
		renewed := began
		renew := func(context.Context) error {
			if fails != 0 {
				fails--
				return errSoldOut
			}
			renewed = time.Now()
			return nil
		}
		release := func(ctx context.Context) error { released++; return ctx.Err() }

		require.NoError(t, underOldLock(t.Context(), began, renew, release, func(ctx context.Context) error {
			time.Sleep(time.Minute) // one renewal fails
			require.Zero(t, released, "not before the work is done")
			require.Less(t, time.Since(renewed), ttl/2)
			return ctx.Err()
		}))
		require.Equal(t, 1, released)

		fails, began = -1, time.Now()
		err := underOldLock(t.Context(), began.Add(-time.Second), renew, release, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, errOldLockLost)
		require.Equal(t, began.Add(ttl*9/10-time.Second), time.Now(), "counted from when it was asked for")
		require.Equal(t, 2, released)
	})
}

// docs/patterns.md shows it.
func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	err := s.Order(ctx, r.FormValue("sku")) // with lease.NoWait
	// Your own errors come first, and pgx.ErrNoRows of a QueryRow.
	if errors.Is(err, errSoldOut) {
		http.Error(w, "sold out", http.StatusGone) // 409 means busy
		return
	}
	if again := guard.RetryAfter(err); again > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(math.Ceil(again.Seconds())))
	}
	answer := guard.Answer(err)
	http.Error(w, answer.String(), answer.HTTPStatus())
}

func TestTheHandlerOfTheGuideSaysWhenToComeAgain(t *testing.T) {
	t.Parallel()
	issuer, err := lease.New(testenv.Redis(t), lease.Config{TTL: 10 * time.Second, Namespace: testenv.Namespace(t)})
	require.NoError(t, err)
	shop := &Shop{desk: guard.New(issuer, testenv.Postgres(t))}
	l, err := issuer.Acquire(t.Context(), "sku:6")
	require.NoError(t, err)

	w := httptest.NewRecorder()
	shop.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/?sku=6", nil))

	require.Equal(t, http.StatusConflict, w.Code)
	require.Regexp(t, `^([1-9]|10)$`, w.Header().Get("Retry-After"))
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, issuer.Close(t.Context()))
}

// The guide shows the code that is tested here.
func TestTheGuideShowsThisCode(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile("orders_test.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/adopting.md")
	require.NoError(t, err)
	_, guide, _ := bytes.Cut(page, []byte("\n## From another lock\n"))
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllSubmatch(guide, -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, string(own), string(block[1]))
	}
}
