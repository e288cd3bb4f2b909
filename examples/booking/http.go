// The booking service over HTTP: JSON in, JSON out, problems as RFC 9457 has them. The file
// openapi.yaml, which it serves, is its contract. What became of a request is in the status:
//
//   - 2xx: done. The same Idempotency-Key gets the same answer again.
//   - 4xx: refused, and nothing was written. With Retry-After it may be sent again as it is.
//   - 503: a store did not answer. Unless the problem says otherwise nothing was written; with the
//     same Idempotency-Key it may be sent again without a second thought.

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"slices"
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
	List(ctx context.Context, table int, from time.Time) (page []booking.Booking, next time.Time, err error)
	Cancel(ctx context.Context, id uuid.UUID) error
}

// api is what the handlers are made of.
type api struct {
	Desk    desk
	Ready   http.Handler  // answers GET /readyz
	Metrics http.Handler  // answers GET /metrics
	Timeout time.Duration // of one request; then its context ends, and with it the waiting and the work
	Log     *slog.Logger  // a line for each request; see withRequestID
}

//go:embed openapi.yaml
var openAPI []byte

// handler serves every route.
func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tables/{table}/bookings", a.answer(a.reserve))
	mux.HandleFunc("GET /tables/{table}/bookings", a.answer(a.list))
	mux.HandleFunc("GET /bookings/{id}", a.answer(a.get))
	mux.HandleFunc("DELETE /bookings/{id}", a.answer(a.cancel))
	mux.HandleFunc("GET /healthz", a.answer(live))
	mux.Handle("GET /readyz", a.Ready)
	mux.Handle("GET /metrics", a.Metrics)
	mux.HandleFunc("GET /openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openAPI) // the client may have gone
	})
	return a.served(mux)
}

// answer writes what a route returns, as JSON or as a problem. A nil body is no body.
func (a *api) answer(route func(w http.ResponseWriter, r *http.Request) (status int, body any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, body, err := route(w, r)
		switch {
		case err != nil:
			a.refuse(w, r, err)
		case body == nil:
			w.WriteHeader(status)
		default:
			writeJSON(w, status, "application/json", body)
		}
	}
}

// live says that the process runs. Whether it can work is for /readyz to say: a restart does not
// bring a store back.
func live(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, map[string]string{"status": "ok"}, nil
}

func (a *api) reserve(w http.ResponseWriter, r *http.Request) (int, any, error) {
	table, err := decodeTable(r)
	if err != nil {
		return 0, nil, err
	}
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey || strings.ContainsFunc(key, notVisible) {
		return 0, nil, &booking.InvalidError{Field: "Idempotency-Key", Problem: fmt.Sprintf("at most %d visible ASCII characters", maxKey)}
	}
	b := booking.Booking{Table: table}
	if err := decodeBody(w, r, map[string]any{"slot": &b.Slot, "guest": &b.Guest, "party": &b.Party}); err != nil {
		return 0, nil, err
	}
	answer, err := a.Desk.Reserve(r.Context(), key, b)
	if err != nil || !answer.Created {
		return http.StatusOK, answer.Booking, err
	}
	w.Header().Set("Location", "/bookings/"+answer.ID.String())
	return http.StatusCreated, answer.Booking, nil
}

// page is the answer to a list.
type page struct {
	Bookings []booking.Booking `json:"bookings"`
	Next     time.Time         `json:"next,omitzero"` // go on with ?from=
}

func (a *api) list(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	table, err := decodeTable(r)
	if err != nil {
		return 0, nil, err
	}
	var from time.Time
	if text := r.URL.Query().Get("from"); text != "" {
		if from, err = time.Parse(time.RFC3339, text); err != nil {
			return 0, nil, &booking.InvalidError{Field: "from", Problem: "must be " + typeName(&from)}
		}
	}
	bookings, next, err := a.Desk.List(r.Context(), table, from)
	return http.StatusOK, page{bookings, next}, err
}

func (a *api) get(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := decodeID(r)
	if err != nil {
		return 0, nil, err
	}
	b, err := a.Desk.Get(r.Context(), id)
	return http.StatusOK, b, err
}

func (a *api) cancel(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	id, err := decodeID(r)
	if err == nil {
		err = a.Desk.Cancel(r.Context(), id)
	}
	return http.StatusNoContent, nil, err
}

// decodeID: what is no ID is the ID of no booking.
func decodeID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return uuid.Nil, booking.ErrUnknown
	}
	return id, nil
}

const (
	maxBody = 4 << 10 // bytes
	maxKey  = 255     // bytes of an Idempotency-Key
)

var (
	errMediaType = errors.New("api: not application/json")
	errMalformed = errors.New("api: not one JSON object")
)

// decodeBody reads the body, which must be one JSON object with these fields and no more. Its errors
// are for the sender: a field that is unknown or of another type is named.
func decodeBody(w http.ResponseWriter, r *http.Request, known map[string]any) error {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return errMediaType
	}
	var fields map[string]json.RawMessage
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := body.Decode(&fields); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	if _, err := body.Token(); !errors.Is(err, io.EOF) {
		return errors.Join(errMalformed, err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		target, ok := known[name]
		if !ok {
			names := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			return &booking.InvalidError{Field: name, Problem: "unknown; there are " + names}
		}
		if err := json.Unmarshal(fields[name], target); err != nil {
			return &booking.InvalidError{Field: name, Problem: "must be " + typeName(target)}
		}
	}
	return nil
}

func typeName(target any) string {
	switch target.(type) {
	case *time.Time:
		return "a time such as 2030-06-01T19:00:00Z"
	case *int:
		return "a whole number"
	}
	return "a text"
}

func decodeTable(r *http.Request) (int, error) {
	table, err := strconv.Atoi(r.PathValue("table"))
	if err != nil {
		return 0, &booking.InvalidError{Field: "table", Problem: "must be a whole number"}
	}
	return table, nil
}

func notVisible(r rune) bool { return r <= ' ' || r > '~' }
