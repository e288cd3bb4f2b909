package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// subscription is the channel of one resource on a connection that several subscriptions share.
type subscription struct {
	channel  string
	wake     chan struct{} // room for one signal: the waiter should ask again
	listener *listener
	moved    func() bool // reports whether another master serves the channel by now
	known    bool        // the listener's loop has seen it; guarded by the listener's mu

	mu     sync.Mutex
	waiter string // the lease id whose news counts; guarded by mu
	news   notice // guarded by mu
}

// notice is the news for a waiter since it last asked.
type notice struct {
	ask     bool  // the waiter should ask now, whatever look says
	listens bool  // Redis has confirmed the subscription
	called  bool  // it is the waiter's turn
	refused error // why Redis does not allow this process to listen: the waiter is never woken

	// look is the time after which the waiter should ask, because the waiter before it was called.
	look time.Duration
}

// listenFor sets the waiter whose news counts from now on, and forgets earlier news.
func (s *subscription) listenFor(waiter string) {
	s.mu.Lock()
	s.waiter, s.news = waiter, notice{refused: s.news.refused}
	s.mu.Unlock()
	select {
	case <-s.wake:
	default:
	}
}

// add adds to the news, and wakes the waiter.
func (s *subscription) add(change func(*notice)) {
	s.mu.Lock()
	change(&s.news)
	s.mu.Unlock()
	signal(s.wake)
}

// wakeToAsk wakes the waiter to ask now, because news may have been missed.
func (s *subscription) wakeToAsk() { s.add(func(n *notice) { n.ask = true }) }

// signal sends to a channel with room for one signal.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // there is one already
	}
}

// receive reads a message, and wakes the waiter if the message is for it.
func (s *subscription) receive(message string) {
	n := protocol.ReadNews(message)
	s.mu.Lock()
	mine := n.ID != "" && n.ID == s.waiter
	if mine {
		s.news.called = s.news.called || n.Look == 0
		s.news.ask, s.news.look = s.news.ask || s.news.called, n.Look
	}
	s.mu.Unlock()
	if mine {
		signal(s.wake)
	}
}

// latest is the news so far.
func (s *subscription) latest() notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

func (s *subscription) close() { s.listener.unsubscribe(s) }

const (
	linger = 2 * time.Second        // how long an empty line is kept, with its subscription
	pulse  = 3 * time.Second        // how often a connection is checked for a sign of life
	retry  = 100 * time.Millisecond // between two connections
)

// listeners are the listeners of one deployment. On a Cluster, a message stays on the shard that
// serves its channel, so there is one listener for each master. Elsewhere there is one in all.
type listeners struct {
	client redis.UniversalClient

	mu sync.Mutex
	// The listeners with subscriptions, and a few that have ended; if there is one in all, its key
	// is nil. Guarded by mu.
	byMaster map[*redis.Client]*listener
}

// master returns the client of the master that serves the channel; nil if the client is not a
// ClusterClient.
func (s *listeners) master(channel string) (*redis.Client, error) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(context.Background(), channel)
	}
	return nil, nil
}

// subscribe listens on the master that serves the channel; nil if it is not known now which one
// does. Listeners are listed by the client of a master, and not by its address: the ClusterClient
// closes the client of a master that leaves, and makes another if the master returns.
func (s *listeners) subscribe(channel, waiter string) *subscription {
	master, err := s.master(channel)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byMaster, func(other *redis.Client, l *listener) bool { return other != master && l.ended() })
	l, known := s.byMaster[master]
	if !known {
		l = newListener(func() connection { return connect(s.client, master) })
		s.byMaster[master] = l
	}
	return l.subscribe(channel, waiter, func() bool {
		now, err := s.master(channel)
		return err == nil && now != master
	})
}

// listener has one connection for the channels of all its subscriptions. It runs while it has
// subscriptions.
type listener struct {
	connect func() connection
	wake    chan struct{} // room for one signal: subscriptions has changed
	silence atomic.Int32  // how many pulses have passed since something was received

	mu            sync.Mutex
	subscriptions map[string]*subscription // by channel; guarded by mu
	running       bool                     // guarded by mu
}

func newListener(connect func() connection) *listener {
	return &listener{connect: connect, wake: make(chan struct{}, 1), subscriptions: make(map[string]*subscription)}
}

// subscribe adds a subscription for the waiter. The waiter is set at once, because news may come
// before the subscription is returned.
func (l *listener) subscribe(channel, waiter string, moved func() bool) *subscription {
	e := &subscription{channel: channel, waiter: waiter, wake: make(chan struct{}, 1), listener: l, moved: moved}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscriptions[channel] = e
	if !l.running {
		l.running = true
		go l.run()
	}
	signal(l.wake)
	return e
}

func (l *listener) unsubscribe(e *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subscriptions[e.channel] == e {
		delete(l.subscriptions, e.channel)
		signal(l.wake)
	}
}

func (l *listener) subscription(channel string) *subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.subscriptions[channel]
}

func (l *listener) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.running
}

func (l *listener) run() {
	for l.serve() {
		l.each((*subscription).wakeToAsk) // they ask, and find out whether their channel has moved
		protocol.Sleep(context.Background(), retry)
	}
}

// serve keeps the channels of one connection equal to the subscriptions. It returns false when
// there are no subscriptions, and true when the connection has broken or fallen silent, so that
// another is needed.
func (l *listener) serve() (again bool) {
	defer protocol.Recover(func(error) { again = true })
	s := l.connect()
	defer s.Close()
	subscribed := make(map[string]bool)
	check := time.NewTicker(pulse)
	defer check.Stop()
	l.silence.Store(1) // nothing was received yet
	var broken chan struct{}
	for {
		add, remove := l.update(subscribed)
		if broken == nil && len(add) > 0 && !l.probe(s, add[0]) {
			return true
		}
		if s.change(add, remove) != nil {
			return true
		}
		switch {
		case len(subscribed) == 0:
			if l.stop() {
				return false
			}
		case broken == nil: // receiving connects, to the node of a channel: so not before there is one
			broken = make(chan struct{})
			go l.receive(s, broken)
		}
		select {
		case <-l.wake:
		case <-broken:
			return true
		case <-check.C:
			switch l.silence.Add(1) {
			case 2:
				if s.ask() != nil { // for a sign of life
					return true
				}
			case 3:
				return true
			}
		}
	}
}

// receive passes messages on until the connection is closed or breaks. A broken connection is not
// used again: it would subscribe to all its channels in one request, which a Cluster refuses if
// they are in several slots. A confirmation that a subscription has begun, was renewed or has ended
// wakes the waiter too, because earlier messages were missed. If one has ended that is still
// wanted, its slot has moved, and the connection counts as broken: when the waiter asks, the client
// only begins to learn where to, and the waiter would hear nothing until it asks again.
func (l *listener) receive(s connection, broken chan<- struct{}) {
	defer close(broken)
	defer protocol.Recover(func(error) {})
	for {
		m, err := s.Receive(context.Background())
		if err != nil {
			l.noteRefusal(err)
			return
		}
		l.silence.Store(0)
		switch m := m.(type) {
		case *redis.Message:
			if e := l.subscription(m.Channel); e != nil {
				e.receive(m.Payload)
			}
		case *redis.Subscription:
			e := l.subscription(m.Channel)
			if e == nil {
				continue
			}
			e.add(func(n *notice) { n.ask, n.listens = true, true })
			if m.Kind == "sunsubscribe" {
				return
			}
		}
	}
}

// probe publishes and unsubscribes before the connection subscribes to anything. So a client that
// lacks the right to do so learns it when it waits, and not when it fails to wake others. It
// returns false if the connection is of no use.
func (l *listener) probe(s connection, channel string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), pulse)
	defer cancel()
	if l.noteRefusal(s.publish(ctx, channel, "").Err()) {
		return false
	}
	if s.change(nil, []string{channel + ":probe"}) != nil {
		return false // nothing was sent, so no answer will come
	}
	_, err := s.ReceiveTimeout(ctx, pulse)
	if redis.HasErrorPrefix(err, "NOSUB") { // the answer of Valkey
		err = nil
	}
	l.noteRefusal(err)
	return err == nil
}

// noteRefusal reports whether err says that this process is not allowed to listen, and if so,
// passes it on to all waiters.
func (l *listener) noteRefusal(err error) bool {
	err = protocol.Failed(context.Background(), "to listen", err)
	if !protocol.IsRefused(err, protocol.Denied) {
		return false
	}
	l.each(func(e *subscription) { e.add(func(n *notice) { n.ask, n.refused = true, err }) })
	return true
}

func (l *listener) each(f func(*subscription)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.subscriptions {
		f(e)
	}
}

// update changes subscribed to match the subscriptions, and returns the channels that it has added
// and removed.
func (l *listener) update(subscribed map[string]bool) (add, remove []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel, e := range l.subscriptions {
		if !subscribed[channel] {
			add = append(add, channel)
			subscribed[channel] = true
		} else if !e.known {
			e.wakeToAsk() // no confirmation will come, and a message may have come before
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

// connection is a connection for listening, with the commands of its deployment.
type connection struct {
	*redis.PubSub
	subscribe, unsubscribe func(ctx context.Context, channels ...string) error
	publish                func(ctx context.Context, channel string, message any) *redis.IntCmd
	atOnce                 int // channels in one request; on a Cluster 1, because a request is about one slot
}

func connect(client redis.UniversalClient, master *redis.Client) connection {
	if !isSharded(client) {
		if master != nil { // not a replica: PUBLISH on the master does not count who listens on replicas
			client = master
		}
		p := client.Subscribe(context.Background())
		return connection{p, p.Subscribe, p.Unsubscribe, client.Publish, 1000}
	}
	p := master.SSubscribe(context.Background())
	return connection{p, p.SSubscribe, p.SUnsubscribe, master.SPublish, 1}
}

// ask requests a sign of life.
func (s connection) ask() error {
	ctx, cancel := context.WithTimeout(context.Background(), pulse)
	defer cancel()
	return s.Ping(ctx)
}

// change subscribes and unsubscribes. After an error the connection is of no use: it may never have
// been made, which nothing else would notice.
func (s connection) change(add, remove []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pulse)
	defer cancel()
	for channels := range slices.Chunk(add, s.atOnce) {
		if err := s.subscribe(ctx, channels...); err != nil {
			return err
		}
	}
	for channels := range slices.Chunk(remove, s.atOnce) {
		if err := s.unsubscribe(ctx, channels...); err != nil {
			return err
		}
	}
	return nil
}
