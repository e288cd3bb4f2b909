package page

import (
	"context"
	"errors"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/observe/feed"
)

// hand is one of the crew: a place that is filled with one process after the other.
type hand struct {
	stage *Stage
	name  string

	// Guarded by stage.mu.
	shown   Worker
	process *worker.Worker // nil while nobody is there
	step    worker.Point   // of the reservation
	plain   bool           // it is the control of the experiment: the same work, protected by nothing but the lock
}

// start starts a process and listens to it.
func (h *hand) start(ctx context.Context) error {
	s := h.stage
	p, err := worker.StartBooking(ctx, worker.Config{Servers: s.cfg.Servers, Name: h.name, Feed: true})
	if err != nil {
		return err
	}
	s.journal.Add(Record{Kind: Started, Worker: h.name, PID: p.PID()})
	s.change(func() { h.process, h.shown = p, Worker{Name: h.name, PID: p.PID(), Status: Idle} })
	s.work.Go(func() { h.listen(p) })
	return nil
}

// gone is called under stage.mu.
func (h *hand) gone() { h.process, h.step, h.shown = nil, "", Worker{Name: h.name, Status: Dead} }

// lag is how long what a worker says on stdout is kept back, so that what it published just before,
// which goes through Redis, is in the journal first.
const lag = 60 * time.Millisecond

var reached = map[worker.Point]Kind{worker.AtCard: Card, worker.AtWrite: Writing}

// listen hears a process to its end, and then sees to it that there is another one. At the end of the stage it ends
// the process, also one that was being started when that came.
func (h *hand) listen(p *worker.Worker) {
	s := h.stage
	defer context.AfterFunc(s.life, p.Abort)()
	for e := range p.Events() {
		_ = worker.Sleep(s.life, lag)
		switch {
		case e.Done != nil:
			h.done(e.Done.Outcome)
		case e.At != "":
			s.journal.Add(Record{Kind: reached[e.At], Worker: h.name})
			s.change(func() { h.step = e.At })
		}
	}
	p.Kill() // it has ended, however that came; this leaves nothing of it
	s.change(func() {
		if h.process == p {
			h.gone()
		}
	})
	rest := s.pace().TTL + time.Second // a supervisor takes a while too
	for worker.Sleep(s.life, rest) == nil && h.start(s.life) != nil {
		rest = time.Second
	}
}

func (h *hand) done(outcome worker.Outcome) {
	j := h.stage.journal
	h.stage.change(func() {
		if h.plain && outcome == worker.Booked { // no tracer hears of these
			j.Add(Record{Kind: Wrote, Worker: h.name})
		}
		if h.plain && outcome == worker.NoToken {
			j.Add(Record{Kind: feed.Failed, Worker: h.name, Cause: "no_token"})
		}
		j.Add(Record{Kind: Told, Worker: h.name, Cause: string(outcome)})
		h.step, h.shown.Guest, h.shown.Evening = "", "", 0
		if h.shown.Status == Busy {
			h.shown.Status = Idle
		}
	})
}

// free is asked under stage.mu.
func (h *hand) free() bool { return h.shown.Guest == "" }

// atStep is true at the step, and also when the worker has gone past it or is gone; what comes next
// will notice.
func (h *hand) atStep(step worker.Point) func() bool {
	return func() bool { return h.step == step || h.free() }
}

// serve gives an idle worker a guest for the next evening that is free.
func (h *hand) serve() error {
	evening, err := h.stage.nextEvening(h.stage.life)
	if err != nil {
		return err
	}
	return h.reserve(evening)
}

// reserve gives an idle worker the next guest.
func (h *hand) reserve(evening int, change ...func(*worker.Request)) error {
	const patience = 20 // for how many TTLs a guest waits for the lease
	s, pace := h.stage, h.stage.pace()
	r := worker.Request{
		Booking: booking.Booking{Table: table, Slot: slot(evening), Party: 2},
		TTL:     pace.TTL, Wait: patience * pace.TTL, Card: pace.Card, Write: pace.Write,
	}
	for _, f := range change {
		f(&r)
	}
	var p *worker.Worker
	s.change(func() {
		if h.shown.Status == Idle {
			p, h.plain, r.Plain, r.Guest = h.process, !s.fenced, !s.fenced, people[s.guests%len(people)]
			h.shown.Status, h.shown.Guest, h.shown.Evening = Busy, r.Guest, evening
			s.guests++
		}
	})
	if p == nil {
		return refuse("%s is not idle. Wait for it, or wake it if it stands still.", h.name)
	}
	s.journal.Add(Record{Kind: Asked, Worker: h.name, Guest: r.Guest, Evening: evening})
	return p.Reserve(r)
}

// pause stops the process with SIGSTOP.
func (h *hand) pause() error {
	p, asleep := h.running()
	switch {
	case p == nil:
		return refuse("%s is not there. It is started again in a moment.", h.name)
	case asleep:
		return refuse("%s stands still already. Wake it.", h.name)
	}
	if err := p.Stop(); err != nil {
		return err
	}
	h.now(p, Paused, func() { h.shown.Status = Asleep })
	return nil
}

// wake lets it go on.
func (h *hand) wake() error {
	p, asleep := h.running()
	if !asleep {
		return refuse("%s does not stand still. Pause it first.", h.name)
	}
	h.now(p, Woken, func() {
		h.shown.Status = Busy
		if h.free() {
			h.shown.Status = Idle
		}
	})
	return errors.Join(p.Go(), p.Continue()) // Go is for a write that is held, and is not minded otherwise
}

// kill ends the process with SIGKILL.
func (h *hand) kill() error {
	var p *worker.Worker
	h.stage.change(func() {
		p = h.process
		h.gone()
	})
	if p == nil {
		return refuse("%s is not there. It is started again in a moment.", h.name)
	}
	h.stage.journal.Add(Record{Kind: Killed, Worker: h.name, PID: p.PID()})
	p.Abort()
	return nil
}

func (h *hand) running() (p *worker.Worker, asleep bool) {
	h.stage.mu.Lock()
	defer h.stage.mu.Unlock()
	return h.process, h.shown.Status == Asleep
}

// now notes what was done to a process, unless it has gone meanwhile.
func (h *hand) now(p *worker.Worker, kind Kind, then func()) {
	h.stage.journal.Add(Record{Kind: kind, Worker: h.name, PID: p.PID()})
	h.stage.change(func() {
		if h.process == p {
			then()
		}
	})
}
