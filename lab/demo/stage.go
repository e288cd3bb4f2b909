package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
	"github.com/fencedb/fencedb/lease"
)

// config is what the stories need. They tell what fencedb is for on two real processes.
//
// A story is a script: requests to two workers of package worker, signals to their processes, and
// between them what Redis and Postgres hold. Whether it ended as promised is decided by asking both
// servers; the workers' own word is only shown.
type config struct {
	TTL time.Duration

	// Unprotected takes the fence away. The zombie then wins, and tellStories must say so.
	Unprotected bool
}

// tellStories tells all stories. It returns nil if each ended as promised. Cancelling ctx ends it
// at once. Either way the workers have ended when it returns.
func tellStories(ctx context.Context, cfg config, env *testenv.Env) error {
	started := time.Now()
	// The namespace keeps the leases apart on a Redis that others use too.
	servers := service.Servers{PostgresURL: env.PostgresURL, RedisURL: env.RedisURL, Namespace: "demo_" + rand.Text()}
	view, err := servers.Connect(ctx, "stories", cfg.TTL)
	if err != nil {
		return err
	}
	defer view.Close()
	if err = view.Migrate(ctx, booking.Migrate); err == nil && cfg.Unprotected {
		_, err = view.DB.Exec(ctx, service.Unprotect)
	}
	if err != nil {
		return err
	}

	colour := term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == "" // https://no-color.org
	out := &printer{os.Stdout, colour}
	out.opening(cfg, env.Notes)
	var verdicts []verdict
	for i, st := range stories {
		out.intro(i+1, st)
		sc := &scene{config: cfg, View: view, out: out, story: st}
		if err := sc.play(ctx); err != nil {
			return err
		}
		out.verdict(st, sc.verdict)
		verdicts = append(verdicts, sc.verdict)
	}
	if !out.summary(verdicts, time.Since(started)) {
		return errors.New("a promise was broken")
	}
	return nil
}

// story is one of them.
type story struct {
	title   string
	intro   string
	promise string
	table   int
	script  func(*scene) (seen string)
}

var stories = []story{race, stolen, crash, zombie, control}

// verdict is how a story ended.
type verdict struct {
	seen   string
	broken []string // what was not as promised
}

func (v verdict) kept() bool { return len(v.broken) == 0 }

// scene is one story being played, with two workers of its own. The first error ends it, so that a
// story reads as a script.
type scene struct {
	config
	*service.View
	ctx    context.Context
	out    *printer
	story  story
	a, b   *service.Worker
	plain  bool // the workers write without a fence
	began  time.Time
	before state // as last shown
	verdict
}

// failure is what must panics with.
type failure struct{ error }

// must ends the story if there is an error.
func (s *scene) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// play plays the story to its end, or until it must stop. An error says that it was interrupted.
func (s *scene) play(ctx context.Context) error {
	const patience = 10 * time.Second // for everything that is not waiting for a TTL
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(ctx, patience+3*s.TTL)
	defer cancel()
	var crew []*service.Worker
	for _, name := range []string{"A", "B"} {
		w, err := service.Start(s.ctx, service.Config{Servers: s.Servers, Name: name})
		if err != nil {
			return err
		}
		defer w.Kill()
		crew = append(crew, w)
	}
	s.a, s.b, s.began = crew[0], crew[1], time.Now()
	s.perform()
	return context.Cause(ctx)
}

func (s *scene) perform() {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			s.check(false, "the story stopped: %v", f.error)
		default:
			panic(f)
		}
	}()
	s.seen = s.story.script(s)
}

// evening is the slot that everybody wants.
var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

// reserve orders a reservation of the story's table for the whole table, which is held at a point
// or runs through.
func (s *scene) reserve(w *service.Worker, guest string, hold service.Point, change ...func(*service.Request)) {
	r := service.Request{
		Booking: booking.Booking{Table: s.story.table, Slot: evening, Guest: guest, Party: 4},
		TTL:     s.TTL, Plain: s.plain, Hold: hold,
	}
	for _, f := range change {
		f(&r)
	}
	s.must(w.Reserve(r))
}

// settle waits until the request is held or done.
func (s *scene) settle(w *service.Worker) service.Event {
	for {
		e, err := w.Next(s.ctx)
		s.must(err)
		if e.Held || e.Done != nil {
			return e
		}
	}
}

// untilHeld waits until the request is held.
func (s *scene) untilHeld(w *service.Worker) {
	if e := s.settle(w); !e.Held {
		s.must(fmt.Errorf("worker %s was to wait, and is done: %s %s", w.Name, e.Done.Outcome, e.Done.Error))
	}
}

// untilDone waits until the request has ended, and checks how.
func (s *scene) untilDone(w *service.Worker, guest string, as service.Outcome) service.Result {
	e := s.settle(w)
	if e.Held {
		s.must(fmt.Errorf("worker %s was to be done, and waits at its %s", w.Name, e.At))
	}
	s.check(e.Done.Outcome == as, "%s was to be answered %q, and got %q: %s", guest, as, e.Done.Outcome, e.Done.Error)
	return *e.Done
}

// asks has a guest ask and be answered.
func (s *scene) asks(w *service.Worker, guest string, as service.Outcome) service.Result {
	s.reserve(w, guest, "")
	return s.untilDone(w, guest, as)
}

// untilFree waits until Redis has dropped the owner key.
func (s *scene) untilFree() {
	for s.look().held() {
		s.must(worker.Sleep(s.ctx, 5*time.Millisecond))
	}
}

// look asks both servers.
func (s *scene) look() (st state) {
	resource := booking.Resource(s.story.table)
	var err error
	st.Inspection, st.ends, err = s.Holding(s.ctx, resource)
	s.must(err)
	s.must(s.DB.QueryRow(s.ctx, `
		SELECT coalesce(fencedb.last_token($1), 0), coalesce(string_agg(guest, ', '), ''),
			coalesce(max(last_fencing_token), 0)
		FROM bookings WHERE table_id = $2`, resource, s.story.table).Scan(&st.fence, &st.guests, &st.wrote))
	return st
}

// say tells what has just happened, with what both servers hold now, and returns that.
func (s *scene) say(format string, args ...any) state {
	at := time.Since(s.began)
	st := s.look()
	s.out.step(at, fmt.Sprintf(format, args...), s.row(s.before), s.row(st))
	s.before = st
	return st
}

// check notes what is not as promised.
func (s *scene) check(ok bool, format string, args ...any) {
	if !ok {
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
	r := row{"-", "-", number(st.LastToken), number(st.fence), cmp.Or(st.guests, "-")}
	if st.held() {
		r[0], r[1] = s.owner(st), seconds(st.ExpiresIn)
	}
	return r
}

// owner is the worker that holds the lease, whose label ends in its pid.
func (s *scene) owner(st state) string {
	for _, w := range []*service.Worker{s.a, s.b} {
		if strings.HasSuffix(st.Label, fmt.Sprintf(":%d", w.PID())) {
			return w.Name
		}
	}
	return "?"
}

// state is what both servers hold about one table of the restaurant.
type state struct {
	lease.Inspection               // by Redis
	ends             time.Duration // of the lease by Redis's clock, since 1970
	fence            int64         // in Postgres: the highest token that has entered, 0 if none
	guests           string        // in Postgres: who has booked the table
	wrote            int64         // in Postgres: the highest token with which that was written
}

func (st state) held() bool { return st.Token != 0 }
