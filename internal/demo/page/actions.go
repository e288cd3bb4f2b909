package page

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

// ErrRefused: it cannot be done now, or there is no such thing. Nothing was done; the text says why
// and what to do.
var ErrRefused = errors.New("refused")

type refusal struct{ text string }

func (r refusal) Error() string { return r.text }
func (refusal) Unwrap() error   { return ErrRefused }

func refuse(format string, args ...any) error { return refusal{fmt.Sprintf(format, args...)} }

// actions are the buttons. Each gets the name of a worker, or what else the button is for.
var actions = map[string]func(*Stage, context.Context, string) error{
	"race":    scene("race", (*Stage).race),
	"zombie":  scene("zombie", (*Stage).zombie),
	"crash":   scene("crash", (*Stage).crash),
	"reserve": withHand((*Stage).reserve),
	"pause":   withHand(func(_ *Stage, _ context.Context, h *hand) error { return h.pause() }),
	"wake":    withHand(func(_ *Stage, _ context.Context, h *hand) error { return h.wake() }),
	"kill":    withHand(func(_ *Stage, _ context.Context, h *hand) error { return h.kill() }),
	"flush":   func(s *Stage, ctx context.Context, _ string) error { return s.flush(ctx) },
	"restart": func(s *Stage, ctx context.Context, _ string) error { return s.restartRedis(ctx) },
	"fence":   (*Stage).setFence,
	"speed":   (*Stage).setSpeed,
}

// Do does what a button says. It returns when that is done, or for a scene when it has begun.
func (s *Stage) Do(ctx context.Context, action, with string) error {
	do, ok := actions[action]
	if !ok {
		return refuse("There is no action %q.", action)
	}
	return do(s, ctx, with)
}

func withHand(do func(*Stage, context.Context, *hand) error) func(*Stage, context.Context, string) error {
	return func(s *Stage, ctx context.Context, name string) error {
		for _, h := range s.crew {
			if h.name == name {
				return do(s, ctx, h)
			}
		}
		return refuse("There is no worker %q; there are %v.", name, names)
	}
}

// pace is how long a lease lasts and the steps of a reservation take.
type pace struct{ TTL, Card, Write time.Duration }

// speeds are how long things take. The card check outlasts the lease, so that renewal can be seen.
var speeds = map[string]pace{
	"slow":   {TTL: 8 * time.Second, Card: 10 * time.Second, Write: 3 * time.Second},
	"normal": {TTL: 3 * time.Second, Card: 4 * time.Second, Write: time.Second},
	"fast":   {TTL: time.Second, Card: 1200 * time.Millisecond, Write: 300 * time.Millisecond},
}

func (s *Stage) pace() pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return speeds[s.speed]
}

func (s *Stage) setSpeed(_ context.Context, speed string) error {
	pace, ok := speeds[speed]
	if !ok {
		return refuse("There is no speed %q; there are slow, normal and fast.", speed)
	}
	s.change(func() { s.speed = speed })
	s.journal.Add(Record{Kind: Speed, Cause: speed, TTL: pace.TTL.Milliseconds()})
	return nil
}

var people = []string{
	"Ann", "Bob", "Cleo", "Dan", "Ella", "Finn", "Gwen", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Noah", "Olga", "Paul",
}

// eveningOf is the number of a slot, where $2 is the slot of the first evening.
const eveningOf = `1 + (extract(epoch FROM slot - $2) / 86400)::int`

// nextEvening is the first after all that are booked.
func (s *Stage) nextEvening(ctx context.Context) (next int, err error) {
	err = s.DB.QueryRow(ctx, `SELECT coalesce(max(`+eveningOf+`), 0) + 1 FROM bookings WHERE table_id = $1`,
		table, slot(1)).Scan(&next)
	return next, err
}

func (s *Stage) reserve(ctx context.Context, h *hand) error {
	evening, err := s.nextEvening(ctx)
	if err != nil {
		return err
	}
	return s.comes(h, evening)()
}

func (s *Stage) flush(ctx context.Context) error {
	if err := s.Redis.FlushAll(ctx).Err(); err != nil {
		return err
	}
	s.journal.Add(Record{Kind: Flushed})
	return nil
}

func (s *Stage) restartRedis(ctx context.Context) error {
	if !s.redisDown.TryLock() {
		return refuse("Redis is being restarted already.")
	}
	defer s.redisDown.Unlock()
	if err := s.cfg.StopRedis(); err != nil {
		return err
	}
	s.journal.Add(Record{Kind: RedisDown})
	_ = worker.Sleep(s.life, s.pace().TTL/2) // otherwise it is over before it can be seen
	if err := s.cfg.StartRedis(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	s.journal.Add(Record{Kind: RedisUp})
	return nil
}

const lockNotAvailable = "55P03" // SQLSTATE

// protect is what the migrations of the booking service have done already.
const protect = `SELECT fencedb.protect('bookings', resource => $$ 'table:' || table_id $$)`

// The column stays, so that the tokens of the rows can still be looked at.
const unprotect = `SELECT fencedb.unprotect('bookings', keep_columns => true)`

// setFence takes the fence away or puts it back. That needs the table for itself for a moment.
func (s *Stage) setFence(ctx context.Context, on string) error {
	sql, kind := protect, Protected
	if on != "on" {
		sql, kind = unprotect, Unprotected
	}
	_, err := s.DB.Exec(ctx, `SET LOCAL lock_timeout = '2s'; `+sql) // both in one transaction
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == lockNotAvailable {
		return refuse("A write is going on, so Postgres did not hand the table over. Try again.")
	}
	if err != nil {
		return err
	}
	s.change(func() { s.fenced = kind == Protected })
	s.journal.Add(Record{Kind: kind})
	return nil
}

// script is the steps of a scene, for two idle workers and an evening that is free.
type script func(s *Stage, ctx context.Context, a, b *hand, evening int) []func() error

// scene plays in the background, one at a time.
func scene(name string, steps script) func(*Stage, context.Context, string) error {
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
		s.work.Go(func() { s.play(steps) })
		return nil
	}
}

// play takes one step after the other, until one fails.
func (s *Stage) play(steps script) {
	const patience = 20 * time.Second // for everything that does not wait for a TTL or a bank
	pace := s.pace()
	ctx, cancel := context.WithTimeout(s.life, patience+4*(pace.TTL+pace.Card+pace.Write))
	defer cancel()
	a, b, evening, err := s.two(ctx)
	if err == nil {
		for _, step := range steps(s, ctx, a, b, evening) {
			if err = step(); err != nil {
				break
			}
		}
	}
	if err != nil && s.life.Err() == nil {
		s.journal.Add(Record{Kind: SceneFailed, Cause: err.Error()})
	}
	s.change(func() { s.scene = "" })
}

// two are two idle workers, and an evening for both.
func (s *Stage) two(ctx context.Context) (a, b *hand, evening int, err error) {
	s.mu.Lock()
	var idle []*hand
	for _, h := range s.crew {
		if h.shown.Status == Idle {
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

// comes gives a worker the next guest.
func (s *Stage) comes(h *hand, evening int, change ...func(*worker.Request)) func() error {
	return func() error {
		var guest string
		s.change(func() {
			guest = people[s.guests%len(people)]
			s.guests++
		})
		return h.reserve(guest, evening, change...)
	}
}

// held is a request whose write is held.
func held(r *worker.Request) { r.Hold = worker.AtWrite }

// soon is for what a zombie must not sleep through at any speed: package fencedb gives a connection up 2.5
// seconds after the end of its lease, and then the zombie does not send its write.
const soon = 300 * time.Millisecond

func quick(r *worker.Request) { r.Card, r.Write = 2*soon, soon }

// until waits for a condition, which is asked under mu.
func (s *Stage) until(ctx context.Context, condition func() bool) func() error {
	return func() error {
		for {
			s.mu.Lock()
			met, changed := condition(), s.changed
			s.mu.Unlock()
			if met {
				return nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// wait takes some time, so that something is seen.
func (s *Stage) wait(d time.Duration) func() error {
	return func() error { return worker.Sleep(s.life, d) }
}

// race: two guests, one evening, the same moment.
func (s *Stage) race(ctx context.Context, a, b *hand, evening int) []func() error {
	return []func() error{s.comes(a, evening), s.comes(b, evening), s.until(ctx, a.free), s.until(ctx, b.free)}
}

// zombie: the first worker is stopped before its write, for longer than its lease lasts, and
// another books, after it was seen to wait.
func (s *Stage) zombie(ctx context.Context, a, b *hand, evening int) []func() error {
	return []func() error{s.comes(a, evening, held), s.until(ctx, a.atStep(worker.AtWrite)), a.pause, s.wait(s.pace().TTL / 4),
		s.comes(b, evening, quick), s.until(ctx, b.free), s.wait(soon), a.wake, s.until(ctx, a.free)}
}

// crash: the first worker is killed while it holds the lease and another waits.
func (s *Stage) crash(ctx context.Context, a, b *hand, evening int) []func() error {
	return []func() error{s.comes(a, evening), s.until(ctx, a.atStep(worker.AtCard)),
		s.comes(b, evening), s.wait(s.pace().TTL / 2), a.kill, s.until(ctx, b.free)}
}
