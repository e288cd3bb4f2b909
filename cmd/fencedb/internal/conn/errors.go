package conn

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
)

// unreachable is the error of a server that was asked first, with its address once: the errors of
// drivers have none, or several.
func unreachable(name, host string, err error) error {
	text := fmt.Sprintf("%s: cannot reach %s: %s", name, host, Reason(err))
	if errors.As(err, new(*pgconn.PgError)) || errors.As(err, new(redis.Error)) {
		text = fmt.Sprintf("%s: %s refuses: %s", name, host, Reason(err))
	}
	return app.InShort(text, err)
}

// Reason is the innermost part of an error, without the addresses and attempts around it.
func Reason(err error) string {
	if refused, is := errors.AsType[*pgconn.PgError](err); is {
		return refused.Error()
	}
	if lookup, is := errors.AsType[*net.DNSError](err); is {
		return lookup.Err
	}
	if attempt, is := errors.AsType[*net.OpError](err); is {
		err = attempt.Err
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return app.InWords(err)
}

// InsufficientPrivilege and the others are SQLSTATEs of an incomplete set-up.
const InsufficientPrivilege, undefinedTable, undefinedSchema, undefinedFunction = "42501", "42P01", "3F000", "42883"

// Explained adds the remedy to errors of an incomplete set-up, and of a server that is not done in
// time.
func Explained(err error) error {
	if pgconn.Timeout(err) && !errors.Is(err, context.Canceled) {
		return app.InShort("postgres: no answer in time (--timeout); a lock may be in the way, see pg_blocking_pids", err)
	}
	switch refused, _ := errors.AsType[*pgconn.PgError](err); app.Value(refused).Code {
	case InsufficientPrivilege:
		return fmt.Errorf("%w, and GRANT USAGE ON SCHEMA fencedb TO PUBLIC if that is missing: %w", ErrMayNot, err)
	case undefinedTable, undefinedSchema, undefinedFunction:
		return fmt.Errorf("postgres: the schema fencedb of this database is missing, or older than this command: see that --postgres names the database of the programs, and run fencedb migrate up: %w", err)
	}
	return err
}

// ErrReplica is the error of a command that must not ask a replica.
var ErrReplica = fmt.Errorf("%w: this Redis is a replica, which may not know who holds what", app.ErrUnchanged)

// ErrMayNot is the error of a role that is not an operator.
var ErrMayNot = errors.New("postgres: permission denied for this role; let the owner of the schema fencedb run SELECT fencedb.allow('role', operator => true)")

// MaySee tells whether a ledger in which nothing was found is one that the role may see: row
// security shows a member of pg_read_all_data an empty one.
func MaySee(ctx context.Context, pool *pgxpool.Pool) error {
	var may bool
	err := pool.QueryRow(ctx, `SELECT has_function_privilege('fencedb.prune'::regproc, 'EXECUTE')`).Scan(&may)
	if err == nil && !may {
		return ErrMayNot
	}
	return Explained(err)
}
