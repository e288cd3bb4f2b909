package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// world is a system to operate: both servers, an application on them, and a console.
type world struct {
	*console
	redis     *redis.Client
	own       *testenv.RedisServer
	pool      *pgxpool.Pool
	namespace string
	issuer    *lease.Issuer
}

// newWorld has a Redis of its own, because commands look at all namespaces. The arguments are those
// of redis-server.
func newWorld(t *testing.T, redisArgs ...string) *world {
	t.Helper()
	w := &world{own: testenv.OwnRedis(t, redisArgs...), pool: testenv.Postgres(t), namespace: "shop"}
	w.redis = w.own.Client()
	w.console = newConsole(t, "--redis", redisURL(w.redis), "--postgres", w.pool.Config().ConnString(), "--namespace", w.namespace)
	w.issuer = newIssuer(t, w.redis, lease.Config{Namespace: w.namespace})
	w.exec(`CREATE TABLE seats (id int NOT NULL, guest text); SELECT fencedb.protect('seats', 'seat:{id}')`)
	return w
}

// label is who holds what a test acquires.
const label = "worker-8@host-7:4711"

func newIssuer(t *testing.T, client redis.UniversalClient, cfg lease.Config) *lease.Issuer {
	t.Helper()
	cfg.TTL, cfg.RenewEvery, cfg.Holder = time.Minute, lease.Never, cmp.Or(cfg.Holder, label)
	i, err := lease.New(client, cfg)
	require.NoError(t, err)
	return i
}

func (w *world) exec(sql string) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(w, err)
}

// login makes a role that exists as long as the test, and returns the URL with which it logs in.
// grants are SQL in which %[1]s is its name as a literal and %[2]s as an identifier.
func (w *world) login(name, grants string) string {
	w.Helper()
	role := name + "_" + w.one(`current_database()`)
	literal, identifier := "'\""+role+"\"'", pgx.Identifier{role}.Sanitize()
	w.exec(`CREATE ROLE ` + identifier + ` LOGIN PASSWORD 'fencedb'`)
	w.Cleanup(func() {
		_, err := w.pool.Exec(context.Background(), `DROP OWNED BY `+identifier+`; DROP ROLE `+identifier, pgx.QueryExecModeSimpleProtocol)
		require.NoError(w, err)
	})
	if grants != "" {
		w.exec(fmt.Sprintf(grants, literal, identifier))
	}
	address, err := url.Parse(w.pool.Config().ConnString())
	require.NoError(w, err)
	address.User = url.UserPassword(role, "fencedb")
	return address.String()
}

func (w *world) acquire(resource string) *lease.Lease {
	w.Helper()
	l, err := w.issuer.Acquire(w.Context(), resource, lease.NoWait())
	require.NoError(w, err)
	return l
}

func (w *world) semaphore(limit int) *lease.Semaphore {
	w.Helper()
	s, err := lease.NewSemaphore(w.redis, lease.SemaphoreConfig{
		Limit: limit,
		Lease: lease.Config{TTL: 10 * time.Minute, RenewEvery: lease.Never, Namespace: w.namespace, Holder: label},
	})
	require.NoError(w, err)
	return s
}

// book writes to seat 1 as the holder that l names, sure of itself even if its lease is long over.
func (w *world) book(l fencedb.Grant) error {
	asked := fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), fencedb.NoEnd)
	_, err := fencedb.Exec(w.Context(), w.pool, asked, `INSERT INTO seats VALUES (1, 'Ann')`)
	return err
}

func (w *world) inspected(resource string) *look.Inspection {
	w.Helper()
	var found look.Inspection
	w.json("inspect", &found, "inspect", resource)
	return &found
}

// awaitWaiter returns once somebody waits for the resource and knows it: it has heard that it must
// wait, and listens for its turn.
func (w *world) awaitWaiter(resource string) {
	w.Helper()
	channels := fmt.Sprintf("lease:v1:{%s/%s}:wake:*", w.namespace, resource)
	require.Eventually(w, func() bool {
		listens, err := w.redis.PubSubChannels(w.Context(), channels).Result()
		return err == nil && len(listens) > 0
	}, time.Minute, 5*time.Millisecond)
}

func codes(notes []look.Note) []string {
	var all []string
	for _, n := range notes {
		all = append(all, n.Code)
	}
	return all
}

// holderVar makes the test binary a program that holds seat:1 and writes once for each line that it
// reads.
const holderVar = "FENCEDB_TEST_HOLDER_NAMESPACE"

func hold() {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	must(err)
	pool, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	must(err)
	i, err := lease.New(redis.NewClient(options), lease.Config{TTL: time.Minute, Namespace: os.Getenv(holderVar)})
	must(err)
	l, err := i.Acquire(ctx, "seat:1", lease.NoWait())
	must(err)
	fmt.Println("held")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_, err := fencedb.Exec(ctx, pool, l, `INSERT INTO seats VALUES (1, 'Ann')`)
		fmt.Println("stale:", errors.Is(err, fencedb.ErrStale), "failed:", err != nil)
	}
}

func TestAHolderThatWasStoppedDuringTheRevocationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	self, err := os.Executable()
	require.NoError(t, err)
	holder := exec.CommandContext(t.Context(), self)
	holder.Env = append(os.Environ(), holderVar+"="+w.namespace, "FENCEDB_REDIS_URL="+redisURL(w.redis), "FENCEDB_POSTGRES_URL="+w.pool.Config().ConnString())
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	says := bufio.NewScanner(out)
	next := func() string { require.True(t, says.Scan()); return says.Text() }
	require.Equal(t, "held", next())
	_, _ = io.WriteString(in, "write\n")
	require.Equal(t, "stale: false failed: false", next())

	require.NoError(t, holder.Process.Signal(syscall.SIGSTOP))
	w.revoked("seat:1")
	_, _ = io.WriteString(in, "write\n")
	require.NoError(t, holder.Process.Signal(syscall.SIGCONT))

	require.Equal(t, "stale: true failed: true", next())
	require.Equal(t, "1", w.one(`SELECT count(*) FROM seats`))
	require.Equal(t, "seat:1 true", w.one(`SELECT concat_ws(' ', resource, details ->> 'sealed') FROM fencedb.audit WHERE event = 'revoke'`))
}
