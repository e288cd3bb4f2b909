// Package booking is the domain of the example: who sits at which table, and when.
//
// One request at a time works on a table, under a lease on it. The lease makes the others wait,
// which saves work, but it cannot stop a process that was paused until after the lease ended and
// then goes on. The fencing token does: see [Service.Reserve].
package booking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// Booking is one table for one party, for one hour.
type Booking struct {
	ID    uuid.UUID `json:"id"`
	Table int       `json:"table"` // 1 to MaxTable
	Slot  time.Time `json:"slot"`  // when the hour begins, in UTC
	Guest string    `json:"guest"` // at most MaxGuest characters
	Party int       `json:"party"` // people, 1 to MaxParty
}

// What the restaurant has room for.
const (
	MaxTable = 999
	MaxParty = 20
	MaxGuest = 100
)

// What a guest can be told. Nothing was changed.
var (
	ErrInvalid      = errors.New("booking: invalid request")    // the message says why
	ErrTaken        = errors.New("booking: the table is taken") // by somebody else, at that time
	ErrCardDeclined = errors.New("booking: the card was declined")
	ErrUnknown      = errors.New("booking: no such booking") // or no longer
)

// Resource names the lease and the fence of a table, as the migration does in SQL.
func Resource(table int) string { return lease.Resource("table", table) }

// Answer is what a guest is told.
type Answer struct {
	Booking
	Created bool `json:"created"` // false: the guest had the table before, and the party was changed
}

func (b Booking) validate() error {
	slot, problem := b.Slot.UTC(), ""
	switch {
	case b.Table < 1 || b.Table > MaxTable:
		problem = fmt.Sprintf("table: they are numbered from 1 to %d", MaxTable)
	case slot.Year() < 2000 || slot.Year() > 9999 || !slot.Equal(slot.Truncate(time.Hour)): // JSON has no later ones
		problem = "slot: say when the party comes, on a full hour, such as 2030-06-01T19:00:00Z"
	case strings.TrimSpace(b.Guest) == "" || utf8.RuneCountInString(b.Guest) > MaxGuest ||
		strings.ContainsFunc(b.Guest, unicode.IsControl): // one of them, zero, no text in Postgres can hold
		problem = fmt.Sprintf("guest: say who books, in at most %d characters that can be seen", MaxGuest)
	case b.Party < 1 || b.Party > MaxParty:
		problem = fmt.Sprintf("party: 1 to %d people", MaxParty)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalid, problem)
}

// CardCheck asks the guest's bank whether the card is good; [ErrCardDeclined] if not. It charges
// nothing. It takes a moment, and that moment is why there is a lease: a transaction should not
// stay open across a call to a bank.
type CardCheck func(ctx context.Context, guest string) error

// Service takes reservations. It is safe for concurrent use.
//
// The errors of its methods say what is true of the data. [lease.ErrHeld] says that another request
// holds the table, and when to try again. After any error nothing was changed, except that
// [fencedb.ErrCommitUnknown] leaves it open; asking again, with the same key, settles it.
// Cancelling ctx ends the waiting and the work, and gives the lease back all the same.
type Service struct {
	desk  *guard.Desk
	repo  *fencedb.Repository[bookings]
	check CardCheck
}

// New returns a service on leases, which say how long a request waits for a table, and on db, which
// has been brought up with [Migrate]. Both stay the caller's.
func New(leases *lease.Issuer, db fencedb.DB, check CardCheck) *Service {
	return &Service{guard.New(leases, db), fencedb.NewRepository(db, in), check}
}

// Reserve books a table, and gives the booking an ID. A guest who has booked the table may change
// the size of the party by booking again. A key that was answered before gets the same answer
// again, however often it is sent; with another booking it is refused, with [fencedb.ErrKeyReused].
//
// The desk seals the lease. So no earlier holder can write once this one looks, and if a later one
// comes, the write of this one is refused: what was found is still true of what is saved.
func (s *Service) Reserve(ctx context.Context, key string, b Booking) (answer Answer, err error) {
	if err := b.validate(); err != nil {
		return Answer{}, err
	}
	b.ID, b.Slot = uuid.New(), b.Slot.UTC()
	err = s.desk.Do(ctx, Resource(b.Table), func(held context.Context, h *guard.Holder) error {
		if key != "" {
			look := func(bookings) (Answer, error) { return Answer{}, errNew }
			if answer, err = s.once(ctx, h.Grant(), key, b, look); !errors.Is(err, errNew) {
				return err
			}
		}
		there, err := s.find(ctx, `table_id = $1 AND slot = $2`, b.Table, b.Slot)
		switch {
		case err != nil:
			return err
		case len(there) > 0 && there[0].Guest != b.Guest:
			return ErrTaken
		}
		if err := s.check(held, b.Guest); err != nil { // once the lease has ended, its answer is of no use
			return err
		}
		// Under ctx, not under that of the lease: the grant bounds the transaction, on the server
		// too, and Postgres decides whether it is too late.
		answer, err = s.once(ctx, h.Grant(), key, b, func(in bookings) (Answer, error) { return in.save(ctx, b) })
		return err
	})
	return answer, err
}

// errNew undoes what a look has begun with a key that is new.
var errNew = errors.New("the key is new")

// once writes, unless the key has been answered before. The answer is kept in the same transaction.
func (s *Service) once(ctx context.Context, grant fencedb.Grant, key string, b Booking,
	write func(bookings) (Answer, error)) (answer Answer, err error) {
	err = s.repo.Write(ctx, grant, func(in bookings) error {
		if key == "" {
			answer, err = write(in)
			return err
		}
		b.ID = uuid.Nil // which is new each time that the request is sent
		answer, _, err = fencedb.OnceJSON(ctx, in.tx, key, b, func() (Answer, error) { return write(in) })
		return err
	})
	return answer, err
}

// Cancel removes a booking; [ErrUnknown] if there is no such booking, or no longer. The fence of
// its table stays.
func (s *Service) Cancel(ctx context.Context, id uuid.UUID) error {
	b, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	// A booking never changes its table.
	return s.desk.Tx(ctx, Resource(b.Table), func(ctx context.Context, tx pgx.Tx) error {
		return in(tx).remove(ctx, id)
	})
}

// Get returns a booking; [ErrUnknown] if there is none.
func (s *Service) Get(ctx context.Context, id uuid.UUID) (Booking, error) {
	found, err := s.find(ctx, `id = $1`, id)
	if err != nil || len(found) == 0 {
		return Booking{}, cmp.Or(err, ErrUnknown)
	}
	return found[0], nil
}

func (s *Service) find(ctx context.Context, condition string, args ...any) (found []Booking, err error) {
	err = s.repo.Read(ctx, func(in bookings) error {
		found, err = in.where(ctx, condition, args...)
		return err
	})
	return found, err
}
