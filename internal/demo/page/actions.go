package page

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

// guest is the next one who comes.
func (s *Stage) guest() (name string) {
	s.change(func() {
		name = people[s.guests%len(people)]
		s.guests++
	})
	return name
}

// eveningOf is the number of a slot, where $2 is the slot of the first evening.
const eveningOf = `1 + (extract(epoch FROM slot - $2) / 86400)::int`

// nextEvening is the first after all that are booked.
func (s *Stage) nextEvening(ctx context.Context) (next int, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce(max(`+eveningOf+`), 0) + 1 FROM bookings WHERE table_id = $1`,
		table, slot(1)).Scan(&next)
	return next, err
}

func (s *Stage) reserve(ctx context.Context, h *hand) error {
	evening, err := s.nextEvening(ctx)
	if err != nil {
		return err
	}
	return h.reserve(s.guest(), evening, false)
}

func (s *Stage) flush(ctx context.Context) error {
	if err := s.redis.FlushAll(ctx).Err(); err != nil {
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
	s.rest(s.pace().TTL / 2) // otherwise it is over before it can be seen
	if err := s.cfg.StartRedis(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	s.journal.Add(Record{Kind: RedisUp})
	return nil
}

const lockNotAvailable = "55P03" // SQLSTATE

// setFence takes the fence away or puts it back. That needs the table for itself for a moment.
func (s *Stage) setFence(ctx context.Context, on string) error {
	sql, kind := protect, Protected
	if on != "on" {
		sql, kind = unprotect, Unprotected
	}
	_, err := s.db.Exec(ctx, `SET LOCAL lock_timeout = '2s'; `+sql) // both in one transaction
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
