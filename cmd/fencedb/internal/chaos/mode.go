package chaos

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TryMode refuses a query mode in the URL of Postgres that prepares statements, where a pooler
// gives one session to several clients. A run would fail in the middle.
func (c Config) TryMode(ctx context.Context) error {
	pool, err := pgxpool.ParseConfig(c.PostgresURL)
	if err != nil {
		return err
	}
	config := pool.ConnConfig
	mode, name := config.DefaultQueryExecMode, ""
	switch mode {
	case pgx.QueryExecModeCacheStatement:
		name = "fencedb_mode"
	case pgx.QueryExecModeDescribeExec: // with a statement that has no name, in two requests
	default:
		return nil
	}
	var conns [2]*pgx.Conn
	for n := range conns {
		if conns[n], err = pgx.ConnectConfig(ctx, config); err != nil {
			return err
		}
		defer conns[n].Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was for this question
	}
	for n, conn := range conns {
		if _, err = conn.PgConn().Prepare(ctx, name, fmt.Sprint("SELECT ", n), nil); err != nil {
			break
		}
		defer conn.PgConn().Deallocate(ctx, name) //nolint:errcheck // it ends with the session
	}
	if err == nil {
		result := conns[0].PgConn().ExecPrepared(ctx, name, nil, nil, nil).Read()
		if err = result.Err; err == nil && string(result.Rows[0][0]) == "0" {
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		err = errors.New("a statement of another client was executed")
	}
	return fmt.Errorf("postgres: the query mode %q needs a session, and the pooler before Postgres gives one to several clients; add default_query_exec_mode=exec to the URL: %w", mode, err)
}
