package page

import (
	"context"
	"errors"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
)

// hand is one of the crew: a place that is filled with one process after the other. All methods but
// start and listen are called under stage.mu.
type hand struct {
	stage *Stage
	name  string

	// Guarded by stage.mu.
	shown   Worker
	process *service.Worker // that is there, unless shown says that it is dead
	step    service.Point   // of the reservation
	plain   bool            // it is the control of the experiment: the same work, protected by nothing but the lock
}

// start starts a process and listens to it.
func (h *hand) start(ctx context.Context) error {
	s := h.stage
	p, err := service.Start(ctx, service.Config{Servers: s.cfg.Servers, Name: h.name, Feed: true})
	if err != nil {
		return err
	}
	s.journal.Add(Record{Kind: Started, Worker: h.name, PID: p.PID()})
	s.locked(func() { h.process, h.shown = p, Worker{Name: h.name, PID: p.PID(), Status: Idle} })
	s.work.Go(func() { h.listen(p) })
	return nil
}

func (h *hand) gone() { h.step, h.shown = "", Worker{Name: h.name, Status: Dead} }

// lag is how long what a worker says on stdout is kept back, so that what it published just before,
// which goes through Redis, is in the journal first.
const lag = 60 * time.Millisecond

// listen hears a process to its end, and then sees to it that there is another one. At the end of
// the stage it ends the process, also one that was being started when that came.
func (h *hand) listen(p *service.Worker) {
	s := h.stage
	defer context.AfterFunc(s.life, p.Abort)()
	for e := range p.Events() {
		_ = worker.Sleep(s.life, lag)
		s.locked(func() { h.told(e) })
	}
	p.Kill() // it has ended, however that came; this leaves nothing of it
	s.locked(h.gone)
	rest := s.ttl() + time.Second // a supervisor takes a while too
	for worker.Sleep(s.life, rest) == nil && h.start(s.life) != nil {
		rest = time.Second
	}
}

// told notes what the process says of its reservation.
func (h *hand) told(e service.Event) {
	j := h.stage.journal
	if e.Done == nil {
		h.step = e.At
		j.Add(Record{Kind: Kind(e.At), Worker: h.name})
		return
	}
	if h.plain && e.Done.Outcome == service.Booked { // no tracer hears of it
		j.Add(Record{Kind: Wrote, Worker: h.name})
	}
	j.Add(Record{Kind: Told, Worker: h.name, Cause: string(e.Done.Outcome)})
	h.step, h.shown.Guest, h.shown.Evening = "", "", 0
	if h.shown.Status == Busy {
		h.shown.Status = Idle
	}
}

const notThere = "%s is not there. It is started again in a moment."

func (h *hand) free() bool { return h.shown.Guest == "" }

// atStep is true at the step, and also when the worker has gone past it or is gone; what comes next
// will notice.
func (h *hand) atStep(step service.Point) func() bool {
	return func() bool { return h.step == step || h.free() }
}

// serve gives an idle worker the next guest, for the next evening that is free.
func (h *hand) serve() error {
	evening, err := h.stage.nextEvening(h.stage.life)
	if err != nil {
		return err
	}
	return h.reserve(evening)
}

// reserve gives an idle worker the next guest.
func (h *hand) reserve(evening int, change ...func(*service.Request)) error {
	const patience = 20 // for how many TTLs a guest waits for the lease
	if h.shown.Status != Idle {
		return refuse("%s is not idle. Wait for it, or wake it if it stands still.", h.name)
	}
	s := h.stage
	guest, ttl := people[s.guests%len(people)], speeds[s.speed]
	s.guests++
	h.plain = !s.fenced
	h.shown.Status, h.shown.Guest, h.shown.Evening = Busy, guest, evening
	r := service.Request{
		Booking: booking.Booking{Table: table, Slot: slot(evening), Guest: guest, Party: 2}, Plain: h.plain,
		TTL: ttl, Wait: patience * ttl, Write: ttl / 3,
		Card: ttl + ttl/3, // it outlasts the lease, so that renewal can be seen
	}
	for _, f := range change {
		f(&r)
	}
	s.journal.Add(Record{Kind: Asked, Worker: h.name, Guest: guest, Evening: evening})
	return h.process.Reserve(r)
}

// pause stops the process with SIGSTOP.
func (h *hand) pause() error {
	switch h.shown.Status {
	case Dead:
		return refuse(notThere, h.name)
	case Asleep:
		return refuse("%s stands still already. Wake it.", h.name)
	}
	if err := h.process.Stop(); err != nil {
		return err
	}
	h.shown.Status = Asleep
	h.stage.journal.Add(Record{Kind: Paused, Worker: h.name, PID: h.shown.PID})
	return nil
}

// wake lets it go on.
func (h *hand) wake() error {
	if h.shown.Status != Asleep {
		return refuse("%s does not stand still. Pause it first.", h.name)
	}
	h.shown.Status = Busy
	if h.free() {
		h.shown.Status = Idle
	}
	h.stage.journal.Add(Record{Kind: Woken, Worker: h.name, PID: h.shown.PID})
	return errors.Join(h.process.Go(), h.process.Continue()) // Go is for a write that is held, and is not minded otherwise
}

// kill ends the process with SIGKILL.
func (h *hand) kill() error {
	if h.shown.Status == Dead {
		return refuse(notThere, h.name)
	}
	h.stage.journal.Add(Record{Kind: Killed, Worker: h.name, PID: h.shown.PID})
	h.process.Abort()
	h.gone()
	return nil
}
