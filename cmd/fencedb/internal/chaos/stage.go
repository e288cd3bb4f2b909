package chaos

import (
	"context"
	_ "embed" // the tables
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
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
	kind      int // its place in objects
	name      string
	work      string // on it
	resources []string
}

// objects are two counters, a register, accounts between which money moves, and a row that is
// inserted, deleted and inserted again.
var objects = []object{
	{0, "counter 1", "count", []string{"counter:1"}},
	{1, "counter 2", "count", []string{"counter:2"}},
	{register, "register", "set", []string{"register:1"}},
	{accounts, "accounts", "transfer", []string{"account:1", "account:2", "account:3"}},
	{slot, "slot", "put or erase", []string{"slot:1"}},
}

// The kinds of objects.
const (
	counters = 2 // the first ones
	register = 2
	accounts = 3
	slot     = 4 // its versions count up; the row is there at odd ones

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
			o.name += number
			o.resources = slices.Clone(o.resources)
			for i, name := range o.resources {
				o.resources[i] = t.resource(name + number)
			}
			all = append(all, o)
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

// in names the schema of this run where the SQL says stage. No search_path does, because PgBouncer
// refuses connections that set it.
func (t task) in(sql string) string { return strings.ReplaceAll(sql, "stage", t.Run) }

func (t task) resources() (all []string) {
	for _, o := range t.copies() {
		all = append(all, o.resources...)
	}
	return append(all, t.tables...)
}

// keys are the names of what the leases of the run can have in Redis.
func (t task) keys() (all []string) {
	for _, resource := range t.resources() {
		all = append(all, t.keysOf("", resource)...)
	}
	return all
}

// keysOf are the names of what a lease, a semaphore or a claim can have in Redis.
func (t task) keysOf(kind, resource string) (all []string) {
	for _, field := range []string{"owner", "fence", "queue", "alive", "ended", "record"} {
		all = append(all, lease.Key{Kind: kind, Namespace: t.Run, Resource: resource, Field: field}.String())
	}
	return all
}

//go:embed tables.sql
var tables string

// stage is what a run has on the servers. It goes straight to them, past the networks.
type stage struct {
	task
	pool     *pgxpool.Pool
	client   redis.UniversalClient
	end      context.CancelCauseFunc
	dir      string // for the sockets of networks
	migrated bool   // by this run
}

// Write writes to the log, and ends the run when nobody reads it any more.
func (s *stage) Write(text []byte) (int, error) {
	n, err := s.Log.Write(text)
	if err != nil {
		s.end(fmt.Errorf("nobody reads the log any more: %w", err))
	}
	return n, err
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s, format, args...) }

// perform has a scene on a stage of its own, and says what could not be taken off the servers.
func (c Config) perform(
	ctx context.Context, name string, scene func(context.Context, *stage) error,
) (left []string, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s := &stage{task: task{Config: c, Run: name + "_" + strconv.FormatUint(rand.Uint64()>>24, 36)}, end: end}
	if s.dir, err = os.MkdirTemp("", "fencedb-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(s.dir)
	if s.client, err = c.Open(c.RedisURL, nil); err != nil {
		return nil, err
	}
	defer s.client.Close()
	if s.pool, err = s.connect(ctx, s.Run+"-suite", 4); err != nil {
		return nil, err
	}
	defer s.pool.Close()
	if err := s.look(ctx); err != nil {
		return nil, err
	}
	if err := s.setUp(ctx); err != nil {
		_, failed := s.remove()
		return nil, errors.Join(err, failed)
	}
	failed := scene(ctx, s)
	left, err = s.remove()
	if failed != nil && len(left) > 0 {
		failed = fmt.Errorf("%w; left %s", failed, strings.Join(left, ", and "))
	}
	return left, errors.Join(failed, err)
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
	if _, err = i.Acquire(ctx, s.resources()[0], lease.NoWait()); err == nil { // and wait for it, which takes more rights
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
	err := s.pool.QueryRow(ctx, `SELECT has_function_privilege('fencedb.enter(text, bigint, uuid, bigint, bigint, boolean, boolean)', 'EXECUTE')`).Scan(&may)
	switch {
	case err != nil:
		return fmt.Errorf("postgres: the schema fencedb is older than this program: %w", err)
	case !may:
		return errors.New("postgres: this role may not enter fences; its owner calls fencedb.allow, or use a database without the schema fencedb")
	}
	if _, err = s.pool.Exec(ctx, s.in(`CREATE SCHEMA stage;`+tables), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("postgres: make the schema of this run, for which the role needs CREATE on the database: %w", err)
	}
	b := new(pgx.Batch)
	b.Queue(s.in(`INSERT INTO stage.registers SELECT r, 0 FROM unnest($1::text[]) r WHERE r LIKE '%-register:%'`), s.resources())
	b.Queue(s.in(`INSERT INTO stage.accounts SELECT r, $2, 0 FROM unnest($1::text[]) r WHERE r LIKE '%-account:%'`), s.resources(), balance)
	if !ways[s.Control].open {
		b.Queue(s.in(`SELECT fencedb.protect(('stage.' || t)::regclass, resource => '{resource}', history => $1)
			FROM unnest('{entries,registers,accounts,slots,effects}'::text[]) t`), s.witness != nil)
	}
	return s.pool.SendBatch(ctx, b).Close()
}

// removal also unprotects the tables of the run, because their guards are in the schema fencedb.
const removal = `DO $$ BEGIN
	IF to_regnamespace('stage') IS NOT NULL THEN
		PERFORM fencedb.unprotect(p.table_name, keep_column => true) FROM fencedb.protected_tables p
		JOIN pg_class c ON c.oid = p.table_name WHERE c.relnamespace = 'stage'::regnamespace;
		DROP SCHEMA stage CASCADE;
	END IF;
END $$`

// remove takes everything off the servers, and says what it may not remove.
func (s *stage) remove() (left []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left = s.removeKeys(ctx)
	err = s.endSessions(ctx)
	_, failed := s.pool.Exec(ctx, s.in(removal))
	if err = errors.Join(err, failed); err != nil {
		left = append(left, "in Postgres the schema "+s.Run)
		return left, fmt.Errorf("%w; left %s", err, strings.Join(left, ", and "))
	}
	if s.migrated {
		db := stdlib.OpenDBFromPool(s.pool)
		defer db.Close()
		return left, migrations.Reset(ctx, db)
	}
	if _, denied := s.pool.Exec(ctx, `DELETE FROM fencedb.fences WHERE resource = ANY($1)`, s.resources()); denied != nil {
		left = append(left, fmt.Sprintf("in fencedb.fences the fences of %s-..., which fencedb prune removes when they are old enough", s.Run))
	}
	if !ways[s.Control].open {
		left = append(left, "in fencedb.audit when the tables of "+s.Run+" were protected and unprotected")
	}
	return left, nil
}

func (s *stage) removeKeys(ctx context.Context) (left []string) {
	if err := s.deleteKeys(ctx, append(s.keys(), s.keysBeside()...)); err != nil {
		return []string{fmt.Sprintf("in Redis the keys of %s, which expire within a day: %v", s.Run, err)}
	}
	return []string{}
}

// deleteKeys deletes one key after the other: in a Cluster they are on different nodes.
func (s *stage) deleteKeys(ctx context.Context, keys []string) error {
	for _, key := range keys {
		if err := s.client.Del(ctx, key).Err(); err != nil {
			return err
		}
	}
	return nil
}

// sessions are those of the workers, by the name of the run.
const sessions = `pg_stat_activity
	WHERE application_name = $1 AND usename = current_user AND datname = current_database()`

// endSessions ends what is left of the sessions of workers, and returns when they are gone: until
// then a COMMIT that was on its way can still arrive.
func (s *stage) endSessions(ctx context.Context) error {
	for {
		var left int
		err := s.pool.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM `+sessions, s.Run).Scan(&left)
		if err != nil || left == 0 {
			return err
		}
		wait(ctx, 10*time.Millisecond)
	}
}
