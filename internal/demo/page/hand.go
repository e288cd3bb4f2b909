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
	process *worker.Worker // nil while nobody is there
	job     *job
	step    worker.Point // of job
	paused  bool
}

// job is a guest who wants the table for an evening.
type job struct {
	guest   string
	evening int
	fenced  bool // false for the control of the experiment: the same work, protected by nothing but the lock
}

// start starts a process and listens to it.
func (h *hand) start(ctx context.Context) error {
	s := h.stage
	p, err := worker.StartBooking(ctx, s.called(h.name))
	if err != nil {
		return err
	}
	s.journal.Add(Record{Kind: Started, Worker: h.name, PID: p.PID()})
	s.change(func() { h.process, h.job, h.step, h.paused = p, nil, "", false })
	s.work.Go(func() { h.listen(p) })
	return nil
}

// lag is how long what a worker says on stdout is kept back, so that what it published just before,
// which goes through Redis, is in the journal first.
const lag = 60 * time.Millisecond

// listen returns when the process has ended, and then sees to it that there is another one.
func (h *hand) listen(p *worker.Worker) {
	for e := range p.Events() {
		h.stage.rest(lag)
		switch {
		case e.Done != nil:
			h.done(*e.Done)
		case e.At != worker.Nowhere:
			h.reached(e.At)
		}
	}
	h.stage.change(func() {
		if h.process == p {
			h.process, h.job, h.step, h.paused = nil, nil, "", false
		}
	})
	h.stage.rest(h.stage.pace().TTL + time.Second) // a supervisor takes a while too
	for h.stage.life.Err() == nil && h.start(h.stage.life) != nil {
		h.stage.rest(time.Second)
	}
}

// rest waits, or until the end.
func (s *Stage) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.life.Done():
	}
}

func (h *hand) reached(step worker.Point) {
	kind := Card
	if step == worker.AtWrite {
		kind = Writing
	}
	h.stage.journal.Add(Record{Kind: kind, Worker: h.name})
	h.stage.change(func() { h.step = step })
}

func (h *hand) done(result worker.Result) {
	j := h.stage.journal
	h.stage.mu.Lock()
	job := h.job
	h.stage.mu.Unlock()
	if job != nil && !job.fenced { // no tracer hears of these
		switch result.Outcome {
		case worker.Booked:
			j.Add(Record{Kind: Wrote, Worker: h.name})
		case worker.NoToken:
			j.Add(Record{Kind: feed.Failed, Worker: h.name, Cause: "no_token"})
		}
	}
	j.Add(Record{Kind: Told, Worker: h.name, Cause: string(result.Outcome)})
	h.stage.change(func() { h.job, h.step = nil, "" })
}

// idle is asked under stage.mu.
func (h *hand) idle() bool { return h.process != nil && h.job == nil && !h.paused }

// status is asked under stage.mu.
func (h *hand) status() Worker {
	w := Worker{Name: h.name, Status: Idle}
	switch {
	case h.process == nil:
		w.Status = Dead
		return w
	case h.paused:
		w.Status = Asleep
	case h.job != nil:
		w.Status = Busy
	}
	w.PID = h.process.PID()
	if h.job != nil {
		w.Guest, w.Evening = h.job.guest, h.job.evening
	}
	return w
}

// reserve gives an idle worker a guest.
func (h *hand) reserve(guest string, evening int, change ...func(*worker.Request)) error {
	const patience = 20 // for how many TTLs a guest waits for the lease
	s, pace := h.stage, h.stage.pace()
	r := worker.Request{
		Booking: booking.Booking{Table: table, Slot: slot(evening), Guest: guest, Party: 2},
		TTL:     pace.TTL, Wait: patience * pace.TTL, Card: pace.Card, Write: pace.Write,
	}
	for _, f := range change {
		f(&r)
	}
	var p *worker.Worker
	s.change(func() {
		if h.idle() {
			p, h.job, h.step = h.process, &job{guest, evening, s.fenced}, ""
			if !s.fenced {
				r.Plain = "bookings"
			}
		}
	})
	if p == nil {
		return refuse("%s is not idle. Wait for it, or wake it if it stands still.", h.name)
	}
	s.journal.Add(Record{Kind: Asked, Worker: h.name, Guest: guest, Evening: evening})
	return p.Reserve(r)
}

// pause stops the process with SIGSTOP.
func (h *hand) pause() error {
	p, paused := h.running()
	switch {
	case p == nil:
		return refuse("%s is not there. It is started again in a moment.", h.name)
	case paused:
		return refuse("%s stands still already. Wake it.", h.name)
	}
	if err := p.Stop(); err != nil {
		return err
	}
	h.stage.journal.Add(Record{Kind: Paused, Worker: h.name, PID: p.PID()})
	h.stage.change(func() { h.paused = true })
	return nil
}

// wake lets it go on.
func (h *hand) wake() error {
	p, paused := h.running()
	if p == nil || !paused {
		return refuse("%s does not stand still. Pause it first.", h.name)
	}
	h.stage.journal.Add(Record{Kind: Woken, Worker: h.name, PID: p.PID()})
	h.stage.change(func() { h.paused = false })
	return errors.Join(p.Go(), p.Continue()) // Go is for a write that is held, and is not minded otherwise
}

// kill ends the process with SIGKILL.
func (h *hand) kill() error {
	var p *worker.Worker
	h.stage.change(func() { p, h.process = h.process, nil })
	if p == nil {
		return refuse("%s is not there. It is started again in a moment.", h.name)
	}
	h.stage.journal.Add(Record{Kind: Killed, Worker: h.name, PID: p.PID()})
	p.Kill()
	h.stage.change(func() { h.job, h.step, h.paused = nil, "", false })
	return nil
}

func (h *hand) running() (p *worker.Worker, paused bool) {
	h.stage.mu.Lock()
	defer h.stage.mu.Unlock()
	return h.process, h.paused
}
