// Package booking is the domain of the example: who sits at which table, and when.
//
// One request at a time works on a table, under a lease on it. The lease makes the others wait outside, which saves work, but
// it cannot stop a process that was paused past the lease's end and then goes on. The fencing token does: see [Store.Save].
package booking

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
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
	// ErrInvalid: the request makes no sense. Nothing was changed. The error is an [*InvalidError].
	ErrInvalid = errors.New("booking: invalid request")

	// ErrTaken: somebody else has the table at that time. Nothing was booked.
	ErrTaken = errors.New("booking: the table is taken")

	// ErrCardDeclined: the guest's card was not accepted. Nothing was booked.
	ErrCardDeclined = errors.New("booking: the card was declined")

	// ErrUnknown: there is no such booking, or no longer.
	ErrUnknown = errors.New("booking: no such booking")

	// ErrUnavailable: the store did not answer. Nothing was changed, unless the error is fencedb.ErrCommitUnknown as well.
	ErrUnavailable = errors.New("booking: the store does not answer")
)

// InvalidError says which field is wrong and why; errors.Is(err, ErrInvalid) holds for it.
type InvalidError struct {
	Field   string // as in JSON
	Problem string // for people
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%v: %s: %s", ErrInvalid, e.Field, e.Problem)
}

// Is makes every InvalidError an ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Resource names the lease and the fence of a table. The migration says the same in SQL: 'table:' || table_id.
func Resource(table int) string { return "table:" + strconv.Itoa(table) }

func (b Booking) validate() error {
	if err := validateTable(b.Table); err != nil {
		return err
	}
	switch {
	case b.Slot.IsZero():
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
