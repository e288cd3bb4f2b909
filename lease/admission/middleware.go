package admission

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// HTTP is how a [Middleware] behaves.
type HTTP struct {
	// Key names who is limited, by anything in the request: an API key, a tenant, a route. The
	// empty string lets the request pass without a decision. Required.
	Key func(*http.Request) string

	// Policy is the name under which the limit is announced, for clients that meet several.
	// Letters, digits, '_', '-' and '.'. Defaults to "default".
	Policy string

	// Refuse writes the answer to a request that was refused. The header fields are set before; it
	// chooses the status: 429 if Redis has refused it, and 503 if Redis has not decided
	// ([Decision.Err]). Defaults to that status and its text.
	Refuse func(http.ResponseWriter, *http.Request, Decision)
}

// Middleware asks the limiter before the handler sees a request. A refused request gets 429 Too
// Many Requests with Retry-After in whole seconds, rounded up; one that is refused because Redis
// has not decided gets 503 Service Unavailable. All that Redis has decided get the fields
// RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers:
//
//	RateLimit-Policy: "default";q=100;w=60
//	RateLimit: "default";r=42;t=17
//
// A request whose key is not valid is answered with 400, and one whose context is over with 503.
// Middleware fails with [lease.ErrInvalid] if h cannot work.
func Middleware(l *Limiter, h HTTP) (func(http.Handler) http.Handler, error) {
	if l == nil || l.redis == nil {
		return nil, protocol.Invalid("the Limiter was not made by admission.New")
	}
	if h.Key == nil {
		return nil, protocol.Invalid("Key is nil; say who is limited, such as by an API key in the request")
	}
	for _, c := range h.Policy {
		if !strings.ContainsRune(policyLetters, c) {
			return nil, protocol.Invalid("Policy %q contains %q; use letters, digits, '_', '-' and '.'", h.Policy, c)
		}
	}
	h.Policy = cmp.Or(h.Policy, "default")
	if h.Refuse == nil {
		h.Refuse = refuse
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if l.admit(w, r, h) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// admit answers the request unless it is admitted.
func (l *Limiter) admit(w http.ResponseWriter, r *http.Request, h HTTP) bool {
	key := h.Key(r)
	if key == "" {
		return true
	}
	d, err := l.Allow(r.Context(), key)
	switch {
	case errors.Is(err, lease.ErrInvalid):
		http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
		return false
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable) // the client has gone, or a handler outside has ended the context
		return false
	}
	if d.Err == nil {
		header := w.Header()
		header.Set("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", h.Policy, l.cfg.Limit, seconds(l.cfg.Window)))
		header.Set("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", h.Policy, d.Remaining, seconds(d.ResetAfter)))
		if !d.Allowed {
			header.Set("Retry-After", strconv.FormatInt(seconds(d.RetryAfter), 10))
		}
	}
	if !d.Allowed {
		h.Refuse(w, r, d)
	}
	return d.Allowed
}

// seconds rounds up, so that whoever waits that long has waited long enough.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func refuse(w http.ResponseWriter, _ *http.Request, d Decision) {
	status := http.StatusTooManyRequests
	if d.Err != nil {
		status = http.StatusServiceUnavailable
	}
	http.Error(w, http.StatusText(status), status)
}

const policyLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
