// Package api is the shop over HTTP, in JSON.
//
//	GET  /stock              what there is
//	POST /carts              reserve: {"buyer": "ann", "lines": [{"sku": "sku-01", "units": 2}]}
//	GET  /carts/{id}
//	POST /carts/{id}/pay     again is as good as once
//	GET  /healthz, /readyz
//
// Errors are problem details (RFC 9457). 409 and 503 say with Retry-After when to ask again, where that is worthwhile.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
)

const maxBody = 64 << 10 // bytes

type api struct {
	shop *shop.Shop
	log  *slog.Logger
}

// New returns the handler of all routes. ready answers whether the servers behind the shop can be used.
func New(s *shop.Shop, ready http.Handler, log *slog.Logger) http.Handler {
	a := &api{s, log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stock", a.answer(a.stock))
	mux.HandleFunc("POST /carts", a.answer(a.reserve))
	mux.HandleFunc("GET /carts/{id}", a.answer(a.cart))
	mux.HandleFunc("POST /carts/{id}/pay", a.answer(a.pay))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /readyz", ready)
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
	var lines []store.Line
	for _, l := range want.Lines {
		lines = append(lines, store.Line{SKU: l.SKU, Units: l.Units})
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
