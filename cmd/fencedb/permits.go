package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/fencedb/fencedb/lease"
)

// permits is a semaphore in Redis. Its limit is not there: each program has its own.
type permits struct {
	Waiters int      `json:"waiters"` // one for each process that waits
	Permits []holder `json:"permits"` // the longest held first
}

// readPermits reads what Redis has of a semaphore.
func (c clocks) readPermits(ctx context.Context, s *lease.Semaphore, resource string) (*permits, error) {
	known, err := s.Inspect(ctx, resource)
	if err != nil {
		return nil, err
	}
	found := &permits{known.Waiters, []holder{}}
	for _, p := range known.Permits {
		h := holder{p.LeaseID, p.Token, c.issuedAt(p.Token), p.ExpiresIn.Milliseconds(), p.Label}
		found.Permits = append(found.Permits, h)
	}
	slices.SortFunc(found.Permits, func(a, b holder) int { return cmp.Compare(a.Token, b.Token) })
	return found, nil
}

func (f *permits) text() string {
	return fmt.Sprintf("permits held: %d, waiting: %d; each program has its own limit", len(f.Permits), f.Waiters)
}

func (f permits) print(p page) {
	list(p, []string{"PERMIT", "TOKEN", "HELD FOR", "ENDS IN", "HOLDER"}, f.Permits, func(h holder) []string {
		return []string{h.LeaseID.String(), fmt.Sprint(h.Token), h.age(p), millis(h.ExpiresInMS), visible(h.Label)}
	})
}
