// Package soak keeps both halves of fencedb under a mixed load, on servers of its own, and looks
// for what grows.
//
//	go test ./lab/soak    in the form of every change: a minute
//	make soak FOR=1h              longer, with more in it
package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
	"github.com/fencedb/fencedb/lease/once"
)

var length = flag.Duration("for", time.Minute, "how long the load goes on")

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	workers   = 8
	resources = 24 // and as many keys of everything that has keys
	rounds    = 6  // the load stops between them, and everything is counted
)

// counted is what may not grow, by name.
type counted map[string]int

// load is one process's use of everything.
type load struct {
	*testing.T
	pool     *pgxpool.Pool
	client   *redis.Client
	issuer   *lease.Issuer
	permits  *lease.Semaphore
	once     *once.Once
	limiters []*admission.Limiter
	done     [2]atomic.Int64 // attempts that failed, and those that did not
}

func TestNothingGrows(t *testing.T) {
	l := newLoad(t)
	first := counted{}
	for round := range rounds {
		l.run(*length / rounds)
		now := l.count()
		t.Logf("%v: %d done, %d failed, %v", *length*time.Duration(round+1)/rounds, l.done[1].Load(), l.done[0].Load(), now)
		if round == 0 { // by then there is one of everything
			first = now
		}
		for name, n := range now {
			require.LessOrEqual(t, n, first[name]+first[name]/4+room[name], "%s, after %d of %d rounds", name, round+1, rounds)
		}
	}
	require.Greater(t, l.done[1].Load(), 5*l.done[0].Load(), "most of it works")
}

// room is what may be there at one time and not at another.
var room = counted{
	"goroutines": 4, "descriptors": workers, "heap kB": 4 << 10, "redis memory kB": 2 << 10, "redis clients": workers,
	"redis keys": 2 * resources, "fences": resources, "once": resources,
}

func newLoad(t *testing.T) *load {
	server := testenv.OwnRedis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: workers})
	t.Cleanup(func() { _ = client.Close() })
	l := &load{T: t, client: client, pool: testenv.OwnPostgres(t).Pool()}
	_, err := l.pool.Exec(t.Context(), `
		CREATE TABLE stock (resource text PRIMARY KEY, n bigint NOT NULL);
		INSERT INTO stock SELECT 'item:' || i, 0 FROM generate_series(0, 23) i;
		SELECT fencedb.protect('stock', '{resource}')`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	config := lease.Config{TTL: 2 * time.Second, Seal: fencedb.Sealer(l.pool)}
	l.issuer, err = lease.New(l.client, config)
	require.NoError(t, err)
	permits := lease.SemaphoreConfig{Limit: 3, Lease: lease.Config{TTL: 2 * time.Second}}
	l.permits, err = lease.NewSemaphore(l.client, permits)
	require.NoError(t, err)
	l.once, err = once.New(l.client, once.Config{InFlight: 2 * time.Second, Done: time.Second})
	require.NoError(t, err)
	for _, sliding := range []bool{false, true} {
		limiter, err := admission.New(l.client, admission.Config{
			Limit: 50, Window: time.Second, Sliding: sliding, OnError: admission.FailClosed,
		})
		require.NoError(t, err)
		l.limiters = append(l.limiters, limiter)
	}
	return l
}

// run lets all workers try everything, in random order.
func (l *load) run(length time.Duration) {
	ctx, cancel := context.WithTimeout(l.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				l.attempt()
				time.Sleep(10 * time.Millisecond) // others use this machine too
			}
		})
	}
	all.Wait()
}

// attempt does one of the things that a service does. One in ten is given up in the middle.
func (l *load) attempt() {
	patience := 5 * time.Second
	if rand.IntN(10) == 0 {
		patience = time.Duration(rand.IntN(3000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := rand.IntN(resources)
	item, key := fmt.Sprint("item:", n), fmt.Sprint("key:", n)
	var err error
	switch rand.IntN(9) {
	case 0:
		err = guard.New(l.issuer, l.pool).Tx(ctx, item, func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := fencedb.Once(ctx, tx, key, nil, func() ([]byte, error) { return nil, add(ctx, tx, item) })
			return err
		})
	case 1:
		_, err = guard.New(l.issuer, l.pool).Exec(ctx, item, `UPDATE stock SET n = n + 1 WHERE resource = $1`, item)
	case 2:
		err = l.issuer.DoAll(ctx, []string{item, "item:1", "item:2"}, func(ctx context.Context, ls lease.Leases) error {
			return fencedb.Tx(ctx, l.pool, fencedb.All(ls...), func(tx pgx.Tx) error { return add(ctx, tx, item) })
		})
	case 3:
		err = l.permits.Do(ctx, key, func(context.Context, *lease.Lease) error { return nil })
	case 4:
		_, _, err = l.once.Do(ctx, key, nil, func(context.Context, *lease.Lease) ([]byte, error) { return []byte("done"), nil })
	case 5, 6:
		_, err = l.limiters[rand.IntN(len(l.limiters))].Allow(ctx, key)
	case 7:
		err = l.overtaken(ctx, item)
	case 8:
		err = l.another(ctx, item)
	}
	l.done[map[bool]int{true: 1}[err == nil]].Add(1)
}

func add(ctx context.Context, tx pgx.Tx, item string) error {
	_, err := tx.Exec(ctx, `UPDATE stock SET n = n + 1 WHERE resource = $1`, item)
	return err
}

// overtaken writes after its lease was revoked and somebody else has sealed the item, and is
// refused.
func (l *load) overtaken(ctx context.Context, item string) error {
	held, err := l.issuer.Acquire(ctx, item)
	if err != nil {
		return err
	}
	defer held.Release(ctx)
	if _, err := l.issuer.Revoke(ctx, item); err != nil {
		return err
	}
	next, err := l.issuer.Acquire(ctx, item)
	if err != nil {
		return err
	}
	defer next.Release(ctx)
	if _, err := fencedb.Exec(ctx, l.pool, held, `UPDATE stock SET n = -1 WHERE resource = $1`, item); err == nil {
		l.Errorf("token %d of %s wrote although token %d had sealed", held.Token(), item, next.Token())
	}
	return nil
}

// another is a process that starts, works and ends.
func (l *load) another(ctx context.Context, item string) error {
	issuer, err := lease.New(l.client, lease.Config{TTL: 2 * time.Second})
	if err != nil {
		return err
	}
	defer issuer.Close(context.WithoutCancel(ctx))
	_, err = issuer.Acquire(ctx, item)
	return err
}

// count waits until what was given up has been given back.
func (l *load) count() (now counted) {
	l.Helper()
	now = counted{}
	require.Eventually(l, func() bool {
		var locks int
		err := l.pool.QueryRow(l.Context(), `SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid()`).Scan(&locks)
		return err == nil && locks == 0 && l.pool.Stat().AcquiredConns() == 0
	}, time.Minute, 10*time.Millisecond, "locks or connections were not given back")
	for _, table := range []string{"fences", "once", "audit"} {
		var n int
		require.NoError(l, l.pool.QueryRow(l.Context(), `SELECT count(*) FROM fencedb.`+table).Scan(&n))
		now[table] = n
	}
	now["redis keys"] = int(l.client.DBSize(l.Context()).Val())
	info := l.client.InfoMap(l.Context(), "memory", "clients").Val()
	now["redis memory kB"] = number(l, info["Memory"]["used_memory"]) >> 10
	now["redis clients"] = number(l, info["Clients"]["connected_clients"])
	descriptors, err := os.ReadDir("/proc/self/fd")
	if !os.IsNotExist(err) { // not on Linux
		require.NoError(l, err)
		now["descriptors"] = len(descriptors)
	}
	now["goroutines"] = runtime.NumGoroutine()
	runtime.GC()
	runtime.GC() // what a pool keeps goes with the second
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	now["heap kB"] = int(memory.HeapAlloc >> 10)
	return now
}

func number(t *load, text string) int {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	require.NoError(t, err)
	return n
}
