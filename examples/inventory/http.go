// The shop over HTTP, in JSON.
//
//	GET  /stock              what there is
//	POST /carts              reserve: {"buyer": "ann", "lines": [{"sku": "sku-01", "units": 2}]}
//	GET  /carts/{id}
//	POST /carts/{id}/pay     again is as good as once
//	GET  /healthz, /readyz, /metrics
//
// Errors are problem details (RFC 9457). 409 and 503 say with Retry-After when to ask again, where
// that is worthwhile.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

const maxBody = 64 << 10 // bytes

// routes are those of a shop. The other handlers are added to them.
func routes(s *shop.Shop, log *slog.Logger) *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(pattern string, by route) { mux.Handle(pattern, answer(by, log)) }
	handle("GET /stock", func(ctx context.Context, _ http.ResponseWriter, _ *http.Request) (any, error) {
		return s.Levels(ctx)
	})
	handle("POST /carts", func(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error) {
		return reserve(ctx, s, w, r)
	})
	handle("GET /carts/{id}", func(ctx context.Context, _ http.ResponseWriter, r *http.Request) (any, error) {
		return s.Cart(ctx, idOf(r))
	})
	handle("POST /carts/{id}/pay", func(ctx context.Context, _ http.ResponseWriter, r *http.Request) (any, error) {
		if err := s.Pay(ctx, idOf(r)); err != nil {
			return nil, err
		}
		return s.Cart(ctx, idOf(r))
	})
	return mux
}

// idOf: what is no id is that of no cart.
func idOf(r *http.Request) uuid.UUID {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil
	}
	return id
}

// route returns a body for JSON. One with a Location is new.
type route func(ctx context.Context, w http.ResponseWriter, r *http.Request) (body any, err error)

// answer writes what a route returns, as JSON or as a problem.
func answer(by route, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		body, err := by(ctx, w, r)
		status, kind := http.StatusOK, "application/json"
		if w.Header().Get("Location") != "" {
			status = http.StatusCreated
		}
		if err != nil {
			p := problemOf(err)
			status, body, kind = p.Status, p, "application/problem+json"
			if p.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
			}
		}
		if status >= http.StatusInternalServerError && r.Context().Err() == nil { // the client is still there
			log.ErrorContext(ctx, "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client has gone
	}
}

// errMalformed: the request is not what the route takes.
var errMalformed = errors.New("malformed request")

func reserve(ctx context.Context, s *shop.Shop, w http.ResponseWriter, r *http.Request) (any, error) {
	var want struct {
		Buyer string      `json:"buyer"`
		Lines []shop.Line `json:"lines"` // their price is for the shop to say
	}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	body.DisallowUnknownFields()
	err := body.Decode(&want)
	if _, end := body.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("more than one JSON value")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	c, err := s.Reserve(ctx, want.Buyer, want.Lines)
	if err == nil {
		w.Header().Set("Location", "/carts/"+c.ID.String())
	}
	return c, err
}

// problem is an error as RFC 9457 writes it: it says what is true of the data.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	retryAfter time.Duration
}

// When to send a request again.
const never, shortly time.Duration = 0, 2 * time.Second

// problemOf says what an error means to the sender. The first case that fits counts.
func problemOf(err error) problem {
	is := func(target error) bool { return errors.Is(err, target) }
	held, isHeld := errors.AsType[*lease.HeldError](err)
	switch {
	case is(fencedb.ErrCommitUnknown): // first: it is the only one that leaves a doubt
		return problem{"Not known whether it was done", 503,
			"A payment can be sent again. A reservation that was made all the same runs out by itself.", shortly}
	case errors.As(err, new(*http.MaxBytesError)):
		return problem{"The request is too large", 413, "", never}
	case is(errMalformed):
		return problem{"The request cannot be read", 400, err.Error(), never}
	case is(shop.ErrInvalid):
		return problem{"The request makes no sense", 422, err.Error(), never}
	case is(shop.ErrNoCart):
		return problem{"There is no such cart", 404, "", never}
	case is(shop.ErrSoldOut):
		return problem{"Sold out", 409, err.Error() + ". Nothing was reserved.", never}
	case is(shop.ErrExpired):
		return problem{"The reservation is over", 410, "What was paid is given back.", never}
	case is(shop.ErrDeclined):
		return problem{"The bank declined", 402, "Nothing was taken. Try another card.", never}
	case isHeld:
		return problem{"Busy", 409, "Somebody else works on it. Look at the cart, and try again.", max(held.RetryAfter, time.Second)}
	case lease.IsLost(err):
		return problem{"Busy", 409, "Somebody has taken it over. Look at the cart, and try again.", shortly}
	case guard.IsUnavailable(err): // also of the bank
		return problem{"Not available right now", 503, "Nothing was reserved or sold. Try again: a payment is taken once.", shortly}
	}
	return problem{"Something went wrong", 500, "Look at the cart before trying again.", never}
}
