package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// problem is the body of an answer that is not a success (RFC 9457).
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail,omitempty"`
	Field     string `json:"field,omitempty"`      // what is wrong, with 422
	RequestID string `json:"request_id,omitempty"` // by which the log knows this request

	retryAfter time.Duration // 0: sending it again will not help
}

// shortly is when to send a request again that would probably succeed now.
const shortly = time.Second

// away are the errors of a store that does not answer in time. Nothing was written.
var away = []error{
	booking.ErrUnavailable, lease.ErrUnreachable, lease.ErrRefused,
	fencedb.ErrTooLong, context.DeadlineExceeded, context.Canceled,
}

// explain says what an error means to the sender. The first case that fits counts.
func explain(err error) problem {
	const urn = "urn:problem-type:booking:"
	invalid, isInvalid := errors.AsType[*booking.InvalidError](err)
	large, isLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case errors.Is(err, fencedb.ErrCommitUnknown): // first: it is the only one that leaves a doubt
		return problem{Type: urn + "unsettled", Status: http.StatusServiceUnavailable, retryAfter: shortly,
			Title: "Not known whether it was written; send it again with the same Idempotency-Key"}
	case isInvalid:
		return problem{Type: urn + "invalid", Status: http.StatusUnprocessableEntity,
			Title: "The request is not valid", Field: invalid.Field, Detail: invalid.Problem}
	case errors.Is(err, fencedb.ErrKeyReused):
		return problem{Type: urn + "key-reused", Status: http.StatusUnprocessableEntity,
			Title: "The Idempotency-Key was used for another request"}
	case isLarge:
		return problem{Type: urn + "too-large", Status: http.StatusRequestEntityTooLarge,
			Title: "The body is too large", Detail: fmt.Sprintf("at most %d bytes", large.Limit)}
	case errors.Is(err, errMalformed):
		return problem{Type: urn + "malformed", Status: http.StatusBadRequest,
			Title: "The body cannot be read", Detail: err.Error()}
	case errors.Is(err, booking.ErrCardDeclined):
		return problem{Type: urn + "card-declined", Status: http.StatusPaymentRequired, Title: "The card was declined"}
	case errors.Is(err, booking.ErrUnknown):
		return problem{Type: urn + "unknown-booking", Status: http.StatusNotFound, Title: "There is no such booking"}
	case errors.Is(err, booking.ErrTaken):
		return problem{Type: urn + "taken", Status: http.StatusConflict, Title: "The table is taken at that time"}
	case lease.IsLost(err): // held by another, or taken over meanwhile
		after := shortly
		if held, is := errors.AsType[*lease.HeldError](err); is {
			after = max(held.RetryAfter, shortly)
		}
		return problem{Type: urn + "busy", Status: http.StatusConflict, retryAfter: after,
			Title: "Somebody else has the table now; nothing was written"}
	case slices.ContainsFunc(away, func(store error) bool { return errors.Is(err, store) }):
		return problem{Type: urn + "unavailable", Status: http.StatusServiceUnavailable, retryAfter: 2 * shortly,
			Title: "A store does not answer; nothing was written"}
	}
	return problem{Type: urn + "internal", Status: http.StatusInternalServerError,
		Title: "Something is wrong here; the log has the request ID"}
}
