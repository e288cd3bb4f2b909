package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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
	NoRowFence        Control = "no-row-fence"       // grants are carried to a table that is not protected
	EndlessPermit     Control = "endless-permit"     // holders of a semaphore work on when their permit has expired
	OwnKey            Control = "own-key"            // processes ask for one order with keys of their own
)

// Controls lists the controls.
func Controls() []Control {
	return []Control{NoFence, LockOnly, PlainCounter, UncheckedSnapshot, SafeToRetry, NoTrigger, NoRowFence, EndlessPermit, OwnKey}
}

// protects says whether the tables are protected under a control.
func (c Control) protects() bool {
	switch c {
	case NoFence, LockOnly, UncheckedSnapshot, NoTrigger:
		return false
	}
	return true
}

// intruded says whether somebody writes without a token. It is refused where the tables are protected.
func (c Control) intruded() bool { return c.protects() && c != NoRowFence || c == NoTrigger }

// way is how a worker gets a lease and writes under it.
type way interface {
	// guarded acquires resources, runs fn in a transaction and gives the resources back. It may run
	// fn twice, when the first transaction has written nothing.
	guarded(ctx context.Context, resources []string, level pgx.TxIsoLevel, fn func(pgx.Tx, []fencedb.Grant) error) error

	// hold acquires a resource. If it is not renewed, the grant is sure of itself: it has no validity.
	hold(ctx context.Context, resource string, renewed bool) (g fencedb.Grant, release func(), err error)

	// write runs fn in a transaction under a grant.
	write(ctx context.Context, g fencedb.Grant, level pgx.TxIsoLevel, fn func(pgx.Tx) error) error

	outcome(err error) Outcome
}

// fenced is the right way.
type fenced struct {
	pool    *pgxpool.Pool
	issuers [2]*lease.Issuer // the second does not renew
}

func (w fenced) guarded(ctx context.Context, resources []string, level pgx.TxIsoLevel, fn func(pgx.Tx, []fencedb.Grant) error) error {
	return guard.TxAll(ctx, w.issuers[0], w.at(level), resources, func(_ context.Context, ls lease.Leases, tx pgx.Tx) error {
		return fn(tx, grantsOf(ls))
	})
}

func (w fenced) at(level pgx.TxIsoLevel) fencedb.DB {
	return fencedb.With(w.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: level}))
}

func (w fenced) hold(ctx context.Context, resource string, renewed bool) (fencedb.Grant, func(), error) {
	issuer := w.issuers[0]
	if !renewed {
		issuer = w.issuers[1]
	}
	l, err := issuer.Acquire(ctx, resource)
	if err != nil {
		return nil, nil, err
	}
	release := func() { _ = l.Release(ctx) }
	if renewed {
		return l, release, nil
	}
	return fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), time.Time{}), release, nil
}

func (w fenced) write(ctx context.Context, g fencedb.Grant, level pgx.TxIsoLevel, fn func(pgx.Tx) error) error {
	return fencedb.Tx(ctx, w.at(level), g, fn)
}

func (fenced) outcome(err error) Outcome { return outcomeOf(err) }

func grantsOf(ls lease.Leases) []fencedb.Grant {
	grants := make([]fencedb.Grant, len(ls))
	for i, l := range ls {
		grants[i] = l
	}
	return grants
}

// unfenced has leases of package lease and transactions of pgx. What begins a transaction is what
// the controls differ in.
type unfenced struct {
	fenced
	begin func(ctx context.Context, tx pgx.Tx, g fencedb.Grant) error
	level pgx.TxIsoLevel              // "": as the workload wants it
	again func(error) (believed bool) // nil: never
}

func (w unfenced) guarded(ctx context.Context, resources []string, level pgx.TxIsoLevel, fn func(pgx.Tx, []fencedb.Grant) error) error {
	return w.issuers[0].DoAll(ctx, resources, func(ctx context.Context, ls lease.Leases) error {
		return w.transact(ctx, grantsOf(ls), level, fn)
	})
}

func (w unfenced) write(ctx context.Context, g fencedb.Grant, level pgx.TxIsoLevel, fn func(pgx.Tx) error) error {
	return w.transact(ctx, []fencedb.Grant{g}, level, func(tx pgx.Tx, _ []fencedb.Grant) error { return fn(tx) })
}

func (w unfenced) transact(ctx context.Context, grants []fencedb.Grant, level pgx.TxIsoLevel, fn func(pgx.Tx, []fencedb.Grant) error) error {
	if w.level != "" {
		level = w.level
	}
	for {
		err := pgx.BeginTxFunc(ctx, w.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			for _, g := range grants {
				if err := w.begin(ctx, tx, g); err != nil {
					return err
				}
			}
			return fn(tx, grants)
		})
		if err == nil || w.again == nil || !w.again(err) || ctx.Err() != nil {
			return err
		}
	}
}

func (unfenced) outcome(err error) Outcome { return plainOutcomeOf(err) }

func noFence(context.Context, pgx.Tx, fencedb.Grant) error { return nil }

// enterUnchecked is a fence as people write it: right at READ COMMITTED, wrong above it.
func enterUnchecked(ctx context.Context, tx pgx.Tx, g fencedb.Grant) error {
	same, err := tx.Exec(ctx, `SELECT FROM fence WHERE resource = $1 AND token = $2 AND lease_id = $3 FOR SHARE`,
		g.Resource(), g.Token(), g.LeaseID())
	if err != nil || same.RowsAffected() > 0 {
		return err
	}
	advanced, err := tx.Exec(ctx, `
		INSERT INTO fence AS f VALUES ($1, $2, $3)
		ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id
		WHERE excluded.token > f.token`, g.Resource(), g.Token(), g.LeaseID())
	if err == nil && advanced.RowsAffected() == 0 {
		err = fmt.Errorf("token %d: %w", g.Token(), fencedb.ErrStale)
	}
	return err
}

// locked is a lock as people write it, with or without a counter for tokens.
type locked struct {
	client  redis.UniversalClient
	run     string
	ttl     time.Duration
	counter bool
	writer  way // which writes
}

var errNotHeld = errors.New("the lock was not free in time")

// deleteIfMine releases the lock.
var deleteIfMine = redis.NewScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])`)

func (w locked) hold(ctx context.Context, resource string, _ bool) (fencedb.Grant, func(), error) {
	id := uuid.New()
	key := lease.Key{Namespace: w.run, Resource: resource, Field: "owner"}.String()
	for {
		err := w.client.SetArgs(ctx, key, id.String(), redis.SetArgs{Mode: "NX", TTL: w.ttl}).Err()
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%w: %w", errNotHeld, err)
		case <-time.After(w.ttl / 50):
		}
	}
	release := func() { _ = deleteIfMine.Run(ctx, w.client, []string{key}, id.String()).Err() }
	token := int64(1)
	if w.counter {
		var err error
		fence := lease.Key{Namespace: w.run, Resource: resource, Field: "fence"}.String()
		if token, err = w.client.Incr(ctx, fence).Result(); err != nil {
			release()
			return nil, nil, fmt.Errorf("%w: %w", errNotHeld, err)
		}
	}
	return fencedb.NewGrant(resource, token, id, time.Time{}), release, nil
}

// guarded holds the resources in their order. A transaction of several is one of the first grant:
// the other fences are entered by fn's writes, which the controls do not look at.
func (w locked) guarded(ctx context.Context, resources []string, level pgx.TxIsoLevel, fn func(pgx.Tx, []fencedb.Grant) error) error {
	var grants []fencedb.Grant
	for _, resource := range resources {
		g, release, err := w.hold(ctx, resource, true)
		if err != nil {
			return err
		}
		defer release()
		grants = append(grants, g)
	}
	return w.writer.write(ctx, fencedb.All(grants...), level, func(tx pgx.Tx) error { return fn(tx, grants) })
}

func (w locked) write(ctx context.Context, g fencedb.Grant, level pgx.TxIsoLevel, fn func(pgx.Tx) error) error {
	return w.writer.write(ctx, g, level, fn)
}

func (w locked) outcome(err error) Outcome { return w.writer.outcome(err) }

// newWay returns the way of a control.
func newWay(c Control, right fenced, client redis.UniversalClient, run string, ttl time.Duration) (way, error) {
	switch c {
	case NoControl, NoTrigger, NoRowFence, EndlessPermit, OwnKey:
		return right, nil
	case NoFence:
		return unfenced{fenced: right, begin: noFence}, nil
	case UncheckedSnapshot:
		return unfenced{fenced: right, begin: enterUnchecked, level: pgx.RepeatableRead}, nil
	case SafeToRetry:
		enter := func(ctx context.Context, tx pgx.Tx, g fencedb.Grant) error {
			_, err := fencedb.Enter(ctx, tx, g)
			return err
		}
		return unfenced{fenced: right, begin: enter, level: pgx.ReadCommitted, again: pgconn.SafeToRetry}, nil
	case LockOnly:
		return locked{client: client, run: run, ttl: ttl, writer: unfenced{fenced: right, begin: noFence}}, nil
	case PlainCounter:
		return locked{client: client, run: run, ttl: ttl, counter: true, writer: right}, nil
	}
	return nil, fmt.Errorf("there is no control %q; there are %v", c, Controls())
}
