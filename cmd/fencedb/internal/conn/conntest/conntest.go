// Package conntest opens servers for tests of what commands do with them.
package conntest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// Environment is the servers of one call, with a protected table of seats, and a program that holds
// leases on them.
type Environment struct {
	*testing.T
	*conn.Servers
	Redis   *testenv.RedisServer
	Holders *lease.Issuer
	permits *lease.Semaphore
}

// Open starts a Redis and makes a database.
func Open(t *testing.T) *Environment {
	t.Helper()
	s := &conn.Servers{State: &app.State{Timeout: time.Minute, ErrOut: t.Output()}, Pool: testenv.Postgres(t)}
	e := &Environment{T: t, Servers: s, Redis: testenv.OwnRedis(t)}
	e.Names.Namespace, e.Client = "shop", e.Redis.Client()
	cfg := lease.Config{TTL: 10 * time.Minute, RenewEvery: lease.Never, Namespace: "shop", Holder: "worker-8@host-7:4711"}
	var err error
	e.Holders, err = lease.New(e.Client, cfg)
	e.must(err)
	e.permits, err = lease.NewSemaphore(e.Client, lease.SemaphoreConfig{Limit: 10, Lease: cfg})
	e.must(err)
	e.Issuer, err = lease.New(e.Client, e.Names.Config())
	e.must(err)
	e.Semaphore, err = e.Names.Semaphore(e.Client)
	e.must(err)
	e.Exec(`CREATE TABLE seats (id int NOT NULL, guest text); SELECT fencedb.protect('seats', 'seat:{id}')`)
	return e
}

// Slow is a client of the same Redis whose answers may take a minute.
func (e *Environment) Slow() *redis.Client { return e.Redis.Client().WithTimeout(time.Minute) }

// Acquire acquires a lease that nobody has.
func (e *Environment) Acquire(resource string) *lease.Lease {
	e.Helper()
	l, err := e.Holders.Acquire(e.Context(), resource, lease.NoWait())
	e.must(err)
	return l
}

// Permit acquires a permit of a semaphore.
func (e *Environment) Permit(resource string) *lease.Lease {
	e.Helper()
	l, err := e.permits.Acquire(e.Context(), resource, lease.NoWait())
	e.must(err)
	return l
}

// Exec runs SQL, of several statements too.
func (e *Environment) Exec(sql string) {
	e.Helper()
	_, err := e.Pool.Exec(e.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	e.must(err)
}

// One returns the only value of a query, as text.
func (e *Environment) One(sql string) (value string) {
	e.Helper()
	e.must(e.Pool.QueryRow(e.Context(), `SELECT coalesce((`+sql+`)::text, '')`).Scan(&value))
	return value
}

func (e *Environment) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}
