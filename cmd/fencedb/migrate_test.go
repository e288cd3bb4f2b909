package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMigrateUpStatusAndDown(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "--postgres", testenv.PostgresURL(t))
	var before, up, again, down schemaReport

	c.json("migrate", &before, "migrate", "status")
	require.Empty(t, before.Changed)
	require.False(t, before.Migrations[0].Applied)

	c.json("migrate", &up, "migrate", "up")
	require.Len(t, up.Changed, len(before.Migrations))
	require.True(t, up.Migrations[0].Applied)

	c.json("migrate", &again, "migrate", "up")
	require.Empty(t, again.Changed)
	require.Equal(t, up.Migrations, again.Migrations)

	c.json("migrate", &down, "migrate", "down", "--yes")
	require.Equal(t, before.Migrations, down.Migrations)
	require.Equal(t, up.Changed, down.Changed)
}

func TestMigrateDownChangesNothingUnlessConfirmed(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "--postgres", testenv.PostgresURL(t))
	c.ok("migrate", "up")

	for _, no := range []string{"no\n", "\n", ""} {
		c.answer = no
		require.Equal(t, exitDeclined, c.run("migrate", "down").code)
	}
	require.NotContains(t, c.ok("migrate", "status"), "pending")

	c.answer = "y\n"
	require.Contains(t, c.ok("migrate", "down"), "removed now: 00001_ledger.sql")
}

func TestWhatMigratePrintsMakesTheSchema(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testenv.PostgresURL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })

	_, err = conn.PgConn().Exec(t.Context(), newConsole(t).ok("migrate", "print")).ReadAll()
	require.NoError(t, err)

	_, err = conn.Exec(t.Context(), `CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'seat:{id}')`)
	require.NoError(t, err)
}
