package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/lab/demo/service"
)

var race = story{
	title:   "Two guests, one table",
	table:   12,
	intro:   `Ann and Bob press "reserve table 12" in the same millisecond. Her request goes to worker A, his to worker B.`,
	promise: "one booking; the other guest is refused at once, learns when to ask again, and uses up no token",
	script:  playRace,
}

// side is one of two that compete.
type side struct {
	*service.Worker
	guest string
	service.Event
}

func playRace(s *scene) (seen string) {
	pressed := time.Now()
	s.reserve(s.a, "Ann", service.AtCard)
	s.reserve(s.b, "Bob", service.AtCard)
	apart := time.Since(pressed).Round(time.Microsecond)
	sides := []side{{s.a, "Ann", s.settle(s.a)}, {s.b, "Bob", s.settle(s.b)}}
	if sides[1].Held {
		slices.Reverse(sides)
	}
	winner, loser := sides[0], sides[1]
	if !winner.Held || loser.Held || loser.Done.Outcome != service.Held {
		s.must(fmt.Errorf("one was to hold the lease and the other to be refused; instead: %+v", sides))
	}
	granted := s.say("The requests go out %v apart. %s gets the lease and asks %s's bank.", apart, winner.Name, winner.guest)
	again := seconds(loser.Done.RetryAfter)
	refused := s.say("%s is refused at once: held by another, ask again in %s.", loser.Name, again)
	s.check(refused.LastToken == granted.Token, "the refused request used up token %d", refused.LastToken)

	s.must(winner.Go())
	s.untilDone(winner.Worker, winner.guest, service.Booked)
	s.say("The card is good. %s books the table and gives the lease back.", winner.Name)

	answer := s.asks(loser.Worker, loser.guest, service.Taken)
	end := s.say("%s asks again. %s gets the lease, sees the booking: taken.", loser.guest, loser.Name)
	s.check(end.guests == winner.guest, "the table is booked for %q, not for %s alone", end.guests, winner.guest)
	s.check(!end.held(), "a lease was not given back")
	return fmt.Sprintf("booked for %s; %s was answered %q (ask again in %s), then %q",
		end.guests, loser.guest, loser.Done.Outcome, again, answer.Outcome)
}

var stolen = story{
	title: "The stolen lock",
	table: 7,
	intro: "Here worker A does not renew its lease, and Ann's bank is slow. The lease runs out, B gets the " +
		"next one, and then A comes back and releases.",
	promise: "A's late release leaves B's lease as it is, and A writes nothing",
	script:  playStolen,
}

func playStolen(s *scene) (seen string) {
	lazy := func(r *service.Request) { r.NoRenew = true }
	s.reserve(s.a, "Ann", service.AtCard, lazy)
	s.untilHeld(s.a)
	s.say("A gets the lease, finds the table free, and asks Ann's bank.")
	s.untilFree()
	s.say("The TTL is over: Redis drops the owner key. The bank is still silent.")

	s.reserve(s.b, "Bob", service.AtCard, lazy) // so that any change of B's TTL would be another's
	s.untilHeld(s.b)
	before := s.say("B gets the lease, with a higher token, and asks Bob's bank.")
	s.check(s.owner(before) == "B", "the holder is %s", before.Label)

	s.must(s.a.Go())
	s.untilDone(s.a, "Ann", service.LeaseOver)
	after := s.say("Ann's bank answers. By A's own clock its lease is over, so A does not write. " +
		"It releases all the same, and Redis leaves B's lease alone.")
	s.check(after.Holder == before.Holder && after.Token == before.Token && after.ends == before.ends,
		"the lease was %v until %v, and is %v until %v", before.Holder, before.ends, after.Holder, after.ends)

	s.must(s.b.Go())
	s.untilDone(s.b, "Bob", service.Booked)
	end := s.say("Bob's bank answers. B books the table and gives its lease back.")
	s.check(end.guests == "Bob", "the table is booked for %q", end.guests)
	return fmt.Sprintf("the owner key is B's before and after A's release, and expires at the same millisecond; "+
		"booked for %s", end.guests)
}

var crash = story{
	title:   "The crash",
	table:   3,
	intro:   "Worker A is killed (SIGKILL) in the middle of a reservation. Nobody is left to give its lease back.",
	promise: "the table is free again after the TTL at the latest, without anybody's help",
	script:  playCrash,
}

func playCrash(s *scene) (seen string) {
	const slack = time.Second // for Redis to notice that a key has expired, and for us to see it
	s.reserve(s.a, "Ann", service.AtCard)
	s.untilHeld(s.a)
	s.say("A gets the lease, finds the table free, and asks Ann's bank.")

	s.a.Kill()
	killed := time.Now()
	left := s.say("kill -KILL %d: A is gone. Its lease is not.", s.a.PID())
	s.check(left.held(), "the lease ended with the process, so nothing is shown here")

	refused := s.asks(s.b, "Bob", service.Held)
	s.say("Bob asks B for the table: held by another, again in %s.", seconds(refused.RetryAfter))

	s.untilFree()
	took := time.Since(killed)
	s.say("The TTL is over: Redis drops the owner key, %s after the crash.", seconds(took))
	s.check(took <= s.TTL+slack, "it took %s", seconds(took))

	s.asks(s.b, "Bob", service.Booked)
	end := s.say("Bob asks again. B books the table for Bob.")
	s.check(end.guests == "Bob", "the table is booked for %q", end.guests)

	return fmt.Sprintf("free %s after the crash (TTL %v); then booked for %s", seconds(took), s.TTL, end.guests)
}

var zombie = story{
	title: "The zombie",
	table: 9,
	intro: "Worker A is stopped (SIGSTOP) between its decision and its write, for longer than its lease lasts, " +
		"as a garbage collection or a paused virtual machine would do it. A has looked at its clock and its lease " +
		"for the last time, both were good, and only the sending is left. When A wakes, nothing on its own side " +
		"stops the write any more; only the place where the data lives can.",
	promise: "Postgres refuses A's write, since its token is older than the stored one, and Bob keeps the table; " +
		"without a token nobody writes at all",
	script: playZombie,
}

func playZombie(s *scene) (seen string) {
	s.plain = s.Unprotected
	first, ann, end := s.wakeZombie(service.Stale)
	s.check(first.Token < end.LastToken, "B's token %d is not higher than A's %d", end.LastToken, first.Token)
	s.check(end.fence == end.LastToken, "the stored fence is %d, not B's token %d", end.fence, end.LastToken)
	s.check(end.guests == "Bob" && end.wrote == end.LastToken,
		"the table is booked for %s with token %d, which B's should have kept out", end.guests, end.wrote)

	code := "00000" // Postgres's word for success
	_, err := s.DB.Exec(s.ctx, `UPDATE bookings SET guest = 'Eve' WHERE table_id = $1`, s.story.table)
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		code = refused.Code
	}
	last := s.say("psql, without a token, tries to write Eve over Bob: SQLSTATE %s.", code)
	s.check(code == "FN002", "a write without a token was answered with SQLSTATE %s", code)
	s.check(last.guests == end.guests, "the table is booked for %s", last.guests)
	tokens := ""
	if ann.Outcome == service.Stale {
		tokens = fmt.Sprintf(": carried %d, stored %d", ann.Carried, ann.Stored)
	}
	return fmt.Sprintf("A was answered %q%s; the write without a token, %s; booked for %s",
		ann.Outcome, tokens, code, last.guests)
}

// wakeZombie stops A before its write, lets B take over and book, and wakes A. It returns the state
// when A was stopped, what A was answered, and the state after that.
func (s *scene) wakeZombie(as service.Outcome) (first state, ann service.Result, end state) {
	s.reserve(s.a, "Ann", service.AtWrite)
	s.untilHeld(s.a)
	s.say("A gets the lease, the table is free, the card is good. Next: the write.")
	s.must(s.a.Stop())
	first = s.say("kill -STOP %d: A stands still.", s.a.PID())
	s.untilFree()
	s.say("The TTL is over: Redis drops the owner key. A does not know.")

	s.asks(s.b, "Bob", service.Booked)
	s.say("B gets the lease, books the table for Bob, and tells him so.")

	s.must(errors.Join(s.a.Go(), s.a.Continue()))
	ann = s.untilDone(s.a, "Ann", as)
	end = s.say("kill -CONT %d: A wakes, and its write goes out%s.", s.a.PID(), answer(ann))
	return first, ann, end
}

func answer(r service.Result) string {
	switch r.Outcome {
	case service.Booked:
		return ". It is let in; A tells Ann that she has the table"
	case service.Stale:
		return fmt.Sprintf(" with token %d. Postgres has %d: refused, and nothing is written", r.Carried, r.Stored)
	}
	return fmt.Sprintf(". The answer is %q", r.Outcome)
}

var control = story{
	title: "The control: the same zombie, no fence",
	table: 10,
	intro: "The same service, the same lease, the same statements, the same stop. But the fence has been taken away " +
		"from the table, and the write carries no token: a lock is all there is.",
	promise: "without a fence Bob's booking is lost, or the other stories would show nothing",
	script:  playControl,
}

func playControl(s *scene) (seen string) {
	if !s.Unprotected {
		_, err := s.DB.Exec(s.ctx, service.Unprotect)
		s.must(err)
	}
	s.plain = true
	_, ann, end := s.wakeZombie(service.Booked)
	s.check(end.guests == "Ann", "the table is booked for %s", end.guests)
	return fmt.Sprintf("Bob was answered %q, Ann was answered %q, and the table is booked for %s",
		service.Booked, ann.Outcome, end.guests)
}
