package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// fence is what the ledger in Postgres knows about a resource.
type fence struct {
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`
	EnteredAt time.Time `json:"entered_at"`

	revoked bool // its lease is a revocation's, so no holder was left below it
	reset   bool // its lease is a reset's, so holders above it were let in again
	tooHigh bool // no lease gets past it
}

// Conditions on a fence f. Where another issuer makes the tokens, Redis does not have to follow, and none is too high.
const (
	foreign = `EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(f.resource, ':', 1))`
	tooHigh = `(f.last_fencing_token >= 9007199254740991 AND NOT ` + foreign + `)`
)

// readFence returns nil where no token has entered yet.
func readFence(ctx context.Context, pool *pgxpool.Pool, resource string) (*fence, error) {
	var f fence
	err := pool.QueryRow(ctx, `
		SELECT f.last_fencing_token, f.lease_id::text, f.advanced_at, coalesce(a.event = 'revoke', false), coalesce(a.event = 'reset', false), `+tooHigh+`
		FROM fencedb.fences f LEFT JOIN fencedb.audit a
		  ON a.resource = f.resource AND a.event IN ('revoke', 'reset') AND a.details ->> 'lease_id' = f.lease_id::text
		WHERE f.resource = $1`, resource).
		Scan(&f.Token, &f.LeaseID, &f.EnteredAt, &f.revoked, &f.reset, &f.tooHigh)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, explained(err)
	}
	f.EnteredAt = f.EnteredAt.UTC()
	return &f, nil
}

// transaction is an open one that holds a fence.
type transaction struct {
	PID         int    `json:"pid"`
	Application string `json:"application"`
	State       string `json:"state"`
	OpenMS      int64  `json:"open_ms"`
}

func (t transaction) open() time.Duration { return time.Duration(t.OpenMS) * time.Millisecond }

func readTransactions(ctx context.Context, pool *pgxpool.Pool, resource string) ([]transaction, error) {
	rows, _ := pool.Query(ctx, `SELECT pid, coalesce(application, '') AS application, coalesce(state, '') AS state, coalesce(open_ms, 0) AS open_ms
		FROM fencedb.blockers(ARRAY[$1::text]) ORDER BY open_ms DESC`, resource)
	open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[transaction])
	if err != nil {
		return nil, explained(err)
	}
	return append([]transaction{}, open...), nil
}
