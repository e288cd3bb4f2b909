package stage

import (
	"context"
	"errors"
	"time"

	"github.com/fencedb/fencedb/examples/web/journal"
	"github.com/fencedb/fencedb/examples/web/worker"
)

// hand is one of the crew: a place that is filled with one process after the other.
type hand struct {
	stage *Stage
	name  string

	// Guarded by stage.mu.
	process *worker.Process // nil while nobody is there
	job     *worker.Reservation
	step    worker.Step // of job
	paused  bool
}

// start starts a process and listens to it.
func (h *hand) start(ctx context.Context) error {
	s := h.stage
	p, err := worker.Start(ctx, s.cfg.Worker(worker.Config{Name: h.name, PostgresURL: s.cfg.PostgresURL, RedisURL: s.cfg.RedisURL}))
	if err != nil {
		return err
	}
	s.journal.Add(journal.Record{Kind: journal.Started, Worker: h.name, PID: p.PID()})
	s.change(func() { h.process, h.job, h.step, h.paused = p, nil, "", false })
	s.work.Go(func() { h.listen(p) })
	return nil
}

// lag is how long what a worker says on stdout is kept back, so that what it published just before, which goes through Redis, is
// in the journal first.
const lag = 60 * time.Millisecond

// listen returns when the process has ended, and then sees to it that there is another one.
func (h *hand) listen(p *worker.Process) {
	for e := range p.Events() {
		h.stage.rest(lag)
		switch {
		case e.Done != nil:
			h.done(*e.Done)
		case e.Step != "":
			h.reached(e.Step)
		}
	}
	h.stage.change(func() {
		if h.process == p {
			h.process, h.job, h.step, h.paused = nil, nil, "", false
		}
	})
	h.replace()
}

// replace starts another process after a while, as a supervisor would.
func (h *hand) replace() {
	h.stage.rest(h.stage.pace().TTL + time.Second)
	for h.stage.life.Err() == nil {
		if h.start(h.stage.life) == nil {
			return
		}
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

func (h *hand) reached(step worker.Step) {
	kind := journal.Card
	if step == worker.Write {
		kind = journal.Writing
	}
	h.stage.journal.Add(journal.Record{Kind: kind, Worker: h.name})
	h.stage.change(func() { h.step = step })
}

func (h *hand) done(result worker.Result) {
	j := h.stage.journal
	if job := h.current(); job != nil && !job.Fenced { // no tracer hears of these
		switch result.Outcome {
		case worker.Booked:
			j.Add(journal.Record{Kind: journal.Wrote, Worker: h.name})
		case worker.NoToken:
			j.Add(journal.Record{Kind: journal.Failed, Worker: h.name, Cause: "no_token"})
		}
	}
	j.Add(journal.Record{Kind: journal.Told, Worker: h.name, Cause: string(result.Outcome)})
	h.stage.change(func() { h.job, h.step = nil, "" })
}

func (h *hand) current() *worker.Reservation {
	h.stage.mu.Lock()
	defer h.stage.mu.Unlock()
	return h.job
}

// idle is asked under stage.mu.
func (h *hand) idle() bool { return h.process != nil && h.job == nil && !h.paused }

// status is asked under stage.mu.
func (h *hand) status() journal.Worker {
	w := journal.Worker{Name: h.name, Status: journal.Idle}
	switch {
	case h.process == nil:
		w.Status = journal.Dead
		return w
	case h.paused:
		w.Status = journal.Asleep
	case h.job != nil:
		w.Status = journal.Busy
	}
	w.PID = h.process.PID()
	if h.job != nil {
		w.Guest, w.Evening = h.job.Guest, h.job.Evening
	}
	return w
}

// reserve gives an idle worker a guest.
func (h *hand) reserve(guest string, evening int, hold bool) error {
	s := h.stage
	r := &worker.Reservation{Guest: guest, Evening: evening, Pace: s.pace(), Hold: hold}
	var p *worker.Process
	s.change(func() {
		if h.idle() {
			r.Fenced = s.fenced
			p, h.job, h.step = h.process, r, ""
		}
	})
	if p == nil {
		return refuse("%s is not idle. Wait for it, or wake it if it stands still.", h.name)
	}
	s.journal.Add(journal.Record{Kind: journal.Asked, Worker: h.name, Guest: guest, Evening: evening})
	return p.Reserve(*r)
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
	h.stage.journal.Add(journal.Record{Kind: journal.Paused, Worker: h.name, PID: p.PID()})
	h.stage.change(func() { h.paused = true })
	return nil
}

// wake lets it go on.
func (h *hand) wake() error {
	p, paused := h.running()
	if p == nil || !paused {
		return refuse("%s does not stand still. Pause it first.", h.name)
	}
	h.stage.journal.Add(journal.Record{Kind: journal.Woken, Worker: h.name, PID: p.PID()})
	h.stage.change(func() { h.paused = false })
	return errors.Join(p.Go(), p.Continue()) // Go is for a write that is held, and is not minded otherwise
}

// kill ends the process with SIGKILL.
func (h *hand) kill() error {
	var p *worker.Process
	h.stage.change(func() { p, h.process = h.process, nil })
	if p == nil {
		return refuse("%s is not there. It is started again in a moment.", h.name)
	}
	h.stage.journal.Add(journal.Record{Kind: journal.Killed, Worker: h.name, PID: p.PID()})
	p.Kill()
	h.stage.change(func() { h.job, h.step, h.paused = nil, "", false })
	return nil
}

func (h *hand) dismiss() {
	if p, _ := h.running(); p != nil {
		p.Kill()
	}
}

func (h *hand) running() (p *worker.Process, paused bool) {
	h.stage.mu.Lock()
	defer h.stage.mu.Unlock()
	return h.process, h.paused
}
