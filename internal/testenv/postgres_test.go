package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

func TestOwnPostgresComesBackAfterACrash(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on")
	pool := s.Pool()
	_, err := pool.Exec(t.Context(), "CREATE TABLE kept (); INSERT INTO kept DEFAULT VALUES")
	require.NoError(t, err)
	url := s.URL()
	s.Kill()
	s.Restart()
	require.Equal(t, url, s.URL())
	pool.Reset()
	require.Equal(t, 1, count(t, pool, "kept"))
}

// A child of the crashed server still holds its shared memory, because it was paused.
func TestARestartWaitsForWhatTheCrashLeft(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	var child int
	require.NoError(t, s.Pool().QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&child))
	require.NoError(t, syscall.Kill(child, syscall.SIGSTOP))
	s.Kill()

	failures := s.cluster.process.log()
	restarted := make(chan error)
	go func() { restarted <- s.cluster.restart(t.Context()) }()
	await(t, "a first attempt to fail", func(context.Context) bool {
		return (&process{dir: s.cluster.dir}).log() != failures
	})
	require.NoError(t, syscall.Kill(child, syscall.SIGCONT))
	require.NoError(t, <-restarted)
}

func TestOwnPostgresRestartsInGoodOrder(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	pool := s.Pool()
	_, err := pool.Exec(t.Context(), "CREATE TABLE kept ()")
	require.NoError(t, err)
	s.Restart()
	pool.Reset()
	require.Equal(t, 0, count(t, pool, "kept"))
}

func TestOwnPostgresTakesSettings(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t, "fsync=on", "deadlock_timeout=10ms")
	var fsync, deadlock string
	require.NoError(t, s.Pool().QueryRow(t.Context(),
		"SELECT current_setting('fsync'), current_setting('deadlock_timeout')").Scan(&fsync, &deadlock))
	require.Equal(t, []string{"on", "10ms"}, []string{fsync, deadlock})
}

// What one server has, and how it is set up, does not reach the next.
func TestEachOwnPostgresIsFresh(t *testing.T) {
	t.Parallel()
	first := OwnPostgres(t, "work_mem=5MB")
	_, err := first.Pool().Exec(t.Context(), "CREATE DATABASE more")
	require.NoError(t, err)

	pool := newPool(t, OwnPostgres(t).URL())

	require.Equal(t, 0, count(t, pool, "pg_database WHERE datname = 'more'"))
	require.Equal(t, 0, count(t, pool, "pg_namespace WHERE nspname = 'fencedb'"))
	require.Equal(t, 0, count(t, pool, "pg_settings WHERE name = 'work_mem' AND setting = '5120'"))
}

func TestAPausedPostgresTakesNoConnection(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 10*pollEvery)
	defer cancel()
	require.ErrorIs(t, newPool(t, s.URL()).Ping(ctx), context.DeadlineExceeded)
	s.Resume()
	require.NoError(t, newPool(t, s.URL()).Ping(t.Context()))
}

func TestAPausedPostgresCanBeStopped(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	s.Pause()
	s.Stop()
}

func TestACrashedPostgresLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	s := OwnPostgres(t)
	file, err := os.ReadFile(filepath.Join(s.cluster.data(), "postmaster.pid"))
	require.NoError(t, err)
	var segment int
	_, err = fmt.Sscanf(strings.Split(string(file), "\n")[6], "%d %d", new(int), &segment)
	require.NoError(t, err)
	exists := func() bool {
		list, err := exec.CommandContext(t.Context(), "ipcs", "-m").Output()
		return err != nil || regexp.MustCompile(fmt.Sprintf(`(?m)^\S+\s+%d\s`, segment)).Match(list)
	}
	require.True(t, exists())
	s.Kill()
	s.Stop()
	require.Eventually(t, func() bool { return !exists() }, patience, pollEvery)
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, other := Postgres(t), Postgres(t)
	_, err := one.Exec(t.Context(), `INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id)
		VALUES ('table:12', 41, gen_random_uuid())`)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, one, "fencedb.fences"))
	require.Equal(t, 0, count(t, other, "fencedb.fences"))
}

func TestPostgresURLIsAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	pool := newPool(t, PostgresURL(t))
	var migrated bool
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT to_regnamespace('fencedb') IS NOT NULL").Scan(&migrated))
	require.False(t, migrated)
}

func TestManyDatabasesAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 0, count(t, Postgres(t), "fencedb.fences"))
		})
	}
}

func TestAPassedTestLeavesNoDatabase(t *testing.T) {
	t.Parallel()
	inner := &recorder{TB: t}
	url := PostgresURL(inner)
	inner.end()
	_, err := pgx.Connect(t.Context(), url)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "3D000", refused.Code) // invalid_catalog_name
}

func TestAFailedTestKeepsItsDatabaseAndSaysWhere(t *testing.T) {
	t.Parallel()
	inner := &recorder{TB: t}
	pool := Postgres(inner)
	_, err := pool.Exec(t.Context(), "CREATE TABLE evidence ()")
	require.NoError(t, err)
	inner.failed = true
	inner.end()

	url := regexp.MustCompile(`postgres://\S+`).FindString(inner.log.String())
	require.Equal(t, 0, count(t, newPool(t, url), "evidence"))
}

func TestAConnectionThatIsNotGivenBackFailsTheTest(t *testing.T) {
	t.Parallel()
	inner := &recorder{TB: t}
	pool := newPool(t, PostgresURL(t))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	closePool(inner, pool, pollEvery)
	require.True(t, inner.failed)
	conn.Release()
}

// An external server outlives the test binaries that use it, and serves several at once.
func TestExternalPostgres(t *testing.T) {
	t.Parallel()
	own := OwnPostgres(t)
	here := thisHost()
	here.getenv = env(postgresURLVar, own.URL())

	t.Run("is used and not stopped", func(t *testing.T) {
		server, err := obtainPostgres(t.Context(), here)
		require.NoError(t, err)
		require.Equal(t, own.URL(), server.url)
		require.NoError(t, server.stop())
		require.Equal(t, 1, count(t, newPool(t, own.URL()), "generate_series(1, 1)"))
	})

	t.Run("is connected to again after it has ended the connection", func(t *testing.T) {
		server, err := obtainPostgres(t.Context(), here)
		require.NoError(t, err)
		require.Error(t, server.admin(t.Context(), "SELECT pg_terminate_backend(pg_backend_pid())"))
		require.NoError(t, server.admin(t.Context(), "SELECT 1"))
	})

	t.Run("gets a template that is copied and dropped", func(t *testing.T) {
		server, err := obtainPostgres(t.Context(), here)
		require.NoError(t, err)
		name := "template_" + random()
		require.NoError(t, server.createTemplate(t.Context(), name, ""))
		url, err := server.createDatabase(t.Context(), "copy_"+random(), name)
		require.NoError(t, err)
		require.Equal(t, 0, count(t, newPool(t, url), "fencedb.fences"))
		_, err = pgx.Connect(t.Context(), inDatabase(server.url, name))
		require.Error(t, err, "a visitor would keep the template from being copied")
		require.NoError(t, server.dropDatabase(name))
		require.NoError(t, server.dropDatabase(name), "again")
		require.Equal(t, 0, count(t, newPool(t, own.URL()), "pg_database WHERE datname = '"+name+"'"))
	})

	t.Run("that does not answer is not replaced", func(t *testing.T) {
		gone := thisHost()
		gone.getenv = env(postgresURLVar, "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable")
		_, err := obtainPostgres(t.Context(), gone)
		var refused *pgconn.ConnectError
		require.ErrorAs(t, err, &refused)
	})
}

func TestInDatabaseUnderstandsBothForms(t *testing.T) {
	for from, want := range map[string]string{
		"postgres://u:p@h:5432/app?sslmode=disable": "postgres://u:p@h:5432/other?sslmode=disable",
		"postgresql://h":           "postgresql://h/other",
		"host=h user=u dbname=app": "host=h user=u dbname=app dbname=other",
	} {
		require.Equal(t, want, inDatabase(from, "other"))
		config, err := pgx.ParseConfig(inDatabase(from, "other"))
		require.NoError(t, err)
		require.Equal(t, "other", config.Database)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, relation string) int {
	t.Helper()
	var rows int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+relation).Scan(&rows))
	return rows
}

// recorder is a test inside a test: it ends when told, passed or failed, and keeps its log.
type recorder struct {
	testing.TB
	failed   bool
	log      strings.Builder
	cleanups []func()
}

func (r *recorder) Helper()                      {}
func (r *recorder) Failed() bool                 { return r.failed }
func (r *recorder) Context() context.Context     { return r.TB.Context() }
func (r *recorder) Cleanup(f func())             { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(format string, a ...any) { fmt.Fprintf(&r.log, format+"\n", a...) }

func (r *recorder) Errorf(format string, a ...any) {
	r.failed = true
	r.Logf(format, a...)
}

func (r *recorder) end() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		r.cleanups[last]()
		r.cleanups = r.cleanups[:last]
	}
}

func TestPgBouncerStandsBeforeOneDatabaseUntilTheTestEnds(t *testing.T) {
	t.Parallel()
	database := PostgresURL(t)
	var addr string
	t.Run("the test", func(t *testing.T) {
		bouncer := PgBouncer(t, database, "transaction")
		config, err := pgx.ParseConfig(bouncer.URL())
		require.NoError(t, err)
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		addr = address(int(config.Port))

		var pids [2]int
		for i := range pids {
			conn, err := pgx.ConnectConfig(t.Context(), config)
			require.NoError(t, err)
			defer conn.Close(t.Context())
			var name string
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_database(), pg_backend_pid()`).Scan(&name, &pids[i]))
			require.True(t, strings.HasSuffix(database, "/"+name+"?sslmode=disable"), "%s in %s", name, database)
		}
		require.Equal(t, pids[0], pids[1], "two clients share one server connection")
		require.Contains(t, bouncer.Version, "PgBouncer 1.")
	})

	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
}

func TestPgBouncerIsFoundOffPath(t *testing.T) {
	h := bareHost()
	_, err := pgbouncerService.program(t.Context(), h)
	require.ErrorContains(t, err, "no pgbouncer on PATH")

	h.glob = func(pattern string) ([]string, error) {
		if pattern == "/usr/sbin/pgbouncer" {
			return []string{pattern}, nil
		}
		return nil, nil
	}
	path, err := pgbouncerService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "/usr/sbin/pgbouncer", path)

	h.lookPath = tools("/opt/bin/pgbouncer")
	path, err = pgbouncerService.program(t.Context(), h)
	require.NoError(t, err)
	require.Equal(t, "/opt/bin/pgbouncer", path)
}
