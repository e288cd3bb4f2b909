package ready_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/ready"
)

func TestLeases(t *testing.T) {
	t.Parallel()
	issuer, err := lease.New(testenv.Redis(t), lease.Config{TTL: time.Second})
	require.NoError(t, err)
	require.NoError(t, ready.Leases(issuer).Run(t.Context()))

	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer nowhere.Close()
	issuer, err = lease.New(nowhere, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	require.ErrorIs(t, ready.Leases(issuer).Run(t.Context()), lease.ErrUnreachable)
}

func TestFences(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	fences := ready.Fences(db)
	require.NoError(t, fences.Run(t.Context()))

	db.SetMaxOpenConns(1)
	exec := func(sql string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`SET default_transaction_read_only = on`)
	require.ErrorIs(t, fences.Run(t.Context()), ready.ErrReadOnly)
	exec(`SET default_transaction_read_only = off`)
	exec(`DELETE FROM fencedb.goose_db_version WHERE version_id = 1`)
	require.ErrorIs(t, fences.Run(t.Context()), ready.ErrNotMigrated)
	pool.Close()
	require.Error(t, fences.Run(t.Context()))
}
