package protocol

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"math/rand/v2"
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

	// Abandoned is called when ctx ends before the answer is there, and what it returns when the
	// answer comes, or that there is none. May be nil.
	Abandoned func() (ended func())
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

// Sender sends calls to one deployment of Redis. Those that several goroutines make at the same
// time travel together, in one pipeline on one connection. No call waits for another: what is ready
// when a goroutine comes to send is sent, and a script that is new to the server holds up only its
// own call. Those that travel together also fail together, so a call that has failed travels alone
// when it is sent again. On a Cluster each travels alone, because the client waits for all servers
// of a pipeline, but for those of one [QueryAll] to one master.
type Sender struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the same, if it is one of a Cluster
	shares  bool                 // calls travel together

	mu       sync.Mutex
	waiting  []*request // to be sent; guarded by mu
	underWay int        // requests without an answer; guarded by mu
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
	_, oneServer := client.(*redis.Client)
	cluster, _ := client.(*redis.ClusterClient)
	return &Sender{client: client, cluster: cluster, shares: oneServer}
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
	r := &request{ctx: ctx, call: c, answered: make(chan struct{})}
	s.enqueue(r)
	return r.outcome()
}

// QueryAll is Query for several calls in one round trip, on a Cluster one to each master. Each has
// an answer of its own, in order.
func QueryAll[T any](ctx context.Context, s *Sender, calls []Call, decode func(Reply) (T, error)) []Answer[T] {
	if ctx.Err() != nil {
		return slices.Repeat([]Answer[T]{{Err: unasked(ctx)}}, len(calls))
	}
	requests := make([]*request, len(calls))
	for i, c := range calls {
		requests[i] = &request{ctx: ctx, call: c, answered: make(chan struct{})}
	}
	if s.cluster != nil {
		go s.serveMasters(ctx, requests)
	} else {
		s.enqueue(requests...)
	}
	answers := make([]Answer[T], len(calls))
	for i, r := range requests {
		reply, err := r.outcome()
		answers[i].Value, answers[i].Err = read(reply, err, decode)
	}
	return answers
}

// RunAndWait sends the call and, on the same connection, WAIT, which counts the replicas that have
// its writes.
func (c Call) RunAndWait(ctx context.Context, s *Sender, replicas int, within time.Duration) (Reply, int64, error) {
	if ctx.Err() != nil {
		return Reply{}, 0, unasked(ctx)
	}
	wait := redis.NewIntCmd(forClient(ctx), "wait", replicas, within.Milliseconds())
	r := &request{ctx: ctx, call: c, answered: make(chan struct{}), wait: wait}
	s.enqueue(r)
	reply, err := r.outcome()
	if err != nil {
		return Reply{}, 0, err
	}
	if err := wait.Err(); err != nil {
		return Reply{}, 0, Failed(ctx, "wait", err)
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
	answered chan struct{} // closed when command has its outcome, or was not sent
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
func (r *request) outcome() (Reply, error) {
	if err := await(r.ctx, r.answered, r.call.Abandoned); err != nil {
		return Reply{}, err
	}
	if r.command.Cmd == nil { // its context had ended before it was sent
		return Reply{}, unanswered(r.ctx, r.ctx.Err())
	}
	return decode(r.ctx, r.call.script.Name, r.command.Cmd)
}

// enqueue has the requests sent by the next goroutine that comes to send, a new one if there is
// none.
func (s *Sender) enqueue(requests ...*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		s.underWay++
		switch {
		case !s.shares || r.wait != nil || r.ctx.Value(again{}) == true:
			go s.serve(append(r.alone[:0], r))
		case len(s.waiting) == 0:
			s.waiting = append(r.alone[:0], r)
			go s.flush(s.underWay > 1)
		default:
			s.waiting = append(s.waiting, r)
		}
	}
}

// flush sends what waits. In company, other goroutines that can run do so first: an answer to
// several requests has woken several, and these will send as well.
func (s *Sender) flush(company bool) {
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
		master, err := s.cluster.MasterForKey(ctx, r.call.Key())
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

const (
	attempts = 3                     // for a request that is safe to send again
	pause    = 20 * time.Millisecond // before the second attempt, doubled before the third

	longestPause = 500 * time.Millisecond
	longest      = 3 * time.Second        // for one attempt of many
	shortest     = 100 * time.Millisecond // for the same
)

// Patience bounds requests that nothing else bounds.
const Patience = 5 * time.Second

// What people are warned of.
const (
	LongTTL = time.Hour // nobody waits that long for a holder that has died

	// MaxClockDifference, between Redis and the data store, is more than NTP allows. Tokens only need
	// Redis's clock not to go back, but people compare times in tokens, logs and rows.
	MaxClockDifference = time.Second
)

// Persist makes up to three attempts within bound, until one has an answer that is not transient.
// Otherwise the error is that of the last attempt: [ErrUnreachable] or the refusal. An attempt that
// hangs leaves half of the time to those after it.
func Persist[T any](ctx context.Context, bound time.Duration,
	attempt func(ctx context.Context) (T, error)) (none T, err error) {
	end := time.Now().Add(bound)
	for n := range attempts {
		if n > 0 && !sleepUntil(ctx, end, Jitter(pause<<(n-1))) {
			return none, Ended(ctx, err)
		}
		most := time.Until(end)
		if n < attempts-1 {
			most /= 2
		}
		b := newBound(ctx, most, n > 0)
		answer, last := attempt(b)
		b.stop()
		if !Transient(last) {
			return answer, last
		}
		err = Latest(err, last)
	}
	return none, err
}

// Insist makes attempts within bound, until one has an answer that is not transient, ctx ends, or
// the client is closed. It is for releases behind the caller. err is that of an attempt before, nil
// if there was none.
func Insist(ctx context.Context, bound time.Duration, err error, attempt func(ctx context.Context) error) error {
	end := time.Now().Add(bound)
	for wait := pause; ; wait = min(2*wait, longestPause) {
		b := newBound(ctx, min(OneOfMany(bound), time.Until(end)), err != nil)
		last := attempt(b)
		b.stop()
		if !Transient(last) {
			return last
		}
		err = Latest(err, last)
		if errors.Is(err, redis.ErrClosed) || !sleepUntil(ctx, end, Jitter(wait)) {
			return err
		}
	}
}

// OneOfMany is how long one attempt of many within bound may take.
func OneOfMany(bound time.Duration) time.Duration { return min(max(bound/4, shortest), longest) }

// Ended adds the cause of the end of ctx, if it has ended, to an earlier error.
func Ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Jitter is between four fifths of d and d.
func Jitter(d time.Duration) time.Duration { return d - Below(d/5+1) }

// Chance is where this package and package lease get their random numbers from. The simulation of
// package lease replaces it, so that a run can be repeated; nothing else may.
var Chance = rand.Uint64

// Below is a random duration from 0 to less than d.
func Below(d time.Duration) time.Duration { return time.Duration(Chance() % uint64(d)) }

// sleepUntil is Sleep that also returns false if end comes before d is over.
func sleepUntil(ctx context.Context, end time.Time, d time.Duration) bool {
	return Sleep(ctx, min(d, time.Until(end))) && time.Now().Before(end)
}

// Sleep returns false if ctx ends before d is over.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
