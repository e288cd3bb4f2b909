package stage

import (
	"context"
	"time"

	"github.com/fencedb/fencedb/examples/web/journal"
	"github.com/fencedb/fencedb/observe/feed"
)

// follow writes down what the workers publish, as `fencedb watch` would show it.
func (s *Stage) follow() {
	for s.life.Err() == nil {
		_ = feed.Follow(s.life, s.redis, "$", s.heard) // it comes back only when Redis refuses, or at the end
		s.rest(time.Second)
	}
}

func (s *Stage) heard(e feed.Event) error {
	s.journal.Add(journal.Record{
		At: e.At, Kind: journal.Kind(e.Kind), Worker: e.Worker,
		Token: e.Token, Stored: e.Stored, LeaseID: e.LeaseID,
		TTL: e.TTL.Milliseconds(), Took: e.Took.Milliseconds(), Cause: e.Cause,
	})
	return context.Cause(s.life)
}
