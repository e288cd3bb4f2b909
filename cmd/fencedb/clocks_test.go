package main

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
)

// shiftPostgres has the command see another time of Postgres. What Postgres has written so far is
// moved along.
func (w *world) shiftPostgres(ahead time.Duration) {
	w.Helper()
	w.exec(fmt.Sprintf(`CREATE SCHEMA off; CREATE FUNCTION off.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
			$$ SELECT pg_catalog.clock_timestamp() + make_interval(secs => %[1]v) $$;
		UPDATE fencedb.fences SET advanced_at = advanced_at + make_interval(secs => %[1]v);
		SET session_replication_role = replica; UPDATE fencedb.events SET at = at + make_interval(secs => %[1]v) WHERE kind = 'observed'; RESET session_replication_role`, ahead.Seconds()))
	w.as("--postgres", w.pool.Config().ConnString()+"&search_path=off,pg_catalog,public")
}

// What was a moment ago was a moment ago by the clock that wrote it, whatever time the others have.
func TestEachAgeIsByTheClockThatWroteIt(t *testing.T) {
	t.Parallel()
	for _, redis := range []time.Duration{0, time.Hour, -time.Hour} {
		for _, postgres := range []time.Duration{0, time.Hour, -time.Hour} {
			t.Run(fmt.Sprint("Redis ", redis, " Postgres ", postgres), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.exec(`SELECT fencedb.enforce('seats', observing => true); INSERT INTO seats VALUES (2, 'Bob')`)
				l := w.acquire("seat:1")
				require.NoError(t, w.book(l))
				w.publish(fmt.Sprintf(`{"kind":"extended","resource":"seat:1","worker":"w","token":%d,"ttl_ms":59000}`, l.Token()))
				w.publish(`{"kind":"refused","resource":"seat:1","worker":"w","token":41,"stored":42}`)
				w.shiftPostgres(postgres)
				if redis == 0 {
					w.ages("inspect", "seat:1", `HOLDER .*\n.*, for (\S+), ends`, `renewed (.*), for 59s`, `REFUSED.*\n(.*? ago)`, `entered (.*)\n`)
				} else { // the keys are older, or younger, than the clock says
					w.as("--redis", "redis://"+timeProxy(t, w.own.Addr(), redis))
					w.ages("inspect", "seat:1", `entered (.*)\n`)
				}
				w.ages("adopt", "seats", `no token +(\S+ ago) `, `no token +\S+ ago +(\S+ ago) `)
				w.ages("adopt", "", `seats .* (\S+ ago)\n`)
				entered := w.run("--redis", noRedis, "leases").out
				require.Regexp(t, `seat:1 +\d+ +([0-9.]+m?s ago) `, entered)
			})
		}
	}
}

// ages requires that each of the patterns finds something that was less than a minute ago.
func (w *world) ages(command, argument string, patterns ...string) {
	w.Helper()
	args := []string{command}
	if argument != "" {
		args = append(args, argument)
	}
	says := w.ok(args...)
	for _, pattern := range patterns {
		found := regexp.MustCompile(pattern).FindStringSubmatch(says)
		require.NotNil(w, found, "%s\n%s", pattern, says)
		require.Regexp(w, `^[0-9.]+m?s( ago)?$`, found[1], says)
	}
}

// After Redis's clock was set back, the tokens of before are ahead of it, and so are those that
// follow them.
func TestAgesAfterRedissClockWasSetBack(t *testing.T) {
	t.Parallel()
	w := sound(t)
	require.NoError(t, w.book(w.acquire("seat:1")))
	w.publish(`{"kind":"refused","resource":"seat:1","worker":"w","token":41,"stored":42}`)
	w.as("--redis", "redis://"+timeProxy(t, w.own.Addr(), -time.Hour))

	names, list := w.listed("--oldest", "--older-than", "24h")
	require.Equal(t, []string{"seat:1"}, names, "it may be as old")
	require.Nil(t, list.Leases[0].IssuedAt)
	require.Regexp(t, `seat:1 +\d+ +not known `, w.ok("leases"))
	says := w.ok("inspect", "seat:1")
	require.Regexp(t, `HOLDER .*\n +token \d+, ends in`, says, "and not for how long")
	require.Regexp(t, `\n[\d.]+m?s ago +w `, says, "an event has the clock of its program")

	w.disconnect()
	require.Regexp(t, `(?s)warning tokens_ahead\s+tokens are ahead of the clock of Redis, that of seat:1 the furthest, until\s.* UTC, for\s+another\s+(59m\d+s|1h)\s`, w.ok("doctor"))
	w.exec(fmt.Sprintf(`SELECT fencedb.enter('seat:2', %d, gen_random_uuid())`, time.Now().UnixMicro()))
	w.disconnect()
	require.Regexp(t, `(?s)error redis_behind.*Redis knows none, and its clock passes that\s+at\s.* UTC,\s+in\s+(59m\d+s|1h)\s`, w.run("doctor").out)
}

// Nobody holds it, and the ledger does not know it.
func TestCountersOfIdleResourcesThatAreAheadOfTheClock(t *testing.T) {
	t.Parallel()
	w := sound(t)
	l := w.acquire("seat:1")
	require.NoError(t, l.Release(t.Context()))
	require.Empty(t, w.diagnosed(app.ExitDone))
	_, err := w.issuer.Raise(t.Context(), "seat:1", time.Now().Add(time.Hour).UnixMicro())
	require.NoError(t, err)

	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.fences`))
	require.Equal(t, []string{"warning tokens_ahead"}, w.diagnosed(app.ExitDone))
	require.Regexp(t, `that of seat:1 the furthest, until .* UTC, for another (59m\d+s|1h)`, flowing(w.ok("doctor")))
}

// And after Postgres's was.
func TestAgesAfterPostgressClockWasSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, w.book(w.acquire("seat:1")))
	w.exec(`UPDATE fencedb.fences SET advanced_at = advanced_at + interval '1 hour'`)

	require.Regexp(t, `entered (59m\d+s|1h) ahead of the clock, which was set back\n`, w.ok("inspect", "seat:1"))
}
