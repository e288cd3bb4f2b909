package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// Control is a way to write that is wrong. A run with it must end in a conviction; if it does not,
// the suite shows nothing about the right way either.
type Control string

// The controls.
const (
	NoControl         Control = ""
	NoFence           Control = "no-fence"           // leases of package lease, and plain transactions
	LockOnly          Control = "lock-only"          // SET NX PX, compared and deleted; plain transactions
	PlainCounter      Control = "plain-counter"      // tokens from INCR, which an old copy of the data sets back
	UncheckedSnapshot Control = "unchecked-snapshot" // REPEATABLE READ, entered without asking how old the snapshot is
	SafeToRetry       Control = "safe-to-retry"      // after a lost COMMIT, pgconn.SafeToRetry is believed
	NoTrigger         Control = "no-trigger"         // the tables are not protected, and somebody writes without a token
	EndlessPermit     Control = "endless-permit"     // holders of a semaphore work on when their permit has expired
	OwnKey            Control = "own-key"            // processes ask for one order with keys of their own
)

// Controls lists the controls.
func Controls() []Control {
	return []Control{NoFence, LockOnly, PlainCounter, UncheckedSnapshot, SafeToRetry, NoTrigger, EndlessPermit, OwnKey}
}

// way is what a control does otherwise than the right way.
type way struct {
	open    bool // the tables are not protected
	lock    bool // a lock as people write it, instead of a lease
	counter bool // with tokens
	// begin begins transactions of pgx, instead of package fencedb.
	begin func(context.Context, task, pgx.Tx, fencedb.Grant) error
	level pgx.TxIsoLevel              // of these; "": as the workload wants it
	again func(error) (believed bool) // whether these are tried again; nil: never
}

// ways has the controls that write in another way; the others are wrong elsewhere.
var ways = map[Control]way{
	NoFence:           {open: true, begin: noFence},
	LockOnly:          {open: true, begin: noFence, lock: true},
	PlainCounter:      {lock: true, counter: true},
	UncheckedSnapshot: {open: true, begin: enterUnchecked, level: pgx.RepeatableRead},
	SafeToRetry:       {begin: enter, level: pgx.ReadCommitted, again: pgconn.SafeToRetry},
	NoTrigger:         {open: true},
}

// intruded says whether somebody writes without a token. It is refused where the tables are
// protected.
func (c Control) intruded() bool { return !ways[c].open || c == NoTrigger }

func noFence(context.Context, task, pgx.Tx, fencedb.Grant) error { return nil }

func enter(ctx context.Context, _ task, tx pgx.Tx, g fencedb.Grant) error {
	_, err := fencedb.Enter(ctx, tx, g)
	return err
}

// enterUnchecked is a fence as people write it: right at READ COMMITTED, wrong above it.
func enterUnchecked(ctx context.Context, t task, tx pgx.Tx, g fencedb.Grant) error {
	same, err := tx.Exec(ctx, t.in(`SELECT FROM stage.fence WHERE resource = $1 AND token = $2 AND lease_id = $3 FOR SHARE`),
		g.Resource(), g.Token(), g.LeaseID())
	if err != nil || same.RowsAffected() > 0 {
		return err
	}
	advanced, err := tx.Exec(ctx, t.in(`
		INSERT INTO stage.fence AS f VALUES ($1, $2, $3)
		ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id
		WHERE excluded.token > f.token`), g.Resource(), g.Token(), g.LeaseID())
	if err == nil && advanced.RowsAffected() == 0 {
		err = fmt.Errorf("token %d: %w", g.Token(), fencedb.ErrStale)
	}
	return err
}

// guarded acquires resources, runs fn in a transaction and gives the resources back.
func (d *desk) guarded(ctx context.Context, resources []string, level pgx.TxIsoLevel,
	fn func(pgx.Tx, []fencedb.Grant) error) error {
	if !d.way.lock && d.way.begin == nil {
		door := guard.New(d.issuers[true], d.at(level))
		return door.DoAll(ctx, resources, func(ctx context.Context, h *guard.Holder) error {
			var grants []fencedb.Grant
			for _, l := range h.Leases() {
				grants = append(grants, l)
			}
			return h.Tx(ctx, func(tx pgx.Tx) error { return fn(tx, grants) })
		})
	}
	var grants []fencedb.Grant
	for _, resource := range slices.Sorted(slices.Values(resources)) { // or two would wait for each other
		g, release, err := d.hold(ctx, resource, true)
		if err != nil {
			return err
		}
		defer release()
		grants = append(grants, g)
	}
	return d.write(ctx, grants, level, func(tx pgx.Tx) error { return fn(tx, grants) })
}

func (d *desk) at(level pgx.TxIsoLevel) fencedb.DB {
	return fencedb.With(d.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: level}))
}

// hold acquires a resource. If it is not renewed, the grant is sure of itself: it has no validity.
func (d *desk) hold(ctx context.Context, resource string, renewed bool) (g fencedb.Grant, release func(), err error) {
	if d.way.lock {
		return d.lock(ctx, resource)
	}
	l, err := d.issuers[renewed].Acquire(ctx, resource)
	if err != nil {
		return nil, nil, err
	}
	g = l
	if !renewed {
		g = fencedb.NewGrant(resource, l.Token(), l.LeaseID(), fencedb.NoEnd)
	}
	return g, func() { _ = l.Release(ctx) }, nil
}

var errNotHeld = errors.New("the lock was not free in time")

// deleteIfMine releases the lock.
var deleteIfMine = redis.NewScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])`)

// lock is hold with a lock as people write it.
func (d *desk) lock(ctx context.Context, resource string) (fencedb.Grant, func(), error) {
	id, token := uuid.New(), int64(1)
	owner := lease.Key{Namespace: d.Run, Resource: resource, Field: "owner"}.String()
	for {
		err := d.client.SetArgs(ctx, owner, id.String(), redis.SetArgs{Mode: "NX", TTL: d.TTL}).Err()
		if err == nil {
			break
		}
		if wait(ctx, d.TTL/50); ctx.Err() != nil {
			return nil, nil, fmt.Errorf("%w: %w", errNotHeld, err)
		}
	}
	release := func() { _ = deleteIfMine.Run(ctx, d.client, []string{owner}, id.String()).Err() }
	if d.way.counter {
		var err error
		fence := lease.Key{Namespace: d.Run, Resource: resource, Field: "fence"}.String()
		if token, err = d.client.Incr(ctx, fence).Result(); err != nil {
			release()
			return nil, nil, fmt.Errorf("%w: %w", errNotHeld, err)
		}
	}
	return fencedb.NewGrant(resource, token, id, fencedb.NoEnd), release, nil
}

// write runs fn in a transaction under grants.
func (d *desk) write(ctx context.Context, grants []fencedb.Grant, level pgx.TxIsoLevel, fn func(pgx.Tx) error) error {
	w := d.way
	if w.begin == nil {
		return fencedb.Tx(ctx, d.at(level), fencedb.All(grants...), fn)
	}
	for {
		err := pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: cmp.Or(w.level, level)}, func(tx pgx.Tx) error {
			for _, g := range grants {
				if err := w.begin(ctx, d.task, tx, g); err != nil {
					return err
				}
			}
			return fn(tx)
		})
		if err == nil || w.again == nil || !w.again(err) || ctx.Err() != nil {
			return err
		}
	}
}
