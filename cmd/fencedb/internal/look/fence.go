package look

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// fence is a row of the ledger in Postgres.
type fence struct {
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`
	EnteredAt time.Time `json:"entered_at"`

	revoked bool // by a revocation, so no earlier holder is left
	reset   bool // by a reset, which lets holders above it in again
	TooHigh bool `json:"-"` // no lease can pass it
	Foreign bool `json:"-"` // of another issuer
	setBack bool // once, so that tokens above it do not prove anything
}

// SQL conditions on a fence f. No token of a foreign issuer is too high, because Redis does not
// issue it.
const (
	Foreign = `EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(f.resource, ':', 1))`
	TooHigh = `(f.last_fencing_token >= 9007199254740991 AND NOT ` + Foreign + `)`
)

// readFence returns nil if no token has entered yet.
func readFence(ctx context.Context, pool *pgxpool.Pool, resource string) (*fence, error) {
	var f fence
	err := pool.QueryRow(ctx, `
		SELECT f.last_fencing_token, f.lease_id::text, f.advanced_at, coalesce(a.event = 'revoke', false), coalesce(a.event = 'reset', false), `+TooHigh+`, `+Foreign+`, f.reset_from IS NOT NULL
		FROM fencedb.fences f LEFT JOIN fencedb.audit a
		  ON a.resource = f.resource AND a.event IN ('revoke', 'reset') AND a.details ->> 'lease_id' = f.lease_id::text
		WHERE f.resource = $1`, resource).
		Scan(&f.Token, &f.LeaseID, &f.EnteredAt, &f.revoked, &f.reset, &f.TooHigh, &f.Foreign, &f.setBack)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, conn.MaySee(ctx, pool)
	}
	if err != nil {
		return nil, conn.Explained(err)
	}
	f.EnteredAt = f.EnteredAt.UTC()
	return &f, nil
}

func (f *fence) text(p term.Page) string {
	if f == nil {
		return "no token has entered"
	}
	return fmt.Sprintf("token %d, entered %s\nlease %s", f.Token, term.Ago(p.Ahead.SincePostgres(f.EnteredAt)), f.LeaseID)
}
