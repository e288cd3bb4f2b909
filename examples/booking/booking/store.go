package booking

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/fencedb"
)

// Store keeps the bookings. Reading needs no grant; what writes carries one, and comes too late with
// [fencedb.ErrStale] once a newer one has been there: then it has written nothing.
type Store interface {
	// Seal makes grant the oldest that can still write: every earlier one is refused from now on.
	Seal(ctx context.Context, grant fencedb.Grant) error

	// Find returns the booking of a table and hour, and false if there is none.
	Find(ctx context.Context, table int, slot time.Time) (Booking, bool, error)

	// Get returns a booking, and false if there is none.
	Get(ctx context.Context, id uuid.UUID) (Booking, bool, error)

	// List returns the first so many bookings of a table that begin at from or later, in their order.
	List(ctx context.Context, table int, from time.Time, limit int) ([]Booking, error)

	// Answered returns what Save has answered to key, and false if it has not yet.
	Answered(ctx context.Context, key string, b Booking) (Answer, bool, error)

	// Save writes the booking over whatever is there, which then keeps its ID. The answer is kept in the same transaction: the
	// same key gets it again and writes nothing. With another booking it is refused, with [fencedb.ErrKeyReused]. No key,
	// nothing kept.
	Save(ctx context.Context, grant fencedb.Grant, key string, b Booking) (Answer, error)

	// Remove deletes a booking, and returns false if there is none. The table's fence stays.
	Remove(ctx context.Context, grant fencedb.Grant, id uuid.UUID) (bool, error)
}

// Answer is what a guest is told.
type Answer struct {
	Booking
	Created bool `json:"created"` // false: the guest had the table before, and the party was changed
}
