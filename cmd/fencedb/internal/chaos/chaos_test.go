package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
)

func TestMain(m *testing.M) {
	worker.Become(Workers(open))
	testenv.Main(m)
}

// open takes host:port of one server, "cluster" and the addresses of a Cluster, or "sentinel", the
// name of the primary and the addresses of Sentinels.
func open(address string, dial Dial) (redis.UniversalClient, error) {
	words := strings.Fields(address)
	switch words[0] {
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: words[1:], Dialer: dial}), nil
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: words[1], SentinelAddrs: words[2:], Dialer: dial,
		}), nil
	}
	return redis.NewClient(&redis.Options{Addr: address, Dialer: dial}), nil
}

const ttl = 500 * time.Millisecond

// try runs the suite and shows what it says.
func try(t *testing.T, c Config) *Verdict {
	t.Helper()
	c.Open, c.Log, c.TTL = open, t.Output(), ttl
	v, err := Run(t.Context(), c)
	require.NoError(t, err)
	v.Text(t.Output())
	return v
}

// Every kind of fault that needs no rights over the servers, by a role that has none.
func TestFaultsOfClientsAndNetworksBreakNoPromise(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.Redis(t), ordinaryRole(t)

	v := try(t, Config{PostgresURL: postgres, RedisURL: client.Options().Addr, Rounds: len(kinds)})

	require.Empty(t, v.Violations)
	require.Positive(t, v.Outcomes[Committed])
	require.Positive(t, v.Outcomes[Refused])
	for _, h := range v.Faults {
		require.Empty(t, h.Skipped, h.Kind)
	}
	require.Empty(t, v.Left)
	nothingIsLeft(t, postgres, client, v.Run)
}

// ordinaryRole returns the URL of an empty database for a role that may make schemas in it, and no
// more.
func ordinaryRole(t *testing.T) string {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), testenv.PostgresURL(t))
	require.NoError(t, err)
	database := admin.Config().Database
	role := pgx.Identifier{"role_" + database}.Sanitize()
	_, err = admin.Exec(t.Context(), `CREATE ROLE `+role+` LOGIN PASSWORD 'fencedb'; GRANT CREATE ON DATABASE `+
		pgx.Identifier{database}.Sanitize()+` TO `+role, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		defer admin.Close(ctx)
		_, err := admin.Exec(ctx, `DROP OWNED BY `+role+`; DROP ROLE `+role, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	})
	u, err := url.Parse(admin.Config().ConnString())
	require.NoError(t, err)
	u.User = url.UserPassword("role_"+database, "fencedb")
	return u.String()
}

// nothingIsLeft looks for what a run has made.
func nothingIsLeft(t *testing.T, postgres string, client *redis.Client, run string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), postgres)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var left []string
	require.NoError(t, conn.QueryRow(t.Context(), `
		SELECT coalesce(array_agg(what), '{}') FROM (
			SELECT nspname::text AS what FROM pg_namespace WHERE nspname <> 'public' AND nspname !~ '^(pg_|information_schema)'
			UNION ALL SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
		) AS found`).Scan(&left))
	require.Empty(t, left)
	require.Eventually(t, func() bool { // a server ends a session a moment after its client has left
		err := conn.QueryRow(t.Context(), `
			SELECT coalesce(array_agg(application_name), '{}') FROM pg_stat_activity
			WHERE strpos(application_name, $1) > 0 AND datname = current_database()`, run).Scan(&left)
		return err == nil && len(left) == 0
	}, time.Minute, 10*time.Millisecond, "sessions")
	keys, err := client.Keys(t.Context(), "*"+run+"*").Result()
	require.NoError(t, err)
	require.Empty(t, keys)
}

// Each wrong way to write has to be seen, and for what it is. On a busy machine a run of seconds
// may not come to it, so there are up to four.
func TestEveryControlIsConvicted(t *testing.T) {
	t.Parallel()
	for control, tc := range map[Control]struct {
		fault, broken string
		rounds        int // are enough; otherwise there are five seconds
	}{
		NoFence:           {"pause", noLost, 0},
		LockOnly:          {"pause", noLost, 0},
		PlainCounter:      {"redis keys set back", issuedRise, 2},
		UncheckedSnapshot: {"pause", noLost, 0},
		SafeToRetry:       {"commit replies lost", nilIsTrue, 0},
		NoTrigger:         {"jitter", noWayRound, 1},
		EndlessPermit:     {"pause", atMost, 0},
		OwnKey:            {"pause", runOnce, 1},
	} {
		t.Run(string(control), func(t *testing.T) {
			t.Parallel()
			c := Config{
				PostgresURL: testenv.PostgresURL(t), RedisURL: testenv.OwnRedis(t).Addr(),
				Control: control, Only: []string{tc.fault}, Rounds: tc.rounds, For: 5 * time.Second, Workers: 3,
			}
			v, convicted := (*Verdict)(nil), false
			for tries := 0; tries < 4 && !convicted; tries++ {
				v = try(t, c)
				convicted = slices.ContainsFunc(v.Violations, func(x Violation) bool { return x.Promise == tc.broken })
			}
			require.True(t, convicted)
			require.False(t, v.Passed())
			require.NotEmpty(t, v.First())
		})
	}
	require.Len(t, Controls(), 8)
}

func TestASeedReplaysItsSchedule(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) (faults []Fault) {
		next := schedule(seed, kinds, 4, ttl)
		for range 3 * len(kinds) {
			kind, f := next()
			require.Equal(t, kind.name, f.Kind)
			faults = append(faults, f)
		}
		return faults
	}
	require.Equal(t, draw(41), draw(41))
	require.NotEqual(t, draw(41), draw(42))
	seen := map[string]int{}
	for _, f := range draw(41) {
		seen[f.Kind]++
		require.Greater(t, f.Lasts, ttl, "longer than a lease")
	}
	require.Len(t, seen, len(kinds))
	require.NotContains(t, fmt.Sprint(kinds), ",", "or --only would take it for two")
	for kind, times := range seen {
		require.Equal(t, 3, times, kind)
	}
}

// interrupt calls what Ctrl-C does when the time line has a line with text.
type interrupt struct {
	text string
	call func()
}

func (i interrupt) Write(line []byte) (int, error) {
	if strings.Contains(string(line), i.text) {
		i.call()
	}
	return len(line), nil
}

func TestARunThatIsInterruptedIsJudgedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.Redis(t), ordinaryRole(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	v, err := Run(ctx, Config{
		PostgresURL: postgres, RedisURL: client.Options().Addr, Open: open, TTL: ttl, Workers: 2,
		For: time.Hour, Only: []string{"kill"}, Log: interrupt{"kill", cancel},
	})

	require.NoError(t, err)
	require.Empty(t, v.Violations)
	require.Len(t, v.Faults, 1)
	require.Positive(t, v.Outcomes[Committed])
	nothingIsLeft(t, postgres, client, v.Run)
}

func TestWhatIsNotPossibleIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	server, postgres := testenv.OwnRedis(t), ordinaryRole(t)
	addr := server.Addr()
	for name, c := range map[string]Config{
		"a fault that there is not": {PostgresURL: postgres, RedisURL: addr, Only: []string{"earthquake"}},
		"no Redis":                  {PostgresURL: postgres, RedisURL: "127.0.0.1:1"},
		"no Postgres":               {PostgresURL: "postgres://127.0.0.1:1/none", RedisURL: addr},
	} {
		c.Open = open
		_, err := Run(t.Context(), c)
		require.Error(t, err, name)
	}
	nothingIsLeft(t, postgres, server.Client(), "chaos_")
}

// What cannot be tried is no promise that was broken, and no panic.
func TestARunThatCannotBeginSaysWhyAndLeavesNothing(t *testing.T) {
	server, postgres := testenv.OwnRedis(t), ordinaryRole(t)
	c := Config{PostgresURL: postgres, RedisURL: server.Addr(), Open: open, TTL: ttl, Workers: 2}
	refused := func(says string) {
		t.Helper()
		_, err := Run(t.Context(), c)
		require.ErrorContains(t, err, says)
		_, err = Drill(t.Context(), c)
		require.ErrorContains(t, err, says)
		nothingIsLeft(t, postgres, server.Client(), "_")
	}
	t.Setenv("TMPDIR", "/nowhere") // no room for the sockets of the networks
	refused("/nowhere")
	t.Setenv("TMPDIR", "")
	for _, rule := range []string{"resetchannels", "resetkeys"} {
		require.NoError(t, server.Client().Do(t.Context(), "ACL", "SETUSER", "default", "allkeys", rule).Err())
		refused("NOPERM")
		require.NoError(t, server.Client().Do(t.Context(), "ACL", "SETUSER", "default", "allkeys", "allchannels").Err())
	}
}

// A database that has the schema fencedb keeps it, with what others have in it. The run is wide.
func TestASchemaThatWasThereStays(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	v := try(t, Config{
		PostgresURL: pool.Config().ConnString(), RedisURL: testenv.Redis(t).Options().Addr,
		Only: []string{"jitter"}, Rounds: 1, Workers: 2, Clients: 6, Width: 3,
	})
	require.Empty(t, v.Violations)
	names := task{Config: Config{Width: v.Width}}.names()
	require.Len(t, names, 3*len(objects)+2)
	for _, name := range names {
		require.True(t, slices.ContainsFunc(v.marks[name], func(m mark) bool { return m.Outcome == Committed }), name)
	}
	var fences, schemas int
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM fencedb.fences), (SELECT count(*) FROM pg_namespace WHERE nspname ~ '^chaos_')`).Scan(&fences, &schemas))
	require.Zero(t, fences)
	require.Zero(t, schemas)
	require.Len(t, v.Left, 1, "what is said to be left is the record in the audit, which nobody may delete")
}

func TestTheReports(t *testing.T) {
	t.Parallel()
	const sec = Span(time.Second)
	v := &Verdict{
		Run: "chaos_1", Seed: 41, Took: Span(10 * time.Second), Attempts: 3, Outcomes: map[Outcome]int{Committed: 2, Open: 1},
		Faults: []Happened{
			{Fault: Fault{Kind: "pause"}, At: sec, Over: 2 * sec, Healed: 3 * sec, Idle: 3 * sec / 2},
			{Fault: Fault{Kind: "pause"}, At: 4 * sec, Over: 5 * sec, Healed: 5 * sec, Idle: 2 * sec},
			{Fault: Fault{Kind: "script flush"}, Skipped: "NOPERM"},
		},
		marks: map[string][]mark{"register": {{sec, Committed}}},
	}
	var text, page bytes.Buffer
	v.Text(&text)
	require.NoError(t, v.HTML(&page))
	require.Contains(t, text.String(), "--seed 41")
	require.Contains(t, text.String(), "PASSED")
	require.Regexp(t, `pause +2 +2s +1s`, text.String())
	require.Regexp(t, `script flush +- +NOPERM`, text.String())
	require.Contains(t, page.String(), `<path class="committed" d="M100 2v20"/>`)

	v.Violations = []Violation{{noLost, "counter 1", "41 <and> 42", sec}}
	text.Reset()
	page.Reset()
	v.Text(&text)
	require.NoError(t, v.HTML(&page))
	require.Contains(t, text.String(), "FAILED")
	require.Contains(t, text.String(), "41 <and> 42")
	require.Contains(t, page.String(), "41 &lt;and&gt; 42")

	all, err := json.Marshal(v)
	require.NoError(t, err)
	require.Contains(t, string(all), `"at_ms":4000`)
}

func TestLongestIdle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		written []Span
		want    Span
	}{
		"nothing":         {nil, 10},
		"at the edges":    {[]Span{0, 10, 20}, 10},
		"in the middle":   {[]Span{5, 13, 18}, 5},
		"before and past": {[]Span{5, 25}, 10},
	} {
		var marks []mark
		for _, at := range tc.written {
			marks = append(marks, mark{at, Committed})
		}
		require.Equal(t, tc.want, longestIdle(marks, 10, 20), name)
	}
}

func TestDrill(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.Redis(t), ordinaryRole(t)
	var log bytes.Buffer

	d, err := Drill(t.Context(), Config{
		PostgresURL: postgres, RedisURL: client.Options().Addr, Open: open, TTL: 16 * ttl,
		Log: io.MultiWriter(&log, t.Output()),
	})

	require.NoError(t, err)
	require.Empty(t, d.Broken())
	require.Len(t, d.Stories, len(stories))
	for n, s := range d.Stories {
		require.Contains(t, log.String(), fmt.Sprintf("\n%d  %-42sAS PROMISED\n", n+1, s.Title))
	}
	require.Contains(t, log.String(), "6 of 6 stories ended as promised")
	requirePlainAndNarrow(t, log.String())
	requireRefusal(t, log.String())
	require.Contains(t, log.String(), "exclusion verified")
	require.Empty(t, d.Left)
	nothingIsLeft(t, postgres, client, d.Run)
}

// Plain because it goes to no terminal, narrow enough for one of 80 columns.
func requirePlainAndNarrow(t *testing.T, text string) {
	t.Helper()
	require.NotContains(t, text, "\x1b")
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

// The zombie is refused with the token it carried and the one that was stored.
func requireRefusal(t *testing.T, text string) {
	t.Helper()
	tokens := regexp.MustCompile(`carried\s+(\d+),\s+stored\s+(\d+)`).FindStringSubmatch(text)
	require.Len(t, tokens, 3)
	carried, err := strconv.ParseInt(tokens[1], 10, 64)
	require.NoError(t, err)
	stored, err := strconv.ParseInt(tokens[2], 10, 64)
	require.NoError(t, err)
	require.Less(t, carried, stored)
}

func TestADrillThatIsInterruptedSaysSoAndLeavesNothing(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.OwnRedis(t).Client(), ordinaryRole(t)
	ctx, cancel := context.WithCancel(t.Context())

	_, err := Drill(ctx, Config{
		PostgresURL: postgres, RedisURL: client.Options().Addr, Open: open, TTL: 16 * ttl,
		Log: interrupt{"kill -STOP", cancel},
	})

	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "story 5, The zombie, could not be carried out")
	nothingIsLeft(t, postgres, client, "drill_")
}

// A drill that cannot fail shows nothing. The other stories do not depend on the fence.
func TestADrillWithoutTheFenceFailsAtTheLateWrite(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.Redis(t), ordinaryRole(t)

	d, err := Drill(t.Context(), Config{
		PostgresURL: postgres, RedisURL: client.Options().Addr, Open: open, TTL: 16 * ttl, Log: t.Output(),
		Control: NoFence,
	})

	require.NoError(t, err)
	require.Equal(t, []string{"The zombie"}, d.Broken())
	require.Contains(t, d.Stories[4].Broken[0], `Ann was to be answered "stale", and got "done"`)
}

// As a late release might leave it that issues a token on the way.
func TestADrillSeesAFenceThatHasLeftTheHolderBehind(t *testing.T) {
	t.Parallel()
	server, postgres := testenv.OwnRedis(t), ordinaryRole(t)
	raise := interrupt{"A does not write", func() {
		keys, err := server.Client().Keys(t.Context(), "*table:7}:fence").Result()
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.NoError(t, server.Client().Incr(t.Context(), keys[0]).Err())
	}}

	d, err := Drill(t.Context(), Config{
		PostgresURL: postgres, RedisURL: server.Addr(), Open: open, TTL: 16 * ttl, Log: raise,
	})

	require.NoError(t, err)
	require.Equal(t, []string{"The stolen lock"}, d.Broken())
	require.Contains(t, strings.Join(d.Stories[2].Broken, "; "), "fence stale")
}
