package leasetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// Deployment is a Redis with its own users.
type Deployment struct {
	Name   string
	Client func(user, password string) redis.UniversalClient
	nodes  []*testenv.RedisServer
}

// Deployments starts one Redis, Sentinel and Cluster, each with a user for every set of rights.
func Deployments(t *testing.T) []Deployment {
	single, sentinel, cluster := testenv.OwnRedis(t), testenv.Sentinel(t), testenv.Cluster(t)
	closing := func(client redis.UniversalClient) redis.UniversalClient {
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	return []Deployment{
		{Name: "one Redis", nodes: []*testenv.RedisServer{single}, Client: func(user, password string) redis.UniversalClient {
			return closing(redis.NewClient(&redis.Options{Addr: single.Addr(), Username: user, Password: password}))
		}},
		{Name: "Sentinel", nodes: append(sentinel.Replicas(), sentinel.Primary()), Client: func(user, password string) redis.UniversalClient {
			options := sentinel.Options()
			options.Username, options.Password = user, password
			return closing(redis.NewFailoverClient(options))
		}},
		{Name: "Cluster", nodes: cluster.Nodes(), Client: func(user, password string) redis.UniversalClient {
			options := cluster.Options()
			options.Username, options.Password = user, password
			return closing(redis.NewClusterClient(options))
		}},
	}
}

func (d Deployment) as(t *testing.T, user string, rights []string) redis.UniversalClient {
	t.Helper()
	command := []any{"ACL", "SETUSER", user, "reset", "on", ">password", "resetkeys", "resetchannels", "-@all"}
	for _, right := range rights {
		command = append(command, right)
	}
	for _, node := range d.nodes {
		require.NoError(t, node.Client().Do(t.Context(), command...).Err())
	}
	return d.Client(user, "password")
}

// RunRights runs everything that a package offers with exactly the documented rights, and again
// without each of them, when something must be denied. everything returns the error of each call;
// admin has all rights.
func RunRights(t *testing.T, name string, everything func(t *testing.T, client, admin redis.UniversalClient, namespace string) []error) {
	for _, d := range Deployments(t) {
		rights := documented(t, name, d.Name)
		admin := d.Client("", "")
		t.Run(d.Name, func(t *testing.T) {
			t.Run("all", func(t *testing.T) {
				t.Parallel()
				require.NoError(t, errors.Join(everything(t, d.as(t, "all", rights), admin, "all")...), "%v", rights)
			})
			for n, right := range rights {
				if right == "+ping" { // a subscription asks for signs of life after three seconds; nothing waits so long here
					continue
				}
				t.Run("without "+right, func(t *testing.T) {
					if right == "+eval" { // needed while the servers do not know the scripts; those that run later tell them
						for _, node := range d.nodes {
							require.NoError(t, node.Client().ScriptFlush(t.Context()).Err())
						}
					} else {
						t.Parallel()
					}
					rest := slices.Delete(slices.Clone(rights), n, n+1)
					name := fmt.Sprintf("without-%d", n) // a pattern of keys and one of channels can have the same text
					errs := everything(t, d.as(t, name, rest), admin, name)
					require.True(t, slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, lease.ErrDenied) }), "%v", errs)
				})
			}
		})
	}
}

// AwaitListener returns when a call waits and its process listens, or when ended is true: a waiter
// joins the queue before it listens, and learns only then that it may not.
func AwaitListener(ctx context.Context, admin redis.UniversalClient, queue, channel string, ended func() bool) {
	for ctx.Err() == nil && !ended() && admin.Exists(ctx, queue).Val() == 0 {
	}
	var listens atomic.Bool
	ask := func(ctx context.Context, server *redis.Client) error {
		for _, list := range []func(context.Context, string) *redis.StringSliceCmd{server.PubSubChannels, server.PubSubShardChannels} {
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
	}
}

// documented reads the tables of docs/leases.md.
func documented(t *testing.T, name, deployment string) []string {
	t.Helper()
	var text []byte
	for dir, err := os.Getwd(); text == nil; dir = filepath.Dir(dir) {
		require.NoError(t, err)
		require.NotEqual(t, "/", dir)
		text, _ = os.ReadFile(filepath.Join(dir, "docs", "leases.md"))
	}
	row := func(first string) []string {
		for line := range strings.Lines(string(text)) {
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
