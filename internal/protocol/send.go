package protocol

import (
	"context"
	"encoding"
	"math"
	"net"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Call is one run of a script. [Script.Call] prepares it.
type Call struct {
	script Script
	words  []any // the command by digest

	// Caller is told when ctx ends before the answer is there. May be nil.
	Caller Caller
}

// Caller is who has made a call.
type Caller interface {
	// Abandoned is called when the caller stops waiting for the answer, and what it returns when that
	// comes, or when it is known that there is none.
	Abandoned() (ended func())
}

const beforeKeys = 3 // words of a command

// Call prepares one run of the script. Of the words so many are keys; the others are its arguments.
func (s Script) Call(keys int, words ...any) Call {
	all := append(make([]any, 0, beforeKeys+len(words)), "evalsha", s.digest, keys)
	return Call{script: s, words: append(all, words...)}
}

// Values are values of the caller as requests take them: the client library writes each without an
// error and without code of the caller's. A request that fails while it is written takes those with
// it that travel together with it. The caller may change what it has while the request is under
// way.
func Values(all []any) ([]any, error) {
	values := slices.Clone(all)
	for n, value := range all {
		switch v := value.(type) {
		case nil, string, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, uintptr,
			float32, float64, bool, time.Time, time.Duration:
		case *string, *int, *int8, *int16, *int32, *int64, *uint, *uint8, *uint16, *uint32, *uint64, *uintptr,
			*float32, *float64, *bool, *time.Time, *time.Duration:
			if p := reflect.ValueOf(v); !p.IsNil() {
				values[n] = p.Elem().Interface()
			}
		case net.IP:
			values[n] = slices.Clone(v)
		case []byte:
			values[n] = string(v)
		case encoding.BinaryMarshaler:
			bytes, err := v.MarshalBinary()
			if err != nil {
				return nil, Invalid("the %T cannot be marshalled: %w", v, err)
			}
			values[n] = string(bytes)
		default:
			return nil, Invalid("a %T cannot be written; pass a string, bytes, a number, or an encoding.BinaryMarshaler", v)
		}
	}
	return values, nil
}

// Key is the first key.
func (c Call) Key() string { return c.words[beforeKeys].(string) }

// Name is that of the script.
func (c Call) Name() string { return c.script.Name }

// Sender sends calls to one deployment of Redis.
//
// A call whose context cannot end is sent by the goroutine that makes it, if the client ends a
// request with the deadline of its context: so a call costs no goroutine and no wake-up. Any other
// call is handed to a goroutine of its own, since its caller has to return when its context ends,
// and the client may not.
//
// Calls that are handed over at the same time travel together, in one pipeline on one connection;
// so do all others while so many are under way that they would wait for connections. No call waits
// for another: what is ready when a goroutine comes to send is sent, and a script that is new to
// the server holds up only its own call. Those that travel together also fail together, so a call
// that has failed travels alone when it is sent again. On a Cluster each travels alone, because the
// client waits for all servers of a pipeline, but for those of one [QueryAll] to one master.
type Sender struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the same, if it is one of a Cluster
	shares  bool                 // calls travel together
	bounded bool                 // the client ends a request with the deadline of its context
	most    int                  // requests under way, of which each has a connection

	flush  func()    // of this sender: a goroutine of a value costs no memory
	alarms sync.Pool // of *alarm, which are not set

	mu       sync.Mutex
	waiting  []*request // to be sent; guarded by mu
	underWay int        // requests without an answer; guarded by mu
}

// alarm stops a bound whose time is over. It is used again and again.
type alarm struct {
	timer *time.Timer
	bound *bound
}

func (a *alarm) ring() { a.bound.stop() }

func (s *Sender) alarm(b *bound) *alarm {
	a, _ := s.alarms.Get().(*alarm)
	if a == nil {
		a = &alarm{bound: b}
		a.timer = time.AfterFunc(time.Until(b.end), a.ring)
	} else {
		a.bound = b
		a.timer.Reset(time.Until(b.end))
	}
	return a
}

func (s *Sender) disarm(a *alarm) {
	if a.timer.Stop() { // or it rings, and is not used again
		a.bound = nil
		s.alarms.Put(a)
	}
}

// CheckClient refuses none, also a pointer to none: with that the first request would panic, in a
// goroutine where nobody can recover it.
func CheckClient(client redis.UniversalClient) error {
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return Invalid("client is nil")
	}
	return nil
}

// Over makes a Sender of a client, which stays its owner's.
func Over(client redis.UniversalClient) *Sender {
	s := &Sender{client: client}
	s.flush = s.sendWaiting
	switch client := client.(type) {
	case *redis.Client:
		o := client.Options()
		s.shares, s.bounded, s.most = true, o.ContextTimeoutEnabled, o.PoolSize
	case *redis.ClusterClient:
		o := client.Options()
		s.cluster, s.bounded, s.most = client, o.ContextTimeoutEnabled, math.MaxInt
	}
	return s
}

// Answer is what came back of one request: a value, or why there is none.
type Answer[T any] struct {
	Value T
	Err   error
}

// Run sends the call once. It returns when the answer is there or ctx ends, whichever is first; in
// the second case the server may still act.
//
// The error is [ErrUnasked], with the cause of ctx, if that was over before; [ErrUnreachable] if it
// is unknown whether the script ran; otherwise what [Failed] makes of Redis's answer, [ErrCorrupt]
// or [ErrProtocol].
func (c Call) Run(ctx context.Context, s *Sender) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, unasked(ctx)
	}
	sent := time.Now()
	r := &request{ctx: ctx, call: c}
	s.send(ctx, append(r.alone[:0], r))
	reply, err := s.outcome(r)
	return reply, s.silent(err, c, sent)
}

// QueryAll is Query for several calls in one round trip, on a Cluster one to each master. Each has
// an answer of its own, in order.
func QueryAll[T any](ctx context.Context, s *Sender, calls []Call, decode func(Reply) (T, error)) []Answer[T] {
	if ctx.Err() != nil {
		return slices.Repeat([]Answer[T]{{Err: unasked(ctx)}}, len(calls))
	}
	sent := time.Now()
	requests := make([]*request, len(calls))
	for i, c := range calls {
		requests[i] = &request{ctx: ctx, call: c}
	}
	s.send(ctx, requests)
	answers := make([]Answer[T], len(calls))
	for i, r := range requests {
		reply, err := s.outcome(r)
		answers[i].Value, answers[i].Err = read(reply, s.silent(err, r.call, sent), decode)
	}
	return answers
}

// RunAndWait sends the call and, on the same connection, WAIT, which counts the replicas that have
// its writes.
func (c Call) RunAndWait(ctx context.Context, s *Sender, replicas int, within time.Duration) (Reply, int64, error) {
	if ctx.Err() != nil {
		return Reply{}, 0, unasked(ctx)
	}
	sent := time.Now()
	wait := redis.NewIntCmd(forClient(ctx), "wait", replicas, within.Milliseconds())
	r := &request{ctx: ctx, call: c, wait: wait}
	s.send(ctx, append(r.alone[:0], r))
	reply, err := s.outcome(r)
	if err == nil && wait.Err() != nil {
		err = Failed(ctx, "wait", wait.Err())
	}
	if err != nil {
		return Reply{}, 0, s.silent(err, c, sent)
	}
	return reply, wait.Val(), nil
}

// Query makes one attempt and decodes its reply. With an error there is no answer.
func Query[T any](ctx context.Context, s *Sender, c Call, decode func(Reply) (T, error)) (T, error) {
	r, err := c.Run(ctx, s)
	return read(r, err, decode)
}

// read decodes a reply, if there is one.
func read[T any](r Reply, err error, decode func(Reply) (T, error)) (T, error) {
	var answer, none T
	if err == nil {
		answer, err = decode(r)
	}
	if err != nil {
		return none, err
	}
	return answer, nil
}

// Ask is Query with as many attempts as [Persist] makes within [Patience]. It is for scripts that
// do no harm when they run twice.
func Ask[T any](ctx context.Context, s *Sender, c Call, decode func(Reply) (T, error)) (T, error) {
	return Persist(ctx, Patience, func(ctx context.Context) (T, error) { return Query(ctx, s, c, decode) })
}

// request is a call on its way.
type request struct {
	ctx      context.Context
	call     Call
	command  single        // nil in it: not sent
	wait     *redis.IntCmd // follows the call on its connection; nil if nothing does
	answered chan struct{} // closed when command has its outcome, or was not sent; nil: its caller has sent it
	alone    [1]*request   // room for itself
}

// single is a command that the client library does not send again by itself. It would do so after a
// broken connection, and the second answer would hide the outcome of the first: a release that was
// carried out would come back as "gone".
type single struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (*single) NoRetry() bool { return true }

func (r *request) is(ctx context.Context, words []any) {
	r.command.Cmd = redis.NewCmd(ctx, words...)
	r.command.SetFirstKeyPos(beforeKeys)
}

// outcome waits for the answer.
func (s *Sender) outcome(r *request) (Reply, error) {
	if r.answered != nil {
		if err := s.await(r); err != nil {
			return Reply{}, err
		}
	}
	if r.command.Cmd == nil { // its context had ended before it was sent
		return Reply{}, unanswered(r.ctx, r.ctx.Err())
	}
	return decode(r.ctx, r.call.script.Name, r.command.Cmd)
}

// await returns nil when the answer is there, and otherwise when the context of the caller has
// ended, or the time of the attempt is over.
func (s *Sender) await(r *request) error {
	ctx := r.ctx
	if b, ours := ctx.(*bound); ours && b.quiet() {
		defer s.disarm(s.alarm(b))
		select {
		case <-r.answered:
		case <-b.Context.Done():
			ctx = b.Context // which knows the cause already
		case <-b.over:
		}
	} else {
		select {
		case <-r.answered:
		case <-ctx.Done():
		}
	}
	select {
	case <-r.answered: // also at the same time, or while the answers to others were awaited
		return nil
	default:
	}
	if r.call.Caller != nil {
		ended := r.call.Caller.Abandoned()
		go func() {
			<-r.answered
			ended()
		}()
	}
	return unanswered(ctx, ctx.Err())
}

// send sends the requests, or has them sent. They have one context.
func (s *Sender) send(ctx context.Context, requests []*request) {
	if s.sendHere(ctx, requests) {
		return
	}
	for _, r := range requests {
		r.answered = make(chan struct{})
	}
	if s.cluster != nil && len(requests) > 1 {
		go s.serveMasters(ctx, requests)
	} else {
		s.enqueue(requests)
	}
}

// sendHere sends the requests on the goroutine of their caller, if that may wait for them.
func (s *Sender) sendHere(ctx context.Context, requests []*request) bool {
	b, ours := ctx.(*bound)
	if !s.bounded || !ours || !Endless(b.Context) || s.cluster != nil && len(requests) > 1 || !s.begin(len(requests)) {
		return false
	}
	defer s.begin(-len(requests))
	defer s.disarm(s.alarm(b)) // it is for a client that waits for a connection
	if unknown := s.attempt((*within)(b), requests); len(unknown) > 0 {
		s.process((*within)(b), unknown)
	}
	return true
}

// begin counts requests that get connections of their own. It answers false if there are too many.
func (s *Sender) begin(requests int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if requests > 0 && s.underWay >= s.most {
		return false
	}
	s.underWay += requests
	return true
}

// enqueue has the requests sent by the next goroutine that comes to send, a new one if there is
// none.
func (s *Sender) enqueue(requests []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		s.underWay++
		switch {
		case !s.shares || r.wait != nil || r.ctx.Value(again{}) == true:
			go s.serve(append(r.alone[:0], r))
		case len(s.waiting) == 0:
			s.waiting = append(r.alone[:0], r)
			go s.flush()
		default:
			s.waiting = append(s.waiting, r)
		}
	}
}

// sendWaiting sends what waits. In company, other goroutines that can run do so first: an answer to
// several requests has woken several, and these will send as well.
func (s *Sender) sendWaiting() {
	s.mu.Lock()
	company := s.underWay > 1
	s.mu.Unlock()
	if company {
		runtime.Gosched()
	}
	s.mu.Lock()
	requests := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	s.serve(requests)
}

// serve sends requests together, those that somebody still waits for.
func (s *Sender) serve(requests []*request) {
	growStack()
	ctx, cancel, wanted := together(requests)
	if len(wanted) > 0 {
		ctx = forClient(ctx)
		if unknown := s.attempt(ctx, wanted); len(unknown) > 0 {
			s.answer(slices.DeleteFunc(requests, func(r *request) bool { return slices.Contains(unknown, r) }))
			s.process(ctx, unknown)
			requests = unknown
		}
	}
	cancel()
	s.answer(requests)
}

// growStack makes room at once for what the client library puts on the stack of a new goroutine. It
// would grow step by step otherwise, and be copied with all the calls on it each time: a tenth of
// what an acquisition takes of the processor in the client.
//
//go:noinline
func growStack() {
	var room [8 << 10]byte
	runtime.KeepAlive(&room)
}

// serveMasters sends requests to a Cluster, those for one master together. A master that hangs
// keeps back only the answers that are its own.
func (s *Sender) serveMasters(ctx context.Context, requests []*request) {
	s.mu.Lock()
	s.underWay += len(requests)
	s.mu.Unlock()
	ofMaster := map[*redis.Client][]*request{}
	for _, r := range requests {
		var master *redis.Client
		err := func() (err error) {
			defer Recover(func(failed error) { err = failed })
			master, err = s.cluster.MasterForKey(ctx, r.call.Key())
			return err
		}()
		if err != nil {
			go s.serve([]*request{r})
			continue
		}
		ofMaster[master] = append(ofMaster[master], r)
	}
	for _, together := range ofMaster {
		go s.serve(together)
	}
}

// answer tells those who wait for the requests.
func (s *Sender) answer(requests []*request) {
	s.mu.Lock()
	s.underWay -= len(requests)
	s.mu.Unlock()
	for _, r := range requests {
		close(r.answered)
	}
}

// together are the requests that somebody still waits for, and what bounds them all: nothing but
// the time of the last, so that none of them can end another.
func together(requests []*request) (ctx context.Context, cancel context.CancelFunc, wanted []*request) {
	if len(requests) == 1 {
		if ctx = requests[0].ctx; ctx.Err() == nil {
			wanted = requests
		}
		return ctx, func() {}, wanted
	}
	var latest time.Time
	for _, r := range requests {
		end, bounded := r.ctx.Deadline()
		if r.ctx.Err() == nil {
			wanted = append(wanted, r)
		}
		if !bounded {
			end = time.Now().Add(Patience)
		}
		if end.After(latest) {
			latest = end
		}
	}
	ctx, cancel = context.WithDeadline(context.WithoutCancel(requests[0].ctx), latest)
	return ctx, cancel, wanted
}

// attempt makes one round trip. It returns the requests whose script the server does not know,
// because it was restarted, replaced, or told to forget scripts; they did not run, and are in full
// now.
func (s *Sender) attempt(ctx context.Context, requests []*request) (unknown []*request) {
	for _, r := range requests {
		r.is(ctx, r.call.words)
	}
	s.process(ctx, requests)
	for _, r := range requests {
		err := r.command.Err()
		if s.cluster != nil && err != nil && !answered(err) {
			// Perhaps the server has died, and another serves the slot by now. The client looks only
			// once a minute, or when a server tells it to.
			s.cluster.ReloadState(ctx)
		}
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			r.is(ctx, append([]any{"eval", r.call.script.Source}, r.call.words[2:]...))
			unknown = append(unknown, r)
		}
	}
	return unknown
}

// process leaves each command's outcome in the command.
func (s *Sender) process(ctx context.Context, requests []*request) {
	defer Recover(func(err error) {
		for _, r := range requests {
			r.command.SetErr(err)
		}
	})
	if len(requests) == 1 && requests[0].wait == nil {
		_ = s.client.Process(ctx, &requests[0].command)
		return
	}
	pipe := s.client.Pipeline()
	for _, r := range requests {
		_ = pipe.Process(ctx, &r.command)
		if r.wait != nil {
			_ = pipe.Process(ctx, r.wait)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, r := range requests {
			if r.command.Err() == nil && r.command.Val() == nil { // a hook of the client has kept them back
				r.command.SetErr(err)
			}
		}
	}
}
