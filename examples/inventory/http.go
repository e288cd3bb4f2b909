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
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

const maxBody = 64 << 10 // bytes

type api struct {
	shop *shop.Shop
	log  *slog.Logger
}

// newAPI returns the handler of all routes. ready answers whether the servers behind the shop can
// be used.
func newAPI(s *shop.Shop, ready, metrics http.Handler, log *slog.Logger) http.Handler {
	a := &api{s, log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stock", a.answer(a.stock))
	mux.HandleFunc("POST /carts", a.answer(a.reserve))
	mux.HandleFunc("GET /carts/{id}", a.answer(a.cart(func(context.Context, uuid.UUID) error { return nil })))
	mux.HandleFunc("POST /carts/{id}/pay", a.answer(a.cart(s.Pay)))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /readyz", ready)
	mux.Handle("GET /metrics", metrics)
	return mux
}

// route returns a body for JSON.
type route func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)

// answer writes what a route returns, as JSON or as a problem.
func (a *api) answer(by route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		client := r.Context()
		ctx, cancel := context.WithTimeout(client, requestTime)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		status, body, err := by(w, r)
		kind := "application/json"
		if err != nil {
			p := problemOf(err)
			status, body, kind = p.Status, p, "application/problem+json"
			if p.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
			}
		}
		if status >= http.StatusInternalServerError && client.Err() == nil { // what is not its business is in the log
			a.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client has gone
	}
}

func (a *api) stock(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	levels, err := a.shop.Levels(r.Context())
	return http.StatusOK, levels, err
}

// errMalformed: the request is not what the route takes.
var errMalformed = errors.New("malformed request")

func (a *api) reserve(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var want struct {
		Buyer string      `json:"buyer"`
		Lines []shop.Line `json:"lines"` // their price is for the shop to say
	}
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	err := body.Decode(&want)
	if _, end := body.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("more than one JSON value")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	c, err := a.shop.Reserve(r.Context(), want.Buyer, want.Lines)
	if err == nil {
		w.Header().Set("Location", "/carts/"+c.ID.String())
	}
	return http.StatusCreated, c, err
}

// cart does something to a cart, and shows it. What is no id is that of no cart.
func (a *api) cart(do func(context.Context, uuid.UUID) error) route {
	return func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
		id, err := uuid.Parse(r.PathValue("id"))
		if err != nil {
			return 0, nil, shop.ErrNoCart
		}
		if err := do(r.Context(), id); err != nil {
			return 0, nil, err
		}
		c, err := a.shop.Cart(r.Context(), id)
		return http.StatusOK, c, err
	}
}

// problem is an error as RFC 9457 writes it: it says what is true of the data.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	retryAfter time.Duration // 0: not worthwhile
}

const unavailable = 2 * time.Second

// away are the errors of a store, or of the bank, that does not answer in time.
var away = []error{
	lease.ErrUnreachable, lease.ErrRefused, fencedb.ErrTooLong, context.DeadlineExceeded, context.Canceled,
}

func problemOf(err error) problem {
	switch {
	case errors.Is(err, fencedb.ErrCommitUnknown): // first: it is the only one that leaves a doubt
		return problem{"Not known whether it was done", http.StatusServiceUnavailable,
			"A payment can be sent again. A reservation that was made all the same runs out by itself.", unavailable}
	case errors.As(err, new(*http.MaxBytesError)):
		return problem{"The request is too large", http.StatusRequestEntityTooLarge, "", 0}
	case errors.Is(err, errMalformed):
		return problem{"The request cannot be read", http.StatusBadRequest, err.Error(), 0}
	case errors.Is(err, shop.ErrInvalid):
		return problem{"The request makes no sense", http.StatusUnprocessableEntity, err.Error(), 0}
	case errors.Is(err, shop.ErrNoCart):
		return problem{"There is no such cart", http.StatusNotFound, "", 0}
	case errors.Is(err, shop.ErrSoldOut):
		return problem{"Sold out", http.StatusConflict, err.Error() + ". Nothing was reserved.", 0}
	case errors.Is(err, shop.ErrExpired):
		return problem{"The reservation is over", http.StatusGone, "What was paid is given back.", 0}
	case errors.Is(err, shop.ErrDeclined):
		return problem{"The bank declined", http.StatusPaymentRequired, "Nothing was taken. Try another card.", 0}
	case lease.IsLost(err): // held by another, or taken over meanwhile
		after := unavailable
		if held, is := errors.AsType[*lease.HeldError](err); is {
			after = max(held.RetryAfter, time.Second)
		}
		return problem{"Busy", http.StatusConflict, "Somebody else works on it, or may by now. Look at the cart, and try again.", after}
	case errors.As(err, new(*pgconn.ConnectError)),
		slices.ContainsFunc(away, func(e error) bool { return errors.Is(err, e) }):
		return problem{"Not available right now", http.StatusServiceUnavailable,
			"Nothing was reserved or sold. Try again: a payment is taken once.", unavailable}
	}
	return problem{"Something went wrong", http.StatusInternalServerError, "Look at the cart before trying again.", 0}
}
