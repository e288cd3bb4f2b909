package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// healing bounds how long after a fault a resource may stay idle: what a waiter that was forgotten sleeps (5 s), and how long
// its place is kept (1 s), with room for a machine that is busy.
const healing = 10 * time.Second

// patience bounds waiting for what happens by itself under load.
const patience = 20 * time.Second

// survive injects a fault under load, and judges.
func (w *world) survive(fault func()) {
	w.Helper()
	stop := w.start()
	defer stop()
	w.awaitCommits(nap)
	for range rounds(w.T) {
		fault()
		w.awaitHealing()
	}
	w.awaitLateWrites()
	stop()
	w.judge()
}

// each waits until done holds for every resource.
func (w *world) each(what string, atMost time.Duration, done func(before, now tally) bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), atMost)
	defer cancel()
	for _, resource := range resources {
		before := w.board.read(resource)
		ok := w.board.await(ctx, resource, func(now tally) bool { return done(before, now) })
		require.True(w, ok, "%s: no %s within %v", resource, what, atMost)
	}
}

func (w *world) awaitCommits(n int) {
	w.Helper()
	w.each("commits", patience, func(before, now tally) bool { return now.commits >= before.commits+n })
}

// awaitHealing wants a commit by someone who began after the fault.
func (w *world) awaitHealing() {
	w.Helper()
	over := time.Now()
	w.each("healing", healing, func(_, now tally) bool { return now.latest.After(over) })
	w.Logf("healed in %v", time.Since(over).Round(time.Millisecond))
}

// awaitLateWrites makes sure that those who overslept were there to be judged, also after the fault.
func (w *world) awaitLateWrites() {
	w.Helper()
	for kind := range kinds {
		w.each("late writes", patience, func(before, now tally) bool {
			return now.refused[kind]+now.written[kind] > before.refused[kind]+before.written[kind]
		})
	}
}

// judge asks Postgres alone, but for the number of commits that workers were told of.
func (w *world) judge() {
	w.Helper()
	for _, resource := range resources {
		told := w.board.read(resource)
		assert.Equal(w, int64(told.commits), w.count(`SELECT count(*) FROM history WHERE resource = $1`, resource), "what was told committed has")
		assert.Equal(w, int64(told.commits), w.count(`SELECT value FROM counters WHERE resource = $1`, resource), "the counter")
		assert.Zero(w, w.count(wentDown, resource), "tokens that went down")
		assert.Zero(w, w.count(shared, resource), "tokens of several leases")
		assert.Zero(w, w.count(lost, resource), "lost updates")
		w.Logf("%s: %d commits; late writes by those who slept before and while writing: refused %v, written %v",
			resource, told.commits, told.refused, told.written)
	}
}

const (
	wentDown = `
		SELECT count(*) FROM (
			SELECT token < lag(token) OVER (ORDER BY place) AS down FROM history WHERE resource = $1
		) AS steps WHERE down`
	shared = `
		SELECT count(*) FROM (
			SELECT token FROM history WHERE resource = $1 GROUP BY token HAVING count(DISTINCT lease_id) > 1
		) AS tokens`
	// The nth commit must have counted to n.
	lost = `SELECT count(*) FROM history WHERE resource = $1 AND value <> place`
)

func (w *world) count(sql, resource string) (n int64) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), sql, resource).Scan(&n))
	return n
}

func TestTheJudgeSeesEachFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.exec(`ALTER TABLE history DISABLE TRIGGER USER`)
	w.exec(`
		INSERT INTO history (resource, place, value, token, lease_id)
		SELECT resource, place, value, token, md5(holder)::uuid FROM (VALUES
			('fine', 1, 1, 41, 'ann'), ('fine', 2, 2, 41, 'ann'), ('fine', 3, 3, 42, 'ben'),
			('down', 1, 1, 42, 'ben'), ('down', 2, 2, 41, 'ann'),
			('twin', 1, 1, 41, 'ann'), ('twin', 2, 2, 41, 'ben'),
			('lost', 1, 1, 41, 'ann'), ('lost', 2, 1, 42, 'ben')
		) AS rows (resource, place, value, token, holder)`)
	for resource, found := range map[string][3]int64{"fine": {0, 0, 0}, "down": {1, 0, 0}, "twin": {0, 1, 0}, "lost": {0, 0, 1}} {
		require.Equal(t, found, [3]int64{w.count(wentDown, resource), w.count(shared, resource), w.count(lost, resource)}, resource)
	}
}
