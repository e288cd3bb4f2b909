// Package act has the commands that change something. Each records that in fencedb.audit, but for
// the migrations.
package act

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
)

// event is a new row of fencedb.audit.
type event struct {
	kind     string
	resource *string // nil: many
	operator string
	reason   string
}

func (e *event) flags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "reason", Destination: &e.reason, Usage: "`WHY`, for the audit; required"},
		&cli.StringFlag{Name: "operator", Destination: &e.operator, Usage: "`WHO`; default: your user name", Sources: cli.EnvVars("FENCEDB_OPERATOR")},
	}, more...)
}

// ofOne is of for a command whose argument may be missing.
func (e *event) ofOne(cmd *cli.Command) error {
	if cmd.Args().First() == "" {
		return app.UsageError("%s takes %s", cmd.FullName(), app.Takes("RESOURCE"))
	}
	return e.of(cmd)
}

// of completes an event that is about one resource, the argument of the command.
func (e *event) of(cmd *cli.Command) error {
	e.resource = new(cmd.Args().First())
	return e.complete()
}

func (e *event) complete() error {
	if strings.TrimSpace(e.reason) == "" {
		return app.UsageError("--reason is required: it is written to the audit")
	}
	if e.operator == "" {
		var name string
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		host, _ := os.Hostname()
		e.operator = cmp.Or(name, "unknown") + "@" + cmp.Or(host, "unknown")
	}
	if !utf8.ValidString(e.reason + e.operator) { // Postgres would refuse it, after Redis has revoked
		return app.UsageError("--reason %q and --operator %q must be valid UTF-8", e.reason, e.operator)
	}
	return nil
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// record returns the id of the new row, which stays if the transaction of db commits.
func (e event) record(ctx context.Context, db querier, details map[string]any) (id int64, err error) {
	text, err := json.Marshal(details) // not a map, of which pgx does not always know the type
	if err == nil {
		err = db.QueryRow(ctx, `SELECT fencedb.record($1, $2, $3, $4, $5::jsonb)`, e.kind, e.resource, e.operator, e.reason, string(text)).Scan(&id)
	}
	return id, err
}

// Functions that a revocation calls.
const recorded, entered = "fencedb.record(text,text,text,text,jsonb)", "fencedb.enter(text,bigint,uuid,bigint,bigint,boolean,boolean)"

// mayCall checks, before anything is changed, that the server takes writes, and that the role may
// call functions that write.
func mayCall(ctx context.Context, pool *pgxpool.Pool, functions ...string) error {
	var standby, readOnly, may bool
	err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, bool_and(has_function_privilege(f, 'EXECUTE'))
		FROM unnest($1::text[]) f`, functions).Scan(&standby, &readOnly, &may)
	switch {
	case err != nil:
		return conn.Explained(err)
	case standby:
		return fmt.Errorf("%w: this Postgres is a standby; name the primary with --postgres", app.ErrUnchanged)
	case readOnly:
		return fmt.Errorf("%w: this Postgres takes no writes (default_transaction_read_only is on); end that first", app.ErrUnchanged)
	case !may:
		return conn.ErrMayNot
	}
	return nil
}

// askedAgain bounds the question what became of a change, because Postgres may hang.
const askedAgain = 5 * time.Second
