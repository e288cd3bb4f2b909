// Package guard joins both halves in one call: a lease from Redis and writes that Postgres fences.
//
//	desk := guard.New(issuer, pool)
//	err := desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
//		free, err := look(ctx, pool) // stays true until h writes
//		if err != nil {
//			return err
//		}
//		if !free {
//			return errTaken // nil would mean done
//		}
//		if err := charge(ctx); err != nil { // with a key: it stays charged if the write is refused
//			return err
//		}
//		return h.Tx(ctx, func(tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (12, 'ann')`)
//			return err
//		})
//	}, lease.WaitAtMost(2*time.Second))
//
// # What is safe to decide on
//
// A lease alone does not stop the previous holder: until the next one has entered in Postgres, it
// can still write. So [Desk.Do], [Desk.DoAll] and [Desk.Lead] seal: Postgres knows the new token
// before the function runs. From then on no earlier holder can write, and if a later one comes, the
// writes of this one are refused. What the function reads then stays true until it writes behind
// the fence, under three conditions:
//
//   - Others change these rows only under these resources. Rows of another resource, or of a table
//     that is not protected, change as before.
//   - The rows are read from the server that the function writes to. A standby lags until
//     [fencedb.AwaitReplay] has returned.
//   - The statement that reads them began within the function.
//
// Sealing costs one round trip and a committed write in Postgres for each acquisition. While
// Postgres is away, nobody acquires.
//
// [Desk.Tx], [Desk.Exec], [Desk.Query], [Desk.QueryRow] and [Desk.SendBatch] enter before anything
// else happens, in the round trip of their write or of BEGIN. They need no seal.
//
// # Redis that went backwards
//
// Redis can lose its last token, by FLUSHALL, eviction, an old snapshot or a replica that lagged.
// Then its clock keeps tokens rising. If its clock was set back as well, Redis issues tokens that
// Postgres refuses although nobody else holds the resource. Sealing repairs that within the
// acquisition. A call that does not seal is refused before anything has happened, and the desk
// repeats it once, with a seal. A holder that was overtaken gains nothing by this: its lease is
// over.
//
// # Connections
//
// Sealing takes a connection of the pool for one round trip, and a write takes one for its
// transaction. So acquire before you open a transaction. If open transactions use the whole pool,
// and each of them calls a desk, none gets a second connection: a call that seals blocks until its
// new lease ends, and a call without a seal until its context ends. The error says that all
// connections are in use.
package guard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/rows"
	"github.com/fencedb/fencedb/lease"
)

// Desk acquires leases and writes behind their fences. One per issuer and database is enough; it is
// safe for concurrent use.
type Desk struct {
	issuer   *lease.Issuer
	unsealed bool // Do, DoAll and Lead do not seal
	db       fencedb.DB
}

// Option changes a [Desk].
type Option func(*Desk)

// Unsealed lets Do, DoAll and Lead acquire without Postgres, and saves a committed write for each
// acquisition. But until the function's first fenced transaction, an earlier holder can change what
// the function has read. So do not decide on such reads, or repeat them in the transaction. Do,
// DoAll and Lead then do not repair a Redis that went backwards: writes are refused until
// [lease.Issuer.Raise] or a call that seals raises the last token.
func Unsealed() Option { return func(d *Desk) { d.unsealed = true } }

// New returns a desk for leases of issuer and writes to db. It contacts no server and leaves issuer
// and db open. Leases of all desks of an issuer exclude each other. A desk seals by itself, so the
// issuer needs no [lease.Config.Seal]. If it has one, that runs first: with the same database, a
// round trip for nothing.
//
// Options of the acquisition come with each call. Exec, Query and QueryRow end with the arguments
// of their statement, so their options come with the issuer, as issuer.With(...). Options of the
// transactions come with the database, as fencedb.With(pool, ...). Above READ COMMITTED, a token
// that was not sealed is sealed before its transaction.
func New(issuer *lease.Issuer, db fencedb.DB, opts ...Option) *Desk {
	d := &Desk{issuer: issuer, db: db}
	for _, opt := range opts {
		opt(d)
	}
	return d
}

// sealed returns the issuer with a seal in Postgres, after one of its own, which may be of another
// database.
func (d *Desk) sealed() *lease.Issuer { return d.issuer.Sealed(fencedb.Sealer(d.db)) }

func (d *Desk) forWork() *lease.Issuer {
	if d.unsealed {
		return d.issuer
	}
	return d.sealed()
}

// Do acquires resource, waiting if necessary, seals the lease, runs fn and releases the lease. The
// context of fn ends with ctx or with the lease; [context.Cause] returns the reason.
//
// Nil means that fn has returned nil: what it committed behind the fence stands, whatever became of
// the lease afterwards. Only the tracers of the issuer learn of a lease that ended early or could
// not be released; so effects of fn outside the fence need idempotency keys. An error of fn or of
// its transactions, such as [fencedb.ErrCommitUnknown], is returned unchanged, with the cause of
// the loss if the lease was lost. A write to a protected table that bypasses h gets
// [fencedb.ErrNoToken]. If fn did not run, nothing was written. [Answer] says what an error means
// to a caller.
//
// Within fn, write with h. A call of the desk for the same resource would wait until the context
// ends.
func (d *Desk) Do(ctx context.Context, resource string,
	fn func(ctx context.Context, h *Holder) error, opts ...lease.Option) error {
	return d.DoAll(ctx, []string{resource}, fn, opts...)
}

// DoAll is [Desk.Do] for several resources: all are acquired, or none, and sealed together. The
// [Holder] is one for all of them, and what it writes enters every fence. The context of fn ends
// with the first lease that ends.
func (d *Desk) DoAll(ctx context.Context, resources []string,
	fn func(ctx context.Context, h *Holder) error, opts ...lease.Option) error {
	if fn == nil {
		return protocol.ErrNoFunction
	}
	done := false
	err := d.forWork().DoAll(ctx, resources, func(ctx context.Context, ls lease.Leases) error {
		err := explained(fn(ctx, &Holder{ls, ctx, d.db}))
		done = err == nil
		return err
	}, opts...)
	if done { // what fn wrote stands; err only says that the lease ended early
		return nil
	}
	return err
}

// Lead is [lease.Issuer.Lead] with sealed terms: fn runs in each term of this process, until ctx
// ends. While Postgres is away, nobody leads. [lease.OnTerm] reports that, and also the loss of a
// lease under which fn returned nil.
func (d *Desk) Lead(ctx context.Context, role string,
	fn func(ctx context.Context, h *Holder) error, opts ...lease.LeadOption) error {
	if fn == nil {
		return protocol.ErrNoFunction
	}
	return d.forWork().Lead(ctx, role, func(ctx context.Context, l *lease.Lease) error {
		return explained(fn(ctx, &Holder{lease.Leases{l}, ctx, d.db}))
	}, opts...)
}

// explained explains err if Postgres refused a write that bypassed the Holder. Only SQLSTATEs of
// fencedb show this: fn may use other databases, and time limits of its own.
func explained(err error) error {
	var refused interface{ SQLState() string }
	if errors.As(err, &refused) && strings.HasPrefix(refused.SQLState(), "FN") {
		return fencedb.Explain(err)
	}
	return err
}

// withResource adds the resource to err, unless the text names it. If a caller swaps the two
// strings of a call, Postgres only says that it cannot parse the SQL; the resource shows the
// mistake.
func withResource(resource string, err error) error {
	if err == nil || strings.Contains(err.Error(), strconv.Quote(resource)) {
		return err
	}
	const most = 60 // characters
	if name := []rune(resource); len(name) > most {
		resource = string(name[:most]) + "…"
	}
	return fmt.Errorf("on resource %q: %w", resource, err)
}

// Tx acquires resource, runs fn in a transaction behind its fence and releases the lease. The fence
// is entered before fn runs, so fn acts as the current holder. fn runs at most once. Its context
// ends with ctx or with the lease.
//
// Nil means committed. The errors are those of acquiring, where nothing was written, and those of
// [fencedb.Tx]; if the lease ended meanwhile, the cause ([lease.ErrExpired], [lease.ErrLost]...) is
// among them. A release that fails is not an error: it is tried again in the background, and in the
// end the lease expires. For several resources use [Desk.DoAll] and [Holder.Tx].
func (d *Desk) Tx(ctx context.Context, resource string,
	fn func(ctx context.Context, tx pgx.Tx) error, opts ...lease.Option) error {
	if fn == nil {
		return protocol.ErrNoFunction
	}
	return d.write(ctx, []string{resource}, opts, func(t *attempt) error {
		return t.Tx(t.ctx, func(tx pgx.Tx) error {
			if err := tx.SendBatch(t.ctx, new(pgx.Batch)).Close(); err != nil { // BEGIN and enter
				return err
			}
			t.final = true
			return fn(t.ctx, tx)
		})
	})
}

// Exec is [Desk.Tx] for one statement, as [fencedb.Exec] is [fencedb.Tx]: the write takes one round
// trip. The acquisition waits for as long as ctx allows. For other options, make another desk:
//
//	impatient := guard.New(issuer.With(lease.NoWait()), pool)
func (d *Desk) Exec(ctx context.Context, resource, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = d.write(ctx, []string{resource}, nil, func(t *attempt) (err error) {
		tag, err = t.Exec(t.ctx, sql, args...)
		return err
	})
	return tag, withResource(resource, err)
}

// Query is [Desk.Exec] for a statement that returns rows. The lease is held, and renewed, until
// they are closed or read to their end. Then check their Err: it is an error of [fencedb.Query].
func (d *Desk) Query(ctx context.Context, resource, sql string, args ...any) (pgx.Rows, error) {
	var kept pgx.Rows
	err := d.write(ctx, []string{resource}, nil, func(t *attempt) error {
		result, err := t.Query(t.ctx, sql, args...)
		if err != nil {
			return err
		}
		t.kept = true
		kept = rows.OnClose(result, func() error {
			defer t.giveBack()
			return withResource(resource, t.why(result.Err()))
		})
		return nil
	})
	if err != nil {
		return rows.Failed(withResource(resource, err))
	}
	return kept, nil
}

// QueryRow is [Desk.Exec] for a statement that returns one row, such as UPDATE ... RETURNING.
// Everything, the acquisition too, happens in Scan, which works once. When Scan returns, the lease
// is over. The errors are those of [fencedb.QueryRow]: if there is no row, pgx.ErrNoRows and
// [fencedb.ErrCommitted] are both in the error.
func (d *Desk) QueryRow(ctx context.Context, resource, sql string, args ...any) pgx.Row {
	return rows.Once(func(dest ...any) error {
		return withResource(resource, d.write(ctx, []string{resource}, nil, func(t *attempt) error {
			return t.QueryRow(t.ctx, sql, args...).Scan(dest...)
		}))
	})
}

// SendBatch is [Desk.Exec] for several statements, on one or more resources. Its callbacks run
// after the statements, as those of [fencedb.SendBatch].
func (d *Desk) SendBatch(ctx context.Context, resources []string, b *pgx.Batch, opts ...lease.Option) error {
	return d.write(ctx, resources, opts, func(t *attempt) error { return t.SendBatch(t.ctx, b) })
}
