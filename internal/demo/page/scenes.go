package page

import (
	"context"
	"time"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

// scene plays in the background, one at a time.
func scene(name string, play func(*Stage, context.Context) error) func(*Stage, context.Context, string) error {
	return func(s *Stage, _ context.Context, _ string) error {
		busy := false
		s.change(func() {
			if busy = s.scene != ""; !busy {
				s.scene = name
			}
		})
		if busy {
			return refuse("One scene at a time: wait until the one that is playing is over.")
		}
		s.journal.Add(Record{Kind: Scene, Cause: name})
		s.work.Go(func() { s.play(play) })
		return nil
	}
}

func (s *Stage) play(play func(*Stage, context.Context) error) {
	const patience = 20 * time.Second // for everything that does not wait for a TTL or a bank
	pace := s.pace()
	ctx, cancel := context.WithTimeout(s.life, patience+4*(pace.TTL+pace.Card+pace.Write))
	defer cancel()
	if err := play(s, ctx); err != nil && s.life.Err() == nil {
		s.journal.Add(Record{Kind: SceneFailed, Cause: err.Error()})
	}
	s.change(func() { s.scene = "" })
}

// two are two idle workers, and an evening for both.
func (s *Stage) two(ctx context.Context) (a, b *hand, evening int, err error) {
	s.mu.Lock()
	var idle []*hand
	for _, h := range s.crew {
		if h.idle() {
			idle = append(idle, h)
		}
	}
	s.mu.Unlock()
	if len(idle) < 2 {
		return nil, nil, 0, refuse("It takes two idle workers. Wait for them, or wake the one that stands still.")
	}
	evening, err = s.nextEvening(ctx)
	return idle[0], idle[1], evening, err
}

// race: two guests, one evening, the same moment.
func (s *Stage) race(ctx context.Context) error {
	a, b, evening, err := s.two(ctx)
	if err != nil {
		return err
	}
	if err := a.reserve(s.guest(), evening, false); err != nil {
		return err
	}
	if err := b.reserve(s.guest(), evening, false); err != nil {
		return err
	}
	return s.await(ctx, func() bool { return a.job == nil && b.job == nil })
}

// zombie: the first worker is stopped before its write, for longer than its lease lasts, and
// another books.
func (s *Stage) zombie(ctx context.Context) error {
	a, b, evening, err := s.two(ctx)
	if err != nil {
		return err
	}
	if err := a.reserve(s.guest(), evening, true); err != nil {
		return err
	}
	if err := s.await(ctx, a.atStep(worker.AtWrite)); err != nil {
		return err
	}
	if err := a.pause(); err != nil {
		return err
	}
	s.rest(s.pace().TTL / 4) // so that B is seen to wait
	if err := b.reserve(s.guest(), evening, false); err != nil {
		return err
	}
	if err := s.await(ctx, func() bool { return b.job == nil }); err != nil {
		return err
	}
	s.rest(s.pace().TTL / 4)
	if err := a.wake(); err != nil {
		return err
	}
	return s.await(ctx, func() bool { return a.job == nil })
}

// crash: the first worker is killed while it holds the lease and another waits.
func (s *Stage) crash(ctx context.Context) error {
	a, b, evening, err := s.two(ctx)
	if err != nil {
		return err
	}
	if err := a.reserve(s.guest(), evening, false); err != nil {
		return err
	}
	if err := s.await(ctx, a.atStep(worker.AtCard)); err != nil {
		return err
	}
	if err := b.reserve(s.guest(), evening, false); err != nil {
		return err
	}
	s.rest(s.pace().TTL / 2)
	if err := a.kill(); err != nil {
		return err
	}
	return s.await(ctx, func() bool { return b.job == nil })
}

// atStep is true at the step, and also when the worker has gone past it or is gone; what comes next
// will notice.
func (h *hand) atStep(step worker.Point) func() bool {
	return func() bool { return h.step == step || h.job == nil }
}
