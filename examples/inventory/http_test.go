package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestACartFromItsReservationToItsSale(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Redis(t))

	reserved := w.post("/carts", `{"buyer": "ann", "lines": [{"sku": "a", "units": 2}]}`)
	require.Equal(t, http.StatusCreated, reserved.status)
	require.Contains(t, reserved.body, `"state":"RESERVED"`)
	cart := reserved.Get("Location")
	require.Contains(t, w.get("/stock").body, `{"sku":"a","start":3,"remaining":1,"cents":100}`)

	for range 2 {
		paid := w.post(cart+"/pay", "")
		require.Equal(t, http.StatusOK, paid.status)
		require.Contains(t, paid.body, `"state":"SOLD"`)
	}
	require.Contains(t, w.get(cart).body, `"state":"SOLD"`)
}

func TestARefusalSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Redis(t))
	for name, tc := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"no JSON":       {"/carts", `{`, http.StatusBadRequest, "unexpected EOF"},
		"two values":    {"/carts", `{"buyer": "ann"}{}`, http.StatusBadRequest, "more than one"},
		"a brace more":  {"/carts", `{"buyer": "ann"}}`, http.StatusBadRequest, "more than one"},
		"unknown field": {"/carts", `{"byer": "ann"}`, http.StatusBadRequest, "byer"},
		"no buyer":      {"/carts", `{"lines": [{"sku": "a", "units": 1}]}`, http.StatusUnprocessableEntity, "say who buys"},
		"too large":     {"/carts", `{"buyer": "` + strings.Repeat("a", maxBody) + `"}`, http.StatusRequestEntityTooLarge, "too large"},
		"sold out":      {"/carts", `{"buyer": "ann", "lines": [{"sku": "a", "units": 4}]}`, http.StatusConflict, "3 units of a are left"},
		"no cart":       {"/carts/" + uuid.NewString() + "/pay", "", http.StatusNotFound, "no such cart"},
		"no id":         {"/carts/12/pay", "", http.StatusNotFound, "no such cart"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := w.post(tc.path, tc.body)
			require.Equal(t, tc.status, got.status)
			require.Contains(t, got.body, tc.says)
			require.Equal(t, "application/problem+json", got.Header.Get("Content-Type"))
			require.Empty(t, got.Header.Get("Retry-After"))
		})
	}
}

func TestWhoComesWhileOthersAreAtItIsToldWhenToAskAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testenv.Redis(t))
	other, err := w.leases.Acquire(t.Context(), "sku:a")
	require.NoError(t, err)
	defer other.Release(t.Context())

	got := w.post("/carts", `{"buyer": "ann", "lines": [{"sku": "a", "units": 1}]}`)

	require.Equal(t, http.StatusConflict, got.status)
	require.NotEmpty(t, got.Get("Retry-After"))
}

func TestWithoutRedisNothingIsSold(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Dialer: nowhere})
	defer client.Close()
	w := newWorld(t, client)

	got := w.post("/carts", `{"buyer": "ann", "lines": [{"sku": "a", "units": 1}]}`)

	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.Equal(t, "2", got.Get("Retry-After"))
}

func TestEachErrorHasAStatus(t *testing.T) {
	t.Parallel()
	for err, status := range map[error]int{
		shop.ErrExpired:                                      http.StatusGone,
		shop.ErrDeclined:                                     http.StatusPaymentRequired,
		new(pgconn.ConnectError):                             http.StatusServiceUnavailable,
		context.DeadlineExceeded:                             http.StatusServiceUnavailable,
		&lease.RefusedError{Code: "MISCONF"}:                 http.StatusServiceUnavailable,
		errors.Join(&fencedb.StaleError{}, lease.ErrExpired): http.StatusConflict,
		fencedb.ErrBusy:                                      http.StatusConflict,
		fencedb.ErrLeaseOver:                                 http.StatusConflict,
		lease.ErrUnreachable:                                 http.StatusServiceUnavailable,
		io.ErrUnexpectedEOF:                                  http.StatusServiceUnavailable,
		errors.New("a bug"):                                  http.StatusInternalServerError,
		fencedb.ErrCommitted:                                 http.StatusInternalServerError, // "look at the cart"
	} {
		require.Equal(t, status, problemOf(err).Status, err)
	}
	require.Equal(t, http.StatusConflict, problemOf(errors.Join(context.Canceled, lease.ErrExpired)).Status, "the bank took too long")
	unknown := problemOf(errors.Join(lease.ErrUnreachable, fencedb.ErrCommitUnknown))
	require.Equal(t, http.StatusServiceUnavailable, unknown.Status)
	require.Contains(t, unknown.Title, "Not known")
	for left, seconds := range map[time.Duration]string{0: "1", 1200 * time.Millisecond: "2"} {
		w := httptest.NewRecorder()
		held := func(context.Context, http.ResponseWriter, *http.Request) (any, error) {
			return nil, &lease.HeldError{RetryAfter: left}
		}
		answer(held, slog.New(slog.DiscardHandler))(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, seconds, w.Header().Get("Retry-After"))
	}
}

// world is the API of a shop with three of a.
type world struct {
	*testing.T
	leases *lease.Issuer
	url    string
}

func newWorld(t *testing.T, client redis.UniversalClient) *world {
	db := testenv.Postgres(t)
	plain := stdlib.OpenDBFromPool(db)
	require.NoError(t, errors.Join(shop.Migrate(t.Context(), plain), plain.Close()))
	namespace := testenv.Namespace(t)
	leases, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: namespace})
	require.NoError(t, err)
	s := shop.New(leases, db, honest{}, time.Hour, 5*time.Second)
	stocked := fencedb.NewGrant("sku:a", 1, uuid.New(), fencedb.NoEnd)
	_, err = fencedb.Exec(t.Context(), db, stocked, `INSERT INTO stock (sku, start, remaining, cents) VALUES ('a', 3, 3, 100)`)
	require.NoError(t, err)

	server := httptest.NewServer(routes(s, slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	return &world{t, leases, server.URL}
}

type answered struct {
	http.Header
	status int
	body   string
}

func (w *world) get(path string) answered        { return w.do(http.MethodGet, path, "") }
func (w *world) post(path, body string) answered { return w.do(http.MethodPost, path, body) }

func (w *world) do(method, path, body string) answered {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), method, w.url+path, strings.NewReader(body))
	require.NoError(w, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(w, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(w, err)
	return answered{response.Header, response.StatusCode, string(text)}
}

// honest is a bank that always has the money.
type honest struct{}

func (honest) Charge(context.Context, uuid.UUID, int64) error { return nil }
func (honest) Refund(context.Context, uuid.UUID) error        { return nil }

func nowhere(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("no such network")
}
