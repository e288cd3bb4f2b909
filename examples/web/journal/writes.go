package journal

import (
	"fmt"
	"slices"
)

func (n *narrator) writing(a *actor, r *Record) {
	why := "It has looked at its lease for the last time, and it was good. Whatever happens between here and Postgres, no check on this side sees."
	if t := n.terms[a.token]; t != nil && t.noticed {
		why = "It knows that its lease is gone, and sends the write all the same: whether it may land is for Postgres to say, which knows who came after."
		if !n.fence {
			why = "It knows that its lease is gone, and sends the write all the same. The fence is off, so nobody will ask."
		}
	}
	r.say(Plain, "", fmt.Sprintf("%s is about to write", r.Worker), why)
}

func (n *narrator) committed(_ *actor, r *Record) {
	why := "Postgres knows no newer token for table:12, so the transaction commits."
	if t := n.terms[r.Token]; t != nil && t.ended != "" {
		why = "The lease is gone from Redis, but nobody came after it: Postgres knows no newer token, so the write is not late, and it commits."
	}
	r.say(Good, "S1", fmt.Sprintf("Written with {token}: %s", r.Guest), why)
}

// wrote is a write while the fence is off. Nobody looks at tokens, so it is always let in.
func (n *narrator) wrote(_ *actor, r *Record) {
	r.Token = 0
	other := n.otherTold(r.Evening, r.Guest)
	if other == "" {
		r.say(Plain, "", fmt.Sprintf("Written without a token: %s", r.Guest), "The fence is off: the lock alone protects this write. This time nobody was in between.")
		return
	}
	r.say(Bad, "", fmt.Sprintf("Lost update: %s is overwritten", other),
		fmt.Sprintf("%s's lease was over, %s had the table, and has been told so. Nothing looked at tokens, so %s replaces %s. Put the fence back and try again.", r.Worker, other, r.Guest, other))
}

func (n *narrator) refused(a *actor, r *Record) {
	late := ""
	if !a.woken.IsZero() {
		late = fmt.Sprintf("%s woke and sent what it had been about to send. ", r.Worker)
	}
	r.say(Stop, "S2", "Refused: carried {token}, stored {stored}",
		late+"Postgres has seen {stored}, which is newer than {token}, so nothing of this transaction was written.")
}

// whyFailed says what kept a write out, by its cause.
var whyFailed = map[string]string{
	"lease_over":     "By its own clock the lease was over, so the write was not sent. That it noticed is luck, not safety: a pause after this look would not have been seen.",
	"no_token":       "The table is protected, and the write carried no token.",
	"wrong_resource": "The table is protected, and the token was for another resource.",
	"commit_unknown": "The connection broke during COMMIT and Postgres could not be asked. Booking again settles it.",
}

func (n *narrator) failed(_ *actor, r *Record) {
	why, ok := whyFailed[r.Cause]
	if !ok {
		why = "Nothing was written: " + r.Cause + "."
	}
	promise := ""
	if r.Cause == "lease_over" {
		promise = "S7"
	}
	r.say(Stop, promise, fmt.Sprintf("%s does not write", r.Worker), why)
}

func (n *narrator) tellGuest(a *actor, r *Record) {
	switch r.Cause {
	case "booked":
		n.tellBooked(r)
	case "taken":
		r.say(Plain, "", fmt.Sprintf("%s is told: taken", r.Guest), fmt.Sprintf("Under its lease %s looked, and found evening %d booked for somebody else.", r.Worker, r.Evening))
	default:
		r.say(Stop, "", fmt.Sprintf("%s is told: not booked", r.Guest), "After an error nothing of this reservation is written, so the answer is true.")
	}
	*a = actor{paused: a.paused}
}

func (n *narrator) tellBooked(r *Record) {
	other := n.otherTold(r.Evening, r.Guest)
	if !slices.Contains(n.told[r.Evening], r.Guest) {
		n.told[r.Evening] = append(n.told[r.Evening], r.Guest)
	}
	if other != "" {
		r.say(Bad, "", fmt.Sprintf("%s is told: booked. So was %s", r.Guest, other),
			fmt.Sprintf("Two guests believe that evening %d is theirs. Only one of them is in the table, and no error was reported.", r.Evening))
		return
	}
	r.say(Good, "", fmt.Sprintf("%s is told: booked", r.Guest), fmt.Sprintf("Nil means committed. Evening %d is %s's.", r.Evening, r.Guest))
}

func (n *narrator) protected(_ *actor, r *Record) {
	n.fence = true
	r.say(Good, "S4", "The fence is on", "fencedb.protect('bookings', ...): no client writes a row without a current token for it, not even psql.")
}

func (n *narrator) unprotected(_ *actor, r *Record) {
	n.fence = false
	r.say(Bad, "", "The fence is off", "fencedb.unprotect('bookings'): from now on the workers write with nothing but the lock, as it is usually done. Try the zombie now.")
}
