package leases

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
	"github.com/fencedb/fencedb/lease/once"
)

// leaseCall is one way into the packages.
type leaseCall struct {
	name      string
	scripts   []string                                           // that it sends
	resources int                                                // how many; 0: one
	prefix    string                                             // of the resources' names
	renews    bool                                               // the lease is renewed by itself
	waits     bool                                               // for another holder
	impatient bool                                               // it does so for a time that is its own
	detached  bool                                               // it asks although its context is over
	base      error                                              // without a fault
	ttls      int                                                // how long it takes at most, in TTLs
	more      time.Duration                                      // and this
	only      func(script string, f leaseFault, end ending) bool // where there is no other cell; nil: everywhere

	prepare func(*leaseCell)
	run     func(*leaseCell, context.Context) error
	want    func(*leaseCell) error // instead of what is wanted of all calls; nil: that
	check   func(*leaseCell)       // what else is true afterwards; may be nil
}

// behind: an acquisition sends the script only to give something back, which goes on behind the
// call.
func (c leaseCall) behind(script string) bool {
	return script == "withdraw" || script == "release" && c.waits
}

const (
	wait      = 250 * time.Millisecond // how long a waiter waits that waits in vain
	ask       = 5 * time.Second        // how long a request is sent again that grants nothing
	judgement = time.Second            // how long the limiter waits
)

var leaseCalls = []leaseCall{
	{name: "Acquire NoWait free", scripts: []string{"acquire"}, ttls: 1, prepare: unprepared, run: tryAcquire},
	{name: "Acquire NoWait held", scripts: []string{"acquire"}, ttls: 1, base: lease.ErrHeld, prepare: rivalHolds, run: tryAcquire},
	{name: "Acquire free", scripts: []string{"acquire"}, ttls: 1, prepare: unprepared, run: acquire},
	{name: "Acquire held", scripts: []string{"acquire", "withdraw"}, ttls: 1, waits: true, impatient: true, base: lease.ErrHeld,
		prepare: rivalHolds, run: waitInVain},
	{name: "Acquire called", scripts: []string{"acquire", "withdraw"}, ttls: 1, waits: true,
		prepare: rivalLeaves, run: acquire},
	{name: "AcquireAll NoWait", scripts: []string{"acquire"}, resources: 3, ttls: 1, prepare: unprepared, run: tryAcquireAll},
	{name: "AcquireAll free", scripts: []string{"acquire"}, resources: 3, ttls: 1, prepare: unprepared, run: acquireAll},
	{name: "AcquireAll called", scripts: []string{"acquire", "withdraw", "release"}, resources: 3, ttls: 2, waits: true,
		prepare: rivalLeaves, run: acquireAll},
	{name: "Do", scripts: []string{"acquire", "release"}, ttls: 1, prepare: unprepared, run: do, want: releaseIsNoError},
	{name: "DoAll", scripts: []string{"acquire", "release"}, resources: 3, ttls: 1,
		prepare: unprepared, run: doAll, want: releaseIsNoError},
	{name: "Extend", scripts: []string{"extend"}, ttls: 1, prepare: holds, run: extend, want: orIsOver},
	{name: "renewal", scripts: []string{"extend"}, ttls: 2, renews: true, prepare: holds, run: renewal, want: renewalIsRepeated,
		only: func(_ string, _ leaseFault, end ending) bool { return end.name == "no end" }},
	{name: "Release", scripts: []string{"release"}, ttls: 1, detached: true, prepare: holds, run: release},
	{name: "Verify", scripts: []string{"inspect"}, more: ask, prepare: holds, run: verify},
	{name: "Eval", scripts: []string{"eval"}, more: ask, prepare: holds, run: eval, want: askedOnce, check: evaluated},
	{name: "Inspect", scripts: []string{"inspect"}, more: ask, prepare: rivalHolds, run: inspect},
	{name: "Revoke", scripts: []string{"revoke"}, more: ask, prepare: rivalHolds, run: revoke},
	{name: "TakeOver", scripts: []string{"revoke"}, more: ask, prepare: rivalHolds, run: takeOver},
	{name: "Raise", scripts: []string{"raise"}, more: ask, prepare: unprepared, run: raise},
	{name: "semaphore Acquire NoWait", scripts: []string{"acquire"}, ttls: 1,
		prepare: places(unprepared), run: tryPlace},
	{name: "semaphore Acquire called", scripts: []string{"acquire", "withdraw"}, ttls: 1, waits: true,
		prepare: places(rivalPlaceLeaves), run: place},
	{name: "semaphore Do", scripts: []string{"acquire", "release"}, ttls: 1,
		prepare: places(unprepared), run: doPlace, want: releaseIsNoError},
	{name: "semaphore Extend", scripts: []string{"extend"}, ttls: 1,
		prepare: places(holdsPlace), run: extend, want: orIsOver},
	{name: "semaphore Release", scripts: []string{"release"}, ttls: 1, detached: true,
		prepare: places(holdsPlace), run: release},
	{name: "once Do", scripts: []string{"look", "acquire", "record", "release"}, prefix: "once:", ttls: 1, more: ask,
		prepare: unprepared, run: onceDo, want: recordIsSaid, check: recorded},
	{name: "once Do, work fails", scripts: []string{"look", "acquire", "release"}, prefix: "once:", ttls: 1, more: ask,
		base: errWork, prepare: unprepared, run: onceFails, want: releaseIsIgnored, check: notRecorded},
	{name: "admission Allow", scripts: []string{"fixed"}, more: judgement,
		prepare: unprepared, run: allow, want: askedOnce, check: counted},
	{name: "guard Tx", scripts: []string{"acquire", "release"}, ttls: 1,
		prepare: database, run: guardTx, want: releaseIsIgnored, check: rowIsWritten},
}

func unprepared(*leaseCell) {}

func database(c *leaseCell) { c.db() }

// rivalHolds lets a rival hold the last of the resources.
func rivalHolds(c *leaseCell) {
	l, err := c.rival.Acquire(c.Context(), c.resources[len(c.resources)-1], lease.NoWait())
	require.NoError(c, err)
	c.theirs = append(c.theirs, l)
}

// rivalLeaves lets it release when it is waited for.
func rivalLeaves(c *leaseCell) {
	rivalHolds(c)
	c.leaves(c.theirs[0])
}

// leaves lets a rival release when it is waited for, unless the waiter is to give up then, or does
// before.
func (c *leaseCell) leaves(l *lease.Lease) {
	if c.end.name == "queued" {
		return
	}
	done := make(chan struct{})
	var leaving sync.WaitGroup
	leaving.Go(func() {
		if c.awaitWaiter(done) {
			_ = l.Release(context.Background())
		}
	})
	c.left = func() { close(done); leaving.Wait() }
}

func holds(c *leaseCell) {
	l, err := c.own.Acquire(c.Context(), c.resources[0], lease.NoWait())
	require.NoError(c, err)
	c.mine = append(c.mine, l)
}

func (c *leaseCell) got(l *lease.Lease, err error) error {
	if (l == nil) != (err != nil) {
		c.Errorf("a lease (%v) and an error (%v) exclude each other", l, err)
	}
	if l != nil {
		c.mine = append(c.mine, l)
	}
	return err
}

func (c *leaseCell) gotAll(ls lease.Leases, err error) error {
	c.mine = append(c.mine, ls...)
	return err
}

func tryAcquire(c *leaseCell, ctx context.Context) error {
	return c.got(c.own.Acquire(ctx, c.resources[0], lease.NoWait()))
}

func acquire(c *leaseCell, ctx context.Context) error {
	return c.got(c.own.Acquire(ctx, c.resources[0]))
}

func waitInVain(c *leaseCell, ctx context.Context) error {
	return c.got(c.own.Acquire(ctx, c.resources[0], lease.WaitAtMost(wait)))
}

func tryAcquireAll(c *leaseCell, ctx context.Context) error {
	return c.gotAll(c.own.AcquireAll(ctx, c.resources, lease.NoWait()))
}

func acquireAll(c *leaseCell, ctx context.Context) error {
	return c.gotAll(c.own.AcquireAll(ctx, c.resources))
}

// work is judged while it runs.
func (c *leaseCell) work(ls ...*lease.Lease) error {
	c.ran++
	c.mine = append(c.mine, ls...)
	c.judgeBeliefs()
	return nil
}

// afterWork is the reason in the error of a Do whose work was done.
func (c *leaseCell) afterWork(err error) error {
	var done *lease.WorkDoneError
	if !errors.As(err, &done) {
		return err
	}
	if c.ran == 0 {
		c.Errorf("the work is said to be done, and did not run: %v", err)
	}
	return done.Cause
}

func do(c *leaseCell, ctx context.Context) error {
	return c.afterWork(c.own.Do(ctx, c.resources[0], func(_ context.Context, l *lease.Lease) error { return c.work(l) }))
}

func doAll(c *leaseCell, ctx context.Context) error {
	return c.afterWork(c.own.DoAll(ctx, c.resources, func(_ context.Context, ls lease.Leases) error {
		return c.work(ls...)
	}))
}

func extend(c *leaseCell, ctx context.Context) error {
	before := c.mine[0].ValidUntil()
	err := c.mine[0].Extend(ctx)
	if err == nil && !c.mine[0].ValidUntil().After(before) {
		c.Errorf("extended, and valid no longer than before")
	}
	return err
}

// renewal waits for longer than a lease lasts that is not renewed.
func renewal(c *leaseCell, _ context.Context) error {
	select {
	case <-c.mine[0].Context().Done():
		return context.Cause(c.mine[0].Context())
	case <-time.After(c.ttl * 4 / 3):
		return nil
	}
}

func release(c *leaseCell, ctx context.Context) error { return c.mine[0].Release(ctx) }

func verify(c *leaseCell, ctx context.Context) error {
	standing, err := c.mine[0].Verify(ctx)
	if err == nil && standing != lease.Current {
		c.Errorf("a lease that stands is found to be %v", standing)
	}
	return err
}

func inspect(c *leaseCell, ctx context.Context) error {
	found, err := c.own.Inspect(ctx, c.resources[0])
	if err == nil && (found.Holder != c.theirs[0].LeaseID() || found.Token != c.theirs[0].Token()) {
		c.Errorf("%v holds, and %v is found to", c.theirs[0].LeaseID(), found.Holder)
	}
	return err
}

// revoked: whoever held may not know yet.
func (c *leaseCell) revoked(r *lease.Revocation, err error) error {
	held := c.theirs[0]
	if err != nil {
		// It may have been carried out.
		if c.fault.verdict.Fate != faulty.Answer || c.end.name != endings[0].name {
			c.theirs, c.doubtful = nil, c.theirs
		}
		return err
	}
	c.theirs = nil
	c.floor = r.Token()
	if id, token, _ := r.Holder(); id != held.LeaseID() || token != held.Token() {
		c.Errorf("%v held, and %v is said to have been ended", held.LeaseID(), id)
	}
	if now := c.look()[c.resources[0]]; len(now.holders) > 0 || now.last < r.Token() {
		c.Errorf("revoked with token %d, and Redis has %v", r.Token(), now)
	}
	return nil
}

func revoke(c *leaseCell, ctx context.Context) error {
	return c.revoked(c.own.Revoke(ctx, c.resources[0]))
}

func takeOver(c *leaseCell, ctx context.Context) error {
	return c.revoked(c.own.TakeOver(ctx, c.resources[0], c.theirs[0].Token()))
}

func raise(c *leaseCell, ctx context.Context) error {
	floor := time.Now().Add(time.Hour).UnixMicro()
	last, err := c.own.Raise(ctx, c.resources[0], floor)
	if err == nil {
		c.floor = last
		if now := c.look()[c.resources[0]]; now.last < floor || now.last != last {
			c.Errorf("raised to %d, %d asked for, and Redis has %v", last, floor, now)
		}
	}
	return err
}

// releaseIsNoError if Redis may answer it later, or does not: the lease runs out by itself.
func releaseIsNoError(c *leaseCell) error {
	if c.script == "release" && (c.fault.passing || errors.Is(c.fault.want, lease.ErrUnreachable)) {
		return c.call.base
	}
	return c.wanted()
}

// releaseIsIgnored, whatever the answer is.
func releaseIsIgnored(c *leaseCell) error {
	if c.script == "release" {
		return c.call.base
	}
	return c.wanted()
}

// recordIsSaid to have failed when the work is done.
func recordIsSaid(c *leaseCell) error {
	if c.script == "record" && !c.fault.outlasted() {
		return once.ErrNotRecorded
	}
	return releaseIsIgnored(c)
}

// renewalIsRepeated, as long as the lease lasts, whatever the answer was.
func renewalIsRepeated(c *leaseCell) error {
	if c.fault.times > 0 {
		return nil
	}
	return c.wanted()
}

// orIsOver: without an answer, the lease may end before the attempts do.
func orIsOver(c *leaseCell) error {
	want := c.wanted()
	if want == lease.ErrUnreachable && errors.Is(c.err, lease.ErrExpired) && errors.Is(c.mine[0].Err(), lease.ErrExpired) {
		return lease.ErrExpired
	}
	return want
}

// places makes the resource one of a semaphore, with one place.
func places(prepare func(*leaseCell)) func(*leaseCell) {
	return func(c *leaseCell) {
		c.kind = "semaphore"
		prepare(c)
	}
}

func (c *leaseCell) semaphore(direct bool) *lease.Semaphore {
	client, cfg := c.client, lease.Config{TTL: c.ttl, RenewEvery: lease.Never, Namespace: c.namespace}
	if direct {
		client, cfg.TTL = c.direct, time.Minute
	}
	s, err := lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: 1, Lease: cfg})
	require.NoError(c, err)
	return s
}

func holdsPlace(c *leaseCell) {
	l, err := c.semaphore(false).Acquire(c.Context(), c.resources[0], lease.NoWait())
	require.NoError(c, err)
	c.mine = append(c.mine, l)
}

func rivalPlaceLeaves(c *leaseCell) {
	l, err := c.semaphore(true).Acquire(c.Context(), c.resources[0], lease.NoWait())
	require.NoError(c, err)
	c.theirs = append(c.theirs, l)
	c.leaves(l)
}

func tryPlace(c *leaseCell, ctx context.Context) error {
	return c.got(c.semaphore(false).Acquire(ctx, c.resources[0], lease.NoWait()))
}

func place(c *leaseCell, ctx context.Context) error {
	return c.got(c.semaphore(false).Acquire(ctx, c.resources[0]))
}

func doPlace(c *leaseCell, ctx context.Context) error {
	return c.afterWork(c.semaphore(false).Do(ctx, c.resources[0], func(_ context.Context, l *lease.Lease) error {
		return c.work(l)
	}))
}

var errWork = errors.New("the work failed")

func (c *leaseCell) once() *once.Once {
	o, err := once.New(c.client, once.Config{InFlight: c.ttl, Namespace: c.namespace})
	require.NoError(c, err)
	return o
}

func (c *leaseCell) onceKey() string { return c.resources[0][len("once:"):] }

func onceDo(c *leaseCell, ctx context.Context) error {
	result, replayed, err := c.once().Do(ctx, c.onceKey(), nil, func(_ context.Context, l *lease.Lease) ([]byte, error) {
		return []byte("done"), c.work(l)
	})
	if err == nil && (replayed || string(result) != "done") {
		c.Errorf("result %q, replayed %v", result, replayed)
	}
	return err
}

func onceFails(c *leaseCell, ctx context.Context) error {
	_, _, err := c.once().Do(ctx, c.onceKey(), nil, func(_ context.Context, claim *lease.Lease) ([]byte, error) {
		return nil, errors.Join(errWork, c.work(claim))
	})
	return err
}

// record is what Redis has of the result.
func (c *leaseCell) record() bool {
	n, err := c.direct.Exists(context.Background(), "once:v1:{"+c.namespace+"/"+c.resources[0]+"}:record").Result()
	require.NoError(c, err)
	return n == 1
}

func recorded(c *leaseCell) {
	switch there := c.record(); {
	case c.err == nil && (!there || c.ran != 1):
		c.Errorf("no error, and the work ran %d times, with a record: %v", c.ran, there)
	case c.err != nil && !errors.Is(c.err, once.ErrNotRecorded) && (there || c.ran > 0):
		c.Errorf("an error that says that nothing ran, and the work ran %d times, with a record: %v: %v", c.ran, there, c.err)
	}
}

func notRecorded(c *leaseCell) {
	if c.record() || errors.Is(c.err, errWork) != (c.ran == 1) {
		c.Errorf("the work failed, ran %d times, with a record: %v: %v", c.ran, c.record(), c.err)
	}
}

// allow is no error if the request was judged.
func allow(c *leaseCell, ctx context.Context) error {
	l, err := admission.New(c.client, admission.Config{
		Limit: 3, Window: time.Minute, OnError: admission.FailClosed, Timeout: judgement, Namespace: c.namespace})
	require.NoError(c, err)
	d, err := l.Allow(ctx, c.resources[0])
	if err == nil && d.Allowed != (d.Err == nil) {
		c.Errorf("allowed: %v, and %v", d.Allowed, d.Err)
	}
	return errors.Join(err, d.Err)
}

// askedOnce: an answer that comes late is of no use.
func askedOnce(c *leaseCell) error {
	if c.fault.name == "NOSCRIPT once" {
		return nil
	}
	return c.fault.want
}

func counted(c *leaseCell) {
	n, _ := c.direct.Get(context.Background(), "admission:v1:{"+c.namespace+"/"+c.resources[0]+"}:fixed").Int()
	if n > 1 || c.err == nil && n != 1 {
		c.Errorf("one request, counted %d times: %v", n, c.err)
	}
}

func eval(c *leaseCell, ctx context.Context) error {
	_, err := c.mine[0].Eval(ctx, `return redis.call('INCR', KEYS[1])`, []string{c.counter()})
	return err
}

// counter is a key of the application in the slot of the lease.
func (c *leaseCell) counter() string {
	return lease.Key{Kind: "data", Namespace: c.namespace, Resource: c.resources[0], Field: "count"}.String()
}

func evaluated(c *leaseCell) {
	n, _ := c.direct.Get(context.Background(), c.counter()).Int()
	if n > 1 || c.err == nil && n != 1 {
		c.Errorf("one script, run %d times: %v", n, c.err)
	}
}

func guardTx(c *leaseCell, ctx context.Context) error {
	return guard.New(c.own, c.db()).Tx(ctx, c.resources[0], func(ctx context.Context, tx pgx.Tx) error {
		c.ran++
		_, err := tx.Exec(ctx, `INSERT INTO done VALUES ($1)`, c.name)
		return err
	})
}

func rowIsWritten(c *leaseCell) {
	var n int
	require.NoError(c, c.db().QueryRow(context.Background(), `SELECT count(*) FROM done WHERE cell = $1`, c.name).Scan(&n))
	if (n == 1) != (c.err == nil) {
		c.Errorf("%d rows are written, and the answer is %v", n, c.err)
	}
}
