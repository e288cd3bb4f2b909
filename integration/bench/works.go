package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx, for the migrations
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/migrations"
)

// stores are a Postgres with the tables of all works, the same behind a slow network, and a Redis.
type stores struct {
	pool, slow *pgxpool.Pool
	redis      *redis.Client
	bulk       int // rows of the large tables
	many       int // fences beside those of the rows
	close      func()
}

const (
	rows  = 1000          // of the small tables
	limit = 8 * time.Hour // of the grants: nothing runs out
)

var leaseID = uuid.New()

func grant(resource string) fencedb.Grant {
	return fencedb.NewGrant(resource, 41, leaseID, time.Now().Add(limit))
}

func openStores(ctx context.Context, client *redis.Client, postgres string, quick bool) (*stores, error) {
	s := &stores{redis: client, bulk: 200_000, many: 1_000_000, close: func() {}}
	if quick {
		s.bulk, s.many = 20_000, 100_000
	}
	if err := s.open(ctx, postgres); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stores) open(ctx context.Context, url string) error {
	if err := migrate(ctx, url); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = 64
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	s.close = closing(s.close, s.pool.Close)
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	s.close = closing(s.close, func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "postgres")
	network, err := faulty.NewNetwork(socket)
	if err != nil {
		return err
	}
	s.close = closing(s.close, func() { _ = network.Close() })
	network.Set(faulty.Weather{Delay: time.Millisecond}) // in each direction
	late := config.Copy()
	late.ConnConfig.DialFunc = faulty.Through(socket)
	if s.slow, err = pgxpool.NewWithConfig(ctx, late); err != nil {
		return err
	}
	s.close = closing(s.close, s.slow.Close)
	_, err = s.pool.Exec(ctx, fmt.Sprintf(`
		CREATE TABLE plain (id int PRIMARY KEY, note bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0);
		CREATE TABLE guarded (LIKE plain INCLUDING ALL);
		CREATE TABLE idle (LIKE plain INCLUDING ALL);
		CREATE TABLE observed (LIKE plain INCLUDING ALL);
		CREATE TABLE rowed (id int PRIMARY KEY, note bigint NOT NULL DEFAULT 0);
		INSERT INTO plain SELECT i FROM generate_series(1, %[1]d) i;
		INSERT INTO guarded SELECT i FROM generate_series(1, %[1]d) i;
		INSERT INTO idle SELECT i FROM generate_series(1, %[1]d) i;
		INSERT INTO observed SELECT i FROM generate_series(1, %[1]d) i;
		INSERT INTO rowed SELECT i FROM generate_series(1, %[1]d) i;
		CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER a BEFORE UPDATE ON idle FOR EACH STATEMENT EXECUTE FUNCTION nothing();
		CREATE TRIGGER b BEFORE UPDATE ON idle FOR EACH ROW EXECUTE FUNCTION nothing();
		CREATE TABLE large (id int PRIMARY KEY, room int NOT NULL DEFAULT 1, note bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0)
			WITH (autovacuum_enabled = off);
		CREATE TABLE large_guarded (LIKE large INCLUDING ALL) WITH (autovacuum_enabled = off);
		CREATE TABLE rooms (LIKE large INCLUDING ALL);
		INSERT INTO large SELECT i FROM generate_series(1, %[2]d) i;
		INSERT INTO large_guarded SELECT i FROM generate_series(1, %[2]d) i;
		SELECT fencedb.protect('observed', $$ 'row:' || id $$, mode => 'observe');
		SELECT fencedb.protect('guarded', $$ 'row:' || id $$), fencedb.protect('large_guarded', $$ 'room:' || room $$),
		       fencedb.protect('rooms', $$ 'room:' || room $$), fencedb.protect_row('rowed', $$ 'row:' || id $$);
		SELECT count(fencedb.enter('row:' || i, 41, '%[3]s')) FROM generate_series(1, %[1]d) i;
		SELECT count(fencedb.enter('room:' || i, 41, '%[3]s')) FROM generate_series(1, %[1]d) i;
		INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) SELECT 'many:' || i, 41, '%[3]s' FROM generate_series(1, %[4]d) i;
		CREATE EXTENSION IF NOT EXISTS plpgsql`, rows, s.bulk, leaseID, s.many))
	return err
}

func migrate(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	return errors.Join(migrations.Up(ctx, db), db.Close())
}

func closing(first, second func()) func() { return func() { second(); first() } }

// sum says how often rows of a table were updated.
func (s *stores) sum(table string) func(ctx context.Context) (float64, error) {
	return func(ctx context.Context) (n float64, err error) {
		err = s.pool.QueryRow(ctx, `SELECT coalesce(sum(note), 0)::float8 FROM `+table).Scan(&n)
		return n, err
	}
}

const update = ` SET note = note + 1 WHERE id = $1`

// id is the row of a worker: none shares one.
func id(worker int) int { return worker + 1 }

func row(worker int) fencedb.Grant { return grant("row:" + strconv.Itoa(id(worker))) }

func (s *stores) autocommit() entrant { return s.unfenced("autocommit", "plain", 0) }

// unfenced is one statement without a token.
func (s *stores) unfenced(name, table string, bar float64) entrant {
	return entrant{name: name, bar: bar, done: s.sum(table), op: func(ctx context.Context, worker int) error {
		_, err := s.pool.Exec(ctx, `UPDATE `+table+update, id(worker))
		return err
	}}
}

// unfencedAll is a statement without a token on a table without a guard, with triggers that do nothing, and with a guard that
// observes.
func (s *stores) unfencedAll() []entrant {
	return []entrant{s.autocommit(), s.unfenced("idle triggers", "idle", 0), s.unfenced("observed", "observed", 1.1)}
}

// beginFunc is BEGIN, what comes first, UPDATE and COMMIT.
func beginFunc(name string, pool *pgxpool.Pool, s *stores, first string) entrant {
	return entrant{name: name, done: s.sum("plain"), op: func(ctx context.Context, worker int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if first != "" {
				if _, err := tx.Exec(ctx, first, id(worker)); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, `UPDATE plain`+update, id(worker))
			return err
		})
	}}
}

func oneShot(name string, pool *pgxpool.Pool, s *stores, table string, of func(int) fencedb.Grant, bar float64) entrant {
	return entrant{name: name, bar: bar, done: s.sum(table), op: func(ctx context.Context, worker int) error {
		_, err := fencedb.Exec(ctx, pool, of(worker), `UPDATE `+table+update, id(worker))
		return err
	}}
}

func fencedTx(name string, pool *pgxpool.Pool, s *stores, table string, bar float64) entrant {
	return entrant{name: name, bar: bar, done: s.sum(table), op: func(ctx context.Context, worker int) error {
		return fencedb.Tx(ctx, pool, row(worker), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE `+table+update, id(worker))
			return err
		})
	}}
}

// oneOf is any of n fences.
func oneOf(n int) func(int) fencedb.Grant {
	return func(int) fencedb.Grant { return grant("many:" + strconv.Itoa(rand.IntN(n)+1)) }
}

func carried(worker int) fencedb.Grant { return fencedb.Carry(row(worker)) }

const (
	forUpdate = `SELECT FROM plain WHERE id = $1 FOR UPDATE`
	advisory  = `SELECT pg_advisory_xact_lock($1)`
)

func (s *stores) works() []work {
	shared := func(int) fencedb.Grant { return grant("row:1") }
	all := []work{
		{name: "one statement", workers: 1, entrants: []entrant{s.autocommit(), beginFunc("BeginFunc", s.pool, s, ""),
			oneShot("Exec", s.pool, s, "plain", row, 1.2), oneShot("Exec, protected", s.pool, s, "guarded", row, 1.35),
			oneShot("Exec, row fence", s.pool, s, "rowed", carried, 1.25)}},
		{name: "one statement without a token", workers: 1, entrants: s.unfencedAll()},
		{name: "one statement, 8 goroutines", workers: 8, entrants: []entrant{s.autocommit(), beginFunc("BeginFunc", s.pool, s, ""),
			oneShot("Exec", s.pool, s, "plain", row, 1.5), oneShot("Exec, protected", s.pool, s, "guarded", row, 1.8),
			oneShot("Exec, row fence", s.pool, s, "rowed", carried, 1.6)}},
		{name: "one statement, 16 writers under one lease", workers: 16, entrants: []entrant{s.autocommit(),
			oneShot("Exec", s.pool, s, "plain", shared, 1.5)}},
		{name: "transaction", workers: 1, entrants: []entrant{beginFunc("BeginFunc", s.pool, s, ""),
			beginFunc("FOR UPDATE", s.pool, s, forUpdate), beginFunc("advisory lock", s.pool, s, advisory),
			fencedTx("Tx", s.pool, s, "plain", 1), fencedTx("Tx, protected", s.pool, s, "guarded", 1.15)}},
		{name: "transaction, 8 goroutines", workers: 8, entrants: []entrant{beginFunc("BeginFunc", s.pool, s, ""),
			beginFunc("FOR UPDATE", s.pool, s, forUpdate), beginFunc("advisory lock", s.pool, s, advisory),
			fencedTx("Tx", s.pool, s, "plain", 1.2), fencedTx("Tx, protected", s.pool, s, "guarded", 1.5)}},
		{name: "transaction, network of 2 ms", workers: 1, entrants: []entrant{beginFunc("BeginFunc", s.slow, s, ""),
			beginFunc("FOR UPDATE", s.slow, s, forUpdate), fencedTx("Tx", s.slow, s, "plain", 0.7),
			oneShot("Exec", s.slow, s, "plain", row, 0.38)}},
		{name: "one statement, of many fences", workers: 1, entrants: []entrant{oneShot("one of 1000", s.pool, s, "plain", oneOf(rows), 0),
			oneShot(fmt.Sprint("one of ", s.many), s.pool, s, "plain", oneOf(s.many), 1.2)}},
		s.updateMany(), s.copyMany(), s.manyResources(),
	}
	for _, workers := range []int{1, 8, 64} {
		all = append(all, work{name: fmt.Sprintf("acquire and release, %d goroutines", workers), workers: workers, entrants: s.locks(true)})
	}
	if _, err := s.postgresCPU(context.Background()); err == nil { // its processes can be seen
		all = append(all, work{name: "CPU of Postgres, without a token", workers: 1, unit: "us", meter: s.postgresCPU, entrants: s.unfencedAll()})
	}
	return append(all,
		work{name: "CPU of Redis, acquire and release", workers: 1, unit: "us", meter: s.redisCPU, entrants: s.locks(false)},
		work{name: "allocations, acquire and release", workers: 1, unit: "allocs", meter: allocations, entrants: s.locks(false)},
		work{name: "allocations, one statement", workers: 1, unit: "allocs", meter: allocations, entrants: []entrant{
			beginFunc("BeginFunc", s.pool, s, ""), oneShot("Exec", s.pool, s, "plain", row, 0), fencedTx("Tx", s.pool, s, "plain", 0)}})
}

func (s *stores) updateMany() work {
	const all = ` SET note = note + 1`
	vacuum := func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `VACUUM large, large_guarded`)
		return err
	}
	ops := func(table string) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			n, err := s.sum(table)(ctx)
			return n / float64(s.bulk), err
		}
	}
	return work{name: fmt.Sprintf("UPDATE of %d rows", s.bulk), workers: 1, rest: vacuum, entrants: []entrant{
		{name: "autocommit", once: true, done: ops("large"), op: func(ctx context.Context, _ int) error {
			_, err := s.pool.Exec(ctx, `UPDATE large`+all)
			return err
		}},
		{name: "Exec, protected", once: true, bar: 1.8, done: ops("large_guarded"), op: func(ctx context.Context, _ int) error {
			_, err := fencedb.Exec(ctx, s.pool, grant("room:1"), `UPDATE large_guarded`+all)
			return err
		}},
	}}
}

// errUndo rolls back what was written, so that every round begins with the same tables. The rows were counted before.
var errUndo = errors.New("undo")

// undone counts what was written and rolled back.
type undone struct{ ops float64 }

func (u *undone) done(context.Context) (float64, error) { return u.ops, nil }

func (u *undone) undo(n int64, want int, err error) error {
	if err == nil && n == int64(want) {
		u.ops++
		err = errUndo
	}
	return err
}

func ignoreUndo(err error) error {
	if errors.Is(err, errUndo) {
		return nil
	}
	return err
}

func (s *stores) copyMany() work {
	n := s.bulk / 2
	into := func(u *undone, table string) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			copied, err := tx.CopyFrom(ctx, pgx.Identifier{table}, []string{"id", "room"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
				return []any{s.bulk + i + 1, 1}, nil
			}))
			return u.undo(copied, n, err)
		}
	}
	var bare, fenced undone
	copyBare, copyFenced := into(&bare, "large"), into(&fenced, "large_guarded")
	return work{name: fmt.Sprintf("COPY of %d rows", n), workers: 1, entrants: []entrant{
		{name: "BeginFunc", once: true, done: bare.done, op: func(ctx context.Context, _ int) error {
			return ignoreUndo(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return copyBare(ctx, tx) }))
		}},
		{name: "Tx, protected", once: true, bar: 3.5, done: fenced.done, op: func(ctx context.Context, _ int) error {
			return ignoreUndo(fencedb.Tx(ctx, s.pool, grant("room:1"), func(tx pgx.Tx) error { return copyFenced(ctx, tx) }))
		}},
	}}
}

func (s *stores) manyResources() work {
	const n = 2000
	insert := func(name string, resources int, bar float64) entrant {
		var grants []fencedb.Grant
		for i := range resources {
			grants = append(grants, grant("room:"+strconv.Itoa(i+1)))
		}
		var u undone
		return entrant{name: name, once: true, bar: bar, done: u.done, op: func(ctx context.Context, _ int) error {
			return ignoreUndo(fencedb.Tx(ctx, s.pool, fencedb.All(grants...), func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, `INSERT INTO rooms SELECT i, i % $2::int + 1 FROM generate_series(1, $1::int) i`, n, resources)
				return u.undo(tag.RowsAffected(), n, err)
			}))
		}}
	}
	return work{name: "2000 rows in one transaction", workers: 1, entrants: []entrant{
		insert("of one resource", 1, 0), insert("of 1000 resources", rows, 5)}}
}

// locks are acquire and release of a lock that is free. Each worker has its own.
func (s *stores) locks(everyone bool) []entrant {
	setNX := func(string) (acquire, error) {
		return func(ctx context.Context, resource string) (func() error, error) {
			ok, err := s.redis.SetNX(ctx, resource, leaseID.String(), ttl).Result()
			if err == nil && !ok {
				err = errors.New("it is taken")
			}
			return func() error { return s.redis.Del(ctx, resource).Err() }, err
		}, nil
	}
	entrants := []entrant{
		s.lock("redislock", openRedislock(time.Second)),
		s.lock(ours, openLease),
	}
	if everyone {
		control := s.lock("SET NX and DEL", setNX)
		control.peer = false
		entrants = []entrant{control, s.lock("redislock", openRedislock(time.Second)), s.lock("redsync", openRedsync),
			s.lock("rueidislock", openRueidislock), s.lock(ours, openLease)}
		entrants[len(entrants)-1].bar, entrants[len(entrants)-1].fastest = 1, true
	}
	return entrants
}

func (s *stores) lock(name string, open func(addr string) (acquire, error)) entrant {
	lock := sync.OnceValues(func() (acquire, error) { return open(s.redis.Options().Addr) })
	space := strconv.FormatUint(rand.Uint64(), 36)
	return entrant{name: name, peer: name != ours, atLeast: true, done: s.writes, op: func(ctx context.Context, worker int) error {
		acquire, err := lock()
		if err != nil {
			return err
		}
		release, err := acquire(ctx, "bench:"+space+strconv.Itoa(worker))
		if err != nil {
			return err
		}
		return release()
	}}
}

// writes is how many locks Redis has set: each acquisition sets one at least.
func (s *stores) writes(ctx context.Context) (float64, error) {
	info, err := s.redis.InfoMap(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	var calls float64
	if set := info["Commandstats"]["cmdstat_set"]; set != "" {
		_, err = fmt.Sscanf(set, "calls=%g,", &calls)
	}
	return calls, err
}

// redisCPU is what the thread of Redis that runs commands has used, in microseconds.
func (s *stores) redisCPU(ctx context.Context) (used float64, err error) {
	info, err := s.redis.InfoMap(ctx, "cpu").Result()
	for _, name := range []string{"used_cpu_sys_main_thread", "used_cpu_user_main_thread"} {
		seconds, parseErr := strconv.ParseFloat(info["CPU"][name], 64)
		used, err = used+seconds*1e6, errors.Join(err, parseErr)
	}
	return used, err
}

// postgresCPU is what the sessions of Postgres have used, in microseconds, where it runs beside this program on Linux.
func (s *stores) postgresCPU(ctx context.Context) (used float64, err error) {
	rows, err := s.pool.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'`)
	if err != nil {
		return 0, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	for _, pid := range pids {
		name, nameErr := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		stat, statErr := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		var ns float64
		_, scanErr := fmt.Sscan(string(stat), &ns)
		err = errors.Join(err, nameErr, statErr, scanErr)
		if !strings.HasPrefix(string(name), "postgres") {
			err = errors.Join(err, fmt.Errorf("process %d is not of Postgres", pid))
		}
		used += ns / 1000
	}
	return used, err
}

// allocations is what this program has allocated so far.
func allocations(context.Context) (float64, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs), nil
}
