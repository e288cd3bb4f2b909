package protocol

import (
	"cmp"
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

	// Replicas is how many replicas have to confirm what the script has written, and Within is how
	// long a WAIT on the same connection waits for them. [Reply.Confirmed] is how many did.
	Replicas int
	Within   time.Duration

	// Caller learns when ctx ends before the answer is there. May be nil.
	Caller Caller

	// Here is set if ctx counts as one that cannot end: who ends it waits for the answer.
	Here bool
}

// Attempt is one of the requests that a call makes.
type Attempt struct {
	Most  time.Duration // how long it waits for the answer; 0: as long as the context
	Again bool          // an earlier attempt has failed
}

// Caller has made a call.
type Caller interface {
	// Abandoned is called when the caller stops waiting for the answer. The function that it
	// returns is called when the answer comes, or when it is known that none will come.
	Abandoned() (ended func())
}

const beforeKeys = 3 // words of a command: EVALSHA, the digest, the number of keys

// Call prepares one run of the script. The first words, as many as keys says, are its KEYS; the
// others are its ARGV.
func (s Script) Call(keys int, words ...any) Call {
	all := append(make([]any, 0, beforeKeys+len(words)), "evalsha", s.digest, keys)
	return Call{script: s, words: append(all, words...)}
}

// Values copies values of the caller into types that the client library writes without an error,
// and without running code of the caller's: an error in writing one request would fail all requests
// of the same pipeline. The caller may change its own values while the request is under way.
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

// Key is the first key of the call; "" if there is none.
func (c Call) Key() string {
	if c.words[beforeKeys-1] == 0 {
		return ""
	}
	return c.words[beforeKeys].(string)
}

// Name is the name of the script.
func (c Call) Name() string { return c.script.Name }

// Sender sends calls to one deployment of Redis.
//
// A call is sent by the goroutine that makes it, if the context of its caller cannot end, the
// client respects the deadline of a context, and few requests are under way. That saves a goroutine
// and a wake-up. Any other call is handed over to another goroutine: its caller has to return when
// its context ends, and the client may not.
//
// Calls that are handed over at the same time share a pipeline on one connection. No call waits for
// another: a pipeline takes the calls that are ready when it is sent, and a script that is new to
// the server delays only its own call. On a Cluster each call has its own request, because the
// client waits for all servers of a pipeline; only the calls of one [QueryAll] share a pipeline to
// each master.
type Sender struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the same, if it is one of a Cluster
	shares  bool                 // calls share pipelines
	bounded bool                 // the client ends a request with the deadline of its context
	most    int                  // with so many requests under way, calls are handed over

	// flush is sendWaiting. A goroutine that runs a stored function is one allocation less: measured
	// 4 % of those of an acquisition and its release.
	flush func()

	mu       sync.Mutex
	waiting  []*request // for the next flush, which was started if there are any; guarded by mu
	underWay int        // requests without an answer; guarded by mu
}

// mostHere bounds [Sender].most. With more requests under way, sharing a pipeline is quicker: twice
// as quick with 64 goroutines.
const mostHere = 8

// CheckClient refuses a nil client, and a nil pointer as a client. With either, the first request
// would panic, in a goroutine where nobody can recover it.
func CheckClient(client redis.UniversalClient) error {
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return Invalid("client is nil")
	}
	return nil
}

// Over makes a Sender that uses the client, and never closes it.
func Over(client redis.UniversalClient) *Sender {
	s := &Sender{client: client}
	s.flush = s.sendWaiting
	switch client := client.(type) {
	case *redis.Client:
		o := client.Options()
		s.shares, s.bounded, s.most = true, o.ContextTimeoutEnabled, min(o.PoolSize, mostHere)
	case *redis.ClusterClient:
		o := client.Options()
		s.cluster, s.bounded, s.most = client, o.ContextTimeoutEnabled, math.MaxInt
	}
	return s
}

// Answer is the outcome of one request: a value, or why there is none.
type Answer[T any] struct {
	Value T
	Err   error
}

// Run sends the call once. It returns when the answer is there or ctx ends, whichever is first; in
// the second case the server may still run the script.
//
// The error is [ErrUnasked], with the cause of ctx, if ctx had ended before; [ErrUnreachable] if it
// is unknown whether the script ran; otherwise what [Failed] makes of Redis's answer, [ErrCorrupt]
// or [ErrProtocol].
func (c Call) Run(ctx context.Context, s *Sender) (Reply, error) {
	r := &request{ctx: ctx, call: c}
	s.exchange(ctx, Attempt{}, append(r.alone[:0], r))
	return r.reply, r.err
}

// Query runs the call once and decodes its reply. If there is an error, the answer is zero.
func Query[T any](ctx context.Context, s *Sender, most time.Duration, c Call,
	decode func(Reply) (T, error)) (T, error) {
	r := &request{ctx: ctx, call: c}
	s.exchange(ctx, Attempt{Most: most}, append(r.alone[:0], r))
	return read(r.reply, r.err, decode)
}

// QueryAll is Query for several calls in one round trip; on a Cluster, in one to each master. The
// answers are in the order of the calls, of which there is at least one.
func QueryAll[T any](ctx context.Context, s *Sender, a Attempt, calls []Call,
	decode func(Reply) (T, error)) []Answer[T] {
	all := make([]request, len(calls))
	requests := all[0].alone[:0]
	for i, c := range calls {
		all[i].ctx, all[i].call = ctx, c
		requests = append(requests, &all[i])
	}
	s.exchange(ctx, a, requests)
	answers := make([]Answer[T], len(calls))
	for i, r := range requests {
		answers[i].Value, answers[i].Err = read(r.reply, r.err, decode)
	}
	return answers
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

// request is a call on its way.
type request struct {
	ctx      context.Context // of the caller
	most     time.Duration   // of its attempt, which ends then
	end      time.Time
	over     chan struct{} // closed at the end, and when the caller has all its answers
	call     Call
	command  single        // holds nil until it is sent
	wait     *redis.IntCmd // the WAIT after the command, on its connection; nil without Replicas
	inFull   bool          // the server does not know the script
	answered chan struct{} // closed when the outcome is known; nil if its caller sends it
	alone    [1]*request   // room for a slice of this request alone

	reply Reply // the outcome, with err
	err   error
}

// single is a command that the client library does not send again by itself. The library repeats
// commands after a broken connection, and the second answer hides the outcome of the first: a
// release that was carried out would come back as "gone".
type single struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (*single) NoRetry() bool { return true }

// within is a request as the client library gets it: a context that ends when nobody waits for the
// answer any more.
type within request

// Deadline implements [context.Context].
func (w *within) Deadline() (time.Time, bool) {
	if callers, has := w.ctx.Deadline(); has && callers.Before(w.end) {
		return callers, true
	}
	return w.end, true
}

// Done implements [context.Context].
func (w *within) Done() <-chan struct{} { return w.over }

// Err implements [context.Context].
func (w *within) Err() error {
	if (*request)(w).isOver() {
		return context.Canceled
	}
	return nil
}

// Value implements [context.Context].
func (w *within) Value(key any) any { return w.ctx.Value(key) }

func (r *request) isOver() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// left reports whether nobody waits for the answer.
func (r *request) left() bool { return r.isOver() || r.ctx.Err() != nil }

// unanswered is the error of a request that may or may not have been carried out.
func (r *request) unanswered(err error) error {
	if r.ctx.Err() == nil && !time.Now().Before(r.end) {
		return NoAnswer(r.most)
	}
	return unanswered(r.ctx, err)
}

// aDay bounds a request that only its context bounds.
const aDay = 24 * time.Hour

// exchange sends requests that have one context, and puts into each its reply, or why there is
// none.
func (s *Sender) exchange(ctx context.Context, a Attempt, requests []*request) {
	if ctx.Err() != nil {
		for _, r := range requests {
			r.err = unasked(ctx)
		}
		return
	}
	sent, most, over := time.Now(), cmp.Or(a.Most, aDay), make(chan struct{})
	// The alarm also ends the client's wait for a connection, which ignores deadlines.
	alarm := time.AfterFunc(most, func() { close(over) })
	defer func() {
		if alarm.Stop() {
			close(over)
		}
	}()
	for _, r := range requests {
		r.most, r.end, r.over = most, sent.Add(most), over
	}
	endless := a.Most > 0 && (ctx.Done() == nil || requests[0].call.Here)
	if endless && s.bounded && (s.cluster == nil || len(requests) == 1) && s.begin(len(requests)) {
		defer s.ended(len(requests)) // also if a hook of the client ends the goroutine
		s.send(requests)
	} else {
		s.handOver(ctx, a, requests)
	}
	for _, r := range requests {
		r.reply, r.err = s.outcome(r)
		r.reply.Sent, r.reply.Again = sent, a.Again
		if r.err != nil {
			r.err = s.silent(r.err, r.call.Key(), sent)
		}
	}
}

// begin counts requests that their caller will send. It returns false if too many are under way.
func (s *Sender) begin(requests int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underWay >= s.most {
		return false
	}
	s.underWay += requests
	return true
}

func (s *Sender) ended(requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay -= requests
}

// handOver starts goroutines that send and answer the requests. Requests that share a pipeline fail
// together, so one that is sent again shares none.
func (s *Sender) handOver(ctx context.Context, a Attempt, requests []*request) {
	for _, r := range requests {
		r.answered = make(chan struct{})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay += len(requests)
	switch {
	case s.cluster != nil && len(requests) > 1:
		go s.sendToMasters(ctx, requests)
	case !s.shares || requests[0].call.Replicas > 0 || a.Again:
		for _, r := range requests {
			go s.send(append(r.alone[:0], r))
		}
	case len(s.waiting) == 0:
		s.waiting = append(requests[0].alone[:0], requests...)
		go s.flush()
	default:
		s.waiting = append(s.waiting, requests...)
	}
}

// sendWaiting sends the requests that wait. If other requests are under way, it lets other
// goroutines run first: answers in one pipeline have woken several callers, and these may be about
// to send again.
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
	s.send(requests)
}

// sendToMasters sends requests to a Cluster, in one pipeline to each master. A master that hangs
// delays only its own answers.
func (s *Sender) sendToMasters(ctx context.Context, requests []*request) {
	ofMaster := map[*redis.Client][]*request{}
	for _, r := range requests {
		var master *redis.Client
		err := func() (err error) {
			defer Recover(func(failed error) { err = failed })
			master, err = s.cluster.MasterForKey(ctx, r.call.Key())
			return err
		}()
		if err != nil {
			go s.send(append(r.alone[:0], r))
			continue
		}
		ofMaster[master] = append(ofMaster[master], r)
	}
	for _, requests := range ofMaster {
		go s.send(requests)
	}
}

// wanted returns the requests whose callers still wait, and a context to send them with. For
// several requests, this context ends at the latest of their deadlines, so that no request ends
// another.
func (s *Sender) wanted(requests []*request) (ctx context.Context, cancel func(), wanted []*request) {
	if r := requests[0]; len(requests) == 1 && !r.left() {
		return (*within)(r), func() {}, requests
	}
	var latest time.Time
	for _, r := range requests {
		if r.left() {
			s.answer(r)
			continue
		}
		wanted = append(wanted, r)
		if end, _ := (*within)(r).Deadline(); end.After(latest) {
			latest = end
		}
	}
	if len(wanted) == 0 {
		return nil, func() {}, nil
	}
	ctx, cancel = context.WithDeadline(context.WithoutCancel(wanted[0].ctx), latest)
	return ctx, cancel, wanted
}

// growStack grows the stack of a new goroutine at once to what the client library needs. Otherwise
// the stack would grow step by step, and each step would copy it. That took a tenth of the client's
// processor time for an acquisition.
//
//go:noinline
func growStack() {
	var room [8 << 10]byte
	runtime.KeepAlive(&room)
}

// send makes a round trip. It makes another, with the text of the scripts, for those that the
// server does not know, because it was restarted, replaced, or told to forget them: they did not
// run.
func (s *Sender) send(requests []*request) {
	growStack()
	ctx, cancel, requests := s.wanted(requests)
	defer cancel()
	failed := errGoexit
	defer func() { // answers the remaining requests if a hook of the client panics or ends the goroutine
		for _, r := range requests {
			r.command.SetErr(failed)
			s.answer(r)
		}
	}()
	defer Recover(func(panicked error) { failed = panicked })
	for len(requests) > 0 {
		for _, r := range requests {
			r.prepare(ctx)
		}
		if r := requests[0]; len(requests) == 1 && r.call.Replicas == 0 {
			_ = s.client.Process(ctx, &r.command)
		} else {
			s.pipeline(ctx, requests)
		}
		sent, unknown := requests, []*request(nil)
		requests = nil
		for _, r := range sent {
			err := r.command.Err()
			if s.cluster != nil && movedOn(err) {
				// By itself the client reloads once a minute, and when it follows a redirection. It
				// follows none where it was given a server, as for a call that replicas have to
				// confirm.
				s.cluster.ReloadState(ctx)
			}
			if !r.inFull && err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
				r.inFull = true
				unknown = append(unknown, r)
			} else {
				s.answer(r)
			}
		}
		requests = unknown
	}
}

// prepare makes the command: with the digest of the script, or with its text.
func (r *request) prepare(ctx context.Context) {
	words := r.call.words
	if r.inFull {
		words = append([]any{"eval", r.call.script.Source}, words[2:]...)
	}
	r.command.Cmd = redis.NewCmd(ctx, words...)
	r.command.SetFirstKeyPos(beforeKeys)
}

// movedOn reports whether another server may serve the slot by now: the server that was asked says
// so, or has not answered and may be dead.
func movedOn(err error) bool {
	return err != nil && (!answered(err) || Moved(err))
}

// pipeline sends several commands in one round trip, or one command with its WAIT.
func (s *Sender) pipeline(ctx context.Context, requests []*request) {
	pipe := s.client.Pipeline()
	if first := requests[0]; first.call.Replicas > 0 {
		if s.cluster != nil { // WAIT has no key, and must go to the server of the script
			master, err := s.cluster.MasterForKey(ctx, first.call.Key())
			if err != nil {
				first.command.SetErr(err)
				return
			}
			pipe = master.Pipeline()
		}
		first.wait = redis.NewIntCmd(ctx, "wait", first.call.Replicas, first.call.Within.Milliseconds())
	}
	for _, r := range requests {
		_ = pipe.Process(ctx, &r.command)
		if r.wait != nil {
			_ = pipe.Process(ctx, r.wait)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, r := range requests {
			if r.command.Err() == nil && r.command.Val() == nil { // a hook of the client did not send it
				r.command.SetErr(err)
			}
		}
	}
}

// answer wakes the caller of the request.
func (s *Sender) answer(r *request) {
	if r.answered != nil {
		s.ended(1)
		close(r.answered)
	}
}

// outcome waits for the answer and decodes it.
func (s *Sender) outcome(r *request) (Reply, error) {
	if r.answered != nil {
		if err := s.await(r); err != nil {
			return Reply{}, err
		}
	}
	if r.command.Cmd == nil { // its context had ended before it was sent
		return Reply{}, r.unanswered(context.Canceled)
	}
	if err := r.command.Err(); err != nil && !answered(err) {
		return Reply{}, r.unanswered(err)
	}
	reply, err := decode(r.ctx, r.call.script.Name, r.command.Cmd)
	if err == nil && r.wait != nil {
		if reply.Confirmed = int(r.wait.Val()); r.wait.Err() != nil {
			err = Failed(r.ctx, "wait", r.wait.Err())
		}
	}
	return reply, err
}

// await returns nil when the answer is there. It returns an error if the context of the caller
// ends, or the time of the attempt is over, before that.
func (s *Sender) await(r *request) error {
	select {
	case <-r.answered:
	case <-r.ctx.Done():
	case <-r.over:
	}
	select {
	case <-r.answered: // at the same time, or while the caller awaited the answers to its other requests
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
	return r.unanswered(context.Canceled)
}
