package fencedbtest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

var errTaken = errors.New("the table is taken")

// service is the code under test. It reads, decides, and writes.
type service struct {
	db   *pgxpool.Pool
	desk *guard.Desk
}

func (d service) book(ctx context.Context, guest string) error {
	return d.desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
		if err := d.free(ctx); err != nil {
			return err
		}
		return h.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE bookings SET guest = $1 WHERE table_id = 12`, guest)
			return err
		})
	})
}

// bookWithoutTheFence relies on the lease alone.
func (d service) bookWithoutTheFence(ctx context.Context, guest string) error {
	return d.desk.Do(ctx, "table:12", func(ctx context.Context, _ *guard.Holder) error {
		if err := d.free(ctx); err != nil {
			return err
		}
		_, err := d.db.Exec(ctx, `UPDATE unprotected SET guest = $1 WHERE table_id = 12`, guest)
		return err
	})
}

func (d service) free(ctx context.Context) error {
	var free bool
	err := d.db.QueryRow(ctx, `SELECT guest = '' FROM bookings WHERE table_id = 12`).Scan(&free)
	if err == nil && !free {
		err = errTaken
	}
	return err
}

// Ann's process is stopped between its decision and its write. Meanwhile Bob gets the table.
func Example() {
	t := begin("TestABookingSurvivesAZombie") // in your tests, the *testing.T
	defer t.end()
	leases := fencedbtest.NewIssuer(t, lease.Config{})
	postgres := fencedbtest.NewPostgres(t, database(t)) // in your tests, the URL of your database
	pool := poolOf(t, postgres.URL())

	var unchanged func()
	postgres.Pause("UPDATE bookings", func() {
		fencedbtest.Overtake(t, leases, pool, "table:12", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE bookings SET guest = 'Bob' WHERE table_id = 12`)
			return err
		})
		unchanged = fencedbtest.Snapshot(t, pool, "bookings")
	})
	err := service{pool, guard.New(leases.Issuer, pool)}.book(t.Context(), "Ann")

	fencedbtest.Refused(t, err)
	unchanged()
	fmt.Println("Ann is told to try again:", lease.IsLost(err))
	// Output:
	// Ann is told to try again: true
	// PASS: TestABookingSurvivesAZombie
}

// The same test of code that relies on the lease alone.
func Example_withoutTheFence() {
	t := begin("TestABookingSurvivesAZombie")
	defer t.end()
	leases := fencedbtest.NewIssuer(t, lease.Config{})
	postgres := fencedbtest.NewPostgres(t, database(t))
	pool := poolOf(t, postgres.URL())

	var unchanged func()
	postgres.Pause("UPDATE unprotected", func() {
		fencedbtest.Overtake(t, leases, pool, "table:12", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE unprotected SET guest = 'Bob' WHERE table_id = 12`)
			return err
		})
		unchanged = fencedbtest.Snapshot(t, pool, "unprotected")
	})
	err := service{pool, guard.New(leases.Issuer, pool)}.bookWithoutTheFence(t.Context(), "Ann")

	fencedbtest.Refused(t, err)
	unchanged()
	// Output:
	// fencedbtest: want a write that the fence has refused, got: <nil>
	// fencedbtest: unprotected was written to
	// before:
	//   (12,Bob)
	// now:
	//   (12,Ann)
	// FAIL: TestABookingSurvivesAZombie
}
