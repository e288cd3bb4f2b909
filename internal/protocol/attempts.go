package protocol

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

const (
	attempts = 3                     // for a request that is safe to send again
	pause    = 20 * time.Millisecond // before the second attempt, doubled before the third

	longestPause = 500 * time.Millisecond
	longest      = 3 * time.Second        // that one of many attempts may take
	shortest     = 100 * time.Millisecond // that one of many attempts may take, however many there are
)

// Patience bounds requests that nothing else bounds.
const Patience = 5 * time.Second

// FenceRetention is how long Redis remembers a last token by default.
const FenceRetention = 24 * time.Hour

// Beyond these limits, Issuer.Check and fencedb doctor warn.
const (
	LongTTL = time.Hour // a holder that dies blocks its resource for that long

	// MaxClockDifference is the difference between the clocks of Redis and the data store. NTP
	// keeps them closer. Tokens need only that Redis's clock does not go back, but people compare
	// the times in tokens, logs and rows.
	MaxClockDifference = time.Second
)

// Ask makes up to three attempts at a Query within bound, until the outcome of one is not
// [Transient]. If all are, the error is that of the last attempt: [ErrUnreachable] or the refusal.
// An attempt that hangs leaves half of the remaining time to later ones. Ask is for scripts that do
// no harm when they run twice.
func Ask[T any](ctx context.Context, s *Sender, bound time.Duration, c Call,
	decode func(Reply) (T, error)) (none T, err error) {
	end := time.Now().Add(bound)
	for n := range attempts {
		if n > 0 && !sleepUntil(ctx, end, Jitter(pause<<(n-1))) {
			return none, Ended(ctx, err)
		}
		most := max(time.Until(end), 1)
		if n < attempts-1 {
			most = max(most/2, 1)
		}
		r := &request{ctx: ctx, call: c}
		s.exchange(ctx, Attempt{most, n > 0}, append(r.alone[:0], r))
		answer, last := read(r.reply, r.err, decode)
		if !Transient(last) {
			return answer, last
		}
		err = Latest(err, last)
	}
	return none, err
}

// Insist makes attempts within bound, until the outcome of one is not [Transient], ctx ends, or the
// client is closed. It is for releases in the background. err is that of an earlier attempt, nil if
// there was none.
func Insist(ctx context.Context, bound time.Duration, err error, attempt func(Attempt) error) error {
	end := time.Now().Add(bound)
	for wait := pause; ; wait = min(2*wait, longestPause) {
		last := attempt(Attempt{max(min(OneOfMany(bound), time.Until(end)), 1), err != nil})
		if !Transient(last) {
			return last
		}
		err = Latest(err, last)
		if errors.Is(err, redis.ErrClosed) || !sleepUntil(ctx, end, Jitter(wait)) {
			return err
		}
	}
}

// OneOfMany is how long one attempt of many within bound may take.
func OneOfMany(bound time.Duration) time.Duration { return min(max(bound/4, shortest), longest) }

// Ended adds the cause of ctx, if that has ended, to an earlier error.
func Ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return Also(fmt.Errorf("%w; %s", err, WhyEnded(cause)), cause)
	}
	return err
}

// Jitter is a random duration between four fifths of d and d.
func Jitter(d time.Duration) time.Duration { return d - Below(d/5+1) }

// Chance is where this package and package lease get their random numbers from. The simulation of
// package lease replaces it, so that a run can be repeated; nothing else may.
var Chance = rand.Uint64

// NewID is a random UUID.
func NewID() (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], Chance())
	binary.BigEndian.PutUint64(id[8:], Chance())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	return id
}

// Below is a random duration from 0 to less than d.
func Below(d time.Duration) time.Duration { return time.Duration(Chance() % uint64(d)) }

// sleepUntil is Sleep, but also returns false if end comes before d is over.
func sleepUntil(ctx context.Context, end time.Time, d time.Duration) bool {
	return Sleep(ctx, min(d, time.Until(end))) && time.Now().Before(end)
}

// Sleep returns false if ctx ends before d is over.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
