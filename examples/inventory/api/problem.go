package api

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// problem is an error as RFC 9457 writes it.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// problem says what is true of the data. What is not the client's business goes to the log instead.
func (a *api) problem(w http.ResponseWriter, r *http.Request, err error) problem {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		a.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if after, worthwhile := retryAfter(err, p.Status); worthwhile {
		w.Header().Set("Retry-After", strconv.Itoa(after))
	}
	return p
}

func problemOf(err error) problem {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, fencedb.ErrCommitUnknown): // first: it is the only one that leaves a doubt
		return problem{"Not known whether it was done", http.StatusServiceUnavailable,
			"A payment can be sent again. A reservation that was made all the same runs out by itself."}
	case errors.As(err, &tooLarge):
		return problem{"The request is too large", http.StatusRequestEntityTooLarge, ""}
	case errors.Is(err, errMalformed):
		return problem{"The request cannot be read", http.StatusBadRequest, err.Error()}
	case errors.Is(err, shop.ErrInvalid):
		return problem{"The request makes no sense", http.StatusUnprocessableEntity, err.Error()}
	case errors.Is(err, shop.ErrNoCart):
		return problem{"There is no such cart", http.StatusNotFound, ""}
	case errors.Is(err, shop.ErrSoldOut):
		return problem{"Sold out", http.StatusConflict, err.Error() + ". Nothing was reserved."}
	case errors.Is(err, shop.ErrExpired):
		return problem{"The reservation is over", http.StatusGone, "What was paid is given back."}
	case errors.Is(err, lease.ErrHeld):
		return problem{"Others are at it", http.StatusConflict, "Nothing was changed. Try again."}
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver),
		errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost), errors.Is(err, lease.ErrRevoked):
		return problem{"Overtaken", http.StatusConflict, "It took too long, and somebody else may have gone on. Look at the cart."}
	case errors.Is(err, lease.ErrUnreachable), errors.Is(err, fencedb.ErrBusy):
		return problem{"Not available right now", http.StatusServiceUnavailable, "Try again."}
	}
	return problem{"Something went wrong", http.StatusInternalServerError, "Look at the cart before trying again."}
}

// retryAfter is in seconds.
func retryAfter(err error, status int) (seconds int, worthwhile bool) {
	var held *lease.HeldError
	switch {
	case errors.As(err, &held):
		return int(max(1, math.Ceil(held.RetryAfter.Seconds()))), true
	case status == http.StatusServiceUnavailable:
		return int(unavailable.Seconds()), true
	}
	return 0, false
}

const unavailable = 2 * time.Second
