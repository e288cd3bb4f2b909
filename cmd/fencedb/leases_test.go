package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func (w *world) listed(args ...string) (names []string, list leaseList) {
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
	_, err := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace + "/x"}).TryAcquire(t.Context(), "table:14")
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
	w.screen.width = 80

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
	l, err := hashed.TryAcquire(t.Context(), "guest:ann@example.org")
	require.NoError(t, err)
	_, err = newIssuer(t, server.Client(), lease.Config{Namespace: "other"}).TryAcquire(t.Context(), "table:12")
	require.NoError(t, err)
	w := &world{console: newConsole(t, "--redis", "redis://"+server.Addr(), "--hash-resources")}

	_, list := w.listed()

	require.Len(t, list.Leases, 1)
	require.Equal(t, l.LeaseID(), list.Leases[0].LeaseID)
	require.True(t, strings.HasPrefix(list.Leases[0].Resource, "sha256:"))
	require.Equal(t, exitUsage, w.run("leases", "guest:").code)
}

func TestLeasesOfACluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	i := newIssuer(t, cluster.Client(), lease.Config{})
	want := []string{"a:1", "a:2", "a:3", "a:4", "a:5", "a:6"}
	for _, resource := range want {
		_, err := i.TryAcquire(t.Context(), resource)
		require.NoError(t, err)
	}
	w := &world{console: newConsole(t, "--redis", "redis-cluster://"+cluster.Nodes()[0].Addr()+","+cluster.Nodes()[1].Addr())}

	names, _ := w.listed()

	require.Equal(t, want, names)
}
