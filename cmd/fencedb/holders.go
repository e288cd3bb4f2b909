package main

import (
	"cmp"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/lease"
)

// holder is a lease in Redis.
type holder struct {
	LeaseID     uuid.UUID  `json:"lease_id"`
	Token       int64      `json:"token"`
	IssuedAt    *time.Time `json:"issued_at"` // nil: the token does not tell
	ExpiresInMS int64      `json:"expires_in_ms"`
	Label       string     `json:"label"` // who holds, for people: lease.Config.Holder; "": not known
}

// holder is nil if nobody holds.
func (c clocks) holder(known lease.Inspection) *holder {
	if known.Token == 0 {
		return nil
	}
	return &holder{known.Holder, known.Token, c.issuedAt(known.Token), known.ExpiresIn.Milliseconds(), known.Label}
}

// age is empty if it is unknown.
func (h holder) age(p page) string {
	if h.IssuedAt == nil {
		return ""
	}
	return span(max(0, p.ahead.sinceRedis(*h.IssuedAt)))
}

// name is for people.
func (h *holder) name() string {
	return cmp.Or(visible(h.Label), "lease "+h.LeaseID.String()[:8])
}

// former is the holder that was revoked.
type former struct {
	LeaseID uuid.UUID `json:"lease_id"`
	Token   int64     `json:"token"`
	Label   string    `json:"label,omitempty"` // who held, for people; "": not known
}

func (f *former) of() string {
	if f.Label == "" {
		return ""
	}
	return " of " + visible(f.Label)
}
