// Package leasetest runs what asks Redis with the documented rights, against servers that refuse,
// and on a Redis in memory.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// deployment is a Redis with its own users.
type deployment struct {
	name    string
	options redis.UniversalOptions
	nodes   []*testenv.RedisServer
}

// deployments starts one Redis, Sentinel and Cluster, each with a user for every set of rights. All
// speak TLS only, and ask clients for a certificate.
func deployments(t *testing.T) []deployment {
	certificates := testenv.NewCertificates(t)
	secure, args := certificates.Config(t), certificates.Redis()
	single, sentinel, cluster := testenv.OwnRedis(t, args...), testenv.Sentinel(t, args...), testenv.Cluster(t, args...)
	watched := sentinel.Options()
	rights := regexp.MustCompile("`(\\+sentinel[^`]*)`").FindStringSubmatch(page(t)) // of a client's user on the sentinels
	require.NotNil(t, rights)
	for _, addr := range watched.SentinelAddrs {
		admin := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: secure})
		SetUser(t, admin, "follower", strings.Fields(rights[1]))
		require.NoError(t, admin.Close())
	}
	return []deployment{
		{"one Redis", redis.UniversalOptions{
			Addrs: []string{single.Addr()}, TLSConfig: secure,
		}, []*testenv.RedisServer{single}},
		{"Sentinel", redis.UniversalOptions{
			MasterName: watched.MasterName, Addrs: watched.SentinelAddrs, TLSConfig: secure,
			SentinelUsername: "follower", SentinelPassword: "password",
		}, append(sentinel.Replicas(), sentinel.Primary())},
		{"Cluster", redis.UniversalOptions{Addrs: cluster.Options().Addrs, TLSConfig: secure}, cluster.Nodes()},
	}
}

// client returns a client as a user, or with all rights if there is no name.
func (d deployment) client(t *testing.T, user, password string) redis.UniversalClient {
	t.Helper()
	d.options.Username, d.options.Password = user, password
	client := redis.NewUniversalClient(&d.options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (d deployment) as(t *testing.T, user string, rights []string) redis.UniversalClient {
	t.Helper()
	for _, node := range d.nodes {
		SetUser(t, node.Client(), user, rights)
	}
	return d.client(t, user, "password")
}

// SetUser makes a user of a server, with the password "password" and these rights only.
func SetUser(t *testing.T, server *redis.Client, user string, rights []string) {
	t.Helper()
	rules := append([]string{"reset", "on", ">password", "resetkeys", "resetchannels", "-@all"}, rights...)
	require.NoError(t, server.ACLSetUser(t.Context(), user, rules...).Err())
}

// Everything makes each call that a package offers. It hands every error to try, which gives it
// back and, of one that says denied, ends ctx: then the rest is of no interest. admin has all
// rights.
type Everything func(ctx context.Context, t *testing.T, client, admin redis.UniversalClient, namespace string,
	try func(error) error)

// attempts is how often everything is tried where a server has not answered in time, which says
// nothing about rights.
const attempts = 10

// run calls before before each attempt.
func (everything Everything) run(t *testing.T, client, admin redis.UniversalClient, namespace string,
	before func()) (errs []error) {
	for n := range attempts {
		before()
		var denied bool
		errs, denied = everything.once(t, client, admin, fmt.Sprint(namespace, "-", n))
		unanswered := slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, lease.ErrUnreachable) })
		if denied || !unanswered {
			break
		}
	}
	return errs
}

func (everything Everything) once(t *testing.T, client, admin redis.UniversalClient,
	namespace string) (errs []error, denied bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // only a hang takes that long
	defer cancel()
	everything(ctx, t, client, admin, namespace, func(err error) error {
		errs = append(errs, err)
		if errors.Is(err, &lease.RefusedError{Code: "NOPERM"}) {
			denied = true
			cancel()
		}
		return err
	})
	return errs, denied
}

// RunRights runs everything that a package offers with exactly the documented rights, and again
// without each of them, when something must be denied.
func RunRights(t *testing.T, name string, everything Everything) { //nolint:gocognit // one story
	for _, d := range deployments(t) {
		rights := Documented(t, name, d.name)
		admin := d.client(t, "", "")
		t.Run(d.name, func(t *testing.T) {
			t.Run("all", func(t *testing.T) {
				t.Parallel()
				require.NoError(t, errors.Join(everything.run(t, d.as(t, "all", rights), admin, "all", func() {})...), "%v", rights)
			})
			for n, right := range rights {
				if right == "+ping" { // a subscription asks for signs of life after three seconds: see TestRightsThatFewNeed
					continue
				}
				t.Run("without "+right, func(t *testing.T) {
					before := func() {}
					if right == "+eval" { // needed while the servers do not know the scripts; those that run later tell them
						before = func() {
							for _, node := range d.nodes {
								require.NoError(t, node.Client().ScriptFlush(t.Context()).Err())
							}
						}
					} else {
						t.Parallel()
					}
					rest := slices.Delete(slices.Clone(rights), n, n+1)
					name := fmt.Sprintf("without-%d", n) // a pattern of keys and one of channels can have the same text
					errs := everything.run(t, d.as(t, name, rest), admin, name, before)
					require.True(t, slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, &lease.RefusedError{Code: "NOPERM"}) }), "%v", errs)
				})
			}
		})
	}
}

// AwaitListener returns when a call waits and its process listens, or when ended is true: a waiter
// joins the queue before it listens, and learns only then that it may not.
func AwaitListener(ctx context.Context, admin redis.UniversalClient, queue, channel string, ended func() bool) {
	pause := time.NewTicker(5 * time.Millisecond) // or those who ask keep the servers from their work
	defer pause.Stop()
	for ctx.Err() == nil && !ended() && admin.Exists(ctx, queue).Val() == 0 {
		<-pause.C
	}
	var listens atomic.Bool
	ask := func(ctx context.Context, server *redis.Client) error {
		lists := []func(context.Context, string) *redis.StringSliceCmd{server.PubSubChannels, server.PubSubShardChannels}
		for _, list := range lists {
			if channels, err := list(ctx, channel+":*").Result(); err != nil {
				return err
			} else if len(channels) > 0 {
				listens.Store(true)
			}
		}
		return nil
	}
	for ctx.Err() == nil && !listens.Load() && !ended() {
		if cluster, ok := admin.(*redis.ClusterClient); ok {
			_ = cluster.ForEachMaster(ctx, ask)
		} else {
			_ = ask(ctx, admin.(*redis.Client))
		}
		<-pause.C
	}
}

// page is docs/leases.md.
func page(t *testing.T) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "..", "..", "docs", "leases.md"))
	require.NoError(t, err)
	return string(text)
}

// Documented reads the tables of docs/leases.md.
func Documented(t *testing.T, name, deployment string) []string {
	t.Helper()
	row := func(first string) []string {
		for line := range strings.Lines(page(t)) {
			if rest, found := strings.CutPrefix(line, "| "+first+" | "); found {
				return strings.Split(rest, " | ")
			}
		}
		t.Fatalf("docs/leases.md has no row for %s", first)
		return nil
	}
	all := row("`" + name + "`")
	if besides := row(deployment); name == "lease/admission" {
		all = append(all, besides[1:]...)
	} else {
		all = append(all, besides...)
	}
	var rights []string
	for _, word := range strings.Fields(strings.NewReplacer("`", " ", " |", " ", "\n", " ", "\\|", "|").Replace(strings.Join(all, " "))) {
		if strings.ContainsAny(word[:1], "+~&") {
			rights = append(rights, word)
		}
	}
	require.NotEmpty(t, rights)
	return rights
}

// Effect is what a request does in Redis. Redis refuses some effects and allows others.
type Effect int

// Each is refused wherever one of those before it is.
const (
	Reads  Effect = iota
	Frees         // writes, but takes no memory
	Writes        // and takes memory
)

// Request is a request that a server must refuse. Prepare makes it while the server works.
type Request struct {
	Effect  Effect
	Prepare func(t *testing.T, client *redis.Client) (send func() error)
}

// Refusals sends the requests to real servers that refuse for different reasons. It requires the
// error of package lease for each reason, or none if the server allows the request.
func Refusals(t *testing.T, requests map[string]Request) {
	for name, refusal := range map[string]struct {
		args   []string
		begin  func(t *testing.T, server *testenv.RedisServer)
		from   Effect
		reason error
	}{
		"rights":   {nil, command("ACL", "SETUSER", "default", "resetkeys", "~other:*"), Reads, &lease.RefusedError{Code: "NOPERM"}},
		"replica":  {nil, command("REPLICAOF", "127.0.0.1", "1"), Frees, &lease.RefusedError{Code: "READONLY"}},
		"replicas": {nil, command("CONFIG", "SET", "min-replicas-to-write", "1"), Frees, &lease.RefusedError{Code: "NOREPLICAS"}},
		"disk":     {[]string{"--save", "3600 1", "--dbfilename", "taken"}, failToSave, Frees, &lease.RefusedError{Code: "MISCONF"}},
		"memory":   {nil, command("CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction"), Writes, &lease.RefusedError{Code: "OOM"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnRedis(t, refusal.args...)
			sends := make(map[string]func() error)
			for name, r := range requests {
				sends[name] = r.Prepare(t, server.Client())
			}
			refusal.begin(t, server)
			for name, send := range sends {
				if requests[name].Effect < refusal.from {
					require.NoError(t, send(), name)
				} else {
					require.ErrorIs(t, send(), refusal.reason, name)
				}
			}
		})
	}
}

func command(args ...any) func(*testing.T, *testenv.RedisServer) {
	return func(t *testing.T, server *testenv.RedisServer) {
		require.NoError(t, server.Client().Do(t.Context(), args...).Err())
	}
}

// failToSave puts a directory where the file should be.
func failToSave(t *testing.T, server *testenv.RedisServer) {
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir(), "taken"), 0o700))
	require.NoError(t, server.Client().BgSave(t.Context()).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(server.Client().Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	}, time.Minute, 10*time.Millisecond)
}
