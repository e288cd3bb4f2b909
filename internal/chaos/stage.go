package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	name      string
	resources []string
}

// objects are two counters, a register, accounts between which money moves, and a row that is inserted,
// deleted and inserted again.
var objects = []object{
	{"counter 1", []string{"counter:1"}},
	{"counter 2", []string{"counter:2"}},
	{"register", []string{"register:1"}},
	{"accounts", []string{"account:1", "account:2", "account:3"}},
	{"slot", []string{"slot:1"}},
}

const (
	counters = 2 // the first objects
	register = 2
	accounts = 3
	slot     = 4 // its versions count up; the row is there at odd ones

	balance = 1000 // of each account, at first
)

// resource is the name in the ledger, which all runs on a database share.
func (t task) resource(name string) string { return t.Run + "-" + name }

// owner is the object that has the resource, and which of its resources it is.
func (t task) owner(resource string) (object, part int) {
	for object, o := range objects {
		for part, name := range o.resources {
			if t.resource(name) == resource {
				return object, part
			}
		}
	}
	panic("bug: a resource of nothing: " + resource)
}

func (t task) resources() (all []string) {
	for _, o := range objects {
		for _, name := range o.resources {
			all = append(all, t.resource(name))
		}
	}
	return all
}

// tables has what is worked on. The index serves reading; nothing there is unique, because a
// constraint would refuse what the judge has to see.
const tables = `
	CREATE TABLE entries (resource text NOT NULL, value bigint NOT NULL);
	CREATE INDEX ON entries (resource, value);
	CREATE TABLE registers (resource text PRIMARY KEY, value bigint NOT NULL);
	CREATE TABLE accounts (resource text PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL);
	CREATE TABLE slots (resource text PRIMARY KEY);
	CREATE TABLE effects (attempt bigint, resource text, read bigint, wrote bigint, amount bigint, token bigint, lease_id uuid);
	CREATE INDEX ON effects (resource, wrote);
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
	if s.pool, err = t.pool(ctx, nil, 4); err != nil {
		return nil, errors.Join(err, s.client.Close())
	}
	there, err := s.look(ctx)
	if err != nil {
		s.pool.Close()
		return nil, errors.Join(err, s.client.Close())
	}
	s.migrated = !there
	if err := s.setUp(ctx); err != nil {
		_, failed := s.remove()
		return nil, errors.Join(err, failed)
	}
	return s, nil
}

// look asks both servers whether they are there, and Postgres whether it has the schema fencedb.
func (s *stage) look(ctx context.Context) (migrated bool, err error) {
	if err := s.client.Ping(ctx).Err(); err != nil {
		return false, fmt.Errorf("redis: %w", err)
	}
	if err := s.pool.QueryRow(ctx, `SELECT to_regnamespace('fencedb') IS NOT NULL`).Scan(&migrated); err != nil {
		return false, fmt.Errorf("postgres: %w", err)
	}
	return migrated, nil
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
	for _, o := range objects {
		for _, name := range o.resources {
			switch {
			case strings.HasPrefix(name, "register"):
				_, err = s.pool.Exec(ctx, `INSERT INTO registers VALUES ($1, 0)`, s.resource(name))
			case strings.HasPrefix(name, "account"):
				_, err = s.pool.Exec(ctx, `INSERT INTO accounts VALUES ($1, $2, 0)`, s.resource(name), balance)
			}
			if err != nil {
				return err
			}
		}
	}
	if s.Control.protects() {
		_, err = s.pool.Exec(ctx, `
			SELECT fencedb.protect(t::regclass, resource => $$ resource $$)
			FROM unnest('{entries,registers,accounts,slots,effects}'::text[]) t`)
	}
	return err
}

// remove takes everything off the servers, and says what it may not remove.
func (s *stage) remove() (left []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer s.pool.Close()
	defer s.client.Close()
	for _, key := range s.keys() {
		if kept := s.client.Del(ctx, key).Err(); kept != nil {
			left = append(left, fmt.Sprintf("in Redis the keys of %s, which expire within a day: %v", s.Run, kept))
			break
		}
	}
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
		left = append(left, "in fencedb.audit that five tables of "+s.Run+" were protected")
	}
	return left, nil
}

// keys are the names of what the run can have in Redis.
func (s *stage) keys() (all []string) {
	for _, resource := range s.resources() {
		for _, field := range []string{"owner", "fence", "queue", "alive", "ended"} {
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
