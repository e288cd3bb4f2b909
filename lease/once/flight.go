package once

import (
	"context"
	"sync"
)

// flights are the keys that callers of this process ask for right now. The first caller of a key asks Redis; those who
// come meanwhile wait for what it learns, so that a thousand of them cost Redis as much as one.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight // guarded by mu
}

// flight is one caller's way to Redis and back.
type flight struct {
	landed chan struct{} // closed when it is over
	done   *State        // what was learned: the recorded result, nil if there is none; set before landed is closed
}

// share makes the caller the first, or a follower of the first. A first that fails says nothing about its followers: one of them
// becomes the next.
func (fs *flights) share(ctx context.Context, c *call) (result []byte, replayed bool, err error) {
	for {
		f, first := fs.join(c.key)
		if first {
			return fs.lead(ctx, f, c)
		}
		select {
		case <-f.landed:
		case <-ctx.Done():
			return nil, false, &InFlightError{Key: c.key, Cause: context.Cause(ctx)}
		}
		if f.done != nil {
			return c.replay(*f.done)
		}
	}
}

func (fs *flights) join(key string) (f *flight, first bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, known := fs.byKey[key]; known {
		return f, false
	}
	if fs.byKey == nil {
		fs.byKey = make(map[string]*flight)
	}
	f = &flight{landed: make(chan struct{})}
	fs.byKey[key] = f
	return f, true
}

// lead asks Redis. The flight lands even if the work panics.
func (fs *flights) lead(ctx context.Context, f *flight, c *call) (result []byte, replayed bool, err error) {
	defer func() {
		f.done = c.learned
		fs.leave(c.key, f)
		close(f.landed)
	}()
	return c.attempt(ctx)
}

func (fs *flights) leave(key string, f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.byKey[key] == f {
		delete(fs.byKey, key)
	}
}

// turnAway lets nobody join a flight that may have seen what has been forgotten since.
func (fs *flights) turnAway(key string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.byKey, key)
}
