package lease_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

const role = "role:report-builder"

// candidate is a process that leads until its test says otherwise.
type candidate struct {
	issuer  *lease.Issuer
	resign  context.CancelCauseFunc
	term    chan *lease.Lease // of each term that has begun
	ended   chan error        // what OnTerm was told
	follows chan string       // what OnFollow was told
	over    chan error        // what Lead has returned
}

// campaign lets fn lead; without fn, leading lasts until the term ends.
func campaign(t *testing.T, w *world, cfg lease.Config,
	fn func(ctx context.Context, l *lease.Lease) error, opts ...lease.LeadOption) *candidate {
	t.Helper()
	c := &candidate{term: make(chan *lease.Lease, 1000), ended: make(chan error, 1000),
		follows: make(chan string, 1000), over: make(chan error, 1)}
	c.issuer = w.issuer(t, cfg)
	ctx, resign := context.WithCancelCause(t.Context())
	c.resign = resign
	opts = append([]lease.LeadOption{
		lease.OnTerm(func(err error) { c.ended <- err }), lease.OnFollow(func(leader string) { c.follows <- leader }),
	}, opts...)
	go func() {
		c.over <- c.issuer.Lead(ctx, role, func(ctx context.Context, l *lease.Lease) error {
			c.term <- l
			if fn != nil {
				return fn(ctx, l)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}, opts...)
	}()
	return c
}

var leading = lease.Config{TTL: 9 * time.Second, MaxHold: lease.Unlimited}

func named(name string) lease.Config {
	cfg := leading
	cfg.Holder = name
	return cfg
}

func TestOneLeadsAndTheOthersKnowWho(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		ada := campaign(t, w, named("ada"), nil)
		<-ada.term
		time.Sleep(70 * time.Minute) // by default, MaxHold is an hour
		bob, cy := campaign(t, w, named("bob"), nil), campaign(t, w, named("cy"), nil)
		require.Equal(t, "ada", <-bob.follows)
		require.Equal(t, "ada", <-cy.follows)
		time.Sleep(10 * leading.TTL)
		require.Empty(t, ada.ended, "she leads for as long as she lives")
		require.Empty(t, bob.follows, "told once")

		began := time.Now()
		ada.resign(errWork)
		require.ErrorIs(t, <-ada.over, errWork)
		var next, last *candidate
		select {
		case <-bob.term:
			next, last = bob, cy
		case <-cy.term:
			next, last = cy, bob
		}
		require.Less(t, time.Since(began), time.Second, "handed over")
		require.Equal(t, map[*candidate]string{bob: "bob", cy: "cy"}[next], <-last.follows)
		require.LessOrEqual(t, time.Since(began), 2*leading.TTL)

		next.resign(nil)
		last.resign(nil)
		require.ErrorIs(t, <-next.over, context.Canceled)
		require.ErrorIs(t, <-last.over, context.Canceled)
	})
}

// A follower waits, whatever the other acquisitions of its issuer do.
func TestLeadWaitsInItsOwnWay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		ada := campaign(t, w, named("ada"), nil)
		<-ada.term
		ctx, cancel := context.WithCancelCause(t.Context())
		led := make(chan error, 1)
		go func() {
			led <- w.issuer(t, named("bob")).With(lease.NoWait()).Lead(ctx, role, func(context.Context, *lease.Lease) error {
				cancel(errWork)
				return nil
			})
		}()
		time.Sleep(time.Minute)
		ada.resign(nil)
		require.ErrorIs(t, <-ada.over, context.Canceled)
		require.ErrorIs(t, <-led, errWork)
	})
}

// However a term ends, it is told and followed by the next.
func TestTheNextTerm(t *testing.T) {
	for name, test := range map[string]struct {
		fn   func(t *testing.T, w *world, ctx context.Context, l *lease.Lease) error
		want error // told
	}{
		"given up": {fn: func(*testing.T, *world, context.Context, *lease.Lease) error { return nil }},
		"failed":   {func(*testing.T, *world, context.Context, *lease.Lease) error { return errWork }, errWork},
		"lost": {func(t *testing.T, w *world, ctx context.Context, _ *lease.Lease) error {
			w.client.FlushAll(t.Context())
			<-ctx.Done()
			return context.Cause(ctx)
		}, lease.ErrLost},
		"lost and not noticed": {func(t *testing.T, w *world, _ context.Context, _ *lease.Lease) error {
			return w.client.FlushAll(t.Context()).Err()
		}, lease.ErrWorkDone},
		"revoked": {func(t *testing.T, w *world, ctx context.Context, l *lease.Lease) error {
			_, err := w.issuer(t, leading).Revoke(t.Context(), role)
			require.NoError(t, err)
			<-ctx.Done()
			return context.Cause(ctx)
		}, lease.ErrRevoked},
		"not renewed": {func(t *testing.T, w *world, ctx context.Context, _ *lease.Lease) error {
			w.faults.Always(faulty.LoseRequest)
			<-ctx.Done()
			w.faults.Always(faulty.None)
			return context.Cause(ctx)
		}, lease.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				terms := 0
				c := campaign(t, w, leading, func(ctx context.Context, l *lease.Lease) error {
					if terms++; terms == 1 {
						return test.fn(t, w, ctx, l)
					}
					<-ctx.Done()
					return nil
				})
				first := <-c.term
				require.ErrorIs(t, <-c.ended, test.want)
				second := <-c.term
				require.Greater(t, second.Token(), first.Token())
				require.Error(t, first.Err())
				c.resign(nil)
				require.ErrorIs(t, <-c.over, context.Canceled)
				require.ErrorIs(t, second.Err(), lease.ErrReleased)
				try(t, c.issuer, role)
			})
		})
	}
}

func TestALeaderThatFailsAtOnceIsSlowedDown(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		flapping := campaign(t, w, named("flapping"), func(context.Context, *lease.Lease) error { return errWork })
		time.Sleep(time.Hour)
		n := len(flapping.term)
		require.Greater(t, n, 100, "about one term in three TTLs")
		require.Less(t, n, 200)

		sound := campaign(t, w, named("sound"), nil)
		<-sound.term
		time.Sleep(time.Minute)
		require.LessOrEqual(t, len(flapping.term), n+1, "it follows")
		require.Empty(t, sound.ended)
		flapping.resign(nil)
		sound.resign(nil)
		<-flapping.over
		<-sound.over
	})
}

func TestALongTermEndsThePunishment(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var lasts atomic.Int64
		c := campaign(t, w, leading, func(context.Context, *lease.Lease) error {
			time.Sleep(time.Duration(lasts.Load()))
			return nil
		})
		time.Sleep(10 * time.Minute)
		lasts.Store(int64(time.Minute))
		for range len(c.term) + 1 { // the one that lasts
			<-c.term
		}
		time.Sleep(time.Minute)
		began := time.Now()
		<-c.term
		require.LessOrEqual(t, time.Since(began), time.Second)
		c.resign(nil)
		<-c.over
	})
}

func TestACampaignOutlastsAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.faults.Always(faulty.LoseRequest)
		c := campaign(t, w, leading, nil)
		require.ErrorIs(t, <-c.ended, lease.ErrUnreachable)
		w.faults.Always(faulty.None)
		<-c.term
		c.resign(nil)
		<-c.over
	})
}

// Without OnTerm nobody else says why nobody led.
func TestTheEndOfLeadingTellsWhyNobodyLed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.faults.Always(faulty.LoseRequest)
		c := campaign(t, w, leading, nil)
		<-c.ended
		c.resign(errWork)
		err := <-c.over
		require.ErrorIs(t, err, errWork)
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.False(t, lease.IsLost(err))

		c = campaign(t, w, leading, nil)
		<-c.ended
		w.faults.Always(faulty.None)
		<-c.term
		c.resign(errWork)
		require.Equal(t, errWork, <-c.over, "led since")
	})
}

// What the work could not finish is told also of the last term.
func TestTheLastTermIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := campaign(t, w, leading, func(ctx context.Context, _ *lease.Lease) error {
			<-ctx.Done()
			return errWork
		})
		<-c.term
		c.resign(nil)
		require.ErrorIs(t, <-c.over, context.Canceled)
		require.Len(t, c.ended, 1)
		require.ErrorIs(t, <-c.ended, errWork)
	})
}

// Tracers need not take a follower, which is refused all the time, for one that gets nothing.
func TestTracersKnowThoseWhoWouldLead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		campaign(t, w, named("a"), nil)
		synctest.Wait()
		j := newJournal()
		cfg := named("b")
		cfg.Tracers = []lease.Tracer{j}
		b := campaign(t, w, cfg, nil)
		<-b.follows
		time.Sleep(3 * leading.TTL)
		_, err := b.issuer.Acquire(t.Context(), role, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld)

		refused := j.of(lease.OpAcquire)
		require.Greater(t, len(refused), 2)
		own := slices.DeleteFunc(refused, func(e lease.TraceEnd) bool { return e.Lead })
		require.Len(t, own, 1, "the call that does not wait; a try of the campaign may be due at the same moment")
		b.resign(nil)
		<-b.over
	})
}

// A function that heeds no context keeps the process from leading twice at a time.
func TestOneTermAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		running := 0
		stubborn := campaign(t, w, leading, func(context.Context, *lease.Lease) error {
			running++
			defer func() { running-- }()
			require.Equal(t, 1, running)
			w.client.FlushAll(context.Background())
			time.Sleep(time.Minute)
			return nil
		})
		time.Sleep(10 * time.Minute)
		require.Greater(t, len(stubborn.term), 3)
		stubborn.resign(nil)
		<-stubborn.over
	})
}

func TestTheEndOfLeading(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		leader, follower := campaign(t, w, leading, nil), (*candidate)(nil)
		<-leader.term
		follower = campaign(t, w, leading, nil)
		<-follower.follows
		require.NoError(t, follower.issuer.Close(t.Context()))
		require.ErrorIs(t, <-follower.over, lease.ErrClosed)
		require.NoError(t, leader.issuer.Close(t.Context()))
		require.ErrorIs(t, <-leader.over, lease.ErrClosed)
		require.ErrorIs(t, <-leader.ended, lease.ErrReleased)

		fails := func(context.Context, *lease.Lease) error { return errWork }
		resting := campaign(t, w, lease.Config{TTL: 10 * time.Hour, MaxHold: lease.Unlimited}, fails)
		require.ErrorIs(t, <-resting.ended, errWork)
		began := time.Now()
		require.NoError(t, resting.issuer.Close(t.Context()))
		require.ErrorIs(t, <-resting.over, lease.ErrClosed)
		require.Less(t, time.Since(began), time.Second, "a pause ends with the issuer")

		i := w.issuer(t, leading)
		require.PanicsWithValue(t, "soup", func() {
			_ = i.Lead(t.Context(), role, func(context.Context, *lease.Lease) error { panic("soup") })
		})
		l := try(t, i, role)

		nothing := func(context.Context, *lease.Lease) error { return errors.New("it ran") }
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, i.Lead(over, role, nothing), context.Canceled)
		century := w.issuer(t, lease.Config{TTL: 100 * 365 * 24 * time.Hour})
		require.ErrorIs(t, century.Lead(over, role, nothing), context.Canceled)
		for name, err := range map[string]error{
			"no role":       i.Lead(t.Context(), "", nothing),
			"no function":   i.Lead(t.Context(), role, nil),
			"no hook":       i.Lead(t.Context(), role, nothing, lease.OnTerm(nil)),
			"not an issuer": new(lease.Issuer).Lead(t.Context(), role, nothing),
		} {
			require.ErrorIs(t, err, lease.ErrInvalid, name)
		}
		require.NoError(t, l.Release(t.Context()))
		synctest.Wait()
	})
}
