package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// fastSettings make a Postgres whose data nobody will miss as quick as it can be.
// OwnPostgres can overrule them: of two settings with one name, the later counts.
var fastSettings = []string{
	"fsync=off",
	"synchronous_commit=off",
	"full_page_writes=off",
	"max_wal_size=128MB",  // the data directory may be in memory
	"max_connections=300", // parallel tests, each with a pool
	"max_prepared_transactions=10",
}

// loopbackOnly is for a process of ours; a container is reached from outside.
var loopbackOnly = []string{
	"listen_addresses=" + loopback,
	"unix_socket_directories=",        // the default directory may not be ours to write to
	"dynamic_shared_memory_type=mmap", // in the data directory, so that it goes with it
}

// postgresServer is a Postgres that was started here, or one that somebody else runs.
type postgresServer struct {
	adminURL string // of a superuser, in the database postgres, for one that was started here
	source   string // for Notes
	private  bool   // ends with this program
	stop     func() error
}

// obtainPostgres returns the first Postgres that can be had, in the order of the package documentation.
func obtainPostgres(ctx context.Context, h host) (*postgresServer, error) {
	from, err := postgresService.locate(ctx, h)
	switch {
	case err != nil:
		return nil, err
	case from.url != "":
		return externalPostgres(ctx, from.url)
	case from.docker != nil:
		return from.docker.postgres(ctx)
	}
	cluster, err := newPostgresCluster(ctx, from.binary)
	if err != nil {
		return nil, err
	}
	return cluster.asServer(), nil
}

func externalPostgres(ctx context.Context, url string) (*postgresServer, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("%s is set, so no other Postgres was looked for, but: %w", postgresURLVar, err)
	}
	return &postgresServer{
		adminURL: url,
		source:   "Postgres at " + conn.Config().Host + ", from " + postgresURLVar,
		stop:     func() error { return nil },
	}, conn.Close(ctx)
}

// postgresCluster is a data directory of our own and, while it runs, the postmaster over it.
type postgresCluster struct {
	bin     string
	dir     string // holds data/ and the server's log
	account *account
	config  []string // name=value
	port    int
	process *process
}

// newPostgresCluster makes a cluster with the binaries in bin and starts it. On error nothing is left behind.
func newPostgresCluster(ctx context.Context, bin string, settings ...string) (*postgresCluster, error) {
	account, err := postgresAccount()
	if err != nil {
		return nil, err
	}
	dir, err := account.tempDir()
	if err != nil {
		return nil, err
	}
	c := &postgresCluster{bin: bin, dir: dir, account: account, config: slices.Concat(fastSettings, loopbackOnly, settings)}
	if err := c.initdb(ctx); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	if err := onFreePort(ctx, func(port int) error { return c.start(ctx, port) }); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *postgresCluster) data() string { return filepath.Join(c.dir, "data") }

// initdb runs under a supervisor as the server does, so that it leaves nothing when we are killed.
func (c *postgresCluster) initdb(ctx context.Context) error {
	initdb, err := supervise(c.command("initdb", "--pgdata="+c.data(), "--username=postgres", "--auth=trust",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"))
	if err != nil {
		return err
	}
	c.process = initdb
	if err := initdb.finish(ctx); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	return nil
}

// start starts the postmaster and returns once it takes connections. The one before has ended.
func (c *postgresCluster) start(ctx context.Context, port int) error {
	args := []string{"-D", c.data(), "-p", strconv.Itoa(port)}
	for _, setting := range c.config {
		args = append(args, "-c", setting)
	}
	process, err := c.process.succeed(c.command("postgres", args...))
	if err != nil {
		return err
	}
	c.process, c.port = process, port
	if err := process.await(ctx, pollEvery, c.ready); err != nil {
		return fmt.Errorf("Postgres from %s on port %d: %w", c.bin, port, err)
	}
	return nil
}

// restart starts the server on the port it had. After a crash the old server's children need a
// moment to notice, and until then a new one refuses to touch their shared memory.
func (c *postgresCluster) restart(ctx context.Context) error {
	for {
		err := c.start(ctx, c.port)
		if !errors.Is(err, errExited) || ctx.Err() != nil {
			return err
		}
	}
}

// ready reads the status that the postmaster keeps in its own data directory. Unlike a connection to
// the port, it cannot be answered by another server.
func (c *postgresCluster) ready(context.Context) bool {
	const pid, status = 0, 7 // lines
	says := c.postmasterPID()
	return says[pid] == strconv.Itoa(c.process.pid) && strings.TrimSpace(says[status]) == "ready"
}

func (c *postgresCluster) command(name string, args ...string) command {
	return command{
		dir:     c.dir,
		account: c.account,
		stop:    stopPostgres,
		env:     serverEnv(),
		argv:    append([]string{filepath.Join(c.bin, name)}, args...),
	}
}

// serverEnv is our environment without what would change a server's or a client's defaults.
func serverEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	return append(env, "LC_ALL=C")
}

func (c *postgresCluster) url(database string) string {
	return (&url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     address(c.port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}).String()
}

// end sends the postmaster a signal and waits until it is gone. The data directory stays.
func (c *postgresCluster) end(sig syscall.Signal) error { return c.process.end(sig) }

// stop ends the server and removes the directory.
func (c *postgresCluster) stop() error {
	if c.process == nil {
		return os.RemoveAll(c.dir)
	}
	crashed := c.process.exited(time.Now().Add(pollEvery))
	segment, found := c.sharedMemory()
	failed := c.process.stop()
	if crashed && found {
		// The next server over the directory would have done it. Those of the crashed one that are
		// still attached keep their hold; it is gone with the last of them.
		_, err := unix.SysvShmCtl(segment, unix.IPC_RMID, nil)
		failed = errors.Join(failed, err)
	}
	return failed
}

// sharedMemory returns the id of the System V segment by which a Postgres keeps others out of its
// data directory. A server that ends in good order removes it, and its name from the file.
func (c *postgresCluster) sharedMemory() (id int, found bool) {
	const line = 6 // "key id"
	words := strings.Fields(c.postmasterPID()[line])
	if len(words) != 2 {
		return 0, false
	}
	id, err := strconv.Atoi(words[1])
	return id, err == nil
}

// postmasterPID returns the lines of the file in which a server describes itself, empty ones where
// there is none.
func (c *postgresCluster) postmasterPID() [8]string {
	var lines [8]string
	text, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if err == nil {
		copy(lines[:], strings.Split(string(text), "\n"))
	}
	return lines
}

func (c *postgresCluster) asServer() *postgresServer {
	return &postgresServer{
		adminURL: c.url("postgres"),
		source:   "Postgres started from " + c.bin + " on port " + strconv.Itoa(c.port) + ", for this run only",
		private:  true,
		stop:     c.stop,
	}
}
