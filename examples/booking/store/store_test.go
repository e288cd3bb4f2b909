package store_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/examples/booking/store"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

func forGuest(guest string, party int) booking.Booking {
	return booking.Booking{Table: 12, Slot: evening, Guest: guest, Party: party}
}

// grant is one for the table of forGuest, as the service would name it.
func grant(token int64) fencedb.Grant {
	return fencedb.NewGrant(booking.Resource(12), token, uuid.New(), time.Time{})
}

func TestSaveAndFind(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	_, found, err := s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.False(t, found)

	holder := grant(41)
	require.NoError(t, s.Save(t.Context(), holder, forGuest("ann", 4)))
	require.NoError(t, s.Save(t.Context(), holder, forGuest("ann", 3)))

	b, found, err := s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, forGuest("ann", 3), b)
	_, found, err = s.Find(t.Context(), 12, evening.Add(time.Hour))
	require.NoError(t, err)
	require.False(t, found, "another evening is another booking")
}

func TestSaveRefusesTheHolderBefore(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	before := grant(41)
	require.NoError(t, s.Save(t.Context(), grant(42), forGuest("bob", 2)))

	require.ErrorIs(t, s.Save(t.Context(), before, forGuest("ann", 4)), fencedb.ErrStale)

	b, _, err := s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.Equal(t, "bob", b.Guest)
}

func TestSealShutsTheHolderBeforeOut(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	before := grant(41)
	require.NoError(t, s.Save(t.Context(), before, forGuest("ann", 4)))

	require.NoError(t, s.Seal(t.Context(), grant(42)))

	require.ErrorIs(t, s.Save(t.Context(), before, forGuest("ann", 3)), fencedb.ErrStale)
	require.ErrorIs(t, s.Seal(t.Context(), before), fencedb.ErrStale)
}

func TestSaveNeedsTheGrantOfTheTable(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	another := fencedb.NewGrant(booking.Resource(13), 41, uuid.New(), time.Time{})

	require.ErrorIs(t, s.Save(t.Context(), another, forGuest("ann", 4)), fencedb.ErrWrongResource)
}

func TestNobodyWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	require.NoError(t, s.Save(t.Context(), grant(41), forGuest("ann", 4)))

	for _, statement := range []string{
		`INSERT INTO bookings (table_id, slot, guest, party) VALUES (1, now(), 'eve', 1)`,
		`UPDATE bookings SET guest = 'eve'`,
		`DELETE FROM bookings`,
		`TRUNCATE bookings`,
	} {
		_, err := db.Exec(t.Context(), statement)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, statement)
		require.Equal(t, "FN002", refused.Code, statement)
	}
}

func TestMigrateAtOnceAndAgain(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", testenv.PostgresURL(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })

	require.NoError(t, migrations.Up(t.Context(), db), "first, or the replicas would not meet after it")

	var replicas errgroup.Group
	for range 8 {
		replicas.Go(func() error { return store.Migrate(t.Context(), db) })
	}
	require.NoError(t, replicas.Wait())
	require.NoError(t, store.Migrate(t.Context(), db), "again")
}

func newStore(t *testing.T) (*store.Store, *pgxpool.Pool) {
	t.Helper()
	pool := testenv.Postgres(t)
	db := stdlib.OpenDBFromPool(pool)
	require.NoError(t, errors.Join(store.Migrate(t.Context(), db), db.Close()))
	return store.New(pool), pool
}
