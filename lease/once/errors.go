package once

import (
	"errors"
	"fmt"
	"time"
)

// Errors of package lease are used as they are: [lease.ErrInvalid], [lease.ErrUnreachable], [lease.ErrCorrupt].
var (
	// ErrInFlight: another caller runs the work of this key. This call has not. The error is an [*InFlightError].
	ErrInFlight = errors.New("once: in flight")

	// ErrKeyReused: the key is done, for another request. This call has not run anything, and the result is not told.
	ErrKeyReused = errors.New("once: key was used for another request")

	// ErrNotRecorded: fn has run and returned a result, which was not recorded or may not have been: the claim was over by
	// then, the result was too large, or Redis did not answer. What fn did stays done. Another caller may have run it, or will.
	ErrNotRecorded = errors.New("once: result not recorded")
)

// InFlightError is the ordinary answer under contention; errors.Is(err, ErrInFlight) holds for it.
type InFlightError struct {
	Key string

	// RetryAfter is when asking again is worthwhile, at the latest: the run may end sooner, or renew its claim. Zero if
	// this call has waited.
	RetryAfter time.Duration

	// Cause is why waiting ended, [context.Cause] of the caller's context; nil if there was no waiting.
	Cause error
}

func (e *InFlightError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("once: %q is still in flight: %v", e.Key, e.Cause)
	}
	return fmt.Sprintf("once: %q is in flight, worth asking again in %v", e.Key, e.RetryAfter)
}

// Is makes every InFlightError an [ErrInFlight].
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// Unwrap gives the reason why waiting ended.
func (e *InFlightError) Unwrap() error { return e.Cause }
