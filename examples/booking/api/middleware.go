package api

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// logged writes a line for each request.
func (a *api) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, seen := time.Now(), &observed{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(seen, r)
		a.Log.InfoContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path,
			"status", seen.status, "took", time.Since(began).Round(time.Microsecond))
	})
}

// recovered answers when a handler panics, which without it would close the connection.
func (a *api) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch cause := recover(); cause {
			case nil:
			case http.ErrAbortHandler:
				panic(cause)
			default:
				a.refuse(w, r, fmt.Errorf("panic: %v", cause))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// bounded ends the context of a request that takes too long. What it had begun is undone, and its lease given back.
func (a *api) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), a.Timeout)
		defer cancel()
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// routed answers with a problem where mux has nothing but a line of text.
func (a *api) routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		answer := &statusOnly{header: w.Header()} // with Allow, if it is the method
		h.ServeHTTP(answer, r)
		problem{Type: "no-route", Title: http.StatusText(answer.status), Status: answer.status}.write(w, r)
	})
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
