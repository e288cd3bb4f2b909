package migrations_test

import (
	"os"
	"slices"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// catalog describes everything in the schema, whoever made it: definitions, privileges, comments,
// rows.
var catalog = map[string]string{
	"schema": `SELECT nspname, nspacl::text, obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'fencedb'`,
	"relations": `SELECT oid::regclass, relkind, relpersistence, relrowsecurity, relacl::text, reloptions, obj_description(oid, 'pg_class'), CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) WHEN 'i' THEN pg_get_indexdef(oid) END
		FROM pg_class WHERE relnamespace = 'fencedb'::regnamespace`,
	"columns": `SELECT attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attcollation::regcollation, pg_get_expr(adbin, adrelid), col_description(attrelid, attnum)
		FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE c.relnamespace = 'fencedb'::regnamespace AND attnum > 0`,
	"constraints": `SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'fencedb'::regnamespace`,
	"triggers":    `SELECT pg_get_triggerdef(t.oid), tgenabled FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE c.relnamespace = 'fencedb'::regnamespace`,
	"functions":   `SELECT pg_get_functiondef(oid), proacl::text, obj_description(oid, 'pg_proc') FROM pg_proc WHERE pronamespace = 'fencedb'::regnamespace`,
	"versions":    `SELECT id, version_id, is_applied FROM fencedb.goose_db_version`,
	"policies":    `SELECT * FROM pg_policies WHERE schemaname = 'fencedb'`,
}

func TestScriptsLeaveWhatUpLeaves(t *testing.T) {
	t.Parallel()
	byUp, byHand := testenv.PostgresURL(t), testenv.PostgresURL(t)
	require.NoError(t, migrations.Up(t.Context(), open(t, byUp)))
	db, psql := open(t, byHand), connect(t, byHand)

	scripts := migrations.Scripts()
	for _, script := range scripts {
		_, all := applied(t, db)
		require.False(t, all, "before %s", script.Name)
		psql.exec("BEGIN;\n" + script.Up + "COMMIT")
	}

	up := connect(t, byUp)
	for kind, query := range catalog {
		rows := `SELECT jsonb_pretty(jsonb_agg(r ORDER BY r::text)) FROM (` + query + `) r`
		require.NotEmpty(t, up.one(rows), kind)
		require.Equal(t, up.one(rows), psql.one(rows), kind)
	}
	_, all := applied(t, db)
	require.True(t, all)
	require.NoError(t, migrations.Up(t.Context(), db), "with nothing to do")

	for _, script := range slices.Backward(scripts) {
		psql.exec("BEGIN;\n" + script.Down + "COMMIT")
	}
	require.Empty(t, psql.one("to_regnamespace('fencedb')"))
}

// Either kind of migrator goes on where the other has stopped, at every version.
func TestUpAndScriptsGoOnFromEachOther(t *testing.T) {
	t.Parallel()
	scripts := migrations.Scripts()
	for done := range len(scripts) {
		db, psql := empty(t)
		for _, script := range scripts[:done] {
			psql.exec(script.Up)
		}
		require.NoError(t, migrations.Up(t.Context(), db))
		_, all := applied(t, db)
		require.True(t, all)
		for _, script := range slices.Backward(scripts[done:]) {
			psql.exec(script.Down)
		}
		require.NoError(t, migrations.Reset(t.Context(), db))
		require.Empty(t, psql.one("to_regnamespace('fencedb')"))
	}
}

// As the goose command does it, which wants the schema to be there.
func TestFilesAreForGoose(t *testing.T) {
	t.Parallel()
	db, psql := empty(t)
	psql.exec(`CREATE SCHEMA fencedb`)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("sql"), goose.WithTableName("fencedb.goose_db_version"), goose.WithDisableGlobalRegistry(true))
	require.NoError(t, err)

	_, err = provider.Up(t.Context())

	require.NoError(t, err)
	_, all := applied(t, db)
	require.True(t, all)
}

// Of a table that is protected, whichever tool undoes them.
func TestWhatAGuardCallsIsNotUndone(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	for _, script := range slices.Backward(migrations.Scripts()) {
		if script.Name == "operate" {
			refusal := s.refused("2BP01", script.Down)
			require.Equal(t, "still protected: seats", refusal.Message)
			break
		}
		s.exec(script.Down)
	}
	s.exec(s.fenced(41, "room:red", `INSERT INTO seats VALUES (9, 'red')`))
}

func TestADatabaseThatIsAheadIsReady(t *testing.T) {
	t.Parallel()
	db, psql := empty(t)
	_, all := applied(t, db)
	require.False(t, all)
	require.Empty(t, psql.one("to_regnamespace('fencedb')"), "asking must create nothing")
	require.NoError(t, migrations.Up(t.Context(), db))

	psql.exec(`INSERT INTO fencedb.goose_db_version (version_id, is_applied) VALUES (99999, true)`)

	_, all = applied(t, db)
	require.True(t, all)
}

func TestScriptsAreNamedAndOrdered(t *testing.T) {
	t.Parallel()
	for i, script := range migrations.Scripts() {
		require.EqualValues(t, i+1, script.Version)
		require.Regexp(t, `^[a-z_]+$`, script.Name)
		require.NotContains(t, script.Up+script.Down, "+goose")
	}
}
