package stage

import (
	"context"
	"time"

	"github.com/fencedb/fencedb/examples/web/journal"
	"github.com/fencedb/fencedb/observe/feed"
)

// follow writes down what the workers publish, as `fencedb watch` would show it.
func (s *Stage) follow() {
	from := "0" // the workers are there already, and Redis is ours
	for s.life.Err() == nil {
		_ = feed.Follow(s.life, s.redis, from, func(e feed.Event) error { // it comes back only when Redis refuses, or at the end
			from = e.ID
			return s.heard(e)
		})
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
