package fencedb

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Enter takes the fence of grant in a transaction that the application has begun itself, and holds it until that
// transaction ends. It must come first: what the transaction read before it may already be old. It must not come after a
// savepoint, and the server refuses that: rolling back to the savepoint would give the fence back.
//
// Above READ COMMITTED the grant must have been sealed before the transaction began, or Enter fails with ErrUnsealed.
//
// On error the transaction is aborted: roll it back. Cancelling ctx closes the connection, as in every pgx call.
// Whether the transaction then commits is for the caller to find out; prefer Tx, which does it for you. Enter itself
// returns within five seconds after grant's validity, if that has an end; what follows is bounded by the caller's
// contexts.
func Enter(ctx context.Context, tx pgx.Tx, grant Grant, opts ...Option) error {
	e, err := newEntry(grant, opts)
	if err != nil {
		return err
	}
	t := e.trace(ctx, OpEnter)
	defer t.end()
	return t.is(e.enter(t.ctx, tx))
}

func (e *entry) enter(ctx context.Context, tx pgx.Tx) error {
	sql, args, err := e.query(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	if err := e.entered(tx.QueryRow(bounded, sql, args...)); err != nil {
		return e.explain(ctx, nil, tx.Conn().IsClosed(), err)
	}
	return nil
}

// entry is one passage through fencedb.enter: the grants, and what bounds the transaction that enters.
type entry struct {
	config
	grants []Grant
	db     DB        // where transactions begin; nil in those of the application
	carry  bool      // rows are to judge the grants, no fence is taken
	asked  time.Time // when the query was made: the moment our waiting is counted from
	until  time.Time // when the server ends the transaction; zero if it may run as long as it likes
	xid    uint64    // of the transaction that has entered; 0 before
	epoch  int64     // of the server that gave it

	overdue *time.Timer // of watch
}

func newEntry(grant Grant, opts []Option) (*entry, error) {
	e := &entry{}
	e.grants, e.carry = uncarry(flatten(grant))
	for _, opt := range opts {
		opt(&e.config)
	}
	return e, check(e.grants)
}

const (
	enterOne = `SELECT xid::text::bigint, epoch FROM fencedb.enter($1::text, $2::bigint, $3::uuid, $4::bigint, $5::bigint)`
	enterAll = `SELECT xid::text::bigint, epoch FROM fencedb.enter_all($1::text[], $2::bigint[], $3::uuid[], $4::bigint, $5::bigint)`
	carryAll = `SELECT xid::text::bigint, epoch FROM fencedb.carry_all($1::text[], $2::bigint[], $3::uuid[], $4::bigint)`
)

// batch is what begins the transaction: BEGIN, enter and copies of the queries behind them, since pgx notes on each to which
// connection it was sent.
func (e *entry) batch(ctx context.Context, behind []*pgx.QueuedQuery) (*pgx.Batch, error) {
	sql, args, err := e.query(ctx)
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	b.BeginTx(e.txOptions)
	b.Queue(sql, args...).QueryRow(e.entered)
	for _, query := range behind {
		own := *query
		b.QueuedQueries = append(b.QueuedQueries, &own)
	}
	return b, nil
}

// sealTries is how often a transaction is sent that is refused because its token was not sealed.
const sealTries = 3

// unsealed reports whether enter refused because the fence may be younger than the transaction's snapshot.
func unsealed(err error) bool { return answered(err).code == codeSerializationFailure }

// entered reads the answer to query.
func (e *entry) entered(row pgx.Row) error { return row.Scan(&e.xid, &e.epoch) }

// query returns the statement that enters, with what remains of the lease as of now.
func (e *entry) query(ctx context.Context) (sql string, args []any, err error) {
	remaining, err := e.remaining()
	if err != nil {
		return "", nil, err
	}
	if len(e.grants) == 1 && !e.carry {
		g := e.grants[0]
		return enterOne, []any{g.Resource(), g.Token(), g.LeaseID().String(), remaining, patience(ctx)}, nil
	}
	var (
		resources = make([]string, len(e.grants))
		tokens    = make([]int64, len(e.grants))
		leaseIDs  = make([]string, len(e.grants))
	)
	for i, g := range e.grants {
		resources[i], tokens[i], leaseIDs[i] = g.Resource(), g.Token(), g.LeaseID().String()
	}
	if e.carry {
		return carryAll, []any{resources, tokens, leaseIDs, remaining}, nil
	}
	return enterAll, []any{resources, tokens, leaseIDs, remaining, patience(ctx)}, nil
}

// patience is how long the server may wait for the fence on behalf of ctx, in whole milliseconds, or nil for no bound. It gives up
// a little before ctx ends: only its answer names the sessions in the way, and leaves the connection usable.
func patience(ctx context.Context) *int64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	left := time.Until(deadline)
	ms := max(0, left-min(left/5, 250*time.Millisecond)).Milliseconds()
	return &ms
}

// remaining is the time the transaction has, in whole milliseconds, or nil for no bound. The server starts to count
// later than we do, so it ends the transaction a network delay after until and never before; the fence does not depend on it.
func (e *entry) remaining() (*int64, error) {
	e.asked = time.Now()
	e.until = validUntil(e.grants)
	if !e.until.IsZero() && e.until.Sub(e.asked) < time.Millisecond {
		return nil, &rejection{ErrLeaseOver, fmt.Errorf("its validity ended %v ago", e.asked.Sub(e.until).Round(time.Millisecond))}
	}
	if e.hold > 0 {
		e.until = e.asked.Add(e.hold)
	}
	if e.until.IsZero() {
		return nil, nil
	}
	ms := min(max(1, e.until.Sub(e.asked).Milliseconds()), math.MaxInt32) // Postgres keeps time limits in 32 bits
	e.until = e.asked.Add(time.Duration(ms) * time.Millisecond)
	return &ms, nil
}

func (e *entry) resources() []string {
	names := make([]string, len(e.grants))
	for i, g := range e.grants {
		names[i] = g.Resource()
	}
	return names
}
