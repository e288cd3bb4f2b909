package booking

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

// Migrate brings the database up: the fences first, then the bookings. It does nothing where
// nothing is missing.
func Migrate(ctx context.Context, db *sql.DB) error {
	return migrations.Apply(ctx, db, files, "booking_migrations")
}

// Postgres is a [Store] in a table that only the current holder of a lease can write to: everything
// that writes does so in [fencedb.Tx], and the table accepts no other way in. The database must
// have been brought up with [Migrate].
type Postgres struct {
	db     *pgxpool.Pool
	fenced fencedb.DB // db, with the tracers
}

var _ Store = (*Postgres)(nil)

// NewPostgres returns a store on db, which stays the caller's to close. The tracers are told of its
// writes.
func NewPostgres(db *pgxpool.Pool, tracers ...fencedb.Tracer) *Postgres {
	return &Postgres{db, fencedb.With(db, fencedb.Trace(tracers...))}
}

// Seal implements [Store].
func (p *Postgres) Seal(ctx context.Context, grant fencedb.Grant) error {
	return explain(fencedb.Seal(ctx, p.fenced, grant))
}

const columns = `id, table_id, slot, guest, party`

// Find implements [Store].
func (p *Postgres) Find(ctx context.Context, table int, slot time.Time) (Booking, bool, error) {
	return one(p.db.Query(ctx, `SELECT `+columns+` FROM bookings WHERE table_id = $1 AND slot = $2`, table, slot))
}

// Get implements [Store].
func (p *Postgres) Get(ctx context.Context, id uuid.UUID) (Booking, bool, error) {
	return one(p.db.Query(ctx, `SELECT `+columns+` FROM bookings WHERE id = $1`, id))
}

// List implements [Store].
func (p *Postgres) List(ctx context.Context, table int, from time.Time) ([]Booking, error) {
	rows, _ := p.db.Query(ctx, `
		SELECT `+columns+` FROM bookings WHERE table_id = $1 AND slot >= $2 ORDER BY slot LIMIT $3`, table, from, MaxList)
	bookings, err := pgx.CollectRows(rows, scan)
	return bookings, explain(err)
}

// errNew undoes what Answered has begun with a key that is new.
var errNew = errors.New("the key is new")

// Answered implements [Store]. It waits for a transaction with the same key that is still open.
func (p *Postgres) Answered(ctx context.Context, key string, b Booking) (answer Answer, found bool, err error) {
	err = pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		answer, found, err = fencedb.OnceJSON(ctx, tx, key, asked(b), func() (Answer, error) { return Answer{}, errNew })
		return err
	})
	if errors.Is(err, errNew) {
		err = nil
	}
	return answer, found, explain(err)
}

// Save implements [Store]: the booking and the answer to its key, in one transaction behind the
// fence.
func (p *Postgres) Save(ctx context.Context, grant fencedb.Grant, key string, b Booking) (answer Answer, err error) {
	err = fencedb.Tx(ctx, p.fenced, grant, func(tx pgx.Tx) error {
		save := func() (Answer, error) {
			saved, _, err := one(tx.Query(ctx, `
				INSERT INTO bookings (`+columns+`) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party
				RETURNING `+columns, b.ID, b.Table, b.Slot, b.Guest, b.Party))
			return Answer{Booking: saved, Created: saved.ID == b.ID}, err
		}
		if key == "" {
			answer, err = save()
			return err
		}
		answer, _, err = fencedb.OnceJSON(ctx, tx, key, asked(b), save)
		return err
	})
	return answer, explain(err)
}

// Remove implements [Store].
func (p *Postgres) Remove(ctx context.Context, grant fencedb.Grant, id uuid.UUID) (removed bool, err error) {
	tag, err := fencedb.Exec(ctx, p.fenced, grant, `DELETE FROM bookings WHERE id = $1`, id)
	if errors.Is(err, fencedb.ErrCommitted) { // it is gone, although the answer was lost
		return true, nil
	}
	return tag.RowsAffected() > 0, explain(err)
}

// asked is what a key stands for: the booking without its ID, which is new each time that the
// request is sent.
func asked(b Booking) Booking {
	b.ID = uuid.Nil
	return b
}

func one(rows pgx.Rows, _ error) (Booking, bool, error) { // the rows have the error too
	b, err := pgx.CollectOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return Booking{}, false, nil
	}
	return b, err == nil, explain(err)
}

func scan(row pgx.CollectableRow) (b Booking, err error) {
	err = row.Scan(&b.ID, &b.Table, &b.Slot, &b.Guest, &b.Party)
	b.Slot = b.Slot.UTC()
	return b, err
}

// explain adds [ErrUnavailable] to the errors of a Postgres that does not answer, or not now.
func explain(err error) error {
	if err == nil || !unavailable(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func unavailable(err error) bool {
	if answer, is := errors.AsType[*pgconn.PgError](err); is {
		switch fmt.Sprintf("%.2s", answer.Code) { // the class of the SQLSTATE
		case "08", "53", "57": // connection, resources, shutting down or starting up
			return true
		}
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(net.Error)) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.Canceled)
}
