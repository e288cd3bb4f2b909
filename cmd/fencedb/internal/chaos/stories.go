package chaos

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

var stories = []story{race, crowd, cut, crash, zombie, control}

var race = story{
	title:   "Two guests, one table",
	table:   "table:12",
	intro:   `Ann and Bob press "reserve table 12" in the same millisecond. Her request goes to process A, his to process B.`,
	promise: "one booking; the other guest is refused at once, learns when to ask again, and uses up no token",
	script:  playRace,
}

// side is one of two that compete.
type side struct {
	*hand
	guest string
	answer
}

func playRace(s *scene) (seen string) {
	pressed := time.Now()
	s.tell(s.a, order{Do: toAcquire, Guest: "Ann"})
	s.tell(s.b, order{Do: toAcquire, Guest: "Bob"})
	apart := time.Since(pressed).Round(time.Microsecond)
	sides := []side{{s.a, "Ann", s.hear(s.a)}, {s.b, "Bob", s.hear(s.b)}}
	if sides[1].Outcome == succeeded {
		slices.Reverse(sides)
	}
	winner, loser := sides[0], sides[1]
	s.want(winner.hand, winner.answer, succeeded)
	s.want(loser.hand, loser.answer, held)
	granted := s.say("The requests go out %v apart. %s gets the lease and asks %s's bank.", apart, winner.name, winner.guest)
	again := seconds(loser.RetryAfter)
	refused := s.say("%s is refused at once: held by another, ask again in %s.", loser.name, again)
	s.check(refused.LastToken == granted.Token, "the refused request used up token %d", refused.LastToken)

	s.finish(winner.hand, winner.guest)
	s.say("The card is good. %s books the table and gives the lease back.", winner.name)

	s.does(loser.hand, order{Do: toAcquire, Guest: loser.guest}, taken)
	end := s.say("%s asks again. %s gets the lease, sees the booking: taken.", loser.guest, loser.name)
	s.check(end.guest == winner.guest, "the table is booked for %q, not for %s alone", end.guest, winner.guest)
	s.check(!end.held(), "a lease was not given back")
	return fmt.Sprintf("booked for %s; %s was answered %q (ask again in %s), then %q", end.guest, loser.guest, held, again, taken)
}

const competitors, laps = 8, 20

var crowd = story{
	title: "Eight clients, one number",
	table: "table:8",
	intro: "Eight clients count one number up, each with the lease, reading first and writing then. " +
		"Whoever finds the lease held waits for it.",
	promise: "no two are at it at once, no count is lost, and tokens rise",
	script:  playCrowd,
}

func playCrowd(s *scene) (seen string) {
	count := s.in(`SELECT coalesce(max(value), 0) FROM stage.entries WHERE resource = $1`)
	var inside, contended, together, fell, last atomic.Int64
	lap := func(i *lease.Issuer) error {
		l, err := i.Acquire(s.ctx, s.table, lease.NoWait())
		if errors.Is(err, lease.ErrHeld) {
			contended.Add(1)
			l, err = i.Acquire(s.ctx, s.table)
		}
		if err != nil {
			return err
		}
		defer l.Release(s.ctx)
		if inside.Add(1) > 1 {
			together.Add(1)
		}
		defer inside.Add(-1)
		if before := last.Swap(l.Token()); l.Token() <= before {
			fell.Add(1)
		}
		return fencedb.Tx(s.ctx, s.pool, l, func(tx pgx.Tx) error { // loses counts unless nobody else is at it
			var value int64
			if err := tx.QueryRow(s.ctx, count, s.table).Scan(&value); err != nil {
				return err
			}
			_, err := tx.Exec(s.ctx, s.in(`INSERT INTO stage.entries VALUES ($1, $2)`), s.table, value+1)
			return err
		})
	}
	var all sync.WaitGroup
	var failed [competitors]error
	began := time.Now()
	for n := range competitors {
		i, err := s.stage.issuer()
		s.must(err)
		defer i.Close(s.ctx)
		all.Go(func() {
			for run := 0; run < laps && failed[n] == nil; run++ {
				failed[n] = lap(i)
			}
		})
	}
	all.Wait()
	took := Span(time.Since(began))
	if err := errors.Join(failed[:]...); errors.Is(err, fencedb.ErrStale) {
		s.check(false, "a holder was refused: %v", err)
	} else {
		s.must(err)
	}
	s.say("They have had %d leases in %v. %d found it held, and waited.", competitors*laps, took, contended.Load())
	var counted int64
	s.must(s.pool.QueryRow(s.ctx, count, s.table).Scan(&counted))
	s.check(together.Load() == 0, "%d times two were at it at once", together.Load())
	s.check(fell.Load() == 0, "%d tokens were not higher than the one before", fell.Load())
	s.check(counted == competitors*laps, "%d counts were made, and the number is %d", competitors*laps, counted)
	if contended.Load() == 0 {
		s.must(errors.New("nobody had to wait, so this shows nothing"))
	}
	return fmt.Sprintf("exclusion verified: never two at once, %d counted, tokens rose", counted)
}

var cut = story{
	title: "The stolen lock",
	table: "table:7",
	intro: "Ann's bank is slow, and from here on A's connection to Redis is held in both directions: its renewals fail. " +
		"The lease runs out, B gets the next one, and then A reaches Redis again, where its late renewals arrive, and releases.",
	promise: "A ends its lease by its own clock before B gets the next one; A's late release and renewals leave B's lease as it is, " +
		"and A writes nothing",
	script: playCut,
}

func playCut(s *scene) (seen string) {
	first := s.does(s.a, order{Do: toAcquire, Guest: "Ann"}, succeeded)
	s.say("A gets the lease, finds the table free, and asks Ann's bank.")
	s.a.network.Set(faulty.Weather{HoldRequests: true, HoldReplies: true})
	s.tell(s.b, order{Do: toAcquire, Guest: "Bob", Wait: true})
	s.say("A's connection to Redis is held. Bob asks B, which waits for the lease.")

	over := s.does(s.a, order{Do: toOutlast}, leaseOver)
	s.say("A's lease is over by A's own clock. The bank is still silent.")
	next := s.want(s.b, s.hear(s.b), succeeded)
	before := s.say("The TTL is over: Redis drops the owner key. B gets the lease, with a higher token, and asks Bob's bank.")
	early := Span(over.Until - next.At)
	s.check(early <= 0, "the lease came to B %v before that of A had ended", early)
	s.check(next.Token > first.Token, "the token %d of B is not higher than %d of A", next.Token, first.Token)
	s.check(before.Label == "B", "the holder is %q", before.Label)

	if !s.plain { // where there is no fence, nobody looks at the lease either
		s.does(s.a, order{Do: toBook, Guest: "Ann"}, leaseOver)
	}
	s.say("Ann's bank answers. A's lease is over, so A does not write.")
	s.a.network.Set(faulty.Weather{})
	late := s.does(s.a, order{Do: toRelease}, leaseOver)
	s.check(late.Error == over.Error, "A was told %q of its release, and not how its lease had ended", late.Error)
	s.does(s.a, order{Do: toRenew}, leaseOver)
	after := s.say("A reaches Redis again. Its release and its renewals come too late, and Redis leaves B's lease alone.")
	s.check(after.Holder == before.Holder && after.Token == before.Token,
		"the lease was %s's with token %d, and is %q's with token %d", before.Label, before.Token, after.Label, after.Token)
	s.does(s.b, order{Do: toVerify}, succeeded)

	s.finish(s.b, "Bob")
	s.does(s.a, order{Do: toRenew}, leaseOver)
	end := s.say("Bob's bank answers. B books the table and gives its lease back. A renews once more: a renewal never brings a lease back.")
	s.check(!end.held(), "a lease with token %d is in Redis, where none should be", end.Token)
	s.check(end.guest == "Bob", "the table is booked for %q", end.guest)
	return fmt.Sprintf("A's lease ended with %q, %v before B got the next; the lease was B's before and after A's release; booked for %s",
		over.Error, -early, end.guest)
}

var crash = story{
	title:   "The crash",
	table:   "table:3",
	intro:   "Process A is killed (SIGKILL) in the middle of a reservation. Nobody is left to give its lease back.",
	promise: "the table is free again after the TTL at the latest, without anybody's help",
	script:  playCrash,
}

func playCrash(s *scene) (seen string) {
	s.does(s.a, order{Do: toAcquire, Guest: "Ann"}, succeeded)
	s.say("A gets the lease, finds the table free, and asks Ann's bank.")

	s.a.Kill()
	killed := time.Now()
	left := s.say("kill -KILL %d: A is gone. Its lease is not.", s.a.PID())
	s.check(left.held(), "the lease ended with the process, so nothing is shown here")
	s.check(left.ExpiresIn <= s.TTL, "the lease ends only in %s", seconds(left.ExpiresIn))

	refused := s.does(s.b, order{Do: toAcquire, Guest: "Bob"}, held)
	s.say("Bob asks B for the table: held by another, again in %s.", seconds(refused.RetryAfter))

	s.untilFree()
	took := time.Since(killed)
	s.say("The TTL is over: Redis drops the owner key, %s after the crash.", seconds(took))

	s.reserve(s.b, "Bob")
	end := s.say("Bob asks again. B books the table for Bob.")
	s.check(end.guest == "Bob", "the table is booked for %q", end.guest)
	return fmt.Sprintf("free %s after the crash (TTL %v); then booked for %s", seconds(took), s.TTL, end.guest)
}

var zombie = story{
	title: "The zombie",
	table: "table:9",
	intro: "Process A is stopped (SIGSTOP) between its decision and its write, for longer than its lease lasts, " +
		"as a garbage collection or a paused virtual machine would do it. A has looked at its clock and its lease " +
		"for the last time, both were good, and only the sending is left. When A wakes, nothing on its own side " +
		"stops the write any more; only the place where the data lives can.",
	promise: "Postgres refuses A's write, since its token is older than the stored one, and Bob keeps the table; " +
		"without a token nobody writes at all",
	script: playZombie,
}

func playZombie(s *scene) (seen string) {
	first, ann, end := s.wakeZombie()
	s.check(ann.Outcome == stale, "Ann was to be answered %q, and got %v", stale, ann)
	s.check(first.Token < end.LastToken, "B's token %d is not higher than A's %d", end.LastToken, first.Token)
	s.check(end.fence == end.LastToken, "the stored fence is %d, not B's token %d", end.fence, end.LastToken)
	s.check(end.guest == "Bob" && end.wrote == end.LastToken,
		"the table is booked for %s with token %d, which B's should have kept out", end.guest, end.wrote)

	code := "00000" // Postgres's word for success
	_, err := s.pool.Exec(s.ctx, s.in(`UPDATE stage.`+order{Plain: s.plain}.table()+` SET guest = 'Eve' WHERE resource = $1`), s.table)
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		code = refused.Code
	} else {
		s.must(err)
	}
	last := s.say("psql, without a token, tries to write Eve over Bob: SQLSTATE %s.", code)
	s.check(code == "FN002", "a write without a token was answered with SQLSTATE %s", code)
	s.check(last.guest == end.guest, "the table is booked for %s", last.guest)
	tokens := ""
	if ann.Outcome == stale {
		tokens = fmt.Sprintf(": carried %d, stored %d", ann.Carried, ann.Stored)
	}
	return fmt.Sprintf("A was answered %q%s; the write without a token, %s; booked for %s", ann.Outcome, tokens, code, last.guest)
}

// wakeZombie stops A before its write, lets B take over and book, and wakes A. It returns the state
// when A was stopped, what A was answered, and the state after that.
func (s *scene) wakeZombie() (first state, ann answer, end state) {
	s.does(s.a, order{Do: toAcquire, Guest: "Ann"}, succeeded)
	s.say("A gets the lease, the table is free, the card is good. Next: the write.")
	s.must(s.a.Stop())
	first = s.say("kill -STOP %d: A stands still.", s.a.PID())
	s.tell(s.a, order{Do: toBook, Guest: "Ann", Sure: true}) // it finds that when it wakes
	s.untilFree()
	s.say("The TTL is over: Redis drops the owner key. A does not know.")

	s.reserve(s.b, "Bob")
	s.say("B gets the lease, books the table for Bob, and tells him so.")

	s.must(s.a.Continue())
	ann = s.hear(s.a)
	end = s.say("kill -CONT %d: A wakes, and its write goes out%s.", s.a.PID(), ann.text())
	return first, ann, end
}

func (a answer) text() string {
	switch a.Outcome {
	case succeeded:
		return ". It is let in; A tells Ann that she has the table"
	case stale:
		return fmt.Sprintf(" with token %d. Postgres has %d: refused, and nothing is written", a.Carried, a.Stored)
	}
	return fmt.Sprintf(". The answer is %q", a.Outcome)
}

var control = story{
	title: "The control: the same zombie, no fence",
	table: "table:10",
	intro: "The same processes, the same lease, the same statements, the same stop. But the table has no fence, " +
		"and the write carries no token: a lock is all there is.",
	promise: "without a fence Bob's booking is lost, or the other stories would show nothing",
	script:  playControl,
}

func playControl(s *scene) (seen string) {
	s.plain = true
	_, ann, end := s.wakeZombie()
	s.check(ann.Outcome == succeeded, "Ann was to be answered %q, and got %v", succeeded, ann)
	s.check(end.guest == "Ann", "the table is booked for %s", end.guest)
	return fmt.Sprintf("Bob was told that he has the table, so was Ann, and the table is booked for %s", end.guest)
}
