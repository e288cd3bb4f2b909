package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// object is what one attempt reads and writes as a whole.
type object struct {
	kind      int // its place in objects
	name      string
	resources []string
}

// objects are two counters, a register, accounts between which money moves, a row that is inserted,
// deleted and inserted again, and a row that is its own fence.
var objects = []object{
	{0, "counter 1", []string{"counter:1"}},
	{1, "counter 2", []string{"counter:2"}},
	{register, "register", []string{"register:1"}},
	{accounts, "accounts", []string{"account:1", "account:2", "account:3"}},
	{slot, "slot", []string{"slot:1"}},
	{job, "job", []string{"job:1"}},
}

// The kinds of objects.
const (
	counters = 2 // the first ones
	register = 2
	accounts = 3
	slot     = 4 // its versions count up; the row is there at odd ones
	job      = 5 // the row fence

	balance = 1000 // of each account, at first
)

// copies are the objects of a run, with its names: all of them, [Config.Width] times.
func (t task) copies() (all []object) {
	for n := range max(1, t.Width) {
		number := ""
		if n > 0 {
			number = "/" + strconv.Itoa(n+1)
		}
		for _, o := range objects {
			c := object{kind: o.kind, name: o.name + number}
			for _, name := range o.resources {
				c.resources = append(c.resources, t.resource(name+number))
			}
			all = append(all, c)
		}
	}
	return all
}

// names are those of all objects, and of what is beside them.
func (t task) names() (all []string) {
	for _, o := range t.copies() {
		all = append(all, o.name)
	}
	return append(all, permits, orders)
}

// resource is the name in the ledger, which all runs on a database share.
func (t task) resource(name string) string { return t.Run + "-" + name }

func (t task) resources() (all []string) {
	for _, o := range t.copies() {
		all = append(all, o.resources...)
	}
	return all
}

// tables has what is worked on. The index serves reading; nothing there is unique, because a
// constraint would refuse what the judge has to see. What is done to a job is noted beside the fence,
// because a grant that is carried does not admit to tables with a ledger.
const tables = `
	CREATE TABLE entries (resource text NOT NULL, value bigint NOT NULL);
	CREATE INDEX ON entries (resource, value);
	CREATE TABLE registers (resource text PRIMARY KEY, value bigint NOT NULL);
	CREATE TABLE accounts (resource text PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL);
	CREATE TABLE slots (resource text PRIMARY KEY);
	CREATE TABLE jobs (resource text PRIMARY KEY, version bigint NOT NULL);
	CREATE TABLE effects (attempt bigint, resource text, read bigint, wrote bigint, amount bigint, token bigint, lease_id uuid);
	CREATE INDEX ON effects (resource, wrote);
	CREATE TABLE job_effects (LIKE effects);
	CREATE TABLE fence (resource text PRIMARY KEY, token bigint, lease_id uuid)`

// stage is what a run has on the servers. It goes straight to them, past the networks.
type stage struct {
	task
	pool     *pgxpool.Pool
	client   redis.UniversalClient
	migrated bool // by this run
}

// newStage makes the schema and the tables. On error nothing is left.
func newStage(ctx context.Context, t task, open OpenRedis) (s *stage, err error) {
	s = &stage{task: t}
	if s.client, err = open(t.RedisURL, nil); err != nil {
		return nil, err
	}
	if s.pool, err = t.pool(ctx, nil, 4, nil); err != nil {
		return nil, errors.Join(err, s.client.Close())
	}
	if err := s.look(ctx); err != nil {
		s.pool.Close()
		return nil, errors.Join(err, s.client.Close())
	}
	if err := s.setUp(ctx); err != nil {
		_, failed := s.remove()
		return nil, errors.Join(err, failed)
	}
	return s, nil
}

// look asks both servers whether they serve, and Postgres whether it lacks the schema fencedb.
func (s *stage) look(ctx context.Context) error {
	if err := s.pool.QueryRow(ctx, `SELECT to_regnamespace('fencedb') IS NULL`).Scan(&s.migrated); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	i, err := lease.New(s.client, lease.Config{TTL: time.Minute, Namespace: s.Run})
	if err != nil {
		return err
	}
	defer i.Close(ctx)
	if _, err = i.TryAcquire(ctx, s.resources()[0]); err == nil { // and wait for it, which takes more rights
		_, err = i.Acquire(ctx, s.resources()[0], lease.WaitAtMost(time.Second/2))
	}
	if !errors.Is(err, lease.ErrHeld) {
		s.removeKeys(ctx)
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

func (s *stage) setUp(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(s.pool)
	defer db.Close()
	if s.migrated {
		if err := migrations.Up(ctx, db); err != nil {
			return err
		}
	}
	var may bool
	err := s.pool.QueryRow(ctx, `SELECT has_function_privilege('fencedb.enter(text, bigint, uuid, bigint, bigint)', 'EXECUTE')`).Scan(&may)
	switch {
	case err != nil:
		return fmt.Errorf("postgres: the schema fencedb is older than this program: %w", err)
	case !may:
		return errors.New("postgres: this role may not enter fences; its owner calls fencedb.allow, or use a database without the schema fencedb")
	}
	_, err = s.pool.Exec(ctx, `CREATE SCHEMA `+s.Run+`;`+tables, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return fmt.Errorf("postgres: make the schema of this run, for which the role needs CREATE on the database: %w", err)
	}
	for _, insert := range []string{
		`INSERT INTO registers SELECT r, 0 FROM unnest($1::text[]) r WHERE r LIKE '%-register:%'`,
		`INSERT INTO accounts SELECT r, ` + strconv.Itoa(balance) + `, 0 FROM unnest($1::text[]) r WHERE r LIKE '%-account:%'`,
		`INSERT INTO jobs SELECT r, 0 FROM unnest($1::text[]) r WHERE r LIKE '%-job:%'`,
	} {
		if _, err = s.pool.Exec(ctx, insert, s.resources()); err != nil {
			return err
		}
	}
	if s.Control.protects() {
		_, err = s.pool.Exec(ctx, `
			SELECT fencedb.protect(t::regclass, resource => $$ resource $$)
			FROM unnest('{entries,registers,accounts,slots,effects}'::text[]) t`)
	}
	if err == nil && s.Control.protects() && s.Control != NoRowFence {
		_, err = s.pool.Exec(ctx, `SELECT fencedb.protect_row('jobs', resource => $$ resource $$)`)
	}
	return err
}

// remove takes everything off the servers, and says what it may not remove.
func (s *stage) remove() (left []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer s.pool.Close()
	defer s.client.Close()
	left = s.removeKeys(ctx)
	err = s.endSessions(ctx)
	_, failed := s.pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+s.Run+` CASCADE`)
	if err = errors.Join(err, failed); err != nil {
		return append(left, "in Postgres the schema "+s.Run), err
	}
	if s.migrated {
		db := stdlib.OpenDBFromPool(s.pool)
		defer db.Close()
		return left, migrations.Down(ctx, db)
	}
	if _, denied := s.pool.Exec(ctx, `DELETE FROM fencedb.fences WHERE resource = ANY($1)`, s.resources()); denied != nil {
		left = append(left, fmt.Sprintf("in fencedb.fences the fences of %s-..., which fencedb prune removes when they are old enough", s.Run))
	}
	if s.Control.protects() {
		left = append(left, "in fencedb.audit that the tables of "+s.Run+" were protected")
	}
	return left, nil
}

func (s *stage) removeKeys(ctx context.Context) (left []string) {
	for _, key := range append(s.keys(), s.keysBeside()...) {
		if err := s.client.Del(ctx, key).Err(); err != nil {
			return []string{fmt.Sprintf("in Redis the keys of %s, which expire within a day: %v", s.Run, err)}
		}
	}
	return []string{}
}

// fields are what a lease or a semaphore can have in Redis.
var fields = []string{"owner", "fence", "queue", "alive", "ended"}

// keys are the names of what the leases of the run can have in Redis.
func (s *stage) keys() (all []string) {
	for _, resource := range s.resources() {
		for _, field := range fields {
			all = append(all, lease.Key{Namespace: s.Run, Resource: resource, Field: field}.String())
		}
	}
	return all
}

// endSessions ends what is left of the sessions of workers, and returns when they are gone: until
// then a COMMIT that was on its way can still arrive.
func (s *stage) endSessions(ctx context.Context) error {
	for {
		var left int
		err := s.pool.QueryRow(ctx, `
			SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name = $1 AND usename = current_user AND datname = current_database()`, s.Run).Scan(&left)
		if err != nil || left == 0 {
			return err
		}
		wait(ctx, 10*time.Millisecond)
	}
}
