package main

import (
	"context"
	"errors"
	"os"
	"os/user"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
)

const (
	flagReason   = "reason"
	flagOperator = "operator"
)

func auditFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: flagReason, Usage: "`WHY`, for the audit and whoever reads it; required"},
		&cli.StringFlag{Name: flagOperator, Usage: "`WHO` does it, for the audit; the user of this machine unless given", Sources: cli.EnvVars("FENCEDB_OPERATOR")},
	}
}

// event is a row of fencedb.audit.
type event struct {
	kind     string
	resource *string // nil: many
	operator string
	reason   string
}

func newEvent(kind string, resource *string, cmd *cli.Command) (event, error) {
	e := event{kind, resource, cmd.String(flagOperator), cmd.String(flagReason)}
	if e.reason == "" {
		return event{}, usage("--%s is required: say why, whoever reads the audit will want to know", flagReason)
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

var errMayNot = errors.New("postgres: the role may not do this; let the owner of the schema fencedb run SELECT fencedb.allow_operator('role')")

// mayRecord finds out before anything is changed whether the change could be recorded.
func mayRecord(ctx context.Context, pool *pgxpool.Pool) error {
	var may bool
	err := pool.QueryRow(ctx, `SELECT has_function_privilege('fencedb.record(text,text,text,text,jsonb)', 'EXECUTE')
		AND has_function_privilege('fencedb.enter(text,bigint,uuid,bigint,bigint)', 'EXECUTE')`).Scan(&may)
	if err == nil && !may {
		return errMayNot
	}
	return explained(err)
}
