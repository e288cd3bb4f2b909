package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// advisoryLock makes migrators of one database take turns. It tries repeatedly instead of waiting
// in the server, for two reasons. A waiting statement holds a snapshot, for which CREATE INDEX
// CONCURRENTLY of another migrator would wait in turn. And a statement_timeout or lock_timeout of
// the session would end the wait.
type advisoryLock struct{}

// The pauses between two tries, from the first to the longest.
const (
	firstPause = 5 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// SessionLock returns when the session of conn has the lock, or when ctx ends.
func (advisoryLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := refusePooler(ctx, conn); err != nil {
		return err
	}
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		var locked bool
		err := conn.QueryRowContext(ctx, "SELECT pg_catalog.pg_try_advisory_lock("+lockID+")").Scan(&locked)
		if err != nil || locked {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another program migrates: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// SessionUnlock releases the lock. It closes a connection that may still have the lock: everybody
// would wait for it.
func (advisoryLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	var held bool
	err := conn.QueryRowContext(ctx, "SELECT pg_catalog.pg_advisory_unlock("+lockID+")").Scan(&held)
	switch {
	case err != nil:
		err = fmt.Errorf("the lock was not given back: %w", err)
	case !held:
		err = errors.New("the lock was lost meanwhile, so another program may have migrated at the same time: a migration has given it back, or the connection goes through a pooler, which may keep it; connect to Postgres itself, and look at Status")
	default:
		return nil
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	return err
}

// inTurn executes a statement under the lock.
func inTurn(ctx context.Context, db *sql.DB, statement string) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	if err := (advisoryLock{}).SessionLock(ctx, conn); err != nil {
		return err
	}
	defer func() {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, advisoryLock{}.SessionUnlock(detached, conn))
	}()
	_, err = conn.ExecContext(ctx, statement)
	return err
}

// errPooler is returned if refusePooler finds a pooler.
var errPooler = errors.New("the connection goes through a pooler that gives each transaction another session, such as PgBouncer with pool_mode = transaction: there the lock by which migrators take turns does not hold; connect to Postgres itself, or with pool_mode = session")

// refusePooler checks whether a pooler gives the session of conn to others between two
// transactions. Behind a pooler, the process id of the server differs from the one that the client
// got at its start. If it does, a second connection shows whether the two share a session. Drivers
// other than pgx do not give the process id; with them nothing is refused.
func refusePooler(ctx context.Context, conn *sql.Conn) error {
	return conn.Raw(func(driverConn any) error {
		d, ok := driverConn.(interface{ Conn() *pgx.Conn })
		if !ok {
			return nil
		}
		first := d.Conn()
		session, err := backend(ctx, first)
		if err != nil || session == fmt.Sprint(first.PgConn().PID()) {
			return err
		}
		soon, cancel := context.WithTimeout(ctx, 2*time.Second) // a pool in session mode may be full
		defer cancel()
		second, err := pgx.ConnectConfig(soon, first.Config())
		if err != nil {
			return nil
		}
		defer second.Close(context.WithoutCancel(soon)) //nolint:errcheck // it served only this question
		for range 5 {
			other, err := backend(soon, second)
			if err != nil {
				return nil
			}
			again, err := backend(ctx, first)
			if err != nil {
				return err
			}
			if other == session || again != session {
				return errPooler
			}
		}
		return nil
	})
}

// backend returns the process id of the answering server process, as text.
func backend(ctx context.Context, conn *pgx.Conn) (string, error) {
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_catalog.pg_backend_pid()").ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}
