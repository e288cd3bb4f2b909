package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/chaos"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// Both servers speak TLS only, and ask for a certificate.
func TestTheCommandOverTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	cache, database := testenv.OwnRedis(t, certs.Redis()...), testenv.OwnPostgres(t)
	database.RequireTLS(certs)
	c := newConsole(t, "--redis", "rediss://"+cache.Addr()+"?"+certs.Query().Encode(), "--postgres", database.URL(), "--namespace", "tls")
	c.ok("migrate", "up")
	w := &world{console: c, redis: cache.Client(), pool: database.Pool(), namespace: "tls"}
	w.exec(`CREATE TABLE seats (id int NOT NULL, guest text); SELECT fencedb.protect('seats', 'seat:{id}')`)
	w.issuer = newIssuer(t, w.redis, lease.Config{Namespace: w.namespace})
	l := w.acquire("seat:1")
	holder := fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), fencedb.NoEnd)
	require.NoError(t, w.book(holder))

	var d look.Diagnosis
	w.decode("doctor", &d, w.run("--json", "doctor").out)
	for _, f := range d.Findings {
		require.NotContains(t, f.Code, "unreachable")
		require.NotContains(t, f.Code, "hidden")
	}
	require.Equal(t, l.LeaseID(), w.inspected("seat:1").Holder.LeaseID)
	w.ok("revoke", "seat:1", "--reason", "it hangs", "--yes")
	require.ErrorIs(t, w.book(holder), fencedb.ErrStale)
	require.Contains(t, w.ok("drill", "--ttl", "8s"), "held")
}

// Every fault is one through TLS too, also the one that takes a look at what is sent. On a busy
// machine a run of seconds may not come to what convicts, so there are up to four.
func TestChaosOverTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	cache, database := testenv.OwnRedis(t, certs.Redis()...), testenv.OwnPostgres(t)
	database.RequireTLS(certs)
	c := newConsole(t, "--json", "--redis", "rediss://"+cache.Addr()+"?"+certs.Query().Encode(), "--postgres", database.URL())
	for _, tc := range []struct {
		code, tries int
		args        []string
	}{
		{app.ExitDone, 1, []string{"--only", "commit replies lost,redis cut,postgres cut", "--for", "3s"}},
		{app.ExitFailed, 4, []string{"--only", "commit replies lost", "--for", "10s", "--control", "safe-to-retry"}},
	} {
		args := append([]string{"chaos", "--ttl", "1s"}, tc.args...)
		got := c.run(args...)
		for tries := 1; tries < tc.tries && got.code != tc.code; tries++ {
			got = c.run(args...)
		}
		var v chaos.Verdict
		require.Equal(t, tc.code, got.code, got.errOut+got.out)
		c.decode("chaos", &v, got.out)
		require.Positive(t, v.Outcomes[chaos.Committed])
	}
}

func TestLeasesOfAClusterAndOfSentinelsOverTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	cluster, sentinel := testenv.Cluster(t, certs.Redis()...), testenv.Sentinel(t, certs.Redis()...)
	for address, client := range map[string]redis.UniversalClient{
		"rediss-cluster://" + cluster.Nodes()[0].Addr() + "?":                                cluster.Client(),
		"rediss-sentinel://" + sentinel.Options().SentinelAddrs[0] + "?master_name=fencedb&": sentinel.Client(),
	} {
		_, err := newIssuer(t, client, lease.Config{}).Acquire(t.Context(), "table:12", lease.NoWait())
		require.NoError(t, err)
		w := &world{console: newConsole(t, "--redis", address+certs.Query().Encode())}

		names, _ := w.listed()

		require.Equal(t, []string{"table:12"}, names)
	}
}

func TestWhatIsWrongWithACertificateIsSaid(t *testing.T) {
	t.Parallel()
	certs, others := testenv.NewCertificates(t), testenv.NewCertificates(t)
	server := testenv.OwnRedis(t, certs.Redis()...)
	host := strings.Replace(server.Addr(), "127.0.0.1", "localhost", 1)
	for address, want := range map[string]struct {
		code int
		says string
	}{
		"rediss://" + server.Addr():                                                       {app.ExitFailed, "certificate signed by unknown authority"},
		"rediss://" + server.Addr() + "?sslrootcert=" + others.CA:                         {app.ExitFailed, "certificate signed by unknown authority"},
		"rediss://" + host + "?" + certs.Query().Encode():                                 {app.ExitFailed, "wanted to match localhost"},
		"rediss://" + server.Addr() + "?sslrootcert=" + certs.CA:                          {app.ExitFailed, "certificate required|reset by peer|broken pipe"},
		"rediss://cache?sslrootcert=/nowhere.pem":                                         {app.ExitUsage, "sslrootcert: open /nowhere.pem"},
		"rediss-cluster://cache?sslrootcert=" + url.QueryEscape(certs.Key):                {app.ExitUsage, "has no certificate"},
		"rediss-sentinel://cache?master_name=main&sslcert=" + url.QueryEscape(certs.Cert): {app.ExitUsage, "sslcert and sslkey: "},
		"redis://cache?sslrootcert=" + certs.CA:                                           {app.ExitUsage, "has to begin with rediss"},
	} {
		got := newConsole(t, "--redis", address).run("leases")

		require.Equal(t, want.code, got.code, address)
		require.Regexp(t, want.says, got.errOut, address)
	}
}
