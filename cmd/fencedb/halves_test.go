package main

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
)

const noRedis, noPostgres = "redis://127.0.0.1:1", "postgres://nobody@127.0.0.1:1/none"

func TestInspectTellsWhatTheLivingServerKnows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flags         []string
		missing, says string
		notes         []string
		redis         bool
	}{
		"no Redis":      {[]string{"--redis", noRedis}, "redis", "connection refused", []string{"redis_away"}, false},
		"a Redis hangs": {[]string{"--timeout", "10s", "--redis", "redis://" + silent(t)}, "redis", "no answer from 127.0.0.1:", []string{"redis_away"}, false},
		"no Postgres":   {[]string{"--postgres", noPostgres}, "postgres", "connect", []string{"postgres_away"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := w.acquire("seat:1")
			require.NoError(t, w.book(l))
			w.flags = append(w.flags, test.flags...)

			got := w.run("--json", "inspect", "seat:1")

			require.Equal(t, app.ExitFailed, got.code)
			require.Contains(t, got.errOut, "this is only what the other server knows: "+test.missing+":")
			require.NotContains(t, got.errOut, "context")
			require.Contains(t, got.errOut, test.says)
			var found look.Inspection
			w.decode("inspect", &found, got.out)
			require.Len(t, found.Missing, 1)
			require.Equal(t, test.missing, found.Missing[0].Server)
			require.Equal(t, test.notes, codes(found.Notes))
			require.Equal(t, []bool{test.redis, !test.redis}, []bool{found.Holder != nil, found.Fence != nil})
			text := w.run("inspect", "seat:1").out
			require.Contains(t, text, fmt.Sprint("token ", l.Token()))
			require.Contains(t, text, "not known")
			require.NotContains(t, text, "nobody")
		})
	}
	w := newWorld(t)
	got := w.run("--redis", noRedis, "--postgres", noPostgres, "inspect", "seat:1")
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "neither server answers: redis: ")
	require.Empty(t, got.out)
}

// What is said of a ledger alone is tried.
func TestWhoCanWriteIsSaidByTheLedgerAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	said := func() string {
		var found look.Inspection
		w.decode("inspect", &found, w.run("--json", "--redis", noRedis, "inspect", "seat:1").out)
		return found.Notes[0].Text
	}
	l := w.acquire("seat:1")
	require.Contains(t, said(), "Whoever has a lease with any token can write")
	require.NoError(t, w.book(l))
	require.Contains(t, said(), fmt.Sprintf("a lease with token %d or a higher one can write", l.Token()))
	require.NoError(t, w.book(l))
	require.ErrorIs(t, w.book(fencedb.NewGrant("seat:1", l.Token()-1, uuid.New(), fencedb.NoEnd)), fencedb.ErrStale)
	sealed := w.revoked("seat:1").Token
	require.Contains(t, said(), fmt.Sprintf("a lease with a token above %d can write", sealed))
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
}

func TestLeasesWithoutRedisListsWhatHasEntered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, w.acquire("table:2")))
	w.as("--redis", noRedis)

	got := w.run("--json", "leases", "seat:")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "redis: ")
	var found look.LeaseList
	w.decode("leases", &found, got.out)
	require.Len(t, found.Entered, 1)
	require.Equal(t, []any{"seat:1", l.Token(), l.LeaseID()}, []any{found.Entered[0].Resource, found.Entered[0].Token, found.Entered[0].LeaseID})
	require.Regexp(t, `(?s)Who holds what is not known.*table:2 .*seat:1 `, w.run("leases").out, "the newest first")
	got = newConsole(t, "--redis", noRedis).run("leases")
	require.Equal(t, app.ExitFailed, got.code)
	require.Empty(t, got.out)
}

// Without Redis nothing is done, unless it is told to seal only.
func TestAHolderIsShutOutWhileRedisIsAwayOrRefuses(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(w *world){
		"away": func(w *world) { w.as("--redis", noRedis) },
		"full": func(w *world) { require.NoError(w, w.redis.ConfigSet(w.Context(), "maxmemory", "1").Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := w.acquire("seat:1")
			require.NoError(t, w.book(l))
			before := w.fences()
			away(w)

			got := w.run("revoke", "seat:1", "--reason", "it hangs", "--yes")
			require.Equal(t, app.ExitFailed, got.code)
			require.Contains(t, got.errOut, "nothing was changed")
			require.Contains(t, got.errOut, "--seal-only")
			require.NoError(t, w.book(l))
			require.Equal(t, before, w.fences())
			require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'revoke'`))

			require.Equal(t, app.ExitDeclined, w.run("revoke", "seat:1", "--seal-only", "--reason", "it hangs").code)
			require.NoError(t, w.book(l))
			var done act.Revocation
			w.json("revoke", &done, "revoke", "seat:1", "--seal-only", "--reason", "it hangs", "--yes")
			require.True(t, done.SealOnly)
			require.ErrorIs(t, w.book(l), fencedb.ErrStale)
			require.Equal(t, fmt.Sprint(done.Token, " true"), w.one(`SELECT concat_ws(' ', details ->> 'token', details ->> 'sealed') FROM fencedb.audit WHERE event = 'revoke'`))
			require.Equal(t, l.LeaseID().String(), w.redis.Get(t.Context(), "lease:v1:{shop/seat:1}:owner").Val()[:36], "its lease goes on")
			says := flowing(w.ok("revoke", "seat:1", "--seal-only", "--reason", "it hangs", "--yes"))
			require.Contains(t, says, "Redis was not asked")
			require.Contains(t, says, "nothing, unless its token is above that, as when Redis's clock is, or once was, ahead of Postgres's.")

			require.NoError(t, w.redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
			require.NoError(t, l.Release(t.Context()))
			require.NoError(t, w.book(w.acquire("seat:1")), "a later lease is above the seal")
		})
	}
}

func TestASealThatCannotBeMadeSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, l)
	require.NoError(t, err)
	seal := func(resource string) answer {
		return w.run("--timeout", "10s", "revoke", resource, "--seal-only", "--reason", "it hangs", "--yes")
	}

	got := seal("seat:1")
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "idle in transaction")
	require.Contains(t, got.errOut, "the former holder can still write")
	require.NotContains(t, got.errOut, "Nothing was written")
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, w.book(l), "it can")

	w.exec(fmt.Sprintf(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid'); SELECT fencedb.enter('zxid:1', 7, gen_random_uuid()), fencedb.enter('seat:2', %d, gen_random_uuid())`, int64(protocol.MaxNumber)))
	for resource, says := range map[string]string{"zxid:1": "another issuer", "seat:2": "no token is above that"} {
		got = seal(resource)
		require.Equal(t, app.ExitFailed, got.code)
		require.Contains(t, got.errOut, "nothing was changed")
		require.Contains(t, got.errOut, says)
	}
}

// What changes something says that nothing was changed where a server is away.
func TestACommandWithoutItsServersHasChangedNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, flags := range [][]string{{"--redis", noRedis}, {"--postgres", noPostgres}} {
		for _, args := range [][]string{
			{"revoke", "seat:1", "--reason", "x", "--yes"}, {"revoke", "--behind", "--reason", "x", "--yes"}, {"reset", "seat:1", "--to", "1", "--reason", "x", "--yes"},
		} {
			got := w.run(append(flags, args...)...)
			require.Equal(t, app.ExitFailed, got.code)
			require.Contains(t, got.errOut, "nothing was changed", args)
		}
	}
}
