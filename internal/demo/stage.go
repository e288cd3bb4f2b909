package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/lease"
)

// config is what the stories need. They tell what fencedb is for on two real processes.
//
// A story is a script: requests to two workers of package worker, signals to their processes, and
// between them what Redis and Postgres hold. Whether it ended as promised is decided by asking both
// servers; the workers' own word is only shown.
type config struct {
	PostgresURL string // an empty database
	RedisURL    string
	Namespace   string // of all leases; its keys are removed at the end
	TTL         time.Duration
	Notes       []string // where the servers come from, to be shown
	Out         io.Writer
	Colour      bool

	// Unprotected takes the fence away. The zombie then wins, and tellStories must say so.
	Unprotected bool
}

// errBroken: a story did not end as promised.
var errBroken = errors.New("a promise was broken")

// tellStories tells all stories. It returns nil if each ended as promised, errBroken if one did not, and
// another error if they could not be told. Cancelling ctx ends it at once. Either way the workers
// have ended when it returns.
func tellStories(ctx context.Context, cfg config) error {
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
			return errBroken
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

// tell plays one story. A worker that a broken story has left behind in the middle of something is
// replaced.
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
	s.dismiss()
	return v, s.hireBoth(ctx)
}

// stage is what all stories play on.
type stage struct {
	config
	*worker.View
	out     *printer
	a, b    *worker.Worker
	holders map[uuid.UUID]string // lease id: the name of the worker that was granted it
}

func setStage(ctx context.Context, cfg config) (_ *stage, err error) {
	s := &stage{config: cfg, out: newPrinter(cfg.Out, cfg.Colour), holders: map[uuid.UUID]string{}}
	defer func() {
		if err != nil {
			s.clear()
		}
	}()
	if s.View, err = worker.Open(ctx, s.called("stories")); err != nil {
		return nil, err
	}
	if _, err := s.DB.Exec(ctx, `CREATE TABLE `+plainTable+` (LIKE bookings INCLUDING ALL)`); err != nil {
		return nil, err
	}
	if s.Unprotected {
		if _, err := s.DB.Exec(ctx, `SELECT fencedb.unprotect('bookings', keep_columns => true)`); err != nil { // look reads them
			return nil, err
		}
	}
	return s, s.hireBoth(ctx)
}

// The table of the control: the same columns, but nothing protects it.
const plainTable = "unprotected_bookings"

func (s *stage) called(name string) worker.Config {
	return worker.Config{Name: name, PostgresURL: s.PostgresURL, RedisURL: s.RedisURL, Namespace: s.Namespace}
}

func (s *stage) hireBoth(ctx context.Context) (err error) {
	if s.a, err = worker.StartBooking(ctx, s.called("A")); err != nil {
		return err
	}
	s.b, err = worker.StartBooking(ctx, s.called("B"))
	return err
}

// dismiss ends the workers there are.
func (s *stage) dismiss() {
	for _, w := range []*worker.Worker{s.a, s.b} {
		if w != nil {
			w.Kill()
		}
	}
	s.a, s.b = nil, nil
}

// clear leaves nothing behind: no process, and no key on a Redis that is not ours alone. A key that
// it cannot remove expires.
func (s *stage) clear() {
	s.dismiss()
	if s.View == nil {
		return
	}
	defer s.View.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // the other one may have been cancelled
	defer cancel()
	for _, st := range stories {
		for _, field := range []string{"owner", "fence"} {
			key := lease.Key{Namespace: s.Namespace, Resource: booking.Resource(st.table), Field: field}
			s.Redis.Unlink(ctx, key.String())
		}
	}
}

// scene is one story being played. After the first error its methods do nothing, so that a story
// reads as a script; the error is looked at when the story is over.
type scene struct {
	*stage
	ctx    context.Context
	story  story
	plain  string // the table that the workers write to without a fence, "" if they use one
	began  time.Time
	before state // as last shown
	broken []string
	err    error
}

// evening is the slot that everybody wants.
var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

// request is a reservation of the story's table for the whole table.
func (s *scene) request(guest string) worker.Request {
	return worker.Request{
		Booking: booking.Booking{Table: s.story.table, Slot: evening, Guest: guest, Party: 4},
		TTL:     s.TTL,
		Plain:   s.plain,
	}
}

func (s *scene) do(f func() error) {
	if s.err == nil {
		s.err = f()
	}
}

func (s *scene) reserve(w *worker.Worker, r worker.Request) {
	s.do(func() error { return w.Reserve(r) })
}

// held is the same request, to wait somewhere on its way.
func (s *scene) held(guest string, at worker.Point) worker.Request {
	r := s.request(guest)
	r.Hold = at
	return r
}

func (s *scene) goOn(w *worker.Worker) { s.do(w.Go) }

// progress is how far a request has come: it is held somewhere, or done.
type progress struct {
	lease worker.Lease // zero if none was granted since the last time
	held  worker.Point
	done  worker.Result
}

// settle waits until the request is held or done.
func (s *scene) settle(w *worker.Worker) progress {
	var p progress
	s.do(func() error {
		for {
			e, err := w.Next(s.ctx)
			switch {
			case err != nil:
				return err
			case e.Lease != nil:
				p.lease = *e.Lease
				s.holders[p.lease.ID] = w.Name
			case e.Held:
				p.held = e.At
				return nil
			case e.Done != nil:
				p.done = *e.Done
				return nil
			}
		}
	})
	return p
}

// untilHeld waits until the request is held, and returns the lease it has.
func (s *scene) untilHeld(w *worker.Worker) worker.Lease {
	p := s.settle(w)
	s.do(func() error {
		if p.held == worker.Nowhere {
			return fmt.Errorf("worker %s was to wait, and is done: %s %s", w.Name, p.done.Outcome, p.done.Error)
		}
		return nil
	})
	return p.lease
}

// untilDone waits until the request has ended.
func (s *scene) untilDone(w *worker.Worker) (worker.Result, worker.Lease) {
	p := s.settle(w)
	s.do(func() error {
		if p.held != worker.Nowhere {
			return fmt.Errorf("worker %s was to be done, and waits at its %s", w.Name, p.held)
		}
		return nil
	})
	return p.done, p.lease
}

// untilFree waits until Redis has dropped the owner key.
func (s *scene) untilFree() {
	s.do(func() error {
		poll := time.NewTicker(5 * time.Millisecond)
		defer poll.Stop()
		for {
			found, err := s.Leases.Inspect(s.ctx, booking.Resource(s.story.table))
			if err != nil || found.Holder == uuid.Nil {
				return err
			}
			select {
			case <-poll.C:
			case <-s.ctx.Done():
				return fmt.Errorf("waiting for the lease to run out: %w", context.Cause(s.ctx))
			}
		}
	})
}

// look asks both servers.
func (s *scene) look() (st state) {
	s.do(func() (err error) {
		resource := booking.Resource(s.story.table)
		if st.Inspection, err = s.Leases.Inspect(s.ctx, resource); err != nil {
			return fmt.Errorf("ask Redis: %w", err)
		}
		err = s.DB.QueryRow(s.ctx, `SELECT coalesce(fencedb.last_token($1), 0)`, resource).Scan(&st.fence)
		if err == nil {
			relation := pgx.Identifier{cmp.Or(s.plain, "bookings")}.Sanitize()
			rows, _ := s.DB.Query(s.ctx, `SELECT guest, last_fencing_token FROM `+relation+` WHERE table_id = $1 ORDER BY slot`, s.story.table)
			st.bookings, err = pgx.CollectRows(rows, pgx.RowToStructByPos[written])
		}
		if err != nil {
			return fmt.Errorf("ask Postgres: %w", err)
		}
		return nil
	})
	return st
}

// say tells what has just happened, with what both servers hold now, and returns that.
func (s *scene) say(format string, args ...any) state {
	at := time.Since(s.began)
	st := s.look()
	if s.err == nil {
		s.out.step(at, fmt.Sprintf(format, args...), s.row(s.before), s.row(st))
		s.before = st
	}
	return st
}

// check notes what is not as promised.
func (s *scene) check(ok bool, format string, args ...any) {
	if s.err == nil && !ok {
		s.broken = append(s.broken, fmt.Sprintf(format, args...))
	}
}

// row is how a state is shown.
func (s *scene) row(st state) row {
	number := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprint(n)
	}
	r := row{"-", "-", number(st.LastToken), number(st.fence), cmp.Or(st.guests(), "-")}
	if st.held() {
		r.owner, r.ttl = cmp.Or(s.holders[st.Holder], "?"), seconds(st.ExpiresIn) // a holder that never told us is unknown
	}
	return r
}

// state is what both servers hold about one table of the restaurant.
type state struct {
	lease.Inspection           // by Redis
	fence            int64     // in Postgres: the highest token that has entered, 0 if none
	bookings         []written // in Postgres, of the evening
}

// written is a row of the bookings table.
type written struct {
	Guest string
	Token int64 // with which it was written
}

func (st state) held() bool { return st.Holder != uuid.Nil }

func (st state) guests() string {
	var names []string
	for _, w := range st.bookings {
		names = append(names, w.Guest)
	}
	return strings.Join(names, ", ")
}
