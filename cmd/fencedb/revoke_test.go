package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	registries "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
	"github.com/fencedb/fencedb/observe/prom"
)

func (w *world) one(sql string) (value string) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT coalesce((`+sql+`)::text, '')`).Scan(&value))
	return value
}

func (w *world) revoked(resource string) act.Revocation {
	w.Helper()
	var done act.Revocation
	w.json("revoke", &done, "revoke", resource, "--reason", "it hangs", "--operator", "ann@host", "--yes")
	return done
}

func TestAfterRevokeTheNextWriteOfTheHolderIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))

	done := w.revoked("seat:1")

	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
	require.Equal(t, &act.Former{LeaseID: l.LeaseID(), Token: l.Token(), Label: label}, done.Former)
	require.Greater(t, done.Token, l.Token())
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	require.Equal(t, "revoke|seat:1|ann@host|it hangs|true|"+l.LeaseID().String()+"|"+label,
		w.one(`SELECT concat_ws('|', event, resource, operator, reason, details ->> 'sealed', details ->> 'former_lease_id', details ->> 'former_holder') FROM fencedb.audit WHERE event <> 'protect'`))
	require.NoError(t, w.book(w.acquire("seat:1")), "the next holder is not in the way of anything")
}

func TestARevocationIsAnnouncedWhereProgramsPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("seat:1")
	w.revoked("seat:1")
	require.Zero(t, w.redis.Exists(t.Context(), "fencedb:v1:"+w.namespace+":events").Val(), "nobody publishes")

	w.refusedOnce()
	done := w.revoked("seat:1")

	watching := w.start("--json", "watch", "--since", "1h", "--kind", "revoked")
	var e feed.Event
	w.decode("event", &e, watching.next(watching.out))
	require.Equal(t, []any{"seat:1", "ann@host", done.Token}, []any{e.Resource, e.Worker, e.Token})
}

func TestAnsweringNoChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")

	for _, no := range []string{"no\n", "\n", "", "yesterday\n"} {
		w.answer = no
		got := w.run("revoke", "seat:1", "--reason", "it hangs")
		require.Equal(t, app.ExitDeclined, got.code)
		require.Contains(t, got.errOut, l.LeaseID().String(), "who it would be is shown before it is asked")
	}

	require.NoError(t, l.Extend(t.Context()))
	require.NoError(t, w.book(l))
	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`))

	w.answer = "y\n"
	says := w.run("revoke", "seat:1", "--reason", "it hangs").out
	require.Contains(t, says, "In protected tables: nothing.")
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
}

// By the holder's process, when it learns of it.
func TestARevocationByTheCommandIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	metrics, registry := prom.New(prom.Config{}), registries.NewRegistry()
	registry.MustRegister(metrics)
	l, err := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, Tracers: []lease.Tracer{metrics}}).Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	w.revoked("seat:1")
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)

	families, err := registry.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if f.GetName() == "redis_lease_lost_total" && label.GetName() == "cause" {
					counted[label.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	require.InDelta(t, 1, counted["revoked"], 0)
	require.Equal(t, "1", w.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'revoke' AND at > now() - interval '1 day'`))
}

// Whoever runs it twice, or runs what somebody else has just run, ends nobody a second time.
func TestRevokingTwiceRecordsOneRevocation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	first := w.revoked("seat:1")
	require.Equal(t, &act.Former{LeaseID: l.LeaseID(), Token: l.Token(), Label: label}, first.Former)

	again := w.revoked("seat:1")
	require.Nil(t, again.Former)
	require.Equal(t, first.Token, again.Token)
	require.Zero(t, again.AuditID)
	require.Contains(t, w.run("revoke", "seat:1", "--reason", "it hangs", "--yes").out, "Nothing was changed.")
	require.Equal(t, "1", w.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'revoke'`))

	l = w.acquire("seat:1")
	require.Equal(t, &act.Former{LeaseID: l.LeaseID(), Token: l.Token(), Label: label}, w.revoked("seat:1").Former, "another holder is another matter")
}

func TestRevokeShutsFormerHoldersOutWhereNobodyHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mistyped := []string{"revoke", "seat:2", "--reason", "it hangs", "--yes"}
	got := w.run(mistyped...)
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "nothing was changed: neither server knows seat:2")
	require.Contains(t, flowing(w.ok(append(mistyped, "--force")...)), "Redis knew no lease of seat:2 here. If its name or --namespace is not that of the programs, its holder goes on: it gets a newer token")
	require.False(t, w.revoked("seat:2").Unknown)
	w.exec(`INSERT INTO fencedb.fences VALUES ('seat:3', 41, gen_random_uuid())`)
	require.True(t, w.revoked("seat:3").Unknown, "its holder may be in another namespace")

	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	require.NoError(t, l.Release(t.Context()))
	require.Nil(t, w.revoked("seat:1").Former)
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
}

func TestRevokeOvertakesALedgerThatRedisIsBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	ahead := fencedb.NewGrant("seat:1", l.Token()+1_000_000_000_000, uuid.New(), l.ValidUntil())
	require.NoError(t, w.book(ahead))

	done := w.revoked("seat:1")

	require.Greater(t, done.Token, ahead.Token())
	require.ErrorIs(t, w.book(ahead), fencedb.ErrStale)
}

func TestRevokeEndsAHolderWhoseCounterRedisHasLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.acquire("seat:1")
	require.NoError(t, w.book(before))
	require.NoError(t, before.Release(t.Context()))
	l := w.acquire("seat:1")
	require.NoError(t, w.redis.Del(t.Context(), "lease:v1:{"+w.namespace+"/seat:1}:fence").Err())

	require.Equal(t, &act.Former{LeaseID: l.LeaseID(), Token: l.Token(), Label: label}, w.revoked("seat:1").Former)
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
}

func TestRevokeSaysWhenItCouldNotSeal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, l)
	require.NoError(t, err)

	got := w.run("--timeout", "12s", "revoke", "seat:1", "--reason", "it hangs", "--yes")

	require.Equal(t, app.ExitHalf, got.code, got.errOut)
	require.Contains(t, got.errOut, "idle in transaction", "what is in the way")
	require.NotContains(t, got.errOut, "Nothing was written")
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	require.Equal(t, "false", w.one(`SELECT string_agg(details ->> 'sealed', ' ') FROM fencedb.audit WHERE event <> 'protect'`), "once")
	require.NoError(t, tx.Commit(t.Context()))

	w.revoked("seat:1")
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
}

func TestRevokeChangesNothingWhereItCouldNotRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	role := `"app_` + w.one(`current_database()`) + `"`
	w.exec(`CREATE ROLE ` + role + `; SELECT fencedb.allow('` + role + `'); GRANT SELECT ON fencedb.fences TO ` + role)
	t.Cleanup(func() {
		_, err := w.pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	})
	w.flags = append(w.flags, "--postgres", w.pool.Config().ConnString()+"&role="+url.QueryEscape(strings.Trim(role, `"`)))

	got := w.run("revoke", "seat:1", "--reason", "it hangs", "--yes")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "operator => true")
	require.NoError(t, l.Extend(t.Context()))
}

// Postgres refuses such a text, and would do so when Redis has revoked.
func TestWhatPostgresCannotRecordIsAUsageError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	for _, args := range [][]string{{"revoke", "seat:1"}, {"reset", "seat:1", "--to", "1"}, {"prune", "--apply"}} {
		for _, flags := range [][]string{{"--reason", "\xff"}, {"--reason", "it hangs", "--operator", "\xff"}} {
			got := w.run(slices.Concat(args, flags, []string{"--yes"})...)

			require.Equal(t, app.ExitUsage, got.code, args)
			require.Contains(t, got.errOut, "valid UTF-8", args)
		}
	}
	require.NoError(t, l.Extend(t.Context()))
}

// A forgotten namespace: Redis knows nobody by this name, and the real holder would be shut out.
func TestARevocationWithoutTheNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))

	got := w.run("--namespace", "", "revoke", "seat:1", "--reason", "it hangs", "--yes")

	require.NotZero(t, got.code)
	require.Contains(t, got.errOut, "nothing was changed")
	require.Contains(t, got.errOut, `as a lease in namespace "`+w.namespace+`"`)
	require.NoError(t, l.Extend(t.Context()))
	require.NoError(t, w.book(l))
	require.Empty(t, w.one(`SELECT string_agg(event, ' ') FROM fencedb.audit WHERE event <> 'protect'`))
}

// The programs hash their names and the operator forgot, or the other way round.
func TestARevocationUnderTheOtherFormOfTheNameIsRefused(t *testing.T) {
	t.Parallel()
	for name, hashed := range map[string]bool{"hashed": true, "as it is": false} {
		w := newWorld(t)
		i := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, HashResources: hashed})
		l, err := i.Acquire(t.Context(), "seat:1", lease.NoWait())
		require.NoError(t, err)
		flag := fmt.Sprintf("--hash-resources=%v", !hashed)

		for _, args := range [][]string{{"revoke", "seat:1", "--reason", "it hangs", "--yes"}, {"with", "seat:1", "--", "true"}} {
			got := w.run(append([]string{flag}, args...)...)

			require.NotZero(t, got.code, name)
			require.Contains(t, got.errOut, fmt.Sprintf("as a lease in namespace %q, with --hash-resources=%v", w.namespace, hashed))
		}
		found := &look.Inspection{}
		w.json("inspect", found, flag, "inspect", "seat:1")
		require.Equal(t, []any{hashed, l.Token()}, []any{found.Elsewhere[0].Hashed, found.Elsewhere[0].Holder.Token})
		require.NoError(t, w.book(l))
		require.Contains(t, w.run("--namespace", "", fmt.Sprintf("--hash-resources=%v", hashed), "revoke", "seat:1", "--reason", "it hangs", "--yes").errOut, "nothing was changed")
	}
}

// Where Postgres takes no writes, the lease must not be ended in Redis: nobody could be shut out.
func TestNothingIsRevokedWherePostgresTakesNoWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	w.exec(`ALTER DATABASE ` + pgx.Identifier{w.one(`SELECT current_database()`)}.Sanitize() + ` SET default_transaction_read_only = on`)

	for _, command := range [][]string{
		{"revoke", "seat:1", "--reason", "it hangs", "--yes"},
		{"reset", "seat:1", "--to", "1", "--reason", "it hangs", "--yes"},
	} {
		got := w.run(command...)
		require.NotZero(t, got.code)
		require.Contains(t, got.errOut, "takes no writes")
	}
	require.NoError(t, l.Extend(t.Context()))
	require.Contains(t, w.diagnosed(app.ExitFailed), "error postgres_read_only")
}

func TestNothingIsRevokedOnAStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	primary := testenv.OwnPostgres(t)
	require.Zero(t, w.run("--postgres", primary.URL(), "migrate", "up").code)
	standby := primary.Standby()
	standby.Restart()

	got := w.run("--postgres", standby.URL(), "revoke", "seat:1", "--reason", "it hangs", "--yes")
	require.NotZero(t, got.code)
	require.Contains(t, got.errOut, "is a standby")
	require.NoError(t, l.Extend(t.Context()))
	require.Contains(t, w.run("--postgres", standby.URL(), "doctor").out, "postgres_replica")
}
