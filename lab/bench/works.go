package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/optimisticlock"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/migrations"
)

// stores are a Postgres with the tables of all works, and a Redis.
type stores struct {
	pool    *pgxpool.Pool   // COMMIT does not wait for the disk: what the processors do is all there is
	slow    []*pgxpool.Pool // the same behind slow networks
	durable *pgxpool.Pool   // COMMIT waits for the disk, as Postgres does unless it is told otherwise
	redis   *redis.Client
	bulk    int // rows of the large tables
	many    int // fences beside those of the rows
}

const (
	rows  = 1000          // of the small tables
	limit = 8 * time.Hour // of the grants: nothing runs out
)

var leaseID = uuid.New()

//go:embed works.sql
var createTables string

func grant(resource string) fencedb.Grant {
	return fencedb.NewGrant(resource, 41, leaseID, time.Now().Add(limit))
}

// openPool returns connections to a database that it brings up. commit is their
// synchronous_commit.
func openPool(ctx context.Context, url string, conns int32, commit string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	config.ConnConfig.RuntimeParams["synchronous_commit"] = commit
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	return pool, errors.Join(migrations.Up(ctx, db), db.Close())
}

func openStores(ctx context.Context, client *redis.Client, url string, bulk, many int) (*stores, error) {
	pool, err := openPool(ctx, url, 64, "off")
	if err != nil {
		return nil, err
	}
	durable, durableErr := openPool(ctx, url, 64, "on")
	var slow []*pgxpool.Pool
	for _, delay := range delays {
		late := pool.Config()
		late.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return slowConn{conn, delay}, err
		}
		pool, err := pgxpool.NewWithConfig(ctx, late)
		if err != nil {
			return nil, err
		}
		slow = append(slow, pool)
	}
	_, err = pool.Exec(ctx, fmt.Sprintf(createTables, rows, bulk, leaseID, many))
	for _, sql := range []string{`VACUUM ANALYZE`, `CHECKPOINT`} { // now, not in the middle of a round
		_, _ = pool.Exec(ctx, sql) // without the right to it, the rounds are a little less even
	}
	return &stores{pool, slow, durable, client, bulk, many}, errors.Join(durableErr, err)
}

// delays are what a round trip takes more on slow networks.
var delays = []time.Duration{500 * time.Microsecond, 2 * time.Millisecond}

type slowConn struct {
	net.Conn
	delay time.Duration
}

func (c slowConn) Write(request []byte) (int, error) {
	time.Sleep(c.delay)
	return c.Conn.Write(request)
}

func (s *stores) close() {
	for _, pool := range s.slow {
		pool.Close()
	}
	s.durable.Close()
	s.pool.Close()
}

// sum says how often rows of a table were updated.
func (s *stores) sum(table string) func(ctx context.Context) (float64, error) {
	return func(ctx context.Context) (n float64, err error) {
		err = s.pool.QueryRow(ctx, `SELECT coalesce(sum(note), 0)::float8 FROM `+table).Scan(&n)
		return n, err
	}
}

// id is the row of a worker: none shares one.
func id(worker int) int { return worker + 1 }

// A holder is whose grant a worker writes with.
type holder func(worker int) fencedb.Grant

func row(worker int) fencedb.Grant { return grant("row:" + strconv.Itoa(id(worker))) }
func room(int) fencedb.Grant       { return grant("room:1") }

// newer is the grant of a new lease for each write. The others have entered before.
func newer(worker int) fencedb.Grant {
	return fencedb.NewGrant("new:"+strconv.Itoa(id(worker)), tokens.Add(1), leaseID, time.Now().Add(limit))
}

var tokens atomic.Int64

// write sends a statement for a worker, in one of several ways.
type write func(ctx context.Context, worker int, sql string, args ...any) error

// unfenced is a statement alone.
func unfenced(pool *pgxpool.Pool) write {
	return func(ctx context.Context, _ int, sql string, args ...any) error {
		_, err := pool.Exec(ctx, sql, args...)
		return err
	}
}

// begun is BEGIN, what comes first, the statement and COMMIT.
func begun(pool *pgxpool.Pool, first string) write {
	return func(ctx context.Context, worker int, sql string, args ...any) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if first != "" {
				if _, err := tx.Exec(ctx, first, id(worker)); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	}
}

// batched is a lock that is as fine as a fence and checks nothing, and the statement, in one round
// trip: what a fence costs at least that is a statement of its own.
func batched(pool *pgxpool.Pool) write {
	return func(ctx context.Context, worker int, sql string, args ...any) error {
		var b pgx.Batch
		b.Queue(`SELECT FROM fencedb.fences WHERE resource = 'row:' || $1::int FOR SHARE`, id(worker))
		b.Queue(sql, args...)
		return pool.SendBatch(ctx, &b).Close()
	}
}

// fenced is a statement behind a fence, and fencedTx a transaction.
func fenced(pool *pgxpool.Pool, of holder) write {
	return func(ctx context.Context, worker int, sql string, args ...any) error {
		_, err := fencedb.Exec(ctx, pool, of(worker), sql, args...)
		return err
	}
}

func fencedTx(pool *pgxpool.Pool) write {
	return func(ctx context.Context, worker int, sql string, args ...any) error {
		return fencedb.Tx(ctx, pool, row(worker), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	}
}

const (
	forUpdate = `SELECT FROM plain WHERE id = $1 FOR UPDATE`
	advisory  = `SELECT pg_advisory_xact_lock($1)`
)

// update is an entrant that updates the row of a worker.
func (s *stores) update(name, table string, send write, bar float64) entrant {
	return entrant{name: name, bar: bar, done: s.sum(table), op: func(ctx context.Context, worker int) error {
		return send(ctx, worker, `UPDATE `+table+` SET note = note + 1 WHERE id = $1`, id(worker))
	}}
}

// versioned is a row with a version, by which gorm notices that somebody else has written since it
// read.
type versioned struct {
	ID      int
	Note    int64
	Version optimisticlock.Version
}

func (versioned) TableName() string { return "versioned" }

func (s *stores) versionCheck(pool *pgxpool.Pool) entrant {
	open := sync.OnceValues(func() (*gorm.DB, error) {
		quiet := &gorm.Config{Logger: logger.Discard} // a disk may be slow, and gorm would say so
		return gorm.Open(postgres.New(postgres.Config{Conn: stdlib.OpenDBFromPool(pool)}), quiet)
	})
	return entrant{name: "gorm optimisticlock", peer: true, done: s.sum("versioned"), op: func(ctx context.Context, worker int) error {
		db, err := open()
		if err != nil {
			return err
		}
		row := versioned{ID: id(worker)}
		if err := db.WithContext(ctx).First(&row).Error; err != nil {
			return err
		}
		return db.WithContext(ctx).Model(&row).Update("note", row.Note+1).Error
	}}
}

func (s *stores) works() []work {
	autocommit := func(pool *pgxpool.Pool) entrant { return s.update("autocommit", "plain", unfenced(pool), 0) }
	inTx := func(pool *pgxpool.Pool) []entrant {
		return []entrant{
			s.update("BeginFunc", "plain", begun(pool, ""), 0), s.update("FOR UPDATE", "plain", begun(pool, forUpdate), 0),
		}
	}
	exec := func(pool *pgxpool.Pool, bar float64, of holder) entrant {
		return s.update("Exec", "plain", fenced(pool, of), bar)
	}
	statement := func(name string, pool *pgxpool.Pool, workers int, bar, protected float64) work {
		return work{name: name, workers: workers, entrants: []entrant{autocommit(pool), inTx(pool)[0],
			s.update("batch, FOR SHARE", "plain", batched(pool), 0), exec(pool, bar, row),
			s.update("Exec, newer token", "plain", fenced(pool, newer), 0),
			s.update("Exec, protected", "guarded", fenced(pool, row), protected)}}
	}
	transaction := func(name string, pool *pgxpool.Pool, workers int, bar, protected float64) work {
		return work{name: name, workers: workers, entrants: append(inTx(pool),
			s.update("advisory lock", "plain", begun(pool, advisory), 0), s.versionCheck(pool),
			s.update("Tx", "plain", fencedTx(pool), bar), s.update("Tx, protected", "guarded", fencedTx(pool), protected))}
	}
	// On a table without a guard, with triggers that do nothing, and with a guard that observes.
	withoutToken := func(pool *pgxpool.Pool) []entrant {
		return []entrant{autocommit(pool),
			s.update("idle triggers", "idle", unfenced(pool), 0), s.update("observed", "observed", unfenced(pool), 1.1)}
	}
	writers := func(name string, pool *pgxpool.Pool) work {
		return work{name: name, workers: 16, entrants: []entrant{autocommit(pool),
			exec(pool, 1.5, func(int) fencedb.Grant { return row(0) })}}
	}
	all := []work{
		statement("one statement, on disk", s.durable, 1, 1.2, 1.3),
		statement("one statement, on disk, 8 goroutines", s.durable, 8, 1.45, 1.6),
		writers("16 writers under one lease, on disk", s.durable),
		transaction("transaction, on disk", s.durable, 1, 1.1, 1.2),
		transaction("transaction, on disk, 8 goroutines", s.durable, 8, 1.2, 1.5),
		{name: "without a token, on disk", workers: 1, entrants: withoutToken(s.durable)},
		statement("one statement", s.pool, 1, 1.35, 1.55),
		statement("one statement, 8 goroutines", s.pool, 8, 1.8, 1.9),
		writers("16 writers under one lease", s.pool),
		transaction("transaction", s.pool, 1, 1.1, 1.2),
		transaction("transaction, 8 goroutines", s.pool, 8, 1.2, 1.5),
		{name: "without a token", workers: 1, entrants: withoutToken(s.pool)},
		{name: "one statement, of many fences", workers: 1, entrants: []entrant{s.ofMany(rows, 0), s.ofMany(s.many, 1.2)}},
		s.updateMany(), s.copyMany(), s.manyResources(),
	}
	// While it is kept, all that enters pays for it, so it comes behind what enters anew.
	withHistory := func(name string, pool *pgxpool.Pool) work {
		return work{name: name, workers: 1,
			rest: func(ctx context.Context) error {
				return unfenced(s.pool)(ctx, 0, `SELECT fencedb.keep_history('1 day')`)
			},
			entrants: []entrant{s.update("Exec, protected", "guarded", fenced(pool, row), 0), s.update("with history", "noted", fenced(pool, row), 1.15)}}
	}
	all = append(all, withHistory("history, on disk", s.durable), withHistory("history", s.pool))
	for n, pool := range s.slow {
		all = append(all, work{name: fmt.Sprintf("transaction, network of %v", delays[n]), workers: 1, entrants: append(inTx(pool),
			s.update("Tx", "plain", fencedTx(pool), 0.7), s.update("Exec", "plain", fenced(pool, row), 0.38))})
	}
	for _, of := range []struct {
		workers  int
		bar, own float64 // of the fastest other library; own: of a caller that cannot be cancelled
		lua      float64 // of redislock, which runs scripts as well
	}{{1, 1.9, 1.5, 1.6}, {8, 1.9, 1.9, 1.6}, {64, 1.3, 1.3, 1}} {
		all = append(all, work{name: fmt.Sprintf("acquire and release, %d goroutines", of.workers), workers: of.workers,
			entrants: append(s.locks(of.bar, setNX, "redislock", "redsync", "rueidislock", ours), s.locks(of.own, ours+noEnd)...)},
			work{name: fmt.Sprintf("the same, of redislock, %d goroutines", of.workers), workers: of.workers,
				entrants: append(s.locks(of.lua, "redislock", ours), s.locks(of.lua, ours+noEnd)...)})
	}
	if _, err := s.postgresCPU(context.Background()); err == nil { // its processes can be seen
		all = append(all, work{name: "CPU of Postgres, without a token", workers: 1, unit: "us", meter: s.postgresCPU,
			entrants: withoutToken(s.pool)})
	}
	return append(all,
		work{name: "CPU of Redis, acquire and release", workers: 1, unit: "us", meter: s.redisCPU, entrants: s.locks(1.5, "redislock", ours)},
		work{name: "allocations, acquire and release", workers: 1, unit: "allocs", meter: allocations, entrants: s.locks(0, "redislock", ours)},
		work{name: "allocations, one statement", workers: 1, unit: "allocs", meter: allocations, entrants: []entrant{
			inTx(s.pool)[0], exec(s.pool, 0, row), s.update("Tx", "plain", fencedTx(s.pool), 0)}})
}

// ofMany writes behind any of n fences.
func (s *stores) ofMany(n int, bar float64) entrant {
	anyOf := func(int) fencedb.Grant { return grant("many:" + strconv.Itoa(rand.IntN(n)+1)) }
	return s.update(fmt.Sprint("one of ", n), "plain", fenced(s.pool, anyOf), bar)
}

func (s *stores) updateMany() work {
	update := func(name, table string, send write, bar float64) entrant {
		return entrant{name: name, once: true, bar: bar,
			done: func(ctx context.Context) (float64, error) {
				n, err := s.sum(table)(ctx)
				return n / float64(s.bulk), err
			},
			op: func(ctx context.Context, worker int) error {
				return send(ctx, worker, `UPDATE `+table+` SET note = note + 1`)
			}}
	}
	return work{name: fmt.Sprintf("UPDATE of %d rows", s.bulk), workers: 1,
		rest: func(ctx context.Context) error { return unfenced(s.pool)(ctx, 0, `VACUUM large, large_guarded`) },
		entrants: []entrant{
			update("autocommit", "large", unfenced(s.durable), 0),
			update("Exec, protected", "large_guarded", fenced(s.durable, room), 2),
		}}
}

// undone is an entrant that writes so many rows in a transaction, behind a fence if there is a
// grant, and rolls that back: every round begins with the same tables.
func (s *stores) undone(
	name string, bar float64, grant fencedb.Grant, want int, fn func(context.Context, pgx.Tx) (int64, error),
) entrant {
	undo, ops := errors.New("undo"), 0.0
	return entrant{name: name, once: true, bar: bar,
		done: func(context.Context) (float64, error) { return ops, nil },
		op: func(ctx context.Context, _ int) error {
			counted := func(tx pgx.Tx) error {
				n, err := fn(ctx, tx)
				if err == nil && n == int64(want) {
					ops++
					err = undo
				}
				return err
			}
			var err error
			if grant == nil {
				err = pgx.BeginFunc(ctx, s.pool, counted)
			} else {
				err = fencedb.Tx(ctx, s.pool, grant, counted)
			}
			if errors.Is(err, undo) {
				return nil
			}
			return err
		}}
}

func (s *stores) copyMany() work {
	n := s.bulk / 2
	into := func(name, table string, bar float64, grant fencedb.Grant) entrant {
		return s.undone(name, bar, grant, n, func(ctx context.Context, tx pgx.Tx) (int64, error) {
			lines := pgx.CopyFromSlice(n, func(i int) ([]any, error) { return []any{s.bulk + i + 1, 1}, nil })
			return tx.CopyFrom(ctx, pgx.Identifier{table}, []string{"id", "room"}, lines)
		})
	}
	return work{name: fmt.Sprintf("COPY of %d rows", n), workers: 1, entrants: []entrant{
		into("BeginFunc", "large", 0, nil), into("Tx, protected", "large_guarded", 2.6, room(0))}}
}

func (s *stores) manyResources() work {
	const n = 2000
	insert := func(name string, resources int, bar float64) entrant {
		var grants []fencedb.Grant
		for i := range resources {
			grants = append(grants, grant("room:"+strconv.Itoa(i+1)))
		}
		return s.undone(name, bar, fencedb.All(grants...), n, func(ctx context.Context, tx pgx.Tx) (int64, error) {
			tag, err := tx.Exec(ctx, `INSERT INTO rooms SELECT i, i % $2::int + 1 FROM generate_series(1, $1::int) i`, n, resources)
			return tag.RowsAffected(), err
		})
	}
	return work{name: "2000 rows in one transaction", workers: 1, entrants: []entrant{
		insert("of one resource", 1, 0), insert("of 1000 resources", rows, 4)}}
}

// locks acquire and release a lock that is free. Each worker has its own. The bar is that of ours.
func (s *stores) locks(bar float64, names ...string) (entrants []entrant) {
	for n, name := range names {
		lock := sync.OnceValues(func() (acquire, error) { return locks[name](s.redis.Options().Addr) })
		space := "bench:" + strconv.FormatUint(rand.Uint64(), 36)
		e := entrant{name: name, atLeast: true}
		e.peer = n > 0 && !e.ours()
		if e.ours() {
			e.bar = bar
		}
		// How many locks Redis has set: each acquisition sets one at least.
		e.done = func(ctx context.Context) (float64, error) { return info(ctx, s.redis, "commandstats", "cmdstat_set") }
		e.op = func(ctx context.Context, worker int) error {
			acquire, err := lock()
			if err != nil {
				return err
			}
			release, err := acquire(ctx, space+strconv.Itoa(worker))
			if err != nil {
				return err
			}
			return release()
		}
		entrants = append(entrants, e)
	}
	return entrants
}

// redisCPU is what the thread of Redis that runs commands has used, in microseconds.
func (s *stores) redisCPU(ctx context.Context) (float64, error) {
	seconds, err := info(ctx, s.redis, "cpu", "used_cpu_*_main_thread")
	return seconds * 1e6, err
}

// postgresCPU is what the sessions of Postgres have used, in microseconds, where it runs beside
// this program on Linux.
func (s *stores) postgresCPU(ctx context.Context) (used float64, err error) {
	rows, _ := s.pool.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'`)
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
