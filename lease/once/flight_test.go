package once_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func TestFollowersSurviveTheirLeader(t *testing.T) {
	for name, end := range map[string]func(){"fails": func() {}, "panics": func() { panic("at the disco") }} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				o := w.once(t, once.Config{})
				h := newHeld()
				go func() {
					defer func() { _ = recover() }()
					_ = do(t.Context(), o, "a", func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
						_, _ = h.thatAnswers("")(ctx, claim)
						end()
						return nil, errDeclined
					})
				}()
				<-h.claim
				var runs atomic.Int64
				followers := make([]<-chan outcome, 10)
				for n := range followers {
					followers[n] = begin(t.Context(), o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
						runs.Add(1)
						return []byte("paid"), nil
					})
				}
				synctest.Wait()
				close(h.goOn)
				for _, follower := range followers {
					require.Equal(t, "paid", (<-follower).result)
				}
				require.EqualValues(t, 1, runs.Load())
			})
		})
	}
}

func TestALeaderThatIsCancelledDoesNotTakeItsFollowersAlong(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		elsewhere := newHeld()
		run := begin(t.Context(), w.once(t, once.Config{}), "a", elsewhere.thatAnswers("paid"))
		<-elsewhere.claim
		o := w.once(t, once.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		leader := begin(ctx, o, "a", forbidden(t))
		synctest.Wait()
		follower := begin(t.Context(), o, "a", forbidden(t))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, (<-leader).err, once.ErrInFlight)
		synctest.Wait()
		close(elsewhere.goOn)
		require.Equal(t, outcome{"paid", true, nil}, <-follower)
		require.NoError(t, (<-run).err)
	})
}

// One after the other, each would spend the whole time that a call takes without an answer.
func TestFollowersShareAnOutage(t *testing.T) {
	for name, unanswered := range map[string]string{"look": "once_look", "claim": "acquire"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				o := w.once(t, once.Config{InFlight: 10 * time.Second})
				require.NoError(t, do(t.Context(), o, "so that the scripts are known", answers("")).err)
				w.faults.Set(func(r faulty.Request) faulty.Fault {
					if r.Is(unanswered, "once:a") {
						return faulty.Hang
					}
					return faulty.None
				})
				began := time.Now()
				callers := make([]<-chan outcome, 10)
				for n := range callers {
					callers[n] = begin(t.Context(), o, "a", forbidden(t))
				}
				for _, caller := range callers {
					require.ErrorIs(t, (<-caller).err, lease.ErrUnreachable)
				}
				require.LessOrEqual(t, time.Since(began), 15*time.Second)

				w.faults.Always(faulty.None)
				require.Equal(t, outcome{"paid", false, nil}, do(t.Context(), o, "a", answers("paid")))
			})
		})
	}
}

// A flight can last longer than the result that it has learned: here because the release behind it
// gets no answer. By then another process may have carried the work out again.
func TestAResultThatIsForgottenIsNotShared(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o, elsewhere := w.once(t, once.Config{Done: time.Second}), w.once(t, once.Config{Done: time.Minute})
		released := faulty.LoseReply
		w.faults.Set(func(r faulty.Request) (now faulty.Fault) {
			if r.Is("release", "once:a") {
				now, released = released, faulty.Hang
			}
			return now
		})
		first := begin(t.Context(), o, "a", answers("paid"))
		time.Sleep(2 * time.Second)
		w.faults.Always(faulty.None)
		require.Equal(t, outcome{"paid again", false, nil}, do(t.Context(), elsewhere, "a", answers("paid again")))
		follower := begin(t.Context(), o, "a", forbidden(t))
		require.Equal(t, outcome{"paid", false, nil}, <-first)
		require.Equal(t, outcome{"paid again", true, nil}, <-follower)
	})
}

// What its context ended is of the first caller alone.
func TestAnOutageThatTheFirstCallerDidNotAwaitIsNotShared(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		w.faults.Always(faulty.Hang)
		ctx, cancel := context.WithCancel(t.Context())
		first := begin(ctx, o, "a", forbidden(t))
		synctest.Wait()
		follower := begin(t.Context(), o, "a", answers("paid"))
		synctest.Wait()
		w.faults.Always(faulty.None)
		cancel()
		require.ErrorIs(t, (<-first).err, context.Canceled)
		require.Equal(t, outcome{"paid", false, nil}, <-follower)
	})
}

func TestAFollowerWithAnotherRequestIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		h := newHeld()
		go func() { _, _, _ = o.Do(t.Context(), "a", []byte("12 EUR"), h.thatAnswers("paid")) }()
		<-h.claim
		refused := make(chan error, 1)
		go func() {
			_, _, err := o.Do(t.Context(), "a", []byte("13 EUR"), forbidden(t))
			refused <- err
		}()
		synctest.Wait()
		close(h.goOn)
		require.ErrorIs(t, <-refused, once.ErrKeyReused)
	})
}

func TestResultsBelongToTheirCallers(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		h := newHeld()
		first := begin(t.Context(), o, "a", h.thatAnswers("paid"))
		<-h.claim
		results := make(chan []byte, 2)
		for range cap(results) {
			go func() {
				result, _, _ := o.Do(t.Context(), "a", nil, forbidden(t))
				results <- result
			}()
		}
		synctest.Wait()
		close(h.goOn)
		(<-results)[0] = 'l'
		require.Equal(t, "paid", string(<-results))
		require.Equal(t, "paid", (<-first).result)
	})
}

// What was seen before the result was forgotten is of no use to whoever asks afterwards. They ask
// Redis, once for all of them.
func TestNobodyJoinsAFlightFromBeforeAForget(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		before, after := newHeld(), newHeld()
		first := begin(t.Context(), o, "a", func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
			_, _ = before.thatAnswers("")(ctx, claim)
			return nil, errDeclined
		})
		<-before.claim
		require.NoError(t, o.Forget(t.Context(), "a"))

		var asked atomic.Int64
		w.faults.Set(func(faulty.Request) faulty.Fault { asked.Add(1); return faulty.None })
		second := begin(t.Context(), o, "a", after.thatAnswers("paid"))
		synctest.Wait()
		require.Positive(t, asked.Load())
		close(before.goOn)
		require.ErrorIs(t, (<-first).err, errDeclined)
		<-after.claim
		asked.Store(0)
		third := begin(t.Context(), o, "a", forbidden(t))
		synctest.Wait()
		require.Zero(t, asked.Load(), "it follows the second, though the first has landed since")
		close(after.goOn)
		require.Equal(t, outcome{"paid", false, nil}, <-second)
		require.Equal(t, outcome{"paid", true, nil}, <-third)
	})
}
