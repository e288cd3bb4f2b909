// The booking service over HTTP: JSON in, JSON out, problems as RFC 9457 has them. The file
// openapi.yaml is its contract. What became of a request is in the status:
//
//   - 2xx: done. The same Idempotency-Key gets the same answer again.
//   - 4xx: refused, and nothing was written. With Retry-After it may be sent again as it is.
//   - 503: a store did not answer. Unless the problem says otherwise nothing was written; with the
//     same Idempotency-Key it may be sent again without a second thought.

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
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// desk is what takes the requests: *booking.Service.
type desk interface {
	Reserve(ctx context.Context, key string, b booking.Booking) (booking.Answer, error)
	Get(ctx context.Context, id uuid.UUID) (booking.Booking, error)
	List(ctx context.Context, table int, from time.Time) ([]booking.Booking, error)
	Cancel(ctx context.Context, id uuid.UUID) error
}

// api is what the handlers are made of.
type api struct {
	Desk    desk
	Ready   http.Handler  // answers GET /readyz
	Metrics http.Handler  // answers GET /metrics
	Timeout time.Duration // of one request; then its context ends, and with it the waiting and the work
	Log     *slog.Logger  // a line for each request
}

// handler serves every route.
func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tables/{table}/bookings", a.answer(a.reserve))
	mux.HandleFunc("GET /tables/{table}/bookings", a.answer(a.list))
	mux.HandleFunc("GET /bookings/{id}", a.answer(a.get))
	mux.HandleFunc("DELETE /bookings/{id}", a.answer(a.cancel))
	// The process runs. Whether it can work is for /readyz to say: a restart does not bring a store
	// back.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /readyz", a.Ready)
	mux.Handle("GET /metrics", a.Metrics)
	return a.served(mux)
}

// served gives each request so much time, and the ID in its header, or a new one if that is missing
// or not fit for a log.
func (a *api) served(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		if id == "" || len(id) > maxRequestID || strings.ContainsFunc(id, notVisible) {
			id = uuid.NewString()
		}
		// When the time is over its transaction is rolled back, and its lease released.
		ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), requestIDKey{}, id), a.Timeout)
		defer cancel()
		w.Header().Set(requestIDHeader, id)
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

const (
	requestIDHeader = "X-Request-Id"
	maxRequestID    = 64 // bytes
)

type requestIDKey struct{}

// requestID is what the request that ctx belongs to is known by, or "" if it belongs to none.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// answer writes what a route returns, as JSON or as a problem, and a line into the log. A nil body
// is no body.
func (a *api) answer(
	route func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began, contentType, level := time.Now(), "application/json", slog.LevelInfo
		status, body, err := route(w, r)
		if err != nil {
			p := explain(err)
			p.RequestID = requestID(r.Context())
			if p.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
			}
			status, body, contentType = p.Status, p, "application/problem+json"
		}
		left := context.Cause(r.Context()) == context.Canceled // the client has; we give a cause
		if status >= http.StatusInternalServerError && !left {
			level = slog.LevelError
		}
		a.Log.Log(r.Context(), level, "request", "method", r.Method, "path", r.URL.Path, "status", status,
			"took", time.Since(began), "error", err, "request_id", requestID(r.Context()))
		if body == nil {
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may have gone
	}
}

func (a *api) reserve(w http.ResponseWriter, r *http.Request) (int, any, error) {
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey || strings.ContainsFunc(key, notVisible) {
		return 0, nil, &booking.InvalidError{Field: "Idempotency-Key", Problem: fmt.Sprintf("at most %d visible ASCII characters", maxKey)}
	}
	var want struct {
		Slot  time.Time `json:"slot"`
		Guest string    `json:"guest"`
		Party int       `json:"party"`
	}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	body.DisallowUnknownFields()
	err := body.Decode(&want)
	if _, end := body.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("more than one JSON value")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	b := booking.Booking{Table: tableOf(r), Slot: want.Slot, Guest: want.Guest, Party: want.Party}
	answer, err := a.Desk.Reserve(r.Context(), key, b)
	if err != nil || !answer.Created {
		return http.StatusOK, answer.Booking, err
	}
	w.Header().Set("Location", "/bookings/"+answer.ID.String())
	return http.StatusCreated, answer.Booking, nil
}

func (a *api) list(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var from time.Time
	if text := r.URL.Query().Get("from"); text != "" {
		var err error
		if from, err = time.Parse(time.RFC3339, text); err != nil {
			return 0, nil, &booking.InvalidError{Field: "from", Problem: "must be a time such as 2030-06-01T19:00:00Z"}
		}
	}
	bookings, err := a.Desk.List(r.Context(), tableOf(r), from)
	return http.StatusOK, map[string]any{"bookings": bookings}, err
}

func (a *api) get(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	b, err := a.Desk.Get(r.Context(), idOf(r))
	return http.StatusOK, b, err
}

func (a *api) cancel(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusNoContent, nil, a.Desk.Cancel(r.Context(), idOf(r))
}

const (
	maxBody = 4 << 10 // bytes
	maxKey  = 255     // bytes of an Idempotency-Key
)

// errMalformed: the body is not what the route takes.
var errMalformed = errors.New("api: malformed body")

// idOf: what is no ID is uuid.Nil, the ID of no booking.
func idOf(r *http.Request) uuid.UUID {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil
	}
	return id
}

// tableOf: what is no number is 0, which is no table.
func tableOf(r *http.Request) int {
	table, _ := strconv.Atoi(r.PathValue("table"))
	return table
}

func notVisible(r rune) bool { return r <= ' ' || r > '~' }
