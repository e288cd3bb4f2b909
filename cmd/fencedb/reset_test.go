package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// mistaken is a world in which somebody has written to seat 1 under the highest token that there
// is.
func mistaken(t *testing.T) (*world, fencedb.Grant) {
	t.Helper()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	require.NoError(t, l.Release(t.Context()))
	grant := fencedb.NewGrant("seat:1", protocol.MaxNumber, uuid.New(), fencedb.NoEnd)
	require.NoError(t, w.book(grant))
	return w, grant
}

func TestAfterAResetTheNextHolderWrites(t *testing.T) {
	t.Parallel()
	w, grant := mistaken(t)
	require.Equal(t, []string{"fence_too_high"}, codes(w.inspected("seat:1").Notes))
	l := w.acquire("seat:1")
	require.Equal(t, []string{"fence_too_high"}, codes(w.inspected("seat:1").Notes))
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)
	require.NoError(t, l.Release(t.Context()))
	var done act.SetBack

	w.json("reset", &done, "reset", "seat:1", "--to", fmt.Sprint(l.Token()), "--reason", "ticket 4713", "--operator", "ann@host", "--yes")

	require.Equal(t, &act.Former{LeaseID: grant.LeaseID(), Token: protocol.MaxNumber}, done.Former)
	require.Equal(t, l.Token(), done.Token)
	require.Equal(t, l.Token(), *done.LastToken, "Redis was not behind")
	require.Equal(t, fmt.Sprintf("reset|seat:1|ann@host|ticket 4713|%d|%d", int64(protocol.MaxNumber), l.Token()),
		w.one(`SELECT concat_ws('|', event, resource, operator, reason, details ->> 'former_token', details ->> 'token') FROM fencedb.audit WHERE event <> 'protect'`))
	require.Equal(t, []string{"fence_reset"}, codes(w.inspected("seat:1").Notes))
	require.ErrorIs(t, w.book(l), fencedb.ErrStale, "the token that it was set back to is nobody's")
	next := w.acquire("seat:1")
	require.NoError(t, w.book(next))
	require.Equal(t, next.Token(), w.inspected("seat:1").Fence.Token)
	_, err := fencedb.Exec(t.Context(), w.pool, next, `UPDATE seats SET guest = 'Bob'`)
	require.NoError(t, err, "the row that was stamped by mistake")
}

// A sealed acquisition has raised the counter to the fence. It would do so again as long as the
// fence is there, so the fence goes back first.
func TestAfterAResetASealedHolderWritesOnceItsCounterIsGone(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	desk := guard.New(w.issuer, w.pool)
	book := func() error {
		return desk.Do(t.Context(), "seat:1", func(ctx context.Context, h *guard.Holder) error {
			_, err := h.Exec(ctx, `INSERT INTO seats VALUES (1, 'Ann')`)
			return err
		})
	}
	counter := "lease:v1:{" + w.namespace + "/seat:1}:fence"
	require.ErrorIs(t, book(), lease.ErrExhausted)
	require.NoError(t, w.redis.Rename(t.Context(), counter, counter+":away").Err())
	require.ErrorIs(t, book(), lease.ErrExhausted, "it was raised again")

	said := w.run("reset", "seat:1", "--to", "41", "--reason", "ticket 4713", "--yes").errOut
	require.NotContains(t, said, fmt.Sprintf("--to %d", int64(protocol.MaxNumber)), "that would let nobody in")
	require.Contains(t, said, "RENAME '"+counter+"' 'exhausted:"+counter+"'")

	w.ok("reset", "seat:1", "--to", fmt.Sprint(time.Now().UnixMicro()), "--force", "--reason", "ticket 4713", "--yes")
	require.ErrorIs(t, book(), lease.ErrExhausted)
	require.NoError(t, w.redis.Rename(t.Context(), counter, counter+":away").Err())
	require.NoError(t, book())
}

func TestRevokeShutsOutWhomAResetHasLetIn(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	stale := func(token int64) fencedb.Grant { return fencedb.NewGrant("seat:1", token, uuid.New(), fencedb.NoEnd) }
	got := w.run("revoke", "seat:1", "--reason", "x", "--yes")
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "fencedb reset")
	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`))

	w.ok("reset", "seat:1", "--to", "41", "--force", "--reason", "ticket 4713", "--yes")
	require.NoError(t, w.book(stale(45)))
	w.revoked("seat:1")

	require.ErrorIs(t, w.book(stale(46)), fencedb.ErrStale)
	require.NoError(t, w.book(w.acquire("seat:1")))
}

func TestAResetRaisesACounterThatIsLower(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	to := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, w.book(fencedb.NewGrant("seat:1", to+1, uuid.New(), fencedb.NoEnd)))
	var done act.SetBack

	w.json("reset", &done, "reset", "seat:1", "--to", fmt.Sprint(to), "--reason", "the clock was ahead", "--yes")

	require.Equal(t, to, *done.LastToken)
	require.NoError(t, w.book(w.acquire("seat:1")))
}

func TestAResetThatRedisRefusesLeavesTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	to := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, w.book(fencedb.NewGrant("seat:1", to+1, uuid.New(), fencedb.NoEnd)))
	before := w.fences()
	require.NoError(t, w.redis.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())

	got := w.run("reset", "seat:1", "--to", fmt.Sprint(to), "--reason", "the clock was ahead", "--yes")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "; the fence was not set back")
	require.Equal(t, before, w.fences())
}

func TestAResetAsksAndSaysWhatBecomesTrue(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	before := w.fences()

	w.answer = "no\n"
	got := w.run("reset", "seat:1", "--to", "41", "--force", "--reason", "ticket 4713")
	require.Equal(t, app.ExitDeclined, got.code)
	require.Contains(t, got.errOut, "Every holder with a higher one can write again; Redis has issued tokens up to")
	require.Equal(t, before, w.fences())
	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`))

	w.answer = "y\n"
	require.Contains(t, w.run("reset", "seat:1", "--to", "41", "--force", "--reason", "ticket 4713").out, "with a token above 41 can write to protected tables")
	require.NoError(t, w.book(fencedb.NewGrant("seat:1", 42, uuid.New(), fencedb.NoEnd)))
}

func TestAResetOfWhatIsHeldNeedsForce(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	l := w.acquire("seat:1")

	got := w.run("reset", "seat:1", "--to", "41", "--reason", "ticket 4713", "--yes")
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "is held under token")
	require.ErrorIs(t, w.book(l), fencedb.ErrStale)

	w.ok("reset", "seat:1", "--to", "41", "--reason", "ticket 4713", "--yes", "--force")
	require.NoError(t, w.book(l))
}

// Whoever was shut out by a later holder would be let in again.
func TestAResetToBelowTheLastTokenNeedsForce(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	last := *w.inspected("seat:1").LastToken
	before := w.fences()

	got := w.run("reset", "seat:1", "--to", fmt.Sprint(last-1), "--reason", "ticket 4713", "--yes")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, fmt.Sprintf("nothing was changed: Redis has issued tokens of seat:1 up to %[1]d, and whoever has one above --to could write again; --to %[1]d lets nobody in again", last))
	require.Equal(t, before, w.fences())
	w.ok("reset", "seat:1", "--to", fmt.Sprint(last), "--reason", "ticket 4713", "--yes")
	require.ErrorIs(t, w.book(fencedb.NewGrant("seat:1", last, uuid.New(), fencedb.NoEnd)), fencedb.ErrStale)
}

// A forgotten namespace: Redis knows nobody by this name, and the real holder would not count.
func TestAResetWithoutTheNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	w.acquire("seat:1")
	before := w.fences()

	got := w.run("--namespace", "", "reset", "seat:1", "--to", "41", "--reason", "ticket 4713", "--yes")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, `as a lease in namespace "`+w.namespace+`"`)
	require.Equal(t, before, w.fences())
}

func TestAResetNamesTheTransactionInTheWay(t *testing.T) {
	t.Parallel()
	w, grant := mistaken(t)
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, grant)
	require.NoError(t, err)

	got := w.run("--timeout", "10s", "reset", "seat:1", "--to", "41", "--force", "--reason", "ticket 4713", "--yes")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "the fence was not changed: open transactions are in the way: pid ")
	require.Contains(t, got.errOut, "idle in transaction")
	require.NoError(t, tx.Rollback(t.Context()))
	w.ok("reset", "seat:1", "--to", "41", "--force", "--reason", "ticket 4713", "--yes")
}

// The ledger was lost, or restored from before: the row remembers a token that no lease gets past.
func TestARowWithANewerTokenThanItsFenceIsNamed(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	w.exec(`DELETE FROM fencedb.fences`)
	l := w.acquire("seat:1")
	write := func(g fencedb.Grant) error {
		_, err := fencedb.Exec(t.Context(), w.pool, g, `UPDATE seats SET guest = 'Bob' WHERE id = 1`)
		return err
	}
	require.ErrorIs(t, write(l), fencedb.ErrStale)
	require.NoError(t, l.Release(t.Context()))
	w.exec(`DELETE FROM fencedb.fences`)

	require.Contains(t, w.run("reset", "seat:1", "--to", "41", "--force", "--reason", "x", "--yes").errOut, "enter with the highest token of its rows first")
	w.exec(`SELECT fencedb.enter('seat:1', max(last_fencing_token), gen_random_uuid()) FROM seats WHERE id = 1`)
	var done act.SetBack
	w.json("reset", &done, "reset", "seat:1", "--to", fmt.Sprint(l.Token()), "--reason", "ticket 4713", "--yes")

	require.EqualValues(t, protocol.MaxNumber, done.Former.Token)
	require.NoError(t, write(w.acquire("seat:1")))
}

func TestAResetThatIsWrongTouchesNothing(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	for call, code := range map[string]int{
		"reset seat:1 --to 41":                                                 app.ExitUsage,
		"reset seat:1 --reason x":                                              app.ExitUsage,
		"reset --to 41 --reason x":                                             app.ExitUsage,
		"reset seat:1 --to -1 --reason x":                                      app.ExitUsage,
		"reset seat:1 --to ten --reason x":                                     app.ExitUsage,
		"reset seat:1 --to 9007199254740992 --reason x":                        app.ExitUsage,
		"reset seat:1 --yes --reason x --to " + fmt.Sprint(protocol.MaxNumber): app.ExitFailed,
		"reset seat:2 --yes --to 41 --reason x":                                app.ExitFailed,
	} {
		got := w.run(strings.Fields(call)...)
		require.Equal(t, code, got.code, "%s: %s", call, got.errOut)
	}
	w.flags = append(w.flags, "--postgres", w.login("app", `SELECT fencedb.allow(%[1]s); GRANT SELECT ON fencedb.fences TO %[2]s`))
	got := w.run("reset", "seat:1", "--to", "41", "--reason", "x", "--yes")
	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "operator => true")

	require.Equal(t, fmt.Sprint(protocol.MaxNumber), w.one(`SELECT last_fencing_token FROM fencedb.fences`))
	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`))
}

func TestAnOperatorMayReset(t *testing.T) {
	t.Parallel()
	w, _ := mistaken(t)
	login := w.login("oncall", `SELECT fencedb.allow(%[1]s, operator => true)`)
	parsed, err := url.Parse(login)
	require.NoError(t, err)
	w.flags = append(w.flags, "--postgres", login)

	w.ok("reset", "seat:1", "--to", "41", "--force", "--reason", "ticket 4713", "--yes")

	require.Equal(t, parsed.User.Username(), w.one(`SELECT role FROM fencedb.audit WHERE event = 'reset'`))
}
