package main

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// The URL of the programs has the mode that suits their pooler, and the pooler gives each statement
// another session. Each command is called twice, as one session remembers what another has
// prepared. migrate up wants a session, and goes past a pooler: docs/postgres.md.
func TestEachCommandInEachQueryModeAndBehindPgBouncer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bouncer := testenv.PgBouncer(t, w.pool.Config().ConnString(), "transaction", "default_pool_size=3")
	pgBouncer, err := url.Parse(bouncer.URL())
	require.NoError(t, err)
	direct, err := url.Parse(w.pool.Config().ConnString())
	require.NoError(t, err)
	w.exec(`INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, advanced_at) VALUES ('a:1', 7, gen_random_uuid(), clock_timestamp() - interval '31 days')`)
	for _, address := range []*url.URL{direct, pgBouncer} {
		for _, mode := range []string{"", "cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
			to := *address
			query := to.Query()
			if mode != "" {
				query.Set("default_query_exec_mode", mode)
			}
			to.RawQuery = query.Encode()
			w.as("--postgres", to.String())
			for name := range calls {
				if slices.Contains([]string{"migrate up", "migrate down", "migrate reset", "chaos", "drill"}, name) || // below
					slices.Contains([]string{"watch", "ttl"}, name) { // do not ask Postgres
					continue
				}
				for range 2 {
					args := call(name)
					switch name {
					case "revoke", "reset":
						l := w.acquire("seat:1")
						require.NoError(t, w.book(l))
						if name == "reset" {
							require.NoError(t, l.Release(t.Context()))
							args = append(args, "--force")
						}
					}
					got := w.run(args...)
					require.Zero(t, got.code, "%s in mode %q of %s: %s", name, mode, address.Host, got.errOut)
				}
			}
			for _, args := range [][]string{
				{"revoke", "--behind", "--reason", "restored", "--yes"}, {"revoke", "seat:1", "--seal-only", "--reason", "away", "--yes"},
				{"revoke", "render", "--permit", "all", "--reason", "it hangs", "--yes"},
				{"adopt"}, {"prune"}, {"history", "seat:1", "--at", "12:00"}, {"prune", "--apply", "--reason", "m", "--yes", "--audit-older-than", "2161h"},
			} {
				l, permit := w.acquire("seat:1"), w.permit("render")
				if slices.Contains(args, "--behind") { // which makes it anew, so that doctor misses nothing later
					w.exec(`DELETE FROM fencedb.fences WHERE resource = 'seat:1'`)
				}
				got := w.run(args...)
				require.Zero(t, got.code, "%v in mode %q of %s: %s", args, mode, address.Host, got.errOut)
				if slices.Contains(args, "--behind") {
					require.ErrorIs(t, w.book(fencedb.NewGrant("seat:1", l.Token()-1, l.LeaseID(), fencedb.NoEnd)), fencedb.ErrStale)
				}
				require.NoError(t, l.Release(t.Context()))
				if slices.Contains(args, "--permit") {
					require.ErrorIs(t, permit.Release(t.Context()), lease.ErrRevoked)
				} else {
					require.NoError(t, permit.Release(t.Context()))
				}
			}
		}
	}
	require.Equal(t, "12", w.one(`SELECT count(*) FROM fencedb.audit WHERE details ->> 'permit' = 'revoked'`))
}

// What makes and removes the schema, in the mode of the URL of the programs.
func TestMigrationsInEachQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newConsole(t)
			c.flags = append(c.flags, "--postgres", testenv.PostgresURL(t)+"&default_query_exec_mode="+mode)
			for _, call := range [][]string{
				{"migrate", "up"}, {"migrate", "up"}, {"migrate", "status"}, {"migrate", "down", "--yes"}, {"migrate", "up"}, {"migrate", "reset", "--yes"},
			} {
				got := c.run(call...)
				require.Equal(t, app.ExitDone, got.code, "%v: %s", call, got.errOut)
			}
		})
	}
}

// Drill and chaos bring a schema of their own, and write in the mode of the URL, as programs do.
func TestDrillAndChaosInQueryModesAndBehindPgBouncer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	direct := w.pool.Config().ConnString()
	bouncer := testenv.PgBouncer(t, direct, "transaction", "default_pool_size=20")
	bouncing, straight := bouncer.URL()+"&default_query_exec_mode=", direct+"&default_query_exec_mode="
	for _, address := range []string{bouncing + "exec", bouncing + "cache_describe", straight + "describe_exec", straight + "simple_protocol"} {
		w.as("--postgres", address)
		calls := [][]string{{"chaos", "--for", "1s", "--ttl", "4s", "--workers", "2", "--clients", "1"}}
		if address == bouncing+"exec" || address == straight+"simple_protocol" { // it takes long
			calls = append(calls, []string{"drill", "--ttl", "8s"})
		}
		for _, call := range calls {
			got := w.run(call...)
			require.Zero(t, got.code, "%v with %s: %s%s", call, address, got.errOut, got.out)
		}
	}
	state := func() []string {
		keys := w.redis.Keys(t.Context(), "*").Val()
		slices.Sort(keys)
		return append(keys, w.one(`SELECT string_agg(nspname, ' ' ORDER BY nspname) FROM pg_namespace`))
	}
	before := state()
	for _, mode := range []string{"", "&default_query_exec_mode=cache_statement", "&default_query_exec_mode=describe_exec"} {
		w.as("--postgres", bouncer.URL()+mode)
		for _, call := range [][]string{{"drill", "--ttl", "1s"}, {"chaos", "--for", "1s"}} {
			got := w.run(call...)
			if got.code == app.ExitDone && !strings.HasSuffix(mode, "describe_exec") {
				continue // of a PgBouncer that tracks prepared statements
			}
			require.Equal(t, app.ExitFailed, got.code)
			require.Regexp(t, `^fencedb: nothing was changed: postgres: the query mode ".+" needs a session, .*default_query_exec_mode=exec`, got.errOut)
			require.Empty(t, got.out)
		}
	}
	require.Equal(t, before, state())
}
