package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

func TestMigrateUpStatusDownAndReset(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "--postgres", testenv.PostgresURL(t))
	var before, up, again, down, reset act.SchemaReport

	c.json("migrate", &before, "migrate", "status")
	require.Empty(t, before.Changed)
	require.False(t, before.Migrations[0].Applied)

	c.json("migrate", &up, "migrate", "up")
	require.Len(t, up.Changed, len(before.Migrations))
	require.True(t, up.Migrations[0].Applied)

	c.json("migrate", &again, "migrate", "up")
	require.Empty(t, again.Changed)
	require.Equal(t, up.Migrations, again.Migrations)

	last := len(up.Changed) - 1
	c.json("migrate", &down, "migrate", "down", "--yes")
	require.Equal(t, up.Changed[last:], down.Changed)
	require.True(t, down.Migrations[last-1].Applied)

	c.json("migrate", &reset, "migrate", "reset", "--yes")
	require.Equal(t, before.Migrations, reset.Migrations)
	require.Equal(t, up.Changed[:last], reset.Changed)

	for _, nothing := range []string{"down", "reset"} {
		got := c.run("migrate", nothing)
		require.Equal(t, app.ExitDone, got.code, got.errOut)
		require.Empty(t, got.errOut, "there is nothing to ask about")
	}
}

// The question says what is forgotten.
func TestMigrateUndoesNothingUnlessConfirmed(t *testing.T) {
	t.Parallel()
	c := newConsole(t, "--postgres", testenv.PostgresURL(t))
	c.ok("migrate", "up")
	newest := migrations.Scripts()[len(migrations.Scripts())-1]

	for _, no := range []string{"no\n", "\n", ""} {
		c.answer = no
		got := c.run("migrate", "down")
		require.Equal(t, app.ExitDeclined, got.code)
		require.Contains(t, got.errOut, fmt.Sprintf("Undo %05d_%s.sql? What it made is dropped", newest.Version, newest.Name))
		got = c.run("migrate", "reset")
		require.Equal(t, app.ExitDeclined, got.code)
		require.Contains(t, got.errOut, "forgets every fence and the audit")
	}
	require.NotContains(t, c.ok("migrate", "status"), "pending")

	c.answer = "y\n"
	for range migrations.Scripts()[1:] {
		c.ok("migrate", "down")
	}
	got := c.run("migrate", "down")
	require.Contains(t, got.errOut, "Undo 00001_ledger.sql, the last one? This forgets every fence")
	require.Contains(t, got.out, "removed now: 00001_ledger.sql")
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
