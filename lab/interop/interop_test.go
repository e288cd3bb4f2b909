// Package interop tests that clients in three languages take turns on one resource: those of this
// directory, which were written from docs/protocol.md, and package lease with package fencedb.
package interop

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/grant"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) {
	worker.Become(map[string]worker.Life{"interop": serve})
	testenv.Main(m)
}

// order asks a worker to count once: acquire, read and write in one transaction, release.
type order struct {
	Resource string `json:"resource"`
	WaitMS   int64  `json:"wait_ms"`
	Hold     bool   `json:"hold"` // tell when it holds, and go on after the next line
	Late     bool   `json:"late"` // write without a look at its own time
	Line     string `json:"line"` // write under this grant, and acquire nothing
}

// event is that a worker is ready, that it holds, or what came of an order.
type event struct {
	At      string          `json:"at"`
	Outcome string          `json:"outcome"`
	Value   int64           `json:"value"`
	Token   int64           `json:"token"`
	Line    string          `json:"line"`   // the grant of a holder in Python
	Stored  int64           `json:"stored"` // of stale
	Error   string          `json:"error"`
	Step    json.RawMessage `json:"step"` // of the vectors that was carried out
}

// setting is what a worker is started with. The others find it in their environment.
type setting struct {
	Worker, Postgres, Redis, Namespace string
	TTL                                time.Duration
}

// serve is the worker in Go.
func serve(ctx context.Context, self *worker.Self) error {
	var s setting
	if err := self.Config(&s); err != nil {
		return err
	}
	options, err := redis.ParseURL(s.Redis)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	pool, err := pgxpool.New(ctx, s.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	issuer, err := lease.New(client, lease.Config{TTL: s.TTL, Namespace: s.Namespace, Holder: s.Worker})
	if err != nil {
		return err
	}
	defer issuer.Close(ctx)
	self.Tell(event{})
	var o order
	for self.Order(&o) == nil {
		self.Tell(count(ctx, self, s, issuer, pool, o))
		o = order{}
	}
	return nil
}

func count(ctx context.Context, self *worker.Self, s setting, issuer *lease.Issuer, pool *pgxpool.Pool, o order) event {
	e := event{Outcome: "written"}
	l, err := issuer.Acquire(ctx, o.Resource, lease.WaitAtMost(time.Duration(o.WaitMS)*time.Millisecond))
	if errors.Is(err, lease.ErrHeld) {
		return event{Outcome: "held", Error: err.Error()}
	} else if err != nil {
		return event{Outcome: "error", Error: err.Error()}
	}
	defer l.Release(ctx)
	e.Token = l.Token()
	var grant fencedb.Grant = l
	if o.Hold {
		self.Tell(event{At: "holding", Token: l.Token()})
		var line any
		_ = self.Order(&line)
	}
	if o.Late {
		grant = fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), time.Now().Add(10*time.Second))
	}
	err = fencedb.Tx(ctx, pool, grant, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT value + 1 FROM counters WHERE resource = $1`, o.Resource).Scan(&e.Value); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE counters SET value = $1 WHERE resource = $2`, e.Value, o.Resource); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO writes (resource, value, token, worker) VALUES ($1, $2, $3, $4)`, o.Resource, e.Value, e.Token, s.Worker)
		return err
	})
	var stale *fencedb.StaleError
	switch {
	case err == nil:
		return e
	case errors.As(err, &stale):
		return event{Outcome: "stale", Token: stale.Token, Stored: stale.Stored}
	case lease.IsLost(err):
		return event{Outcome: "lost", Error: err.Error()}
	case errors.Is(err, fencedb.ErrCommitUnknown):
		return event{Outcome: "commitunknown", Error: err.Error()}
	}
	return event{Outcome: "rolledback", Error: err.Error()}
}

// member is a worker process.
type member struct {
	*worker.Process[event]
	name, language string
}

// world is a resource, its counter, and workers in every language.
type world struct {
	*testing.T
	setting
	pool    *pgxpool.Pool
	issuer  *lease.Issuer
	members []*member
}

const resource = "path/to/{counter}"

func newWorld(t *testing.T, ttl time.Duration, each int) *world {
	t.Helper()
	pool, client := testenv.Postgres(t), testenv.Redis(t)
	w := &world{T: t, pool: pool, setting: setting{
		Postgres: pool.Config().ConnString(), Redis: "redis://" + client.Options().Addr + "/0", Namespace: testenv.Namespace(t), TTL: ttl,
	}}
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE counters (resource text PRIMARY KEY, value bigint NOT NULL);
		CREATE TABLE writes (resource text NOT NULL, value bigint NOT NULL, token bigint NOT NULL, worker text NOT NULL);
		INSERT INTO counters VALUES ('path/to/{counter}', 0);
		SELECT fencedb.protect('counters', resource => '{resource}'), fencedb.protect('writes', resource => '{resource}')`)
	require.NoError(t, err)
	w.issuer, err = lease.New(client, lease.Config{TTL: 30 * time.Second, Namespace: w.Namespace})
	require.NoError(t, err)
	for n := range each {
		for _, language := range []string{"go", "python", "node"} {
			w.start(language, language+strconv.Itoa(n+1))
		}
	}
	return w
}

func (w *world) start(language, name string) {
	w.Helper()
	s := w.setting
	s.Worker = name
	var process *worker.Process[event]
	var err error
	if language == "go" {
		process, err = worker.Start[event](w.Context(), "interop", s)
	} else {
		process, err = worker.Spawn[event](w.Context(), program(w.T, language, s))
	}
	require.NoError(w, err)
	w.Cleanup(process.Kill)
	w.members = append(w.members, &member{process, name, language})
}

// program is a worker in Python or Node, as internal/tools/ensure.sh installs what it needs.
func program(t *testing.T, language string, s setting, args ...string) *exec.Cmd {
	t.Helper()
	scripts, err := filepath.Abs("../../internal/protocol")
	require.NoError(t, err)
	modules, err := filepath.Abs("../../.bin/interop/node_modules")
	require.NoError(t, err)
	cmd := exec.Command("node", append([]string{"worker.js"}, args...)...)
	if language == "python" {
		cmd = exec.Command("/usr/bin/python3", append([]string{"-B", "worker.py"}, args...)...)
	}
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules, "SCRIPTS="+scripts, "POSTGRES="+s.Postgres, "REDIS="+s.Redis,
		"NAMESPACE="+s.Namespace, "WORKER="+s.Worker, "TTL_MS="+strconv.FormatInt(s.TTL.Milliseconds(), 10))
	return cmd
}

func (w *world) next(m *member) event {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	e, err := m.Next(ctx)
	require.NoError(w, err, m.name)
	return e
}

// written are the writes in their order.
func (w *world) written() (all []event, workers []string) {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), `SELECT value, token, worker FROM writes ORDER BY value`)
	require.NoError(w, err)
	for rows.Next() {
		var e event
		var name string
		require.NoError(w, rows.Scan(&e.Value, &e.Token, &name))
		all, workers = append(all, e), append(workers, name)
	}
	require.NoError(w, rows.Err())
	return all, workers
}

func TestOtherLanguagesRunTheVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/protocol.json")
	require.NoError(t, err)
	var vectors struct {
		Stories []struct{ Steps []json.RawMessage }
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	steps := 0
	for _, story := range vectors.Stories {
		steps += len(story.Steps)
	}
	for _, language := range []string{"python", "node"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			s := setting{Postgres: testenv.Postgres(t).Config().ConnString(), Redis: "redis://" + testenv.OwnRedis(t).Addr() + "/0"}
			process, err := worker.Spawn[event](t.Context(), program(t, language, s, "vectors", "../../docs/protocol.json"))
			require.NoError(t, err)
			defer process.Kill()
			done := 1
			for range process.Events() {
				done++
			}
			require.Equal(t, steps, done, "what it printed says why")
		})
	}
}

func TestTheOrderOfArrivalHoldsAcrossLanguages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*time.Second, 2)
	var came []string
	for _, line := range [][]int{{0, 1, 2, 3, 4, 5}, {5, 1, 0, 4, 2, 3}, {2, 5, 1, 3, 4, 0}} {
		l, err := w.issuer.Acquire(t.Context(), resource, lease.NoWait())
		require.NoError(t, err)
		for n, place := range line {
			m := w.members[place]
			require.NoError(t, m.Order(order{Resource: resource, WaitMS: 50_000}))
			came = append(came, m.name)
			require.Eventually(t, func() bool {
				found, err := w.issuer.Inspect(t.Context(), resource)
				return err == nil && found.Waiters == n+1
			}, time.Minute, 5*time.Millisecond, "%s does not wait", m.name)
		}
		require.NoError(t, l.Release(t.Context()))
		for _, place := range line {
			e := w.next(w.members[place])
			require.Equal(t, "written", e.Outcome, "%s: %+v", w.members[place].name, e)
		}
	}
	_, workers := w.written()
	require.Equal(t, came, workers)
}

// The holder is stopped until another has written, and then writes by its own time, or without a
// look at it.
func TestAStoppedHolderOfEachLanguageIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6*time.Second, 1)
	for n, m := range w.members {
		for _, late := range []bool{false, true} {
			other := w.members[(n+1)%len(w.members)]
			require.NoError(t, m.Order(order{Resource: resource, WaitMS: 30_000, Hold: true, Late: late}))
			holds := w.next(m)
			require.Equal(t, "holding", holds.At, "%s: %+v", m.name, holds)
			require.NoError(t, m.Stop())
			require.NoError(t, other.Order(order{Resource: resource, WaitMS: 30_000}))
			wrote := w.next(other)
			require.Equal(t, "written", wrote.Outcome, "%s: %+v", other.name, wrote)
			require.Greater(t, wrote.Token, holds.Token)
			require.NoError(t, m.Continue())
			require.NoError(t, m.Order(nil)) // goes on
			came := w.next(m)
			if late {
				require.Equal(t, "stale", came.Outcome, "%s: %+v", m.name, came)
				require.Equal(t, []int64{holds.Token, wrote.Token}, []int64{came.Token, came.Stored}, m.name)
			} else {
				require.Equal(t, "lost", came.Outcome, "%s: %+v", m.name, came)
			}
		}
	}
}

// What a holder in one language sends, another language verifies and writes under.
func TestAGrantTravelsBetweenLanguages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 10*time.Second, 0)
	w.start("python", "python1")
	python := w.members[0]
	under := func(line string) event {
		require.NoError(t, python.Order(order{Resource: resource, Line: line}))
		return w.next(python)
	}
	l, err := w.issuer.Acquire(t.Context(), resource)
	require.NoError(t, err)
	line, err := grant.Encode(l)
	require.NoError(t, err)
	require.Equal(t, event{Outcome: "written", Value: 1, Token: l.Token()}, under(line))

	require.NoError(t, l.Release(t.Context()))
	require.Equal(t, "lost", under(line).Outcome, "it is not current")
	stale := strings.Replace(line, strconv.FormatInt(l.Token(), 10), strconv.FormatInt(l.Token()+1, 10), 1)
	require.Equal(t, "lost", under(stale).Outcome, "it was made up")
	for _, other := range []string{"v2" + line[2:], line + " more", strings.Replace(line, l.LeaseID().String(), "none", 1)} {
		require.Equal(t, "malformed", under(other).Outcome)
	}

	require.NoError(t, python.Order(order{Resource: resource, Hold: true}))
	holds := w.next(python)
	ctx, cancel, err := grant.Verified(w.issuer).Accept(t.Context(), holds.Line)
	require.NoError(t, err)
	defer cancel()
	g, _ := grant.FromContext(ctx)
	require.Equal(t, []any{resource, holds.Token}, []any{g.Resource(), g.Token()})
	_, err = fencedb.Exec(ctx, w.pool, g, `UPDATE counters SET value = value + 1`)
	require.NoError(t, err)
	require.NoError(t, python.Order(nil))
	require.Equal(t, event{Outcome: "written", Value: 3, Token: holds.Token}, w.next(python))
}

// Every fourth order holds. Holders are stopped then, until others have written, so their lease is
// over when they go on; every other one of them does not look at its own time.
func TestNoUpdateIsLostAcrossLanguages(t *testing.T) {
	t.Parallel()
	const enough, stops, meanwhile = 30, 3, 5 // of each language: writes, stopped holders; writes of others during a stop
	w := newWorld(t, 1500*time.Millisecond, 2)
	type told struct {
		event
		by *member
	}
	events := make(chan told)
	for _, m := range w.members {
		go func() {
			for n := 1; m.Order(order{Resource: resource, WaitMS: 30_000, Hold: n%4 == 0, Late: n%8 == 0}) == nil; n++ {
				for done := false; !done; {
					e, ok := <-m.Events()
					if !ok {
						return
					}
					done = e.At == ""
					events <- told{e, m}
				}
			}
		}()
	}

	outcomes, stopped := map[string]int{}, map[string]int{}
	acknowledged := map[int64]told{}
	next := func() (e told) {
		select {
		case e = <-events:
		case <-time.After(time.Minute):
			require.FailNow(t, "nobody tells anything", "%v", outcomes)
		}
		if e.At == "" {
			require.Contains(t, []string{"written", "stale", "lost", "held", "rolledback"}, e.Outcome, "%s: %s", e.by.name, e.Error)
			outcomes[e.by.language+" "+e.Outcome]++
		}
		if e.Outcome == "written" {
			first, twice := acknowledged[e.Value]
			require.False(t, twice, "%v and %v were told that they wrote %d", first, e, e.Value)
			acknowledged[e.Value] = e
		}
		return e
	}
	missing := func() bool {
		for _, m := range w.members {
			if outcomes[m.language+" written"] < enough || outcomes[m.language+" stale"]+outcomes[m.language+" lost"] < stops {
				return true
			}
		}
		return false
	}
	for missing() {
		holder := next()
		if holder.At == "" {
			continue
		}
		if stopped[holder.by.language] < stops {
			stopped[holder.by.language]++
			require.NoError(t, holder.by.Stop())
			for others := 0; others < meanwhile; {
				e := next()
				if e.At != "" {
					require.NoError(t, e.by.Order(nil)) // one at a time
				} else if e.Outcome == "written" {
					others++
				}
			}
			require.NoError(t, holder.by.Continue())
		}
		require.NoError(t, holder.by.Order(nil))
	}
	go func() { // what was under way may still be told
		for range events {
			continue
		}
	}()
	for _, m := range w.members {
		m.Kill()
	}

	var value int64
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT value FROM counters`).Scan(&value))
	all, workers := w.written()
	require.EqualValues(t, len(all), value, "a write was lost")
	for n, e := range all {
		require.EqualValues(t, n+1, e.Value, "a write was lost")
		if n > 0 && e.Token <= all[n-1].Token {
			require.Equal(t, all[n-1].Token, e.Token, "tokens go down")
			require.Equal(t, workers[n-1], workers[n], "two holders of one token")
		}
		if a, known := acknowledged[e.Value]; known {
			require.Equal(t, a.by.name, workers[n])
			require.Equal(t, a.Token, e.Token)
			delete(acknowledged, e.Value)
		}
	}
	require.Empty(t, slices.Collect(maps.Keys(acknowledged)), "told to be written, and not there")
	for what, times := range outcomes {
		t.Logf("%s: %d", what, times)
	}
}
