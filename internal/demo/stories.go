package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

var race = story{
	title:   "Two guests, one table",
	table:   12,
	intro:   `Ann and Bob press "reserve table 12" in the same millisecond. Her request goes to worker A, his to worker B.`,
	promise: "one booking; the other guest is refused at once, learns when to ask again, and uses up no token",
	play:    playRace,
}

// side is one of two that compete.
type side struct {
	*worker.Worker
	guest string
	progress
}

func playRace(s *scene) (seen string) {
	pressed := time.Now()
	s.reserve(s.a, s.held("Ann", worker.AtCard))
	s.reserve(s.b, s.held("Bob", worker.AtCard))
	apart := time.Since(pressed).Round(time.Microsecond)
	winner, loser := s.compete()
	s.say("The requests go out %v apart. %s gets the lease and asks %s's bank.", apart, winner.Name, winner.guest)
	refused := s.say("%s is refused at once: held by another, ask again in %s.", loser.Name, seconds(loser.done.RetryAfter))
	s.check(refused.LastToken == winner.lease.Token, "the refused request used up token %d", refused.LastToken)

	s.goOn(winner.Worker)
	s.untilDone(winner.Worker)
	s.say("The card is good. %s books the table and gives the lease back.", winner.Name)

	s.reserve(loser.Worker, s.request(loser.guest))
	again, _ := s.untilDone(loser.Worker)
	end := s.say("%s asks again. %s gets the lease, sees the booking: taken.", loser.guest, loser.Name)
	s.check(again.Outcome == worker.Taken,
		"%s was to find the table taken, and got %q: %s", loser.guest, again.Outcome, again.Error)
	s.check(end.guests() == winner.guest, "the table is booked for %q, not for %s alone", end.guests(), winner.guest)
	s.check(!end.held(), "a lease was not given back")
	return fmt.Sprintf("booked for %s; %s was answered %q (ask again in %s), then %q",
		end.guests(), loser.guest, loser.done.Outcome, seconds(loser.done.RetryAfter), again.Outcome)
}

// compete waits until one of two requests is held with the lease, and the other one refused.
func (s *scene) compete() (winner, loser side) {
	winner = side{s.a, "Ann", s.settle(s.a)}
	loser = side{s.b, "Bob", s.settle(s.b)}
	if winner.held == worker.Nowhere {
		winner, loser = loser, winner
	}
	s.check(winner.held == worker.AtCard && loser.done.Outcome == worker.Held,
		"one was to hold the lease and the other to be refused; instead %s: %s%s, %s: %s%s",
		winner.Name, winner.held, winner.done.Outcome, loser.Name, loser.held, loser.done.Outcome)
	return winner, loser
}

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

	s.do(func() (err error) { s.a, err = worker.StartBooking(s.ctx, s.called("A")); return err })
	return fmt.Sprintf("free %s after the crash (TTL %v); then booked for %s", seconds(took), s.TTL, end.guests())
}

// slack is for Redis to notice that a key has expired and for us to see it.
const slack = 250 * time.Millisecond

var zombie = story{
	title: "The zombie",
	table: 9,
	intro: "Worker A is stopped (SIGSTOP) between its decision and its write, for longer than its lease lasts, " +
		"as a garbage collection or a paused " +
		"virtual machine would do it. A has looked at its clock and its lease for the last time, both were good, " +
		"and only the sending is left. " +
		"When A wakes, nothing on its own side stops the write any more; only the place where the data lives can.",
	promise: "Postgres refuses A's write, since its token is older than the stored one, and Bob keeps the table; " +
		"without a token nobody writes at all",
	play: playZombie,
}

func playZombie(s *scene) (seen string) {
	if s.Unprotected {
		s.plain = "bookings"
	}
	z := s.wakeZombie()
	s.check(z.ann.Outcome == worker.Stale, "A was to be refused as stale, and got %q %s", z.ann.Outcome, z.ann.Error)
	s.check(z.lease.Token < z.takeOver.Token, "B's token %d is not higher than A's %d", z.takeOver.Token, z.lease.Token)
	s.check(z.end.fence == z.takeOver.Token, "the stored fence is %d, not B's token %d", z.end.fence, z.takeOver.Token)
	s.check(len(z.end.bookings) == 1 && z.end.bookings[0] == written{"Bob", z.takeOver.Token},
		"the table is booked for %s, whom B's token should have kept out", z.end.guests())

	code := s.forge()
	end := s.say("psql, without a token, tries to write Eve over Bob: SQLSTATE %s.", code)
	s.check(code == "FN002", "a write without a token was answered with SQLSTATE %s", code)
	s.check(end.guests() == z.end.guests(), "the table is booked for %s", end.guests())
	return fmt.Sprintf("A was answered %q%s; the write without a token, %s; booked for %s",
		z.ann.Outcome, tokens(z.ann), code, end.guests())
}

// tokens are those of a refusal.
func tokens(r worker.Result) string {
	if r.Outcome != worker.Stale {
		return ""
	}
	return fmt.Sprintf(": carried %d, stored %d", r.Carried, r.Stored)
}

// awakening is what came of a zombie.
type awakening struct {
	lease    worker.Lease // A's
	takeOver worker.Lease // B's
	ann, bob worker.Result
	end      state
}

// wakeZombie stops A before its write, lets B take over and book, and wakes A.
func (s *scene) wakeZombie() awakening {
	var z awakening
	s.reserve(s.a, s.held("Ann", worker.AtWrite))
	z.lease = s.untilHeld(s.a)
	s.say("A gets the lease, the table is free, the card is good. Next: the write.")
	s.do(s.a.Stop)
	s.say("kill -STOP %d: A stands still.", s.a.PID())
	s.untilFree()
	s.say("The TTL is over: Redis drops the owner key. A does not know.")

	s.reserve(s.b, s.request("Bob"))
	z.bob, z.takeOver = s.untilDone(s.b)
	s.say("B gets the lease, books the table for Bob, and tells him so.")
	s.check(z.bob.Outcome == worker.Booked, "Bob was to be booked, and got %q %s", z.bob.Outcome, z.bob.Error)

	woken := s.databaseTime()
	s.goOn(s.a)
	s.do(s.a.Continue)
	z.ann, _ = s.untilDone(s.a)
	z.end = s.say("kill -CONT %d: A wakes, and its write goes out%s.", s.a.PID(), answer(z.ann))
	s.check(s.heardSince(woken, s.a), "Postgres has heard nothing from A since it woke, so nothing is shown here")
	return z
}

func answer(r worker.Result) string {
	switch r.Outcome {
	case worker.Booked:
		return ". It is let in; A tells Ann that she has the table"
	case worker.Stale:
		return fmt.Sprintf(" with token %d. Postgres has %d: refused, and nothing is written", r.Carried, r.Stored)
	}
	return fmt.Sprintf(". The answer is %q", r.Outcome)
}

func (s *scene) databaseTime() (now time.Time) {
	s.do(func() error { return s.DB.QueryRow(s.ctx, `SELECT clock_timestamp()`).Scan(&now) })
	return now
}

// heardSince asks Postgres whether a worker has sent it anything.
func (s *scene) heardSince(since time.Time, w *worker.Worker) (heard bool) {
	s.do(func() error {
		return s.DB.QueryRow(s.ctx, `
			SELECT EXISTS (SELECT FROM pg_stat_activity
			               WHERE datname = current_database() AND application_name = $1 AND query_start > $2)`,
			worker.ClientName(w.Name), since).Scan(&heard)
	})
	return heard
}

// forge writes to the bookings without a token, and returns the SQLSTATE of the answer.
func (s *scene) forge() (code string) {
	s.do(func() error {
		_, err := s.DB.Exec(s.ctx, `UPDATE bookings SET guest = 'Eve' WHERE table_id = $1`, s.story.table)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			code = "00000" // Postgres's word for success
		case errors.As(err, &refused):
			code = refused.Code
		default:
			return err
		}
		return nil
	})
	return code
}

var control = story{
	title: "The control: the same zombie, no fence",
	table: 10,
	intro: "The same service, the same lease, the same statements, the same stop. But nothing protects this " +
		"table, and the write carries no token: " +
		"a lock is all there is.",
	promise: "without a fence Bob's booking is lost, or the other stories would show nothing",
	play:    playControl,
}

func playControl(s *scene) (seen string) {
	s.plain = plainTable
	z := s.wakeZombie()
	s.check(z.ann.Outcome == worker.Booked, "Ann was to be booked over Bob, and got %q %s", z.ann.Outcome, z.ann.Error)
	s.check(z.end.guests() == "Ann", "the table is booked for %s", z.end.guests())
	return fmt.Sprintf("Bob was answered %q, Ann was answered %q, and the table is booked for %s",
		z.bob.Outcome, z.ann.Outcome, z.end.guests())
}
