package lease_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// These tests run in a bubble: its clock moves only when everything waits, and miniredis keeps time
// by it. So times are exact, and a goroutine that is left behind fails the test.
func inBubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, inMemory(t)) })
}

// requireEnd waits for the end of the lease's context and checks when and why.
func requireEnd(t *testing.T, l *lease.Lease, at time.Time, why error) {
	t.Helper()
	<-l.Context().Done()
	require.Equal(t, at, time.Now())
	require.ErrorIs(t, context.Cause(l.Context()), why)
	require.ErrorIs(t, l.Err(), why)
}

func TestTrustEndsBeforeTheLeaseDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 10 * time.Second, Margin: 300 * ms, RenewEvery: lease.Never})
		start := time.Now()
		l := try(t, i, "a")
		require.Equal(t, start.Add(9700*ms), l.ValidUntil())
		requireEnd(t, l, start.Add(9700*ms), lease.ErrExpired)
		require.Equal(t, 300*ms, w.client.PTTL(t.Context(), w.key("a", "owner")).Val())
	})
}

func TestDefaultMargin(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		start := time.Now()
		long := try(t, w.issuer(t, lease.Config{TTL: 10 * time.Second}), "a")
		require.Equal(t, start.Add(10*time.Second-101*ms), long.ValidUntil())
		short := try(t, w.issuer(t, lease.Config{TTL: 2*ms + 900*time.Microsecond, RenewEvery: lease.Never}), "b")
		require.Equal(t, start.Add(1500*time.Microsecond), short.ValidUntil(), "whole milliseconds, less a quarter")
	})
}

func TestSlowAnswersDoNotStretchTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		delay(w, 2*time.Second)
		i := w.issuer(t, lease.Config{TTL: 10 * time.Second, Margin: time.Second, RenewEvery: lease.Never})
		start := time.Now()
		l := try(t, i, "a")
		require.Equal(t, start.Add(2*time.Second), time.Now())
		require.Equal(t, start.Add(9*time.Second), l.ValidUntil())

		sent := time.Now()
		require.NoError(t, l.Extend(t.Context()))
		require.Equal(t, sent.Add(9*time.Second), l.ValidUntil())
	})
}

// delay makes each reply take that long on its way back.
func delay(w *world, d time.Duration) { w.client.AddHook(&late{by: d}) }

type late struct {
	faulty.Redis
	by time.Duration
}

func (h *late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			time.Sleep(h.by)
		}
		return err
	}
}

func TestAnAnswerThatComesTooLateIsNone(t *testing.T) {
	for name, c := range map[string]struct{ takes, margin time.Duration }{
		"nobody waits for it": {950 * ms, 100 * ms},
		"it is heard":         {450 * ms, 600 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				delay(w, c.takes)
				i := w.issuer(t, lease.Config{TTL: time.Second, Margin: c.margin, RenewEvery: lease.Never})
				_, err := i.Acquire(t.Context(), "a", lease.NoWait())
				require.ErrorIs(t, err, lease.ErrUnreachable)
				time.Sleep(time.Second) // the last answer is on its way
				require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val(), "given back")
			})
		})
	}
}

func TestTheWatchdogRenewsEveryThird(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var renewals atomic.Int64
		w.faults.Set(func(faulty.Request) faulty.Fault { renewals.Add(1); return faulty.None })
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		renewals.Store(0)
		time.Sleep(5 * time.Minute)
		require.NoError(t, l.Err())
		require.GreaterOrEqual(t, renewals.Load(), int64(100), "3s apart")
		require.LessOrEqual(t, renewals.Load(), int64(126), "a fifth less at most")
		require.NoError(t, l.Release(t.Context()))
		renewals.Store(0)
		time.Sleep(time.Minute)
		require.Zero(t, renewals.Load(), "none after the release")
	})
}

func TestSilenceEndsTheLease(t *testing.T) {
	for name, fault := range map[string]faulty.Fault{"hangs": faulty.Hang, "breaks": faulty.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, Margin: time.Second}), "a")
				until := l.ValidUntil()
				w.faults.Always(fault)
				requireEnd(t, l, until, lease.ErrUnreachable)
				require.NotErrorIs(t, l.Err(), lease.ErrExpired)
				w.faults.Always(faulty.None)
			})
		})
	}
}

// The last attempt has no time left, or hangs. What is wrong is in the answer to an earlier one.
func TestSilenceTellsWhatWentWrongBefore(t *testing.T) {
	for name, call := range map[string]struct {
		script, resource string
		make             func(ctx context.Context, i *lease.Issuer, l *lease.Lease) error
	}{
		"Acquire": {"acquire", "b", func(ctx context.Context, i *lease.Issuer, _ *lease.Lease) error {
			_, err := i.Acquire(ctx, "b")
			return err
		}},
		"AcquireAll": {"acquire", "b", func(ctx context.Context, i *lease.Issuer, _ *lease.Lease) error {
			_, err := i.AcquireAll(ctx, []string{"b", "c"})
			return err
		}},
		"Acquire NoWait": {"acquire", "b", func(ctx context.Context, i *lease.Issuer, _ *lease.Lease) error {
			_, err := i.Acquire(ctx, "b", lease.NoWait())
			return err
		}},
		"Release": {"release", "a", func(ctx context.Context, _ *lease.Issuer, l *lease.Lease) error { return l.Release(ctx) }},
		"Verify": {"inspect", "a", func(ctx context.Context, _ *lease.Issuer, l *lease.Lease) error {
			_, err := l.Verify(ctx)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
				l := try(t, i, "a")
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				var asked atomic.Bool
				w.faults.Set(func(r faulty.Request) faulty.Fault {
					if !r.Is(call.script, call.resource) || asked.Swap(true) {
						return faulty.Hang
					}
					return faulty.LoseRequest
				})

				err := call.make(ctx, i, l)

				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, faulty.ErrBroken)
				w.faults.Always(faulty.None)
			})
		})
	}
}

func TestOneRenewalMayFail(t *testing.T) {
	for name, fault := range map[string]faulty.Fault{"request": faulty.LoseRequest, "reply": faulty.LoseReply, "hang": faulty.Hang} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
				for range 5 {
					w.faults.Next("extend", "a", 1, fault)
					time.Sleep(9 * time.Second)
				}
				require.NoError(t, l.Err())
			})
		})
	}
}

// Renewals that Redis answers with an error are not silence; the lease ends by the clock.
func TestRefusedRenewalsLetTheLeaseExpire(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		require.NoError(t, w.client.Del(t.Context(), w.key("a", "owner")).Err())
		require.NoError(t, w.client.RPush(t.Context(), w.key("a", "owner"), "x").Err())
		until := l.ValidUntil()
		requireEnd(t, l, until, lease.ErrExpired)
		require.ErrorIs(t, l.Err(), lease.ErrCorrupt)
		require.NotErrorIs(t, l.Err(), lease.ErrUnreachable)
	})
}

func TestLossIsNoticedByTheNextRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		start := time.Now()
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		require.NoError(t, w.client.FlushAll(t.Context()).Err())
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
		require.LessOrEqual(t, time.Since(start), 3*time.Second)
		require.Zero(t, w.client.Exists(t.Context(), w.key("a", "owner")).Val(), "never re-created")
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrLost)
	})
}

func TestMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		start := time.Now()
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, Margin: time.Second, MaxHold: 30 * time.Second}), "a")
		time.Sleep(28 * time.Second)
		require.NoError(t, l.Err())
		require.NoError(t, l.Extend(t.Context())) // up to the end, of which less than a millisecond may have been missing
		asked := w.requests()
		require.NoError(t, l.Extend(t.Context()), "nothing to gain, nothing wrong")
		require.Zero(t, asked.Load())
		require.Equal(t, start.Add(29*time.Second), l.ValidUntil())
		requireEnd(t, l, start.Add(29*time.Second), lease.ErrExpired)
		require.Equal(t, time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val())
	})
}

func TestUnlimitedHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, MaxHold: lease.Unlimited}), "a")
		time.Sleep(70 * time.Minute)
		require.NoError(t, l.Err())
		forgotten := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "b")
		time.Sleep(70 * time.Minute)
		require.NoError(t, l.Err())
		require.ErrorIs(t, forgotten.Err(), lease.ErrExpired, "an hour by default")
	})
}

func TestExtendBySomeoneElsesClockOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, Margin: time.Second, RenewEvery: lease.Never}), "a")
		until := l.ValidUntil()
		time.Sleep(time.Second)

		// Cancelled by the caller: no news of the lease.
		w.faults.Always(faulty.Hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.ErrorIs(t, l.Extend(ctx), context.DeadlineExceeded)
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.ErrorIs(t, l.Extend(ctx), context.Canceled)
		require.NoError(t, l.Err())
		require.Equal(t, until, l.ValidUntil())

		// Waiting for an answer ends with the lease.
		require.ErrorIs(t, l.Extend(t.Context()), lease.ErrUnreachable)
		require.Equal(t, until, time.Now())
		require.ErrorIs(t, l.Extend(t.Context()), lease.ErrUnreachable, "over is over")
		w.faults.Always(faulty.None)
	})
}

func TestACallerThatCancelsIsNotSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never}), "a")
		time.Sleep(time.Second)
		w.faults.Next("extend", "a", 1, faulty.Hang)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errWork) }) // as an errgroup does
		require.ErrorIs(t, l.Extend(ctx), errWork)
		requireEnd(t, l, l.ValidUntil(), lease.ErrExpired)
	})
}

func TestACallerWhoseTimeIsOverIsNotSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never}), "a")
		time.Sleep(time.Second)
		ctx, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		require.ErrorIs(t, l.Extend(ctx), context.DeadlineExceeded)
		requireEnd(t, l, l.ValidUntil(), lease.ErrExpired)
		require.NotErrorIs(t, context.Cause(l.Context()), context.DeadlineExceeded)
	})
}

func TestReleaseEndsAnExtendThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never}), "a")
		time.Sleep(time.Second)
		w.faults.Next("extend", "a", 1, faulty.Hang)
		extended, released := make(chan error, 1), make(chan error, 1)
		go func() { extended <- l.Extend(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		go func() { released <- l.Release(context.Background()) }()
		require.ErrorIs(t, <-extended, lease.ErrReleased)
		require.NoError(t, <-released)
		require.Equal(t, start, time.Now())
	})
}

func TestReleaseOutlivesItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		l, err := i.Acquire(ctx, "a", lease.NoWait())
		require.NoError(t, err)
		cancel()
		require.NoError(t, l.Err(), "the lease does not depend on the context it was acquired with")
		require.NoError(t, l.Release(ctx))
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
	})
}

func TestReleaseWithoutAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := try(t, w.issuer(t, lease.Config{TTL: 9 * time.Second}), "a")
		w.faults.Always(faulty.Hang)
		start := time.Now()
		require.ErrorIs(t, l.Release(t.Context()), lease.ErrUnreachable)
		require.Equal(t, 5*time.Second, time.Since(start))
		require.ErrorIs(t, l.Err(), lease.ErrReleased)

		w.faults.Always(faulty.None)
		require.NoError(t, l.Release(t.Context()), "it can be tried again")
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
	})
}

// Trust counts from the latest request, so the lease must too.
func TestAskingAgainStartsTheTTLAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second, RenewEvery: lease.Never})
		w.faults.Next("acquire", "a", 1, faulty.LoseReply)
		start := time.Now()
		l := try(t, i, "a")
		require.NotEqual(t, start, time.Now(), "it was asked twice")
		require.Equal(t, 9*time.Second, w.client.PTTL(t.Context(), w.key("a", "owner")).Val())
		require.Greater(t, l.ValidUntil(), start)
	})
}

// A reply that is lost after the server acted must not turn success into failure.
func TestLostReplies(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		w.faults.Next("acquire", "a", 1, faulty.LoseReply)
		start := time.Now()
		l := try(t, i, "a")
		require.NotEqual(t, start, time.Now(), "it was asked twice")
		require.Equal(t, w.client.Get(t.Context(), w.key("a", "fence")).Val(), itoa(l.Token()), "and granted once")

		time.Sleep(time.Second) // or there is nothing to gain, and nothing is asked
		w.faults.Next("extend", "a", 1, faulty.LoseReply)
		start = time.Now()
		require.NoError(t, l.Extend(t.Context()))
		require.NotEqual(t, start, time.Now(), "this was asked twice as well")
		w.faults.Next("release", "a", 2, faulty.LoseReply)
		require.NoError(t, l.Release(t.Context()), "gone, by the request whose reply was lost")
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val())
	})
}

func TestLostReplyOfAReleaseBeforeATakeOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		first := try(t, i, "a")
		w.faults.Next("release", "a", 1, faulty.LoseReply)
		released := make(chan error)
		go func() { released <- first.Release(context.Background()) }()
		synctest.Wait() // it pauses before the second attempt
		second := try(t, i, "a")
		require.NoError(t, <-released)
		require.NoError(t, second.Extend(t.Context()))
	})
}

func TestAcquireThatIsNeverAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		w.faults.Next("acquire", "a", 3, faulty.LoseReply)
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.ErrorIs(t, err, faulty.ErrBroken)
		require.Empty(t, w.client.Get(t.Context(), w.key("a", "owner")).Val(), "the unknown grant was given back")

		w.faults.Always(faulty.Hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err = i.Acquire(ctx, "a")
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.WithinRange(t, time.Now(), start.Add(time.Second), start.Add(time.Second+50*ms))
		w.faults.Always(faulty.None)
	})
}

func TestAcquireWithADeadContextAsksNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		var asked atomic.Int64
		w.faults.Set(func(faulty.Request) faulty.Fault { asked.Add(1); return faulty.None })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := i.Acquire(ctx, "a", lease.NoWait())
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, lease.ErrUnreachable)
		_, err = i.Acquire(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, asked.Load())
	})
}

// While it waits, an acquisition reports the same error wherever the deadline falls.
func TestAcquireCutShortInsideARequestIsStillHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		i := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		try(t, i, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var asked atomic.Int64
		w.faults.Set(func(r faulty.Request) faulty.Fault {
			if r.Is("acquire", "a") && asked.Add(1) > 1 {
				return faulty.Hang
			}
			return faulty.None
		})
		_, err := i.Acquire(ctx, "a")
		require.ErrorIs(t, err, lease.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.faults.Always(faulty.None)
	})
}
