package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lease"
)

// order is one step of a reservation, which a clerk carries out and answers.
type order struct {
	Do    string // one of the names below
	Table string // the resource of the lease, to acquire and to book
	Guest string // who books

	Wait  bool // for the lease
	Plain bool // book in the table that has no fence, without a token
	Sure  bool // book without another look at the clock and the lease
}

// What a clerk can be told to do.
const (
	toAcquire = "acquire" // the lease, then look who has booked
	toBook    = "book"
	toRelease = "release"
	toRenew   = "renew"
	toVerify  = "verify"  // that Redis has the lease as its own
	toOutlast = "outlast" // wait until the clerk itself ends the lease
)

// answer is what came of an order. Times are on the clock of now.
type answer struct {
	Outcome outcome
	Error   string // for people

	Token      int64         // of the lease that was acquired
	At         int64         // when it was acquired
	RetryAfter time.Duration // with held
	Until      int64         // of outlast: the lease was good until then
	Carried    int64         // with stale
	Stored     int64         // with stale
}

func (a answer) String() string {
	if a.Error == "" {
		return strconv.Quote(string(a.Outcome))
	}
	return fmt.Sprintf("%q: %s", a.Outcome, a.Error)
}

// outcome is how an order ended, in the words of the errors it stands for.
type outcome string

const (
	succeeded outcome = "done"
	held      outcome = "held"
	taken     outcome = "taken" // somebody else has booked; the lease is given back
	stale     outcome = "stale" // Postgres refused the token
	leaseOver outcome = "lease over"
	failed    outcome = "failed"
)

const clerkKind = "drill"

// clerk takes bookings in a process of its own, one order at a time. Its connection to Redis goes
// through the network of its task.
type clerk struct {
	task
	pool   *pgxpool.Pool
	issuer *lease.Issuer
	lease  *lease.Lease // the last one
}

func clerks(open OpenRedis) worker.Life {
	return func(ctx context.Context, self *worker.Self) error {
		c := new(clerk)
		if err := self.Config(&c.task); err != nil {
			return err
		}
		client, err := open(c.RedisURL, faulty.Through(c.ToRedis))
		if err != nil {
			return err
		}
		defer client.Close()
		if c.pool, err = c.connect(ctx, c.Run, 2); err != nil {
			return err
		}
		defer c.pool.Close()
		if c.issuer, err = lease.New(client, lease.Config{TTL: c.TTL, Namespace: c.Run, Holder: c.name()}); err != nil {
			return err
		}
		self.Tell(answer{}) // it is ready
		for {
			var o order
			if self.Order(&o) != nil {
				return nil // nobody is there any more, and the lease expires
			}
			var a answer
			a.is(c.carryOut(ctx, o, &a))
			self.Tell(a)
		}
	}
}

func (t task) name() string { return string(rune('A' + t.Process)) }

func (c *clerk) carryOut(ctx context.Context, o order, a *answer) error {
	switch o.Do {
	case toAcquire:
		return c.acquire(ctx, o, a)
	case toBook:
		return c.book(ctx, o)
	case toRelease:
		return c.lease.Release(ctx)
	case toRenew:
		return c.lease.Extend(ctx)
	case toVerify:
		verdict, err := c.lease.Verify(ctx)
		if err == nil && verdict != lease.Current {
			err = errors.New(verdict.String())
		}
		return err
	case toOutlast:
		<-c.lease.Context().Done()
		a.Until = now() + int64(time.Until(c.lease.ValidUntil()))
		return context.Cause(c.lease.Context())
	}
	return errors.New("there is no such order")
}

var errTaken = errors.New("another guest has booked")

func (c *clerk) acquire(ctx context.Context, o order, a *answer) (err error) {
	wait := lease.NoWait()
	if o.Wait {
		wait = lease.WaitAtMost(time.Minute)
	}
	if c.lease, err = c.issuer.Acquire(ctx, o.Table, wait); err != nil {
		return err
	}
	a.At, a.Token = now(), c.lease.Token()
	var taken bool
	look := c.in(`SELECT EXISTS (SELECT FROM stage.` + o.table() + ` WHERE resource = $1 AND guest <> $2)`)
	if err := c.pool.QueryRow(ctx, look, o.Table, o.Guest).Scan(&taken); err != nil || !taken {
		return err
	}
	return errors.Join(errTaken, c.lease.Release(ctx))
}

func (o order) table() string {
	if o.Plain {
		return "unfenced"
	}
	return "bookings"
}

func (c *clerk) book(ctx context.Context, o order) error {
	write := c.in(`INSERT INTO stage.` + o.table() + ` VALUES ($1, $2) ON CONFLICT (resource) DO UPDATE SET guest = excluded.guest`)
	if o.Plain {
		_, err := c.pool.Exec(ctx, write, o.Table, o.Guest)
		return err
	}
	grant := fencedb.Grant(c.lease)
	if o.Sure {
		grant = fencedb.NewGrant(o.Table, c.lease.Token(), c.lease.LeaseID(), fencedb.NoEnd)
	}
	_, err := fencedb.Exec(ctx, c.pool, grant, write, o.Table, o.Guest)
	return err
}

// is puts what an order has ended with in the words of an answer.
func (a *answer) is(err error) {
	a.Outcome = succeeded
	if err == nil {
		return
	}
	a.Outcome, a.Error = failed, err.Error()
	holding, isHeld := errors.AsType[*lease.HeldError](err)
	refused, isStale := errors.AsType[*fencedb.StaleError](err)
	switch {
	case isHeld:
		a.Outcome, a.RetryAfter = held, holding.RetryAfter
	case isStale:
		a.Outcome, a.Carried, a.Stored = stale, refused.Token, refused.Stored
	case errors.Is(err, errTaken):
		a.Outcome = taken
	case errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost),
		errors.Is(err, lease.ErrUnreachable):
		a.Outcome = leaseOver
	}
}
