package stories

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

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
	s.do(func() error { return s.db.QueryRow(s.ctx, `SELECT clock_timestamp()`).Scan(&now) })
	return now
}

// heardSince asks Postgres whether a worker has sent it anything.
func (s *scene) heardSince(since time.Time, w *actor) (heard bool) {
	s.do(func() error {
		return s.db.QueryRow(s.ctx, `
			SELECT EXISTS (SELECT FROM pg_stat_activity
			               WHERE datname = current_database() AND application_name = $1 AND query_start > $2)`,
			worker.ClientName(w.name), since).Scan(&heard)
	})
	return heard
}

// forge writes to the bookings without a token, and returns the SQLSTATE of the answer.
func (s *scene) forge() (code string) {
	s.do(func() error {
		_, err := s.db.Exec(s.ctx, `UPDATE bookings SET guest = 'Eve' WHERE table_id = $1`, s.story.table)
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
