package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// workerVar makes this program one of the processes of a crew; it holds the job as JSON.
const workerVar = "FENCEDB_BENCH_JOB"

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
	Trips []trip
}

// serve does the job until stdin ends, which it also does when the parent dies, and prints the record.
func serve(jobText string, stdin io.Reader, stdout io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(jobText), &j); err != nil {
		return fmt.Errorf("%s: %w", workerVar, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		stop()
	}()
	done, err := j.do(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", j.Lock, err)
	}
	return json.NewEncoder(stdout).Encode(done)
}

func (j job) do(ctx context.Context) (all record, err error) {
	c, err := find(j.Lock)
	if err != nil {
		return all, err
	}
	lock, err := c.open(j.Addr)
	if err != nil {
		return all, err
	}
	each := make([][]turn, j.Waiters)
	waiters, ctx := errgroup.WithContext(ctx)
	for n := range each {
		waiters.Go(func() (err error) {
			each[n], err = wait(ctx, lock, j.Resource, j.Work)
			return err
		})
	}
	waiters.Go(func() (err error) {
		all.Trips, err = probe(ctx, j.Addr)
		return err
	})
	err = waiters.Wait()
	all.Turns = slices.Concat(each...)
	return all, err
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

// serveIfWorker does the job of a process of a crew if this is one, and then ends the program.
func serveIfWorker() {
	text, ok := os.LookupEnv(workerVar)
	if !ok {
		return
	}
	if err := serve(text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
