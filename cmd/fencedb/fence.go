package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// fence is a row of the ledger in Postgres.
type fence struct {
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`
	EnteredAt time.Time `json:"entered_at"`

	revoked bool // by a revocation, so no earlier holder is left
	reset   bool // by a reset, which lets holders above it in again
	tooHigh bool // no lease can pass it
	foreign bool // of another issuer
	setBack bool // once, so that tokens above it do not prove anything
}

// SQL conditions on a fence f. No token of a foreign issuer is too high, because Redis does not
// issue it.
const (
	foreign = `EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(f.resource, ':', 1))`
	tooHigh = `(f.last_fencing_token >= 9007199254740991 AND NOT ` + foreign + `)`
)

// readFence returns nil if no token has entered yet.
func readFence(ctx context.Context, pool *pgxpool.Pool, resource string) (*fence, error) {
	var f fence
	err := pool.QueryRow(ctx, `
		SELECT f.last_fencing_token, f.lease_id::text, f.advanced_at, coalesce(a.event = 'revoke', false), coalesce(a.event = 'reset', false), `+tooHigh+`, `+foreign+`, f.reset_from IS NOT NULL
		FROM fencedb.fences f LEFT JOIN fencedb.audit a
		  ON a.resource = f.resource AND a.event IN ('revoke', 'reset') AND a.details ->> 'lease_id' = f.lease_id::text
		WHERE f.resource = $1`, resource).
		Scan(&f.Token, &f.LeaseID, &f.EnteredAt, &f.revoked, &f.reset, &f.tooHigh, &f.foreign, &f.setBack)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, maySee(ctx, pool)
	}
	if err != nil {
		return nil, explained(err)
	}
	f.EnteredAt = f.EnteredAt.UTC()
	return &f, nil
}

// maySee tells whether a ledger in which nothing was found is one that the role may see: row
// security shows a member of pg_read_all_data an empty one.
func maySee(ctx context.Context, pool *pgxpool.Pool) error {
	var may bool
	err := pool.QueryRow(ctx, `SELECT fencedb.operates()`).Scan(&may)
	if err == nil && !may {
		return errMayNot
	}
	return explained(err)
}

func (f *fence) text(p page) string {
	if f == nil {
		return "no token has entered"
	}
	return fmt.Sprintf("token %d, entered %s\nlease %s", f.Token, ago(p.ahead.sincePostgres(f.EnteredAt)), f.LeaseID)
}

// transaction is an open transaction that holds a fence.
type transaction struct {
	PID         int    `json:"pid"`
	Application string `json:"application"`
	State       string `json:"state"`
	OpenMS      *int64 `json:"open_ms"` // nil: not visible; then State says to whom, and what to grant
	User        string `json:"user"`
	Client      string `json:"client"`    // address and port, or socket; "": not visible, or it is prepared
	WaitsFor    string `json:"waits_for"` // as in pg_stat_activity, with who is in its way; "": nothing, or not visible
}

// readTransactions also tells what the role of the command may see of the sessions.
func readTransactions(ctx context.Context, pool *pgxpool.Pool, resources ...string) ([]transaction, error) {
	rows, _ := pool.Query(ctx, `SELECT b.pid, b.application, b.state, b.open_ms, coalesce(a.usename, p.owner, ''),
			coalesce(host(a.client_addr) || ':' || a.client_port, CASE a.client_port WHEN -1 THEN 'socket' END, ''),
			concat_ws(', ', nullif(concat_ws(' ', a.wait_event_type, a.wait_event), ''), CASE WHEN a.wait_event_type = 'Lock' THEN 'held by pid ' || array_to_string(pg_blocking_pids(a.pid), ', ') END)
		FROM fencedb.blockers($1::text[]) b LEFT JOIN pg_stat_activity a ON a.pid = b.pid
			LEFT JOIN pg_prepared_xacts p ON b.pid = 0 AND p.gid = b.application AND p.database = current_database()
		ORDER BY b.open_ms DESC NULLS LAST`, resources)
	all, err := pgx.AppendRows([]transaction{}, rows, pgx.RowToStructByPos[transaction])
	return all, explained(err)
}

// named names each with what it does, and for how long.
func named(all []transaction) string {
	var names []string
	for _, t := range all {
		names = append(names, fmt.Sprintf("pid %d (%s, %s, open for %s)", t.PID, visible(t.Application), visible(t.State), t.openFor()))
	}
	return strings.Join(names, ", ")
}

func (t transaction) name() string {
	if t.PID == 0 {
		return "the prepared transaction " + visible(t.Application)
	}
	return fmt.Sprintf("pid %d (%s)", t.PID, visible(t.Application))
}

func (t transaction) openFor() string {
	if t.OpenMS == nil {
		return "not visible"
	}
	return millis(*t.OpenMS)
}
