package journal

import "fmt"

func (n *narrator) waiting(_ *actor, r *Record) {
	by := "Another worker"
	if h := n.holder(); h != nil {
		by = h.worker
	}
	r.say(Plain, "L6", r.Worker+" waits",
		fmt.Sprintf("%s holds table:12. %s stands in Redis's queue and will be woken; it does not ask again and again.", by, r.Worker))
}

func (n *narrator) sealed(_ *actor, r *Record) {
	r.say(Good, "S8", "Postgres learns of {token}",
		fmt.Sprintf("The lease is sealed: before %s knows that it holds, Postgres stores {token}. From here on every earlier holder is refused.", r.Worker))
}

func (n *narrator) granted(a *actor, r *Record) {
	a.token = r.Token
	before := n.newest
	n.newest = &term{worker: r.Worker, token: r.Token}
	n.terms[r.Token] = n.newest
	why, promise := n.whyGranted(before, r)
	r.say(Good, promise, fmt.Sprintf("%s gets token {token}", r.Worker), why)
}

func (n *narrator) whyGranted(before *term, r *Record) (why, promise string) {
	const rises = "Its token is higher than any before."
	switch {
	case before == nil:
		return "Nobody holds table:12. One script in Redis makes the lease and its token together.", "L1"
	case before.ended == Expired && n.actor(before.worker).paused.IsZero():
		return fmt.Sprintf("%s's lease had run out, since nobody renewed it. %s", before.worker, rises), "L2"
	case before.ended == Expired:
		return fmt.Sprintf("%s's lease ran out while it stood still. %s is not told, and still believes that it holds. %s", before.worker, before.worker, rises), "L2"
	case before.ended == Flushed:
		return "Redis has lost its counter, but the clock is a floor under it. " + rises, "L2"
	case r.Took > 0 && before.ended == Released:
		return fmt.Sprintf("%s gave the lease back, and Redis woke %s, the first in the queue. It had waited %s.", before.worker, r.Worker, seconds(r.Took)), "L6"
	}
	return "Nobody holds table:12. " + rises, "L2"
}

func (n *narrator) extended(_ *actor, r *Record) {
	if t := n.terms[r.Token]; t != nil {
		t.renewed++
	}
	r.say(Plain, "", fmt.Sprintf("%s renews {token}", r.Worker), "A lease is renewed every third of its TTL, for as long as its holder lives.")
}

func (n *narrator) released(_ *actor, r *Record) {
	t := n.end(r.Token, Released)
	renewed := ""
	if t != nil && t.renewed > 0 {
		renewed = fmt.Sprintf(" It was renewed %s.", times(t.renewed))
	}
	r.say(Plain, "L4", fmt.Sprintf("%s gives {token} back", r.Worker),
		"The release names lease id and token, so that it can never end somebody else's lease."+renewed)
}

// whyLost says what ended a lease, by its cause.
var whyLost = map[string]string{
	"expired":     "By its own clock the lease was over before anything was heard from Redis. Its context has ended.",
	"unreachable": "Redis did not answer a renewal in time, so it does not count on the lease any more. Its context has ended.",
	"lost":        "Redis answered that the lease is gone, or another's. Its context has ended, and says so.",
	"revoked":     "An operator took the lease away. Its context has ended, and says so.",
	"stale":       "Postgres knows a newer token; the lease was exchanged for a fresh one.",
}

func (n *narrator) lost(a *actor, r *Record) {
	if t := n.end(r.Token, Lost); t != nil {
		t.noticed = true
	}
	late := ""
	if !a.woken.IsZero() {
		late = " That it could know only after it woke."
	}
	r.say(Stop, "L5", fmt.Sprintf("%s notices that {token} is lost", r.Worker), whyLost[r.Cause]+late)
}

func (n *narrator) expired(a *actor, r *Record) {
	if t := n.end(r.Token, Expired); t != nil && r.Worker == "" {
		r.Worker = t.worker
		a = n.actor(t.worker)
	}
	why := "Nobody renewed it for its TTL, so Redis dropped it. A dead holder blocks the table no longer than that."
	if !a.paused.IsZero() {
		why = fmt.Sprintf("%s stands still and cannot renew, so after its TTL Redis dropped the lease. %s does not know.", r.Worker, r.Worker)
	}
	r.say(Stop, "L1", "Lease {token} runs out", why)
}

func (n *narrator) flushed(_ *actor, r *Record) {
	if h := n.holder(); h != nil {
		h.ended = Flushed
	} else if n.newest != nil {
		n.newest.ended = Flushed
	}
	r.say(Bad, "L2", "FLUSHALL", "Redis has forgotten leases, queue and counter. Postgres has not forgotten the newest token, and the next one will be higher: Redis's clock is its floor.")
}

func (n *narrator) redisDown(_ *actor, r *Record) {
	r.say(Bad, "L5", "Redis goes down", "Nobody can acquire now. Whoever holds may go on until its lease ends by its own clock.")
}

func (n *narrator) redisUp(_ *actor, r *Record) {
	if n.newest != nil {
		n.newest.ended = Flushed // nothing is kept on disk
	}
	r.say(Plain, "L2", "Redis is back, and empty", "It kept nothing on disk. Scripts are loaded anew when they are missing, and tokens go on rising from its clock.")
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
