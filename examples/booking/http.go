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
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
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
	Timeout time.Duration // of one request; then its context ends, and with it the waiting and the work
	Log     *slog.Logger  // a line for each request
}

func (a *api) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tables/{table}/bookings", a.answer(a.reserve))
	mux.HandleFunc("GET /tables/{table}/bookings", a.answer(a.list))
	mux.HandleFunc("GET /bookings/{id}", a.answer(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return a.Desk.Get(r.Context(), idOf(r))
	}))
	mux.HandleFunc("DELETE /bookings/{id}", a.answer(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return nil, a.Desk.Cancel(r.Context(), idOf(r))
	}))
	return mux
}

type requestIDKey struct{}

// requestID is what the request that ctx belongs to is known by, or "" if it belongs to none.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// answer gives a route so much time, writes what it returns, as JSON or as a problem, and a line
// into the log. A nil body is no body, and one with a Location is new. The ID of the request is
// that of its header, unless that is not fit for a log.
func (a *api) answer(route func(w http.ResponseWriter, r *http.Request) (body any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began, client, contentType, level := time.Now(), r.Context(), "application/json", slog.LevelInfo
		id := r.Header.Get("X-Request-Id")
		if id == "" || !visible(id, 64) {
			id = uuid.NewString()
		}
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("Cache-Control", "no-store")
		ctx, cancel := context.WithTimeout(context.WithValue(client, requestIDKey{}, id), a.Timeout)
		defer cancel() // its transaction is rolled back then, and its lease released
		body, err := route(w, r.WithContext(ctx))
		status := http.StatusOK
		switch {
		case err != nil:
			p := explain(err)
			p.RequestID = id
			if p.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
			}
			status, body, contentType = p.Status, p, "application/problem+json"
		case body == nil:
			status = http.StatusNoContent
		case w.Header().Get("Location") != "":
			status = http.StatusCreated
		}
		left := context.Cause(client) == context.Canceled // the client has; we give a cause
		if status >= http.StatusInternalServerError && !left {
			level = slog.LevelError
		}
		a.Log.Log(ctx, level, "request", "method", r.Method, "path", r.URL.Path, "status", status,
			"took", time.Since(began), "error", err, "request_id", id)
		if body == nil {
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may have gone
	}
}

// errMalformed: the body is not what the route takes.
var errMalformed = errors.New("api: malformed body")

func (a *api) reserve(w http.ResponseWriter, r *http.Request) (any, error) {
	const maxKey, maxBody = 255, 4 << 10 // bytes
	key := r.Header.Get("Idempotency-Key")
	if !visible(key, maxKey) {
		return nil, &booking.InvalidError{Field: "Idempotency-Key", Problem: fmt.Sprintf("at most %d visible ASCII characters", maxKey)}
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
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	b := booking.Booking{Table: tableOf(r), Slot: want.Slot, Guest: want.Guest, Party: want.Party}
	answer, err := a.Desk.Reserve(r.Context(), key, b)
	if err == nil && answer.Created {
		w.Header().Set("Location", "/bookings/"+answer.ID.String())
	}
	return answer.Booking, err
}

func (a *api) list(_ http.ResponseWriter, r *http.Request) (_ any, err error) {
	var from time.Time
	if text := r.FormValue("from"); text != "" {
		if from, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, &booking.InvalidError{Field: "from", Problem: "must be a time such as 2030-06-01T19:00:00Z"}
		}
	}
	bookings, err := a.Desk.List(r.Context(), tableOf(r), from)
	return map[string]any{"bookings": bookings}, err
}

// idOf: what is no ID is uuid.Nil, the ID of no booking.
func idOf(r *http.Request) uuid.UUID {
	id, _ := uuid.Parse(r.PathValue("id"))
	return id
}

// tableOf: what is no number is 0, which is no table.
func tableOf(r *http.Request) int {
	table, _ := strconv.Atoi(r.PathValue("table"))
	return table
}

func visible(text string, most int) bool {
	return len(text) <= most && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// problem is the body of an answer that is not a success (RFC 9457).
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail,omitempty"`
	Field     string `json:"field,omitempty"`      // what is wrong, with 422
	RequestID string `json:"request_id,omitempty"` // by which the log knows this request

	retryAfter time.Duration
}

// When to send a request again. One that would probably succeed now is sent shortly.
const never, shortly time.Duration = 0, time.Second

// explain says what an error means to the sender. The first case that fits counts.
func explain(err error) (p problem) {
	is := func(target error) bool { return errors.Is(err, target) }
	say := func(status int, kind, title string, after time.Duration) {
		p = problem{Status: status, Type: "urn:problem-type:booking:" + kind, Title: title, retryAfter: after}
	}
	invalid, isInvalid := errors.AsType[*booking.InvalidError](err)
	large, isLarge := errors.AsType[*http.MaxBytesError](err)
	held, isHeld := errors.AsType[*lease.HeldError](err)
	switch {
	case is(fencedb.ErrCommitUnknown): // first: it is the only one that leaves a doubt
		say(503, "unsettled", "Not known whether it was written; send it again with the same Idempotency-Key", shortly)
	case isInvalid:
		say(422, "invalid", "The request is not valid", never)
		p.Field, p.Detail = invalid.Field, invalid.Problem
	case is(fencedb.ErrKeyReused):
		say(422, "key-reused", "The Idempotency-Key was used for another request", never)
	case isLarge:
		say(413, "too-large", fmt.Sprintf("The body is larger than %d bytes", large.Limit), never)
	case is(errMalformed):
		say(400, "malformed", "The body cannot be read", never)
		p.Detail = err.Error()
	case is(booking.ErrCardDeclined):
		say(402, "card-declined", "The card was declined", never)
	case is(booking.ErrUnknown):
		say(404, "unknown-booking", "There is no such booking", never)
	case is(booking.ErrTaken):
		say(409, "taken", "The table is taken at that time", never)
	case isHeld:
		say(409, "busy", "Somebody else has the table now; nothing was written", max(held.RetryAfter, shortly))
	case lease.IsLost(err):
		say(409, "busy", "Somebody has taken the table over; nothing was written", shortly)
	case guard.IsUnavailable(err):
		say(503, "unavailable", "A store does not answer; nothing was written", 2*shortly)
	default:
		say(500, "internal", "Something is wrong here; the log has the request ID", never)
	}
	return p
}
