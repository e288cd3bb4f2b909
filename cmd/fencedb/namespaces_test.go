package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// A deployment in a wrong namespace: each half of the fleet takes the resource from the other.
func TestTwoNamespacesThatOvertakeEachOtherAreNamed(t *testing.T) {
	t.Parallel()
	w := sound(t)
	other := newIssuer(t, w.redis, lease.Config{Namespace: "shop-2", Holder: "worker-9@host-9:1"})
	here := w.acquire("seat:1")
	there, err := other.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	for _, enters := range []*lease.Lease{here, there} {
		require.NoError(t, w.book(enters))
		for namespace, seen := range map[string]struct{ own, rival *lease.Lease }{"shop": {here, there}, "shop-2": {there, here}} {
			found := &look.Inspection{}
			w.json("inspect", found, "--namespace", namespace, "inspect", "seat:1")
			require.Equal(t, seen.own.Token(), found.Holder.Token, namespace)
			require.Len(t, found.Elsewhere, 1)
			require.Equal(t, seen.rival.Token(), found.Elsewhere[0].Holder.Token)
			require.Equal(t, seen.rival.LeaseID(), found.Elsewhere[0].Holder.LeaseID)
			require.Equal(t, seen.rival.Token(), *found.Elsewhere[0].LastToken)
			text := w.ok("--namespace", namespace, "inspect", "seat:1")
			require.NotContains(t, text, "nobody else", namespace)
			require.Contains(t, text, "ALSO IN NAMESPACE")
			require.Contains(t, codes(found.Notes), "held_elsewhere", namespace)
			require.Equal(t, enters == seen.own, codes(found.Notes)[0] == "current", "%s: %v", namespace, found.Notes)
			require.Equal(t, w.one(`SELECT lease_id FROM fencedb.fences`) == seen.rival.LeaseID().String(),
				contains(found.Notes, "The fence is its own"), "%s: %v", namespace, found.Notes)
		}
	}
	require.Equal(t, []string{"error namespaces_overtake", "warning namespaces", "warning stale_holder"}, w.diagnosed(app.ExitFailed))
	require.Contains(t, flowing(w.run("doctor").out), `tokens for seat:1 in more than one place within the hour, and its fence has reached all of them: in namespace "shop"; in namespace "shop-2"`)

	for _, args := range [][]string{
		{"revoke", "seat:1", "--reason", "it hangs", "--yes"}, {"with", "seat:1", "--", "false"},
		{"reset", "seat:1", "--to", "1", "--reason", "typed", "--yes"},
	} {
		got := w.run(args...)
		require.NotZero(t, got.code, args)
		require.Contains(t, got.errOut, fmt.Sprintf(`nothing was changed: seat:1 is held elsewhere too: as a lease in namespace "shop-2", with --hash-resources=false, by worker-9@host-9:1 with token %d`, there.Token()))
		require.NoError(t, here.Extend(t.Context()), args)
		require.NoError(t, there.Extend(t.Context()), args)
		require.NoError(t, w.book(there), "and no seal has come: %v", args)
	}

	said := flowing(w.ok("revoke", "seat:1", "--reason", "it hangs", "--yes", "--force"))
	require.Contains(t, said, fmt.Sprintf(`In namespace "shop-2", worker-9@host-9:1 still holds it: token %d is refused from now on`, there.Token()))
	require.ErrorIs(t, w.book(there), fencedb.ErrStale)
	require.NoError(t, there.Extend(t.Context()), "it still holds")
	require.NoError(t, there.Release(t.Context()))
	next, err := other.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, w.book(next), "the next one from there is not refused")
	require.Zero(t, w.run("with", "--force", "seat:1", "--", "true").code)
}

// flowing is text without its line breaks.
func flowing(text string) string { return strings.Join(strings.Fields(text), " ") }

func contains(notes []look.Note, text string) bool {
	for _, n := range notes {
		if strings.Contains(n.Text, text) {
			return true
		}
	}
	return false
}

// One that was released, or that writes elsewhere, is no reason to wake somebody.
func TestDoctorListsNamespacesThatDoNotOvertakeEachOther(t *testing.T) {
	t.Parallel()
	w := sound(t)
	_, err := newIssuer(t, w.redis, lease.Config{Namespace: "shop-2"}).Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, w.acquire("seat:2")))

	require.Equal(t, []string{"warning namespaces"}, w.diagnosed(app.ExitDone))
	require.Contains(t, flowing(w.ok("doctor")), `besides the resources in namespace "shop", which are looked at, Redis knows 1 in namespace "shop-2"`)
	require.Equal(t, []string{"warning namespaces"}, w.as("--namespace", "").diagnosed(app.ExitDone), "in a wrong one too")
	require.Contains(t, flowing(w.ok("doctor")), `Redis knows 1 in namespace "shop", 1 in namespace "shop-2"`)
}

func TestAResourceThatIsRememberedInAnotherNamespaceIsNamedWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, l.Release(t.Context()))
	w.as("--namespace", "x")

	found := w.inspected("seat:1")
	require.Equal(t, []string{"known_elsewhere"}, codes(found.Notes))
	require.Equal(t, l.Token(), *found.Elsewhere[0].LastToken)
	require.Nil(t, found.Elsewhere[0].Holder)
	require.Contains(t, w.run("revoke", "seat:1", "--reason", "it hangs", "--yes").errOut, "nothing was changed: Redis does not know seat:1 here")
	var done act.Revocation
	w.json("revoke", &done, "revoke", "seat:1", "--reason", "it hangs", "--yes", "--force")
	require.True(t, done.Unknown)
	require.Len(t, done.Elsewhere, 1)
}

// Who may not SCAN is told so, and may end a holder that is seen, but not one that is not.
func TestWhoMayNotLookInOtherNamespacesIsToldSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, w.redis.Do(t.Context(), "ACL", "SETUSER", "default", "-scan").Err())
	l := w.acquire("seat:1")

	require.Equal(t, []string{"not_entered", "not_searched"}, codes(w.inspected("seat:1").Notes))
	require.Contains(t, w.ok("inspect", "seat:2"), "was not found out: redis: scan: NOPERM")
	got := w.run("revoke", "seat:1", "--reason", "it hangs", "--yes")
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.errOut, "whether seat:1 is held in another namespace too was not found out: redis: scan: NOPERM")
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	for _, args := range [][]string{{"revoke", "seat:2", "--reason", "it hangs", "--yes"}, {"with", "seat:3", "--", "true"}} {
		got = w.run(args...)
		require.NotZero(t, got.code)
		require.Contains(t, got.errOut, "nothing was changed: Redis does not know "+args[1]+" here, and whether it is in another namespace was not found out")
		require.Zero(t, w.run(append([]string{args[0], "--force"}, args[1:]...)...).code)
	}
}

// Leases of milliseconds: nobody holds when doctor looks, and the last tokens tell.
func TestNamespacesThatOvertakeEachOtherAreFoundByTheirTokens(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]lease.Config{`in namespace "shop-2"`: {Namespace: "shop-2"}, `in namespace "shop", hashed`: {Namespace: "shop", HashResources: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sound(t)
			for _, i := range []*lease.Issuer{w.issuer, newIssuer(t, w.redis, cfg), w.issuer} {
				l, err := i.Acquire(t.Context(), "seat:1", lease.NoWait())
				require.NoError(t, err)
				require.NoError(t, w.book(l))
				require.NoError(t, l.Release(t.Context()))
			}

			require.Contains(t, w.diagnosed(app.ExitFailed), "error namespaces_overtake")
			require.Contains(t, flowing(w.run("doctor").out), `its fence has reached all of them: in namespace "shop"; `+name)
			require.Contains(t, w.as("--namespace", "x").diagnosed(app.ExitFailed), "error namespaces_overtake", "in a wrong one too")
		})
	}
}
