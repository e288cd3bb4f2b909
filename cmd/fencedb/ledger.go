package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
)

// fence is a row of the ledger in Postgres.
type fence struct {
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`
	EnteredAt time.Time `json:"entered_at"`

	revoked bool // by a revocation, so no earlier holder is left
	reset   bool // by a reset, which lets holders above it in again
	tooHigh bool // no lease can pass it
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

// transaction is an open transaction that holds a fence.
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

const (
	flagReason   = "reason"
	flagOperator = "operator"
)

func auditFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: flagReason, Usage: "`WHY`, for the audit; required"},
		&cli.StringFlag{Name: flagOperator, Usage: "`WHO`; default: your user name", Sources: cli.EnvVars("FENCEDB_OPERATOR")},
	}
}

// event is a new row of fencedb.audit.
type event struct {
	kind     string
	resource *string // nil: many
	operator string
	reason   string
}

func newEvent(kind string, resource *string, cmd *cli.Command) (event, error) {
	e := event{kind, resource, cmd.String(flagOperator), cmd.String(flagReason)}
	if e.reason == "" {
		return event{}, usage("--%s is required: it is written to the audit", flagReason)
	}
	if e.operator == "" {
		e.operator = whoami()
	}
	return e, nil
}

func whoami() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		host = h
	}
	return name + "@" + host
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// record returns the id of the new row, which stays if the transaction of db commits.
func (e event) record(ctx context.Context, db querier, details any) (id int64, err error) {
	err = db.QueryRow(ctx, `SELECT fencedb.record($1, $2, $3, $4, $5)`, e.kind, e.resource, e.operator, e.reason, details).Scan(&id)
	return id, err
}

var errMayNot = errors.New("postgres: permission denied for this role; let the owner of the schema fencedb run SELECT fencedb.allow_operator('role')")

// mayRecord checks that the change can be recorded, before anything is changed.
func mayRecord(ctx context.Context, pool *pgxpool.Pool) error {
	return mayCall(ctx, pool, "fencedb.record(text,text,text,text,jsonb)", "fencedb.enter(text,bigint,uuid,bigint,bigint)")
}

// mayCall checks that the server takes writes, and that the role may call functions that write.
func mayCall(ctx context.Context, pool *pgxpool.Pool, functions ...string) error {
	var standby, readOnly, may bool
	err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, bool_and(has_function_privilege(f, 'EXECUTE'))
		FROM unnest($1::text[]) f`, functions).Scan(&standby, &readOnly, &may)
	switch {
	case err != nil:
		return explained(err)
	case standby:
		return fmt.Errorf("%w: this Postgres is a standby; name the primary with --%s", errUnchanged, flagPostgres)
	case readOnly:
		return fmt.Errorf("%w: this Postgres takes no writes (default_transaction_read_only is on); end that first", errUnchanged)
	case !may:
		return errMayNot
	}
	return nil
}
