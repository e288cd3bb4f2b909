package lease

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// maxClockDifference is what a warning is worth. Tokens only need Redis's clock not to go back; but who compares times in tokens,
// logs and rows should not be misled.
const maxClockDifference = time.Second

// reference is the clock that servers' are compared with.
type reference struct {
	name      string
	ahead     time.Duration // of this process's, give or take half of roundTrip
	roundTrip time.Duration
	err       error // it could not be asked
}

func askReference(ctx context.Context, clock func(context.Context) (time.Time, error)) reference {
	if clock == nil {
		return reference{name: "this process's"}
	}
	r := reference{name: "the data store's"}
	r.ahead, r.roundTrip, r.err = compare(func() (time.Time, error) {
		type told struct {
			at  time.Time
			err error
		}
		answer, err := protocol.Bounded(ctx, func() told {
			at, err := clock(ctx)
			return told{at, err}
		})
		return answer.at, errors.Join(err, answer.err)
	})
	return r
}

// compare answers how far a clock is ahead of this process's at the middle of the round trip.
func compare(ask func() (time.Time, error)) (ahead, roundTrip time.Duration, err error) {
	sent := time.Now()
	told, err := ask()
	roundTrip = time.Since(sent)
	if err != nil {
		return 0, roundTrip, err
	}
	return told.Sub(sent.Add(roundTrip / 2)), roundTrip, nil
}

func (s *ServerHealth) askClock(ctx context.Context, client *redis.Client, clock reference) error {
	ahead, roundTrip, err := compare(func() (time.Time, error) {
		cmd, err := protocol.Bounded(ctx, func() *redis.TimeCmd { return client.Time(ctx) })
		if err != nil {
			return time.Time{}, err
		}
		return cmd.Result()
	})
	if err != nil {
		return protocol.Failed(ctx, "time", err)
	}
	s.RoundTrip, s.Clock = roundTrip, ahead-clock.ahead
	switch {
	case clock.err != nil:
		s.warn(WarnClock, "its clock was not compared with %s: %v", clock.name, clock.err)
	case s.Clock.Abs() > maxClockDifference+(roundTrip+clock.roundTrip)/2:
		s.warn(WarnClock, "its clock differs from %s by %v", clock.name, s.Clock.Round(time.Millisecond))
	}
	return nil
}
