package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/migrations"
)

// files are those of a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestExportWritesTheFilesOfEachTool(t *testing.T) {
	t.Parallel()
	for tool, want := range map[string]struct {
		first []string
		begin string
	}{
		"goose":          {[]string{"00001_fencedb_ledger.sql", "00002_fencedb_protect.sql"}, "-- +goose Up\n-- +goose StatementBegin\n"},
		"golang-migrate": {[]string{"000001_fencedb_ledger.down.sql", "000001_fencedb_ledger.up.sql"}, "DELETE FROM"},
		"dbmate":         {[]string{"00000000000001_fencedb_ledger.sql", "00000000000002_fencedb_protect.sql"}, "-- migrate:up\n"},
		"atlas":          {[]string{"00000000000001_fencedb_ledger.sql", "00000000000002_fencedb_protect.sql"}, "DO $$"},
	} {
		dir := t.TempDir()
		said := newConsole(t).ok("migrate", "export", "--for", tool, dir)

		require.Equal(t, want.first, files(t, dir)[:2], tool)
		for _, name := range files(t, dir) {
			require.Contains(t, said, filepath.Join(dir, name)+"\n", tool)
		}
		text, err := os.ReadFile(filepath.Join(dir, want.first[0]))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), want.begin), "%s: %.60s", tool, text)
	}
}

func TestExportGoesOnFromWhatIsThere(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), newConsole(t)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("20260102030405_users.sql", "")
	write("README.md", "")
	c.ok("migrate", "export", "--for", "goose", dir)
	first := files(t, dir)
	require.Equal(t, "20260102030406_fencedb_ledger.sql", first[1])
	require.Len(t, first, 2+len(migrations.Scripts()))

	require.Empty(t, c.ok("migrate", "export", "--for", "goose", dir), "again")
	require.Equal(t, first, files(t, dir))

	// An export of an older version, and a migration of the application behind it.
	last := migrations.Scripts()[len(migrations.Scripts())-1].Name
	for _, name := range first {
		if strings.Contains(name, "_fencedb_"+last) {
			require.NoError(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	write("20270102030405_bookings.sql", "")
	c.ok("migrate", "export", "--for", "goose", dir)
	now := files(t, dir)
	require.Equal(t, "20270102030406_fencedb_"+last+".sql", now[len(now)-2], "%v", now)
}

func TestExportOverwritesNothing(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), newConsole(t)
	c.ok("migrate", "export", "--for", "dbmate", dir)
	names := files(t, dir)
	edited := filepath.Join(dir, names[1])
	require.NoError(t, os.WriteFile(edited, []byte("-- mine"), 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, names[0])))

	got := c.run("migrate", "export", "--for", "dbmate", dir)

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, names[1])
	require.Equal(t, names[1:], files(t, dir), "nothing was written")
	text, err := os.ReadFile(edited)
	require.NoError(t, err)
	require.Equal(t, "-- mine", string(text))
}
