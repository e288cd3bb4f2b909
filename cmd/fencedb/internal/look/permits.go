package look

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/lease"
)

// Permits is a semaphore in Redis. Its limit is not there: each program has its own.
type Permits struct {
	Waiters int      `json:"waiters"` // one for each process that waits
	Permits []Holder `json:"permits"` // the longest held first
}

// readPermits reads what Redis has of a semaphore.
func readPermits(ctx context.Context, c term.Clocks, s *lease.Semaphore, resource string) (*Permits, error) {
	known, err := s.Inspect(ctx, resource)
	if err != nil {
		return nil, err
	}
	found := &Permits{known.Waiters, []Holder{}}
	for _, p := range known.Permits {
		h := Holder{p.LeaseID, p.Token, c.IssuedAt(p.Token), p.ExpiresIn.Milliseconds(), p.Label}
		found.Permits = append(found.Permits, h)
	}
	slices.SortFunc(found.Permits, func(a, b Holder) int { return cmp.Compare(a.Token, b.Token) })
	return found, nil
}

func (f *Permits) text() string {
	return fmt.Sprintf("permits held: %d, waiting: %d; each program has its own limit", len(f.Permits), f.Waiters)
}

// Print implements [term.Report].
func (f Permits) Print(p term.Page) {
	term.List(p, []string{"PERMIT", "TOKEN", "HELD FOR", "ENDS IN", "HOLDER"}, f.Permits, func(h Holder) []string {
		return []string{h.LeaseID.String(), fmt.Sprint(h.Token), h.age(p), term.Millis(h.ExpiresInMS), term.Visible(h.Label)}
	})
}
