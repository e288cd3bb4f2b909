package once_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Two schedulers ask for a job of each hour, and their clocks differ by some seconds.
func TestAtMostOncePerPeriod(t *testing.T) {
	for name, c := range map[string]struct {
		run work // nil: the process dies
		err error
	}{
		"it works":    {answers("done"), nil},
		"it fails":    {fails, errDeclined},
		"it panics":   {func(context.Context, *lease.Lease) ([]byte, error) { panic(errDeclined) }, errDeclined},
		"it is slow":  {func(context.Context, *lease.Lease) ([]byte, error) { time.Sleep(40 * time.Minute); return nil, nil }, nil},
		"it dies":     {func(ctx context.Context, _ *lease.Lease) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }, context.Canceled},
		"and is long": {func(context.Context, *lease.Lease) ([]byte, error) { time.Sleep(70 * time.Minute); return nil, nil }, nil},
	} {
		for wait, opts := range map[string][]once.Option{"waits": nil, "does not wait": {once.NoWait()}} {
			t.Run(name+", "+wait, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					cfg := once.Config{MaxRun: lease.Unlimited}
					one, two := w.once(t, cfg), w.once(t, cfg)
					opts := append(opts, once.Every(55*time.Minute))
					ctx, die := context.WithCancel(t.Context())
					defer die()
					ended := make(chan error, 1)
					go func() {
						defer func() {
							if p := recover(); p != nil {
								ended <- p.(error)
							}
						}()
						ended <- do(ctx, one, "hourly", c.run, opts...).err
					}()
					time.Sleep(3 * time.Second)
					require.Equal(t, outcome{"", true, nil}, do(t.Context(), two, "hourly", forbidden(t), opts...), "its clock is behind")
					if name == "it dies" {
						die()
					}
					time.Sleep(time.Hour - 4*time.Second) // and is ahead the next time
					got := do(t.Context(), two, "hourly", answers("next"), opts...)
					if name == "and is long" && wait != "waits" {
						require.ErrorIs(t, got.err, once.ErrInFlight)
					} else {
						require.Equal(t, outcome{"next", false, nil}, got)
					}
					require.ErrorIs(t, <-ended, c.err)
				})
			})
		}
	}
}

// It is done before it runs. If that cannot be written down, it does not run.
func TestWhatCannotBeWrittenDownDoesNotRun(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{InFlight: time.Second})
		w.faults.Set(func(r faulty.Request) faulty.Fault {
			if r.Is("once_record", "once:hourly") {
				return faulty.LoseRequest
			}
			return faulty.None
		})
		require.ErrorIs(t, do(t.Context(), o, "hourly", forbidden(t), once.Every(time.Hour)).err, lease.ErrUnreachable)
		require.ErrorIs(t, do(t.Context(), o, "hourly", forbidden(t), once.Every(0)).err, lease.ErrInvalid)
		w.faults.Always(faulty.None)
		require.Equal(t, outcome{"now", false, nil}, do(t.Context(), o, "hourly", answers("now"), once.Every(time.Hour)))
		answer, replayed, err := once.DoJSON(t.Context(), o, "hourly", nil, func(context.Context, *lease.Lease) (map[string]int, error) {
			panic("it was done")
		}, once.Every(time.Hour))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Empty(t, answer)
	})
}

// The answer to the writing down is lost for good. That costs the period, and never a second run.
func TestAnOutageCanUseUpAPeriod(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		w.faults.Set(func(r faulty.Request) faulty.Fault {
			if r.Is("once_record", "once:hourly") {
				return faulty.LoseReply
			}
			return faulty.None
		})
		require.ErrorIs(t, do(t.Context(), o, "hourly", forbidden(t), once.Every(time.Hour)).err, lease.ErrUnreachable)
		w.faults.Always(faulty.None)
		require.Equal(t, outcome{"", true, nil}, do(t.Context(), o, "hourly", forbidden(t), once.Every(time.Hour)))
	})
}

// The answer to the writing down is lost once, and comes late the next time. The period counts from
// the run that follows, and not from the attempt whose answer was lost.
func TestAPeriodCountsFromTheRunWhenAnAnswerWasLost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const period = 1500 * time.Millisecond
		records := 0
		known := do(t.Context(), w.once(t, once.Config{}), "so that the scripts are known", answers(""), once.Every(period))
		require.NoError(t, known.err)
		w.faults.Set(func(r faulty.Request) faulty.Fault {
			if !r.Is("once_record", "once:often") {
				return faulty.None
			}
			if records++; records == 1 {
				return faulty.LoseReply
			}
			time.Sleep(time.Second)
			return faulty.None
		})
		one, two := w.once(t, once.Config{}), w.once(t, once.Config{})
		require.Equal(t, outcome{"first", false, nil}, do(t.Context(), one, "often", answers("first"), once.Every(period)))
		require.Equal(t, 2, records)
		w.faults.Always(faulty.None)
		time.Sleep(period - 2*time.Millisecond)
		require.Equal(t, outcome{"", true, nil}, do(t.Context(), two, "often", forbidden(t), once.Every(period)))
		time.Sleep(4 * time.Millisecond)
		require.Equal(t, outcome{"second", false, nil}, do(t.Context(), two, "often", answers("second"), once.Every(period)))
	})
}

// Who asks between the claim of a run and its writing down has seen neither, and stands in line.
func TestWhoAsksAtTheSameMomentWaitsForTheRun(t *testing.T) {
	for name, opts := range map[string][]once.Option{"waits": nil, "does not wait": {once.NoWait()}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				period := once.Every(55 * time.Minute)
				w.faults.Set(func(r faulty.Request) faulty.Fault {
					if r.Is("once_record", "once:hourly") {
						time.Sleep(time.Second)
					}
					return faulty.None
				})
				began, run := time.Now(), make(chan outcome, 1)
				go func() {
					run <- do(t.Context(), w.once(t, once.Config{}), "hourly",
						func(context.Context, *lease.Lease) ([]byte, error) { time.Sleep(10 * time.Minute); return nil, nil }, period)
				}()
				time.Sleep(500 * time.Millisecond)

				got := do(t.Context(), w.once(t, once.Config{}), "hourly", forbidden(t), append(opts, period)...)

				if opts == nil {
					require.Equal(t, outcome{"", true, nil}, got)
					require.Greater(t, time.Since(began), 10*time.Minute)
				} else {
					require.ErrorIs(t, got.err, once.ErrInFlight)
					require.Less(t, time.Since(began), time.Second)
				}
				require.NoError(t, (<-run).err)
			})
		})
	}
}

// The others of its process do not wait for the run either, nor does its end decide for them.
func TestARunWithEveryKeepsNobodyOfItsProcessWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o, h := w.once(t, once.Config{}), newHeld()
		period := once.Every(55 * time.Minute)
		run := make(chan outcome, 1)
		go func() { run <- do(t.Context(), o, "hourly", h.thatAnswers("sent"), period) }()
		<-h.claim
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Equal(t, outcome{"", true, nil}, do(ctx, o, "hourly", forbidden(t), period))
		require.Equal(t, outcome{"", true, nil}, do(ctx, o, "hourly", forbidden(t)), "without Every")
		close(h.goOn)
		require.Equal(t, outcome{"sent", false, nil}, <-run)
	})
}
