// Package ready reports to a load balancer or an orchestrator whether this process can acquire
// leases and commit fenced writes now.
//
//	handler, err := ready.New(ready.Config{Checks: []ready.Check{
//		ready.Leases(issuer),
//		ready.Fences(stdlib.OpenDBFromPool(pool)),
//	}})
//	...
//	mux.Handle("/readyz", handler)
//
// # Failing closed
//
// The answer is 200 only if every check returns nil in time. It is 503 with Retry-After if a check
// returns an error, panics, takes longer than [Config.Timeout], or still hangs from an earlier
// request. The first request waits for the first results.
//
//	{"ready":false,"checks":{"leases":"ok","fences":"failed"}}
//
// The answer has no reasons, because anybody may ask. [Config.OnFailure] receives them.
//
// # Many requests
//
// The checks run in parallel, at most once at a time and once in [Config.MaxAge], for all requests
// together. They do not end with the request that started them, because other requests wait for
// them too.
//
// # What it is not for
//
// Liveness. A restart does not help a process that is not ready because Redis does not answer. Use
// another check for the liveness probe.
package ready

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// Config says what to check and how to answer.
type Config struct {
	// Checks must all pass. Required: one at least, each with a name of its own.
	Checks []Check

	// Timeout bounds each check. Choose less than the timeout of the requests. Defaults to 2s.
	Timeout time.Duration

	// MaxAge is how long a result is reused. Defaults to 1s.
	MaxAge time.Duration

	// OnFailure is called with the reason when a check fails: once for each run of the checks, one
	// call at a time. The answer waits for it. Defaults to nothing.
	OnFailure func(name string, err error)
}

// New returns the handler, for GET and HEAD, or an error that names what is wrong with cfg.
func New(cfg Config) (http.Handler, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Second)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, time.Second)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &handler{cfg: cfg, turn: make(chan struct{}, 1), busy: make([]atomic.Bool, len(cfg.Checks))}, nil
}

func (c Config) check() error {
	switch {
	case len(c.Checks) == 0:
		return errors.New("ready: there are no Checks; give one at least")
	case c.Timeout < 0:
		return fmt.Errorf("ready: Timeout (%v) must be positive", c.Timeout)
	case c.MaxAge < 0:
		return fmt.Errorf("ready: MaxAge (%v) must be positive", c.MaxAge)
	}
	names := make(map[string]bool)
	for n, check := range c.Checks {
		switch {
		case check.Name == "":
			return fmt.Errorf("ready: Checks[%d] has no Name", n)
		case check.Run == nil:
			return fmt.Errorf("ready: check %q has no Run", check.Name)
		case names[check.Name]:
			return fmt.Errorf("ready: two checks are called %q", check.Name)
		}
		names[check.Name] = true
	}
	return nil
}

type handler struct {
	cfg  Config
	busy []atomic.Bool // for each check: whether it runs

	turn chan struct{} // full while the checks run; other requests wait for the same answer
	last answer        // guarded by turn; its map is never changed
	till time.Time     // last may be used until then; guarded by turn
}

type answer struct {
	Ready  bool              `json:"ready"`
	Checks map[string]string `json:"checks"`
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	a := h.answer()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !a.Ready {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((h.cfg.MaxAge+time.Second-1)/time.Second), 10))
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(a) // fails if the client is gone or asked with HEAD
}

// answer returns that of the last run of the checks, or of a new one.
func (h *handler) answer() answer {
	h.turn <- struct{}{}
	defer func() { <-h.turn }()
	if time.Now().Before(h.till) {
		return h.last
	}
	results := make([]error, len(h.cfg.Checks))
	var all sync.WaitGroup
	for n := range results {
		all.Go(func() { results[n] = h.run(n) })
	}
	all.Wait()
	a := answer{Ready: true, Checks: make(map[string]string)}
	for n, err := range results {
		name := h.cfg.Checks[n].Name
		a.Checks[name] = "ok"
		if err != nil {
			a.Ready, a.Checks[name] = false, "failed"
		}
	}
	h.last, h.till = a, time.Now().Add(h.cfg.MaxAge) // first, since OnFailure may panic
	for n, err := range results {
		if err != nil && h.cfg.OnFailure != nil {
			h.cfg.OnFailure(h.cfg.Checks[n].Name, err)
		}
	}
	return a
}

// run does not wait for a check that ignores the end of its context. It does not start that check
// again until it has ended.
func (h *handler) run(n int) error {
	if h.busy[n].Swap(true) {
		return errors.New("ready: the check still hangs from an earlier request")
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), h.cfg.Timeout, errors.New("ready: no answer in time"))
	defer cancel()
	result := make(chan error, 1)
	go func() {
		err := errors.New("ready: the check has ended its goroutine")
		defer func() {
			if r := recover(); r != nil { // nothing else recovers it in this goroutine
				err = fmt.Errorf("ready: the check panicked: %v", r)
			}
			h.busy[n].Store(false)
			result <- err
		}()
		err = h.cfg.Checks[n].Run(ctx)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Check is a condition for this process to work.
type Check struct {
	Name string // in the answer

	// Run returns nil if the condition holds. ctx ends after [Config.Timeout]; a later result does
	// not count.
	Run func(ctx context.Context) error
}

// Leases checks with [lease.Issuer.Check] that leases can be acquired and kept. Warnings do not
// count.
func Leases(issuer *lease.Issuer) Check {
	return Check{"leases", func(ctx context.Context) error {
		_, err := issuer.Check(ctx)
		return err
	}}
}

// mayEnter returns the statement that lets this role enter, if there is fencedb.enter and the role
// may not call it. It asks the catalog, which every role may read.
const mayEnter = `SELECT pg_catalog.format('SELECT fencedb.allow(%L)', pg_catalog.quote_ident(current_user))
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
WHERE n.nspname OPERATOR(pg_catalog.=) 'fencedb' AND p.proname OPERATOR(pg_catalog.=) 'enter'
  AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')`

// Fences checks that fenced writes can commit: Postgres answers, takes writes, and has every
// migration that this program knows, and the role of db may enter fences. With pgx, pass
// stdlib.OpenDBFromPool(pool).
func Fences(db *sql.DB) Check {
	return Check{"fences", func(ctx context.Context) error {
		if db != nil { // of which Status says what to do
			var allow string
			switch err := db.QueryRowContext(ctx, mayEnter).Scan(&allow); {
			case err == nil:
				return fmt.Errorf("ready: the role of this program may not enter fences; let the role that migrated run %s", allow)
			case !errors.Is(err, sql.ErrNoRows):
				return err
			}
		}
		steps, err := migrations.Status(ctx, db)
		switch {
		case err != nil:
			return err
		case slices.ContainsFunc(steps, func(step migrations.Migration) bool { return !step.Applied }):
			return errors.New("ready: the schema fencedb is not up to date; run migrations.Up or the command fencedb migrate")
		}
		var readOnly bool // always true on a standby
		err = db.QueryRowContext(ctx, "SELECT current_setting('transaction_read_only')::bool").Scan(&readOnly)
		if err == nil && readOnly {
			return errors.New("ready: postgres is read-only: a standby, or set so")
		}
		return err
	}}
}
