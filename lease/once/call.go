package once

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// flights are the keys that callers of this process ask for right now. The first caller of a key
// asks Redis; later callers wait for its result. So a thousand callers cost Redis as much as one.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight // guarded by mu
}

// flight is the attempt of the first caller of a key.
type flight struct {
	began  time.Time
	landed chan struct{} // closed when the attempt is over
	done   *State        // the recorded result that it found or made, or nil; set before landed is closed
	outage error         // why its caller could not ask Redis; set before landed is closed
}

// share makes the caller the first of its key, or a follower of the first. If the first fails, a
// follower becomes the first. But an outage of Redis that the first has waited for is the error of
// all followers: otherwise each would wait for Redis, one after the other.
func (fs *flights) share(ctx context.Context, c *call) (result []byte, replayed bool, err error) {
	for {
		f, first := fs.join(c.key)
		if first {
			defer fs.land(f, c) // also when the work panics
			return c.attempt(ctx)
		}
		select {
		case <-f.landed:
		case <-ctx.Done():
			return nil, false, &InFlightError{Key: c.key, Cause: context.Cause(ctx)}
		}
		if f.stands() {
			return c.replay(*f.done)
		}
		if f.outage != nil {
			return nil, false, f.outage
		}
	}
}

// stands reports whether the flight has a result that Redis still has. A flight can last longer
// than Redis keeps the result.
func (f *flight) stands() bool {
	return f.done != nil && (f.done.ExpiresIn < 0 || time.Since(f.began) < f.done.ExpiresIn)
}

func (fs *flights) join(key string) (f *flight, first bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, known := fs.byKey[key]; known {
		return f, false
	}
	f = &flight{began: time.Now(), landed: make(chan struct{})}
	fs.byKey[key] = f
	return f, true
}

// land ends the flight of a call, with its result or outage.
func (fs *flights) land(f *flight, c *call) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.byKey[c.key] == f {
		delete(fs.byKey, c.key)
	}
	f.done, f.outage = c.learned, c.outage
	close(f.landed)
}

// forget lets no more callers join a flight that may have seen a result from before [Once.Forget].
func (fs *flights) forget(key string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.byKey, key)
}

// call is one call of Do.
type call struct {
	once        *Once
	key         string
	fingerprint string // SHA-256 of the request, "" if there is none
	fn          Func
	noWait      bool
	every       *time.Duration // from Every; nil: without it

	learned *State // the recorded result, once this call has seen or recorded it
	outage  error  // why Redis could not be asked, if this call has waited for Redis
}

// attempt replays the result, or claims the key and runs.
func (c *call) attempt(ctx context.Context) (result []byte, replayed bool, err error) {
	seen, err := c.once.look(ctx, c.key)
	switch {
	case err != nil:
		return nil, false, c.failed(ctx, err)
	case seen.Phase == Done:
		return c.replay(seen)
	case seen.Phase == InFlight && c.noWait:
		return nil, false, &InFlightError{Key: c.key, Holder: seen.Holder, RetryAfter: seen.ExpiresIn}
	}
	claim, err := c.claim(ctx)
	if err != nil {
		if seen.Phase == InFlight && ctx.Err() != nil { // ctx ended while the call waited, wherever that was
			err = &InFlightError{Key: c.key, Holder: seen.Holder, Cause: context.Cause(ctx)}
		}
		return nil, false, err
	}
	// If the release fails, the claim expires.
	release := func() { lease.Leases{claim}.GiveBack(ctx) }
	defer func() { release() }()

	// Another run may have recorded its result between the look and the claim. While this call has
	// the claim, no other can.
	if seen, err = c.once.look(ctx, c.key); err != nil {
		return nil, false, c.failed(ctx, err)
	}
	if seen.Phase == Done {
		return c.replay(seen)
	}
	if c.every != nil {
		if err := c.once.record(ctx, c, claim, nil, *c.every); err != nil {
			return nil, false, c.failed(ctx, err)
		}
		result, err = c.run(ctx, claim)
		return result, false, err
	}
	result, err = c.run(ctx, claim)
	if err != nil {
		return nil, false, err
	}
	release = func() {} // record releases the claim
	return result, false, c.record(ctx, claim, result)
}

// replay returns the recorded result if the call has the same request.
func (c *call) replay(seen State) ([]byte, bool, error) {
	c.learned = &seen
	if seen.fingerprint != "" && c.fingerprint != "" && seen.fingerprint != c.fingerprint {
		return nil, false, fmt.Errorf("%w: %q", ErrKeyReused, c.key)
	}
	return slices.Clone(seen.Result), true, nil
}

func (c *call) claim(ctx context.Context) (*lease.Lease, error) {
	var opts []lease.Option
	if c.noWait {
		opts = append(opts, lease.NoWait())
	}
	claim, err := c.once.claims.Acquire(ctx, resource(c.key), opts...)
	if held, refused := errors.AsType[*lease.HeldError](err); refused { // claimed since the look
		busy := &InFlightError{Key: c.key, Holder: held.Holder, Cause: held.Cause}
		if held.Cause == nil { // the call did not wait
			busy.RetryAfter = held.RetryAfter
		}
		return nil, busy
	}
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	return claim, nil
}

// run runs fn, unless the claim was lost since it was granted: the process may have been stopped,
// and another caller may have run and recorded since.
func (c *call) run(ctx context.Context, claim *lease.Lease) ([]byte, error) {
	if lost := claim.Err(); lost != nil {
		return nil, fmt.Errorf("once: %q: fn was not run: %w", c.key, lost)
	}
	work, unbind := claim.Bind(ctx)
	defer unbind()
	result, err := c.fn(work, claim)
	if lost := claim.Err(); err != nil && lost != nil && !errors.Is(err, lost) {
		err = protocol.Join(err, lost)
	}
	return result, err
}

// recordTime bounds the recording of a result and the release after it. The context of the caller
// does not bound them, because the work is done.
const recordTime = 5 * time.Second

// record records the result and releases the claim. Redis decides whether the claim still stands:
// it refuses a claim that was lost unnoticed, and accepts one whose lease is over only for this
// process, because of the margin or a fast clock. If the context of the caller ends, the recording
// goes on in the background. A tracer that panics while the claim is released panics here too, if
// the caller still waits.
func (c *call) record(ctx context.Context, claim *lease.Lease, result []byte) error {
	if len(result) > MaxResult {
		_ = claim.Release(ctx)
		return fmt.Errorf("%w: %w", ErrNotRecorded,
			protocol.Invalid("the result of %q has %d bytes, more than %d; store it elsewhere and return where", c.key, len(result), MaxResult))
	}
	result = slices.Clone(result) // the caller may change its own
	began, recorded, released := time.Now(), make(chan error, 1), make(chan struct{})
	var panicked any // set before released is closed
	c.once.recordings.Store(released, nil)
	go func() {
		defer func() {
			c.once.recordings.Delete(released)
			close(released)
		}()
		ctx, cancel := protocol.Within(context.WithoutCancel(ctx), recordTime)
		defer cancel()
		recorded <- c.once.record(ctx, c, claim, result, c.once.cfg.Done)
		defer func() { panicked = recover() }() // the caller can recover it only on its own goroutine
		_ = claim.Release(ctx)
	}()
	err, answered := protocol.Await(ctx, recorded)
	if !answered {
		_, record := c.once.names(c.key)
		err = fmt.Errorf("%w; the recording goes on", c.once.redis.Unanswered(ctx, record, began))
	}
	if err != nil {
		return fmt.Errorf("%w: %q: %w", ErrNotRecorded, c.key, err)
	}
	c.learned = &State{Phase: Done, ExpiresIn: c.once.cfg.Done, Result: result, fingerprint: c.fingerprint}
	select {
	case <-released:
		if panicked != nil {
			panic(panicked)
		}
	case <-ctx.Done():
	}
	return nil
}

func (c *call) failed(ctx context.Context, err error) error {
	err = fmt.Errorf("once: %q: %w", c.key, err)
	if protocol.Transient(err) && ctx.Err() == nil { // otherwise the call did not wait for Redis
		c.outage = err
	}
	return err
}
