package stories

import (
	"fmt"
	"time"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

var crash = story{
	title:   "The crash",
	table:   3,
	intro:   "Worker A is killed (SIGKILL) in the middle of a reservation. Nobody is left to give its lease back.",
	promise: "the table is free again after the TTL at the latest, without anybody's help",
	play:    playCrash,
}

func playCrash(s *scene) (seen string) {
	s.reserve(s.a, s.held("Ann", worker.AtCard))
	s.untilHeld(s.a)
	s.say("A gets the lease, finds the table free, and asks Ann's bank.")

	pid := s.a.PID()
	s.do(func() error { s.a.Kill(); return nil })
	killed := time.Now()
	left := s.say("kill -KILL %d: A is gone. Its lease is not.", pid)
	s.check(left.held(), "the lease ended with the process, so nothing is shown here")

	s.reserve(s.b, s.request("Bob"))
	refused, _ := s.untilDone(s.b)
	s.say("Bob asks B for the table: held by another, again in %s.", seconds(refused.RetryAfter))
	s.check(refused.Outcome == worker.Held, "Bob was to be refused, and got %q: %s", refused.Outcome, refused.Error)

	s.untilFree()
	took := time.Since(killed)
	s.say("The TTL is over: Redis drops the owner key, %s after the crash.", seconds(took))
	s.check(took <= s.TTL+slack, "it took %s", seconds(took))

	s.reserve(s.b, s.request("Bob"))
	bob, _ := s.untilDone(s.b)
	end := s.say("Bob asks again. B books the table for Bob.")
	s.check(bob.Outcome == worker.Booked, "Bob was to be booked, and got %q: %s", bob.Outcome, bob.Error)
	s.check(end.guests() == "Bob", "the table is booked for %q", end.guests())

	s.do(func() (err error) { s.a, err = s.hire(s.ctx, "A"); return err })
	return fmt.Sprintf("free %s after the crash (TTL %v); then booked for %s", seconds(took), s.TTL, end.guests())
}

// slack is for Redis to notice that a key has expired and for us to see it.
const slack = 250 * time.Millisecond
