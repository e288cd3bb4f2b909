package main

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// world is a system to operate: both servers, an application on them, and a console.
type world struct {
	*console
	redis     *redis.Client
	own       *testenv.RedisServer // of worlds that have one of their own
	pool      *pgxpool.Pool
	namespace string
	issuer    *lease.Issuer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{redis: testenv.Redis(t), pool: testenv.Postgres(t), namespace: testenv.Namespace(t)}
	w.console = newConsole(t, "--redis", redisURL(w.redis), "--postgres", w.pool.Config().ConnString(), "--namespace", w.namespace)
	w.issuer = newIssuer(t, w.redis, lease.Config{Namespace: w.namespace})
	w.exec(`CREATE TABLE seats (id int, guest text); SELECT fencedb.protect('seats', $$ 'seat:' || id $$)`)
	return w
}

func newIssuer(t *testing.T, client redis.UniversalClient, cfg lease.Config) *lease.Issuer {
	t.Helper()
	cfg.TTL, cfg.RenewEvery = time.Minute, lease.Never
	i, err := lease.New(client, cfg)
	require.NoError(t, err)
	return i
}

func (w *world) exec(sql string) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(w, err)
}

// login makes a role that exists as long as the test, and returns the URL with which it logs in. grants are SQL in which %[1]s
// is its name as a literal and %[2]s as an identifier.
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
	l, err := w.issuer.TryAcquire(w.Context(), resource)
	require.NoError(w, err)
	return l
}

func (w *world) semaphore(limit int) *lease.Semaphore {
	w.Helper()
	s, err := lease.NewSemaphore(w.redis, lease.SemaphoreConfig{Limit: limit, Lease: lease.Config{TTL: time.Minute, RenewEvery: lease.Never, Namespace: w.namespace}})
	require.NoError(w, err)
	return s
}

// book writes to seat 1 as the holder that l names, sure of itself even if its lease is long over.
func (w *world) book(l fencedb.Grant) error {
	asked := fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), time.Time{})
	_, err := fencedb.Exec(w.Context(), w.pool, asked, `INSERT INTO seats VALUES (1, 'Ann')`)
	return err
}

func (w *world) inspected(resource string) *inspection {
	w.Helper()
	var found inspection
	w.json("inspect", &found, "inspect", resource)
	return &found
}

func codes(notes []note) []string {
	var all []string
	for _, n := range notes {
		all = append(all, n.Code)
	}
	return all
}
