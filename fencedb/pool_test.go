package fencedb_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// A pool without a connection left is named, whoever waits for one, and the end of the context
// stays in the chain.
func TestAUsedUpPoolIsNamed(t *testing.T) {
	t.Parallel()
	config := testenv.Postgres(t).Config().Copy()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	taken, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer taken.Release()
	db := stdlib.OpenDB(*config.ConnConfig)
	defer db.Close()
	db.SetMaxOpenConns(1)
	other, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer other.Close()

	endless := fencedb.NewGrant("table:12", 1, uuid.New(), fencedb.NoEnd)
	for name, call := range map[string]func(ctx context.Context) error{
		"Exec": func(ctx context.Context) error { _, err := fencedb.Exec(ctx, pool, endless, `SELECT`); return err },
		"Tx": func(ctx context.Context) error {
			return fencedb.Tx(ctx, pool, endless, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT`); return err })
		},
		"Seal": func(ctx context.Context) error { return fencedb.Seal(ctx, pool, endless) },
		"TxSQL": func(ctx context.Context) error {
			return fencedb.TxSQL(ctx, db, endless, func(*sql.Tx) error { return nil })
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := call(ctx)
		cancel()
		require.ErrorContains(t, err, "1 of 1 connections of the pool are in use; acquire leases before you open a transaction", name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
	}

	// A lease that could not be sealed in its time says nothing of other holders.
	soon := fencedb.NewGrant("table:12", 1, uuid.New(), time.Now().Add(200*time.Millisecond))
	err = fencedb.Seal(t.Context(), pool, soon)
	require.ErrorContains(t, err, "1 of 1 connections")
	require.False(t, lease.IsLost(err))
	soon = fencedb.NewGrant("table:12", 1, uuid.New(), time.Now().Add(200*time.Millisecond))
	_, err = fencedb.Exec(t.Context(), pool, soon, `SELECT`)
	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.ErrorContains(t, err, "1 of 1 connections")
}

// several is a grant for what it stands for.
type several struct {
	fencedb.Grant
	all []fencedb.Grant
}

func (s several) Grants() []fencedb.Grant { return s.all }

func TestAGrantMayStandForSeveral(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	a := fencedb.NewGrant("table:12", 7, uuid.New(), fencedb.NoEnd)
	b := fencedb.NewGrant("table:13", 8, uuid.New(), fencedb.NoEnd)
	both := several{a, []fencedb.Grant{a, b}}
	for _, grant := range []fencedb.Grant{both, fencedb.All(both)} {
		var entered int
		require.NoError(t, fencedb.Seal(t.Context(), pool, grant))
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM fencedb.fences WHERE resource IN ('table:12', 'table:13')`).Scan(&entered))
		require.Equal(t, 2, entered)
	}
	require.ErrorIs(t, fencedb.Seal(t.Context(), pool, several{}), fencedb.ErrInvalidGrant)
}
