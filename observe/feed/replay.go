package feed

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Replay calls fn with each event after from that is kept, in order, one at a time, and returns at the end of the stream, without
// waiting for more. from is as in [Follow], "0" for all; "$" is refused, nothing is after it. Other errors are Redis's, at the first
// attempt, that of fn, or the cause of ctx.
func Replay(ctx context.Context, client redis.UniversalClient, from string, fn func(Event) error, opts ...Option) error {
	at, ok := parsePlace(from)
	if !ok {
		return fmt.Errorf("%w: %q; use \"0\" or the ID of an event", ErrPlace, from)
	}
	r := &reader{client: client, key: newOptions(opts).key, after: at}
	for {
		entries, err := client.XRangeN(ctx, r.key, "("+r.after.String(), "+", atOnce).Result()
		if err != nil || len(entries) == 0 {
			return err
		}
		if err := r.deliver(ctx, entries, fn); err != nil {
			return err
		}
	}
}
