package lease_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// childVar makes this test binary a holder in a process of its own: address and namespace.
const childVar = "FENCEDB_TEST_HOLDER"

// hold is the other process. It acquires, says so, and when a line arrives tries everything that a
// holder can do.
func hold(addr, namespace string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	i, err := lease.New(client, lease.Config{TTL: time.Second, Namespace: namespace})
	if err != nil {
		return err
	}
	ctx := context.Background()
	l, err := i.TryAcquire(ctx, "a")
	if err != nil {
		return err
	}
	fmt.Println("holding", l.Token())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	extend, release := l.Extend(ctx), l.Release(ctx)
	fmt.Println(errors.Is(extend, lease.ErrExpired), errors.Is(release, lease.ErrExpired),
		errors.Is(context.Cause(l.Context()), lease.ErrExpired))
	return nil
}

func TestAHolderThatWasStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVar+"="+testenv.Redis(t).Options().Addr+" "+w.namespace)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill() })
	says := bufio.NewScanner(stdout)
	hear := func() string {
		t.Helper()
		require.True(t, says.Scan())
		return says.Text()
	}
	require.True(t, strings.HasPrefix(hear(), "holding "))

	require.NoError(t, child.Process.Signal(syscall.SIGSTOP))
	next, err := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never}).Acquire(t.Context(), "a")
	require.NoError(t, err)
	before := w.dump(t, "a")
	_, err = fmt.Fprintln(stdin)
	require.NoError(t, err)
	require.NoError(t, child.Process.Signal(syscall.SIGCONT))
	require.Equal(t, "true true true", hear(), "extend, release and context all say that it expired")
	require.NoError(t, child.Wait())
	require.Equal(t, before, w.dump(t, "a"), "nothing of the next holder's was touched")
	require.NoError(t, next.Release(t.Context()))
}

// Resources that are leased once and never again leave nothing behind, whether released or not:
// every key that there is has an end.
func TestNothingIsLeftAfterTheRetention(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	const ttl, retention = time.Minute, time.Hour
	i := w.issuer(t, lease.Config{TTL: ttl, RenewEvery: lease.Never, FenceRetention: retention})
	for n := range 2 {
		ls, err := i.TryAcquireAll(t.Context(), prefixed(fmt.Sprint(n, "-"), many(500)))
		require.NoError(t, err)
		if n == 0 {
			require.NoError(t, ls.Release(t.Context()))
		}
	}
	keys, err := w.client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(keys), 2*500)
	ends, err := w.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.PTTL(t.Context(), key)
		}
		return nil
	})
	require.NoError(t, err)
	for n, end := range ends {
		left := end.(*redis.DurationCmd).Val()
		require.Positive(t, left, keys[n])
		require.LessOrEqual(t, left, ttl+retention, keys[n])
	}
}

func prefixed(prefix string, names []string) []string {
	for n := range names {
		names[n] = prefix + names[n]
	}
	return names
}

// What ten thousand leases cost that are held and renewed: processor time of this process, as a
// share of one core, and bytes in Redis for each.
func BenchmarkTenThousandLeasesHeld(b *testing.B) {
	client := testenv.Redis(b)
	namespace := testenv.Namespace(b)
	i, err := lease.New(client, lease.Config{TTL: 30 * time.Second, Namespace: namespace})
	require.NoError(b, err)
	var all lease.Leases
	for n := range 10 {
		ls, err := i.TryAcquireAll(b.Context(), prefixed(fmt.Sprint(n, "-"), many(1000)))
		require.NoError(b, err)
		all = append(all, ls...)
	}
	bytes := client.MemoryUsage(b.Context(), "lease:v1:{"+namespace+"/0-r1}:owner").Val() +
		client.MemoryUsage(b.Context(), "lease:v1:{"+namespace+"/0-r1}:fence").Val()
	started, used := time.Now(), processorTime(b)
	for b.Loop() {
		<-time.After(10 * time.Second) // one interval of renewals
	}
	b.ReportMetric(float64(processorTime(b)-used)/float64(time.Since(started)), "cores")
	b.ReportMetric(float64(bytes), "redis-B/lease")
	for _, l := range all {
		require.NoError(b, l.Err())
	}
	require.NoError(b, all.Release(b.Context()))
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// One uncontended lease, acquired and released: two round trips.
func BenchmarkAcquireRelease(b *testing.B) {
	i, err := lease.New(testenv.Redis(b), lease.Config{TTL: 30 * time.Second, Namespace: testenv.Namespace(b)})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		l, err := i.TryAcquire(b.Context(), "a")
		require.NoError(b, err)
		require.NoError(b, l.Release(b.Context()))
	}
}

// Variables that make the test binary be a holder: a process that holds a place on "a" until its
// stdin ends.
const (
	holderAddr      = "SEMAPHORE_TEST_HOLDER_ADDR"
	holderNamespace = "SEMAPHORE_TEST_HOLDER_NAMESPACE"
)

const (
	places    = 5
	holderTTL = 1500 * ms
)

func bePermitHolder(addr string) {
	s, err := lease.NewSemaphore(redis.NewClient(&redis.Options{Addr: addr}), lease.SemaphoreConfig{
		Limit: places, Lease: lease.Config{TTL: holderTTL, Namespace: os.Getenv(holderNamespace)},
	})
	if err == nil {
		err = s.Do(context.Background(), "a", func(context.Context, *lease.Lease) error {
			fmt.Println("holding")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
	}
	fmt.Println("lost:", err != nil)
}

type permitHolder struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  *bufio.Reader
}

func startPermitHolder(t *testing.T, w *world) *permitHolder {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), holderAddr+"="+w.client.(*redis.Client).Options().Addr, holderNamespace+"="+w.namespace)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	h := &permitHolder{cmd, stdin, bufio.NewReader(stdout)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()
	})
	require.Equal(t, "holding\n", h.line(t))
	return h
}

func (h *permitHolder) line(t *testing.T) string {
	t.Helper()
	line, err := h.said.ReadString('\n')
	require.NoError(t, err)
	return line
}

// Two of five places are held by processes that are stopped. A hundred contenders get the three
// others at first, and all five when the stopped ones have been given up; never more, by Redis's
// own account.
func TestSemaphoreAHundredContendersUnderStoppedHolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stopped := []*permitHolder{startPermitHolder(t, w), startPermitHolder(t, w)}
	for _, h := range stopped {
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGSTOP))
	}

	most := contend(t, w, 100)
	require.LessOrEqual(t, most, places)

	inspector := w.semaphore(t, places, lease.Config{})
	// They are given up: all places can be had.
	var got []*lease.Lease
	for range places {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		l, err := inspector.Acquire(ctx, "a")
		cancel()
		require.NoError(t, err)
		got = append(got, l)
	}
	requireFull(t, inspector, "a")
	for _, h := range stopped {
		require.NoError(t, h.stdin.Close())
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGCONT))
		require.Equal(t, "lost: true\n", h.line(t))
	}
	for _, l := range got {
		requireVerdict(t, l, lease.Current)
		require.NoError(t, l.Release(t.Context()))
	}
}

// contend lets n contenders, from four processes' point of view, hold a place once each, and
// returns the most holders that any of them saw in Redis.
func contend(t *testing.T, w *world, n int) int {
	t.Helper()
	var mu sync.Mutex
	done, most := 0, 0
	look := func(ctx context.Context, s *lease.Semaphore) error {
		found, err := s.Inspect(ctx, "a")
		mu.Lock()
		defer mu.Unlock()
		done, most = done+1, max(most, len(found.Permits))
		return err
	}
	var all sync.WaitGroup
	for range 4 {
		s := w.semaphore(t, places, lease.Config{})
		for range n / 4 {
			all.Go(func() {
				err := s.Do(t.Context(), "a", func(ctx context.Context, _ *lease.Lease) error { return look(ctx, s) })
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	require.Equal(t, n, done)
	return most
}

func TestSemaphoreAHolderThatIsKilledBlocksItsPlaceForOneTTL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.semaphore(t, places, lease.Config{})
	dead := startPermitHolder(t, w)
	for range places - 1 {
		tryPermit(t, s, "a")
	}
	requireFull(t, s, "a")
	require.NoError(t, dead.cmd.Process.Kill())
	l, err := s.Acquire(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
}
