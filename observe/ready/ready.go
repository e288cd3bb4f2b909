// Package ready answers a load balancer's or an orchestrator's question whether this process can do its work now: whether
// leases can be had and fenced writes can commit.
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
// The answer is 200 only if every check has returned nil in time. One that returns an error, panics, takes longer than
// [Config.Timeout], or still hangs from an earlier question makes it 503 with Retry-After. There is no state before the first
// answer: whoever asks first waits for it.
//
//	{"ready":false,"checks":{"leases":"ok","fences":"failed"}}
//
// Nothing else is told, because who asks is not known here; [Config.Failed] hears the reasons, and [Config.Details] shows them.
//
// # Many questions
//
// The checks run side by side, at most once at a time and once in [Config.Fresh], however many ask; all of them get the same
// answer. They do not end with the request that caused them, because others wait for them too.
//
// # What it is not for
//
// Liveness. A process that is not ready because Redis is away does not get better by being restarted; let the liveness probe ask
// something else.
package ready

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// ErrInvalid: a [Config] was refused. The message names the field.
var ErrInvalid = errors.New("ready: invalid")

// Config says what is checked and how it is told.
type Config struct {
	// Checks must all pass. At least one, each with a name of its own.
	Checks []Check

	// Timeout bounds each check. Less than the patience of who asks, who otherwise learns nothing but that. Defaults to 2s.
	Timeout time.Duration

	// Fresh is for how long an answer is given again. Defaults to 1s.
	Fresh time.Duration

	// Failed is called with the reason each time that a check fails, not each time that somebody asks. It may be called from
	// several goroutines at once. Defaults to nothing.
	Failed func(name string, err error)

	// Details puts reasons into the answer. They name hosts, roles and tables: only where strangers cannot ask. Defaults to false.
	Details bool
}

// New returns the handler, for GET and HEAD. Errors are [ErrInvalid].
func New(cfg Config) (http.Handler, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * time.Second
	}
	if cfg.Fresh == 0 {
		cfg.Fresh = time.Second
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &handler{cfg: cfg, probes: newProbes(cfg)}, nil
}

func (c Config) check() error {
	switch {
	case len(c.Checks) == 0:
		return fmt.Errorf("%w: no Checks; what is always ready needs no handler", ErrInvalid)
	case c.Timeout < 0:
		return fmt.Errorf("%w: Timeout (%v) must be positive", ErrInvalid, c.Timeout)
	case c.Fresh < 0:
		return fmt.Errorf("%w: Fresh (%v) must be positive", ErrInvalid, c.Fresh)
	}
	names := make(map[string]bool)
	for n, check := range c.Checks {
		switch {
		case check.Name == "":
			return fmt.Errorf("%w: Checks[%d] has no Name", ErrInvalid, n)
		case check.Run == nil:
			return fmt.Errorf("%w: check %q has no Run", ErrInvalid, check.Name)
		case names[check.Name]:
			return fmt.Errorf("%w: two checks are called %q", ErrInvalid, check.Name)
		}
		names[check.Name] = true
	}
	return nil
}

type handler struct {
	cfg    Config
	probes *probes
}

// answer is what is told, in JSON.
type answer struct {
	Ready   bool              `json:"ready"`
	Checks  map[string]string `json:"checks"`
	Reasons map[string]string `json:"reasons,omitempty"`
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	a := h.judge(h.probes.results())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !a.Ready {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((h.cfg.Fresh+time.Second-1)/time.Second), 10))
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(a) // whoever asked has gone, or asked with HEAD
}

func (h *handler) judge(results []error) answer {
	a := answer{Ready: true, Checks: make(map[string]string), Reasons: make(map[string]string)}
	for n, err := range results {
		name := h.cfg.Checks[n].Name
		a.Checks[name] = "ok"
		if err == nil {
			continue
		}
		a.Ready, a.Checks[name] = false, "failed"
		if h.cfg.Details {
			a.Reasons[name] = err.Error()
		}
	}
	return a
}

// Check is something without which this process cannot work.
type Check struct {
	Name string // what the answer calls it

	// Run returns nil if it is there. ctx ends after [Config.Timeout]; an answer that comes later does not count.
	Run func(ctx context.Context) error
}

// Leases checks that leases can be had and kept, with [lease.Issuer.Check]. Warnings do not count.
func Leases(issuer *lease.Issuer) Check {
	return Check{"leases", func(ctx context.Context) error {
		_, err := issuer.Check(ctx)
		return err
	}}
}

var (
	// ErrNotMigrated: the database lacks a migration that this program knows.
	ErrNotMigrated = errors.New("ready: the schema fencedb is not up to date; migrations.Up or the command fencedb migrate brings it there")

	// ErrReadOnly: the database takes no writes; it is a standby, or set to read-only.
	ErrReadOnly = errors.New("ready: postgres is read-only")
)

// Fences checks that fenced writes can commit: Postgres answers, takes writes, and has every migration that this program
// knows. With pgx, pass stdlib.OpenDBFromPool(pool).
func Fences(db *sql.DB) Check {
	return Check{"fences", func(ctx context.Context) error {
		pending, err := migrations.Pending(ctx, db)
		switch {
		case err != nil:
			return err
		case pending:
			return ErrNotMigrated
		}
		return takesWrites(ctx, db)
	}}
}

func takesWrites(ctx context.Context, db *sql.DB) error {
	var readOnly bool // true of a standby whatever is set there
	err := db.QueryRowContext(ctx, "SELECT current_setting('transaction_read_only')::bool").Scan(&readOnly)
	if err == nil && readOnly {
		return ErrReadOnly
	}
	return err
}
