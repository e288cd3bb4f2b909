// Package api is the booking service over HTTP: JSON in, JSON out, problems as RFC 9457 has them. The file openapi.yaml, which
// it serves, is its contract.
//
// What became of a request is in the status:
//
//   - 2xx: done. The same Idempotency-Key gets the same answer again.
//   - 4xx: refused, and nothing was written. With Retry-After it may be sent again as it is.
//   - 503: a store did not answer. Unless the problem says otherwise nothing was written; with the same Idempotency-Key it
//     may be sent again without a second thought.
package api

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// Desk is what takes the requests: *booking.Service.
type Desk interface {
	Reserve(ctx context.Context, key string, b booking.Booking) (booking.Answer, error)
	Get(ctx context.Context, id uuid.UUID) (booking.Booking, error)
	List(ctx context.Context, table int, from time.Time) (page []booking.Booking, next time.Time, err error)
	Cancel(ctx context.Context, id uuid.UUID) error
}

// Config is what the API is made of.
type Config struct {
	Desk    Desk
	Ready   http.Handler  // answers GET /readyz
	Timeout time.Duration // of one request; then its context ends, and with it the waiting and the work
	Log     *slog.Logger  // a line for each request; see [LogRequestID]
}

//go:embed openapi.yaml
var openAPI []byte

// New returns the handler of the whole service.
func New(cfg Config) http.Handler {
	a := &api{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tables/{table}/bookings", a.reserve)
	mux.HandleFunc("GET /tables/{table}/bookings", a.list)
	mux.HandleFunc("GET /bookings/{id}", a.get)
	mux.HandleFunc("DELETE /bookings/{id}", a.cancel)
	mux.HandleFunc("GET /healthz", live)
	mux.Handle("GET /readyz", cfg.Ready)
	mux.HandleFunc("GET /openapi.yaml", contract)
	return a.identified(a.logged(a.recovered(a.bounded(a.routed(mux)))))
}

type api struct{ Config }

// live says that the process runs. Whether it can work is for /readyz to say: a restart does not bring a store back.
func live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
}

func contract(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI) // the client may have gone
}
