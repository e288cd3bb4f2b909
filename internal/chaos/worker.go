package chaos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Dial is how a connection is made.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// OpenRedis makes a client of the Redis at address. With a nil dial it connects as usual.
type OpenRedis func(address string, dial Dial) (redis.UniversalClient, error)

// task is what a worker process is started with.
type task struct {
	Process     int
	Run         string // names the schema in Postgres and the namespace in Redis
	PostgresURL string
	RedisURL    string
	ToPostgres  string // the socket of its network
	ToRedis     string
	TTL         time.Duration
	Seed        uint64
	Control     Control
	Clients     int
	Width       int // copies of the objects
}

// event is what a worker tells: nothing, once it is ready; an attempt that begins; the same when it
// has returned.
type event struct {
	Attempt *Attempt `json:"attempt,omitempty"`
}

// order is what a worker is told, until its orders end.
type order struct{ LoseCommits bool }

// Kind is the name of the workers for [worker.Become].
const Kind = "chaos"

// Worker is what a worker process does. A program that calls [Run] hands it to [worker.Become] first
// thing, under the name [Kind]: the suite starts that program again for each worker.
func Worker(open OpenRedis) worker.Life {
	return func(ctx context.Context, self *worker.Self) error {
		var t task
		if err := self.Config(&t); err != nil {
			return err
		}
		client, err := open(t.RedisURL, faulty.Through(t.ToRedis))
		if err != nil {
			return err
		}
		defer client.Close()
		var losing atomic.Bool
		pool, err := t.pool(ctx, faulty.Through(t.ToPostgres), t.Clients+2, func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
			return &forgetful{Conn: conn, losing: &losing}, nil
		})
		if err != nil {
			return err
		}
		defer pool.Close()
		d := &desk{task: t, self: self, pool: pool}
		closers, err := d.employ(client)
		if err != nil {
			return err
		}
		self.Tell(event{})

		working, cancel := context.WithCancel(ctx)
		var clients sync.WaitGroup
		for n := range t.Clients {
			random := rand.New(rand.NewPCG(t.Seed, uint64(t.Process)<<16|uint64(n)))
			clients.Go(func() { d.serve(working, random) })
		}
		for o := (order{}); self.Order(&o) == nil; {
			losing.Store(o.LoseCommits)
		}
		cancel()
		clients.Wait()
		closing, done := context.WithTimeout(ctx, 2*t.TTL)
		defer done()
		for _, c := range closers {
			_ = c.Close(closing) // what is not given back expires
		}
		return nil
	}
}

// wrapper puts something around a connection, inside TLS.
type wrapper = func(context.Context, *pgconn.Config, net.Conn) (net.Conn, error)

// forgetful is a connection to Postgres that can lose the reply to a COMMIT, and itself with it.
type forgetful struct {
	net.Conn
	losing *atomic.Bool
	doomed atomic.Bool // its next reply is lost
}

func (c *forgetful) Write(request []byte) (int, error) {
	if c.losing.Load() && bytes.Contains(bytes.ToLower(request), []byte("commit\x00")) { // and not READ COMMITTED
		c.doomed.Store(true)
	}
	return c.Conn.Write(request)
}

func (c *forgetful) Read(reply []byte) (int, error) {
	n, err := c.Conn.Read(reply)
	if err == nil && c.doomed.Load() {
		return 0, io.EOF
	}
	return n, err
}

// pool connects to the schema of the run. Sessions through a dial are those of workers, which are
// called as the run is.
func (t task) pool(ctx context.Context, dial Dial, conns int, wrap wrapper) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(t.PostgresURL)
	if err != nil {
		return nil, err
	}
	name := t.Run
	if dial != nil {
		config.ConnConfig.DialFunc, config.ConnConfig.AfterNetConnect = dial, wrap
	} else {
		name += "-suite"
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.RuntimeParams["application_name"] = name
	config.ConnConfig.RuntimeParams["search_path"] = t.Run
	return pgxpool.NewWithConfig(ctx, config)
}

// desk is a worker process at work.
type desk struct {
	task
	self     *worker.Self
	pool     *pgxpool.Pool
	objects  []object
	right    fenced
	way      way
	permits  [2]*lease.Semaphore // the second does not renew
	orders   *once.Once
	count    atomic.Int64 // of attempts
	turns    [job + 1]atomic.Int64
	slept    atomic.Int64 // when somebody overslept last
	broke    atomic.Int64 // when somebody wrote without a token last
	admitted atomic.Int64 // when somebody asked for a permit last
	ordered  atomic.Int64 // and for the result of the order
}

type closer interface{ Close(context.Context) error }

// employ makes the issuers and what works beside them. Every other process seals.
func (d *desk) employ(client redis.UniversalClient) (all []closer, err error) {
	d.objects = d.copies()
	config := lease.Config{TTL: d.TTL, Namespace: d.Run}
	if d.Process%2 == 0 && d.Control == NoControl {
		config.Seal = fencedb.Sealer(d.pool)
	}
	for i, renewEvery := range []time.Duration{0, lease.Never} {
		config.RenewEvery = renewEvery
		if d.right.issuers[i], err = lease.New(client, config); err != nil {
			return nil, err
		}
		permit := lease.Config{TTL: d.TTL, Namespace: d.Run, RenewEvery: renewEvery}
		if d.permits[i], err = lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: limit, Lease: permit}); err != nil {
			return nil, err
		}
		all = append(all, d.right.issuers[i], d.permits[i])
	}
	if d.orders, err = once.New(client, once.Config{InFlight: d.TTL, MaxRun: d.TTL, Done: d.remembers(), Namespace: d.Run}); err != nil {
		return nil, err
	}
	all = append(all, d.orders)
	d.right.pool = d.pool
	d.way, err = newWay(d.Control, d.right, client, d.Run, d.TTL)
	return all, err
}

// serve makes attempts, one after the other.
func (d *desk) serve(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		switch n := random.IntN(100); {
		case due(&d.broke, 2*d.TTL):
			d.intrude(ctx, []int{0, 1, register, slot, job}[random.IntN(5)])
		case due(&d.admitted, d.TTL/4):
			d.permit(ctx, random)
		case due(&d.ordered, d.TTL/2):
			d.order(ctx, random)
		case d.mayOversleep():
			d.oversleep(ctx, random)
		case n < 30:
			d.once(ctx, random, "count", random.IntN(counters))
		case n < 40:
			d.once(ctx, random, "put or erase", slot)
		case n < 50:
			d.step(ctx, random)
		case n < 65:
			d.once(ctx, random, "set", register)
		case n < 75:
			d.look(ctx)
		default:
			d.transfer(ctx, random)
		}
	}
}

// one is the next object of a kind. They take turns, so that none waits for long to be written again
// where there are many.
func (d *desk) one(kind int) object {
	turn := int(d.turns[kind].Add(1)) + d.Process
	return d.objects[turn%max(1, d.Width)*len(objects)+kind]
}

// mayOversleep lets one client at a time oversleep, and not often: nobody else has its counter then
// until the lease is over. With a control there is nothing to lose by that.
func (d *desk) mayOversleep() bool {
	often := 6 * d.TTL
	if d.Control != NoControl {
		often = 2 * d.TTL
	}
	return due(&d.slept, often)
}

// due reports to one client, once in a while, that it is time. The rate does not depend on how fast
// the machine is.
func due(last *atomic.Int64, often time.Duration) bool {
	before := last.Load()
	return now()-before > int64(often) && last.CompareAndSwap(before, now())
}

// patience is how long an attempt may take by its own context.
func (d *desk) patience() time.Duration { return 8*d.TTL + 2*time.Second }

// attempt tells of an attempt before it begins and after it has ended.
func (d *desk) attempt(ctx context.Context, work, object string, do func(context.Context, *Attempt) error) {
	a := &Attempt{
		ID:      int64(d.Process)<<32 | d.count.Add(1),
		Process: d.Process, Work: work, Object: object, Limit: int64(d.patience()), Call: now(),
	}
	d.self.Tell(event{a})
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	err := do(ctx, a)
	a.Return, a.Outcome = now(), d.way.outcome(err)
	if a.plain {
		a.Outcome = plainOutcomeOf(err)
	}
	if err != nil {
		a.Error = err.Error()
	}
	d.self.Tell(event{a})
	if err != nil {
		wait(ctx, d.TTL/50) // or a server that is down would fill the history
	}
}

// granted notes the grants of an attempt that asked for them since it began.
func (a *Attempt) granted(grants ...fencedb.Grant) {
	for _, g := range grants {
		a.Grants = append(a.Grants, Grant{g.Resource(), g.Token(), g.LeaseID(), a.Call, now()})
	}
}

// level is usually READ COMMITTED.
func level(random *rand.Rand) pgx.TxIsoLevel {
	return []pgx.TxIsoLevel{
		pgx.ReadCommitted, pgx.ReadCommitted, pgx.ReadCommitted, pgx.ReadCommitted, pgx.ReadCommitted,
		pgx.ReadCommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.RepeatableRead, pgx.Serializable,
	}[random.IntN(10)]
}

// think takes the time between reading and writing: usually little, sometimes half a TTL.
func (d *desk) think(ctx context.Context, random *rand.Rand) {
	long := 3 * time.Millisecond
	if random.IntN(20) == 0 {
		long = d.TTL / 2
	}
	wait(ctx, upTo(random, long))
}

// once reads one resource and writes it.
func (d *desk) once(ctx context.Context, random *rand.Rand, work string, kind int) {
	o := d.one(kind)
	d.attempt(ctx, work, o.name, func(ctx context.Context, a *Attempt) error {
		return d.way.guarded(ctx, o.resources, level(random), func(tx pgx.Tx, grants []fencedb.Grant) error {
			a.granted(grants...)
			return d.change(ctx, tx, a, o, grants[0], func() { d.think(ctx, random) })
		})
	})
}

// step takes a job, whose row is its own fence, one step further.
func (d *desk) step(ctx context.Context, random *rand.Rand) {
	o := d.one(job)
	d.attempt(ctx, "step", o.name, func(ctx context.Context, a *Attempt) error {
		g, release, err := d.way.hold(ctx, o.resources[0], true)
		if err == nil {
			defer release()
			a.granted(g)
			err = d.way.write(ctx, fencedb.Carry(g), level(random), func(tx pgx.Tx) error {
				return d.change(ctx, tx, a, o, g, func() { d.think(ctx, random) })
			})
		}
		var stale *fencedb.StaleError
		if errors.As(err, &stale) && d.Control == NoControl { // Redis may have gone back; elsewhere package guard heals
			_, _ = d.right.issuers[0].Raise(ctx, stale.Resource, stale.Stored)
		}
		return err
	})
}

// look reads a register without a lease.
func (d *desk) look(ctx context.Context) {
	o := d.one(register)
	d.attempt(ctx, "look", o.name, func(ctx context.Context, a *Attempt) error {
		return d.pool.QueryRow(ctx, `SELECT value FROM registers WHERE resource = $1`, o.resources[0]).Scan(&a.Read)
	})
}

// intrude writes as somebody does who has never heard of leases: with a transaction, and no token.
func (d *desk) intrude(ctx context.Context, kind int) {
	if !d.Control.intruded() {
		return
	}
	o := d.one(kind)
	d.attempt(ctx, "intrude", o.name, func(ctx context.Context, a *Attempt) error {
		a.plain = true
		nobody := fencedb.NewGrant(o.resources[0], 0, uuid.Nil, time.Time{})
		return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return d.change(ctx, tx, a, o, nobody, func() {}) })
	})
}

// transfer moves money between two of the accounts.
func (d *desk) transfer(ctx context.Context, random *rand.Rand) {
	o := d.one(accounts)
	picked := random.Perm(len(o.resources))[:2]
	resources := []string{o.resources[picked[0]], o.resources[picked[1]]}
	amount := random.Int64N(9) + 1
	d.attempt(ctx, "transfer", o.name, func(ctx context.Context, a *Attempt) error {
		return d.way.guarded(ctx, resources, level(random), func(tx pgx.Tx, grants []fencedb.Grant) error {
			a.granted(grants...)
			var balances, versions [2]int64
			reads := new(pgx.Batch)
			for i, resource := range resources {
				reads.Queue(`SELECT balance, version FROM accounts WHERE resource = $1`, resource).QueryRow(func(row pgx.Row) error {
					return row.Scan(&balances[i], &versions[i])
				})
			}
			if err := tx.SendBatch(ctx, reads).Close(); err != nil {
				return err
			}
			d.think(ctx, random)
			writes := new(pgx.Batch)
			for i, change := range []int64{-amount, amount} {
				by := slices.IndexFunc(grants, func(g fencedb.Grant) bool { return g.Resource() == resources[i] })
				writes.Queue(`UPDATE accounts SET balance = $2, version = $3 WHERE resource = $1`, resources[i], balances[i]+change, versions[i]+1)
				note(writes, "effects", Effect{a.ID, resources[i], versions[i], versions[i] + 1, change, grants[by].Token(), grants[by].LeaseID()})
			}
			return tx.SendBatch(ctx, writes).Close()
		})
	})
}

// oversleep takes a lease that is not renewed, writes, sleeps past its end and writes again: in a
// transaction that is already open, or in one that begins only then. Both are two attempts.
func (d *desk) oversleep(ctx context.Context, random *rand.Rand) {
	kind := []int{0, 1, slot, job}[random.IntN(4)]
	open := random.IntN(2) == 0
	switch d.Control { // some mistakes show only here
	case UncheckedSnapshot:
		kind, open = random.IntN(counters), true
	case NoRowFence:
		kind, open = job, false // the lock on the row holds others back
	}
	o, work := d.one(kind), map[int]string{0: "count", 1: "count", slot: "put or erase", job: "step"}[kind]
	var g fencedb.Grant
	release := func() {}
	d.attempt(ctx, work, o.name, func(ctx context.Context, a *Attempt) (err error) {
		g, release, err = d.way.hold(ctx, o.resources[0], false)
		if err != nil {
			return err
		}
		a.granted(g)
		return d.late(ctx, random, a, o, g, func() {})
	})
	if g == nil {
		return
	}
	sleep := d.pastTheEnd(random)
	if open {
		d.attempt(ctx, work+", late in its transaction", o.name, func(ctx context.Context, a *Attempt) error {
			return d.late(ctx, random, a, o, g, func() { wait(ctx, sleep) })
		})
	} else {
		wait(ctx, sleep)
		d.attempt(ctx, work+", late", o.name, func(ctx context.Context, a *Attempt) error {
			return d.late(ctx, random, a, o, g, func() {})
		})
	}
	release()
}

// pastTheEnd is longer than a lease that is not renewed.
func (d *desk) pastTheEnd(random *rand.Rand) time.Duration {
	return d.TTL + d.TTL/5 + upTo(random, d.TTL)
}

func (d *desk) late(ctx context.Context, random *rand.Rand, a *Attempt, o object, g fencedb.Grant, pause func()) error {
	if o.kind == job {
		g = fencedb.Carry(g)
	}
	return d.way.write(ctx, g, level(random), func(tx pgx.Tx) error { return d.change(ctx, tx, a, o, g, pause) })
}

// errSlot: the row is not as the versions say. Only a write past the fence can have done that.
var errSlot = errors.New("the row of the slot is there and should not be, or the other way round")

// change reads the one resource of an object and writes it. A counter is a table that only grows,
// so that no lock on a row stands in for the fence. The versions of the slot are those of its effects,
// because its row cannot count while it is not there. A job is locked before it is read, as a grant
// that is carried demands.
func (d *desk) change(ctx context.Context, tx pgx.Tx, a *Attempt, o object, g fencedb.Grant, pause func()) error {
	read, write, notes := `SELECT coalesce(max(value), 0) FROM entries WHERE resource = $1`, `INSERT INTO entries VALUES ($1, $2)`, "effects"
	switch o.kind {
	case register:
		read, write = `SELECT value FROM registers WHERE resource = $1`, `UPDATE registers SET value = $2 WHERE resource = $1`
	case slot:
		read, write = `SELECT coalesce(max(wrote), 0) FROM effects WHERE resource = $1`, `INSERT INTO slots SELECT $1 WHERE $2::bigint % 2 = 1 ON CONFLICT DO NOTHING`
	case job:
		read, write, notes = `SELECT version FROM jobs WHERE resource = $1 FOR UPDATE`, `UPDATE jobs SET version = $2 WHERE resource = $1`, "job_effects"
	}
	e := Effect{Attempt: a.ID, Resource: g.Resource(), Token: g.Token(), Lease: g.LeaseID()}
	if err := tx.QueryRow(ctx, read, e.Resource).Scan(&e.Read); err != nil {
		return err
	}
	pause()
	e.Wrote = e.Read + 1
	if o.kind == register {
		e.Wrote = a.ID
	}
	if o.kind == slot && e.Read%2 == 1 {
		write = `DELETE FROM slots WHERE resource = $1 AND $2::bigint % 2 = 0`
	}
	b, there := new(pgx.Batch), false
	b.Queue(write, e.Resource, e.Wrote).Exec(func(done pgconn.CommandTag) error {
		there = done.RowsAffected() == 1
		return nil
	})
	note(b, notes, e)
	if err := tx.SendBatch(ctx, b).Close(); err != nil || there {
		return err
	}
	if !a.plain { // who has not entered may read what another is just changing
		a.Broken = errSlot.Error()
	}
	return errSlot
}

// note writes an effect down, in the transaction that has it.
func note(b *pgx.Batch, table string, e Effect) {
	b.Queue(`INSERT INTO `+table+` VALUES ($1, $2, $3, $4, $5, $6, $7)`, e.Attempt, e.Resource, e.Read, e.Wrote, e.Amount, e.Token, e.Lease)
}

// wait takes time, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// upTo is a random time below d.
func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}
