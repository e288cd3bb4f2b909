package lease_test

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/lease"
)

// simulation is one run of a plan: processes with the issuer and the client library as they ship, a
// Redis in memory, and the network between them. One goroutine, the director, carries out one event
// after the other, each when all others wait; so a seed gives the same run again.
type simulation struct {
	plan
	start    time.Time
	redis    *memoryRedis
	judge    *judge
	running  []*process
	events   events
	pushed   int // events so far
	step     time.Duration
	saved    map[int]map[string]*datum // snapshots, by the fault that returns to them
	channels map[string][]*link

	recording bool
	over      atomic.Bool
	line      []string // the time line, if recording

	more chan struct{} // holds one token when there is something in outbox

	mu     sync.Mutex
	outbox []written // guarded by mu
	busy   int       // workers that have not ended; guarded by mu
	links  int       // guarded by mu
	drawn  struct {  // guarded by mu
		at time.Duration
		n  uint64
	}
}

// written is what one write has put on a link; nil data if it was closed.
type written struct {
	link *link
	data []byte
}

// event is something that happens at a time.
type event struct {
	at    time.Duration
	order int
	do    func()
}

// events is a heap, the earliest first.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements [heap.Interface].
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop implements [heap.Interface].
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// process is a program with an issuer.
type process struct {
	processPlan
	s         *simulation
	n         int
	name      string
	client    *redis.Client
	issuer    *lease.Issuer
	ctx       context.Context // ends when the process dies
	kill      context.CancelFunc
	all       []*link                  // guarded by the simulation's mu
	sent      map[string]int           // requests, by kind
	disturbed time.Duration            // when something last went wrong with it
	withdraws map[string]time.Duration // when the latest withdrawal of a call arrives, by its lease id
	closing   atomic.Bool
}

func newSimulation(p plan, m *memoryRedis) *simulation {
	s := &simulation{plan: p, start: time.Now(), redis: m, more: make(chan struct{}, 1),
		saved: make(map[int]map[string]*datum), channels: make(map[string][]*link)}
	s.judge = newJudge(s)
	m.reset()
	m.publish = s.publish
	return s
}

func (s *simulation) now() time.Duration { return time.Since(s.start) }

// epoch is what Redis's clock shows when a simulation begins.
const epoch = 1_700_000_000_000_000

// setClock brings Redis's clock up to date.
func (s *simulation) setClock() { s.redis.micros = epoch + s.onRedis(s.now()).Microseconds() }

// onRedis is that time on Redis's clock, since its epoch.
func (s *simulation) onRedis(t time.Duration) time.Duration {
	return time.Duration(float64(t)*s.speed) + s.step
}

// note writes a line of the time line.
func (s *simulation) note(format string, args ...any) {
	if !s.recording || s.over.Load() {
		return
	}
	line := fmt.Sprintf("%10.6fs  ", s.now().Seconds()) + fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = append(s.line, line)
}

func (s *simulation) at(t time.Duration, do func()) {
	s.pushed++
	heap.Push(&s.events, event{t, s.pushed, do})
}

// chance is where the code under test gets its random numbers from. A number depends on the time
// and on how many were drawn at that time, so that two goroutines that swap places do not change
// all that follows.
func (s *simulation) chance() uint64 {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drawn.at != now {
		s.drawn.at, s.drawn.n = now, 0
	}
	s.drawn.n++
	return mix(s.seed, uint64(now), s.drawn.n)
}

// run is the director. It returns when all is over, or a promise is broken.
func (s *simulation) run() {
	s.begin()
	for !s.judge.broken() {
		synctest.Wait()
		s.collect()
		if len(s.events) == 0 {
			s.judge.breaks("progress", "nothing happens any more, and work has not ended")
			break
		}
		if next := s.events[0].at; next > s.now() {
			timer := time.NewTimer(next - s.now())
			select {
			case <-timer.C:
			case <-s.more:
			}
			timer.Stop()
			continue
		}
		heap.Pop(&s.events).(event).do()
		s.judge.look()
		if s.ended() {
			break
		}
	}
	s.end()
}

func (s *simulation) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy == 0
}

// begin starts the processes and schedules the faults.
func (s *simulation) begin() {
	s.busy = 1 // the finale
	for n, p := range s.processes {
		if p.workers > 0 {
			s.at(p.starts, func() { s.launch(n, p) })
		}
	}
	for n, f := range s.faults {
		if f.kind == restore {
			s.at(max(f.at-f.lasts, 1), func() { s.setClock(); s.saved[n] = s.redis.snapshot() })
		}
		s.at(f.at, func() { s.strike(n, f) })
	}
	s.at(s.until+s.settle(), s.finale)
	s.at(s.until+s.settle()+10*time.Minute, func() { s.judge.breaks("L8", "a call has not returned ten minutes after the end") })
}

// settle is how long after the end of all work everything has come to rest.
func (s *simulation) settle() time.Duration { return 4*s.ttl + 20*time.Second }

func (s *simulation) launch(n int, p processPlan) {
	one := &process{processPlan: p, s: s, n: n, name: string(rune('A' + n)), sent: make(map[string]int),
		disturbed: -time.Hour, withdraws: make(map[string]time.Duration)}
	one.ctx, one.kill = context.WithCancel(context.Background())
	one.client = redis.NewClient(&redis.Options{
		Addr: "simulated:6379", Protocol: 2, DisableIdentity: true, PoolSize: 1000, MaxRetries: -1, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return one.dial() },
	})
	renewEvery := time.Duration(0)
	if s.passive {
		renewEvery = lease.Never
	}
	issuer, err := lease.New(one.client, lease.Config{
		TTL: s.ttl, RenewEvery: renewEvery, Margin: s.margin, FenceRetention: s.retention, MaxHold: 3 * s.ttl, Holder: one.name, Namespace: "sim",
		Tracers: []lease.Tracer{s.judge},
	})
	if err != nil {
		panic(err)
	}
	one.issuer = issuer
	s.running = append(s.running, one)
	s.note("%s starts", one.name)
	if p.dies > 0 {
		s.at(p.dies, one.die)
	}
	for n := range p.workers {
		s.goes(func() { newWorker(one, n).run() })
	}
}

// goes runs beside the director.
func (s *simulation) goes(do func()) {
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
	go func() {
		do()
		s.mu.Lock()
		s.busy--
		s.mu.Unlock()
		s.at0()
	}()
}

// at0 wakes the director.
func (s *simulation) at0() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// finale is the end of a run without faults: every process that lives acquires each resource once
// more, and closes.
func (s *simulation) finale() {
	s.note("the faults are over")
	for n, p := range s.running {
		if !p.dead() {
			s.mu.Lock()
			s.busy++
			s.mu.Unlock()
			s.at(s.now()+time.Duration(n)*77*time.Microsecond, func() {
				s.goes(func() { finish(p) })
				s.mu.Lock()
				s.busy--
				s.mu.Unlock()
			})
		}
	}
	s.mu.Lock()
	s.busy--
	s.mu.Unlock()
	s.tick()
}

// tick keeps the director looking while work goes on.
func (s *simulation) tick() {
	s.at(s.now()+100*time.Millisecond, s.tick)
}

// end stops what still runs. After a broken promise that may be anything.
func (s *simulation) end() {
	s.over.Store(true)
	for _, p := range s.running {
		p.die()
	}
	time.Sleep(4*s.ttl + 30*time.Second) // releases give up, lines and connections end
	for _, p := range s.running {
		_ = p.client.Close()
	}
	time.Sleep(2 * time.Second) // the client library notices that it is closed
}

// Faults ------------------------------------------------------------------------------------------

// strike carries out a fault.
func (s *simulation) strike(n int, f fault) {
	s.note("fault: %s", f)
	s.setClock()
	if f.kind.ofRedis() {
		s.judge.disturbed(f)
	}
	switch f.kind {
	case reset:
		for _, p := range s.running {
			if p.n == f.process {
				p.disturb()
				for _, l := range s.linksOf(p) {
					l.breaks()
				}
			}
		}
	case loseNews, stop, cutOut, cutIn, cut:
		for _, p := range s.running {
			if p.n == f.process {
				p.disturb()
				s.at(f.at+f.lasts, p.disturb)
			}
		}
	case flush:
		clear(s.redis.data)
	case evict:
		for key := range s.redis.data {
			if strings.HasSuffix(key, f.field) {
				delete(s.redis.data, key)
			}
		}
	case restore:
		s.redis.data = s.saved[n]
		s.forgetAll()
	case restart:
		s.forgetAll()
	case forgetScripts:
		clear(s.redis.scripts)
	case clockForward:
		s.step += f.lasts
	case clockBack:
		s.step -= f.lasts
	}
	s.setClock()
	s.judge.look()
}

// forgetAll is what a restart of Redis does beside its data.
func (s *simulation) forgetAll() {
	clear(s.redis.scripts)
	for _, p := range s.running {
		p.disturb()
		for _, l := range s.linksOf(p) {
			l.breaks()
		}
	}
}

func (s *simulation) linksOf(p *process) []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(p.all)
}

func (p *process) disturb() { p.disturbed = max(p.disturbed, p.s.now()) }

func (p *process) dead() bool { return p.ctx.Err() != nil }

// die ends the process. Redis learns of it at once, or never if the machine has failed.
func (p *process) die() {
	if p.dead() {
		return
	}
	p.s.note("%s dies", p.name)
	p.kill()
	for _, l := range p.s.linksOf(p) {
		if !p.silent {
			p.s.drop(l)
		}
		l.fail(net.ErrClosed)
	}
}

// held is the earliest time from t on at which none of the faults keeps the messages of the process
// back.
func (p *process) held(t time.Duration, kinds ...kind) time.Duration {
	for again := true; again; {
		again = false
		for _, f := range p.s.faults {
			if f.process == p.n && slices.Contains(kinds, f.kind) && t >= f.at && t < f.at+f.lasts {
				t, again = f.at+f.lasts+time.Microsecond, true
			}
		}
	}
	return t
}

// ready is the earliest time from t on at which Redis executes anything.
func (s *simulation) ready(t time.Duration) time.Duration {
	for _, f := range s.faults {
		if f.kind == hang && t >= f.at && t < f.at+f.lasts {
			t = f.at + f.lasts + time.Microsecond
		}
	}
	return t
}

// refuses is the error with which Redis answers everything now.
func (s *simulation) refuses() error {
	now := s.now()
	for _, f := range s.faults {
		if f.kind == refuse && now >= f.at && now < f.at+f.lasts {
			return errors.New(f.field)
		}
	}
	return nil
}

// Network -----------------------------------------------------------------------------------------

// link is a connection of a process to Redis. What is read and written passes through the director,
// who delays, loses and repeats it.
type link struct {
	p  *process
	id int

	ready chan struct{} // holds one token when a reader should look

	mu       sync.Mutex
	in       []byte    // guarded by mu
	err      error     // of the next read, and of every write; guarded by mu
	deadline time.Time // of reads; guarded by mu

	// for the director alone
	partial         []byte
	mute, gone      bool // nothing passes any more; the server has closed it
	arrived, landed time.Duration
}

func (p *process) dial() (net.Conn, error) {
	s := p.s
	now := s.now()
	if p.dead() || p.held(now, stop, cutOut, cutIn, cut) != now || s.ready(now) != now {
		return nil, errors.New("no route to host")
	}
	l := &link{p: p, ready: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links++
	l.id = s.links
	p.all = append(p.all, l)
	return l, nil
}

// Read implements [net.Conn].
func (l *link) Read(b []byte) (int, error) {
	for {
		l.mu.Lock()
		n, err, deadline := copy(b, l.in), l.err, l.deadline
		l.in = l.in[n:]
		l.mu.Unlock()
		if n > 0 || err != nil {
			return n, err
		}
		if deadline.IsZero() {
			<-l.ready
			continue
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-l.ready:
		case <-timer.C:
			return 0, os.ErrDeadlineExceeded
		}
		timer.Stop()
	}
}

// Write implements [net.Conn]. The first request of a connection is answered at once: the client
// holds locks until the answer is there, for which a bubble's clock does not wait.
func (l *link) Write(b []byte) (int, error) {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if bytes.Contains(b, []byte("\r\nhello\r\n")) {
		l.receive([]byte("-ERR unknown command 'hello'\r\n"))
		return len(b), nil
	}
	l.p.s.send(l, slices.Clone(b))
	return len(b), nil
}

// Close implements [net.Conn].
func (l *link) Close() error {
	l.fail(net.ErrClosed)
	l.p.s.send(l, nil)
	return nil
}

func (s *simulation) send(l *link, data []byte) {
	s.mu.Lock()
	s.outbox = append(s.outbox, written{l, data})
	s.mu.Unlock()
	s.at0()
}

func (l *link) receive(data []byte) {
	l.mu.Lock()
	l.in = append(l.in, data...)
	l.mu.Unlock()
	l.signal()
}

func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.signal()
}

func (l *link) signal() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// SetReadDeadline implements [net.Conn].
func (l *link) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	return nil
}

// SetDeadline implements [net.Conn]. Writes do not block.
func (l *link) SetDeadline(t time.Time) error { return l.SetReadDeadline(t) }

// SetWriteDeadline implements [net.Conn].
func (*link) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements [net.Conn].
func (*link) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements [net.Conn].
func (*link) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// breaks ends the connection on both sides, and loses what is under way.
func (l *link) breaks() {
	if l.gone {
		return
	}
	s := l.p.s
	s.drop(l)
	s.at(l.p.held(s.now(), stop, cutIn, cut), func() { l.fail(io.EOF) })
}

// drop is the end of the connection on the server.
func (s *simulation) drop(l *link) {
	l.gone = true
	for channel, all := range s.channels {
		s.channels[channel] = slices.DeleteFunc(all, func(other *link) bool { return other == l })
	}
}

// collect puts on its way what was written since, in an order that depends on what it is, and not
// on which goroutine was first.
func (s *simulation) collect() {
	s.mu.Lock()
	all := s.outbox
	s.outbox = nil
	s.mu.Unlock()
	if len(all) > 1 {
		first := make(map[*link][]byte)
		for _, w := range all {
			if _, known := first[w.link]; !known {
				first[w.link] = w.data
			}
		}
		slices.SortStableFunc(all, func(a, b written) int {
			if a.link == b.link {
				return 0
			}
			if a.link.p != b.link.p {
				return a.link.p.n - b.link.p.n
			}
			if c := bytes.Compare(first[a.link], first[b.link]); c != 0 {
				return c
			}
			return a.link.id - b.link.id
		})
	}
	for _, w := range all {
		w.link.leaves(w.data)
	}
}

// leaves sends data on to the server; nil for the end of the connection.
func (l *link) leaves(data []byte) {
	s := l.p.s
	if data == nil {
		at := max(l.p.held(s.now(), stop, cutOut, cut)+100*time.Microsecond, l.arrived+1)
		l.arrived = at
		s.at(at, func() { s.drop(l) })
		return
	}
	l.partial = append(l.partial, data...)
	for {
		args, rest := parseCommand(l.partial)
		if args == nil {
			return
		}
		l.partial = rest
		l.request(args)
	}
}

// parseCommand reads one command; nil if it is not complete.
func parseCommand(b []byte) (args []string, rest []byte) {
	field := func(prefix byte) (int, bool) {
		end := bytes.Index(b, []byte("\r\n"))
		if end < 0 || b[0] != prefix {
			return 0, false
		}
		n, err := strconv.Atoi(string(b[1:end]))
		b = b[end+2:]
		return n, err == nil
	}
	n, ok := field('*')
	if !ok {
		return nil, nil
	}
	for range n {
		size, ok := field('$')
		if !ok || len(b) < size+2 {
			return nil, nil
		}
		args = append(args, string(b[:size]))
		b = b[size+2:]
	}
	return args, b
}

// request gives one command its fate.
func (l *link) request(args []string) {
	p, s := l.p, l.p.s
	now := s.now()
	kind := kindOf(args)
	p.sent[kind]++
	d := newDice(mix(s.seed, uint64(p.n)+1, textHash(kind), uint64(p.sent[kind])))
	leaves := p.held(now, stop, cutOut, cut)
	if l.gone || l.mute || p.dead() || p.dies > 0 && leaves >= p.dies {
		return
	}
	at := max(leaves+s.delay(p, &d), l.arrived+1)
	l.arrived = at
	if at > now+time.Millisecond { // it is late
		p.disturbed = max(p.disturbed, at)
	}
	if kind == "withdraw" {
		keys, _ := strconv.Atoi(args[2])
		p.withdraws[args[keys+3]] = at
	}
	at = s.ready(at)
	fate := fateless
	if now < s.until+s.settle() {
		fate = s.fate(&d)
	}
	if fate != fateless {
		p.disturb()
		s.note("%s's %s: %s", p.name, kind, fate)
	}
	switch fate {
	case loseRequest:
		s.at(at, l.breaks)
		return
	case swallowRequest:
		l.mute = true
		return
	case repeat:
		s.at(s.ready(at+d.between(0, 3*s.ttl)), func() {
			p.disturb() // if a waiter is called that has gone, those of its process are passed over until they ask
			s.execute(l, args, true)
		})
	}
	s.at(at, func() {
		if l.gone {
			return
		}
		reply := s.execute(l, args, false)
		switch {
		case fate == loseReply:
			l.breaks()
		case fate == swallowReply:
			l.mute = true
		case reply != nil:
			l.answer(reply, s.delay(p, &d))
		}
	})
}

// delay is how long a message is under way.
func (s *simulation) delay(p *process, d *dice) time.Duration {
	delay := d.between(50*time.Microsecond, 400*time.Microsecond)
	if s.now() < s.until+s.settle() && d.is(s.odds[slowly]) {
		p.disturb()
		delay += d.between(0, s.slowest)
	}
	return delay
}

func (s *simulation) fate(d *dice) odd {
	for _, o := range []odd{loseRequest, loseReply, swallowRequest, swallowReply, repeat} {
		if d.is(s.odds[o]) {
			return o
		}
	}
	return fateless
}

// answer sends data on to the client.
func (l *link) answer(data []byte, delay time.Duration) {
	s := l.p.s
	if l.mute {
		return
	}
	at := max(l.p.held(s.now()+delay, stop, cutIn, cut), l.landed+1)
	l.landed = at
	s.at(at, func() {
		if !l.gone {
			l.receive(data)
		}
	})
}

// publish sends a message to who listens, and answers how many do.
func (s *simulation) publish(channel, message string) int {
	all := s.channels[channel]
	s.judge.published(channel, message, len(all))
	for _, l := range all {
		if l.mute {
			continue
		}
		p := l.p
		p.sent["news"]++
		d := newDice(mix(s.seed, uint64(p.n)+1, textHash("news"), uint64(p.sent["news"])))
		data := encode([]any{"message", channel, message})
		faulty := s.now() < s.until+s.settle()
		switch {
		case message == "":
		case faulty && d.is(s.odds[newsLost]):
			p.disturb()
			s.note("%q to %s is lost", message, p.name)
			continue
		case faulty && d.is(s.odds[newsLate]):
			p.disturb()
			later := d.between(0, 8*time.Second)
			s.note("%q to %s comes %v late", message, p.name, later)
			s.at(p.held(s.now()+later, stop, cutIn, cut), func() {
				if !l.gone {
					l.receive(data)
				}
			})
			continue
		case faulty && d.is(s.odds[newsTwice]): // what comes behind on the connection is late
			p.disturb()
			s.note("%q to %s comes twice", message, p.name)
			l.answer(data, d.between(0, time.Second))
		}
		l.answer(data, s.delay(p, &d))
	}
	return len(all)
}

// execute is what Redis does with a command. again says that the network has repeated it; then
// nobody gets the answer.
func (s *simulation) execute(l *link, args []string, again bool) []byte {
	s.setClock()
	switch name := strings.ToUpper(args[0]); name {
	case "SUBSCRIBE", "UNSUBSCRIBE":
		if again {
			return nil
		}
		var all []byte
		for _, channel := range args[1:] {
			s.channels[channel] = slices.DeleteFunc(s.channels[channel], func(other *link) bool { return other == l })
			if name == "SUBSCRIBE" {
				s.channels[channel] = append(s.channels[channel], l)
			}
			all = append(all, encode([]any{strings.ToLower(args[0]), channel, int64(1)})...)
		}
		return all
	case "PING":
		return encode([]any{"pong", ""})
	}
	var reply any
	if err := s.refuses(); err != nil {
		l.p.disturb()
		reply = err
	} else {
		reply = s.judge.watch(l.p, args, again, func() any { return s.redis.run(args) })
	}
	if again {
		return nil
	}
	return encode(reply)
}

func encode(reply any) []byte {
	switch r := reply.(type) {
	case nil:
		return []byte("$-1\r\n")
	case int64:
		return fmt.Appendf(nil, ":%d\r\n", r)
	case string:
		return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(r), r)
	case status:
		return fmt.Appendf(nil, "+%s\r\n", r)
	case error:
		text := r.Error()
		if end := strings.IndexByte(text, '\n'); end >= 0 {
			text = text[:end]
		}
		return fmt.Appendf(nil, "-%s\r\n", text)
	case []any:
		all := fmt.Appendf(nil, "*%d\r\n", len(r))
		for _, each := range r {
			all = append(all, encode(each)...)
		}
		return all
	}
	panic(fmt.Sprintf("reply of type %T", reply))
}
