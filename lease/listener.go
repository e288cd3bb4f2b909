package lease

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ear is one resource's share in a subscription.
type ear struct {
	channel  string
	rings    chan struct{} // holds one token when the waiter should ask again
	listener *listener
	moved    func() bool // the channel is served elsewhere by now
	known    bool        // to the listener's loop; guarded by the listener's mu

	mu     sync.Mutex
	waiter string // whose wake-up counts; guarded by mu
}

func (e *ear) listenFor(waiter string) {
	e.mu.Lock()
	e.waiter = waiter
	e.mu.Unlock()
	select {
	case <-e.rings:
	default:
	}
}

func (e *ear) ring() {
	select {
	case e.rings <- struct{}{}:
	default: // it rings already
	}
}

// hear takes a message: "free <waiter>".
func (e *ear) hear(message string) {
	e.mu.Lock()
	mine := strings.TrimPrefix(message, "free ") == e.waiter
	e.mu.Unlock()
	if mine {
		e.ring()
	}
}

func (e *ear) close() { e.listener.drop(e) }

// linger is how long a subscription without ears is kept, so that a resource under steady contention does not open a
// connection for each hand-over.
const linger = time.Second

// listener is one connection that subscribes to the channels of all its ears. It runs while there are ears, and lingers a little.
type listener struct {
	connect func() subscription
	poke    chan struct{} // holds one token when ears has changed

	mu      sync.Mutex
	ears    map[string]*ear // by channel; guarded by mu
	running bool            // guarded by mu
}

func newListener(connect func() subscription) *listener {
	return &listener{connect: connect, poke: make(chan struct{}, 1), ears: make(map[string]*ear)}
}

func (l *listener) open(channel string) *ear {
	e := &ear{channel: channel, rings: make(chan struct{}, 1), listener: l, moved: func() bool { return false }}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ears[channel] = e
	if !l.running {
		l.running = true
		go l.run()
	}
	l.changed()
	return e
}

func (l *listener) drop(e *ear) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ears[e.channel] == e {
		delete(l.ears, e.channel)
		l.changed()
	}
}

func (l *listener) changed() {
	select {
	case l.poke <- struct{}{}:
	default: // it has been poked already
	}
}

func (l *listener) ear(channel string) *ear {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ears[channel]
}

// listenOn gives an ear on a deployment where every server passes every message on.
func listenOn(client redis.UniversalClient) *listener {
	return newListener(func() subscription { return subscription{PubSub: client.Subscribe(context.Background())} })
}

// shards are the listeners on a Cluster's masters: a message stays on the shard that serves its channel.
type shards struct {
	cluster *redis.ClusterClient

	mu     sync.Mutex
	byAddr map[string]*listener // guarded by mu
}

// open gives an ear on the master that serves the channel, or nil if that cannot be found out now.
func (s *shards) open(channel string) *ear {
	master, err := s.cluster.MasterForKey(context.Background(), channel)
	if err != nil {
		return nil
	}
	addr := master.Options().Addr
	s.mu.Lock()
	l, known := s.byAddr[addr]
	if !known {
		l = newListener(func() subscription { return subscription{master.SSubscribe(context.Background()), true} })
		s.byAddr[addr] = l
	}
	s.mu.Unlock()
	e := l.open(channel)
	e.moved = func() bool {
		now, err := s.cluster.MasterForKey(context.Background(), channel)
		return err == nil && now.Options().Addr != addr
	}
	return e
}

// run keeps what the connection is subscribed to equal to what the ears want, and passes on what it hears.
func (l *listener) run() {
	s := l.connect()
	defer s.Close()
	subscribed := make(map[string]bool)
	idle := time.NewTimer(linger)
	defer idle.Stop()
	var messages <-chan any
	for {
		add, remove := l.difference(subscribed)
		s.change(add, remove)
		if messages == nil && len(subscribed) > 0 {
			messages = s.ChannelWithSubscriptions() // connects, so there has to be a channel to choose the node by
		}
		if len(subscribed) > 0 {
			idle.Reset(linger)
		}
		select {
		case m := <-messages: // never closed before s is
			l.dispatch(m)
		case <-l.poke:
		case <-idle.C:
			if l.stop() {
				return
			}
		}
	}
}

// difference brings subscribed up to date and says how.
func (l *listener) difference(subscribed map[string]bool) (add, remove []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, e := range l.ears {
		if !subscribed[channel] {
			add = append(add, channel)
			subscribed[channel] = true
		} else if !e.known {
			e.ring() // a message may have come while the channel had no ear
		}
		e.known = true
	}
	for channel := range subscribed {
		if l.ears[channel] == nil {
			remove = append(remove, channel)
			delete(subscribed, channel)
		}
	}
	return add, remove
}

// stop ends the loop, unless an ear was opened meanwhile.
func (l *listener) stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = len(l.ears) > 0
	return !l.running
}

// dispatch passes a message to its ear. The beginning, the renewal and the end of a subscription ring too: what was
// published before that moment was missed.
func (l *listener) dispatch(m any) {
	switch m := m.(type) {
	case *redis.Message:
		if e := l.ear(m.Channel); e != nil {
			e.hear(m.Payload)
		}
	case *redis.Subscription:
		if e := l.ear(m.Channel); e != nil {
			e.ring()
		}
	}
}

// subscription is a connection that listens. On a Cluster, messages stay on the shard that serves the resource.
type subscription struct {
	*redis.PubSub
	sharded bool
}

// change subscribes and unsubscribes. Errors are left to the connection, which reconnects with all channels that it was
// given; until then waiters ask on their own.
func (s subscription) change(add, remove []string) {
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	subscribe, unsubscribe := s.Subscribe, s.Unsubscribe
	if s.sharded {
		subscribe, unsubscribe = s.SSubscribe, s.SUnsubscribe
	}
	if len(add) > 0 {
		_ = subscribe(ctx, add...)
	}
	if len(remove) > 0 {
		_ = unsubscribe(ctx, remove...)
	}
}
