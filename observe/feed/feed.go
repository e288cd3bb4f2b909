package feed

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

const (
	field   = "event" // of an entry of the stream
	kept    = 10_000  // entries, about
	room    = 4096    // events that wait to be published; the next one is dropped
	atOnce  = 256     // events in one round trip
	timeout = 5 * time.Second
)

// Feed publishes the events of one process. It is a tracer of leases and of writes, and safe for concurrent use.
type Feed struct {
	client  redis.UniversalClient
	options options
	wake    chan struct{} // holds one token if there may be something to do
	done    chan struct{} // closed when the publisher has ended

	mu           sync.Mutex
	waiting      []Event                    // guarded by mu; at most room
	dropped      int64                      // guarded by mu
	closed       bool                       // guarded by mu
	acquisitions map[uuid.UUID]*acquisition // under way, by lease id; guarded by mu, as is what is in them
}

var (
	_ lease.Tracer   = (*Feed)(nil)
	_ fencedb.Tracer = (*Feed)(nil)
)

// New starts a goroutine that publishes; [Feed.Close] ends it. The client stays the caller's and must outlive the feed.
func New(client redis.UniversalClient, opts ...Option) *Feed {
	f := &Feed{
		client:  client,
		options: newOptions(opts),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),

		acquisitions: make(map[uuid.UUID]*acquisition),
	}
	go f.run()
	return f
}

// Close publishes what waits and ends the feed; what happens from now on is dropped and counted. It returns the cause of ctx if
// that ends first, while publishing goes on behind it. Closing again waits again.
func (f *Feed) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.knock()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Dropped is how many events were not published: there was no room, Redis did not take them, or the feed was closed.
func (f *Feed) Dropped() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dropped
}

// publish never blocks.
func (f *Feed) publish(e Event) {
	e.Worker = f.options.worker
	e.Resource = f.options.name(e.Resource)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.waiting) == room {
		f.dropped++
		return
	}
	f.waiting = append(f.waiting, e)
	f.knock()
}

func (f *Feed) knock() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Feed) run() {
	defer close(f.done)
	for {
		switch events, last := f.take(); {
		case last:
			return
		case len(events) == 0:
			<-f.wake
		default:
			f.send(events)
		}
	}
}

// take returns what to publish next. last is set if nothing can follow.
func (f *Feed) take() (events []Event, last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.waiting), atOnce)
	events = append(events, f.waiting[:n]...)
	f.waiting = append(f.waiting[:0], f.waiting[n:]...)
	return events, f.closed && len(events) == 0
}

// send makes one attempt: the next events are waiting, and news gets old.
func (f *Feed) send(events []Event) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	pipe := f.client.Pipeline()
	for _, e := range events {
		f.add(ctx, pipe, e)
	}
	commands, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	failed := int64(len(events) - len(commands))
	for _, c := range commands {
		if c.Err() != nil {
			failed++
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropped += failed
}

func (f *Feed) add(ctx context.Context, pipe redis.Pipeliner, e Event) {
	text, err := json.Marshal(e)
	if err != nil {
		panic(errors.Join(errors.New("bug: an event that is not JSON"), err))
	}
	pipe.XAdd(ctx, &redis.XAddArgs{Stream: f.options.key, MaxLen: kept, Approx: true, Values: []string{field, string(text)}})
}
