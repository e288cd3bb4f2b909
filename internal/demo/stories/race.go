package stories

import (
	"fmt"
	"time"

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
	*actor
	guest string
	progress
}

func playRace(s *scene) (seen string) {
	pressed := time.Now()
	s.reserve(s.a, s.held("Ann", worker.AtCard))
	s.reserve(s.b, s.held("Bob", worker.AtCard))
	apart := time.Since(pressed).Round(time.Microsecond)
	winner, loser := s.compete()
	s.say("The requests go out %v apart. %s gets the lease and asks %s's bank.", apart, winner.name, winner.guest)
	refused := s.say("%s is refused at once: held by another, ask again in %s.", loser.name, seconds(loser.done.RetryAfter))
	s.check(refused.LastToken == winner.lease.Token, "the refused request used up token %d", refused.LastToken)

	s.goOn(winner.actor)
	s.untilDone(winner.actor)
	s.say("The card is good. %s books the table and gives the lease back.", winner.name)

	s.reserve(loser.actor, s.request(loser.guest))
	again, _ := s.untilDone(loser.actor)
	end := s.say("%s asks again. %s gets the lease, sees the booking: taken.", loser.guest, loser.name)
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
		winner.name, winner.held, winner.done.Outcome, loser.name, loser.held, loser.done.Outcome)
	return winner, loser
}
