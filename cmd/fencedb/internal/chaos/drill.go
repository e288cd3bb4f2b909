package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

// Drilled is what a drill has shown.
type Drilled struct {
	Run     string   `json:"run"`
	TTL     Span     `json:"ttl_ms"`
	Stories []Story  `json:"stories"`
	Left    []string `json:"left"`
}

// Story is how a story ended.
type Story struct {
	Title   string   `json:"title"`
	Promise string   `json:"promise"`
	Seen    string   `json:"seen"`
	Broken  []string `json:"broken"` // what was not as promised
}

// Broken are the titles of the stories that did not end as promised.
func (d *Drilled) Broken() (titles []string) {
	for _, s := range d.Stories {
		if len(s.Broken) > 0 {
			titles = append(titles, s.Title)
		}
	}
	return titles
}

// Drill tells stories on the servers. Two clerks compete for a table; one of them loses its
// connection, is killed, or is stopped past its lease and writes late; and the late write lands
// where there is no fence. Whether a story ended as promised is decided by asking both servers. It
// takes everything off the servers again. Of the settings it uses the addresses, Open, TTL, Log,
// Colour and Control: with one that leaves the tables unprotected the zombie must win. An error
// means that a story could not be carried out.
func Drill(ctx context.Context, c Config) (result *Drilled, err error) {
	c.complete()
	result = &Drilled{TTL: Span(c.TTL)}
	result.Left, err = c.perform(ctx, "drill", func(ctx context.Context, s *stage) error {
		result.Run = s.Run
		return s.drill(ctx, result)
	})
	return result, err
}

const drillTables = `
	CREATE TABLE stage.bookings (resource text PRIMARY KEY, guest text NOT NULL);
	CREATE TABLE stage.unfenced (LIKE stage.bookings INCLUDING ALL);`

func (s *stage) drill(ctx context.Context, result *Drilled) error {
	began := time.Now()
	issuer, err := s.issuer()
	if err != nil {
		return err
	}
	defer issuer.Close(ctx)
	for _, st := range stories {
		s.tables = append(s.tables, s.resource(st.table))
	}
	if _, err := s.pool.Exec(ctx, s.in(drillTables), pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if !ways[s.Control].open {
		if _, err := s.pool.Exec(ctx, s.in(`SELECT fencedb.protect('stage.bookings', resource => '{resource}')`)); err != nil {
			return err
		}
	}
	out := &printer{s, s.Colour}
	out.opening(s.Config)
	for n, st := range stories {
		out.intro(n+1, st)
		sc := &scene{
			stage: s, issuer: issuer, out: out, story: st, table: s.resource(st.table), plain: ways[s.Control].open,
			result: Story{Title: st.title, Promise: st.promise, Broken: []string{}},
		}
		if err := sc.play(ctx, n); err != nil {
			return fmt.Errorf("story %d, %s, could not be carried out: %w", n+1, st.title, cmp.Or(context.Cause(ctx), err))
		}
		out.verdict(sc.result)
		result.Stories = append(result.Stories, sc.result)
	}
	out.summary(result.Stories, time.Since(began))
	return nil
}

func (s *stage) issuer() (*lease.Issuer, error) {
	return lease.New(s.client, lease.Config{TTL: s.TTL, Namespace: s.Run})
}

// story is a script: orders to two clerks, signals to their processes, and between them what Redis
// and Postgres hold.
type story struct {
	title   string
	intro   string
	promise string
	table   string
	script  func(*scene) (seen string)
}

// scene is one story being played, with two clerks of its own. The first error ends it, so that a
// story reads as a script.
type scene struct {
	*stage
	ctx    context.Context
	issuer *lease.Issuer // that looks
	out    *printer
	story  story
	table  string // the resource
	a, b   *hand
	plain  bool // the clerks write without a fence
	began  time.Time
	before state // as last shown
	result Story
}

// hand is a clerk, seen from outside.
type hand struct {
	*worker.Process[answer]
	name    string
	network *faulty.Network // between it and Redis
}

// stop is what ends a story early: a promise that was broken, or an error that says nothing of
// promises.
type stop struct {
	error
	broken bool
}

// must ends the story if there is an error.
func (s *scene) must(err error) {
	if err != nil {
		panic(stop{err, false})
	}
}

// check notes what is not as promised.
func (s *scene) check(ok bool, format string, args ...any) {
	if !ok {
		s.result.Broken = append(s.result.Broken, fmt.Sprintf(format, args...))
	}
}

// play plays the story to its end, or until it must stop.
func (s *scene) play(ctx context.Context, number int) (err error) {
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(ctx, time.Minute+10*s.TTL)
	defer cancel()
	for n, h := range []**hand{&s.a, &s.b} {
		if *h, err = s.hire(n, filepath.Join(s.dir, fmt.Sprint(number, "-", n))); err != nil {
			return err
		}
		defer (*h).dismiss()
	}
	s.began = time.Now()
	defer func() {
		switch f := recover().(type) {
		case nil:
		case stop:
			if err = f.error; f.broken {
				s.check(false, "the story stopped: %v", f.error)
				err = nil
			}
		default:
			panic(f)
		}
	}()
	s.result.Seen = s.story.script(s)
	return nil
}

func (s *scene) hire(n int, socket string) (*hand, error) {
	network, err := faulty.NewNetwork(socket)
	if err != nil {
		return nil, err
	}
	t := s.task
	t.Process, t.ToRedis = n, socket
	p, err := worker.Start[answer](s.ctx, clerkKind, t)
	if err != nil {
		return nil, errors.Join(err, network.Close())
	}
	return &hand{p, t.name(), network}, nil
}

func (h *hand) dismiss() {
	h.Kill()
	_ = h.network.Close()
}

// tell gives a clerk an order and does not wait for the answer.
func (s *scene) tell(h *hand, o order) {
	o.Table, o.Plain = s.table, s.plain
	s.must(h.Order(o))
}

// hear waits for the answer to an order.
func (s *scene) hear(h *hand) answer {
	a, err := h.Next(s.ctx)
	s.must(err)
	return a
}

// want ends the story unless an order has ended so.
func (s *scene) want(h *hand, a answer, as outcome) answer {
	if a.Outcome != as {
		panic(stop{fmt.Errorf("%s was to be answered %q, and got %v", h.name, as, a), true})
	}
	return a
}

// does has a clerk carry out an order, which must end so.
func (s *scene) does(h *hand, o order, as outcome) answer {
	s.tell(h, o)
	return s.want(h, s.hear(h), as)
}

// reserve has a clerk book the table, from the lease to its release.
func (s *scene) reserve(h *hand, guest string) {
	s.does(h, order{Do: toAcquire, Guest: guest}, succeeded)
	s.finish(h, guest)
}

// finish has a clerk that holds the lease book the table and give the lease back.
func (s *scene) finish(h *hand, guest string) {
	s.does(h, order{Do: toBook, Guest: guest}, succeeded)
	s.does(h, order{Do: toRelease}, succeeded)
}

// untilFree waits until Redis has dropped the owner key.
func (s *scene) untilFree() {
	for s.look().held() {
		s.must(worker.Sleep(s.ctx, 5*time.Millisecond))
	}
}

// state is what both servers hold about a table of the restaurant.
type state struct {
	lease.Inspection        // by Redis
	fence            int64  // in Postgres: the highest token that has entered, 0 if none
	guest            string // in Postgres: who has booked the table
	wrote            int64  // in Postgres: the token with which that was written, 0 if none
}

func (st state) held() bool { return st.Token != 0 }

// look asks both servers.
func (s *scene) look() (st state) {
	var err error
	st.Inspection, err = s.issuer.Inspect(s.ctx, s.table)
	s.must(err)
	s.must(s.pool.QueryRow(s.ctx, s.in(`
		SELECT coalesce(fencedb.last_token($1), 0), coalesce(max(guest), ''), coalesce(max((to_jsonb(b) ->> 'last_fencing_token')::bigint), 0)
		FROM stage.`+order{Plain: s.plain}.table()+` b WHERE resource = $1`), s.table).Scan(&st.fence, &st.guest, &st.wrote))
	return st
}

// say tells what has just happened, with what both servers hold now, and returns that.
func (s *scene) say(format string, args ...any) state {
	at := time.Since(s.began)
	st := s.look()
	s.out.step(at, fmt.Sprintf(format, args...), s.before.row(), st.row())
	s.before = st
	return st
}

// row is how a state is shown.
func (st state) row() row {
	number := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprint(n)
	}
	r := row{"-", "-", number(st.LastToken), number(st.fence), cmp.Or(st.guest, "-")}
	if st.held() {
		r[0], r[1] = st.Label, seconds(st.ExpiresIn)
	}
	return r
}
