// Package integration has what concerns all of the module.
package integration

// Protected databases go through pg_dump and back. The rows must load, and the copy must be as
// protected as the original.

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a server of its own, so that its client programs have its version.
type world struct {
	*testing.T
	server *testenv.PostgresServer
	origin *pgx.Conn
	dir    string
}

// newWorld is a migrated database with a protected table of every kind, written to under token 42.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, server: testenv.OwnPostgres(t), dir: t.TempDir()}
	w.server.Pool() // migrates
	w.origin = w.connect("postgres")
	w.exec(w.origin, `
		CREATE TABLE rooms (name text PRIMARY KEY);
		INSERT INTO rooms VALUES ('red'), ('blue');
		CREATE TABLE seats (id int, room text NOT NULL REFERENCES rooms, PRIMARY KEY (id, room)) PARTITION BY LIST (room);
		CREATE TABLE seats_red PARTITION OF seats FOR VALUES IN ('red');
		CREATE TABLE seats_rest PARTITION OF seats DEFAULT;
		CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL);
		INSERT INTO jobs VALUES (1, 'new');
		CREATE TABLE notes (id int NOT NULL);`+protect)
	w.exec(w.origin, `INSERT INTO notes VALUES (1)`)
	w.exec(w.origin, `BEGIN; `+enter(42, "room:red")+`; INSERT INTO seats VALUES (1, 'red'); COMMIT`)
	w.exec(w.origin, `BEGIN; `+enter(42, "job:1")+`; UPDATE jobs SET state = 'running'; COMMIT`)
	return w
}

const protect = `
	SELECT fencedb.protect('seats', 'room:{room}'), fencedb.protect('jobs', 'job:{id}'),
		fencedb.protect('notes', 'note:{id}', mode => 'observe')`

func (w *world) url(database string) string {
	u, err := url.Parse(w.server.URL())
	require.NoError(w, err)
	u.Path = "/" + database
	return u.String()
}

func (w *world) connect(database string) *pgx.Conn {
	w.Helper()
	conn, err := pgx.Connect(w.Context(), w.url(database))
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.PgConn().Close(w.Context()) })
	return conn
}

// empty is a new database.
func (w *world) empty() *pgx.Conn {
	w.Helper()
	w.exec(w.origin, `CREATE DATABASE copy TEMPLATE template0`)
	return w.connect("copy")
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

func (w *world) exec(conn *pgx.Conn, sql string) {
	w.Helper()
	_, err := conn.PgConn().Exec(w.Context(), sql).ReadAll()
	require.NoError(w, err, sql)
}

func (w *world) refused(conn *pgx.Conn, code, sql string) {
	w.Helper()
	_, err := conn.PgConn().Exec(w.Context(), sql).ReadAll()
	var pgErr *pgconn.PgError
	require.ErrorAs(w, err, &pgErr, sql)
	require.Equal(w, code, pgErr.Code, "%s: %v", sql, pgErr)
	w.exec(conn, `ROLLBACK`)
}

func (w *world) one(conn *pgx.Conn, sql string) (value string) {
	w.Helper()
	require.NoError(w, conn.QueryRow(w.Context(), `SELECT (`+sql+`)::text`).Scan(&value))
	return value
}

// enter gives each token one lease, so that entering twice with a token is the same holder.
func enter(token int, resource string) string {
	lease := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(token)})
	return fmt.Sprintf(`SELECT fencedb.enter('%s', %d, '%s')`, resource, token, lease)
}

// rows is what the application has stored, tokens included.
func (w *world) rows(conn *pgx.Conn) string {
	w.Helper()
	return w.one(conn, `SELECT json_build_array((SELECT json_agg(s ORDER BY s.id) FROM seats s), (SELECT json_agg(j) FROM jobs j), (SELECT json_agg(r ORDER BY r.name) FROM rooms r))`)
}

// requireProtected writes to the tables in every way that must be refused, and in those that must
// not.
func (w *world) requireProtected(conn *pgx.Conn) {
	w.Helper()
	w.refused(conn, "FN002", `INSERT INTO seats VALUES (2, 'red')`)
	w.refused(conn, "FN002", `INSERT INTO seats_red VALUES (2, 'red')`)
	w.refused(conn, "FN002", `TRUNCATE seats_rest`)
	w.refused(conn, "FN002", `UPDATE jobs SET state = 'done'`)
	w.refused(conn, "FN003", `BEGIN; `+enter(43, "room:blue")+`; UPDATE seats SET id = 2`)
	w.refused(conn, "FN001", `BEGIN; `+enter(41, "room:red")+`; UPDATE seats SET id = 2`)
	w.refused(conn, "FN001", `BEGIN; `+enter(41, "job:1")+`; UPDATE jobs SET state = 'done'`)
	w.exec(conn, `BEGIN; `+enter(43, "room:red")+`; UPDATE seats SET id = 2; COMMIT`)
	w.exec(conn, `BEGIN; `+enter(43, "job:1")+`; UPDATE jobs SET state = 'done'; COMMIT`)
	w.exec(conn, `INSERT INTO notes VALUES (2)`)
	require.Equal(w, "43 43", w.one(conn, `SELECT s.last_fencing_token || ' ' || j.last_fencing_token FROM seats s, jobs j`))
}

func TestADumpedDatabaseComesBackProtected(t *testing.T) {
	t.Parallel()
	for format, restore := range map[string]func(w *world, file string){
		"plain": func(w *world, file string) {
			w.server.Run("psql", "--dbname="+w.url("copy"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--file="+file)
		},
		"custom": func(w *world, file string) {
			w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", file)
		},
		"directory": func(w *world, file string) {
			w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", "--jobs=2", file)
		},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			before, file := w.rows(w.origin), w.file("dump")
			w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--format="+format, "--file="+file)
			restored := w.empty()

			restore(w, file)

			require.Equal(t, before, w.rows(restored))
			for _, catalog := range []string{
				`SELECT json_agg(p ORDER BY p.table_name::text) FROM fencedb.protected_tables p`,
				`SELECT json_agg(f ORDER BY f.resource) FROM fencedb.fences f`,
				`SELECT json_agg(u ORDER BY u.statement) FROM fencedb.unfenced_writes u`,
				`SELECT json_agg(p.oid::regprocedure || (SELECT array_agg(a ORDER BY a::text) FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) a)::text ORDER BY p.oid::regprocedure::text) FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace`,
			} {
				require.Equal(t, w.one(w.origin, catalog), w.one(restored, catalog))
			}
			w.requireProtected(restored)
			requireMigrated(t, w.url("copy"))
		})
	}
}

// requireMigrated checks that the copy knows which migrations it has.
func requireMigrated(t *testing.T, url string) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	steps, err := migrations.Status(t.Context(), db)
	require.NoError(t, err)
	for _, step := range steps {
		require.True(t, step.Applied, step.Name)
	}
}

// restoreUnguarded restores a dump without the triggers that call functions of the schema fencedb.
func (w *world) restoreUnguarded(file string, flags ...string) {
	w.Helper()
	var kept []string
	for line := range strings.Lines(w.server.Run("pg_restore", append(flags, "--list", file)...)) {
		if !strings.Contains(line, "~fencedb_") {
			kept = append(kept, line)
		}
	}
	list := w.file("list")
	require.NoError(w, os.WriteFile(list, []byte(strings.Join(kept, "")), 0o600))
	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", "--use-list="+list, file)
}

// The ledger is not part of it. The rows still know the tokens that wrote them.
func TestADumpOfTheApplicationsSchemaFitsAMigratedDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, file := w.rows(w.origin), w.file("dump")
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--schema=public", "--format=custom", "--file="+file)
	restored := w.empty()
	w.exec(restored, `DROP SCHEMA public`) // it comes with the dump
	config := restored.Config().Copy()
	db := stdlib.OpenDB(*config)
	defer db.Close()
	require.NoError(t, migrations.Up(t.Context(), db))

	w.restoreUnguarded(file)
	w.exec(restored, protect)

	require.Equal(t, before, w.rows(restored))
	require.Equal(t, "0", w.one(restored, `SELECT count(*) FROM fencedb.fences`))
	w.requireProtected(restored)
}

// Rows alone, into tables that are protected already: only who may switch triggers off can load
// them.
func TestRowsAloneNeedTheTriggersOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, rows, schema := w.rows(w.origin), w.file("rows"), w.file("schema")
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--schema-only", "--format=custom", "--file="+schema)
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--data-only", "--format=custom", "--file="+rows)
	restored := w.empty()
	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", schema)
	w.refused(restored, "FN002", `INSERT INTO seats VALUES (1, 'red')`)

	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", "--disable-triggers", rows)

	require.Equal(t, before, w.rows(restored))
	w.requireProtected(restored)

	config := restored.Config().Copy()
	require.NoError(t, restored.Close(t.Context()))
	w.exec(w.origin, `DROP DATABASE copy`)
	migrated := w.empty()
	db := stdlib.OpenDB(*config)
	defer db.Close()
	require.NoError(t, migrations.Up(t.Context(), db))
	w.restoreUnguarded(schema, "--schema=public")
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--data-only", "--exclude-table-data=fencedb.goose_db_version",
		"--format=custom", "--file="+rows)
	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", "--disable-triggers", rows)
	w.exec(migrated, protect)
	require.Equal(t, before, w.rows(migrated))
	w.refused(migrated, "FN002", `UPDATE jobs SET state = 'done'`)
}

// As test databases are often made.
func TestADumpOfTheSchemaAloneIsProtectedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.file("schema")
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--schema-only", "--format=custom", "--file="+file)
	restored := w.empty()

	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", file)

	w.refused(restored, "FN002", `INSERT INTO seats VALUES (1, 'red')`)
	w.exec(restored, `INSERT INTO rooms VALUES ('red')`)
	w.exec(restored, `BEGIN; `+enter(1, "room:red")+`; INSERT INTO seats VALUES (1, 'red'); COMMIT`)
	w.refused(restored, "FN002", `INSERT INTO jobs VALUES (1, 'new')`)
	w.exec(restored, `BEGIN; `+enter(1, "job:1")+`; INSERT INTO jobs VALUES (1, 'new'); COMMIT`)
}

// Fails closed: without its grants the copy serves its owner only.
// Without them the functions are everybody's, and nobody may use the schema.
func TestADumpWithoutPrivilegesGetsThemBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.origin, `CREATE ROLE app; SELECT fencedb.allow('app'); GRANT ALL ON ALL TABLES IN SCHEMA public TO app`)
	file := w.file("dump")
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--format=custom", "--file="+file)
	restored := w.empty()
	const insufficientPrivilege = "42501"

	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", "--no-privileges", file)

	w.refused(restored, insufficientPrivilege, `SET ROLE app; `+enter(43, "room:red"))
	const everybodys = `SELECT string_agg(p.oid::regprocedure::text, ', ' ORDER BY p.oid::regprocedure::text) FROM pg_proc p
		WHERE p.pronamespace = 'fencedb'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')`
	require.Contains(t, w.one(restored, everybodys), "fencedb.reset_fence(")

	var acl []string
	for line := range strings.Lines(w.server.Run("pg_restore", "--list", file)) {
		if strings.Contains(line, " ACL ") && strings.Contains(line, "fencedb") {
			acl = append(acl, line)
		}
	}
	list := w.file("acl")
	require.NoError(t, os.WriteFile(list, []byte(strings.Join(acl, "")), 0o600))
	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", "--use-list="+list, file)

	require.Equal(t, w.one(w.origin, everybodys), w.one(restored, everybodys))
	w.exec(restored, `SET ROLE app; `+enter(43, "room:red"))
	w.refused(restored, insufficientPrivilege, `SELECT fencedb.reset_fence('room:red', 1, 'app', 'a try')`)
}

// What protect has noted are comments on the guards, and the guards do not read them.
func TestADumpWithoutCommentsRefusesAsBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.file("dump")
	w.server.Run("pg_dump", "--dbname="+w.url("postgres"), "--format=custom", "--no-comments", "--file="+file)
	restored := w.empty()

	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", file)

	w.requireProtected(restored)
	require.Equal(t, "0", w.one(restored, `SELECT count(*) FROM fencedb.protected_tables WHERE resource <> '{}'`))
	w.exec(restored, `BEGIN; SELECT fencedb.unprotect('jobs'), fencedb.protect('jobs', 'job:{id}'); COMMIT`)
	w.refused(restored, "FN002", `UPDATE jobs SET state = 'new'`)
	w.exec(restored, `SELECT fencedb.enforce('jobs', observing => true); UPDATE jobs SET state = 'new'`)
}

// It needs no right of an owner. Row security keeps the ledger from who may read all data.
func TestARoleForBackupsDumpsAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.origin, `CREATE ROLE backup LOGIN BYPASSRLS; GRANT pg_read_all_data TO backup`)
	before, file := w.rows(w.origin), w.file("dump")
	url := strings.Replace(w.url("postgres"), "//postgres@", "//backup@", 1)

	w.server.Run("pg_dump", "--dbname="+url, "--format=custom", "--file="+file)
	restored := w.empty()
	w.server.Run("pg_restore", "--dbname="+w.url("copy"), "--exit-on-error", file)

	require.Equal(t, before, w.rows(restored))
	w.requireProtected(restored)
}
