package admission_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
)

func apiKey(r *http.Request) string { return r.Header.Get("X-Api-Key") }

// site is a handler behind the middleware, and how often it was reached.
type site struct {
	http.Handler
	served int
}

func newSite(t *testing.T, l *admission.Limiter, h admission.HTTP) *site {
	t.Helper()
	s := &site{}
	limit, err := admission.Middleware(l, h)
	require.NoError(t, err)
	s.Handler = limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { s.served++ }))
	return s
}

func (s *site) get(key string) *httptest.ResponseRecorder {
	return s.getWith(context.Background(), key)
}

func (s *site) getWith(ctx context.Context, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", key)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestMiddleware(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := newSite(t, w.limiter(t, admission.Config{Limit: 2, Window: 1500 * ms}), admission.HTTP{Key: apiKey})

		got := s.get("ann")
		require.Equal(t, http.StatusOK, got.Code)
		require.Equal(t, `"default";q=2;w=2`, got.Header().Get("RateLimit-Policy"))
		require.Equal(t, `"default";r=1;t=2`, got.Header().Get("RateLimit"))
		require.Empty(t, got.Header().Get("Retry-After"))
		require.Equal(t, `"default";r=0;t=2`, s.get("ann").Header().Get("RateLimit"))

		got = s.get("ann")
		require.Equal(t, http.StatusTooManyRequests, got.Code)
		require.Equal(t, "2", got.Header().Get("Retry-After"), "rounded up")
		require.Equal(t, `"default";r=0;t=2`, got.Header().Get("RateLimit"))
		require.Equal(t, 2, s.served)

		require.Equal(t, http.StatusOK, s.get("bob").Code)
		require.Equal(t, http.StatusOK, s.get("").Code, "nobody in particular")
		require.Empty(t, s.get("").Header().Get("RateLimit"))

		time.Sleep(2 * time.Second)
		require.Equal(t, http.StatusOK, s.get("ann").Code)
	})
}

func TestMiddlewareWithoutRedis(t *testing.T) {
	for policy, want := range map[admission.Policy]int{
		admission.FailOpen: http.StatusOK, admission.FailClosed: http.StatusServiceUnavailable} {
		inBubble(t, func(t *testing.T, w *world) {
			w.faults.Always(faulty.LoseRequest)
			got := newSite(t, w.limiter(t, admission.Config{Limit: 1, Window: time.Second, OnError: policy}), admission.HTTP{Key: apiKey}).get("ann")
			require.Equal(t, want, got.Code)
			require.Empty(t, got.Header().Get("RateLimit"))
			require.Empty(t, got.Header().Get("Retry-After"))
		})
	}
}

func TestMiddlewareTakesNoKeyThatCannotBe(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		limiter := w.limiter(t, admission.Config{Limit: 1, Window: time.Second, OnError: admission.FailOpen})
		s := newSite(t, limiter, admission.HTTP{Key: apiKey})
		require.Equal(t, http.StatusBadRequest, s.get(strings.Repeat("x", admission.MaxKey+1)).Code)
		require.Zero(t, s.served)
	})
}

// The client may still be there: an outer handler's deadline ends the context too.
func TestMiddlewareDoesNotServeWhenTheContextIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		limiter := w.limiter(t, admission.Config{Limit: 1, Window: time.Second, OnError: admission.FailOpen})
		s := newSite(t, limiter, admission.HTTP{Key: apiKey})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := s.getWith(ctx, "ann")
		require.Equal(t, http.StatusServiceUnavailable, got.Code)
		require.Empty(t, got.Header().Get("RateLimit"))
		require.Zero(t, s.served)
	})
}

func TestMiddlewareOfOnesOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s := newSite(t, w.limiter(t, admission.Config{Limit: 1, Window: time.Second}), admission.HTTP{
			Key:    apiKey,
			Policy: "per-key.v1",
			Refuse: func(w http.ResponseWriter, _ *http.Request, d admission.Decision) {
				require.False(t, d.Allowed)
				w.WriteHeader(http.StatusTeapot)
			},
		})
		require.Equal(t, `"per-key.v1";q=1;w=1`, s.get("ann").Header().Get("RateLimit-Policy"))
		require.Equal(t, http.StatusTeapot, s.get("ann").Code)
	})
}

func TestEveryLimitIsInTheHeaderFields(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		inner := newSite(t, w.limiter(t, admission.Config{Limit: 9, Window: time.Minute}), admission.HTTP{
			Key: apiKey, Policy: "per-minute",
		})
		outer, err := admission.Middleware(w.limiter(t, admission.Config{Limit: 2, Window: time.Second}), admission.HTTP{
			Key: func(r *http.Request) string { return "burst " + apiKey(r) }, Policy: "burst",
		})
		require.NoError(t, err)
		both := &site{Handler: outer(inner)}

		got := both.get("ann").Header()
		require.Equal(t, []string{`"burst";q=2;w=1`, `"per-minute";q=9;w=60`}, got.Values("RateLimit-Policy"))
		require.Len(t, got.Values("RateLimit"), 2)
		require.Contains(t, got.Values("RateLimit")[0], `"burst";r=1;`)
		require.Contains(t, got.Values("RateLimit")[1], `"per-minute";r=8;`)
	})
}

func TestMiddlewareBadInput(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l := w.limiter(t, admission.Config{Limit: 1, Window: time.Second})
		for name, h := range map[string]admission.HTTP{"no key": {}, "quote": {Key: apiKey, Policy: `a"b`}, "newline": {Key: apiKey, Policy: "a\nb"}} {
			_, err := admission.Middleware(l, h)
			require.ErrorIs(t, err, lease.ErrInvalid, name)
		}
		for _, made := range []*admission.Limiter{nil, new(admission.Limiter)} {
			_, err := admission.Middleware(made, admission.HTTP{Key: apiKey})
			require.ErrorIs(t, err, lease.ErrInvalid)
		}
	})
}
