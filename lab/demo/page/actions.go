package page

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
)

// Refusal: it cannot be done now, or there is no such thing. Nothing was done; the text says why
// and what to do.
type Refusal string

func (r Refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return Refusal(fmt.Sprintf(format, args...)) }

// Do does what a button says, for a worker of that name or with what else the button is for. It
// returns when that is done.
func (s *Stage) Do(ctx context.Context, action, with string) error {
	if script, ok := scenes[action]; ok {
		return s.play(action, script)
	}
	if do, ok := ofHands[action]; ok {
		return s.press(with, do)
	}
	switch action {
	case "flush":
		if !s.redisBusy.TryLock() {
			return refuse(redisIsBusy)
		}
		defer s.redisBusy.Unlock()
		if err := s.Redis.FlushAll(ctx).Err(); err != nil {
			return err
		}
		s.journal.Add(Record{Kind: Flushed})
		return nil
	case "restart":
		return s.restartRedis(ctx)
	case "fence":
		return s.setFence(ctx, with == "on")
	case "speed":
		return s.setSpeed(with)
	}
	return refuse("There is no action %q.", action)
}

// ofHands are the buttons of a worker.
var ofHands = map[string]func(*hand) error{
	"reserve": (*hand).serve, "pause": (*hand).pause, "wake": (*hand).wake, "kill": (*hand).kill,
}

// press does something to the worker of that name.
func (s *Stage) press(name string, do func(*hand) error) (err error) {
	i := slices.Index(names, name)
	if i < 0 {
		return refuse("There is no worker %q; there are %v.", name, names)
	}
	s.locked(func() { err = do(s.crew[i]) })
	return err
}

// speeds are how long a lease lasts. The steps of a reservation take as much more or less.
var speeds = map[string]time.Duration{"slow": 8 * time.Second, "normal": 3 * time.Second, "fast": time.Second}

// ttl is how long leases last now.
func (s *Stage) ttl() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return speeds[s.speed]
}

func (s *Stage) setSpeed(speed string) error {
	ttl, ok := speeds[speed]
	if !ok {
		return refuse("There is no speed %q; there are slow, normal and fast.", speed)
	}
	s.locked(func() { s.speed = speed })
	s.journal.Add(Record{Kind: Speed, Cause: speed, TTL: ttl.Milliseconds()})
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

const redisIsBusy = "Redis is being restarted or emptied. Wait until that is over."

func (s *Stage) restartRedis(ctx context.Context) error {
	if !s.redisBusy.TryLock() {
		return refuse(redisIsBusy)
	}
	defer s.redisBusy.Unlock()
	if err := s.cfg.StopRedis(); err != nil {
		return err
	}
	s.journal.Add(Record{Kind: RedisDown})
	_ = worker.Sleep(s.life, s.ttl()/2) // otherwise it is over before it can be seen
	if err := s.cfg.StartRedis(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	s.journal.Add(Record{Kind: RedisUp})
	return nil
}

// setFence takes the fence away or puts it back. That needs the table for itself for a moment.
func (s *Stage) setFence(ctx context.Context, on bool) error {
	sql, kind := service.Protect, Protected
	if !on {
		sql, kind = service.Unprotect, Unprotected
	}
	if _, err := s.DB.Exec(ctx, `SET LOCAL lock_timeout = '2s'; `+sql); err != nil { // both in one transaction
		return refuse("Postgres does not hand the table over, perhaps because a write is going on. Try again. (%v)", err)
	}
	changed := false // not by a double click
	s.locked(func() { changed, s.fenced = s.fenced != on, on })
	if changed {
		s.journal.Add(Record{Kind: kind})
	}
	return nil
}

// scene is one that plays: two workers who were idle, and an evening that is free.
type scene struct {
	*Stage
	ctx     context.Context
	a, b    *hand
	evening int
}

// scenes are steps. Each is taken if the one before went well.
var scenes = map[string]func(s *scene, ok func(error) bool) bool{
	// Two guests, one evening, the same moment.
	"race": func(s *scene, ok func(error) bool) bool {
		return ok(s.comes(s.a)) && ok(s.comes(s.b)) && ok(s.until(s.a.free)) && ok(s.until(s.b.free))
	},
	// The first worker is stopped before its write, for longer than its lease lasts, and another
	// books, after it was seen to wait.
	"zombie": func(s *scene, ok func(error) bool) bool {
		return ok(s.comes(s.a, held)) && ok(s.until(s.a.atStep(service.AtWrite))) &&
			ok(s.press(s.a.name, (*hand).pause)) && ok(s.wait(s.ttl()/4)) && ok(s.comes(s.b, quick)) && ok(s.until(s.b.free)) &&
			ok(s.wait(soon)) && ok(s.press(s.a.name, (*hand).wake)) && ok(s.until(s.a.free))
	},
	// The first worker is killed while it holds the lease and another waits.
	"crash": func(s *scene, ok func(error) bool) bool {
		return ok(s.comes(s.a)) && ok(s.until(s.a.atStep(service.AtCard))) && ok(s.comes(s.b)) &&
			ok(s.wait(s.ttl()/2)) && ok(s.press(s.a.name, (*hand).kill)) && ok(s.until(s.b.free))
	},
}

// play plays a scene to its end, one at a time, and also when the page that has asked for it is
// closed.
func (s *Stage) play(name string, script func(*scene, func(error) bool) bool) (err error) {
	const patience = 20 * time.Second // for everything that does not wait for a TTL or a bank
	s.work.Add(1)
	defer s.work.Done()
	var idle []*hand
	err = refuse("One scene at a time: wait until the one that is playing is over.")
	s.locked(func() {
		if s.scene != "" {
			return
		}
		s.scene, err = name, nil
		idle = slices.DeleteFunc(slices.Clone(s.crew), func(h *hand) bool { return h.shown.Status != Idle })
	})
	if err != nil {
		return err
	}
	defer s.locked(func() { s.scene = "" })
	if len(idle) < 2 {
		return refuse("It takes two idle workers. Wait for them, or wake the one that stands still.")
	}
	s.journal.Add(Record{Kind: Scene, Cause: name})
	ctx, cancel := context.WithTimeout(s.life, patience+12*s.ttl())
	defer cancel()
	evening, err := s.nextEvening(ctx)
	if err != nil {
		return err
	}
	script(&scene{s, ctx, idle[0], idle[1], evening}, func(failed error) bool {
		err = failed
		return err == nil
	})
	return err
}

// comes gives a worker the next guest.
func (s *scene) comes(h *hand, change ...func(*service.Request)) error {
	return s.press(h.name, func(h *hand) error { return h.reserve(s.evening, change...) })
}

// held is a request whose write is held.
func held(r *service.Request) { r.Hold = service.AtWrite }

// soon is for what a zombie must not sleep through at any speed: package fencedb gives a connection
// up 2.5 seconds after the end of its lease, and then the zombie does not send its write.
const soon = 300 * time.Millisecond

func quick(r *service.Request) { r.Card, r.Write = 2*soon, soon }

// until waits for a condition, which is asked under mu whenever the journal has news.
func (s *scene) until(condition func() bool) error {
	for {
		more, met := s.journal.After(0).More, false
		s.locked(func() { met = condition() })
		if met {
			return nil
		}
		select {
		case <-more:
		case <-s.ctx.Done():
			return refuse("The scene has no end while a worker stands still. Wake it, and try again.")
		}
	}
}

// wait takes some time, so that something is seen.
func (s *scene) wait(d time.Duration) error { return worker.Sleep(s.ctx, d) }
