package story

import (
	"fmt"

	"github.com/fencedb/fencedb/examples/booking/worker"
)

var control = story{
	title: "The control: the same zombie, no fence",
	table: 10,
	intro: "The same service, the same lease, the same statements, the same stop. But nothing protects this table, and the write carries no token: " +
		"a lock is all there is.",
	promise: "without a fence Bob's booking is lost, or the other stories would show nothing",
	play:    playControl,
}

func playControl(s *scene) (seen string) {
	s.plain = plainTable
	z := s.wakeZombie()
	s.check(z.ann.Outcome == worker.Booked, "Ann was to be booked over Bob, and got %q %s", z.ann.Outcome, z.ann.Error)
	s.check(z.end.guests() == "Ann", "the table is booked for %s", z.end.guests())
	return fmt.Sprintf("Bob was answered %q, Ann was answered %q, and the table is booked for %s", z.bob.Outcome, z.ann.Outcome, z.end.guests())
}
