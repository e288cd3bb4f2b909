package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// subscription is one waiter's share in a connection: the channel of one resource.
type subscription struct {
	channel  string
	wake     chan struct{} // holds one token when the waiter should ask again
	listener *listener
	moved    func() bool // the channel is served elsewhere by now
	known    bool        // to the listener's loop; guarded by the listener's mu

	mu     sync.Mutex
	waiter string // the call whose news counts; guarded by mu
	news   notice // guarded by mu
}

// notice is what a waiter was told since it asked.
type notice struct {
	granted *protocol.Granted // the latest; nil if there was none
	look    time.Duration     // how long the waiter that was woken may go on sleeping, because the one before it has its turn
	ask     bool              // it should ask now, whatever look says
	refused error             // why Redis does not let this process listen: the waiter will never be woken
}

// listenFor says whose news counts from now on, and forgets earlier news.
func (s *subscription) listenFor(waiter string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.waiter, s.news = waiter, notice{refused: s.news.refused}
	s.mu.Unlock()
	select {
	case <-s.wake:
	default:
	}
}

// wakeToAsk wakes the waiter, who should ask now: news may have been missed.
func (s *subscription) wakeToAsk() {
	s.mu.Lock()
	s.news.ask = true
	s.mu.Unlock()
	s.signal()
}

func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // the token is there
	}
}

// receive takes a message in, and wakes the waiter if it is the one addressed.
func (s *subscription) receive(message string) {
	n := protocol.ReadNews(message)
	s.mu.Lock()
	mine := n.Call != "" && n.Call == s.waiter
	if mine {
		if n.Granted != nil {
			s.news.granted = n.Granted
		}
		s.news.ask, s.news.look = s.news.ask || n.Look == 0, n.Look
	}
	s.mu.Unlock()
	if mine {
		s.signal()
	}
}

// told is the news so far. A store that cannot wake waiters tells them to ask.
func (s *subscription) told() notice {
	if s == nil {
		return notice{ask: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// refuse tells the waiter that it will never be woken.
func (s *subscription) refuse(err error) {
	s.mu.Lock()
	s.news.refused = err
	s.mu.Unlock()
	s.wakeToAsk()
}

func (s *subscription) close() { s.listener.unsubscribe(s) }

const (
	linger = 2 * time.Second // how long an empty line is kept, and a connection without subscriptions
	pulse  = 3 * time.Second // how often a connection has to give a sign of life
	retry  = 100 * time.Millisecond
)

// subscriber is where waiters subscribe.
type subscriber interface {
	subscribe(channel, waiter string) *subscription // nil if that is not possible now
	stopListening()                                 // ends what lingers
}

// listener is one connection for the channels of all its subscriptions. It runs while there are
// any, and a little longer.
type listener struct {
	connect func() connection
	wake    chan struct{} // holds one token when subscriptions has changed
	heard   atomic.Bool   // anything since the last pulse

	mu            sync.Mutex
	subscriptions map[string]*subscription // by channel; guarded by mu
	running       bool                     // guarded by mu
	closing       bool                     // does not linger; guarded by mu
}

func newListener(connect func() connection) *listener {
	return &listener{connect: connect, wake: make(chan struct{}, 1), subscriptions: make(map[string]*subscription)}
}

// subscribe listens for the waiter from the start: news may come before the subscription is returned.
func (l *listener) subscribe(channel, waiter string) *subscription {
	e := &subscription{channel: channel, waiter: waiter, wake: make(chan struct{}, 1), listener: l, moved: func() bool { return false }}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscriptions[channel] = e
	l.closing = false
	if !l.running {
		l.running = true
		go l.run()
	}
	l.changed()
	return e
}

func (l *listener) unsubscribe(e *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subscriptions[e.channel] == e {
		delete(l.subscriptions, e.channel)
		l.changed()
	}
}

func (l *listener) stopListening() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	l.changed()
}

func (l *listener) changed() {
	select {
	case l.wake <- struct{}{}:
	default: // the token is there
	}
}

func (l *listener) subscription(channel string) *subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.subscriptions[channel]
}

// listenOn listens on a deployment where every server passes every message on.
func listenOn(client redis.UniversalClient) *listener {
	return newListener(func() connection {
		return connection{PubSub: client.Subscribe(context.Background()), publish: client.Publish}
	})
}

// shards are the listeners on a Cluster's masters: a message stays on the shard that serves its
// channel.
type shards struct {
	cluster *redis.ClusterClient

	mu       sync.Mutex
	byMaster map[*redis.Client]*listener // those with subscriptions, and a few more; guarded by mu
}

// subscribe listens on the master that serves the channel; nil if that cannot be found out now. The
// cluster's client closes its client of a master that leaves, and makes another if it returns, so
// the address alone says nothing.
func (s *shards) subscribe(channel, waiter string) *subscription {
	master, err := s.cluster.MasterForKey(context.Background(), channel)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, l := range s.byMaster {
		if other != master && l.ended() {
			delete(s.byMaster, other)
		}
	}
	l, known := s.byMaster[master]
	if !known {
		l = newListener(func() connection {
			return connection{master.SSubscribe(context.Background()), true, master.SPublish}
		})
		s.byMaster[master] = l
	}
	e := l.subscribe(channel, waiter)
	e.moved = func() bool {
		now, err := s.cluster.MasterForKey(context.Background(), channel)
		return err == nil && now != master
	}
	return e
}

func (s *shards) stopListening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.byMaster {
		l.stopListening()
	}
}

func (l *listener) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.running
}

func (l *listener) run() {
	for l.serve() {
	}
}

// serve keeps the channels of one connection equal to the subscriptions. It returns false when
// there are none, and true when the connection has broken or fallen silent and another is needed.
func (l *listener) serve() (again bool) {
	s := l.connect()
	defer s.Close()
	subscribed := make(map[string]bool)
	idle, check := time.NewTimer(linger), time.NewTicker(pulse)
	defer idle.Stop()
	defer check.Stop()
	var broken chan struct{}
	asked := false
	for {
		add, remove := l.difference(subscribed)
		if broken == nil && len(add) > 0 && !l.probe(s, add[0]) {
			l.wakeAll()
			protocol.Sleep(context.Background(), retry)
			return true
		}
		s.change(add, remove)
		if len(subscribed) > 0 {
			idle.Reset(linger)
			if broken == nil { // receiving connects, so there has to be a channel to choose the node by
				broken = make(chan struct{})
				go l.receive(s, broken)
			}
		} else if l.isClosing() && l.stop() {
			return false
		}
		select {
		case <-l.wake:
		case <-broken:
			l.wakeAll() // they ask again, and look where their channel is served by now
			protocol.Sleep(context.Background(), retry)
			return true
		case <-check.C:
			if !l.alive(s, &asked) {
				return true
			}
		case <-idle.C:
			if l.stop() {
				return false
			}
			idle.Reset(linger) // the last subscription may end before the loop sees it
		}
	}
}

// alive is false if the connection was asked for a sign of life at the last check, and has given
// none. It asks if nothing was heard since then.
func (l *listener) alive(s connection, asked *bool) bool {
	silent := !l.heard.Swap(false)
	if silent && *asked {
		return false
	}
	if *asked = silent; silent {
		s.ask()
	}
	return true
}

// receive passes messages on until the connection is closed or breaks. The connection is not used
// again then: it would subscribe to all its channels in one request, which a Cluster refuses when
// they are of several slots.
func (l *listener) receive(s connection, broken chan<- struct{}) {
	defer close(broken)
	for {
		m, err := s.Receive(context.Background())
		if err != nil {
			l.refused(err)
			return
		}
		l.heard.Store(true)
		l.dispatch(m)
	}
}

// probe tries what is needed later, before the connection subscribes to anything: to publish, and to
// unsubscribe. So a client without these rights learns it when it waits, and not by failing to wake
// others. It is false if the connection is of no use.
func (l *listener) probe(s connection, channel string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), pulse)
	defer cancel()
	if l.refused(s.publish(ctx, channel, "").Err()) {
		return false
	}
	s.change(nil, []string{channel + ":probe"})
	_, err := s.ReceiveTimeout(ctx, pulse)
	if redis.HasErrorPrefix(err, "NOSUB") { // as Valkey answers
		err = nil
	}
	l.refused(err)
	return err == nil
}

// refused is whether this process is not allowed to listen. It tells the waiters.
func (l *listener) refused(err error) bool {
	err = protocol.Failed(context.Background(), "to listen", err)
	if !errors.Is(err, ErrDenied) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.subscriptions {
		e.refuse(err)
	}
	return true
}

func (l *listener) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.subscriptions {
		e.wakeToAsk()
	}
}

func (l *listener) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

// difference brings subscribed up to date and says how.
func (l *listener) difference(subscribed map[string]bool) (add, remove []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, e := range l.subscriptions {
		if !subscribed[channel] {
			add = append(add, channel)
			subscribed[channel] = true
		} else if !e.known {
			e.wakeToAsk() // a message may have come before this subscription
		}
		e.known = true
	}
	for channel := range subscribed {
		if l.subscriptions[channel] == nil {
			remove = append(remove, channel)
			delete(subscribed, channel)
		}
	}
	return add, remove
}

// stop ends the loop, unless there is a new subscription.
func (l *listener) stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = len(l.subscriptions) > 0
	return !l.running
}

// dispatch passes a message to its subscription. The beginning, the renewal and the end of a
// subscription in Redis wake the waiter too: messages before that moment were missed.
func (l *listener) dispatch(m any) {
	switch m := m.(type) {
	case *redis.Message:
		if e := l.subscription(m.Channel); e != nil {
			e.receive(m.Payload)
		}
	case *redis.Subscription:
		if e := l.subscription(m.Channel); e != nil {
			e.wakeToAsk()
		}
	}
}

// connection is one that listens. On a Cluster, messages stay on the shard that serves the
// resource.
type connection struct {
	*redis.PubSub
	sharded bool
	publish func(ctx context.Context, channel string, message any) *redis.IntCmd
}

// ask requests a sign of life. Errors are left to the connection.
func (s connection) ask() {
	ctx, cancel := context.WithTimeout(context.Background(), pulse)
	defer cancel()
	_ = s.Ping(ctx)
}

// change subscribes and unsubscribes. Errors are left to the connection; until there is a better
// one, waiters ask on their own. On a Cluster one request is about one slot.
func (s connection) change(add, remove []string) {
	ctx, cancel := context.WithTimeout(context.Background(), pulse)
	defer cancel()
	if s.sharded {
		for _, channel := range add {
			_ = s.SSubscribe(ctx, channel)
		}
		for _, channel := range remove {
			_ = s.SUnsubscribe(ctx, channel)
		}
		return
	}
	if len(add) > 0 {
		_ = s.Subscribe(ctx, add...)
	}
	if len(remove) > 0 {
		_ = s.Unsubscribe(ctx, remove...)
	}
}
