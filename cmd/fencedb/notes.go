package main

import (
	"fmt"
)

// note is something that follows from what was found. The code is for programs and does not change.
type note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func printNotes(p page, notes []note) {
	if len(notes) > 0 {
		fmt.Fprintln(p.out)
	}
	for _, n := range notes {
		p.paragraph("* ", n.Text, "  ")
	}
}

// conclude compares the holder with the fence: the question is always who can write now.
func (r *inspection) conclude() []note {
	notes := []note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, note{code, fmt.Sprintf(format, args...)})
	}
	switch {
	case r.Holder == nil && r.Fence == nil:
	case r.Fence != nil && r.Fence.tooHigh:
		add("fence_too_high", "Nobody can write to protected tables: the fence is at the highest token that there is, or above, so no lease gets past it. fencedb reset sets it back.")
		return notes
	case r.Holder == nil && r.Fence.reset:
		add("fence_reset", "Nobody holds it, and its fence was set back: any former holder with a token above %d could still write to protected tables; fencedb revoke rules that out.", r.Fence.Token)
	case r.Holder == nil && r.Fence.revoked:
		add("revoked_and_sealed", "Nobody holds it, and the last one was revoked: no former holder can write to protected tables.")
	case r.Holder == nil:
		add("old_holder_may_write", "Nobody holds it. A former holder with token %d could still write to protected tables; fencedb revoke rules that out.", r.Fence.Token)
	case r.Fence == nil:
		add("not_entered", "No transaction has entered with a token yet: an earlier holder could still write to protected tables, until this one writes or is sealed.")
	case r.Holder.Token < r.Fence.Token:
		add("stale_holder", "The holder is stale: token %d has entered since, so every write of the holder to protected tables is refused.", r.Fence.Token)
	case r.Holder.Token == r.Fence.Token && r.Holder.LeaseID != r.Fence.LeaseID:
		add("stale_holder", "The holder is stale: another lease entered with the same token, so every write of the holder to protected tables is refused.")
	case r.Holder.Token > r.Fence.Token:
		add("not_entered", "The holder has not entered yet: the one with token %d could still write to protected tables, until the holder writes or is sealed.", r.Fence.Token)
	default:
		add("current", "The holder is current: nobody else can write to protected tables.")
	}
	if r.LastToken != nil && r.Fence != nil && *r.LastToken < r.Fence.Token {
		add("redis_behind", "Redis is behind the ledger: it has lost data or its clock went back. New tokens may be refused until its counter is above %d; package guard raises it by itself, and so does fencedb revoke.", r.Fence.Token)
	}
	if r.Fence == nil && len(r.Transactions) > 0 {
		add("transactions_uncertain", "There is no fence to look at, so the transactions are all that are changing the ledger, for this resource or another.")
	}
	if r.Revoked != nil && (r.Holder == nil || r.Holder.LeaseID != *r.Revoked) {
		add("revoked", "Lease %s was revoked in the last minute or so.", *r.Revoked)
	}
	return notes
}
