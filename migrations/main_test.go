package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// session is one connection, used as psql would: SQL in, SQLSTATE out.
type session struct {
	*testing.T
	conn *pgx.Conn
}

// newSession connects to a migrated database of its own, in which setup has run.
func newSession(t *testing.T, setup ...string) *session {
	t.Helper()
	return connect(t, testenv.Postgres(t, setup...).Config().ConnString())
}

func connect(t *testing.T, url string) *session {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	return connectAs(t, config)
}

func connectAs(t *testing.T, config *pgx.ConnConfig) *session {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	s := &session{t, conn}
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	return s
}

// beside is another connection to the same database.
func (s *session) beside() *session {
	s.Helper()
	return connect(s.T, s.conn.Config().ConnString())
}

func (s *session) exec(sql string) {
	s.Helper()
	_, err := s.conn.PgConn().Exec(s.Context(), sql).ReadAll()
	require.NoError(s, err, sql)
}

// refused runs sql, expects the SQLSTATE, and leaves no transaction open.
func (s *session) refused(code, sql string) *pgconn.PgError {
	s.Helper()
	_, err := s.conn.PgConn().Exec(s.Context(), sql).ReadAll()
	var pgErr *pgconn.PgError
	require.True(s, errors.As(err, &pgErr), "%s\ngave %v, want SQLSTATE %s", sql, err, code)
	require.Equal(s, code, pgErr.Code, "%s\n%v\n%s", sql, pgErr, pgErr.Detail)
	_, err = s.conn.PgConn().Exec(s.Context(), "ROLLBACK").ReadAll()
	require.NoError(s, err)
	return pgErr
}

// sqlstate is the code of a refusal by the server, empty for any other error and for none.
func sqlstate(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// one is the single value that sql selects, as text.
func (s *session) one(sql string, args ...any) string {
	s.Helper()
	var value *string
	require.NoError(s, s.conn.QueryRow(s.Context(), "SELECT ("+sql+")::text", args...).Scan(&value))
	if value == nil {
		return ""
	}
	return *value
}

// fenced runs sql in a transaction that has entered each resource with token.
func (s *session) fenced(token int, resource, sql string) string {
	s.Helper()
	return "BEGIN; " + enter(token, resource) + "; " + sql + "; COMMIT"
}

// leases gives each token one lease, so that entering twice with a token is the same holder.
var leases = uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

func enter(token int, resource string) string {
	return fmt.Sprintf("SELECT fencedb.enter('%s', %d, '%s')", resource, token, leaseOf(token))
}

func leaseOf(token int) uuid.UUID { return uuid.NewSHA1(leases, []byte{byte(token), byte(token >> 8)}) }

// awaitBlocked waits until the backend pid waits for a lock of another session.
func (s *session) awaitBlocked(pid uint32) {
	s.Helper()
	require.Eventually(s, func() bool {
		return s.one(`SELECT cardinality(pg_blocking_pids($1)) > 0`, pid) == "true"
	}, time.Minute, 2*time.Millisecond, "backend %d does not wait for anybody", pid)
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// empty is a database without anything, for migrators and for SQL.
func empty(t *testing.T) (*sql.DB, *session) {
	t.Helper()
	url := testenv.PostgresURL(t)
	return open(t, url), connect(t, url)
}
