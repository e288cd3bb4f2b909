// Package page shows leases, tokens and refusals as they happen, on a page that it serves to this
// machine: three worker processes, a Redis and a Postgres, and buttons that pause, kill, empty and
// restart them. It starts a Redis of its own, which the page may flush and restart, finds or starts
// a Postgres, and leaves nothing behind.
//
// [Stage] has the processes and the servers; [Journal] keeps what happened and says why; [Handler]
// serves static files, a stream of what happens, and the buttons. The buttons do harm, on purpose.
// So the page is for this machine alone, and only the page itself may press them: requests must
// name a loopback host (a foreign name that resolves to this machine does not), and come from the
// same origin.
package page

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"net"
	"net/http"
)

//go:embed *.html *.css *.js *.svg
var files embed.FS

// Do is what a button does, as Stage.Do.
type Do func(ctx context.Context, action, with string) error

// Handler serves the page. Streams end with the context of their requests.
func Handler(j *Journal, do Do) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.Handle("GET /events", events(j))
	mux.Handle("POST /do/{action}", button(do))
	return onlyLoopback(headers(http.NewCrossOriginProtection().Handler(mux)))
}

// onlyLoopback keeps out pages of other sites that have their name resolve to this machine (DNS
// rebinding).
func onlyLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) {
			http.Error(w, "This page is for this machine: open it by 127.0.0.1 or localhost.", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store") // the next run of the program may have other files
		next.ServeHTTP(w, r)
	})
}

// button answers 204 when it is done, 409 with a sentence when it cannot be done now, 500 when it
// failed.
func button(do Do) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := do(r.Context(), r.PathValue("action"), r.URL.Query().Get("with"))
		switch {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, ErrRefused):
			answer(w, http.StatusConflict, err)
		default:
			answer(w, http.StatusInternalServerError, err)
		}
	}
}

func answer(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
