package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/lease"
)

// judge compares what Redis, the processes and the store do with the promises L1 to L8 of
// docs/promises.md. It knows everything that happens, at the time at which it happens, and is
// written from the promises and not from the code.
type judge struct {
	s *simulation

	mu        sync.Mutex
	verdict   *verdict // the first promise broken; guarded by mu
	resources map[string]*resource
	calls     map[uuid.UUID]*asked     // by their lease ids; guarded by mu
	over      map[string]time.Duration // calls that Redis was told are over, by resource and lease id, and when
	called    map[string]time.Duration // waiters that listen, and when they were called
	of        map[string]*process      // whose call it is, by its lease id
	held      []*holding               // guarded by mu
	losses    []loss                   // guarded by mu
	shaken    time.Duration            // when something was last wrong with Redis
	stored    map[string]entry         // the fences of the data store; guarded by mu
	grants    int
}

// verdict is a broken promise.
type verdict struct {
	promise, text string
	at            time.Duration
}

func (v *verdict) String() string { return v.promise + ": " + v.text }

// loss is a time at which Redis may have forgotten or ended leases without a word.
type loss struct {
	at   time.Duration
	kind kind
}

// entry is a fence in the data store.
type entry struct {
	token int64
	id    uuid.UUID
}

// asked is one call of the package by a worker. Guarded by the judge's mu.
type asked struct {
	p            *process
	who, what    string
	resource     string
	began, bound time.Duration
	waits        bool
	done         bool
	refused      time.Duration // when it returned ErrHeld, 0 if it did not
}

// holding is a lease that a worker was given.
type holding struct {
	c        *asked
	l        *lease.Lease
	from     time.Duration // of the call
	released bool
}

// owner is the holder of a resource in Redis.
type owner struct {
	id, token string
	until     int64
}

func (o owner) same(other owner) bool { return o.id == other.id && o.token == other.token }

// resource is what the judge knows of one.
type resource struct {
	name                    string
	owner                   owner
	ends                    int64         // when the owner expires, which is looked at then
	highest                 int64         // token issued
	lost                    bool          // the last token, since the highest was issued
	granted, ended, revoked record        // leases, by id and token
	released                record        // the same, by their holders; who gets one again loses it when that arrives
	revocations             record        // by their ids
	wentBack                record        // tokens below others, because data is lost and the clock was set back
	waiting                 []*waiting    // in order of arrival
	free                    time.Duration // since when nobody holds it; -1 while somebody does
}

// record is when something happened to leases, by id and token.
type record struct {
	mu   sync.Mutex
	when map[string]time.Duration // guarded by mu
}

func (r *record) add(lease string, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.when == nil {
		r.when = make(map[string]time.Duration)
	}
	r.when[lease] = now
}

func (r *record) at(lease string) (when time.Duration, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	when, known = r.when[lease]
	return when, known
}

func (r *record) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.when) > 0
}

func (r *record) has(lease string) bool {
	_, known := r.at(lease)
	return known
}

// waiting is a call in the queue, by its lease id.
type waiting struct {
	name  string
	c     *asked
	since time.Duration
	place int64  // in the queue: the time of Redis's clock; those of one microsecond have no order
	hears string // the channel on which its process listens
}

func newJudge(s *simulation) *judge {
	j := &judge{s: s, resources: make(map[string]*resource),
		calls: make(map[uuid.UUID]*asked), over: make(map[string]time.Duration), called: make(map[string]time.Duration),
		of: make(map[string]*process), stored: make(map[string]entry), shaken: -time.Hour}
	for n := range s.resources {
		name := resourceName(n)
		j.resources["lease:v1:{sim/"+name+"}:owner"] = &resource{name: name, free: 0}
	}
	return j
}

// breaks says that a promise is broken. The first counts.
func (j *judge) breaks(promise, text string) {
	j.mu.Lock()
	first := j.verdict == nil
	if first {
		j.verdict = &verdict{promise, text, j.s.now()}
	}
	j.mu.Unlock()
	if first {
		j.s.note("%s: %s", promise, text)
		j.s.at0()
	}
}

func (j *judge) broken() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.verdict != nil
}

// disturbed notes a fault of Redis.
func (j *judge) disturbed(f fault) {
	now := j.s.now()
	until := now
	if f.kind == hang || f.kind == refuse {
		until += f.lasts
	}
	j.shaken = max(j.shaken, until) // another fault may come while one lasts
	if f.kind.losesLeases() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.losses = append(j.losses, loss{now, f.kind})
	}
}

// lostSince reports whether leases may have ended without a word since then.
func (j *judge) lostSince(t time.Duration) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.losses) > 0 && j.losses[len(j.losses)-1].at >= t
}

// Redis -------------------------------------------------------------------------------------------

// watch looks on while Redis carries out a command.
func (j *judge) watch(p *process, args []string, again bool, do func() any) any {
	script := kindOf(args)
	if !strings.HasPrefix(strings.ToLower(args[0]), "eval") {
		return do()
	}
	j.look()
	count, _ := strconv.Atoi(args[2])
	keys, rest := args[3:3+count], args[3+count:]
	var before []owner
	var fences []*datum
	var touched []*resource
	for _, key := range keys {
		if r := j.resources[key]; r != nil {
			touched, before = append(touched, r), append(before, j.ownerOf(key))
			fences = append(fences, j.fenceOf(key))
		}
	}
	reply := do()
	words, answered := wordsOf(reply)
	j.s.note("%s's %s%s -> %s", p.name, script, j.shown(rest), strings.Join(words, " "))
	if !answered {
		return reply // an error: refused before its first write
	}
	x := execution{p, script, rest, words, again}
	if script == "acquire" {
		j.of[rest[0]] = p
	}
	for n, r := range touched {
		key := "lease:v1:{sim/" + r.name + "}:owner"
		j.step(r, x, n, before[n], j.ownerOf(key), fences[n], j.fenceOf(key))
	}
	switch {
	case script == "withdraw":
		j.ends(touched[0], rest[0])
	case script == "release" && words[0] == "released":
		j.ends(touched[0], before[0].id)
	}
	j.look()
	return reply
}

// ends notes that a call is over, as Redis is told.
func (j *judge) ends(r *resource, name string) {
	if _, known := j.over[r.name+" "+name]; !known {
		j.over[r.name+" "+name] = j.s.now()
	}
}

// late judges L4: a request of a call that is over gets nothing. One that was under way for long
// may block the resource for a TTL, and one that its withdrawal has just overtaken is withdrawn
// once more.
func (j *judge) late(r *resource, x execution, name string) bool {
	since, over := j.over[r.name+" "+name]
	return over && !x.again && x.script == "acquire" && j.s.now() > since+100*time.Millisecond && j.wasWell(x.p, since)
}

// wasWell reports whether nothing was wrong with the process at that time, and nothing has been
// since: then none of its requests is late.
func (j *judge) wasWell(p *process, t time.Duration) bool {
	return max(p.disturbed, j.shaken) < t-100*time.Millisecond && !j.lostSince(t) &&
		p.held(t, stop, cut, cutIn, cutOut) == t // a fault of the process may go on
}

// execution is one run of a script.
type execution struct {
	p      *process
	script string
	args   []string
	words  []string // the answer
	again  bool     // the network has repeated it
}

func wordsOf(reply any) ([]string, bool) {
	list, ok := reply.([]any)
	if !ok {
		return []string{fmt.Sprint(reply)}, false
	}
	words := make([]string, len(list))
	for n, each := range list {
		words[n] = fmt.Sprint(each)
	}
	return words, true
}

func (j *judge) ownerOf(key string) owner {
	d := j.s.redis.at(key)
	if d == nil || d.kind != "string" {
		return owner{}
	}
	parts := strings.SplitN(d.text, ":", 3)
	if len(parts) != 3 {
		return owner{}
	}
	return owner{parts[0], parts[1], d.until}
}

func (j *judge) fenceOf(key string) *datum {
	d := j.s.redis.at(strings.TrimSuffix(key, "owner") + "fence")
	if d == nil {
		return nil
	}
	return d.clone()
}

// step judges what a script has done to one resource.
func (j *judge) step(r *resource, x execution, n int, before, after owner, fence, fenceAfter *datum) {
	outcome := x.words[0]
	if x.script == "withdraw" { // it leaves first
		r.waiting = slices.DeleteFunc(r.waiting, func(w *waiting) bool { return w.name == x.args[0] })
	}
	breaks := func(promise, format string, args ...any) {
		j.breaks(promise, fmt.Sprintf("%s's %s on %s: ", x.p.name, x.script, r.name)+fmt.Sprintf(format, args...))
	}
	if x.script == "acquire" && outcome != "granted" { // L3: a refusal changes nothing
		if before != after {
			breaks("L3", "a refused acquisition has changed the owner from %v to %v", before, after)
		}
		if (fence == nil) != (fenceAfter == nil) ||
			fence != nil && (fence.text != fenceAfter.text || fence.until != fenceAfter.until) {
			breaks("L3", "a refused acquisition has changed the last token")
		}
	}
	if x.script == "revoke" && outcome == "revoked" && !r.revocations.has(x.args[0]) { // asking again issues nothing
		j.issued(r, x.words[1], breaks)
		if token := number(x.words[1]); fenceAfter == nil || number(fenceAfter.text) < token {
			breaks("L2", "token %d of a revocation is not kept as the last", token)
		}
	}
	if x.script == "revoke" && outcome == "revoked" {
		r.revoked.add(x.words[2]+":"+x.words[3], j.s.now())
	}
	if before.id != "" && !before.same(after) && !j.mayEnd(r, x, before, after) {
		promise := "L1"
		if x.script != "acquire" {
			promise = "L4"
		}
		breaks(promise, "it has ended the lease with token %s of %s, which is not its own", before.token, before.id[:8])
	}
	if before.id != "" && before.same(after) && before.until != after.until && !j.mayRenew(x, before) {
		breaks("L4", "it has moved the end of a lease that is not its own")
	}
	if after.id != "" && !after.same(before) {
		j.grant(r, x, n, after, breaks)
		if token := number(after.token); fenceAfter == nil || number(fenceAfter.text) < token {
			breaks("L2", "token %d is not kept as the last", token)
		}
	}
	if x.script == "extend" && (outcome == "extended") != (before.id == x.args[0] && before.token == x.args[1]) {
		breaks("L4", "it says %s of %v", outcome, before)
	}
	if x.script == "acquire" && outcome == "granted" && before.id == x.args[0] && x.words[n+1] != before.token {
		breaks("L4", "the lease %s has token %s, and it was told %s", before.id[:8], before.token, x.words[n+1])
	}
	if before.id != "" && after.id == "" && (x.script == "release" || x.script == "withdraw" || x.script == "revoke") &&
		j.allListen(r) && !slices.ContainsFunc(r.waiting, func(w *waiting) bool {
		return w.place == r.waiting[0].place && j.called[w.name] == j.s.now()
	}) {
		breaks("L6", "it has not called %s, the first who waits", r.waiting[0].name)
	}
	if x.script == "revoke" && outcome == "revoked" {
		r.revocations.add(x.args[0], j.s.now())
	}
	j.queue(r, x, outcome, n, breaks)
}

// mayEnd reports whether a script may take the lease away.
func (j *judge) mayEnd(r *resource, x execution, before, after owner) bool {
	switch x.script {
	case "release":
		return x.args[0] == before.id && x.args[1] == before.token
	case "withdraw":
		return x.args[0] == before.id
	case "revoke":
		return !r.revocations.has(x.args[0]) || j.lostSince(0)
	}
	return false
}

// mayRenew reports whether a script may move the end of the lease.
func (*judge) mayRenew(x execution, before owner) bool {
	switch x.script {
	case "acquire":
		return x.args[0] == before.id
	case "extend":
		return x.args[0] == before.id && x.args[1] == before.token
	}
	return false
}

// grant judges a new lease.
func (j *judge) grant(r *resource, x execution, n int, after owner, breaks func(string, string, ...any)) {
	now := j.s.now()
	j.grants++
	j.issued(r, after.token, breaks)
	r.granted.add(after.id+":"+after.token, now)
	name := after.id
	if x.script != "acquire" {
		breaks("L1", "it has granted a lease that nobody has asked for")
	}
	if j.late(r, x, name) {
		breaks("L4", "a request that came late has got a lease for a call that is over")
	}
	j.mu.Lock()
	c := j.calls[idOf(after.id)]
	// Behind a call, or in 30 ms before it returns, its withdrawal is carried out, at once where
	// nothing is wrong, and comes later behind a request that is slow.
	refused := time.Duration(0)
	if c != nil && !c.p.dead() && c.p.withdraws[name] <= now {
		refused = c.refused
	}
	j.mu.Unlock()
	if refused > 0 && now > refused+100*time.Millisecond && x.script == "acquire" && !x.again &&
		j.wasWell(c.p, refused) && !j.lostSince(0) {
		breaks("L4", "a request that came late has got a lease for a call that was refused")
	}
	// L6: first come, first served.
	if x.again {
		return
	}
	place := j.s.redis.micros
	for _, w := range r.waiting {
		if w.name == name {
			place = w.place
		}
	}
	for _, w := range r.waiting {
		if w.place < place && j.healthy(w) {
			breaks("L6", "%s has got it, and %s has waited for longer", name, w.name)
		}
	}
}

func idOf(id string) uuid.UUID { u, _ := uuid.Parse(id); return u }

// issued judges a new token: L2.
func (j *judge) issued(r *resource, token string, breaks func(string, string, ...any)) {
	t, _ := strconv.ParseInt(token, 10, 64)
	if t <= r.highest && !(r.lost && j.s.redis.micros <= r.highest) {
		breaks("L2", "token %d after %d", t, r.highest)
	}
	if t > r.highest {
		r.highest, r.lost = t, false
	} else {
		r.wentBack.add(token, j.s.now())
	}
}

// healthy reports whether nothing was wrong with a waiter for long enough: then its place counts.
func (j *judge) healthy(w *waiting) bool {
	const recovery = 7 * time.Second // a silent connection is found out
	now := j.s.now()
	j.mu.Lock()
	over := w.c == nil || w.c.done || now >= w.c.began+w.c.bound
	j.mu.Unlock()
	p := j.of[w.name]
	return !over && p != nil && !p.dead() && p.disturbed+recovery < w.since && j.shaken+recovery < w.since &&
		p.held(now, stop, cut, cutIn, cutOut) == now
}

// allListen reports whether somebody waits, and nothing is wrong with any who do.
func (j *judge) allListen(r *resource) bool {
	for _, w := range r.waiting {
		if !j.healthy(w) || len(j.s.channels[w.hears]) == 0 {
			return false
		}
	}
	return len(r.waiting) > 0
}

// queue follows who waits.
func (j *judge) queue(r *resource, x execution, outcome string, n int, breaks func(string, string, ...any)) {
	remove := func(name string) {
		r.waiting = slices.DeleteFunc(r.waiting, func(w *waiting) bool { return w.name == name })
	}
	now := j.s.now()
	switch {
	case x.script == "acquire" && outcome == "held" && x.args[4] == "wait":
		name := x.args[0]
		if j.late(r, x, name) {
			breaks("L4", "a request that came late waits for a call that is over")
		}
		if !slices.ContainsFunc(r.waiting, func(w *waiting) bool { return w.name == name }) {
			j.mu.Lock()
			c := j.calls[idOf(x.args[0])]
			j.mu.Unlock()
			r.waiting = append(r.waiting, &waiting{name, c, now, j.s.redis.micros, "lease:v1:{sim/" + r.name + "}:wake:" + x.args[6]})
		}
	case x.script == "acquire" && outcome == "granted":
		remove(x.args[0])
	case x.script == "withdraw":
		remove(x.args[0])
	}
	if o := j.ownerOf("lease:v1:{sim/" + r.name + "}:owner"); o.id != "" {
		remove(o.id)
	}
}

// published notes who is called.
func (j *judge) published(_, message string, listeners int) {
	if name, calls := strings.CutPrefix(message, "free "); calls && listeners > 0 {
		j.called[name] = j.s.now()
	}
}

// look judges what is true at any time. It is called after each event.
func (j *judge) look() {
	s := j.s
	s.setClock()
	now := s.now()
	for n := range s.resources {
		key := "lease:v1:{sim/" + resourceName(n) + "}:owner"
		r, o := j.resources[key], j.ownerOf(key)
		fence := s.redis.at(strings.TrimSuffix(key, "owner") + "fence")
		if fence == nil {
			r.lost = r.lost || r.highest > 0
		} else if token := number(fence.text); token < r.highest {
			r.lost = true
		} else {
			r.highest = max(r.highest, token) // it was raised
		}
		if !o.same(r.owner) && r.owner.id != "" {
			r.ended.add(r.owner.id+":"+r.owner.token, now)
			s.note("%s: the lease with token %s is over in Redis", r.name, r.owner.token)
		}
		if o.until != r.ends && o.id != "" {
			r.ends = o.until
			j.lookAt(o.until + 1)
		}
		switch {
		case o.id != "":
			r.free = -1
		case r.free < 0 || r.owner.id != "":
			r.free = now
		}
		r.owner = o
		j.trust(r, o)
		j.vacant(r)
	}
}

// lookAt looks again when Redis's clock shows so many milliseconds.
func (j *judge) lookAt(ms int64) {
	s := j.s
	left := time.Duration(ms*1000-s.redis.micros) * time.Microsecond
	s.at(s.now()+time.Duration(float64(max(left, 0))/s.speed)+2*time.Microsecond, func() {})
}

// trust judges L1 and L5: whoever trusts a lease has it in Redis.
func (j *judge) trust(r *resource, o owner) {
	j.mu.Lock()
	held := slices.Clone(j.held)
	j.mu.Unlock()
	for _, h := range held {
		if h.l.Resource() != r.name || h.l.Context().Err() != nil || h.c.p.dead() {
			continue
		}
		id, token := h.l.LeaseID().String(), strconv.FormatInt(h.l.Token(), 10)
		if o.id == id && o.token == token || j.lostSince(h.from) || r.revoked.has(id+":"+token) || r.released.has(id+":"+token) {
			continue
		}
		what := "nobody"
		if o.id != "" {
			what = "token " + o.token
		}
		j.breaks("L5", fmt.Sprintf("%s trusts its lease on %s with token %s, and in Redis %s has it", h.c.who, r.name, token, what))
	}
}

// vacant judges L6: what is free is not kept from who waits for it.
func (j *judge) vacant(r *resource) {
	if r.free < 0 {
		return
	}
	s, now := j.s, j.s.now()
	bound := 6 * time.Second
	if s.calm() {
		bound = 600 * time.Millisecond
	}
	for _, w := range r.waiting {
		if waited := now - max(r.free, w.since); waited > bound && j.healthy(w) {
			j.breaks("L6", fmt.Sprintf("%s is free for %v, and %s waits for it", r.name, waited, w.name))
		}
	}
}

// calm reports whether no news can be lost in this plan, and nobody is cut off.
func (p plan) calm() bool {
	for o, x := range p.odds {
		if o > 0 && x > 0 {
			return false
		}
	}
	return len(p.faults) == 0
}

// Calls -------------------------------------------------------------------------------------------

func (j *judge) begins(c *asked) {
	j.s.note("%s calls %s %s, for %v at most", c.who, c.what, c.resource, c.bound)
}

// TraceLeaseStart implements [lease.Tracer]: it tells the judge which lease id a call has.
func (j *judge) TraceLeaseStart(ctx context.Context, t lease.TraceStart) context.Context {
	if c, ours := ctx.Value(asked{}).(*asked); ours && t.Op == lease.OpAcquire {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.calls[t.LeaseID] = c
	}
	return ctx
}

// TraceLeaseEnd implements [lease.Tracer].
func (*judge) TraceLeaseEnd(context.Context, lease.TraceEnd) {}

// returned judges L8: a call is bounded.
func (j *judge) returned(c *asked, err error) {
	j.mu.Lock()
	c.done = true
	if errors.Is(err, lease.ErrHeld) {
		c.refused = j.s.now()
	}
	j.mu.Unlock()
	if c.p.dead() {
		return
	}
	j.s.note("%s's %s %s returns: %v", c.who, c.what, c.resource, err)
	if late := j.s.now() - c.began - c.bound; late > 50*time.Millisecond {
		j.breaks("L8", fmt.Sprintf("%s's %s has returned %v after its bound of %v", c.who, c.what, late, c.bound))
	}
}

// granted takes a lease in that a worker was given.
func (j *judge) granted(c *asked, l *lease.Lease) {
	r := j.resources["lease:v1:{sim/"+l.Resource()+"}:owner"]
	j.s.note("%s holds %s with token %d", c.who, l.Resource(), l.Token())
	if !r.granted.has(fmt.Sprintf("%s:%d", l.LeaseID(), l.Token())) && !c.p.dead() {
		j.breaks("L4", fmt.Sprintf("%s was given a lease with token %d that Redis has never granted", c.who, l.Token()))
	}
	if err := l.Err(); err != nil && !c.p.dead() {
		j.breaks("L5", fmt.Sprintf("%s was given a lease with token %d that is over: %v", c.who, l.Token(), err))
	}
	h := &holding{c: c, l: l, from: c.began}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.held = append(j.held, h)
	context.AfterFunc(l.Context(), func() { j.ended(r, h) })
}

// ended judges L5: a lease says truly why it is over.
func (j *judge) ended(r *resource, h *holding) {
	cause := context.Cause(h.l.Context())
	key := fmt.Sprintf("%s:%d", h.l.LeaseID(), h.l.Token())
	j.s.note("%s's lease on %s with token %d is over: %v", h.c.who, r.name, h.l.Token(), cause)
	j.mu.Lock()
	released := h.released
	j.held = slices.DeleteFunc(j.held, func(other *holding) bool { return other == h })
	j.mu.Unlock()
	switch {
	case errors.Is(cause, lease.ErrRevoked) && !r.revoked.has(key):
		j.breaks("L5", fmt.Sprintf("%s's lease with token %d says that it was revoked, and it was not", h.c.who, h.l.Token()))
	case errors.Is(cause, lease.ErrLost) && !r.ended.has(key):
		j.breaks("L5", fmt.Sprintf("%s's lease with token %d says that it is lost, and Redis has it", h.c.who, h.l.Token()))
	case errors.Is(cause, lease.ErrReleased) && !released && !h.c.p.closing.Load():
		j.breaks("L5", fmt.Sprintf("%s's lease with token %d says that it was released, and it was not", h.c.who, h.l.Token()))
	case cause == nil || !lease.IsLost(cause) && !errors.Is(cause, lease.ErrReleased) && !errors.Is(cause, lease.ErrStale):
		j.breaks("L5", fmt.Sprintf("%s's lease with token %d is over, because of %v", h.c.who, h.l.Token(), cause))
	}
}

// releases notes that a worker is about to release.
func (j *judge) releases(l *lease.Lease) {
	j.resources["lease:v1:{sim/"+l.Resource()+"}:owner"].released.add(fmt.Sprintf("%s:%d", l.LeaseID(), l.Token()), j.s.now())
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range j.held {
		if h.l == l {
			h.released = true
		}
	}
}

// write is a write behind the fence of the data store. It answers 0 if that was accepted, else the
// token that is stored.
func (j *judge) write(p *process, l *lease.Lease) int64 {
	if p.dead() {
		return 0
	}
	valid := l.Err() == nil
	if j.seal(l.Resource(), l.Token(), l.LeaseID()) {
		return 0
	}
	j.mu.Lock()
	stored := j.stored[l.Resource()]
	j.mu.Unlock()
	r := j.resources["lease:v1:{sim/"+l.Resource()+"}:owner"]
	key := fmt.Sprintf("%s:%d", l.LeaseID(), l.Token())
	since, _ := r.granted.at(key)
	if valid && !j.lostSince(since) && !r.revoked.has(key) && !r.released.has(key) && !r.wentBack.any() {
		j.breaks("L2", fmt.Sprintf("a holder with token %d that may trust its lease is refused, because %d is stored", l.Token(), stored.token))
	}
	return stored.token
}

// seal stores a token. It answers false if that is stale.
func (j *judge) seal(name string, token int64, id uuid.UUID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	stored := j.stored[name]
	if token < stored.token || token == stored.token && id != stored.id {
		return false
	}
	j.stored[name] = entry{token, id}
	return true
}

// closed judges L8: what a process has held or waited for is given back when Close returns.
func (j *judge) closed(p *process, err error) {
	if p.dead() {
		return
	}
	if err != nil {
		j.breaks("L8", fmt.Sprintf("%s's Close, without any fault: %v", p.name, err))
	}
}

// shown shortens arguments for the time line.
func (*judge) shown(args []string) string {
	var b strings.Builder
	for n, arg := range args {
		if len(arg) == 36 {
			arg = arg[:8]
		}
		if n < 6 {
			b.WriteString(" " + arg)
		}
	}
	return b.String()
}
