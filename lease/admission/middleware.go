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
	// Key returns the key of a request, made of anything in it: an API key, a tenant, a route. If
	// it returns "", the request passes without a decision. Required.
	Key func(*http.Request) string

	// Policy is the name of the limit in the header fields, for clients that meet several limits.
	// Letters, digits, '_', '-' and '.'. Defaults to "default".
	Policy string

	// Refuse writes the answer to a request that was refused. The header fields are set before;
	// Refuse chooses the status: usually 429 if Redis has refused the request, and 503 if Redis has
	// not decided ([Decision.Err] is not nil). Defaults to these statuses and their texts.
	Refuse func(http.ResponseWriter, *http.Request, Decision)
}

// Middleware asks the limiter before the handler gets a request. A request that Redis refuses gets
// 429 Too Many Requests with Retry-After in whole seconds, rounded up; a request that is refused
// because Redis has not decided gets 503 Service Unavailable. If Redis has decided, the answer has
// the fields RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers:
//
//	RateLimit-Policy: "default";q=100;w=60
//	RateLimit: "default";r=42;t=17
//
// Both are lists: each Middleware around a handler adds its limit, under its [HTTP] Policy.
//
// A request with an invalid key gets 400, and one whose context has ended gets 503. Middleware
// returns [lease.ErrInvalid] for an invalid l or h.
func Middleware(l *Limiter, h HTTP) (func(http.Handler) http.Handler, error) {
	if l == nil || l.redis == nil {
		return nil, protocol.Invalid("the Limiter was not made by admission.New")
	}
	if h.Key == nil {
		return nil, protocol.Invalid("Key is nil; set it to a function that returns the key of a request, such as its API key")
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
		header.Add("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", h.Policy, l.cfg.Limit, seconds(l.cfg.Window)))
		header.Add("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", h.Policy, d.Remaining, seconds(d.ResetAfter)))
		if !d.Allowed {
			header.Set("Retry-After", strconv.FormatInt(seconds(d.RetryAfter), 10))
		}
	}
	if !d.Allowed {
		h.Refuse(w, r, d)
	}
	return d.Allowed
}

// seconds rounds up, so that a client that waits for so long has waited long enough.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func refuse(w http.ResponseWriter, _ *http.Request, d Decision) {
	status := http.StatusTooManyRequests
	if d.Err != nil {
		status = http.StatusServiceUnavailable
	}
	http.Error(w, http.StatusText(status), status)
}

const policyLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
