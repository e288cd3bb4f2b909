package once_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func TestAThousandDuplicatesOneRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var runs, asked atomic.Int64
	w.faults.Set(func(faulty.Request) faulty.Fault { asked.Add(1); return faulty.None })
	o := w.once(t, once.Config{})
	h := newHeld()
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			got := do(t.Context(), o, "order:7", func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
				runs.Add(1)
				return h.thatAnswers("paid")(ctx, claim)
			})
			if got.err != nil || got.result != "paid" {
				t.Errorf("got %+v", got)
			}
		})
	}
	<-h.claim
	close(h.goOn)
	all.Wait()
	require.EqualValues(t, 1, runs.Load())
	require.Less(t, asked.Load(), int64(1000), "duplicates of one process share their requests")
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		cfg   once.Config
		names string // the error
	}{
		{once.Config{InFlight: 999 * time.Microsecond}, "InFlight"},
		{once.Config{InFlight: -time.Second}, "InFlight"},
		{once.Config{Done: 999 * time.Microsecond}, "Done"},
		{once.Config{InFlight: time.Minute, MaxRun: time.Second}, "MaxRun"},
		{once.Config{Namespace: strings.Repeat("x", 129)}, "namespace"},
	} {
		_, err := once.New(w.client, test.cfg)
		require.ErrorIs(t, err, lease.ErrInvalid)
		require.ErrorContains(t, err, "invalid: "+test.names)
	}
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil)} {
		_, err := once.New(none, once.Config{})
		require.ErrorIs(t, err, lease.ErrInvalid)
	}
	for _, made := range []*once.Once{nil, new(once.Once)} {
		require.ErrorIs(t, made.Forget(t.Context(), "order:7"), lease.ErrInvalid)
		require.ErrorIs(t, made.Close(t.Context()), lease.ErrInvalid)
	}

	o := w.once(t, once.Config{})
	_, _, err := o.Do(t.Context(), "order:7", nil, nil)
	require.ErrorIs(t, err, lease.ErrInvalid)
	_, _, err = once.DoJSON[int](t.Context(), o, "order:7", nil, nil)
	require.ErrorIs(t, err, lease.ErrInvalid)
	for name, key := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", once.MaxKey+1), "no text": "\xff", "NUL": "a\x00b",
	} {
		require.ErrorIs(t, do(t.Context(), o, key, forbidden(t)).err, lease.ErrInvalid, name)
		_, err := o.State(t.Context(), key)
		require.ErrorIs(t, err, lease.ErrInvalid, name)
		require.ErrorIs(t, o.Forget(t.Context(), key), lease.ErrInvalid, name)
	}
}

func TestAResultThatIsTooLargeIsNotRecorded(t *testing.T) {
	t.Parallel()
	o := newWorld(t).once(t, once.Config{})
	got := do(t.Context(), o, "report", answers(strings.Repeat("x", once.MaxResult+1)))
	require.ErrorIs(t, got.err, once.ErrNotRecorded)
	require.ErrorIs(t, got.err, lease.ErrInvalid)
	require.Len(t, got.result, once.MaxResult+1, "the caller has it all the same")
	require.Equal(t, outcome{"ok", false, nil}, do(t.Context(), o, "report", answers("ok"), once.NoWait()), "the key is free")
}

func TestForeignValuesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.once(t, once.Config{})
	tag := "{" + w.namespace + "/once:a}"
	owner, record := "lease:v1:"+tag+":owner", "once:v1:"+tag+":record"
	for name, spoil := range map[string]func() error{
		"record":       func() error { return w.client.Set(t.Context(), record, "x", 0).Err() },
		"record field": func() error { return w.client.HSet(t.Context(), record, "by", "x").Err() },
		"owner":        func() error { return w.client.Set(t.Context(), owner, "x", 0).Err() },
		"owner type":   func() error { return w.client.RPush(t.Context(), owner, "x").Err() },
	} {
		require.NoError(t, spoil())
		require.ErrorIs(t, do(t.Context(), o, "a", forbidden(t)).err, lease.ErrCorrupt, name)
		_, err := o.State(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrCorrupt, name)
		require.NoError(t, w.client.Del(t.Context(), owner, record).Err())
	}
	require.NoError(t, w.client.Set(t.Context(), record, "x", 0).Err())
	require.ErrorIs(t, o.Forget(t.Context(), "a"), lease.ErrCorrupt)
}

// A foreign value that turns up while the work runs is found by the script that records.
func TestForeignValuesAreNotOverwritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.once(t, once.Config{})
	tag := "{" + w.namespace + "/once:a}"
	for _, key := range []string{"lease:v1:" + tag + ":owner", "once:v1:" + tag + ":record"} {
		got := do(t.Context(), o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
			require.NoError(t, w.client.Del(t.Context(), key).Err())
			return nil, w.client.RPush(t.Context(), key, "x").Err()
		})
		require.ErrorIs(t, got.err, once.ErrNotRecorded)
		require.ErrorIs(t, got.err, lease.ErrCorrupt)
		require.NoError(t, w.client.Del(t.Context(), key).Err())
	}
}

func TestWithoutRedisNobodyRuns(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		w.faults.Always(faulty.LoseRequest)
		for _, opts := range [][]once.Option{nil, {once.NoWait()}} {
			require.ErrorIs(t, do(t.Context(), o, "a", forbidden(t), opts...).err, lease.ErrUnreachable)
		}
		_, err := o.State(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.ErrorIs(t, o.Forget(t.Context(), "a"), lease.ErrUnreachable)
	})
}

func TestADeadContextAsksNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.faults.Set(func(faulty.Request) faulty.Fault { t.Error("asked"); return faulty.None })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, do(ctx, w.once(t, once.Config{}), "a", forbidden(t)).err, context.Canceled)
	})
}

func TestARequestThatHangsEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.faults.Always(faulty.Hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := do(ctx, w.once(t, once.Config{}), "a", forbidden(t))
		require.ErrorIs(t, got.err, lease.ErrUnreachable)
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
	})
}

func TestWaitingCutShortInsideARequestIsStillInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		h := newHeld()
		first := begin(t.Context(), w.once(t, once.Config{}), "a", h.thatAnswers("paid"))
		<-h.claim
		w.faults.Set(func(r faulty.Request) faulty.Fault {
			if !r.Is("once_look", "once:a") {
				return faulty.Hang
			}
			return faulty.None
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := do(ctx, w.once(t, once.Config{}), "a", forbidden(t))
		require.ErrorIs(t, got.err, once.ErrInFlight)
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.ErrorContains(t, got.err, "still in flight")
		w.faults.Always(faulty.None)
		close(h.goOn)
		require.NoError(t, (<-first).err)
	})
}

// The look found nothing, and another caller was faster.
func TestAClaimThatIsTakenSinceTheLook(t *testing.T) {
	for name, opts := range map[string][]once.Option{"waits": nil, "does not wait": {once.NoWait()}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				h := newHeld()
				var first <-chan outcome
				elsewhere := w.once(t, once.Config{})
				require.NoError(t, do(t.Context(), elsewhere, "warm", answers("")).err) // from now on the scripts are known
				w.faults.Set(func(r faulty.Request) faulty.Fault {
					if r.Is("acquire", "once:a") { // the claim, after the look
						w.faults.Always(faulty.None)
						first = begin(t.Context(), elsewhere, "a", h.thatAnswers("paid"))
						<-h.claim
					}
					return faulty.None
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				got := do(ctx, w.once(t, once.Config{}), "a", forbidden(t), opts...)
				busy, inFlight := errors.AsType[*once.InFlightError](got.err)
				require.True(t, inFlight, got.err)
				if opts == nil {
					require.ErrorIs(t, busy, context.DeadlineExceeded)
					require.Zero(t, busy.RetryAfter, "it has waited")
				} else {
					require.ErrorContains(t, busy, "retry after")
					require.Positive(t, busy.RetryAfter)
				}
				close(h.goOn)
				require.NoError(t, (<-first).err)
			})
		})
	}
}

// The other caller was faster still: it has ended already.
func TestAResultThatIsRecordedBetweenLookAndClaim(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		elsewhere := w.once(t, once.Config{})
		w.faults.Set(func(r faulty.Request) faulty.Fault {
			if r.Is("acquire", "once:a") {
				w.faults.Always(faulty.None)
				require.NoError(t, do(t.Context(), elsewhere, "a", answers("paid")).err)
			}
			return faulty.None
		})
		require.Equal(t, outcome{"paid", true, nil}, do(t.Context(), w.once(t, once.Config{}), "a", forbidden(t)))
	})
}

// As of a process that is stopped between its claim and its run: meanwhile others may claim, run
// and record.
func TestNothingRunsUnderAClaimThatIsLost(t *testing.T) {
	const look, record = "once_look", "once_record"
	for name, test := range map[string]struct {
		opts []once.Option
		lost string // behind the second request of this script
	}{
		"until there is a result": {nil, look},
		"does not wait":           {[]once.Option{once.NoWait()}, look},
		"every period":            {[]once.Option{once.Every(time.Hour)}, record}, // whose first answer is lost
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				o := w.once(t, once.Config{InFlight: 3 * time.Second})
				require.NoError(t, do(t.Context(), o, "b", answers("")).err) // from now on the scripts are known
				var looks, records atomic.Int64
				w.faults.Set(func(r faulty.Request) faulty.Fault {
					nth := int64(0)
					switch {
					case r.Is(look, "once:a"):
						nth = looks.Add(1)
					case r.Is(record, "once:a"):
						nth = records.Add(1)
					}
					switch {
					case r.Is(test.lost, "once:a") && nth == 2:
						require.NoError(t, w.client.Del(t.Context(), "lease:v1:{test/once:a}:owner").Err())
						time.Sleep(2 * time.Second) // a renewal finds it lost
					case r.Is(record, "once:a") && nth == 1:
						return faulty.LoseReply
					}
					return faulty.None
				})
				got := do(t.Context(), o, "a", forbidden(t), test.opts...)
				require.ErrorIs(t, got.err, lease.ErrLost)
				require.ErrorContains(t, got.err, "fn was not run")
			})
		})
	}
}

func TestALongRunKeepsItsClaim(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		got := do(t.Context(), w.once(t, once.Config{InFlight: 9 * time.Second}), "a", func(ctx context.Context, _ *lease.Lease) ([]byte, error) {
			time.Sleep(5 * time.Minute)
			return []byte("ok"), ctx.Err()
		})
		require.Equal(t, outcome{"ok", false, nil}, got)
	})
}

func TestTheContextOfTheWorkEndsWithTheClaim(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		got := do(t.Context(), w.once(t, once.Config{}), "a", func(ctx context.Context, _ *lease.Lease) ([]byte, error) {
			require.NoError(t, w.client.FlushAll(t.Context()).Err())
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), lease.ErrLost)
			return nil, errDeclined
		})
		require.ErrorIs(t, got.err, errDeclined)
		require.ErrorIs(t, got.err, lease.ErrLost)
	})
}

func TestMaxRunEndsARunThatIsStuck(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		start := time.Now()
		o := w.once(t, once.Config{InFlight: 9 * time.Second, MaxRun: time.Minute})
		got := do(t.Context(), o, "a", func(ctx context.Context, _ *lease.Lease) ([]byte, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		require.ErrorIs(t, got.err, lease.ErrExpired)
		require.InDelta(t, time.Minute, time.Since(start), float64(time.Second))
	})
}

func TestWhenRedisGoesAwayBeforeTheResultIsRecorded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		start := time.Now()
		got := do(t.Context(), o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
			w.faults.Always(faulty.Hang)
			return []byte("paid"), nil
		})
		require.ErrorIs(t, got.err, once.ErrNotRecorded)
		require.ErrorIs(t, got.err, lease.ErrUnreachable)
		require.Equal(t, "paid", got.result)
		require.LessOrEqual(t, time.Since(start), 10*time.Second, "bounded: to record, and to release")
		w.faults.Always(faulty.None)
		require.Equal(t, outcome{"again", false, nil}, do(t.Context(), o, "a", answers("again")))
	})
}

func TestCloseEndsEveryRunAlsoWhileAResultCannotBeRecorded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		running := make(chan *lease.Lease, 1)
		b := begin(t.Context(), o, "b", func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
			running <- claim
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		claim := <-running
		a := begin(t.Context(), o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
			w.faults.Always(faulty.Hang)
			return []byte("paid"), nil
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		require.ErrorIs(t, o.Close(ctx), context.DeadlineExceeded)

		require.ErrorIs(t, claim.Err(), lease.ErrClosed)
		require.ErrorIs(t, (<-b).err, lease.ErrClosed)
		require.ErrorIs(t, (<-a).err, once.ErrNotRecorded)
		w.faults.Always(faulty.None)
		require.ErrorIs(t, do(t.Context(), o, "c", forbidden(t)).err, lease.ErrClosed)
		require.NoError(t, o.Close(t.Context()))
	})
}

// The reply to the first request is lost, and so is the claim before the second: the result counts
// all the same.
func TestALostReplyDoesNotLoseTheResult(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		o := w.once(t, once.Config{})
		require.NoError(t, do(t.Context(), o, "warm", answers("")).err) // from now on the scripts are known
		got := do(t.Context(), o, "a", func(context.Context, *lease.Lease) ([]byte, error) {
			var sent atomic.Int64
			w.faults.Set(func(r faulty.Request) faulty.Fault {
				switch {
				case !r.Is("once_record", "once:a"):
					return faulty.None
				case sent.Add(1) == 1:
					return faulty.LoseReply
				}
				w.faults.Always(faulty.None)
				require.NoError(t, w.client.Del(t.Context(), "lease:v1:{test/once:a}:owner").Err())
				return faulty.None
			})
			return []byte("paid"), nil
		})
		require.Equal(t, outcome{"paid", false, nil}, got)
	})
}

// Both together: Redis spares Postgres the duplicates, and when Redis forgets, Postgres does not.
func TestInFrontOfTheDurableKey(t *testing.T) {
	t.Parallel()
	w, pool := newWorld(t), testenv.Postgres(t)
	_, err := pool.Exec(t.Context(), `CREATE TABLE charges (amount int)`)
	require.NoError(t, err)
	o := w.once(t, once.Config{})
	charge := func() (string, bool) {
		result, replayed, err := o.Do(t.Context(), "order:7", []byte("12"), func(ctx context.Context, claim *lease.Lease) (answer []byte, err error) {
			err = fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
				answer, _, err = fencedb.Once(ctx, tx, "order:7", []byte("12"), func() ([]byte, error) {
					_, err := tx.Exec(ctx, `INSERT INTO charges VALUES (12)`)
					return []byte("charged"), err
				})
				return err
			})
			return answer, err
		})
		require.NoError(t, err)
		return string(result), replayed
	}
	for n, wantReplayed := range []bool{false, true, false} {
		if n == 2 {
			require.NoError(t, o.Forget(t.Context(), "order:7"))
		}
		result, replayed := charge()
		require.Equal(t, "charged", result)
		require.Equal(t, wantReplayed, replayed)
	}
	var charges int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM charges`).Scan(&charges))
	require.Equal(t, 1, charges)
}

type receipt struct {
	Number int `json:"number"`
}

func TestDoJSON(t *testing.T) {
	t.Parallel()
	o := newWorld(t).once(t, once.Config{})
	issue := func(context.Context, *lease.Lease) (receipt, error) { return receipt{7}, nil }
	for n := range 3 {
		got, replayed, err := once.DoJSON(t.Context(), o, "order:7", receipt{1}, issue)
		require.NoError(t, err)
		require.Equal(t, receipt{7}, got)
		require.Equal(t, n > 0, replayed)
	}
	_, _, err := once.DoJSON(t.Context(), o, "order:7", receipt{2}, issue)
	require.ErrorIs(t, err, once.ErrKeyReused)
	for _, none := range []any{nil, (*receipt)(nil)} {
		_, replayed, err := once.DoJSON(t.Context(), o, "order:7", none, issue)
		require.NoError(t, err)
		require.True(t, replayed)
	}

	_, _, err = once.DoJSON(t.Context(), o, "order:7", nil, func(context.Context, *lease.Lease) (string, error) { return "", nil })
	require.ErrorContains(t, err, "is not a string")
	_, _, err = once.DoJSON(t.Context(), o, "other", func() {}, issue)
	require.ErrorContains(t, err, "the request of")
	_, _, err = once.DoJSON(t.Context(), o, "other", nil, func(context.Context, *lease.Lease) (receipt, error) { return receipt{}, errDeclined })
	require.ErrorIs(t, err, errDeclined)
	rate, replayed, err := once.DoJSON(t.Context(), o, "other", nil, func(context.Context, *lease.Lease) (float64, error) { return math.Inf(1), nil })
	require.ErrorIs(t, err, once.ErrNotRecorded, "the work is done, and its result is no JSON")
	require.False(t, replayed)
	require.Equal(t, math.Inf(1), rate)
}

type claims struct {
	mu    sync.Mutex
	ended []string // guarded by mu
}

func (c *claims) TraceLeaseStart(ctx context.Context, _ lease.TraceStart) context.Context { return ctx }

func (c *claims) TraceLeaseEnd(_ context.Context, e lease.TraceEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, string(e.Op)+" "+e.Resource+" "+e.Outcome())
}

func TestTracersAreToldOfClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := new(claims)
	o := w.once(t, once.Config{Tracers: []lease.Tracer{c}})
	for range 2 { // the second is a replay
		require.NoError(t, do(t.Context(), o, "order:7", func(context.Context, *lease.Lease) ([]byte, error) { return []byte("paid"), nil }).err)
	}
	require.NoError(t, o.Close(t.Context()))
	c.mu.Lock()
	defer c.mu.Unlock()
	require.ElementsMatch(t, []string{"acquire once:order:7 granted", "hold once:order:7 released", "release once:order:7 released"}, c.ended)
}

// rude is a tracer that panics whenever a release ends.
type rude struct{}

func (rude) TraceLeaseStart(ctx context.Context, _ lease.TraceStart) context.Context { return ctx }

func (rude) TraceLeaseEnd(_ context.Context, e lease.TraceEnd) {
	if e.Op == lease.OpRelease {
		panic("on purpose")
	}
}

// The claim is released on another goroutine, where the caller could not recover it.
func TestATracerThatPanicsDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.once(t, once.Config{Tracers: []lease.Tracer{rude{}}})
	require.PanicsWithValue(t, "on purpose", func() { _ = do(t.Context(), o, "order:7", answers("paid")) })
	require.Equal(t, outcome{"paid", true, nil}, do(t.Context(), o, "order:7", forbidden(t)), "it is recorded")
	require.NoError(t, o.Close(t.Context()))
}
