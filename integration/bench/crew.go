package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

// processes is how many share the waiters.
const processes = 4

// crew is a load under way.
type crew []*worker.Process[record]

// hire starts the processes of a job and deals its waiters out to them. Those that did start are dismissed on error.
func hire(ctx context.Context, j job) (crew, error) {
	var c crew
	for n := range processes {
		part := j
		part.Waiters = (j.Waiters + n) / processes
		p, err := worker.Start[record](ctx, kind, part)
		if err != nil {
			_, _ = c.dismiss()
			return nil, err
		}
		c = append(c, p)
	}
	return c, nil
}

// dismiss ends the load and returns the records of all processes as one.
func (c crew) dismiss() (all record, err error) {
	for _, p := range c {
		p.EndOrders()
	}
	for _, p := range c {
		one, failed := p.Next(context.Background())
		p.Kill()
		err = errors.Join(err, failed)
		all.Turns, all.Pings = append(all.Turns, one.Turns...), append(all.Pings, one.Pings...)
	}
	return all, err
}

// kind is that of the workers.
const kind = "bench"

// job is what one process does: so many goroutines that wait for the lock, work, give it back and begin again.
type job struct {
	Lock     string
	Addr     string // of Redis
	Resource string
	Waiters  int
	Work     time.Duration
}

// turn is one round of one waiter, in nanoseconds of the machine's clock, which all processes share. Granted and Released are
// 0 for a waiter that still waited when the run ended.
type turn struct {
	Called   int64 // before it asked for the lock
	Granted  int64 // after it got it
	Released int64 // before it gave it back
}

// record is what a process, or a crew, has done.
type record struct {
	Turns []turn
	Pings []ping
}

// serve is the life of a process: it does the job until its orders end, and tells the record.
func serve(ctx context.Context, self *worker.Self) error {
	var j job
	if err := self.Config(&j); err != nil {
		return err
	}
	lock, err := locks[j.Lock](j.Addr)
	if err != nil {
		return err
	}
	self.Tell(record{}) // ready
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		var none any
		_ = self.Order(&none)
		stop()
	}()
	var done record
	each := make([][]turn, j.Waiters)
	all, ctx := errgroup.WithContext(ctx)
	for n := range each {
		all.Go(func() (err error) {
			each[n], err = wait(ctx, lock, j.Resource, j.Work)
			return err
		})
	}
	all.Go(func() (err error) {
		done.Pings, err = pings(ctx, j.Addr)
		return err
	})
	if err := all.Wait(); err != nil {
		return fmt.Errorf("%s: %w", j.Lock, err)
	}
	done.Turns = slices.Concat(each...)
	self.Tell(done)
	return nil
}

// wait is one waiter.
func wait(ctx context.Context, lock acquire, resource string, work time.Duration) (turns []turn, err error) {
	for {
		t := turn{Called: time.Now().UnixNano()}
		release, err := lock(ctx, resource)
		switch {
		case err != nil && ctx.Err() != nil:
			return append(turns, t), nil
		case err != nil:
			return nil, err
		}
		t.Granted = time.Now().UnixNano()
		time.Sleep(work)
		t.Released = time.Now().UnixNano()
		turns = append(turns, t)
		if err := release(); err != nil {
			return nil, err
		}
	}
}
