// The booking service over HTTP: JSON in, JSON out, problems as RFC 9457 has them. The file
// openapi.yaml is its contract. What became of a request is in the status:
//
//   - 2xx: done. The same Idempotency-Key gets the same answer again.
//   - 4xx: refused, and nothing was written. With Retry-After it may be sent again as it is.
//   - 503: a store did not answer. Unless the problem says otherwise nothing was written; with the
//     same Idempotency-Key it may be sent again without a second thought.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
)

// desk is what takes the requests: *booking.Service.
type desk interface {
	Reserve(ctx context.Context, key string, b booking.Booking) (booking.Answer, error)
	Get(ctx context.Context, id uuid.UUID) (booking.Booking, error)
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
// into the log. A nil body is no body, and one with a Location is new.
func (a *api) answer(route func(w http.ResponseWriter, r *http.Request) (body any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began, client, contentType, level := time.Now(), r.Context(), "application/json", slog.LevelInfo
		id := cmp.Or(r.Header.Get("X-Request-Id"), uuid.NewString())
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("Cache-Control", "no-store")
		ctx, cancel := context.WithTimeout(context.WithValue(client, requestIDKey{}, id), a.Timeout)
		defer cancel() // its transaction is rolled back then, and its lease released
		body, err := route(w, r.WithContext(ctx))
		status := http.StatusOK
		switch {
		case err != nil:
			p := explain(err)
			if p.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int((p.retryAfter+time.Second-1)/time.Second)))
			}
			status, body, contentType = p.Status, p, "application/problem+json"
		case body == nil:
			status = http.StatusNoContent
		case w.Header().Get("Location") != "":
			status = http.StatusCreated
		}
		if status >= http.StatusInternalServerError && client.Err() == nil { // the client is still there
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

var goodKey = regexp.MustCompile(`^[!-~]{0,255}$`)

func (a *api) reserve(w http.ResponseWriter, r *http.Request) (any, error) {
	key := r.Header.Get("Idempotency-Key")
	if !goodKey.MatchString(key) {
		return nil, fmt.Errorf("%w: Idempotency-Key: at most 255 visible ASCII characters", booking.ErrInvalid)
	}
	var b booking.Booking
	const maxBody = 4 << 10 // bytes
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", booking.ErrInvalid, err)
	}
	b.Table, _ = strconv.Atoi(r.PathValue("table")) // anything but a number becomes 0, a table that does not exist
	answer, err := a.Desk.Reserve(r.Context(), key, b)
	if err == nil && answer.Created {
		w.Header().Set("Location", "/bookings/"+answer.ID.String())
	}
	return answer.Booking, err
}

// idOf: what is no ID is uuid.Nil, the ID of no booking.
func idOf(r *http.Request) uuid.UUID {
	id, _ := uuid.Parse(r.PathValue("id"))
	return id
}

// problem is the body of an answer that is not a success (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

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
	answer := guard.Answer(err)
	switch {
	case answer == guard.Unknown: // first, since it leaves a doubt
		say(503, "unsettled", "Not known whether it was written; send it again with the same Idempotency-Key", shortly)
	case is(booking.ErrInvalid):
		say(400, "invalid", "The request is not valid", never)
		p.Detail = err.Error()
	case is(fencedb.ErrKeyReused):
		say(422, "key-reused", "The Idempotency-Key was used for another request", never)
	case is(booking.ErrCardDeclined):
		say(402, "card-declined", "The card was declined", never)
	case is(booking.ErrUnknown):
		say(404, "unknown-booking", "There is no such booking", never)
	case is(booking.ErrTaken):
		say(409, "taken", "The table is taken at that time", never)
	case answer == guard.Busy:
		say(409, "busy", "Somebody else has the table now, or may have it; nothing was written", max(guard.RetryAfter(err), shortly))
	case answer == guard.Unavailable:
		say(503, "unavailable", "A store does not answer; nothing was written", 2*shortly)
	default:
		say(500, "internal", "Something is wrong here; the log has the request ID", never)
	}
	return p
}
