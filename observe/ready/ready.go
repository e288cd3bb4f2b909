package ready

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
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
