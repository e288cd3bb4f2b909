// Package booking is the domain of the example: who sits at which table, and when.
//
// One request at a time works on a table, under a lease on it. The lease makes the others wait outside, which saves work, but
// it cannot stop a process that was paused past the lease's end and then goes on. The fencing token does: see [Store.Save].
package booking

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Booking is one table for one party, for one evening.
type Booking struct {
	Table int       `json:"table"`
	Slot  time.Time `json:"slot"` // when the party comes
	Guest string    `json:"guest"`
	Party int       `json:"party"` // people
}

var (
	// ErrInvalid: the request makes no sense. Nothing was booked.
	ErrInvalid = errors.New("booking: invalid request")

	// ErrTaken: somebody else has the table at that time. Nothing was booked.
	ErrTaken = errors.New("booking: the table is taken")

	// ErrCardDeclined: the guest's card was not accepted. Nothing was booked.
	ErrCardDeclined = errors.New("booking: the card was declined")
)

// Resource names the lease and the fence of a table. The migration says the same in SQL: 'table:' || table_id.
func Resource(table int) string { return "table:" + strconv.Itoa(table) }

func (b Booking) validate() error {
	switch {
	case b.Table <= 0:
		return fmt.Errorf("%w: table %d; tables are numbered from 1", ErrInvalid, b.Table)
	case b.Slot.IsZero():
		return fmt.Errorf("%w: no slot; say when the party comes", ErrInvalid)
	case b.Guest == "":
		return fmt.Errorf("%w: no guest; say who books", ErrInvalid)
	case b.Party <= 0:
		return fmt.Errorf("%w: a party of %d; at least one has to come", ErrInvalid, b.Party)
	}
	return nil
}
