package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/faulty"
)

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
	networks [2]*faulty.Network // to Postgres and to Redis
	worker   *worker.Process[Attempt]
	ending   atomic.Bool // because it was told to, or killed
	heard    sync.WaitGroup
}

// sides are servers, seen from the workers.
type sides []int

// The places of networks.
var (
	toPostgres = sides{0}
	toRedis    = sides{1}
	toBoth     = sides{0, 1}
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
		if m.networks[0], err = faulty.NewNetwork(m.task.ToPostgres); err == nil {
			m.networks[1], err = faulty.NewNetwork(m.task.ToRedis)
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
	process, err := worker.Start[Attempt](ctx, Kind, m.task)
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
func (c *crew) set(f Fault, to sides, w faulty.Weather) {
	for _, m := range c.stricken(f) {
		for _, side := range to {
			m.networks[side].Set(w)
		}
	}
}
