// Package fencedbtest is for tests of code that writes behind the fence. At a point that the test
// chooses, it causes stale writers, lost answers and expired leases.
//
//	leases := fencedbtest.NewIssuer(t, lease.Config{})        // without a server; IssuerOn takes yours
//	postgres := fencedbtest.NewPostgres(t, os.Getenv("TEST_POSTGRES_URL"))
//	pool, err := pgxpool.New(ctx, postgres.URL())             // for the code under test
//	desk := booking.New(guard.New(leases.Issuer, pool))
//
//	var unchanged func()
//	postgres.Pause("INSERT INTO bookings", func() {           // the code has decided, and not written yet
//		fencedbtest.Overtake(t, leases, pool, "table:12")     // another holder takes over
//		unchanged = fencedbtest.Snapshot(t, pool, "bookings")
//	})
//	err = desk.Book(ctx, 12, "Ann")
//	fencedbtest.Refused(t, err)
//	unchanged()
//
// The Postgres is your own, with the schema of package migrations: fences are SQL, which nothing
// simulates.
package fencedbtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Overtake makes the holder of the resource stale, as if its lease had expired while it was
// stopped: another holder acquires the resource, runs the writes in one transaction behind the
// fence, and ends. The former holder learns of this at its next renewal. Without writes, the new
// token is only sealed. Overtake returns the grant of the other holder, for later writes.
//
// While a transaction of the former holder is open, nobody else can enter: then the test fails
// after five seconds, and names the session. The usual reason is a Pause within that transaction.
//
// Nobody may wait for the resource meanwhile: the first waiter would get it at the same time, and
// if it enters first, the test fails and says so.
//
// issuer is a *lease.Issuer or an *Issuer that shares its resources with the code under test.
func Overtake(t testing.TB, issuer interface {
	Revoke(ctx context.Context, resource string) (*lease.Revocation, error)
}, db fencedb.DB, resource string, writes ...func(tx pgx.Tx) error) fencedb.Grant {
	t.Helper()
	revoked, err := issuer.Revoke(t.Context(), resource)
	if err != nil {
		t.Fatalf("fencedbtest: %q was not taken over: %v", resource, err)
	}
	other := fencedb.NewGrant(resource, revoked.Token(), revoked.LeaseID(), fencedb.NoEnd)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err = fencedb.Tx(ctx, db, other, func(tx pgx.Tx) error {
		for _, write := range writes {
			if err := write(tx); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, fencedb.ErrBusy):
		t.Fatalf("fencedbtest: nobody can take %q over while a transaction of its holder is open; stop the code before that transaction enters: Pause at its first statement, or at \"fencedb.enter\" where it enters in a round trip of its own: %v", resource, err)
	case errors.Is(err, fencedb.ErrStale):
		t.Fatalf("fencedbtest: somebody entered before the holder that took %q over; let nobody wait for it meanwhile: %v", resource, err)
	case err != nil:
		t.Fatalf("fencedbtest: the holder that took %q over could not write: %v", resource, err)
	}
	return other
}

// Refused fails the test unless err says that the fence refused a write, so that nothing was
// written: fencedb.ErrStale, ErrLeaseOver, ErrBusy, ErrNoToken or ErrWrongResource, or an error of
// a driver that fencedb.Explain reads as one of these.
func Refused(t testing.TB, err error) {
	t.Helper()
	refusals := []error{fencedb.ErrStale, fencedb.ErrLeaseOver, fencedb.ErrBusy,
		fencedb.ErrNoToken, fencedb.ErrWrongResource}
	explained := fencedb.Explain(err)
	if !slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(explained, refusal) }) {
		t.Errorf("fencedbtest: want a write that the fence has refused, got: %v", err)
	}
}

// Snapshot remembers the rows of the tables. The function that it returns fails the test if these
// rows are not the same any more. Name a table as in SQL, with its schema if need be.
func Snapshot(t testing.TB, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, tables ...string) (check func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also at the end of the test
	read := func(table string) []string {
		t.Helper()
		// The error of Query is in rows as well.
		rows, _ := db.Query(ctx, `SELECT ROW(fencedbtest.*)::text FROM `+table+` AS fencedbtest ORDER BY 1`)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("fencedbtest: %s cannot be read: %v", table, err)
		}
		return all
	}
	before := make([][]string, len(tables))
	for i, table := range tables {
		before[i] = read(table)
	}
	return func() {
		t.Helper()
		for i, table := range tables {
			if now := read(table); !slices.Equal(now, before[i]) {
				t.Errorf("fencedbtest: %s was written to\nbefore:\n  %s\nnow:\n  %s", table,
					strings.Join(before[i], "\n  "), strings.Join(now, "\n  "))
			}
		}
	}
}
