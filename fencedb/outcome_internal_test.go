package fencedb

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// How long the server is asked what became of a transaction, in a bubble whose clock moves only
// when everything waits.

// answers after that time, or with the end of the try.
func answers(after time.Duration, status string) asker {
	return func(ctx context.Context, dest any, _ string, _ ...any) (bool, error) {
		select {
		case <-time.After(after):
			*dest.(*string) = status
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// inProgress answers so for that time, and then aborted.
func inProgress(lasts time.Duration) asker {
	since := time.Now()
	return func(_ context.Context, dest any, _ string, _ ...any) (bool, error) {
		*dest.(*string) = "in progress"
		if time.Since(since) >= lasts {
			*dest.(*string) = "aborted"
		}
		return false, nil
	}
}

func TestTheServerIsAskedForAsLongAsItCanKnow(t *testing.T) {
	const forever = 24 * time.Hour
	for name, c := range map[string]struct {
		lease     time.Duration // 0: without an end
		cancel    time.Duration // 0: never
		server    func() asker
		committed bool
		known     bool
		took      time.Duration // at most half a second less
	}{
		"it answers": {time.Minute, 0, func() asker { return answers(time.Second, "committed") }, true, true, time.Second},
		"it does not know, which does not change":       {time.Minute, 0, func() asker { return answers(0, "") }, false, false, 0},
		"the transaction lasts as long as its lease":    {20 * time.Second, 0, func() asker { return inProgress(22 * time.Second) }, false, true, 22500 * time.Millisecond},
		"it is in progress for ever":                    {20 * time.Second, 0, func() asker { return inProgress(forever) }, false, false, 25 * time.Second},
		"it is in progress, and the context ends":       {20 * time.Second, time.Second, func() asker { return inProgress(forever) }, false, false, 6 * time.Second},
		"it is in progress, and nothing else bounds it": {0, 0, func() asker { return inProgress(forever) }, false, false, 5 * time.Second},
		"it is silent": {time.Second, 0, func() asker { return answers(forever, "committed") }, false, false, 6 * time.Second},
		"the process was stopped until long after its lease":  {-time.Hour, 0, func() asker { return answers(time.Second, "committed") }, true, true, time.Second},
		"the context has ended before, and the answer is due": {time.Minute, time.Nanosecond, func() asker { return answers(time.Second, "committed") }, true, true, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				e := new(entry)
				if c.lease != 0 {
					e.until = time.Now().Add(c.lease)
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				start := time.Now()

				asking, stop := e.asking(ctx)
				defer stop()
				outcome, err := e.ask(asking, c.server())

				require.Equal(t, c.committed, outcome == "committed")
				if err != nil {
					require.NotContains(t, err.Error(), `""`, "an answer that nobody gave")
				}
				require.Equal(t, c.known, err == nil, "%v", err)
				require.LessOrEqual(t, time.Since(start), c.took)
				require.Greater(t, time.Since(start), c.took-500*time.Millisecond)
				time.Sleep(askTime) // for what was started when the context ended
			})
		})
	}
}

// One connection of a pool may be lost in silence; the next try finds another.
func TestATryThatHangsIsNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		outcome, err := new(entry).ask(t.Context(), func(ctx context.Context, dest any, _ string, _ ...any) (bool, error) {
			if tries++; tries == 1 {
				<-ctx.Done()
				return false, errors.New("silent")
			}
			*dest.(*string) = "committed"
			return false, nil
		})
		require.NoError(t, err)
		require.Equal(t, "committed", outcome)
	})
}

// Our time may end in the middle of a try.
func TestALateTryDoesNotHideWhatTheServerHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		tries := 0
		_, err := new(entry).ask(ctx, func(ctx context.Context, dest any, _ string, _ ...any) (bool, error) {
			if tries++; tries > 1 {
				<-ctx.Done()
				return false, ctx.Err()
			}
			*dest.(*string) = "in progress"
			return false, nil
		})
		require.ErrorContains(t, err, `got "in progress"`)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestAnOutcomeThatNobodyKnowsSaysWhy(t *testing.T) {
	err := new(entry).ended(t.Context(), answers(0, ""), true, errors.New("mine"))
	require.ErrorIs(t, err, ErrCommitUnknown)
	require.ErrorIs(t, err, errForgotten)
}
