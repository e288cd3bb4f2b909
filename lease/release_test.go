package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// held is one lease, however it was acquired, and what others do to it.
type held struct {
	*lease.Lease
	revoke   func() error
	takeOver func() // acquires the resource, which is free
}

// Whoever is on call wants to know what became of a release, and not how its lease had ended.
func TestTheOutcomeOfAReleaseIsItsOwn(t *testing.T) {
	cfg := lease.Config{TTL: 9 * time.Second, Margin: 3 * time.Second, MaxHold: 12 * time.Second,
		RenewEvery: time.Second, RenewTimeout: 500 * ms}
	leases := func(acquire func(t *testing.T, i *lease.Issuer) *lease.Lease) func(*testing.T, *world, *journal) held {
		return func(t *testing.T, w *world, j *journal) held {
			cfg := cfg
			others := w.issuer(t, cfg)
			cfg.Tracers = []lease.Tracer{j}
			return held{acquire(t, w.issuer(t, cfg)),
				func() error { _, err := others.Revoke(t.Context(), "a"); return err },
				func() { try(t, others, "a") }}
		}
	}
	kinds := map[string]func(*testing.T, *world, *journal) held{
		"lease": leases(func(t *testing.T, i *lease.Issuer) *lease.Lease { return try(t, i, "a") }),
		"one of several": leases(func(t *testing.T, i *lease.Issuer) *lease.Lease {
			all, err := i.AcquireAll(t.Context(), []string{"a", "b"})
			require.NoError(t, err)
			return all[0]
		}),
		"called": func(t *testing.T, w *world, j *journal) held {
			holder := try(t, w.issuer(t, cfg), "a")
			return leases(func(t *testing.T, i *lease.Issuer) *lease.Lease {
				grants := make(chan grant)
				wait(t.Context(), i, 0, grants)
				synctest.Wait()
				require.NoError(t, holder.Release(t.Context()))
				return (<-grants).lease
			})(t, w, j)
		},
		"permit": func(t *testing.T, w *world, j *journal) held {
			cfg := cfg
			others := w.semaphore(t, 1, cfg)
			cfg.Tracers = []lease.Tracer{j}
			l := tryPermit(t, w.semaphore(t, 1, cfg), "a")
			return held{l, func() error { _, err := others.Revoke(t.Context(), "a", l.LeaseID()); return err },
				func() { tryPermit(t, others, "a") }}
		},
	}
	outage := func(w *world, l *lease.Lease) {
		w.faults.Always(faulty.LoseRequest)
		<-l.Context().Done()
		w.faults.Always(faulty.None)
	}
	for name, c := range map[string]struct {
		before  func(t *testing.T, w *world, l held)
		outcome string
		permit  string // if that differs
		returns error
	}{
		"it stands":            {func(*testing.T, *world, held) {}, "released", "", nil},
		"the reply is lost":    {func(_ *testing.T, w *world, _ held) { w.faults.Next("", "a", 1, faulty.LoseReply) }, "released", "", nil},
		"Redis is away":        {func(_ *testing.T, w *world, _ held) { w.faults.Always(faulty.LoseRequest) }, "unreachable", "", lease.ErrUnreachable},
		"Redis refuses":        {func(_ *testing.T, w *world, _ held) { w.memory.SetError("NOPERM no permissions") }, "error", "", &lease.RefusedError{Code: "NOPERM"}},
		"Redis has lost it":    {func(_ *testing.T, w *world, _ held) { w.memory.FlushAll() }, "gone", "", lease.ErrLost},
		"it has just expired":  {func(_ *testing.T, _ *world, l held) { <-l.Context().Done() }, "released", "", nil},
		"an outage has passed": {func(_ *testing.T, w *world, l held) { outage(w, l.Lease) }, "released", "", nil},
		"it expired long ago": {func(_ *testing.T, _ *world, l held) {
			<-l.Context().Done()
			time.Sleep(cfg.TTL)
		}, "gone", "", lease.ErrExpired},
		"a long outage has passed": {func(_ *testing.T, w *world, l held) {
			outage(w, l.Lease)
			time.Sleep(cfg.TTL)
		}, "gone", "", lease.ErrUnreachable},
		"another has it": {func(_ *testing.T, _ *world, l held) {
			<-l.Context().Done()
			time.Sleep(cfg.TTL)
			l.takeOver()
		}, "taken", "gone", lease.ErrExpired},
		"another has it since an outage": {func(_ *testing.T, w *world, l held) {
			outage(w, l.Lease)
			time.Sleep(cfg.TTL)
			l.takeOver()
		}, "taken", "gone", lease.ErrUnreachable},
		"it was revoked": {func(t *testing.T, _ *world, l held) { require.NoError(t, l.revoke()) }, "revoked", "", lease.ErrRevoked},
		"its revocation was noticed": {func(t *testing.T, _ *world, l held) {
			require.NoError(t, l.revoke())
			<-l.Context().Done()
		}, "revoked", "", lease.ErrRevoked},
	} {
		for kind, acquire := range kinds {
			t.Run(name+", "+kind, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					j := newJournal()
					l := acquire(t, w, j)
					c.before(t, w, l)
					require.ErrorIs(t, l.Release(t.Context()), c.returns)
					told, want := j.only(t, lease.OpRelease), c.outcome
					if l.IsPermit() && c.permit != "" {
						want = c.permit
					}
					require.Equal(t, want, told.Outcome(), "%v", told.Err)
					w.faults.Always(faulty.None)
					w.memory.SetError("")
				})
			})
		}
	}
}
