package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// journal is a tracer that keeps what it is told, and counts what it was not told the end of.
type journal struct {
	mu      sync.Mutex
	ends    []lease.TraceEnd
	open    map[lease.Op]int
	begun   map[lease.Op]chan lease.TraceStart // receives starts of those that are waited for
	foreign int                                // ends without the context of their start
}

type inPair lease.Op

func newJournal(awaited ...lease.Op) *journal {
	j := &journal{open: make(map[lease.Op]int), begun: make(map[lease.Op]chan lease.TraceStart)}
	for _, op := range awaited {
		j.begun[op] = make(chan lease.TraceStart, 16)
	}
	return j
}

func (j *journal) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open[s.Op]++
	if begun := j.begun[s.Op]; begun != nil {
		begun <- s
	}
	return context.WithValue(ctx, inPair(s.Op), s)
}

func (j *journal) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open[e.Op]--
	j.ends = append(j.ends, e)
	if _, ok := ctx.Value(inPair(e.Op)).(lease.TraceStart); !ok {
		j.foreign++
	}
}

// of returns the ends of one kind.
func (j *journal) of(op lease.Op) (ends []lease.TraceEnd) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.ends {
		if e.Op == op {
			ends = append(ends, e)
		}
	}
	return ends
}

// only returns the one end of that kind, once it has come.
func (j *journal) only(t *testing.T, op lease.Op) lease.TraceEnd {
	t.Helper()
	require.Eventually(t, func() bool { return len(j.of(op)) == 1 }, time.Minute, time.Millisecond, "one end of %s", op)
	return j.of(op)[0]
}

// closed checks that every pair that was begun has ended, with its own context.
func (j *journal) closed(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, n := range j.open {
			if n != 0 {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)
	require.Zero(t, j.foreign)
}

func TestTracersAreToldALifeInPairs(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), newJournal()
	issuer := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{j}})

	l, err := issuer.Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	held := l.Context().Value(inPair(lease.OpHold))
	require.Equal(t, lease.TraceStart{Op: lease.OpHold, Kind: "lease", Namespace: w.namespace, Resource: "table:12", Resources: 1,
		LeaseID: l.LeaseID(), Token: l.Token()}, held, "what runs under the lease is within its life")
	require.NoError(t, l.Extend(t.Context()))
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, l.Release(t.Context()), "the second sends nothing, and is not told")

	acquired := j.only(t, lease.OpAcquire)
	require.NoError(t, acquired.Err)
	require.Equal(t, l.Token(), acquired.Token)
	require.Equal(t, l.LeaseID(), acquired.LeaseID)
	require.Positive(t, acquired.Took)
	require.InDelta(t, time.Minute, acquired.ValidFor, float64(10*time.Second))
	require.Positive(t, j.only(t, lease.OpExtend).ValidFor)
	require.NoError(t, j.only(t, lease.OpRelease).Err)
	require.ErrorIs(t, j.only(t, lease.OpHold).Err, lease.ErrReleased)
	require.Empty(t, j.of(lease.OpWait), "it was free")
	j.closed(t)
}

func TestTracersAreToldOfWaiting(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), newJournal(lease.OpWait)
	issuer := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{j}})
	holder, err := issuer.Acquire(t.Context(), "table:12")
	require.NoError(t, err)

	_, err = issuer.Acquire(t.Context(), "table:12", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrHeld)
	require.ErrorIs(t, j.of(lease.OpAcquire)[1].Err, lease.ErrHeld)
	require.Empty(t, j.of(lease.OpWait), "it does not wait")

	granted := make(chan *lease.Lease, 2)
	for range 2 { // the second waits for the first in this process's line
		go func() {
			l, err := issuer.Acquire(t.Context(), "table:12")
			if err == nil {
				granted <- l
			}
		}()
		require.Equal(t, "table:12", (<-j.begun[lease.OpWait]).Resource)
	}
	require.NoError(t, holder.Release(t.Context()))
	for n := range 2 {
		l := <-granted
		waits := j.of(lease.OpWait)
		require.Len(t, waits, n+1)
		require.NoError(t, waits[n].Err)
		require.Equal(t, l.Token(), waits[n].Token)
		require.NoError(t, l.Release(t.Context()))
	}
	j.closed(t)
}

func TestTracersAreToldOfLossRevocationAndHealing(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), newJournal()
	issuer := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{j}})

	l, err := issuer.Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	revoked, err := issuer.Revoke(t.Context(), "table:12")
	require.NoError(t, err)
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	require.Equal(t, revoked.Token(), j.only(t, lease.OpRevoke).Token)
	require.ErrorIs(t, j.only(t, lease.OpExtend).Err, lease.ErrRevoked)
	require.ErrorIs(t, j.only(t, lease.OpHold).Err, lease.ErrRevoked)

	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked, "again, when its end is known")
	l, err = issuer.Acquire(t.Context(), "table:14", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
	require.ErrorIs(t, l.Extend(t.Context()), lease.ErrReleased)
	var outcomes []string
	for _, e := range j.of(lease.OpExtend) {
		outcomes = append(outcomes, e.Outcome())
	}
	require.Equal(t, []string{"revoked", "over", "over"}, outcomes)

	l, err = issuer.Acquire(t.Context(), "table:13", lease.NoWait())
	require.NoError(t, err)
	_, err = issuer.Raise(t.Context(), "table:13", l.Token()+7)
	require.NoError(t, err)
	require.Equal(t, l.Token()+7, j.only(t, lease.OpRaise).Token)
	require.NoError(t, l.Release(t.Context()))
	j.closed(t)
}

func TestTracersAreToldOfFailure(t *testing.T) {
	t.Parallel()
	j := newJournal()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	dead, err := lease.New(client, lease.Config{TTL: time.Second, Tracers: []lease.Tracer{j}})
	require.NoError(t, err)
	_, err = dead.Acquire(t.Context(), "table:12", lease.NoWait())
	require.ErrorIs(t, j.only(t, lease.OpAcquire).Err, lease.ErrUnreachable)
	require.ErrorIs(t, err, lease.ErrUnreachable)

	sealing := errors.New("the database is away")
	failing := newWorld(t).issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{j},
		Seal: func(context.Context, ...lease.Grant) error { return sealing }})
	_, err = failing.Acquire(t.Context(), "table:12", lease.NoWait())
	require.ErrorIs(t, err, sealing)
	require.ErrorIs(t, j.of(lease.OpAcquire)[1].Err, sealing)
	require.ErrorIs(t, j.only(t, lease.OpHold).Err, lease.ErrReleased, "it was granted, and given back")
	j.closed(t)
}

// Whoever cancels says nothing about Redis, whatever cause it gives, unless Redis has been silent
// for long enough by then.
func TestTracersAreToldWhoHasCancelled(t *testing.T) {
	for after, outcome := range map[time.Duration]string{100 * time.Millisecond: "cancelled", time.Second: "unreachable"} {
		inBubble(t, func(t *testing.T, w *world) {
			j := newJournal()
			i := w.issuer(t, lease.Config{TTL: 9 * time.Second, Tracers: []lease.Tracer{j}})
			l := try(t, i, "b")
			w.faults.Next("acquire", "a", 1, faulty.Hang)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(after, func() { cancel(errWork) })
			_, err := i.Acquire(ctx, "a", lease.NoWait())
			require.ErrorIs(t, err, errWork)
			require.Equal(t, outcome, j.of(lease.OpAcquire)[1].Outcome())

			w.faults.Next("extend", "b", 1, faulty.Hang)
			ctx, cancel = context.WithCancelCause(t.Context())
			time.AfterFunc(after, func() { cancel(errWork) })
			require.ErrorIs(t, l.Extend(ctx), errWork)
			require.Equal(t, outcome, j.of(lease.OpExtend)[0].Outcome())
		})
	}
}

// A request's time that was used up before the call says nothing about Redis either.
func TestTracersAreToldThatRedisWasNotAsked(t *testing.T) {
	t.Parallel()
	j := newJournal()
	i := newWorld(t).issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never, Tracers: []lease.Tracer{j}})
	l := try(t, i, "b")
	ctx, cancel := context.WithDeadlineCause(t.Context(), time.Now(), errWork)
	defer cancel()
	for name, call := range map[string]func() error{
		"Acquire NoWait":    func() error { _, err := i.Acquire(ctx, "a", lease.NoWait()); return err },
		"Acquire":           func() error { _, err := i.Acquire(ctx, "a"); return err },
		"AcquireAll NoWait": func() error { _, err := i.AcquireAll(ctx, []string{"a", "c"}, lease.NoWait()); return err },
		"AcquireAll":        func() error { _, err := i.AcquireAll(ctx, []string{"a", "c"}); return err },
	} {
		err := call()
		require.ErrorIs(t, err, errWork, name)
		acquired := j.of(lease.OpAcquire)
		require.Equal(t, "cancelled", acquired[len(acquired)-1].Outcome(), "%s: %v", name, err)
	}
	require.ErrorIs(t, l.Extend(ctx), errWork)
	require.Equal(t, "cancelled", j.only(t, lease.OpExtend).Outcome())
}

func TestSeveralResourcesAreOneAcquisitionAndManyLives(t *testing.T) {
	t.Parallel()
	w, j, second := newWorld(t), newJournal(), newJournal()
	issuer := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{j, second}})
	leases, err := issuer.AcquireAll(t.Context(), []string{"sku:2", "sku:1"})
	require.NoError(t, err)
	acquired := j.only(t, lease.OpAcquire)
	require.Equal(t, "sku:1", acquired.Resource)
	require.Equal(t, 2, acquired.Resources)
	require.NoError(t, leases.Release(t.Context()))
	j.closed(t)
	second.closed(t)
	require.Len(t, j.of(lease.OpHold), 2)
	require.Len(t, second.of(lease.OpHold), 2, "each tracer is told")
}

// Whatever the data store says, and also where it does not answer: Redis has granted.
func TestTracersAreToldThatALeaseWasNotSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, refused := range []error{errWork, lease.ErrUnreachable, &lease.RefusedError{Code: "OOM"}} {
		j := newJournal()
		seal := func(context.Context, ...lease.Grant) error { return refused }
		i := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{j}, Seal: seal})
		_, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
		require.ErrorIs(t, err, refused)
		require.Equal(t, "not_sealed", j.only(t, lease.OpAcquire).Outcome())
	}
}

var allOps = []lease.Op{
	lease.OpAcquire, lease.OpWait, lease.OpHold, lease.OpExtend,
	lease.OpRelease, lease.OpRevoke, lease.OpRaise,
}

// A metric has no series for a word that is not listed.
func TestOutcomesAreOnlyThoseListed(t *testing.T) {
	t.Parallel()
	causes := []error{
		lease.ErrInvalid, &lease.HeldError{Cause: context.DeadlineExceeded}, lease.ErrCorrupt, lease.ErrExhausted,
		&lease.RefusedError{Code: "READONLY"}, lease.ErrUnfit,
		lease.ErrProtocol, lease.ErrReleased, lease.ErrExpired, lease.ErrUnreachable, lease.ErrLost, lease.ErrRevoked,
		lease.ErrStale, context.Canceled, errors.New("the caller's own"),
	}
	errs := append([]error{nil}, causes...)
	for _, a := range causes {
		for _, b := range causes {
			errs = append(errs, fmt.Errorf("%w: %w", a, b))
		}
	}
	for _, op := range allOps {
		for _, err := range errs {
			e := lease.TraceEnd{TraceStart: lease.TraceStart{Op: op}, Err: err}
			require.Contains(t, op.Outcomes(), e.Outcome(), "%s: %v", op, err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	outcome := func(op lease.Op, err error) string {
		return lease.TraceEnd{TraceStart: lease.TraceStart{Op: op}, Err: err}.Outcome()
	}
	require.Equal(t, "granted", outcome(lease.OpAcquire, nil))
	require.Equal(t, "held", outcome(lease.OpAcquire, &lease.HeldError{Cause: context.DeadlineExceeded}))
	require.Equal(t, "refused", outcome(lease.OpAcquire, &lease.RefusedError{Code: "READONLY"}))
	require.Equal(t, "error", outcome(lease.OpAcquire, lease.ErrCorrupt))
	require.Equal(t, "cancelled", outcome(lease.OpAcquire, fmt.Errorf("%w: %w", lease.ErrUnreachable, context.Canceled)))
	require.Equal(t, "unreachable", outcome(lease.OpAcquire, fmt.Errorf("%w: %w", lease.ErrUnreachable, context.DeadlineExceeded)))
	require.Equal(t, "held", outcome(lease.OpWait, &lease.HeldError{Cause: context.Canceled}))
	require.Equal(t, "lost", outcome(lease.OpExtend, fmt.Errorf("%w: %w", lease.ErrLost, context.Canceled)))
	require.Equal(t, "expired", outcome(lease.OpHold, fmt.Errorf("%w: %w", lease.ErrExpired, &lease.RefusedError{Code: "READONLY"})))
	require.Equal(t, "released", outcome(lease.OpHold, lease.ErrReleased))
	require.Equal(t, "over", outcome(lease.OpExtend, lease.ErrExpired))
	require.Equal(t, "done", outcome(lease.OpRevoke, nil))
	require.Equal(t, []string{"extended", "over", "revoked", "lost", "cancelled", "unreachable", "error"}, lease.OpExtend.Outcomes())
}

// rude is a tracer that panics once, at that call.
type rude struct {
	at   string
	done atomic.Bool
}

func (r *rude) panics(call string, op lease.Op) {
	if r.at == call+" "+string(op) && !r.done.Swap(true) {
		panic("on purpose")
	}
}

func (r *rude) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	r.panics("start", s.Op)
	return ctx
}

func (r *rude) TraceLeaseEnd(_ context.Context, e lease.TraceEnd) { r.panics("end", e.Op) }

// Whoever recovers from the panic, as net/http does, has no lease that could be released.
func TestATracerThatPanicsLeavesNothingBehind(t *testing.T) {
	for _, at := range []string{"start acquire", "start hold", "end acquire", "start extend", "end extend", "end hold", "start release",
		"start wait", "end wait", "start raise", "end raise"} {
		t.Run(at, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				seal := fences{"c": time.Now().Add(time.Hour).UnixMicro()}.seal
				i := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{&rude{at: at}}, Seal: seal})
				began := time.Now()
				require.PanicsWithValue(t, "on purpose", func() {
					ls, err := i.AcquireAll(t.Context(), []string{"a", "b"})
					require.NoError(t, err)
					defer func() { _ = ls.Release(t.Context()) }()
					_, err = i.Acquire(t.Context(), "a", lease.WaitAtMost(time.Second))
					require.ErrorIs(t, err, lease.ErrHeld)
					_, err = i.Revoke(t.Context(), "b")
					require.NoError(t, err)
					require.ErrorIs(t, ls[1].Extend(t.Context()), lease.ErrRevoked)
					healed, err := i.Acquire(t.Context(), "c")
					require.NoError(t, err)
					require.NoError(t, healed.Release(t.Context()))
				})
				time.Sleep(time.Second)
				require.Empty(t, w.client.Keys(t.Context(), "*owner").Val())
				require.NoError(t, i.Close(t.Context()))
				require.Less(t, time.Since(began), 10*time.Second)
			})
		})
	}
}

// The leases are released at the same time, but the caller can recover the panic as that of one.
func TestATracerThatPanicsWhileSeveralLeasesAreReleased(t *testing.T) {
	both := []string{"a", "b"}
	for name, release := range map[string]func(ctx context.Context, i *lease.Issuer){
		"DoAll": func(ctx context.Context, i *lease.Issuer) {
			_ = i.DoAll(ctx, both, func(context.Context, lease.Leases) error { return nil })
		},
		"Release": func(ctx context.Context, i *lease.Issuer) {
			ls, _ := i.AcquireAll(ctx, both)
			_ = ls.Release(ctx)
		},
		"GiveBack": func(ctx context.Context, i *lease.Issuer) {
			ls, _ := i.AcquireAll(ctx, both)
			ls.GiveBack(ctx)
		},
	} {
		for _, at := range []string{"end hold", "start release", "end release"} {
			t.Run(name+", "+at, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					i := w.issuer(t, lease.Config{TTL: time.Minute, Tracers: []lease.Tracer{&rude{at: at}}})
					require.PanicsWithValue(t, "on purpose", func() { release(t.Context(), i) })
					require.NoError(t, i.Close(t.Context()))
					require.Empty(t, w.client.Keys(t.Context(), "*owner").Val())
				})
			})
		}
	}
}
