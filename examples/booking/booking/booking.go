// Package booking is the domain of the example: who sits at which table, and when.
//
// One request at a time works on a table, under a lease on it. The lease makes the others wait,
// which saves work, but it cannot stop a process that was paused until after the lease ended and
// then goes on. The fencing token does: see [Store.Save].
package booking

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
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

var (
	// ErrTaken: somebody else has the table at that time. Nothing was booked.
	ErrTaken = errors.New("booking: the table is taken")

	// ErrCardDeclined: the guest's card was not accepted. Nothing was booked.
	ErrCardDeclined = errors.New("booking: the card was declined")

	// ErrUnknown: there is no such booking, or no longer.
	ErrUnknown = errors.New("booking: no such booking")

	// ErrUnavailable: the store did not answer. Nothing was changed, unless the error is
	// fencedb.ErrCommitUnknown as well.
	ErrUnavailable = errors.New("booking: the store does not answer")
)

// InvalidError: the request makes no sense. Nothing was changed.
type InvalidError struct {
	Field   string // as in JSON
	Problem string // for people
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("booking: invalid %s: %s", e.Field, e.Problem)
}

// Resource names the lease and the fence of a table. The migration says the same in SQL: 'table:'
// || table_id.
func Resource(table int) string { return "table:" + strconv.Itoa(table) }

// Store keeps the bookings. Reading needs no grant; what writes carries one, and comes too late
// with [fencedb.ErrStale] once a newer one has been there: then it has written nothing.
type Store interface {
	// Seal makes grant the oldest that can still write: every earlier one is refused from now on.
	Seal(ctx context.Context, grant fencedb.Grant) error

	// Find returns the booking of a table and hour, and false if there is none.
	Find(ctx context.Context, table int, slot time.Time) (Booking, bool, error)

	// Get returns a booking, and false if there is none.
	Get(ctx context.Context, id uuid.UUID) (Booking, bool, error)

	// List returns bookings of a table that begin at from or later: the first [MaxList], in order.
	List(ctx context.Context, table int, from time.Time) ([]Booking, error)

	// Answered returns what Save has answered to key, and false if it has not yet.
	Answered(ctx context.Context, grant fencedb.Grant, key string, b Booking) (Answer, bool, error)

	// Save writes the booking over whatever is there, which then keeps its ID. The answer is kept
	// in the same transaction: the same key gets it again and writes nothing. With another booking
	// it is refused, with [fencedb.ErrKeyReused]. No key, nothing kept.
	Save(ctx context.Context, grant fencedb.Grant, key string, b Booking) (Answer, error)

	// Remove deletes a booking, and returns false if there is none. The table's fence stays.
	Remove(ctx context.Context, grant fencedb.Grant, id uuid.UUID) (bool, error)
}

// Answer is what a guest is told.
type Answer struct {
	Booking
	Created bool `json:"created"` // false: the guest had the table before, and the party was changed
}

func (b Booking) validate() error {
	if err := validateTable(b.Table); err != nil {
		return err
	}
	switch {
	case b.Slot.UTC().Year() < 2000 || b.Slot.UTC().Year() > 9999: // JSON has no later ones
		return &InvalidError{"slot", "say when the party comes, such as 2030-06-01T19:00:00Z"}
	case !b.Slot.Equal(b.Slot.Truncate(time.Hour)):
		return &InvalidError{"slot", "tables are booked by the hour, such as 2030-06-01T19:00:00Z"}
	case strings.TrimSpace(b.Guest) == "":
		return &InvalidError{"guest", "say who books"}
	case utf8.RuneCountInString(b.Guest) > MaxGuest:
		return &InvalidError{"guest", fmt.Sprintf("at most %d characters", MaxGuest)}
	case strings.ContainsFunc(b.Guest, unicode.IsControl): // one of them, zero, no text in Postgres can hold
		return &InvalidError{"guest", "no control characters"}
	case b.Party < 1 || b.Party > MaxParty:
		return &InvalidError{"party", fmt.Sprintf("1 to %d people", MaxParty)}
	}
	return nil
}

func validateTable(table int) error {
	if table < 1 || table > MaxTable {
		return &InvalidError{"table", fmt.Sprintf("tables are numbered from 1 to %d", MaxTable)}
	}
	return nil
}

// CardCheck asks the guest's bank whether the card is good; [ErrCardDeclined] if not. It charges
// nothing. It takes a moment, and that moment is why there is a lease: a transaction should not
// stay open across a call to a bank.
type CardCheck func(ctx context.Context, guest string) error

// Config is what a Service works with.
type Config struct {
	Lease     lease.Config  // of the leases on tables; New sets its Seal
	Wait      time.Duration // how long a request may wait for the lease on a table; 0 refuses at once
	Store     Store
	CheckCard CardCheck
}

// Service takes reservations. It is safe for concurrent use.
//
// The errors of its methods say what is true of the data. [lease.ErrHeld] says that another request
// holds the table, and when to try again. After any error nothing was changed, except that
// [fencedb.ErrCommitUnknown] leaves it open; asking again, with the same key, settles it.
// Cancelling ctx ends the waiting and the work, and gives the lease back all the same.
type Service struct {
	Config
	leases *lease.Issuer
}

// New returns a service whose leases come from client and are sealed in the store.
//
// Sealing lets Reserve read before its transaction: once a holder has its lease, no earlier holder
// can write, and if a later one comes, the Save of this one is refused. So what was read is still
// true of what is saved.
func New(client redis.UniversalClient, cfg Config) (*Service, error) {
	cfg.Lease.Seal = func(ctx context.Context, grants ...lease.Grant) error {
		return cfg.Store.Seal(ctx, fencedb.All(grants...))
	}
	leases, err := lease.New(client, cfg.Lease)
	if err != nil {
		return nil, err
	}
	return &Service{cfg, leases}, nil
}

// Leases is where the leases come from, for readiness checks and operators.
func (s *Service) Leases() *lease.Issuer { return s.leases }

// Reserve books a table, and gives the booking an ID. A guest who has booked the table may change
// the size of the party by booking again. A key that was answered before gets the same answer
// again, however often it is sent.
func (s *Service) Reserve(ctx context.Context, key string, b Booking) (answer Answer, err error) {
	if err := b.validate(); err != nil {
		return Answer{}, err
	}
	b.ID, b.Slot = uuid.New(), b.Slot.UTC()
	l, err := s.acquire(ctx, b.Table)
	if err != nil {
		return Answer{}, err
	}
	defer func() { err = giveBack(ctx, l, err) }()

	if key != "" {
		if answer, found, err := s.Store.Answered(ctx, l, key, b); found || err != nil {
			return answer, err
		}
	}
	there, found, err := s.Store.Find(ctx, b.Table, b.Slot)
	switch {
	case err != nil:
		return Answer{}, err
	case found && there.Guest != b.Guest:
		return Answer{}, ErrTaken
	}
	bound, unbind := l.Bind(ctx) // once the lease has ended, the bank's answer would be of no use
	defer unbind()
	if err := s.CheckCard(bound, b.Guest); err != nil {
		return Answer{}, err
	}
	// Under ctx, not under the lease's context: the grant bounds the transaction by the lease's
	// time, on the server too, and Postgres decides whether it is too late. A context that ends
	// meanwhile would only cut off the answer.
	return s.Store.Save(ctx, l, key, b)
}

// Get returns a booking; [ErrUnknown] if there is none.
func (s *Service) Get(ctx context.Context, id uuid.UUID) (Booking, error) {
	b, found, err := s.Store.Get(ctx, id)
	if err == nil && !found {
		err = ErrUnknown
	}
	return b, err
}

// Cancel removes a booking; [ErrUnknown] if there is no such booking, or no longer.
func (s *Service) Cancel(ctx context.Context, id uuid.UUID) (err error) {
	b, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	l, err := s.acquire(ctx, b.Table) // a booking never changes its table
	if err != nil {
		return err
	}
	defer func() { err = giveBack(ctx, l, err) }()

	removed, err := s.Store.Remove(ctx, l, id)
	if err == nil && !removed {
		return ErrUnknown
	}
	return err
}

// MaxList is how many bookings List returns at most.
const MaxList = 100

// List returns bookings of a table that begin at from or later. Where there are [MaxList], go on
// from the hour after the last one.
func (s *Service) List(ctx context.Context, table int, from time.Time) ([]Booking, error) {
	if err := validateTable(table); err != nil {
		return nil, err
	}
	return s.Store.List(ctx, table, from)
}

// acquire returns a sealed lease on the table.
func (s *Service) acquire(ctx context.Context, table int) (*lease.Lease, error) {
	wait := lease.NoWait()
	if s.Wait > 0 {
		wait = lease.WaitAtMost(s.Wait)
	}
	return s.leases.Acquire(ctx, Resource(table), wait)
}

// giveBack releases the lease. Its loss is reported only if nothing was written; a committed write
// stands.
func giveBack(ctx context.Context, l *lease.Lease, err error) error {
	lost := l.Release(ctx)
	if err == nil {
		return nil
	}
	return errors.Join(err, lost)
}
