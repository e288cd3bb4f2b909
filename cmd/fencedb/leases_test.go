package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func (w *world) listed(args ...string) (names []string, list look.LeaseList) {
	w.Helper()
	w.json("leases", &list, append([]string{"leases"}, args...)...)
	for _, l := range list.Leases {
		names = append(names, l.Resource)
	}
	return names, list
}

func TestLeasesListsWhatIsHeldAndNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	odd := []string{"table:*", "table:[12]", `table:\?`, "table:a/b{c}%7B", "tisch:zwölf"}
	for _, resource := range odd {
		w.acquire(resource)
	}
	l := w.acquire("table:12")
	require.NoError(t, w.acquire("table:13").Release(t.Context()))
	_, err := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace + "/x"}).Acquire(t.Context(), "table:14", lease.NoWait())
	require.NoError(t, err)

	names, list := w.listed()
	require.Equal(t, []string{"table:*", "table:12", "table:[12]", `table:\?`, "table:a/b{c}%7B", "tisch:zwölf"}, names)
	require.Equal(t, l.Token(), list.Leases[1].Token)
	require.Equal(t, l.LeaseID(), list.Leases[1].LeaseID)
	require.False(t, list.More)

	for _, prefix := range odd {
		names, _ = w.listed(prefix)
		require.Equal(t, []string{prefix}, names, "a prefix is no pattern")
	}
	names, _ = w.listed("nothing:")
	require.Empty(t, names)
}

func TestLeasesSaysThatNothingIsHeldAndWhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("table:12")
	require.Equal(t, "Nothing is held in namespace \"shop\" whose name begins with \"seat:\".\n", w.ok("leases", "seat:"))
	require.Equal(t, "Nothing is held in namespace \"shop\" for longer than 10m.\n", w.ok("leases", "--older-than", "10m"))
	require.Equal(t, "Nothing is held without a namespace. Redis has leases in namespace \"shop\": see --namespace.\n", w.ok("--namespace", "", "leases"))
	require.Equal(t, "Nothing is held whose name begins with \"seat:\".\n", w.ok("--namespace", "", "leases", "seat:"))

	require.NoError(t, w.redis.Set(t.Context(), "lease:v1:{shop/table:12}:owner", "by hand", 0).Err())
	require.NotContains(t, w.ok("leases"), "Nothing is held", "somebody may, and cannot be read")
}

func TestLeasesStopsAtTheLimitAndSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, resource := range []string{"a:1", "a:2", "a:3"} {
		w.acquire(resource)
	}

	names, list := w.listed("--limit", "2")

	require.Equal(t, []string{"a:1", "a:2"}, names)
	require.True(t, list.More)
	require.Contains(t, w.ok("leases", "--limit", "2"), "--limit")
}

func TestLeasesFitOnAScreen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("table:" + strings.Repeat("x", 200))
	w.screen.Width = 80

	for line := range strings.Lines(w.ok("leases")) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80)
	}
}

func TestLeasesNamesABrokenKeyAndListsTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("table:12")
	broken := "lease:v1:{" + w.namespace + "/table:11}:owner"
	require.NoError(t, w.redis.Set(t.Context(), broken, "by hand", 0).Err())

	names, list := w.listed()

	require.Equal(t, []string{"table:12"}, names)
	require.Len(t, list.Problems, 1)
	require.Contains(t, list.Problems[0], broken)
}

func TestLeasesOfHashedResourcesAndWithoutNamespace(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	hashed := newIssuer(t, server.Client(), lease.Config{HashResources: true})
	l, err := hashed.Acquire(t.Context(), "guest:ann@example.org", lease.NoWait())
	require.NoError(t, err)
	_, err = newIssuer(t, server.Client(), lease.Config{Namespace: "other"}).Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	w := &world{console: newConsole(t, "--redis", "redis://"+server.Addr(), "--hash-resources")}

	_, list := w.listed()

	require.Len(t, list.Leases, 1)
	require.Equal(t, l.LeaseID(), list.Leases[0].LeaseID)
	require.True(t, strings.HasPrefix(list.Leases[0].Resource, "sha256:"))
	require.Equal(t, app.ExitUsage, w.run("leases", "guest:").code)
}

func TestLeasesOfACluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	i := newIssuer(t, cluster.Client(), lease.Config{})
	want := []string{"a:1", "a:2", "a:3", "a:4", "a:5", "a:6"}
	for _, resource := range want {
		_, err := i.Acquire(t.Context(), resource, lease.NoWait())
		require.NoError(t, err)
	}
	w := &world{console: newConsole(t, "--redis", "redis-cluster://"+cluster.Nodes()[0].Addr()+"?addr="+cluster.Nodes()[1].Addr())}

	names, _ := w.listed()

	require.Equal(t, want, names)
}

// heldSince makes a lease look as if it had been acquired that long ago.
func (w *world) heldSince(resource string, age time.Duration) {
	w.Helper()
	value := fmt.Sprintf("%s:%d:ca11", uuid.New(), time.Now().Add(-age).UnixMicro())
	require.NoError(w, w.redis.Set(w.Context(), "lease:v1:{"+w.namespace+"/"+resource+"}:owner", value, time.Minute).Err())
}

func TestLeasesByAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("a:new")
	for resource, age := range map[string]time.Duration{"a:hour": time.Hour, "b:day": term.Day, "c:minutes": 10 * time.Minute} {
		w.heldSince(resource, age)
	}
	require.NoError(t, w.redis.Set(t.Context(), "lease:v1:{"+w.namespace+"/d:list}:owner", uuid.NewString()+":7:ca11", time.Minute).Err())
	require.NoError(t, w.redis.LPush(t.Context(), "lease:v1:{"+w.namespace+"/e:broken}:owner", "by hand").Err())

	names, list := w.listed("--oldest")
	require.Equal(t, []string{"b:day", "a:hour", "c:minutes", "a:new", "d:list"}, names)
	require.Len(t, list.Problems, 1)
	names, list = w.listed("--oldest", "--limit", "2")
	require.Equal(t, []string{"b:day", "a:hour"}, names, "of all, not of the first two")
	require.True(t, list.More)
	names, _ = w.listed("--older-than", "30m")
	require.Equal(t, []string{"a:hour", "b:day", "d:list"}, names, "by name unless told otherwise, and what may be older")
	require.Regexp(t, `d:list +7 +not known `, w.ok("leases", "--older-than", "30m"))
}

// A lease is as old as the servers say, whatever time it is where somebody looks.
func TestAgesAreByTheClockOfTheServers(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.acquire("seat:1")
	owner := fmt.Sprintf("%s:%d:call", uuid.New(), time.Now().Add(-23*time.Hour-30*time.Minute).UnixMicro())
	require.NoError(t, w.own.Client().Set(t.Context(), "lease:v1:{"+w.namespace+"/seat:1}:owner", owner, time.Hour-time.Minute).Err())
	w.as("--redis", "redis://"+timeProxy(t, w.own.Addr(), time.Hour))

	names, _ := w.listed("--older-than", "24h10m")
	require.Equal(t, []string{"seat:1"}, names)
	require.Contains(t, w.ok("leases"), "  1d  ", "not 23h30m")
	require.Contains(t, w.ok("inspect", "seat:1"), "for 1d,")
	require.Contains(t, w.ok("doctor"), "lease_unbounded")
}

func TestLeasesKnowsSemaphoresAndClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("tenant:7")
	s := w.semaphore(3)
	first, err := s.Acquire(t.Context(), "tenant:7", lease.NoWait())
	require.NoError(t, err)
	second, err := s.Acquire(t.Context(), "tenant:7", lease.NoWait())
	require.NoError(t, err)
	keys, err := once.New(w.redis, once.Config{Namespace: w.namespace})
	require.NoError(t, err)

	_, _, err = keys.Do(t.Context(), "order-7", nil, func(context.Context, *lease.Lease) ([]byte, error) {
		names, list := w.listed("--oldest")
		require.Equal(t, []string{"tenant:7", "tenant:7", "tenant:7", "once:order-7"}, names)
		var kinds []string
		for _, l := range list.Leases {
			kinds = append(kinds, l.Kind)
		}
		require.Equal(t, []string{"lease", "semaphore", "semaphore", "once"}, kinds)
		require.Equal(t, []int64{first.Token(), second.Token()}, []int64{list.Leases[1].Token, list.Leases[2].Token})
		return nil, nil
	})
	require.NoError(t, err)
}

func TestOldPlacesOfASemaphoreAreListedWithoutTheNewOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fresh, err := w.semaphore(3).Acquire(t.Context(), "tenant:7", lease.NoWait())
	require.NoError(t, err)
	old := redis.Z{Score: float64(time.Now().Add(time.Minute).UnixMicro()), Member: fmt.Sprintf("%s:%d:ca11", uuid.New(), time.Now().Add(-time.Hour).UnixMicro())}
	require.NoError(t, w.redis.ZAdd(t.Context(), "semaphore:v1:{"+w.namespace+"/tenant:7}:owner", old).Err())

	_, list := w.listed("--older-than", "30m")

	require.Len(t, list.Leases, 1)
	require.NotEqual(t, fresh.LeaseID(), list.Leases[0].LeaseID)
}
