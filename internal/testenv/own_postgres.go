package testenv

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PostgresServer is a Postgres of one test's own, to crash, pause, restart and reconfigure. Its
// methods fail the test on error and must be called from the test's goroutine.
type PostgresServer struct {
	t       testing.TB
	cluster *postgresCluster
}

// OwnPostgres starts a private Postgres and stops it at the end of the test. It is fast and not
// durable, unless the settings, each name=value, say otherwise:
//
//	OwnPostgres(t, "fsync=on", "synchronous_commit=on", "full_page_writes=on")
func OwnPostgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	bin, err := postgresService.locateOwn(ctx, thisHost())
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	cluster, err := newPostgresCluster(ctx, bin, settings...)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	s := &PostgresServer{t: t, cluster: cluster}
	t.Cleanup(s.Stop)
	return s
}

// URL returns the URL of the server's one database, which is empty at first. A restarted server has
// the same.
func (s *PostgresServer) URL() string { return s.cluster.url("postgres") }

// Run runs one of the client programs that belong to the server, such as pg_dump or psql, and returns
// what it prints. It must succeed.
func (s *PostgresServer) Run(program string, args ...string) string {
	s.t.Helper()
	out, err := output(s.t.Context(), filepath.Join(s.cluster.bin, program), args...)
	s.must("run a client of", err)
	return out
}

// Pool migrates the database if need be and returns a new pool on it, closed at the end of the test.
func (s *PostgresServer) Pool() *pgxpool.Pool {
	s.t.Helper()
	s.must("migrate", migrate(s.t.Context(), s.URL()))
	return newPool(s.t, s.URL())
}

// Kill crashes the server: SIGKILL to the postmaster, whose children follow it. The data stays, for
// [PostgresServer.Restart].
func (s *PostgresServer) Kill() {
	s.t.Helper()
	s.must("kill", s.cluster.end(syscall.SIGKILL))
}

// Standby returns a copy of the server as it is now, a standby that has received nothing since and that is not
// running: Restart starts it, and then pg_promote makes it the primary. The server itself is restarted on the way.
func (s *PostgresServer) Standby() *PostgresServer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startTimeout)
	defer cancel()
	dir, err := s.cluster.account.tempDir()
	s.must("make a directory beside", err)
	standby := &PostgresServer{t: s.t, cluster: &postgresCluster{
		bin: s.cluster.bin, dir: dir, account: s.cluster.account, config: s.cluster.config,
	}}
	s.t.Cleanup(standby.Stop)
	s.must("shut down", s.cluster.end(syscall.SIGINT))
	_, err = output(ctx, "cp", "-a", s.cluster.data(), standby.cluster.data()) // with its owner
	s.must("copy", err)
	s.must("restart", s.cluster.restart(ctx))
	signal := filepath.Join(standby.cluster.data(), "standby.signal")
	s.must("mark the copy of", os.WriteFile(signal, nil, 0o600))
	if account := s.cluster.account; account != nil {
		s.must("mark the copy of", os.Chown(signal, account.uid, account.gid))
	}
	return standby
}

// Restart starts the server again, on its port and its data, and returns once it takes connections.
// A server that still runs is shut down in good order first, ending its connections.
func (s *PostgresServer) Restart() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startTimeout)
	defer cancel()
	const fastShutdown = syscall.SIGINT
	if s.cluster.process == nil { // a standby
		s.must("start", onFreePort(ctx, func(port int) error { return s.cluster.start(ctx, port) }))
		return
	}
	s.must("shut down", s.cluster.end(fastShutdown))
	s.must("restart", s.cluster.restart(ctx))
}

// Pause stops the postmaster in its tracks (SIGSTOP): connections that are open go on working, new
// ones are not answered.
func (s *PostgresServer) Pause() {
	s.t.Helper()
	s.must("pause", s.cluster.process.signal(syscall.SIGSTOP))
}

// Resume lets a paused server go on.
func (s *PostgresServer) Resume() {
	s.t.Helper()
	s.must("resume", s.cluster.process.signal(syscall.SIGCONT))
}

// Stop ends the server for good and removes its data. The end of the test does the same.
func (s *PostgresServer) Stop() {
	s.t.Helper()
	if s.cluster == nil {
		return
	}
	s.must("stop", s.cluster.stop())
	s.cluster = nil
}

func (s *PostgresServer) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("testenv: %s Postgres on port %d: %v", what, s.cluster.port, err)
	}
}
