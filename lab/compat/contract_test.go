// Package compat shows the libraries through which most Go programs reach Postgres behind the
// fence, each in the way it is meant to be used, and holds all of them to one contract.
package compat

import (
	"context"
	_ "embed"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// A library is what an application has written with it: one way to book that enters the fence
// first, one that forgot. Errors come back as the application would judge them, with errors.Is.
type library struct {
	book   func(ctx context.Context, grant fencedb.Grant, table int, guest string) error
	forget func(ctx context.Context, table int, guest string) error
}

// holdToContract runs the contract over a library that open connects to a database of its own.
func holdToContract(t *testing.T, open func(t *testing.T, pool *pgxpool.Pool) library) {
	for name, test := range map[string]func(*testing.T, *pgxpool.Pool, library){
		"commits behind the fence":                      commits,
		"refuses a stale token":                         refusesStale,
		"refuses a write that forgot to enter":          refusesForgotten,
		"refuses a row of another resource":             refusesOtherResource,
		"the next transaction carries nothing with it":  leaksNothing,
		"writes several resources under several grants": commitsSeveral,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			test(t, pool, open(t, pool))
		})
	}
}

func commits(t *testing.T, pool *pgxpool.Pool, l library) {
	require.NoError(t, l.book(t.Context(), grant("table:12", 41), 12, "ann"))

	require.Equal(t, []string{"ann"}, guests(t, pool))
	require.Equal(t, int64(41), one[int64](t, pool, `SELECT last_fencing_token FROM bookings`))
}

func refusesStale(t *testing.T, pool *pgxpool.Pool, l library) {
	require.NoError(t, l.book(t.Context(), grant("table:12", 42), 12, "ben"))

	err := l.book(t.Context(), grant("table:12", 41), 12, "ann")

	require.ErrorIs(t, err, fencedb.ErrStale)
	var stale *fencedb.StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, "table:12", stale.Resource)
	require.Equal(t, int64(41), stale.Token)
	require.Equal(t, int64(42), stale.Stored)
	require.Equal(t, []string{"ben"}, guests(t, pool))
}

func refusesForgotten(t *testing.T, pool *pgxpool.Pool, l library) {
	err := l.forget(t.Context(), 12, "ann")

	require.ErrorIs(t, err, fencedb.ErrNoToken)
	require.ErrorContains(t, err, "Call fencedb.enter for ", "the hint")
	require.Empty(t, guests(t, pool))
}

func refusesOtherResource(t *testing.T, pool *pgxpool.Pool, l library) {
	err := l.book(t.Context(), grant("table:12", 41), 13, "ann")

	var wrong *fencedb.WrongResourceError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "table:13", wrong.Resource)
	require.Equal(t, []string{"table:12"}, wrong.Entered)
	require.Empty(t, guests(t, pool))
}

func leaksNothing(t *testing.T, pool *pgxpool.Pool, l library) {
	bounded := fencedb.NewGrant("table:12", 41, uuid.New(), time.Now().Add(time.Minute))
	for range 3 { // whichever connection the next one gets
		require.NoError(t, l.book(t.Context(), bounded, 12, "ann"))
		require.ErrorIs(t, l.forget(t.Context(), 12, "ben"), fencedb.ErrNoToken)
	}

	require.Equal(t, []string{"ann", "ann", "ann"}, guests(t, pool))
}

func commitsSeveral(t *testing.T, pool *pgxpool.Pool, l library) {
	both := fencedb.All(grant("table:13", 7), grant("table:12", 41))

	require.NoError(t, l.book(t.Context(), both, 12, "ann"))

	require.Equal(t, int64(7), one[int64](t, pool, `SELECT fencedb.last_token('table:13')`))
	require.Equal(t, int64(41), one[int64](t, pool, `SELECT last_fencing_token FROM bookings`))
}

//go:embed sqlc/schema.sql
var schema string

// migrated is a database to which the application's own migration has been applied.
func migrated(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := testenv.Postgres(t)
	_, err := pool.Exec(t.Context(), schema)
	require.NoError(t, err)
	return pool
}

func url(pool *pgxpool.Pool) string { return pool.Config().ConnString() }

func grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), fencedb.NoEnd)
}

func guests(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT guest FROM bookings ORDER BY id`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

func one[T any](t *testing.T, pool *pgxpool.Pool, sql string) T {
	t.Helper()
	var value T
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&value))
	return value
}
