// Package feed publishes events of leases and fenced writes in a Redis stream, which the command
// fencedb watch or your own program can follow.
//
//	events := feed.New(client, feed.Worker("kitchen-2"))
//	defer events.Close(ctx)
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{events}})
//	db := fencedb.With(pool, fencedb.Trace(events))
//	...
//	err = feed.Follow(ctx, client, "$", func(e feed.Event) error { ... })
//
// # What it is for
//
// Watching. It never delays the work: an event goes into a bounded buffer, and a goroutine
// publishes many events in one round trip. Events that do not fit because Redis is slow, and events
// that Redis refuses, are dropped and counted ([Feed.Dropped]). An event whose acknowledgement was
// lost may be in the stream although it was counted, and twice if the client retries. For what must
// be complete, use the ledger of fences or the metrics of observe/prom.
//
// # The stream
//
// The key is fencedb:v1:events, or fencedb:v1:NAMESPACE:events with [Namespace]. Each entry has one
// field, "event", with an [Event] in JSON. Redis keeps about the last 10000 events, some 2 MB. The
// time of an event is that of its process's clock; the ID of an entry has the time of publishing,
// which stands still while Redis's clock is set back. Events of one process are in order; events of
// two processes may change places within the milliseconds that publishing takes. The commands are
// XADD to publish, XREAD and XREVRANGE to follow, and XRANGE to replay.
//
// A lease that is released before its caller gets it, because it could not be sealed or another
// resource was busy, has an event released but none granted.
//
// The names of resources are published; use [HashResources] if they are personal data. Permits of
// semaphores are not published, because their resources may have the names of others.
package feed

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Option is an option of [New], [Follow] or [Replay].
type Option func(*options)

type options struct {
	key      string
	worker   string
	hashed   bool
	onOutage func(error)
}

// Namespace separates the events of several tenants or environments in one Redis. Use the Namespace
// of the issuers. For [New], [Follow] and [Replay]. Defaults to none.
func Namespace(name string) Option {
	return func(o *options) {
		if name != "" {
			o.key = "fencedb:v1:" + name + ":events"
		}
	}
}

// Worker is the name of this process in events. For [New]. Defaults to program@host:pid, as
// lease.Config.Holder does.
func Worker(name string) Option { return func(o *options) { o.worker = name } }

// HashResources publishes [Hashed] instead of the names of resources, for names that are personal
// data. For [New]. Defaults to off.
func HashResources() Option { return func(o *options) { o.hashed = true } }

// OnOutage calls fn with the error when events stop passing, and with nil when they pass again.
// For [New]: Redis refuses events or does not answer, so they are dropped; the user may lack the
// right to XADD. fn runs on the goroutine that publishes, so it must not wait. For [Follow]: Redis
// does not answer. Defaults to nothing.
func OnOutage(fn func(error)) Option { return func(o *options) { o.onOutage = fn } }

// Hashed returns the type of a resource, as in metrics, and the first 12 hexadecimal digits of the
// SHA-256 of its name, as in logs: "table:38ab6cd93feb".
func Hashed(resource string) string {
	digits := fmt.Sprintf("%x", sha256.Sum256([]byte(resource)))[:12]
	if kind, _, typed := strings.Cut(resource, ":"); typed {
		return kind + ":" + digits
	}
	return digits
}

// Short returns the first 8 characters of a lease id, as events, logs and spans show it, and "" for
// the nil id.
func Short(leaseID uuid.UUID) string {
	if leaseID == uuid.Nil {
		return ""
	}
	return leaseID.String()[:8]
}

func newOptions(opts []Option) options {
	o := options{key: "fencedb:v1:events"}
	for _, opt := range opts {
		opt(&o)
	}
	if o.worker == "" {
		o.worker = lease.ClientName(filepath.Base(os.Args[0]))
	}
	return o
}

const (
	field   = "event" // of an entry of the stream
	kept    = 10_000  // entries, approximately
	room    = 4096    // events that wait to be published; the next one is dropped
	atOnce  = 256     // events in one round trip
	timeout = 5 * time.Second
)

// Feed publishes the events of one process. It is a tracer of leases and of writes, and safe for
// concurrent use.
type Feed struct {
	client  redis.UniversalClient
	options options
	done    chan struct{} // closed when the publisher has ended
	dropped atomic.Int64
	outage  outage // of the publisher's goroutine only

	mu           sync.Mutex
	waiting      chan *Event                // sent to and closed under mu
	closed       bool                       // guarded by mu
	acquisitions map[uuid.UUID]*acquisition // in progress, by lease id; guarded by mu with their fields
}

var (
	_ lease.Tracer   = (*Feed)(nil)
	_ fencedb.Tracer = (*Feed)(nil)
)

// New starts a goroutine that publishes; [Feed.Close] ends it. Close the client after the feed. It
// panics without a client.
func New(client redis.UniversalClient, opts ...Option) *Feed {
	if client == nil {
		panic("feed: New needs a client of Redis")
	}
	f := &Feed{
		client:  client,
		options: newOptions(opts),
		done:    make(chan struct{}),
		waiting: make(chan *Event, room),

		acquisitions: make(map[uuid.UUID]*acquisition),
	}
	f.outage.on = f.options.onOutage
	go f.run()
	return f
}

// Close publishes the buffered events and ends the feed. Later events are dropped and counted. If
// ctx ends first, Close returns its cause while publishing continues. A second call waits again.
func (f *Feed) Close(ctx context.Context) error {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		close(f.waiting)
	}
	f.mu.Unlock()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Dropped returns the number of events that were not published: the buffer was full, Redis refused
// them or did not answer, or the feed was closed.
func (f *Feed) Dropped() int64 { return f.dropped.Load() }

// publish never blocks.
func (f *Feed) publish(e Event) {
	e.At, e.Worker = time.Now().UTC().Truncate(time.Millisecond), f.options.worker
	if f.options.hashed {
		e.Resource = Hashed(e.Resource)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		select {
		case f.waiting <- &e:
			return
		default:
		}
	}
	f.dropped.Add(1)
}

func (f *Feed) run() {
	defer close(f.done)
	for first := range f.waiting {
		events := []*Event{first}
		for len(events) < atOnce && len(f.waiting) > 0 { // nobody else receives
			events = append(events, <-f.waiting)
		}
		f.send(events)
	}
}

// errHook is the failure of a request in a hook of the client.
var errHook = errors.New("feed: a hook of the client panicked or ended its goroutine")

// recovered makes a panic of a hook an error: on a goroutine of ours it would end the process.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", errHook, p)
	}
}

func exec(ctx context.Context, pipe redis.Pipeliner) (commands []redis.Cmder, err error) {
	defer recovered(&err)
	return pipe.Exec(ctx)
}

// send makes one attempt only, because the next events are waiting.
func (f *Feed) send(events []*Event) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	pipe := f.client.Pipeline()
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			panic(fmt.Errorf("bug: an event that is not JSON: %w", err))
		}
		pipe.XAdd(ctx, &redis.XAddArgs{
			Stream: f.options.key, MaxLen: kept, Approx: true, Values: []string{field, string(text)},
		})
	}
	commands, err := exec(ctx, pipe)
	f.outage.report(err)
	if err == nil {
		return
	}
	f.dropped.Add(int64(len(events) - len(commands)))
	for _, c := range commands {
		if c.(*redis.StringCmd).Val() == "" { // refused, or kept back by a hook of the client
			f.dropped.Add(1)
		}
	}
}
