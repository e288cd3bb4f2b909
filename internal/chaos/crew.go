package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/faulty"
)

// crew are the worker processes, and what they tell.
type crew struct {
	*stage
	dir     string
	members []*member
	serial  int // of the process that was started last

	mu       sync.Mutex
	attempts map[int64]*Attempt
	healed   map[string]int64 // by object: when the latest call began that has committed
	changed  chan struct{}    // closed and replaced with every change of healed
	pauses   []Pause
	fallen   []string // what processes did that should not have: ended, or did not end
}

// member is one place in the crew, with networks of its own. When its process is killed, another
// takes its place.
type member struct {
	crew                *crew
	postgres, redis     *faulty.Network
	toPostgres, toRedis string
	process             int
	worker              *worker.Process[event]
	ending              atomic.Bool // because it was told to, or killed
	heard               sync.WaitGroup
}

func (s *stage) start(ctx context.Context, workers int) (c *crew, err error) {
	c = &crew{stage: s, attempts: map[int64]*Attempt{}, healed: map[string]int64{}, changed: make(chan struct{})}
	if c.dir, err = os.MkdirTemp("", "fencedb-"); err != nil {
		return nil, err
	}
	for n := range workers {
		m := &member{
			crew:       c,
			toPostgres: filepath.Join(c.dir, fmt.Sprint("p", n)),
			toRedis:    filepath.Join(c.dir, fmt.Sprint("r", n)),
		}
		c.members = append(c.members, m)
		if m.postgres, err = faulty.NewNetwork(m.toPostgres); err == nil {
			m.redis, err = faulty.NewNetwork(m.toRedis)
		}
		if err == nil {
			err = m.start(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, c.stop())
		}
	}
	return c, nil
}

// start puts a new process in the place.
func (m *member) start(ctx context.Context) (err error) {
	t := m.crew.task
	m.crew.serial++
	t.Process, t.ToPostgres, t.ToRedis = m.crew.serial, m.toPostgres, m.toRedis
	if m.worker, err = worker.Start[event](ctx, Kind, t); err != nil {
		return err
	}
	m.process = t.Process
	m.ending.Store(false)
	m.heard.Go(func() {
		for e := range m.worker.Events() {
			m.crew.hear(e)
		}
		if !m.ending.Load() {
			m.crew.fell("process %d ended without having been killed; what it printed says why", t.Process)
		}
	})
	return nil
}

func (c *crew) fell(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fallen = append(c.fallen, fmt.Sprintf(format, args...))
}

// hear notes what a worker tells. An attempt that is told twice has returned.
func (c *crew) hear(e event) {
	a := e.Attempt
	if a == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts[a.ID] = a
	if a.Outcome == Committed && a.Work != "look" && a.Call > c.healed[a.Object] {
		c.healed[a.Object] = a.Call
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// awaitHealing waits until every object was written by an attempt that began after a time. It names
// the objects that were not when ctx ended.
func (c *crew) awaitHealing(ctx context.Context, after int64) (idle []string) {
	names := c.names()
	for {
		c.mu.Lock()
		idle = idle[:0]
		for _, name := range names {
			if c.healed[name] <= after {
				idle = append(idle, name)
			}
		}
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

// pause stops a process for as long as during runs, or for as long as it is there.
func (m *member) pause(during func()) error {
	from := now()
	if err := m.worker.Stop(); err != nil {
		return err
	}
	during()
	err := m.worker.Continue()
	m.crew.mu.Lock()
	defer m.crew.mu.Unlock()
	m.crew.pauses = append(m.crew.pauses, Pause{m.process, from, now()})
	return err
}

// kill ends a process with SIGKILL.
func (m *member) kill() {
	m.ending.Store(true)
	m.worker.Abort()
	m.heard.Wait()
	m.worker.Kill()
}

// stop ends all processes in good order, then their networks.
func (c *crew) stop() (err error) {
	for _, m := range c.members {
		m.ending.Store(true)
		if m.worker != nil {
			m.worker.EndOrders()
		}
	}
	for _, m := range c.members {
		if m.worker != nil {
			hung := time.AfterFunc(time.Minute, func() {
				c.fell("process %d did not end within a minute", m.process)
				m.worker.Abort()
			})
			m.heard.Wait()
			hung.Stop()
			m.worker.Kill()
		}
		for _, n := range []*faulty.Network{m.postgres, m.redis} {
			if n != nil {
				err = errors.Join(err, n.Close())
			}
		}
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// networks are those to Postgres or to Redis, of one member or of all.
func (c *crew) networks(which side, only int) (all []*faulty.Network) {
	for n, m := range c.members {
		if only >= 0 && n != only {
			continue
		}
		if which != toRedis {
			all = append(all, m.postgres)
		}
		if which != toPostgres {
			all = append(all, m.redis)
		}
	}
	return all
}

// side is a server, seen from the workers.
type side int

const (
	toBoth side = iota
	toPostgres
	toRedis
)
