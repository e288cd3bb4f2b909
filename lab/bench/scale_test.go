package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

var full = flag.Bool("scale", false, "measure at full size what tests measure in small: make bench BENCH=scale")

// sized is full at full size, and small in a test of the measurement itself.
func sized[T any](small, large T) T {
	if *full {
		return large
	}
	return small
}

// duration is that of one round.
func duration() time.Duration { return sized(50*time.Millisecond, 3*time.Second) }

// One process holds leases and renews them.
func TestScaleOfLeasesThatAreRenewed(t *testing.T) {
	every := sized(2*time.Second, time.Minute)
	fmt.Printf("\nleases  renewed every  acquired in  CPU of the process  CPU of Redis  memory of the process for each\n")
	for _, n := range sized([]int{100}, []int{1000, 10_000, 100_000, 1_000_000}) {
		s := stores{redis: testenv.OwnRedis(t).Client()}
		issuer, err := lease.New(s.redis, lease.Config{TTL: 5 * every, RenewEvery: every, FenceRetention: 5 * every})
		require.NoError(t, err)
		without, began := heap(), time.Now()
		all, err := hold(t.Context(), issuer, n)
		require.NoError(t, err)
		took, each := time.Since(began), (heap()-without)/float64(n)
		own, before := processorTime(), read(t, s.redisCPU)
		require.NoError(t, worker.Sleep(t.Context(), every))
		cores := func(used time.Duration) string { return fmt.Sprintf("%.2f %%", 100*used.Seconds()/every.Seconds()) }
		client, server := processorTime()-own, time.Duration((read(t, s.redisCPU)-before)*1000)
		for _, l := range all {
			require.NoError(t, l.Err())
		}
		fmt.Printf("%7d %13v %12v %19s %13s %30.0f B\n", n, every, took.Round(time.Millisecond), cores(client), cores(server), each)
		require.NoError(t, release(t.Context(), all))
	}
}

// All waiters of a process are cancelled at once, as when it shuts down. Each gives up its place in
// a queue of its own.
func TestScaleOfCancels(t *testing.T) {
	fmt.Printf("\nwaiters cancelled at once  return after: median     p99.9  the last  places given up after\n")
	for _, n := range sized([]int{64}, []int{256, 2048}) {
		r := testenv.OwnRedis(t)
		holder, err := lease.New(r.Client(), lease.Config{TTL: 10 * time.Minute})
		require.NoError(t, err)
		issuer, err := lease.New(r.Client(), lease.Config{TTL: 10 * time.Minute})
		require.NoError(t, err)
		held, err := hold(t.Context(), holder, n)
		require.NoError(t, err)
		keys := func() int64 {
			count, err := r.Client().DBSize(t.Context()).Result()
			require.NoError(t, err)
			return count
		}
		without := keys()
		waiting := func(count int) {
			require.Eventually(t, func() bool { return keys() == without+int64(2*count) }, time.Minute, time.Millisecond)
		}
		var late, given []time.Duration
		for range sized(1, 9) {
			ctx, cancel := context.WithCancel(t.Context())
			var cancelled time.Time
			returned := make(chan time.Duration, n)
			for _, l := range held {
				go func() {
					_, err := issuer.Acquire(ctx, l.Resource())
					returned <- time.Since(cancelled)
					assert.ErrorIs(t, err, context.Canceled)
				}()
			}
			waiting(n) // each in two keys
			cancelled = time.Now()
			cancel()
			for range n {
				late = append(late, <-returned)
			}
			waiting(0)
			given = append(given, time.Since(cancelled))
		}
		at := func(all []time.Duration, part float64) time.Duration {
			return quantile(all, part).Round(100 * time.Microsecond)
		}
		fmt.Printf("%25d %21v %9v %9v %22v\n", n, at(late, 0.5), at(late, 0.999), at(late, 1), at(given, 1))
		require.NoError(t, release(t.Context(), held))
	}
}

// A program ends that holds many leases.
func TestScaleOfClose(t *testing.T) {
	fmt.Printf("\nleases held  Redis    context  Close returned after  of the leases given back\n")
	for _, n := range sized([]int{300}, []int{10_000, 100_000}) {
		for _, hung := range []bool{false, true} {
			r := testenv.OwnRedis(t)
			issuer, err := lease.New(r.Client(), lease.Config{TTL: 10 * time.Minute})
			require.NoError(t, err)
			_, err = hold(t.Context(), issuer, n)
			require.NoError(t, err)
			redis := "answers"
			if hung {
				redis = "is hung"
				r.Pause()
			}
			bound := sized(50*time.Millisecond, time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			began := time.Now()
			err = issuer.Close(ctx)
			took := time.Since(began)
			cancel()
			left := new(lease.NotGivenBackError)
			require.True(t, err == nil || errors.As(err, &left), "%v", err)
			given := max(n-len(left.Blocked)-left.More, 0) // one that ends just then counts twice
			fmt.Printf("%11d  %s %8v %21v %25d\n", n, redis, bound, took.Round(time.Millisecond), given)
			if hung {
				require.Zero(t, given)
				r.Resume()
			}
			require.NoError(t, issuer.Close(t.Context()))
		}
	}
}

// heap is what the program keeps, in bytes.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// processorTime is what this process has spent so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for bad arguments only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func read(t *testing.T, meter func(context.Context) (float64, error)) float64 {
	t.Helper()
	at, err := meter(t.Context())
	require.NoError(t, err)
	return at
}

// filled is a Postgres with the tables of all works and so many fences.
func filled(t *testing.T, url string, fences int) *stores {
	t.Helper()
	s, err := openStores(t.Context(), nil, url, 1, fences)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

// Processes that do not compete share one Redis.
func TestScaleOfProcesses(t *testing.T) {
	fmt.Printf("\nprocesses  acquired and released in a second  CPU of Redis for each\n")
	for _, n := range sized([]int{2}, []int{1, 4, 16, 64}) {
		s := stores{redis: testenv.OwnRedis(t).Client()}
		var all crew
		for i := range n {
			p, err := worker.Start[record](t.Context(), kind, job{Lock: ours, Addr: s.redis.Options().Addr, Resource: lease.Resource("bench", i), Waiters: 1})
			require.NoError(t, err)
			all = append(all, p)
		}
		require.NoError(t, worker.Sleep(t.Context(), duration()/2))
		before, from := read(t, s.redisCPU), time.Now()
		require.NoError(t, worker.Sleep(t.Context(), duration()))
		after, to := read(t, s.redisCPU), time.Now()
		done, err := all.dismiss()
		require.NoError(t, err)
		var r result
		r.judge(done.Turns, n, from.UnixNano(), to.UnixNano())
		require.Positive(t, r.grants)
		fmt.Printf("%9d %35.0f %19.1f us\n", n, float64(r.grants)/to.Sub(from).Seconds(), (after-before)/float64(r.grants))
	}
}

// Resources spread over the masters of a Cluster.
func TestScaleOfRedis(t *testing.T) {
	fmt.Printf("\nRedis                   acquired and released in a second  CPU of the busiest server for each\n")
	nodes := testenv.Cluster(t)
	one := testenv.OwnRedis(t)
	for name, on := range map[string]struct {
		client  redis.UniversalClient
		servers []*testenv.RedisServer
	}{
		"one server":               {one.Client(), []*testenv.RedisServer{one}},
		"Cluster of three masters": {nodes.Client(), nodes.Nodes()},
	} {
		issuer, err := lease.New(on.client, lease.Config{TTL: ttl})
		require.NoError(t, err)
		spread(t, name, len(on.servers), func(n int) func(context.Context) (float64, error) {
			return (&stores{redis: on.servers[n].Client()}).redisCPU
		}, func(ctx context.Context, resource string) error {
			l, err := issuer.Acquire(ctx, resource)
			if err == nil {
				err = l.Release(ctx)
			}
			return err
		})
	}
}

// Resources spread over several Postgres servers, each with the fences and the rows of its
// resources.
func TestScaleOfPostgres(t *testing.T) {
	fmt.Printf("\nPostgres                       fenced statements in a second  CPU of the busiest server for each\n")
	for _, n := range []int{1, 2} {
		var servers []*stores
		var pools []*pgxpool.Pool
		for range n {
			s := filled(t, testenv.OwnPostgres(t).URL(), 1)
			servers, pools = append(servers, s), append(pools, s.pool)
		}
		spread(t, fmt.Sprint(n, " servers"), n, func(i int) func(context.Context) (float64, error) { return servers[i].postgresCPU },
			func(ctx context.Context, resource string) error {
				_, err := fencedb.Exec(ctx, shard(pools, resource), grant(resource),
					`UPDATE guarded SET note = note + 1 WHERE id = $1`, strings.TrimPrefix(resource, "row:"))
				return err
			})
	}
}

// shard is where the rows and the fence of a resource are. All writers must agree on it.
func shard(pools []*pgxpool.Pool, resource string) *pgxpool.Pool {
	hash := fnv.New32a()
	hash.Write([]byte(resource)) // never fails
	return pools[hash.Sum32()%uint32(len(pools))]
}

// The fence of a resource is on one of two servers, and the other one knows nothing of it.
func TestAResourceHasItsFenceOnOneServer(t *testing.T) {
	pools := []*pgxpool.Pool{testenv.OwnPostgres(t).Pool(), testenv.OwnPostgres(t).Pool()}
	seal := func(ctx context.Context, grants ...lease.Grant) error {
		for _, g := range grants {
			if err := fencedb.Seal(ctx, shard(pools, g.Resource()), g); err != nil {
				return err
			}
		}
		return nil
	}
	issuer, err := lease.New(testenv.OwnRedis(t).Client(), lease.Config{TTL: ttl, Seal: seal})
	require.NoError(t, err)
	var resources, servers []string
	for n := range 20 {
		resources = append(resources, lease.Resource("table", n))
	}
	leases, err := issuer.AcquireAll(t.Context(), resources)
	require.NoError(t, err)
	for _, l := range leases {
		var fences []string
		for server, pool := range pools {
			var token int64
			if err := pool.QueryRow(t.Context(), `SELECT last_fencing_token FROM fencedb.fences WHERE resource = $1`, l.Resource()).Scan(&token); err == nil {
				require.Equal(t, l.Token(), token)
				fences = append(fences, fmt.Sprint(server))
			}
		}
		require.Len(t, fences, 1)
		servers = append(servers, fences...)
	}
	require.Subset(t, servers, []string{"0", "1"})
}

// spread does op for many resources by several goroutines at once, and prints how much of it the
// busiest server does.
func spread(t *testing.T, name string, servers int,
	meter func(server int) func(context.Context) (float64, error), op func(context.Context, string) error) {
	t.Helper()
	var next [16]int
	e := entrant{op: func(ctx context.Context, worker int) error {
		next[worker]++
		return op(ctx, "row:"+strconv.Itoa(worker*60+next[worker]%60+1)) // no two workers share a row
	}}
	_, err := repeat(t.Context(), len(next), e, duration()/3) // connections, plans and scripts are there
	require.NoError(t, err)
	var before []float64
	for n := range servers {
		before = append(before, read(t, meter(n)))
	}
	began := time.Now()
	ops, err := repeat(t.Context(), len(next), e, duration())
	took := time.Since(began)
	require.NoError(t, err)
	busiest := 0.0
	for n := range servers {
		busiest = max(busiest, read(t, meter(n))-before[n])
	}
	fmt.Printf("%-26s %31.0f %33.1f us\n", name, float64(ops)/took.Seconds(), busiest/float64(ops))
}

// What each way to write leaves in the log.
func TestScaleOfTheLog(t *testing.T) {
	s := filled(t, testenv.OwnPostgres(t, "full_page_writes=on").URL(), 1)
	token := int64(100)
	overtaking := func(int) fencedb.Grant {
		token++
		return fencedb.NewGrant("row:1", token, leaseID, time.Now().Add(limit))
	}
	fresh := func(int) fencedb.Grant {
		token++
		return fencedb.NewGrant(fmt.Sprint("new:", token), 1, leaseID, time.Now().Add(limit))
	}
	position := func(ctx context.Context) (at float64, err error) {
		err = s.pool.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`).Scan(&at)
		return at, err
	}
	fmt.Printf("\none UPDATE                     bytes of WAL\n")
	of := sized(20, 2000)
	for _, e := range []entrant{
		s.update("autocommit", "plain", unfenced(s.pool), 0), s.update("FOR UPDATE", "plain", begun(s.pool, forUpdate), 0),
		s.update("Exec", "plain", fenced(s.pool, row), 0), s.update("Exec, protected", "guarded", fenced(s.pool, row), 0),
		s.update("Tx, protected", "guarded", fencedTx(s.pool), 0),
		s.update("Exec, a newer token", "plain", fenced(s.pool, overtaking), 0), s.update("Exec, a new fence", "plain", fenced(s.pool, fresh), 0),
	} {
		again := func() {
			for range of {
				require.NoError(t, e.op(t.Context(), 0))
			}
		}
		again() // full pages are in the log
		before := read(t, position)
		again()
		fmt.Printf("%-30s %12.0f\n", e.name, (read(t, position)-before)/float64(of))
	}
}

// A statement among ever more fences.
func TestScaleOfFences(t *testing.T) {
	s := filled(t, testenv.OwnPostgres(t).URL(), sized(10_000, 10_000_000))
	_, err := s.pool.Exec(t.Context(), `VACUUM ANALYZE fencedb.fences`)
	require.NoError(t, err)
	fmt.Printf("\n%d fences take %.1f MB\n", s.many+2*rows, s.ledger(t))
	w := work{name: "Exec, of many fences", workers: 1}
	for n := 1000; n <= s.many; n *= 10 {
		w.entrants = append(w.entrants, s.ofMany(n, 0))
	}
	costs, err := measureWork(t.Context(), w, sized(1, 9), duration()/10)
	require.NoError(t, err)
	for n, c := range costs {
		c.write(t.Output(), n == 0)
	}
}

// What the ledger keeps of holders that are gone: nothing.
func TestScaleOfAdvances(t *testing.T) {
	s := &stores{pool: testenv.OwnPostgres(t).Pool()}
	const resources = 1000
	advances := sized(2*resources, 10_000_000)
	before := 0.0
	for token := 1; token <= advances/resources; token++ {
		var grants []fencedb.Grant
		for n := range resources {
			grants = append(grants, fencedb.NewGrant(lease.Resource("row", n), int64(token), leaseID, time.Now().Add(limit)))
		}
		require.NoError(t, fencedb.Tx(t.Context(), s.pool, fencedb.All(grants...), func(pgx.Tx) error { return nil }))
		if token == 1 {
			before = s.ledger(t)
		}
	}
	s.pool.Reset() // a session tells what it counted when it ends, which takes a moment
	var part *float64
	require.Eventually(t, func() bool {
		err := s.pool.QueryRow(t.Context(), `
			SELECT n_tup_hot_upd / nullif(n_tup_upd, 0)::float8 FROM pg_stat_user_tables WHERE relid = 'fencedb.fences'::regclass`).Scan(&part)
		return err == nil && part != nil
	}, time.Minute, 10*time.Millisecond)
	after := s.ledger(t)
	fmt.Printf("\n%d fences take %.1f MB; after %d advances %.1f MB, %.1f %% of them without a new entry in the index\n",
		resources, before, advances, after, 100**part)
	require.Less(t, after, before+2, "MB")
}

// ledger is how much the fences take with their index, in MB.
func (s *stores) ledger(t *testing.T) (size float64) {
	t.Helper()
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT pg_total_relation_size('fencedb.fences') / 1e6::float8`).Scan(&size))
	return size
}
