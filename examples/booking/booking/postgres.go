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

// Postgres is a [Store] in a table that only the current holder of a lease can write to: what
// writes goes through the Write of a repository, which takes the grant, and the table accepts no
// other way in. The database must have been brought up with [Migrate].
type Postgres struct {
	repo   *fencedb.Repository[bookings]
	fenced fencedb.DB // with the tracers
}

var _ Store = (*Postgres)(nil)

// NewPostgres returns a store on db, which stays the caller's to close. The tracers are told of its
// writes.
func NewPostgres(db *pgxpool.Pool, tracers ...fencedb.Tracer) *Postgres {
	fenced := fencedb.With(db, fencedb.Trace(tracers...))
	return &Postgres{fencedb.NewRepository(fenced, func(tx pgx.Tx) bookings { return bookings{tx} }), fenced}
}

// bookings are the statements, each in a transaction of the repository.
type bookings struct{ tx pgx.Tx }

const columns = `id, table_id, slot, guest, party`

func (b bookings) where(ctx context.Context, condition string, args ...any) ([]Booking, error) {
	rows, _ := b.tx.Query(ctx, `SELECT `+columns+` FROM bookings WHERE `+condition, args...)
	return pgx.CollectRows(rows, scan)
}

func (b bookings) save(ctx context.Context, want Booking) (Answer, error) {
	rows, _ := b.tx.Query(ctx, `
		INSERT INTO bookings (`+columns+`) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party
		RETURNING `+columns, want.ID, want.Table, want.Slot, want.Guest, want.Party)
	saved, err := pgx.CollectExactlyOneRow(rows, scan)
	return Answer{Booking: saved, Created: saved.ID == want.ID}, err
}

func (b bookings) remove(ctx context.Context, id uuid.UUID) (bool, error) {
	tag, err := b.tx.Exec(ctx, `DELETE FROM bookings WHERE id = $1`, id)
	return tag.RowsAffected() > 0, err
}

func scan(row pgx.CollectableRow) (b Booking, err error) {
	err = row.Scan(&b.ID, &b.Table, &b.Slot, &b.Guest, &b.Party)
	b.Slot = b.Slot.UTC()
	return b, err
}

// Seal implements [Store].
func (p *Postgres) Seal(ctx context.Context, grant fencedb.Grant) error {
	return explain(fencedb.Seal(ctx, p.fenced, grant))
}

// Find implements [Store].
func (p *Postgres) Find(ctx context.Context, table int, slot time.Time) (Booking, bool, error) {
	return first(p.read(ctx, `table_id = $1 AND slot = $2`, table, slot))
}

// Get implements [Store].
func (p *Postgres) Get(ctx context.Context, id uuid.UUID) (Booking, bool, error) {
	return first(p.read(ctx, `id = $1`, id))
}

// List implements [Store].
func (p *Postgres) List(ctx context.Context, table int, from time.Time) ([]Booking, error) {
	return p.read(ctx, `table_id = $1 AND slot >= $2 ORDER BY slot LIMIT $3`, table, from, MaxList)
}

func (p *Postgres) read(ctx context.Context, condition string, args ...any) (found []Booking, err error) {
	err = p.repo.Read(ctx, func(b bookings) error {
		found, err = b.where(ctx, condition, args...)
		return err
	})
	return found, explain(err)
}

func first(found []Booking, err error) (Booking, bool, error) {
	if err != nil || len(found) == 0 {
		return Booking{}, false, err
	}
	return found[0], true, nil
}

// errNew undoes what Answered has begun with a key that is new.
var errNew = errors.New("the key is new")

// Answered implements [Store]. It waits for a transaction with the same key that is still open.
func (p *Postgres) Answered(ctx context.Context, grant fencedb.Grant, key string, b Booking) (Answer, bool, error) {
	answer, err := p.once(ctx, grant, key, b, func(bookings) (Answer, error) { return Answer{}, errNew })
	if errors.Is(err, errNew) {
		return Answer{}, false, nil
	}
	return answer, err == nil, err
}

// Save implements [Store]: the booking and the answer to its key, in one transaction behind the
// fence.
func (p *Postgres) Save(ctx context.Context, grant fencedb.Grant, key string, b Booking) (Answer, error) {
	return p.once(ctx, grant, key, b, func(in bookings) (Answer, error) { return in.save(ctx, b) })
}

// once writes, unless the key has been answered before.
func (p *Postgres) once(ctx context.Context, grant fencedb.Grant, key string, b Booking,
	write func(bookings) (Answer, error)) (answer Answer, err error) {
	err = p.repo.Write(ctx, grant, func(in bookings) error {
		if key == "" {
			answer, err = write(in)
			return err
		}
		answer, _, err = fencedb.OnceJSON(ctx, in.tx, key, asked(b), func() (Answer, error) { return write(in) })
		return err
	})
	return answer, explain(err)
}

// Remove implements [Store].
func (p *Postgres) Remove(ctx context.Context, grant fencedb.Grant, id uuid.UUID) (removed bool, err error) {
	err = p.repo.Write(ctx, grant, func(b bookings) error {
		removed, err = b.remove(ctx, id)
		return err
	})
	return removed, explain(err)
}

// asked is what a key stands for: the booking without its ID, which is new each time that the
// request is sent.
func asked(b Booking) Booking {
	b.ID = uuid.Nil
	return b
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
