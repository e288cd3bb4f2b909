// Package chaos tries both halves of fencedb under faults, and judges what came of it. It is what
// fencedb chaos runs on a user's servers, and what the tests of this package run on servers that
// they may kill.
//
// Worker processes take leases and write behind the fence: they count, set a register, move money
// between accounts, insert and delete a row, hold permits and carry out an order once; some sleep
// past the end of their lease on purpose and write all the same. Meanwhile they are stopped and
// killed, their connections are delayed, held and cut by proxies of this program, and what Redis
// knows of them is taken away or set back. A schedule that follows from a seed says what happens in
// which order.
//
// Every attempt is told before it begins and when it has returned, and leaves a row in the
// transaction that it makes, so that the judge knows for each one what it was told and what is
// true. See the promises in judge.go, and docs/chaos.md.
//
// A suite that finds nothing proves little unless it finds what is there. So each [Control] is a
// way to write that is wrong, and a run with it must end in a conviction.
package chaos

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/worker"
)

// Config says what to try, and where.
type Config struct {
	PostgresURL string
	RedisURL    string
	Open        OpenRedis `json:"-"` // as in [Worker]

	Seed    uint64        // of the schedule. Defaults to a random one
	For     time.Duration // how long faults go on; the last one is finished. Defaults to a minute
	Rounds  int           // if set, how many faults there are instead
	TTL     time.Duration // of leases. Defaults to a second
	Workers int           // processes. Defaults to 4
	Clients int           // of each process. Defaults to 3
	Width   int           // how often there is each object. Defaults to 1
	Control Control
	Only    []string // the kinds of faults. Defaults to all

	servers []kind // faults of servers that a test may disturb, beside the others
	lenient bool   // Redis's clock is set back, so that the tokens it issues may fall

	// witness looks at what a run has left in Postgres, of a test that keeps history.
	witness func(context.Context, *stage) error

	Log    io.Writer `json:"-"` // gets the time line. Defaults to none
	Colour bool      `json:"-"` // of the stories there
}

func (c *Config) complete() {
	c.For = cmp.Or(c.For, time.Minute)
	c.TTL = cmp.Or(c.TTL, time.Second)
	c.Workers = cmp.Or(c.Workers, 4)
	c.Clients = cmp.Or(c.Clients, 3)
	c.Width = cmp.Or(c.Width, 1)
	for c.Seed == 0 {
		c.Seed = rand.Uint64() >> 16 // short enough to be typed
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
}

// Check refuses what Run would refuse before it asks a server.
func (c Config) Check() error {
	c.complete()
	if c.Control != NoControl && !slices.Contains(Controls(), c.Control) {
		return fmt.Errorf("there is no control %q; there are %v", c.Control, Controls())
	}
	if c.For < 0 || c.TTL < 100*time.Millisecond || c.Workers < 1 || c.Clients < 1 || c.Width < 1 {
		return fmt.Errorf("at least one worker, client and copy, leases of at least 100ms and a positive time are needed; got %d, %d, %d, %v and %v",
			c.Workers, c.Clients, c.Width, c.TTL, c.For)
	}
	_, err := c.kinds()
	return err
}

// Run tries, judges and takes everything that it has made off the servers. When ctx ends, or c.Log
// cannot be written to any more, it stops early and judges what there is. An error means that there
// is no verdict.
func Run(ctx context.Context, c Config) (v *Verdict, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c.complete()
	v = &Verdict{
		Seed: c.Seed, Control: c.Control, TTL: Span(c.TTL), Workers: c.Workers, Clients: c.Clients, Width: c.Width,
		Faults: []Happened{}, Violations: []Violation{},
	}
	v.Left, err = c.perform(ctx, "chaos", func(ctx context.Context, s *stage) error {
		v.Run, v.Began = s.Run, time.Now()
		s.say("run %s: seed %d, %d processes of %d clients, leases of %v\n", v.Run, c.Seed, c.Workers, c.Clients, c.TTL)
		crew, err := s.start(context.WithoutCancel(ctx), v)
		if err != nil {
			return fmt.Errorf("start the workers: %w", err)
		}
		crew.faults(ctx)
		crew.stop()
		return crew.judge(context.WithoutCancel(ctx))
	})
	return v, err
}

// since is a time of the time line.
func (c *crew) since(at int64) Span { return Span(at - c.seen.epoch) }

func (c *crew) log(at int64, format string, args ...any) {
	c.say("%7.1fs  %s\n", time.Duration(c.since(at)).Seconds(), fmt.Sprintf(format, args...))
}

// faults carries the schedule out.
func (c *crew) faults(ctx context.Context) {
	c.seen.epoch = now()
	c.healed(ctx, c.seen.epoch, "the start")
	kinds, _ := c.kinds() // which were checked
	next := schedule(c.Seed, kinds, c.Workers, c.TTL)
	for n := 0; ctx.Err() == nil && (n < c.Rounds || c.Rounds == 0 && time.Duration(c.since(now())) < c.For); n++ {
		kind, f := next()
		whom := "all workers"
		if f.Victim >= 0 {
			whom = fmt.Sprint("worker ", f.Victim)
		}
		begin := now()
		c.log(begin, "%-28s %s, %v", f.Kind, whom, f.Lasts.Round(time.Millisecond))
		err := kind.do(ctx, c, f)
		end := now()
		happened := Happened{Fault: f, At: c.since(begin), Over: c.since(end)}
		if err != nil && ctx.Err() == nil {
			happened.Skipped = err.Error()
			c.log(end, "%-28s not possible here: %v", "", err)
		}
		happened.Healed = c.since(c.healed(ctx, end, f.Kind))
		c.verdict.Faults = append(c.verdict.Faults, happened)
	}
}

// healed waits until every object was written by an attempt that began after a time, and returns
// when that was. An object may stay idle for what a waiter that was forgotten sleeps, and the limit
// of an attempt, with room for a machine that is busy.
func (c *crew) healed(ctx context.Context, after int64, what string) int64 {
	limit := 20*time.Second + 10*c.TTL
	if c.Control != NoControl {
		limit = 2 * c.TTL // nothing depends on it
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	idle := c.awaitHealing(waiting, after)
	at := now()
	if ctx.Err() != nil || c.Control != NoControl {
		return at
	}
	for _, object := range idle {
		v := Violation{healing, object, fmt.Sprintf("nothing was written for %v after %s", limit, what), c.since(at)}
		c.verdict.Violations = append(c.verdict.Violations, v)
		c.log(at, "VIOLATION  %s: %s", object, v.Text)
	}
	return at
}

// judge waits for what is on its way, and completes the verdict.
func (c *crew) judge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	v, e := c.verdict, &c.seen
	if err := c.endSessions(ctx); err != nil {
		return err
	}
	if err := e.gather(ctx, c.stage); err != nil {
		return err
	}
	if err := c.pool.QueryRow(ctx, `SHOW server_version`).Scan(&v.Postgres); err != nil {
		return err
	}
	if c.witness != nil {
		if err := c.witness(ctx, c.stage); err != nil {
			return err
		}
	}
	v.Violations = append(v.Violations, e.judge()...)
	v.Took = c.since(now())
	v.count(e)
	c.log(now(), "%d attempts judged, %d violations", len(e.attempts), len(v.Violations))
	return nil
}

// crew is a run under way: the worker processes, and what they tell.
type crew struct {
	*stage
	verdict *Verdict
	members []*member
	serial  int // of the process that was started last

	mu      sync.Mutex
	seen    evidence
	written map[string]int64 // by object: when the latest call began that has committed
	changed chan struct{}    // closed and replaced with every change of written
}

// member is one place in the crew, with networks of its own. When its process is killed, another
// takes its place.
type member struct {
	crew     *crew
	task     task               // of the process that is there
	networks [2]*faulty.Network // by toPostgres and toRedis
	worker   *worker.Process[Attempt]
	ending   atomic.Bool // because it was told to, or killed
	heard    sync.WaitGroup
}

// The places of networks.
const (
	toPostgres = iota
	toRedis
)

func (s *stage) start(ctx context.Context, v *Verdict) (*crew, error) {
	c := &crew{
		stage: s, verdict: v, seen: evidence{task: s.task, attempts: map[int64]*Attempt{}},
		written: map[string]int64{}, changed: make(chan struct{}),
	}
	for n := range s.Workers {
		m := &member{crew: c, task: s.task}
		m.task.ToPostgres, m.task.ToRedis = filepath.Join(s.dir, fmt.Sprint("p", n)), filepath.Join(s.dir, fmt.Sprint("r", n))
		var err error
		if m.networks[toPostgres], err = faulty.NewNetwork(m.task.ToPostgres); err == nil {
			m.networks[toRedis], err = faulty.NewNetwork(m.task.ToRedis)
		}
		if err == nil {
			err = m.start(ctx)
		}
		if err != nil { // and its networks end with this process
			c.stop()
			return nil, err
		}
		c.members = append(c.members, m)
	}
	return c, nil
}

// start puts a new process in the place.
func (m *member) start(ctx context.Context) error {
	m.crew.serial++
	m.task.Process = m.crew.serial
	process, err := worker.Start[Attempt](ctx, workerKind, m.task)
	if err != nil {
		return err
	}
	m.worker = process
	m.ending.Store(false)
	m.heard.Go(func() {
		for a := range process.Events() {
			m.crew.hear(&a)
		}
		if !m.ending.Load() {
			m.crew.fell("process %d ended without having been killed; what it printed says why", m.task.Process)
		}
	})
	return nil
}

func (c *crew) fell(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.fallen = append(c.seen.fallen, fmt.Sprintf(format, args...))
}

// hear notes what a worker tells. An attempt that is told twice has returned.
func (c *crew) hear(a *Attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.attempts[a.ID] = a
	if a.Outcome == Committed && a.Work != "look" && a.Call > c.written[a.Object] {
		c.written[a.Object] = a.Call
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// awaitHealing waits until every object was written by an attempt that began after a time. It names
// the objects that were not when ctx ended.
func (c *crew) awaitHealing(ctx context.Context, after int64) []string {
	idle := c.names()
	for {
		c.mu.Lock()
		idle = slices.DeleteFunc(idle, func(name string) bool { return c.written[name] > after })
		changed := c.changed
		c.mu.Unlock()
		if len(idle) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return idle
		}
	}
}

// stop ends all processes in good order, then their networks.
func (c *crew) stop() {
	for _, m := range c.members {
		m.ending.Store(true)
		m.worker.EndOrders()
	}
	for _, m := range c.members {
		hung := time.AfterFunc(time.Minute, func() {
			c.fell("process %d did not end within a minute", m.task.Process)
			m.worker.Abort()
		})
		m.heard.Wait()
		hung.Stop()
		m.worker.Kill()
		for _, n := range m.networks {
			_ = n.Close()
		}
	}
}

// stricken are the members that a fault is for.
func (c *crew) stricken(f Fault) []*member {
	if f.Victim == everybody {
		return c.members
	}
	return c.members[f.Victim : f.Victim+1]
}

// set sets the weather of networks of the members that a fault is for.
func (c *crew) set(f Fault, w faulty.Weather, to ...int) {
	for _, m := range c.stricken(f) {
		for _, side := range to {
			m.networks[side].Set(w)
		}
	}
}
