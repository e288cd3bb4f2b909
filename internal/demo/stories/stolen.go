package stories

import (
	"fmt"
	"time"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

var stolen = story{
	title: "The stolen lock",
	table: 7,
	intro: "Here worker A does not renew its lease, and Ann's bank is slow. The lease runs out, B gets the " +
		"next one, and then A comes back and releases.",
	promise: "A's late release leaves B's lease as it is, and A writes nothing",
	play:    playStolen,
}

func playStolen(s *scene) (seen string) {
	late := s.held("Ann", worker.AtCard)
	late.NoRenew = true
	s.reserve(s.a, late)
	s.untilHeld(s.a)
	s.say("A gets the lease, finds the table free, and asks Ann's bank.")
	s.untilFree()
	s.say("The TTL is over: Redis drops the owner key. The bank is still silent.")

	next := s.held("Bob", worker.AtCard)
	next.NoRenew = true // so that B's TTL moves with the clock alone, and any other hand would show
	s.reserve(s.b, next)
	lease := s.untilHeld(s.b)
	s.say("B gets the lease, with a higher token, and asks Bob's bank.")

	before := s.lookAtClock()
	s.goOn(s.a)
	ann, _ := s.untilDone(s.a)
	after := s.lookAtClock()
	s.say("Ann's bank answers. By A's own clock its lease is over, so A does not write. "+
		"It releases all the same, and Redis answers %q.", ann.Redis)
	s.check(ann.Outcome == worker.LeaseOver, "A was to find its lease over, and got %q: %s", ann.Outcome, ann.Error)
	s.check(ann.Redis == "taken", "Redis answered %q to A's release", ann.Redis)
	s.check(before.Holder == lease.ID && after.Holder == lease.ID && after.Token == before.Token,
		"the holder was %s and is %s", before.Holder, after.Holder)
	s.checkUntouched(before, after)

	s.goOn(s.b)
	bob, _ := s.untilDone(s.b)
	end := s.say("Bob's bank answers. B books the table and gives its lease back.")
	s.check(bob.Outcome == worker.Booked, "Bob was to be booked, and got %q: %s", bob.Outcome, bob.Error)
	s.check(end.guests() == "Bob", "the table is booked for %q", end.guests())
	return fmt.Sprintf("the owner key is B's before and after A's release; its TTL went from %v to %v, by the "+
		"clock alone; booked for %s",
		before.ExpiresIn, after.ExpiresIn, end.guests())
}

// timed is a state and when it was: after from, before to.
type timed struct {
	state
	from, to time.Time
}

func (s *scene) lookAtClock() timed {
	from := time.Now()
	st := s.look()
	return timed{st, from, time.Now()}
}

// checkUntouched checks that the TTL went down by the time that passed, within what two looks can
// tell of it.
func (s *scene) checkUntouched(before, after timed) {
	const rounding = 2 * time.Millisecond // Redis counts whole ones
	least, most := after.from.Sub(before.to)-rounding, after.to.Sub(before.from)+rounding
	fell := before.ExpiresIn - after.ExpiresIn
	s.check(least <= fell && fell <= most, "the TTL of B's lease fell by %v in %v to %v", fell, least, most)
}
