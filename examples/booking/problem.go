package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// problem is the body of an answer that is not a success (RFC 9457).
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail,omitempty"`
	Field     string `json:"field,omitempty"`      // what is wrong, with 422
	RequestID string `json:"request_id,omitempty"` // by which the log knows this request

	retryAfter time.Duration // 0: sending it again will not help
}

// shortly is when to send a request again that would probably succeed now.
const shortly = time.Second

// problems say what an error means to the sender. The first that fits counts.
var problems = []struct {
	fits       func(error) bool
	status     int
	kind       string
	title      string
	retryAfter time.Duration
}{
	// First: it is the only one that leaves a doubt.
	{is(fencedb.ErrCommitUnknown), 503, "unsettled", "Not known whether it was written; send it again with the same Idempotency-Key", shortly},
	{is(booking.ErrInvalid), 422, "invalid", "The request is not valid", 0},
	{is(fencedb.ErrKeyReused), 422, "key-reused", "The Idempotency-Key was used for another request", 0},
	{is(errMediaType), 415, "media-type", "The body must be application/json", 0},
	{func(err error) bool { return errors.As(err, new(*http.MaxBytesError)) }, 413, "too-large", "The body is too large", 0},
	{is(errMalformed), 400, "malformed", "The body is not one JSON object", 0},
	{is(booking.ErrCardDeclined), 402, "card-declined", "The card was declined", 0},
	{is(booking.ErrUnknown), 404, "unknown-booking", "There is no such booking", 0},
	{is(booking.ErrTaken), 409, "taken", "The table is taken at that time", 0},
	{lease.IsLost, 409, "busy", "Somebody else has the table now; nothing was written", shortly}, // or this came too late
	{is(
		booking.ErrUnavailable, lease.ErrUnreachable, lease.ErrLoading, lease.ErrReadOnly, lease.ErrClusterDown,
		lease.ErrOutOfMemory, lease.ErrTooFewReplicas, context.DeadlineExceeded, context.Canceled,
	), 503, "unavailable", "A store does not answer; nothing was written", 2 * shortly},
	{func(error) bool { return true }, 500, "internal", "Something is wrong here; the log has the request ID", 0},
}

// is fits what errors.Is finds to be one of them.
func is(errs ...error) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(errs, func(target error) bool { return errors.Is(err, target) })
	}
}

func explain(err error) (p problem) {
	for _, candidate := range problems {
		if candidate.fits(err) {
			p = problem{Type: candidate.kind, Title: candidate.title, Status: candidate.status, retryAfter: candidate.retryAfter}
			break
		}
	}
	var (
		wrong *booking.InvalidError
		large *http.MaxBytesError
		held  *lease.HeldError
	)
	switch {
	case errors.As(err, &wrong):
		p.Field, p.Detail = wrong.Field, wrong.Problem
	case errors.As(err, &large):
		p.Detail = fmt.Sprintf("at most %d bytes", large.Limit)
	case errors.As(err, &held):
		p.retryAfter = max(held.RetryAfter, shortly)
	}
	return p
}

// refuse answers with the problem that err stands for. What the sender is not told is in the log.
func (a *api) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := explain(err)
	level := slog.LevelDebug
	if p.Status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	a.Log.Log(r.Context(), level, "refused", "problem", p.Type, "error", err)
	p.write(w, r)
}

func (p problem) write(w http.ResponseWriter, r *http.Request) {
	p.Type = "urn:problem-type:booking:" + p.Type
	p.RequestID = requestID(r.Context())
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.retryAfter.Seconds()))))
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}

// served gives each request so much time, and the ID in its header, or a new one if that is missing or
// not fit for a log. It answers with a problem where mux would answer with a line of text, and where a
// handler panics, and writes a line.
func (a *api) served(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		if id == "" || len(id) > maxRequestID || strings.ContainsFunc(id, notVisible) {
			id = uuid.NewString()
		}
		// When the time is over its transaction is rolled back, and its lease released.
		ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), requestIDKey{}, id), a.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
		w.Header().Set(requestIDHeader, id)
		w.Header().Set("Cache-Control", "no-store")
		began, seen := time.Now(), &observed{ResponseWriter: w, status: http.StatusOK}
		a.route(mux, seen, r)
		a.Log.InfoContext(ctx, "request", "method", r.Method, "path", r.URL.Path,
			"status", seen.status, "took", time.Since(began).Round(time.Microsecond))
	})
}

func (a *api) route(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	defer func() { // or a panic would close the connection
		if cause := recover(); cause == http.ErrAbortHandler {
			panic(cause)
		} else if cause != nil {
			a.refuse(w, r, fmt.Errorf("panic: %v", cause))
		}
	}()
	h, pattern := mux.Handler(r)
	if pattern != "" {
		mux.ServeHTTP(w, r)
		return
	}
	answer := &statusOnly{header: w.Header()} // with Allow, if it is the method
	h.ServeHTTP(answer, r)
	problem{Type: "no-route", Title: http.StatusText(answer.status), Status: answer.status}.write(w, r)
}

// observed remembers the status of an answer.
type observed struct {
	http.ResponseWriter
	status int
}

func (o *observed) WriteHeader(status int) {
	o.status = status
	o.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// statusOnly takes the header and the status of an answer, and drops the rest.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(p []byte) (int, error) { return len(p), nil }

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

// withRequestID makes every line that is logged with a request's context carry the request's ID.
func withRequestID(h slog.Handler) slog.Handler { return logHandler{h} }

type logHandler struct{ slog.Handler }

func (h logHandler) Handle(ctx context.Context, line slog.Record) error {
	if id := requestID(ctx); id != "" {
		line.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, line)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name)}
}
