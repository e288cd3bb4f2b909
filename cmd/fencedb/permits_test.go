package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/lease"
)

// permit acquires one of three permits.
func (w *world) permit(resource string) *lease.Lease {
	w.Helper()
	l, err := w.semaphore(3).Acquire(w.Context(), resource, lease.NoWait())
	require.NoError(w, err)
	return l
}

func (w *world) revokedPermits(resource, which string) (ended []act.RevokedPermit) {
	w.Helper()
	var done act.RevokedPermits
	w.json("permits", &done, "revoke", resource, "--permit", which, "--reason", "it hangs", "--operator", "ann@host", "--yes")
	require.Equal(w, resource, done.Resource)
	return done.Revoked
}

func TestInspectShowsWhoHoldsThePermitsOfASemaphore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.permit("render"), w.permit("render")
	waiter, pair := make(chan error, 1), w.semaphore(2)
	go func() {
		_, err := pair.Acquire(t.Context(), "render")
		waiter <- err
	}()
	require.Eventually(t, func() bool {
		known, err := pair.Inspect(t.Context(), "render")
		return err == nil && known.Waiters == 1
	}, time.Minute, 10*time.Millisecond)

	found := w.inspected("render")
	require.Nil(t, found.Holder)
	require.Empty(t, found.Elsewhere, "it is here")
	require.Equal(t, []string{"semaphore"}, codes(found.Notes))
	for n, l := range []*lease.Lease{first, second} {
		h := found.Semaphore.Permits[n]
		require.Equal(t, []any{l.LeaseID(), l.Token(), label}, []any{h.LeaseID, h.Token, h.Label})
		require.NotNil(t, h.IssuedAt)
		require.Positive(t, h.ExpiresInMS)
	}
	text := w.ok("inspect", "render")
	require.Regexp(t, `SEMAPHORE +permits held: 2, waiting: 1;`, text)
	require.Regexp(t, first.LeaseID().String()+fmt.Sprintf(` +%d +\S+ +\S+ +`, first.Token())+label, text)
	require.NotContains(t, text, "LEDGER", "it has no fence")

	require.Len(t, w.revokedPermits("render", first.LeaseID().String()), 1)
	require.NoError(t, <-waiter, "its permit goes to who waits")
	w.revokedPermits("render", "all")
	require.Equal(t, &look.Permits{Permits: []look.Holder{}}, w.inspected("render").Semaphore, "it is known while nobody holds")

	w.acquire("both")
	w.permit("both")
	text = w.ok("inspect", "both")
	require.Contains(t, text, "LEDGER")
	require.Contains(t, text, "SEMAPHORE")
}

// One holder is ended, by how its lease id begins, and the others go on.
func TestRevokeEndsOnePermit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stuck, other := w.permit("render"), w.permit("render")
	short := stuck.LeaseID().String()[:8]
	require.Contains(t, w.ok("leases", "render"), short, "what it takes is what is listed")

	w.answer = "no\n"
	got := w.run("revoke", "render", "--permit", short, "--reason", "it hangs")
	require.Equal(t, app.ExitDeclined, got.code)
	require.Contains(t, got.errOut, stuck.LeaseID().String(), "who it would be is shown before it is asked")
	require.Contains(t, got.errOut, fmt.Sprintf("Revoke the permit with token %d?", stuck.Token()))
	require.NoError(t, stuck.Extend(t.Context()))

	ended := w.revokedPermits("render", short)
	former := act.Former{LeaseID: stuck.LeaseID(), Token: stuck.Token(), Label: label}
	require.Equal(t, []act.RevokedPermit{{Former: former, AuditID: ended[0].AuditID}}, ended)
	require.ErrorIs(t, stuck.Extend(t.Context()), lease.ErrRevoked)
	require.NoError(t, other.Extend(t.Context()))
	require.Equal(t, fmt.Sprintf("%d|render|ann@host|it hangs|false|revoked|%v|%d|%s", ended[0].AuditID, stuck.LeaseID(), stuck.Token(), label),
		w.one(`SELECT concat_ws('|', id, resource, operator, reason, details ->> 'sealed', details ->> 'permit', details ->> 'former_lease_id', details ->> 'former_token', details ->> 'former_holder', details ->> 'token')
			FROM fencedb.audit WHERE event = 'revoke'`))
	require.Contains(t, w.ok("history", "render"), "revoke it hangs; permit revoked; held by "+label)

	third := w.permit("render")
	w.answer = "y\n"
	got = w.run("revoke", "render", "--permit", "all", "--reason", "it hangs")
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.errOut, "Revoke all 2 permits?")
	text := flowing(got.out)
	for _, l := range []*lease.Lease{other, third} {
		require.Contains(t, text, fmt.Sprintf("Revoked: permit %v with token %d of %s held render. Recorded as ", l.LeaseID(), l.Token(), label))
		require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	}
	require.Contains(t, text, "A permit does not fence")
	require.Equal(t, "3", w.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'revoke'`))
}

func TestRevokeOfAPermitThatIsNoneChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.permit("render")
	id := l.LeaseID().String()
	for says, args := range map[string][]string{
		`table:12 in namespace "shop": nobody holds a permit`:                                   {"table:12", "--permit", "all"},
		`render in namespace "shop": nobody holds a permit whose lease id begins with 00000000`: {"render", "--permit", "00000000"},
		"render is a semaphore here, and no lease; fencedb revoke --permit":                     {"render"},
	} {
		got := w.run(append([]string{"revoke", "--reason", "it hangs", "--yes"}, args...)...)
		require.Equal(t, app.ExitFailed, got.code, args)
		require.Contains(t, got.errOut, "nothing was changed: "+says, args)
	}
	for _, wrong := range []string{"", "x"} {
		got := w.run("--namespace", wrong, "revoke", "render", "--permit", "all", "--reason", "it hangs", "--yes")
		require.Equal(t, app.ExitFailed, got.code)
		require.Contains(t, got.errOut, `nobody holds a permit; Redis knows it as a semaphore in namespace "shop", with --hash-resources=false too: see that both flags are right`)
	}
	for says, args := range map[string][]string{
		"or its first 8 digits":         {"render", "--permit", id[:7]},
		"takes a lease id":              {"render", "--permit", "zzzzzzzz"},
		"--permit is about a semaphore": {"render", "--permit", id, "--seal-only"},
		"revoke takes one resource":     {"--permit", id},
		"--reason is required":          {"render", "--permit", id, "--reason", ""},
	} {
		got := w.run(append([]string{"revoke", "--reason", "it hangs", "--yes"}, args...)...)
		require.Equal(t, app.ExitUsage, got.code, args)
		require.Contains(t, got.errOut, says, args)
	}
	require.NoError(t, l.Extend(t.Context()))
	require.Empty(t, w.one(`SELECT string_agg(event, ' ') FROM fencedb.audit WHERE event = 'revoke'`))

	elsewhere := *w
	elsewhere.namespace = "shop-2"
	there := elsewhere.permit("render")
	got := w.run("revoke", "render", "--permit", "all", "--reason", "it hangs", "--yes")
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.errOut, `this is about render in namespace "shop"; Redis knows it as a semaphore in namespace "shop-2"`)
	require.NoError(t, there.Extend(t.Context()))
}
