// Package story tells what fencedb is for on two real processes, and checks what it tells.
//
// A story is a script: requests to two workers of package worker, signals to their processes, and between them what Redis and
// Postgres hold. Whether it ended as promised is decided by asking both servers; the workers' own word is only shown.
package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/fencedb/fencedb/examples/booking/worker"
)

// Config is what the stories need.
type Config struct {
	PostgresURL string // an empty database
	RedisURL    string
	Namespace   string // of all leases; its keys are removed at the end
	TTL         time.Duration
	Notes       []string // where the servers come from, to be shown
	Out         io.Writer
	Colour      bool

	// Worker returns the command of a process that calls worker.Serve with this configuration.
	Worker func(worker.Config) *exec.Cmd

	// Unprotected takes the fence away. The zombie then wins, and Run must say so.
	Unprotected bool
}

// ErrBroken: a story did not end as promised.
var ErrBroken = errors.New("a promise was broken")

// Run tells all stories. It returns nil if each ended as promised, ErrBroken if one did not, and another error if they could
// not be told. Cancelling ctx ends it at once. Either way the workers have ended when it returns.
func Run(ctx context.Context, cfg Config) error {
	started := time.Now()
	s, err := setStage(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.clear()

	s.out.opening(cfg, s.a.PID(), s.b.PID())
	var verdicts []verdict
	for i, st := range stories {
		v, err := s.tell(ctx, i+1, st)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, v)
	}
	s.out.summary(stories, verdicts, time.Since(started))
	for _, v := range verdicts {
		if !v.kept() {
			return ErrBroken
		}
	}
	return nil
}

// story is one of them.
type story struct {
	title   string
	intro   string
	promise string
	table   int
	play    func(*scene) (seen string)
}

var stories = []story{race, stolen, crash, zombie, control}

// verdict is how a story ended.
type verdict struct {
	seen   string
	broken []string // what was not as promised
}

func (v verdict) kept() bool { return len(v.broken) == 0 }

// tell plays one story. A worker that a broken story has left behind in the middle of something is replaced.
func (s *stage) tell(ctx context.Context, number int, st story) (verdict, error) {
	const patience = 10 * time.Second // for everything that is not waiting for a TTL
	playCtx, cancel := context.WithTimeout(ctx, patience+3*s.TTL)
	defer cancel()

	s.out.intro(number, st)
	sc := &scene{stage: s, ctx: playCtx, story: st, began: time.Now()}
	seen := st.play(sc)
	if ctx.Err() != nil {
		return verdict{}, context.Cause(ctx)
	}
	if sc.err != nil {
		sc.broken = append(sc.broken, fmt.Sprintf("the story stopped: %v", sc.err))
	}
	v := verdict{seen, sc.broken}
	s.out.verdict(st, v)
	if v.kept() {
		return v, nil
	}
	return v, s.replaceWorkers(ctx)
}
