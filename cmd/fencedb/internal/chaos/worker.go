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
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Dial is how a connection is made.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// OpenRedis makes a client of the Redis at address. With a nil dial it connects as usual.
type OpenRedis func(address string, dial Dial) (redis.UniversalClient, error)

// task is what a worker process is started with.
type task struct {
	Config
	Run        string // names the schema in Postgres and the namespace in Redis
	Process    int
	ToPostgres string // the socket of its network
	ToRedis    string

	tables []string // the resources of a drill, beside those of the objects
}

const workerKind = "chaos"

// Workers are what the processes do that [Run] and [Drill] start. A program that calls these hands
// it to [worker.Become] first thing: they start that program again for each worker.
func Workers(open OpenRedis) map[string]worker.Life {
	return map[string]worker.Life{workerKind: workers(open), clerkKind: clerks(open)}
}

// workers make attempts. They tell of each one twice: when it begins, and when it has returned.
func workers(open OpenRedis) worker.Life {
	return func(ctx context.Context, self *worker.Self) (err error) {
		d := &desk{self: self, issuers: map[bool]*lease.Issuer{}, permits: map[bool]*lease.Semaphore{}}
		if err := self.Config(&d.task); err != nil {
			return err
		}
		d.objects, d.way = d.copies(), ways[d.Control]
		if d.client, err = open(d.RedisURL, faulty.Through(d.ToRedis)); err != nil {
			return err
		}
		defer d.client.Close()
		losing := new(atomic.Bool) // replies to COMMIT
		d.pool, err = d.connect(ctx, d.Run, int32(d.Clients+2), func(config *pgx.ConnConfig) {
			config.DialFunc = faulty.Through(d.ToPostgres)
			config.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
				return &forgetful{Conn: conn, losing: losing}, nil // inside TLS
			}
		})
		if err != nil {
			return err
		}
		defer d.pool.Close()
		if err := d.employ(); err != nil {
			return err
		}
		self.Tell(Attempt{}) // it is ready

		working, cancel := context.WithCancel(ctx)
		var clients sync.WaitGroup
		for n := range d.Clients {
			random := rand.New(rand.NewPCG(d.Seed, uint64(d.Process)<<16|uint64(n)))
			clients.Go(func() { d.serve(working, random) })
		}
		for lose := false; self.Order(&lose) == nil; { // its only order: to lose the replies to COMMIT or not
			losing.Store(lose)
		}
		cancel()
		clients.Wait()
		closing, done := context.WithTimeout(ctx, 2*d.TTL)
		defer done()
		for renews := range d.issuers { // what is not given back expires
			_, _ = d.issuers[renews].Close(closing), d.permits[renews].Close(closing)
		}
		_ = d.orders.Close(closing)
		return nil
	}
}

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

// connect makes a pool whose sessions have a name.
func (t task) connect(ctx context.Context, name string, most int32,
	change ...func(*pgx.ConnConfig)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(t.PostgresURL)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"], config.MaxConns = name, most
	for _, f := range change {
		f(config.ConnConfig)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// desk is a worker process at work.
type desk struct {
	task
	self    *worker.Self
	pool    *pgxpool.Pool
	client  redis.UniversalClient
	objects []object
	way     way
	issuers map[bool]*lease.Issuer    // true: renews
	permits map[bool]*lease.Semaphore // the same
	orders  *once.Once
	count   atomic.Int64 // of attempts
	turns   [slot + 1]atomic.Int64

	// When somebody did last: write without a token, ask for a permit, ask for the result of the
	// order, oversleep.
	intruded, admitted, ordered, slept atomic.Int64
}

// employ makes the issuers and what works beside them. Every other process seals.
func (d *desk) employ() (err error) {
	config := lease.Config{TTL: d.TTL, Namespace: d.Run}
	for renews, every := range map[bool]time.Duration{true: 0, false: lease.Never} {
		config.RenewEvery, config.Seal = every, nil
		permits := lease.SemaphoreConfig{Limit: limit, Lease: config}
		if d.permits[renews], err = lease.NewSemaphore(d.client, permits); err != nil {
			return err
		}
		if d.Process%2 == 0 && d.Control == NoControl {
			config.Seal = fencedb.Sealer(d.pool)
		}
		if d.issuers[renews], err = lease.New(d.client, config); err != nil {
			return err
		}
	}
	d.orders, err = once.New(d.client, once.Config{InFlight: d.TTL, MaxRun: d.TTL, Done: d.remembers(), Namespace: d.Run})
	return err
}

// serve makes attempts, one after the other. Only one client at a time oversleeps, and not often:
// nobody else has its counter then until the lease is over. With a control there is nothing to lose
// by that.
func (d *desk) serve(ctx context.Context, random *rand.Rand) {
	often := 6 * d.TTL
	if d.Control != NoControl {
		often = 2 * d.TTL
	}
	for ctx.Err() == nil {
		switch n := random.IntN(100); {
		case due(&d.intruded, 2*d.TTL):
			d.intrude(ctx, pick(random, 0, 1, register, slot))
		case due(&d.admitted, d.TTL/4):
			d.permit(ctx, random)
		case due(&d.ordered, d.TTL/2):
			d.order(ctx, random)
		case due(&d.slept, often):
			d.oversleep(ctx, random)
		case n < 30:
			d.once(ctx, random, random.IntN(counters))
		case n < 45:
			d.once(ctx, random, slot)
		case n < 65:
			d.once(ctx, random, register)
		case n < 75:
			d.look(ctx)
		default:
			d.transfer(ctx, random)
		}
	}
}

// due reports to one client, once in a while, that it is time. The rate does not depend on how fast
// the machine is.
func due(last *atomic.Int64, often time.Duration) bool {
	before := last.Load()
	return now()-before > int64(often) && last.CompareAndSwap(before, now())
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// one is the next object of a kind. They take turns, so that none waits for long to be written
// again where there are many.
func (d *desk) one(kind int) object {
	turn := int(d.turns[kind].Add(1)) + d.Process
	return d.objects[turn%d.Width*len(objects)+kind]
}

// patience is how long an attempt may take by its own context.
func (t task) patience() time.Duration { return 8*t.TTL + 2*time.Second }

// attempt tells of an attempt before it begins and after it has ended.
func (d *desk) attempt(ctx context.Context, work, object string, do func(context.Context, *Attempt) error) {
	a := &Attempt{ID: int64(d.Process)<<32 | d.count.Add(1), Work: work, Object: object, Call: now()}
	d.self.Tell(a)
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	err := do(ctx, a)
	a.Return, a.Outcome = now(), outcomeOf(err, a.plain || d.way.begin != nil)
	if err != nil {
		a.Error = err.Error()
	}
	d.self.Tell(a)
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

// levels are what transactions draw from.
var levels = append(slices.Repeat([]pgx.TxIsoLevel{pgx.ReadCommitted}, 7),
	pgx.RepeatableRead, pgx.RepeatableRead, pgx.Serializable)

// think is the time between reading and writing: usually little, sometimes half a TTL.
func (d *desk) think(random *rand.Rand) time.Duration {
	if random.IntN(20) == 0 {
		return upTo(random, d.TTL/2)
	}
	return upTo(random, 3*time.Millisecond)
}

// once reads one resource and writes it.
func (d *desk) once(ctx context.Context, random *rand.Rand, kind int) {
	o := d.one(kind)
	d.attempt(ctx, o.work, o.name, func(ctx context.Context, a *Attempt) error {
		return d.guarded(ctx, o.resources, pick(random, levels...), func(tx pgx.Tx, grants []fencedb.Grant) error {
			a.granted(grants...)
			return d.rewrite(ctx, tx, a, o, grants[0], d.think(random))
		})
	})
}

// look reads a register without a lease.
func (d *desk) look(ctx context.Context) {
	o := d.one(register)
	d.attempt(ctx, "look", o.name, func(ctx context.Context, a *Attempt) error {
		return d.pool.QueryRow(ctx, d.in(`SELECT value FROM stage.registers WHERE resource = $1`), o.resources[0]).Scan(&a.Read)
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
		nobody := fencedb.NewGrant(o.resources[0], 0, uuid.Nil, fencedb.NoEnd)
		return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return d.rewrite(ctx, tx, a, o, nobody, 0) })
	})
}

// transfer moves money between two of the accounts.
func (d *desk) transfer(ctx context.Context, random *rand.Rand) {
	o := d.one(accounts)
	picked := random.Perm(len(o.resources))
	amount := pick(random, int64(-1), 1) * (random.Int64N(9) + 1)
	d.attempt(ctx, o.work, o.name, func(ctx context.Context, a *Attempt) error {
		resources := []string{o.resources[picked[0]], o.resources[picked[1]]}
		return d.guarded(ctx, resources, pick(random, levels...), func(tx pgx.Tx, grants []fencedb.Grant) error {
			a.granted(grants...)
			var balances, versions [2]int64
			for i, g := range grants {
				row := tx.QueryRow(ctx, d.in(`SELECT balance, version FROM stage.accounts WHERE resource = $1`), g.Resource())
				if err := row.Scan(&balances[i], &versions[i]); err != nil {
					return err
				}
			}
			wait(ctx, d.think(random))
			writes := new(pgx.Batch)
			for i, change := range []int64{-amount, amount} {
				g := grants[i]
				writes.Queue(d.in(`UPDATE stage.accounts SET balance = $2, version = $3 WHERE resource = $1`), g.Resource(), balances[i]+change, versions[i]+1)
				d.note(writes, Effect{a.ID, g.Resource(), versions[i], versions[i] + 1, change, g.Token(), g.LeaseID()})
			}
			return tx.SendBatch(ctx, writes).Close()
		})
	})
}

// oversleep takes a lease that is not renewed, writes, sleeps past its end and writes again: in a
// transaction that is already open, or in one that begins only then. Both are two attempts.
func (d *desk) oversleep(ctx context.Context, random *rand.Rand) {
	kind, open := pick(random, 0, 1, slot), pick(random, true, false)
	if d.Control == UncheckedSnapshot { // its mistake shows only here
		kind, open = random.IntN(counters), true
	}
	o := d.one(kind)
	var g fencedb.Grant
	var release func()
	d.attempt(ctx, o.work, o.name, func(ctx context.Context, a *Attempt) (err error) {
		if g, release, err = d.hold(ctx, o.resources[0], false); err != nil {
			return err
		}
		a.granted(g)
		return d.update(ctx, random, a, o, g, 0)
	})
	if g == nil {
		return
	}
	defer release()
	sleep, how := d.pastTheEnd(random), ", late in its transaction"
	if !open {
		wait(ctx, sleep)
		sleep, how = 0, ", late"
	}
	d.attempt(ctx, o.work+how, o.name, func(ctx context.Context, a *Attempt) error {
		return d.update(ctx, random, a, o, g, sleep)
	})
}

// pastTheEnd is longer than a lease that is not renewed.
func (d *desk) pastTheEnd(random *rand.Rand) time.Duration {
	return d.TTL + d.TTL/5 + upTo(random, d.TTL)
}

// update changes an object under a grant.
func (d *desk) update(ctx context.Context, random *rand.Rand, a *Attempt, o object, g fencedb.Grant,
	pause time.Duration) error {
	return d.write(ctx, []fencedb.Grant{g}, pick(random, levels...), func(tx pgx.Tx) error {
		return d.rewrite(ctx, tx, a, o, g, pause)
	})
}

// errSlot: the row is not as the versions say. Only a write past the fence can have done that.
var errSlot = errors.New("the row of the slot is there and should not be, or the other way round")

// rewrite reads the one resource of an object and writes it. A counter is a table that only grows,
// so that no lock on a row stands in for the fence. The versions of the slot are those of its
// effects, because its row cannot count while it is not there.
func (t task) rewrite(ctx context.Context, tx pgx.Tx, a *Attempt, o object, g fencedb.Grant,
	pause time.Duration) error {
	read, write := `SELECT coalesce(max(value), 0) FROM stage.entries WHERE resource = $1`, `INSERT INTO stage.entries VALUES ($1, $2)`
	switch o.kind {
	case register:
		read, write = `SELECT value FROM stage.registers WHERE resource = $1`, `UPDATE stage.registers SET value = $2 WHERE resource = $1`
	case slot:
		read, write = `SELECT coalesce(max(wrote), 0) FROM stage.effects WHERE resource = $1`, `INSERT INTO stage.slots SELECT $1 WHERE $2::bigint % 2 = 1 ON CONFLICT DO NOTHING`
	}
	e := Effect{Attempt: a.ID, Resource: g.Resource(), Token: g.Token(), Lease: g.LeaseID()}
	if err := tx.QueryRow(ctx, t.in(read), e.Resource).Scan(&e.Read); err != nil {
		return err
	}
	wait(ctx, pause)
	e.Wrote = e.Read + 1
	if o.kind == register {
		e.Wrote = a.ID
	}
	if o.kind == slot && e.Read%2 == 1 {
		write = `DELETE FROM stage.slots WHERE resource = $1 AND $2::bigint % 2 = 0`
	}
	b, there := new(pgx.Batch), false
	b.Queue(t.in(write), e.Resource, e.Wrote).Exec(func(done pgconn.CommandTag) error {
		there = done.RowsAffected() == 1
		return nil
	})
	t.note(b, e)
	if err := tx.SendBatch(ctx, b).Close(); err != nil || there {
		return err
	}
	if !a.plain { // who has not entered may read what another is just changing
		a.Broken = errSlot.Error()
	}
	return errSlot
}

// note writes an effect down, in the transaction that has it.
func (t task) note(b *pgx.Batch, e Effect) {
	b.Queue(t.in(`INSERT INTO stage.effects VALUES ($1, $2, $3, $4, $5, $6, $7)`), e.Attempt, e.Resource, e.Read, e.Wrote, e.Amount, e.Token, e.Lease)
}

// wait takes time, unless ctx ends first.
func wait(ctx context.Context, d time.Duration) { _ = worker.Sleep(ctx, d) }

// upTo is a random time below d.
func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}
