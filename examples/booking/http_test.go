package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

var ann = booking.Booking{
	ID: uuid.MustParse("7a3e1d2c-4b5f-4c6d-8e9f-0a1b2c3d4e5f"), Table: 12, Slot: evening, Guest: "Ann", Party: 4,
}

const annJSON = `{"id":"7a3e1d2c-4b5f-4c6d-8e9f-0a1b2c3d4e5f","table":12,"slot":"2030-06-01T19:00:00Z","guest":"Ann","party":4}`

const (
	reservePath = "POST /tables/{table}/bookings"
	getPath     = "GET /bookings/{id}"
	cancelPath  = "DELETE /bookings/{id}"
)

// Each answer in openapi.yaml is given to some request here, and no answer is given that is not in
// it.
func TestEveryAnswerOfTheContractAndNoOther(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	given := map[documented]bool{}
	ask := func(want documented, d answering, r *http.Request) {
		t.Helper()
		w.desk = d
		_, got := w.send(r)
		require.Equal(t, want, got)
		given[got] = true
	}
	created, changed := booking.Answer{Booking: ann, Created: true}, booking.Answer{Booking: ann}
	ask(reservePath+" 201", answering{answer: created}, reservation())
	ask(reservePath+" 200", answering{answer: changed}, reservation())
	ask(reservePath+" 400", answering{}, withBody(reservation(), `{"slot":`))
	ask(reservePath+" 402", answering{err: booking.ErrCardDeclined}, reservation())
	ask(reservePath+" 409", answering{err: booking.ErrTaken}, reservation())
	ask(reservePath+" 422", answering{err: fencedb.ErrKeyReused}, reservation())
	ask(reservePath+" 500", answering{err: errors.New("a bug")}, reservation())
	ask(reservePath+" 503", answering{err: lease.ErrUnreachable}, reservation())
	ask(getPath+" 200", answering{answer: created}, get("/bookings/"+ann.ID.String()))
	ask(getPath+" 404", answering{err: booking.ErrUnknown}, get("/bookings/"+ann.ID.String()))
	ask(getPath+" 500", answering{err: errors.New("a bug")}, get("/bookings/"+ann.ID.String()))
	ask(getPath+" 503", answering{err: io.ErrUnexpectedEOF}, get("/bookings/"+ann.ID.String()))
	ask(cancelPath+" 204", answering{}, cancellation())
	ask(cancelPath+" 404", answering{err: booking.ErrUnknown}, cancellation())
	ask(cancelPath+" 409", answering{err: &lease.HeldError{}}, cancellation())
	ask(cancelPath+" 500", answering{err: errors.New("a bug")}, cancellation())
	ask(cancelPath+" 503", answering{err: io.ErrUnexpectedEOF}, cancellation())

	for a := range w.contract.answers() {
		if strings.Contains(string(a), "/bookings") { // the others are those of a service that runs
			require.True(t, given[a], "%s is in the contract, but not in this test", a)
		}
	}
}

func TestReserveHandsOverWhatWasAsked(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	w.desk.answer = booking.Answer{Booking: ann, Created: true}

	response, _ := w.send(withHeader(reservation(), "Idempotency-Key", "0b6f"))

	require.Equal(t, "/bookings/"+ann.ID.String(), response.Header().Get("Location"))
	require.JSONEq(t, annJSON, response.Body.String())
	require.Equal(t, "0b6f", w.asked.key)
	require.Equal(t, booking.Booking{Table: 12, Slot: evening, Guest: "Ann", Party: 4}, w.asked.booking)

	w.send(httptest.NewRequest(http.MethodPost, "/tables/x/bookings", strings.NewReader(annJSON)))
	require.Zero(t, w.asked.booking.Table, "the table of the path counts, and there is none of that number")
}

func TestCancelHandsOverWhatWasAsked(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	w.send(cancellation())
	require.Equal(t, ann.ID, w.asked.booking.ID)
}

func TestWhatCannotBeReadIsNamedAndGoesNoFurther(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ key, body, says string }{
		"key with a space": {"a b", "{}", "Idempotency-Key"},
		"key of 256 bytes": {strings.Repeat("a", 256), "{}", "Idempotency-Key"},
		"key in Unicode":   {"schlüssel", "{}", "Idempotency-Key"},
		"nothing":          {"", "", "unexpected end"},
		"a list":           {"", `[]`, "array"},
		"a text":           {"", `"Ann"`, "string"},
		"half":             {"", `{"guest":"Ann"`, "unexpected end"},
		"slot no time":     {"", `{"slot":"tonight"}`, "tonight"},
		"guest no text":    {"", `{"guest":["Ann"]}`, "guest"},
		"party no number":  {"", `{"party":"4"}`, "party"},
		"party in parts":   {"", `{"party":4.5}`, "party"},
		"two values":       {"", `{"guest":"Ann"} {}`, "after top-level value"},
		"too large":        {"", `{"guest":"` + strings.Repeat("a", 5000) + `"}`, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDesktop(t)
			p := w.refused(withHeader(withBody(reservation(), tc.body), "Idempotency-Key", tc.key))
			require.Equal(t, http.StatusBadRequest, p.Status)
			require.Contains(t, p.Detail, tc.says)
			require.Zero(t, w.asked)
		})
	}
}

func TestAKeyOfVisibleCharactersIsTaken(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	key := "!~" + strings.Repeat("a", 253)
	w.send(withHeader(reservation(), "Idempotency-Key", key))
	require.Equal(t, key, w.asked.key)
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err        error
		status     int
		kind       string
		retryAfter string
	}{
		"held":         {&lease.HeldError{RetryAfter: 1200 * time.Millisecond}, 409, "busy", "2"},
		"held, no TTL": {&lease.HeldError{}, 409, "busy", "1"},
		"fence held":   {&fencedb.BusyError{}, 409, "busy", "1"},
		"stale":        {&fencedb.StaleError{Token: 41, Stored: 42}, 409, "busy", "1"},
		"joined":       {errors.Join(&fencedb.StaleError{}, lease.ErrExpired), 409, "busy", "1"},
		"lease over":   {fencedb.ErrLeaseOver, 409, "busy", "1"},
		"revoked":      {lease.ErrRevoked, 409, "busy", "1"},
		"expired":      {lease.ErrExpired, 409, "busy", "1"},
		"lost":         {lease.ErrLost, 409, "busy", "1"},
		"taken":        {booking.ErrTaken, 409, "taken", ""},
		"declined":     {booking.ErrCardDeclined, 402, "card-declined", ""},
		"key reused":   {fencedb.ErrKeyReused, 422, "key-reused", ""},
		"invalid":      {booking.ErrInvalid, 400, "invalid", ""},
		"no Redis":     {lease.ErrUnreachable, 503, "unavailable", "2"},
		"full Redis":   {&lease.RefusedError{Code: "OOM"}, 503, "unavailable", "2"},
		"no Postgres":  {new(pgconn.ConnectError), 503, "unavailable", "2"},
		"too slow":     {context.DeadlineExceeded, 503, "unavailable", "2"},
		"too long":     {fencedb.ErrTooLong, 500, "internal", ""}, // which does not pass by itself
		"doubt":        {errors.Join(io.ErrUnexpectedEOF, &fencedb.CommitUnknownError{}), 503, "unsettled", "1"},
		"bug":          {errors.New("secret"), 500, "internal", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newDesktop(t)
			w.desk.err = tc.err
			p := w.refused(reservation())
			require.Equal(t, tc.status, p.Status)
			require.Equal(t, "urn:problem-type:booking:"+tc.kind, p.Type)
			require.Equal(t, tc.retryAfter, p.retryAfter)
			require.NotContains(t, p.Title+p.Detail, "secret")
			require.Equal(t, tc.status >= 500, strings.Contains(w.log.String(), "level=ERROR"), w.log)
		})
	}
}

func TestRequestIDsComeInAndGoOut(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	for _, sent := range []string{"req-7.b_3", ""} {
		response, _ := w.send(withHeader(reservation(), "X-Request-Id", sent))

		id := response.Header().Get("X-Request-Id")
		require.NotEmpty(t, id)
		require.Equal(t, sent != "", id == sent)
		require.Equal(t, id, w.asked.requestID)
		require.Contains(t, w.log.String(), "request_id="+id)
	}
	require.Empty(t, requestID(t.Context()))
}

func TestALineForEachRequest(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	w.desk.err = booking.ErrTaken
	w.send(reservation())
	require.Contains(t, w.log.String(), "msg=request method=POST path=/tables/12/bookings status=409 ")
}

func TestARequestIsGivenSoMuchTime(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	w.config.Timeout = time.Millisecond
	w.desk.during = func(ctx context.Context) {
		<-ctx.Done()
		w.desk.err = ctx.Err()
	}
	require.Equal(t, http.StatusServiceUnavailable, w.refused(reservation()).Status)
}

// Nobody need get up at night for it.
func TestAClientThatLeavesIsNoErrorOfOurs(t *testing.T) {
	t.Parallel()
	w := newDesktop(t)
	ctx, leave := context.WithCancel(t.Context())
	w.desk.during = func(ctx context.Context) {
		leave()
		<-ctx.Done()
		w.desk.err = ctx.Err()
	}
	w.send(reservation().WithContext(ctx))
	require.Contains(t, w.log.String(), "level=INFO")
}

// desktop is the API with a desk that answers as it is told.
type desktop struct {
	testing.TB
	contract contract
	config   api
	log      *bytes.Buffer
	desk     answering
	asked    asked
}

type answering struct {
	answer booking.Answer
	err    error
	during func(context.Context) // of each call
}

// asked is what the desk was asked last.
type asked struct {
	key       string
	booking   booking.Booking
	requestID string
}

func newDesktop(t testing.TB) *desktop {
	w := &desktop{TB: t, contract: readContract(t), log: &bytes.Buffer{}}
	w.config = api{Desk: w, Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	return w
}

func (w *desktop) take(ctx context.Context, key string, b booking.Booking) error {
	w.asked = asked{key, b, requestID(ctx)}
	if w.desk.during != nil {
		w.desk.during(ctx)
	}
	return w.desk.err
}

func (w *desktop) Reserve(ctx context.Context, key string, b booking.Booking) (booking.Answer, error) {
	return w.desk.answer, w.take(ctx, key, b)
}

func (w *desktop) Get(ctx context.Context, id uuid.UUID) (booking.Booking, error) {
	return w.desk.answer.Booking, w.take(ctx, "", booking.Booking{ID: id})
}

func (w *desktop) Cancel(ctx context.Context, id uuid.UUID) error {
	return w.take(ctx, "", booking.Booking{ID: id})
}

// send sends a request, and holds the answer to the contract.
func (w *desktop) send(r *http.Request) (*httptest.ResponseRecorder, documented) {
	w.Helper()
	response := httptest.NewRecorder()
	w.config.routes().ServeHTTP(response, r)
	require.Equal(w, "no-store", response.Header().Get("Cache-Control"))
	return response, w.contract.require(w, r, response)
}

type refusal struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	retryAfter string
}

// refused sends a request that must get a problem, of a type that the contract lists.
func (w *desktop) refused(r *http.Request) refusal {
	w.Helper()
	response, _ := w.send(r)
	require.Equal(w, "application/problem+json", response.Header().Get("Content-Type"))
	p := refusal{retryAfter: response.Header().Get("Retry-After")}
	require.NoError(w, json.Unmarshal(response.Body.Bytes(), &p))
	require.Equal(w, response.Code, p.Status)
	require.NotEmpty(w, p.Title)
	require.True(w, slices.Contains(w.contract.Components.Schemas["Problem"].Properties["type"].Enum, p.Type), p.Type)
	return p
}

func reservation() *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/tables/12/bookings", nil)
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	return withBody(r, `{"slot":"2030-06-01T19:00:00Z","guest":"Ann","party":4}`)
}

func cancellation() *http.Request {
	return httptest.NewRequest(http.MethodDelete, "/bookings/"+ann.ID.String(), nil)
}

func get(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }

func withHeader(r *http.Request, name, value string) *http.Request {
	r.Header.Set(name, value)
	return r
}

func withBody(r *http.Request, body string) *http.Request {
	with := httptest.NewRequest(r.Method, r.URL.Path, strings.NewReader(body))
	with.Header = r.Header
	return with
}
