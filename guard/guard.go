// Package guard does the common case in one call: acquire a lease, write behind its fence, release
// it.
//
//	err := guard.Tx(ctx, issuer, pool, "table:12", func(ctx context.Context, l *lease.Lease, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (12, 'ann')`)
//		return err
//	}, lease.WaitAtMost(2*time.Second))
//
// Options of the acquisition come last. Exec, QueryRow and Query end with the arguments of their
// statement: there use issuer.With, see [lease.Issuer.With]. For options of the transaction use
// [fencedb.With].
//
// It also heals. Redis can lose its counter, by FLUSHALL, eviction, an old snapshot or a replica
// that lagged. Its clock then keeps tokens rising; but if that is behind as well, Redis hands out
// tokens that Postgres refuses although nobody else holds the resource. Then the counter is raised
// above the token that Postgres has stored, the resource is acquired anew, and the work runs once
// more, for each resource. A holder that was really overtaken does not try again.
package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Tx acquires resource from issuer, waiting if it must, runs fn in a transaction behind the fence,
// and gives the lease back.
//
// The context that fn gets ends with ctx or with the lease. When Redis had gone backwards, fn can
// run once more for each resource, after its last run was rolled back; it then gets another lease.
// The errors are those of acquiring, where nothing was written, and of fencedb.Tx; when fn's
// context ended with the lease, the cause (lease.ErrExpired, lease.ErrLost...) is among them. A
// release that fails is not an error: it is tried again in the background, and in the end the lease
// runs out by itself. So nil means committed, and an error tells what fencedb.Tx says of the data.
// lease.IsLost tells if it means "busy, try again".
func Tx(ctx context.Context, issuer *lease.Issuer, db fencedb.DB, resource string,
	fn func(ctx context.Context, l *lease.Lease, tx pgx.Tx) error, opts ...lease.Option) error {
	one := func(ctx context.Context, ls lease.Leases, tx pgx.Tx) error { return fn(ctx, ls[0], tx) }
	return TxAll(ctx, issuer, db, []string{resource}, one, opts...)
}

// TxAll is Tx for several resources: all of them are acquired, and entered, or none. The leases
// come in the order of their resources, each once.
func TxAll(ctx context.Context, issuer *lease.Issuer, db fencedb.DB, resources []string,
	fn func(ctx context.Context, ls lease.Leases, tx pgx.Tx) error, opts ...lease.Option) error {
	return hold(ctx, issuer, resources, opts, func(ctx context.Context, ls lease.Leases) error {
		return fencedb.Tx(ctx, db, fencedb.All(ls...), func(tx pgx.Tx) error { return fn(ctx, ls, tx) })
	})
}

// Exec is Tx for one statement, as fencedb.Exec is fencedb.Tx: the write takes one round trip. The
// acquisition waits for as long as ctx allows; options for it come with issuer.
//
//	tag, err := guard.Exec(ctx, issuer.With(lease.NoWait()), pool, "table:12", `UPDATE ...`)
func Exec(ctx context.Context, issuer *lease.Issuer, db fencedb.DB,
	resource, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = hold(ctx, issuer, []string{resource}, nil, func(ctx context.Context, ls lease.Leases) (err error) {
		tag, err = fencedb.Exec(ctx, db, ls[0], sql, args...)
		return err
	})
	return tag, err
}

// QueryRow is Exec for a statement that returns one row, such as UPDATE ... RETURNING. All of it
// happens when the row is scanned, the acquisition too, and the lease has been given back when Scan
// returns. A row can be scanned once. The errors are those of [fencedb.QueryRow]: pgx.ErrNoRows
// alone only where it is known that the statement found nothing to write.
func QueryRow(ctx context.Context, issuer *lease.Issuer, db fencedb.DB, resource, sql string, args ...any) pgx.Row {
	var sent bool
	return oneRow(func(dest ...any) error {
		if sent {
			return errors.New("guard: the row has been scanned before, which has sent the statement; nothing was written this time")
		}
		sent = true
		return hold(ctx, issuer, []string{resource}, nil, func(ctx context.Context, ls lease.Leases) error {
			return fencedb.QueryRow(ctx, db, ls[0], sql, args...).Scan(dest...)
		})
	})
}

type oneRow func(dest ...any) error

func (scan oneRow) Scan(dest ...any) error { return scan(dest...) }

// Query is Exec for a statement that returns rows; read decodes each, as for pgx.CollectRows. They
// come all at once, when the lease has been released, since an open result would hold it. If
// the statement has committed but a row could not be read, the error is fencedb.ErrCommitted.
//
//	seats, err := guard.Query(ctx, issuer, pool, "table:12", pgx.RowTo[int], `UPDATE ... RETURNING seat`)
func Query[T any](ctx context.Context, issuer *lease.Issuer, db fencedb.DB, resource string,
	read pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	b := new(pgx.Batch)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, read)
		return err
	})
	err = SendBatch(ctx, issuer, db, []string{resource}, b)
	return all, err
}

// SendBatch is Exec for several statements on one or more resources. Its callbacks run after the
// statements, as those of fencedb.SendBatch.
func SendBatch(ctx context.Context, issuer *lease.Issuer, db fencedb.DB, resources []string,
	b *pgx.Batch, opts ...lease.Option) error {
	return hold(ctx, issuer, resources, opts, func(ctx context.Context, ls lease.Leases) error {
		return fencedb.SendBatch(ctx, db, fencedb.All(ls...), b)
	})
}

// hold runs write under the leases, and once more for each resource whose tokens were behind the
// fence.
func hold(ctx context.Context, issuer *lease.Issuer, resources []string, opts []lease.Option,
	write func(context.Context, lease.Leases) error) error {
	for range resources {
		behind, err := once(ctx, issuer, resources, opts, write)
		if behind == nil {
			return err
		}
		if _, raiseErr := issuer.Raise(ctx, behind.Resource, behind.Stored); raiseErr != nil {
			return fmt.Errorf("%w; the last token was not raised: %w", err, raiseErr)
		}
	}
	_, err := once(ctx, issuer, resources, opts, write)
	return err
}

// once runs write under leases of its own. behind: Postgres has refused the token of one that
// stood, so Redis has gone back. What has committed, or may have, must not run again, even if a
// callback has met a refusal of another database.
func once(ctx context.Context, issuer *lease.Issuer, resources []string, opts []lease.Option,
	write func(context.Context, lease.Leases) error) (behind *fencedb.StaleError, err error) {
	leases, err := issuer.AcquireAll(ctx, resources, opts...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = leases.Release(ctx) }() // also if write panics
	err = bound(ctx, leases, write)
	var stale *fencedb.StaleError
	switch {
	case errors.Is(err, fencedb.ErrCommitted), errors.Is(err, fencedb.ErrTxEnded),
		errors.Is(err, fencedb.ErrCommitUnknown), !errors.As(err, &stale):
		return nil, err
	case !slices.ContainsFunc(leases, func(l *lease.Lease) bool { return l.Resource() == stale.Resource }):
		return nil, err
	case leases.Release(ctx) != nil: // one was lost, and then Postgres was right; or Redis does not answer
		return nil, err
	}
	return stale, err
}

// bound ends write's context with the leases.
func bound(ctx context.Context, leases lease.Leases, write func(context.Context, lease.Leases) error) error {
	ctx, stop := leases.Bind(ctx)
	defer stop()
	err := write(ctx, leases)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err) // a transaction that had not begun says only that the lease is over
	}
	return err
}
