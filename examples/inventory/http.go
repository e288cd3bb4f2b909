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
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

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
	mux.HandleFunc("GET /carts/{id}", a.answer(a.cart))
	mux.HandleFunc("POST /carts/{id}/pay", a.answer(a.pay))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /readyz", ready)
	mux.Handle("GET /metrics", metrics)
	return mux
}

// answer writes what a route returns, as JSON or as a problem.
func (a *api) answer(route func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		status, body, err := route(w, r)
		kind := "application/json"
		if err != nil {
			p := a.problem(w, r, err)
			status, body, kind = p.Status, p, "application/problem+json"
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

type wish struct {
	Buyer string `json:"buyer"`
	Lines []struct {
		SKU   string `json:"sku"`
		Units int    `json:"units"`
	} `json:"lines"`
}

func (a *api) reserve(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var want wish
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	if err := body.Decode(&want); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	var lines []shop.Line
	for _, l := range want.Lines {
		lines = append(lines, shop.Line{SKU: l.SKU, Units: l.Units})
	}
	c, err := a.shop.Reserve(r.Context(), want.Buyer, lines)
	if err == nil {
		w.Header().Set("Location", "/carts/"+c.ID.String())
	}
	return http.StatusCreated, c, err
}

func (a *api) cart(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := cartID(r)
	if err != nil {
		return 0, nil, err
	}
	c, err := a.shop.Cart(r.Context(), id)
	return http.StatusOK, c, err
}

func (a *api) pay(w http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := cartID(r)
	if err != nil {
		return 0, nil, err
	}
	if err := a.shop.Pay(r.Context(), id); err != nil {
		return 0, nil, err
	}
	return a.cart(w, r)
}

// cartID takes what is no id for that of no cart.
func cartID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return id, shop.ErrNoCart
	}
	return id, nil
}

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
	case lease.IsLost(err): // held by another, or taken over meanwhile
		return problem{"Busy", http.StatusConflict, "Somebody else works on it, or may by now. Look at the cart, and try again."}
	case errors.Is(err, lease.ErrUnreachable):
		return problem{"Not available right now", http.StatusServiceUnavailable, "Nothing was changed. Try again."}
	}
	return problem{"Something went wrong", http.StatusInternalServerError, "Look at the cart before trying again."}
}

// retryAfter is in seconds.
func retryAfter(err error, status int) (seconds int, worthwhile bool) {
	var held *lease.HeldError
	switch {
	case errors.As(err, &held):
		return int(max(1, math.Ceil(held.RetryAfter.Seconds()))), true
	case status == http.StatusServiceUnavailable, lease.IsLost(err):
		return int(unavailable.Seconds()), true
	}
	return 0, false
}

const unavailable = 2 * time.Second
