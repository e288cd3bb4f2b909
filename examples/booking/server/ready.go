package server

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/examples/booking/store"
	"github.com/fencedb/fencedb/observe/ready"
)

var errNotMigrated = errors.New("the bookings are not migrated; run this program with the argument migrate")

// readiness answers whether tables can be booked now: Redis gives leases, Postgres takes fenced writes, and all tables are there.
func readiness(service *booking.Service, db *sql.DB, log *slog.Logger) (http.Handler, error) {
	bookings := ready.Check{Name: "bookings", Run: func(ctx context.Context) error {
		pending, err := store.Pending(ctx, db)
		if err == nil && pending {
			err = errNotMigrated
		}
		return err
	}}
	return ready.New(ready.Config{
		Checks: []ready.Check{ready.Leases(service.Leases()), ready.Fences(db), bookings},
		Failed: func(name string, err error) { log.Warn("not ready", "check", name, "error", err) },
	})
}
