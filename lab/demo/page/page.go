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
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lab/demo/service"
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
	guarded := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		if host != "localhost" && !net.ParseIP(host).IsLoopback() { // a page of another site may have its name resolve to this machine (DNS rebinding)
			http.Error(w, "This page is for this machine: open it by 127.0.0.1 or localhost.", http.StatusMisdirectedRequest)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store") // the next run of the program may have other files
		guarded.ServeHTTP(w, r)
	})
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// button answers 204 when it is done, 409 with a sentence when it cannot be done now, 500 when it
// failed.
func button(do Do) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := do(r.Context(), r.PathValue("action"), r.URL.Query().Get("with"))
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		status := http.StatusInternalServerError
		if errors.As(err, new(Refusal)) {
			status = http.StatusConflict
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
	}
}

// events streams the journal (https://html.spec.whatwg.org/multipage/server-sent-events.html). The
// events are
//
//	hello   {"now": ms}             first of all; begin anew if you know anything
//	record  a Record        its id is the journal's, a dash, its number
//	state   a State
//	caught-up                       after the records that were there already
//
// A reader that comes back with Last-Event-ID of this journal goes on after it, and gets no hello.
func events(j *Journal) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "retry: 1000\n\n") // milliseconds until a reader that lost the connection comes back
		journal, number, _ := strings.Cut(r.Header.Get("Last-Event-ID"), "-")
		seen, err := strconv.Atoi(number) // the last record that the reader knows
		if journal != j.ID || err != nil {
			seen = 0
			send(w, "hello", "", map[string]int64{"now": time.Now().UnixMilli()})
		}
		version := int64(0) // of no state
		for first := true; ; first = false {
			news := j.After(seen)
			for _, record := range news.Records {
				seen = record.Seq
				send(w, "record", fmt.Sprintf("%s-%d", j.ID, seen), record)
			}
			if news.Version != version {
				version = news.Version
				send(w, "state", "", news.State)
			}
			if first {
				send(w, "caught-up", "", struct{}{})
			}
			if http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-news.More:
			case <-r.Context().Done():
				return
			}
		}
	}
}

// send writes one event. JSON has no line breaks, so it is one line of data.
func send(w io.Writer, event, id string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic("bug: an event that is not JSON: " + err.Error())
	}
	if id != "" {
		_, _ = fmt.Fprintf(w, "id: %s\n", id)
	}
	_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text)
}

// Run serves the page on a port of the loopback, 0 for a free one, until ctx ends, and returns when
// nothing of it is left. Nobody else can reach it: the buttons kill processes and empty servers.
// The Redis of env is private. out is told the addresses.
func Run(ctx context.Context, env *testenv.Env, port int, out io.Writer) error {
	logging.Disable() // the Redis client would write that a Redis is down, which is meant to be
	listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		return fmt.Errorf("-port: %w", err)
	}
	defer listener.Close()
	j := NewJournal()
	servers := service.Servers{PostgresURL: env.PostgresURL, RedisURL: env.RedisURL}
	s, err := Open(ctx, Config{servers, env.StopRedis, env.StartRedis}, j)
	if err != nil {
		return err
	}
	defer s.Close()

	fmt.Fprintf(out, "\n  http://%s\n\n", listener.Addr())
	fmt.Fprintf(out, "  Look for yourself:  psql '%[1]s'\n                      redis-cli -u %[2]s\n             "+
		"         go run ./cmd/fencedb watch --redis %[2]s\n\n  Ctrl-C ends it all.\n", env.PostgresURL, env.RedisURL)
	server := &http.Server{
		Handler:           Handler(j, s.Do),
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends the streams
		ReadHeaderTimeout: 5 * time.Second,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
