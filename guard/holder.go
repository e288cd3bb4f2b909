package guard

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Holder has the leases on all resources of a [Desk] call, and writes under all of them. It is safe
// for concurrent use. Do not use it after the function that got it has returned.
type Holder struct {
	leases lease.Leases
	ctx    context.Context // of the function
	db     fencedb.DB
}

// Grant returns all the leases as one grant, for the functions of package fencedb and for
// grant.NewContext. A transaction with it enters the fence of each resource.
func (h *Holder) Grant() fencedb.Grant {
	if len(h.leases) == 1 {
		return h.leases[0]
	}
	return fencedb.All(h.leases...)
}

// Leases returns the leases, in the byte order of their resources. Their Release releases them
// before the function returns; writes under h are then refused.
func (h *Holder) Leases() lease.Leases { return slices.Clone(h.leases) }

// Err returns nil while all leases may be trusted; after that, the reason why one is over. It reads
// the clock and does not ask Redis; see [lease.Lease.Err].
func (h *Holder) Err() error {
	for _, l := range h.leases {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// ValidUntil is when the first lease ends, unless it is renewed, on this process's clock.
func (h *Holder) ValidUntil() time.Time {
	first := slices.MinFunc(h.leases, func(a, b *lease.Lease) int { return a.ValidUntil().Compare(b.ValidUntil()) })
	return first.ValidUntil()
}

// Extend renews all leases at once, as [lease.Lease.Extend] does; its error joins theirs.
func (h *Holder) Extend(ctx context.Context) error { return h.leases.Extend(ctx) }

// Tx is [fencedb.Tx] under the leases: nil means committed. Acquire beforehand all that fn needs,
// with [Desk.DoAll]: an acquisition within fn takes a second connection.
func (h *Holder) Tx(ctx context.Context, fn func(tx pgx.Tx) error, opts ...fencedb.Option) error {
	return fencedb.Tx(ctx, h.db, h.Grant(), fn, opts...)
}

// TxSQL is [fencedb.TxSQL] under the leases, for database/sql. db must lead to the database of the
// desk; stdlib.OpenDBFromPool makes it from the pool. The options of the desk's database hold, too.
func (h *Holder) TxSQL(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error, opts ...fencedb.Option) error {
	if own, ok := h.db.(interface{ Options() []fencedb.Option }); ok {
		opts = slices.Concat(own.Options(), opts)
	}
	return fencedb.TxSQL(ctx, db, h.Grant(), fn, opts...)
}

// Exec is [fencedb.Exec] under the leases: one statement, in one round trip.
func (h *Holder) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return fencedb.Exec(ctx, h.db, h.Grant(), sql, args...)
}

// Query is [fencedb.Query] under the leases: one statement that returns rows. Close them, or read
// them to their end, and check their Err.
func (h *Holder) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return fencedb.Query(ctx, h.db, h.Grant(), sql, args...)
}

// QueryRow is [fencedb.QueryRow] under the leases: one statement that returns a row. It is sent
// when the row is scanned.
func (h *Holder) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return fencedb.QueryRow(ctx, h.db, h.Grant(), sql, args...)
}

// SendBatch is [fencedb.SendBatch] under the leases: several statements, in one transaction and one
// round trip.
func (h *Holder) SendBatch(ctx context.Context, b *pgx.Batch, opts ...fencedb.Option) error {
	return fencedb.SendBatch(ctx, h.db, h.Grant(), b, opts...)
}
