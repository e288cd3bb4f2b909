package act

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// Former is the holder that was revoked.
type Former struct {
	LeaseID uuid.UUID `json:"lease_id"`
	Token   int64     `json:"token"`
	Label   string    `json:"label,omitempty"` // who held, for people; "": not known
}

func (f *Former) of() string {
	if f.Label == "" {
		return ""
	}
	return " of " + term.Visible(f.Label)
}

// prepare checks what has to be true before a resource is changed with these functions, and changes
// nothing. With force it may be one that is held, or known, in another namespace.
func prepare(ctx context.Context, s *conn.Servers, resource string, force bool,
	functions ...string) (*look.Inspection, error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	if err := mayCall(ctx, s.Pool, functions...); err != nil {
		return nil, err
	}
	found, err := look.Read(ctx, s, resource)
	if away := s.Away(); err == nil && away != nil {
		err = fmt.Errorf("%w: %w", app.ErrUnchanged, away)
	}
	if err == nil && !force && found.IsSemaphore() {
		err = fmt.Errorf("%w: %s is a semaphore here, and no lease; fencedb revoke --permit ends a permit; with --force it is done all the same", app.ErrUnchanged, term.Visible(resource))
	} else if err == nil && !force {
		err = look.NotElsewhere(s, resource, found.IsKnown(), found.Elsewhere, found.Unsearched)
	}
	return found, err
}

// formerOf is the holder that was found.
func formerOf(r *look.Inspection) *Former {
	h := app.Value(r.Holder)
	return app.Optional(Former{h.LeaseID, h.Token, h.Label}, r.Holder != nil)
}
