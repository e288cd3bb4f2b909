package page

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencedb/fencedb/observe/feed"
)

// telling is what there is to say about each kind. Each function says it and then notes it.
var telling = map[Kind]func(*narrator, *actor, *Record){
	Started: func(_ *narrator, a *actor, r *Record) {
		*a = actor{}
		r.Guest, r.Evening = "", 0
		r.say(Plain, "", fmt.Sprintf("%s starts", r.Worker), fmt.Sprintf("Worker %s is a process of its own, pid "+
			"%d, with its own connections to Redis and Postgres.", r.Worker, r.PID))
	},
	Asked: func(_ *narrator, a *actor, r *Record) {
		*a = actor{guest: r.Guest, evening: r.Evening}
		r.say(Plain, "", fmt.Sprintf("%s asks for evening %d", r.Guest, r.Evening),
			fmt.Sprintf("%s's request for table 12 goes to worker %s, which first needs the lease on it.", r.Guest, r.Worker))
	},
	feed.Waiting: func(n *narrator, _ *actor, r *Record) {
		by := "Another worker"
		if h := n.holder(); h != nil {
			by = h.worker
		}
		r.say(Plain, "L6", r.Worker+" waits",
			fmt.Sprintf("%s holds table:12. %s stands in Redis's queue and will be woken; it does not ask again and "+
				"again.", by, r.Worker))
	},
	Sealed: func(_ *narrator, _ *actor, r *Record) {
		r.say(Good, "S8", "Postgres learns of {token}",
			fmt.Sprintf("The lease is sealed: before %s knows that it holds, Postgres stores {token}. From here on "+
				"every earlier holder is refused.", r.Worker))
	},
	feed.Granted: func(n *narrator, a *actor, r *Record) {
		a.token = r.Token
		before := n.newest
		n.newest = &term{worker: r.Worker, token: r.Token}
		n.terms[r.Token] = n.newest
		why, promise := n.whyGranted(before, r)
		r.say(Good, promise, fmt.Sprintf("%s gets token {token}", r.Worker), why)
	},
	feed.Extended: func(n *narrator, _ *actor, r *Record) {
		if t := n.terms[r.Token]; t != nil {
			t.renewed++
		}
		r.say(Plain, "", fmt.Sprintf("%s renews {token}", r.Worker), "A lease is renewed every third of its TTL, for "+
			"as long as its holder lives.")
	},
	Card: func(_ *narrator, _ *actor, r *Record) {
		r.say(Plain, "", fmt.Sprintf("%s asks %s's bank", r.Worker, r.Guest),
			fmt.Sprintf("Evening %d is free. The card check takes longer than a transaction should stay open: "+
				"that is why there is a lease.", r.Evening))
	},
	Writing: func(n *narrator, a *actor, r *Record) {
		why := "It has looked at its lease for the last time, and it was good. Whatever happens between here and " +
			"Postgres, no check on this side sees."
		if t := n.terms[a.token]; t != nil && t.noticed {
			why = "It knows that its lease is gone, and sends the write all the same: whether it may land is for " +
				"Postgres to say, which knows who came after."
			if !n.fence {
				why = "It knows that its lease is gone, and sends the write all the same. The fence is off, so " +
					"nobody will ask."
			}
		}
		r.say(Plain, "", fmt.Sprintf("%s is about to write", r.Worker), why)
	},
	feed.Committed: func(n *narrator, _ *actor, r *Record) {
		why := "Postgres has stored no newer token for table:12, so the transaction commits."
		if t := n.terms[r.Token]; t != nil && t.ended != "" {
			why = "The lease is gone from Redis, but nobody came after it: Postgres knows no newer token, so the " +
				"write is not late, and it commits."
		}
		r.say(Good, "S1", fmt.Sprintf("Written with {token}: %s", r.Guest), why)
	},
	// This is a write while the fence is off. Nobody looks at tokens, so it is always let in.
	Wrote: func(n *narrator, _ *actor, r *Record) {
		r.Token = 0
		other := n.otherTold(r.Evening, r.Guest)
		if other == "" {
			r.say(Plain, "", fmt.Sprintf("Written without a token: %s", r.Guest), "The fence is off: the lock alone "+
				"protects this write. This time nobody was in between.")
			return
		}
		r.say(Bad, "", fmt.Sprintf("Lost update: %s is overwritten", other),
			fmt.Sprintf("%s's lease was over, %s had the table, and has been told so. Nothing looked at tokens, so "+
				"%s replaces %s. Put the fence back and try again.", r.Worker, other, r.Guest, other))
	},
	feed.Refused: func(_ *narrator, a *actor, r *Record) {
		late := ""
		if !a.woken.IsZero() {
			late = fmt.Sprintf("%s woke and sent what it had been about to send. ", r.Worker)
		}
		r.say(Stop, "S2", "Refused: carried {token}, stored {stored}",
			late+"Postgres has seen {stored}, which is newer than {token}, so nothing of this transaction was written.")
	},
	feed.Failed: func(_ *narrator, _ *actor, r *Record) {
		why, ok := whyFailed[r.Cause]
		if !ok {
			why = "Nothing was written: " + r.Cause + "."
		}
		promise := ""
		if r.Cause == "lease_over" {
			promise = "S7"
		}
		r.say(Stop, promise, fmt.Sprintf("%s does not write", r.Worker), why)
	},
	feed.Held: func(_ *narrator, _ *actor, r *Record) {
		r.say(Stop, "L3", fmt.Sprintf("%s did not get the lease", r.Worker), "Another holder had it until the "+
			"patience of this request was over. Nothing was changed, and no token was used up.")
	},
	feed.Released: func(n *narrator, _ *actor, r *Record) {
		t := n.end(r.Token, feed.Released)
		renewed := ""
		if t != nil && t.renewed > 0 {
			renewed = fmt.Sprintf(" It was renewed %s.", times(t.renewed))
		}
		r.say(Plain, "L4", fmt.Sprintf("%s gives {token} back", r.Worker),
			"The release names lease id and token, so that it can never end somebody else's lease."+renewed)
	},
	feed.Lost: func(n *narrator, a *actor, r *Record) {
		if t := n.end(r.Token, feed.Lost); t != nil {
			t.noticed = true
		}
		late := ""
		if !a.woken.IsZero() {
			late = " It could notice that only after it woke."
		}
		r.say(Stop, "L5", fmt.Sprintf("%s notices that {token} is lost", r.Worker), whyLost[r.Cause]+late)
	},
	Expired: func(n *narrator, a *actor, r *Record) {
		if t := n.end(r.Token, Expired); t != nil && r.Worker == "" {
			r.Worker = t.worker
			a = n.actor(t.worker)
		}
		why := "Nobody renewed it for its TTL, so Redis dropped it. A dead holder blocks the table no longer than that."
		if !a.paused.IsZero() {
			why = fmt.Sprintf("%s stands still and cannot renew, so after its TTL Redis dropped the lease. %s does "+
				"not know.", r.Worker, r.Worker)
		}
		r.say(Stop, "L1", "Lease {token} runs out", why)
	},
	Forgotten: func(n *narrator, _ *actor, r *Record) {
		if t := n.end(r.Token, Forgotten); t != nil {
			r.Worker = t.worker
		}
		r.say(Bad, "L1", "Redis does not know {token} any more", fmt.Sprintf("Somebody has ended it there, or deleted "+
			"the key. %s still believes that it holds, until a renewal tells it. Another may hold by then.", r.Worker))
	},
	feed.Revoked: func(_ *narrator, _ *actor, r *Record) {
		r.say(Stop, "", "The lease was revoked", "An operator ended the lease, and moved the fence on to {token}.")
	},
	feed.Healed: func(n *narrator, _ *actor, r *Record) {
		n.newest = &term{worker: r.Worker, token: r.Token}
		n.terms[r.Token] = n.newest
		r.say(Good, "L7", fmt.Sprintf("%s's lease was healed", r.Worker), "Redis had gone backwards. Its counter "+
			"was raised above what Postgres has stored, and the lease got token {token}.")
	},
	Told: func(n *narrator, a *actor, r *Record) {
		switch r.Cause {
		case "booked":
			n.tellBooked(r)
		case "taken":
			r.say(Plain, "", fmt.Sprintf("%s is told: taken", r.Guest), fmt.Sprintf("Under its lease %s looked, and "+
				"found evening %d booked for somebody else.", r.Worker, r.Evening))
		default:
			r.say(Stop, "", fmt.Sprintf("%s is told: not booked", r.Guest), "After an error nothing of this "+
				"reservation is written, so the answer is true.")
		}
		*a = actor{paused: a.paused}
	},
	Paused: func(_ *narrator, a *actor, r *Record) {
		a.paused = r.At
		r.say(Stop, "", fmt.Sprintf("kill -STOP %d: %s stands still", r.PID, r.Worker),
			"As in a long garbage collection or a virtual machine that is moved: nothing in the process runs, not "+
				"even its renewals, and it does not know.")
	},
	Woken: func(_ *narrator, a *actor, r *Record) {
		stood := r.At.Sub(a.paused).Milliseconds()
		a.paused, a.woken = time.Time{}, r.At
		r.say(Plain, "", fmt.Sprintf("kill -CONT %d: %s wakes", r.PID, r.Worker),
			fmt.Sprintf("It stood still for %s and goes on where it was, as if no time had passed.", seconds(stood)))
	},
	Killed: func(n *narrator, a *actor, r *Record) {
		why := "It was idle; nothing is left behind."
		if a.guest != "" {
			why = fmt.Sprintf("%s gets no answer. It held no lease, so nobody waits for it.", a.guest)
		}
		if h := n.holder(); h != nil && h.worker == r.Worker {
			why = "It held {token} and cannot give it back. Redis will drop the lease when its TTL has passed, and " +
				"then the next in the queue gets it."
			r.Token = h.token
		}
		*a = actor{}
		r.say(Bad, "L6", fmt.Sprintf("kill -KILL %d: %s is gone", r.PID, r.Worker), why)
	},
	Flushed: func(n *narrator, _ *actor, r *Record) {
		believer := n.forget(r)
		r.say(Bad, "L2", "FLUSHALL", "Redis has forgotten leases, queue and counter. Postgres has not forgotten the "+
			"newest token, and the next one will be higher: Redis's clock is its floor."+believer)
	},
	RedisDown: func(_ *narrator, _ *actor, r *Record) {
		r.say(Bad, "L5", "Redis goes down", "Nobody can acquire now. A holder may go on until its lease ends by "+
			"its own clock.")
	},
	RedisUp: func(n *narrator, _ *actor, r *Record) {
		believer := n.forget(r) // nothing is kept on disk
		r.say(Plain, "L2", "Redis is back, and empty", "It kept nothing on disk. Scripts are loaded anew when they "+
			"are missing, and tokens go on rising from its clock."+believer)
	},
	Protected: func(n *narrator, _ *actor, r *Record) {
		n.fence = true
		r.say(Good, "S4", "The fence is on", "fencedb.protect('bookings', ...): no client writes a row without a "+
			"current token for it, not even psql.")
	},
	Unprotected: func(n *narrator, _ *actor, r *Record) {
		n.fence = false
		r.say(Bad, "", "The fence is off", "fencedb.unprotect('bookings'): from now on the workers write with "+
			"nothing but the lock, as it is usually done. Try the zombie now.")
	},
	Speed: func(_ *narrator, _ *actor, r *Record) {
		r.say(Plain, "", "Speed: "+r.Cause, fmt.Sprintf("From the next booking on, a lease lasts %s, and the "+
			"other steps take as much more or less. The picture keeps its scale.", seconds(r.TTL)))
	},
	Scene: func(_ *narrator, _ *actor, r *Record) {
		s := scenes[r.Cause]
		r.say(Plain, s.promise, s.title, s.why)
	},
	SceneFailed: func(_ *narrator, _ *actor, r *Record) {
		r.say(Bad, "", "The scene stopped", r.Cause)
	},
}

// scenes are the buttons that play more than one step, and what they show.
var scenes = map[string]struct{ title, why, promise string }{
	"race": {"Scene: two guests at once", "Two guests want the same evening in the same moment, at different " +
		"workers. One lease, one booking, one refusal.", "L1"},
	"zombie": {"Scene: the zombie", "A worker is stopped just before its write, for longer than its lease lasts. " +
		"Another books meanwhile. Then the first wakes and writes.", "S2"},
	"crash": {"Scene: the crash", "A worker is killed while it holds the lease and another waits for it.", "L6"},
}

func (n *narrator) whyGranted(before *term, r *Record) (why, promise string) {
	const rises = "Its token is higher than any before."
	switch {
	case before == nil:
		return "Nobody holds table:12. One script in Redis makes the lease and its token together.", "L1"
	case before.ended == Expired && n.actor(before.worker).paused.IsZero():
		return fmt.Sprintf("%s's lease had run out, since nobody renewed it. %s", before.worker, rises), "L2"
	case before.ended == Expired:
		return fmt.Sprintf("%s's lease ran out while it stood still. %s is not told, and still believes that it "+
			"holds. %s", before.worker, before.worker, rises), "L2"
	case before.ended == Flushed:
		return "Redis has lost its counter, but the clock is a floor under it. " + rises, "L2"
	case r.Took > 0 && before.ended == feed.Released:
		return fmt.Sprintf("%s gave the lease back, and Redis woke %s, the first in the queue. It had waited "+
			"%s.", before.worker, r.Worker, seconds(r.Took)), "L6"
	}
	return "Nobody holds table:12. " + rises, "L2"
}

// whyLost says what ended a lease, by its cause.
var whyLost = map[string]string{
	"expired": "By its own clock the lease was over before anything was heard from Redis. Its context has ended.",
	"unreachable": "Redis did not answer a renewal in time, so it does not count on the lease any more. Its " +
		"context has ended.",
	"lost":    "Redis answered that the lease is gone, or another's. Its context has ended, and says so.",
	"revoked": "An operator took the lease away. Its context has ended, and says so.",
	"stale":   "Postgres knows a newer token; the lease was exchanged for a fresh one.",
}

// forget notes that Redis has lost everything, and puts a holder who does not know into the record.
func (n *narrator) forget(r *Record) (believer string) {
	if h := n.holder(); h != nil {
		r.Worker, r.Token = h.worker, h.token
		believer = fmt.Sprintf(" %s still believes that it holds {token}.", h.worker)
	}
	if n.newest != nil {
		n.newest.ended = Flushed
	}
	return believer
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// whyFailed says what kept a write out, by its cause.
var whyFailed = map[string]string{
	"lease_over": "By its own clock the lease was over, so the write was not sent. That it noticed is luck, " +
		"not safety: a pause after this look would not have been seen.",
	"no_token":       "The table is protected, and the write carried no token.",
	"wrong_resource": "The table is protected, and the token was for another resource.",
	"commit_unknown": "The connection broke during COMMIT and Postgres could not be asked. Booking again settles it.",
}

func (n *narrator) tellBooked(r *Record) {
	other := n.otherTold(r.Evening, r.Guest)
	if !slices.Contains(n.told[r.Evening], r.Guest) {
		n.told[r.Evening] = append(n.told[r.Evening], r.Guest)
	}
	if other != "" {
		r.say(Bad, "", fmt.Sprintf("%s is told: booked. So was %s", r.Guest, other),
			fmt.Sprintf("Two guests believe that evening %d is theirs. Only one of them is in the table, and no "+
				"error was reported.", r.Evening))
		return
	}
	r.say(Good, "", fmt.Sprintf("%s is told: booked", r.Guest), fmt.Sprintf("Nil means committed. Evening %d is "+
		"%s's.", r.Evening, r.Guest))
}
