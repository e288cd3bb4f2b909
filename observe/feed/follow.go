package feed

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	patience = 500 * time.Millisecond // for one XREAD, which goes on for that long after the end of ctx
	pause    = 250 * time.Millisecond // before the next attempt when Redis does not answer
)

// Follow calls fn with each event after from, in order, one at a time: the ID of an [Event], "0"
// for all, or "$" for new events only. Entries that are not events are skipped.
//
// It returns the cause of ctx when ctx ends, even while a request is under way; or the error of fn,
// a permanent error of the server (permission denied, wrong type of the key), redis.ErrClosed if
// client was closed, or the panic of a hook of client as an error. Any other from is refused before
// Redis is asked. While Redis does not answer, Follow retries, and misses events only if the stream
// is trimmed past them. If Redis has lost the stream, it continues with the first event of the new
// one. If Redis has lost only the end, as after a fail-over to a replica that lagged, that looks
// the same: events from before come again, with the same ID.
func Follow(ctx context.Context, client redis.UniversalClient, from string,
	fn func(Event) error, opts ...Option) error {
	o := newOptions(opts)
	r := &reader{client: client, key: o.key, outage: outage{on: o.onOutage}}
	var err error
	if from == "$" { // once; XREAD with "$" would miss events between two calls
		r.after, err = persist(ctx, r, r.last)
	} else {
		r.after, err = parsePosition(from)
	}
	for err == nil {
		var entries []redis.XMessage
		if entries, err = persist(ctx, r, r.next); err == nil {
			err = r.deliver(ctx, entries, fn)
		}
	}
	return err
}

type reader struct {
	client redis.UniversalClient
	key    string
	after  position // of the last event that was seen
	outage outage
}

// outage reports the beginning and the end of each interruption, once.
type outage struct {
	on       func(error) // may be nil
	reported bool        // the last call of on had an error
}

func (o *outage) report(err error) {
	if failed := err != nil; failed != o.reported && o.on != nil {
		o.reported = failed
		o.on(err)
	}
}

// persist repeats the attempt until it succeeds, ctx ends, or the server returns a permanent error.
func persist[T any](ctx context.Context, r *reader, attempt func(context.Context) (T, error)) (value T, err error) {
	for ctx.Err() == nil {
		value, err = within(ctx, attempt)
		switch {
		case err == nil:
			r.outage.report(nil)
			return value, nil
		case refused(err):
			return value, err
		case ctx.Err() == nil:
			r.outage.report(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return value, context.Cause(ctx)
}

// within returns when the attempt does or ctx ends, whichever is first: the client library observes
// contexts only if it is configured to.
func within[T any](ctx context.Context, attempt func(context.Context) (T, error)) (value T, err error) {
	var answer T
	failed := errHook
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		defer recovered(&failed)
		answer, failed = attempt(ctx)
	}()
	select {
	case <-answered:
		return answer, failed
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

func refused(err error) bool {
	return redis.IsPermissionError(err) || redis.IsAuthError(err) || redis.HasErrorPrefix(err, "WRONGTYPE") ||
		errors.Is(err, redis.ErrClosed) || errors.Is(err, errHook)
}

// last is the position of the newest entry, zero if there is none.
func (r *reader) last(ctx context.Context) (position, error) {
	newest, err := r.client.XRevRangeN(ctx, r.key, "+", "-", 1).Result()
	if err != nil || len(newest) == 0 {
		return position{}, err
	}
	return parsePosition(newest[0].ID)
}

// next waits a while for new entries. If there are none and the stream ends before the current
// position, it is a new stream, with a clock that went back, and next begins at its start. A new
// stream with a clock that is ahead needs no such step.
func (r *reader) next(ctx context.Context) ([]redis.XMessage, error) {
	streams, err := r.client.XRead(ctx, &redis.XReadArgs{
		Streams: []string{r.key}, ID: r.after.String(), Count: atOnce, Block: patience,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		last, err := r.last(ctx)
		if err == nil && last.before(r.after) {
			r.after = position{}
		}
		return nil, err
	case err != nil:
		return nil, err
	}
	return streams[0].Messages, nil
}

func (r *reader) deliver(ctx context.Context, entries []redis.XMessage, fn func(Event) error) error {
	for _, entry := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at, err := parsePosition(entry.ID)
		if err != nil {
			return err
		}
		var e Event
		text, _ := entry.Values[field].(string)
		if json.Unmarshal([]byte(text), &e) == nil && e.Kind != "" {
			e.ID = entry.ID
			if e.At.IsZero() {
				e.At = time.UnixMilli(int64(at.ms))
			}
			if err := fn(e); err != nil {
				return err
			}
		}
		r.after = at
	}
	return nil
}

// Replay calls fn with each event after from, in order, one at a time, and returns at the end of
// the stream. from is as in [Follow], but not "$". It does not retry. Its errors are those of
// Redis, of hooks and of fn, the cause of ctx, and the refusal of from.
func Replay(ctx context.Context, client redis.UniversalClient, from string,
	fn func(Event) error, opts ...Option) error {
	after, err := parsePosition(from)
	if err != nil {
		return err
	}
	r := &reader{client: client, key: newOptions(opts).key, after: after}
	for {
		entries, err := within(ctx, func(ctx context.Context) ([]redis.XMessage, error) {
			return client.XRangeN(ctx, r.key, "("+r.after.String(), "+", atOnce).Result()
		})
		if err != nil || len(entries) == 0 {
			return err
		}
		if err := r.deliver(ctx, entries, fn); err != nil {
			return err
		}
	}
}
