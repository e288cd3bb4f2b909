package look

import (
	"cmp"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/lease"
)

// Holder is a lease in Redis.
type Holder struct {
	LeaseID     uuid.UUID  `json:"lease_id"`
	Token       int64      `json:"token"`
	IssuedAt    *time.Time `json:"issued_at"` // nil: the token does not tell
	ExpiresInMS int64      `json:"expires_in_ms"`
	Label       string     `json:"label"` // who holds, for people: lease.Config.Holder; "": not known
}

// holderOf is nil if nobody holds.
func holderOf(c term.Clocks, known lease.Inspection) *Holder {
	if known.Token == 0 {
		return nil
	}
	return &Holder{known.Holder, known.Token, c.IssuedAt(known.Token), known.ExpiresIn.Milliseconds(), known.Label}
}

// age is empty if it is unknown.
func (h Holder) age(p term.Page) string {
	if h.IssuedAt == nil {
		return ""
	}
	return term.Span(max(0, p.Ahead.SinceRedis(*h.IssuedAt)))
}

// Name is for people.
func (h *Holder) Name() string {
	return cmp.Or(term.Visible(h.Label), "lease "+h.LeaseID.String()[:8])
}
