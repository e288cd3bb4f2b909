package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// aged leaves fences of five resources: two old and free, one old and held, one old whose holder is
// back in the ledger, and a young one.
func aged(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.exec(`INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, advanced_at)
		SELECT r, 7, gen_random_uuid(), clock_timestamp() - interval '31 days' FROM unnest('{a:1,a:2,held:1,seat:1}'::text[]) r`)
	w.acquire("held:1")
	require.NoError(t, w.book(w.acquire("seat:1")))
	return w
}

func (w *world) fences() string {
	w.Helper()
	return w.one(`SELECT string_agg(resource, ' ' ORDER BY resource) FROM fencedb.fences`)
}

func TestPruneCountsUnlessToldToApply(t *testing.T) {
	t.Parallel()
	w := aged(t)
	before := w.fences()
	var r act.Pruning

	w.json("prune", &r, "prune")
	require.Equal(t, act.Pruning{OlderThanMS: (30 * term.Day).Milliseconds(), Found: 2, Held: 1}, r)
	require.Contains(t, w.ok("prune"), "2 fences are older than 30d")

	w.answer = "no\n"
	require.Equal(t, app.ExitDeclined, w.run("prune", "--apply", "--reason", "monthly").code)
	require.Equal(t, before, w.fences())
	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`))
}

func TestPruneForgetsWhatIsOldAndFreeAndRecordsIt(t *testing.T) {
	t.Parallel()
	w := aged(t)
	var r act.Pruning

	w.json("prune", &r, "prune", "--apply", "--reason", "monthly", "--yes")

	want := act.Pruning{OlderThanMS: (30 * term.Day).Milliseconds(), Found: 2, Held: 1, Forgotten: 2, Applied: true}
	require.Equal(t, want, r)
	require.Equal(t, "held:1 seat:1", w.fences())
	require.Equal(t, "prune|monthly|fences|2|720:00:00", w.one(`SELECT concat_ws('|', event, reason, details ->> 'what', details ->> 'rows', details ->> 'older_than') FROM fencedb.audit WHERE event <> 'protect'`))

	w.json("prune", &r, "prune", "--apply", "--reason", "monthly") // asks nothing, there is nothing to forget
	require.Zero(t, r.Forgotten)
}

// What was set back is never forgotten, and who holds a resource of another issuer Redis cannot
// tell.
func TestPruneLeavesFencesThatWereSetBackAndThoseOfOtherIssuers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid'); SELECT fencedb.enter(r, 50, gen_random_uuid()) FROM unnest('{a:1,a:2,zxid:1}'::text[]) r`)
	w.exec(`SELECT fencedb.reset_fence('a:1', 7, 'ann@host', 'typed')`)
	w.exec(`UPDATE fencedb.fences SET advanced_at = clock_timestamp() - interval '31 days'`)
	var r act.Pruning

	w.json("prune", &r, "prune")
	require.EqualValues(t, 1, r.Found)
	w.json("prune", &r, "prune", "--apply", "--reason", "monthly", "--yes")

	require.EqualValues(t, 1, r.Forgotten)
	require.Equal(t, "a:1 zxid:1", w.fences())
}

// A forgotten flag: what is held would be taken for free.
func TestPruneWithTheWrongFlagsKeepsWhatRedisKnows(t *testing.T) {
	t.Parallel()
	for here, wrong := range map[string][]string{
		"without a namespace": {"--namespace", ""}, `in namespace "x"`: {"--namespace", "x"}, `in namespace "shop"`: {"--hash-resources"},
	} {
		t.Run(here, func(t *testing.T) {
			t.Parallel()
			w := aged(t)
			for _, apply := range [][]string{{}, {"--apply", "--reason", "monthly", "--yes"}} {
				require.Contains(t, flowing(w.ok(slices.Concat(wrong, []string{"prune"}, apply)...)),
					"Kept: 1 that Redis does not know "+here+`, but as a lease in namespace "shop", with --hash-resources=false. See that both flags`)
			}
			require.Equal(t, "held:1 seat:1", w.fences())
		})
	}
}

// Over a network a thousand questions, one after the other, take longer than --timeout.
func TestPruneAsksRedisForManyResourcesAtOnce(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, advanced_at)
		SELECT 'a:' || n, 7, gen_random_uuid(), clock_timestamp() - interval '31 days' FROM generate_series(1, 1000) n`)
	connections := func() (n int) {
		for line := range strings.Lines(w.own.Client().Info(t.Context(), "stats").Val()) {
			_, _ = fmt.Sscanf(line, "total_connections_received:%d", &n)
		}
		return n
	}

	require.Contains(t, w.ok("prune"), "1000 fences")

	before := connections()
	require.NoError(t, w.own.Client().Do(t.Context(), "CLIENT", "PAUSE", 60_000, "WRITE").Err()) // and scripts
	// Shorter than the five seconds that each answer of Redis may take.
	got := w.run("--timeout", "3s", "prune")
	require.Contains(t, got.errOut, "1000 resources were not looked up in time (--timeout 3s)")
	require.NotContains(t, got.errOut, "unreachable")
	require.Greater(t, connections()-before, 4, "each question that waits has one")
}

func TestPruneGoesOnAfterABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id, advanced_at)
		SELECT 'a:' || n, 7, gen_random_uuid(), clock_timestamp() - interval '31 days' FROM generate_series(1, 2500) n`)
	var r act.Pruning

	w.json("prune", &r, "prune", "--apply", "--reason", "monthly", "--yes")

	require.EqualValues(t, 2500, r.Forgotten)
	require.Empty(t, w.fences())
	require.Equal(t, "3", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`), "one for each batch")
}

func TestPruneForgetsOldRecordsIfToldHowOld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO fencedb.events (kind, event, operator, reason, at)
		SELECT 'audit', 'revoke', 'ann@host', 'it hangs', clock_timestamp() - interval '1 day' * n FROM generate_series(1, 200) n`)
	var r act.Pruning
	records := func() string { return w.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'revoke'`) }

	w.json("prune", &r, "prune", "--audit-older-than", "2400h")
	require.Equal(t, &act.AuditPruning{OlderThanMS: (100 * term.Day).Milliseconds(), Found: 101}, r.Audit)
	require.Contains(t, w.ok("prune", "--audit-older-than", "2400h"), "101 records are older than 100d and may go.")
	require.Equal(t, app.ExitUsage, w.run("prune", "--audit-older-than", "2159h").code)
	require.Equal(t, app.ExitUsage, w.run("prune", "--audit-older-than", "0").code)
	w.answer = "no\n"
	asked := w.run("prune", "--apply", "--reason", "yearly", "--audit-older-than", "2400h")
	require.Equal(t, app.ExitDeclined, asked.code)
	require.Contains(t, asked.errOut, "Forget 101 records older than 100d, and 0 fences older than 30d?")
	require.Equal(t, "200", records())

	w.json("prune", &r, "prune", "--apply", "--reason", "yearly", "--yes")
	require.Nil(t, r.Audit)
	require.Equal(t, "200", records(), "what was recorded stays unless somebody says for how long")
	w.json("prune", &r, "prune", "--apply", "--reason", "yearly", "--operator", "ann@host", "--yes", "--audit-older-than", "2400h")

	require.EqualValues(t, 101, r.Audit.Forgotten)
	require.Equal(t, "99", records())
	require.Equal(t, "ann@host|yearly|101", w.one(`SELECT concat_ws('|', operator, reason, details ->> 'rows') FROM fencedb.audit WHERE event = 'prune'`))
}

// Postgres 40 days ahead: a fence of minutes ago is old by its clock alone, and a younger one of an
// hour ago, with both clocks right, by none.
func TestPruneBelievesNeitherClockAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, w.book(w.acquire("seat:1")))
	w.exec(`UPDATE fencedb.fences SET advanced_at = advanced_at - interval '40 days'`) // as that clock says of then
	before := w.fences()
	var r act.Pruning
	w.json("prune", &r, "prune", "--apply", "--reason", "nightly", "--yes")
	require.Zero(t, r.Found, "its token is young")

	w.exec(`UPDATE fencedb.fences SET last_fencing_token = last_fencing_token - 40::bigint * 86400000000`)
	_, err := w.pool.Exec(t.Context(), `SELECT fencedb.prune('fences', make_interval(secs => $1), $2, $3, $4, $5)`,
		(30 * term.Day).Seconds(), "ann@host", "nightly", time.Now().Add(-40*term.Day), []string{"seat:1"})
	require.ErrorContains(t, err, "the clock of this server says")
	require.Equal(t, before, w.fences())
}
