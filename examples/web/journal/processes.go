package journal

import (
	"fmt"
	"time"
)

func (n *narrator) paused(a *actor, r *Record) {
	a.paused = r.At
	r.say(Stop, "", fmt.Sprintf("kill -STOP %d: %s stands still", r.PID, r.Worker),
		"As in a long garbage collection or a virtual machine that is moved: nothing in the process runs, its renewals neither, and it does not know.")
}

func (n *narrator) woken(a *actor, r *Record) {
	stood := r.At.Sub(a.paused).Milliseconds()
	a.paused, a.woken = time.Time{}, r.At
	r.say(Plain, "", fmt.Sprintf("kill -CONT %d: %s wakes", r.PID, r.Worker),
		fmt.Sprintf("It stood still for %s and goes on where it was, as if no time had passed.", seconds(stood)))
}

func (n *narrator) killed(a *actor, r *Record) {
	why := "It was idle; nothing is left behind."
	if a.guest != "" {
		why = fmt.Sprintf("%s gets no answer. It held no lease, so nobody waits for it.", a.guest)
	}
	if h := n.holder(); h != nil && h.worker == r.Worker {
		why = "It held {token} and cannot give it back. Redis will drop the lease when its TTL has passed, and then the next in the queue has its turn."
		r.Token = h.token
	}
	*a = actor{}
	r.say(Bad, "L6", fmt.Sprintf("kill -KILL %d: %s is gone", r.PID, r.Worker), why)
}

// scenes are the buttons that play more than one step, and what they show.
var scenes = map[string]struct{ title, why, promise string }{
	"race":   {"Scene: two guests at once", "Two guests want the same evening in the same moment, at different workers. One lease, one booking, one honest no.", "L1"},
	"zombie": {"Scene: the zombie", "A worker is stopped just before its write, for longer than its lease lasts. Another books meanwhile. Then the first wakes and writes.", "S2"},
	"crash":  {"Scene: the crash", "A worker is killed while it holds the lease and another waits for it.", "L6"},
}

func (n *narrator) scene(_ *actor, r *Record) {
	s := scenes[r.Cause]
	r.say(Plain, s.promise, s.title, s.why)
}
