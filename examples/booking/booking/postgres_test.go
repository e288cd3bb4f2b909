package booking_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const noKey = ""

func withID(guest string, party int) booking.Booking {
	return booking.Booking{ID: uuid.New(), Table: 12, Slot: evening, Guest: guest, Party: party}
}

// grant is one for the table of withID, as the service would name it.
func grant(token int64) fencedb.Grant {
	return fencedb.NewGrant(booking.Resource(12), token, uuid.New(), fencedb.NoEnd)
}

func TestSaveAndFind(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	_, found, err := s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.False(t, found)

	holder, ann := grant(41), withID("ann", 4)
	answer, err := s.Save(t.Context(), holder, noKey, ann)
	require.NoError(t, err)
	require.Equal(t, booking.Answer{Booking: ann, Created: true}, answer)

	again := withID("ann", 3)
	answer, err = s.Save(t.Context(), holder, noKey, again)
	require.NoError(t, err)
	again.ID = ann.ID
	require.Equal(t, booking.Answer{Booking: again}, answer, "changed, with the ID that the guest was told")

	b, found, err := s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, again, b)
	b, found, err = s.Get(t.Context(), ann.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, again, b)
	_, found, err = s.Find(t.Context(), 12, evening.Add(time.Hour))
	require.NoError(t, err)
	require.False(t, found, "another hour is another booking")
	_, found, err = s.Get(t.Context(), uuid.New())
	require.NoError(t, err)
	require.False(t, found)
}

func TestListIsInOrderAndLimited(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	err := fencedb.Tx(t.Context(), db, grant(41), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `
			INSERT INTO bookings (id, table_id, slot, guest, party)
			SELECT gen_random_uuid(), 12, $1::timestamptz + hour * interval '1 hour', 'ann', 4 FROM generate_series($2, 0, -1) AS hour`,
			evening, booking.MaxList)
		return err
	})
	require.NoError(t, err)

	all, err := s.List(t.Context(), 12, time.Time{})
	require.NoError(t, err)
	require.Len(t, all, booking.MaxList)
	require.Equal(t, evening, all[0].Slot)
	require.True(t, slices.IsSortedFunc(all, func(a, b booking.Booking) int { return a.Slot.Compare(b.Slot) }))
	last, err := s.List(t.Context(), 12, all[booking.MaxList-1].Slot.Add(time.Hour))
	require.NoError(t, err)
	require.Len(t, last, 1)
	another, err := s.List(t.Context(), 13, time.Time{})
	require.NoError(t, err)
	require.Empty(t, another)
}

func TestRemoveLeavesTheFence(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	before, holder, ann := grant(41), grant(42), withID("ann", 4)
	_, err := s.Save(t.Context(), before, noKey, ann)
	require.NoError(t, err)

	removed, err := s.Remove(t.Context(), holder, ann.ID)
	require.NoError(t, err)
	require.True(t, removed)
	removed, err = s.Remove(t.Context(), holder, ann.ID)
	require.NoError(t, err)
	require.False(t, removed, "again")

	_, err = s.Save(t.Context(), before, noKey, ann)
	require.ErrorIs(t, err, fencedb.ErrStale)
	_, err = s.Remove(t.Context(), before, ann.ID)
	require.ErrorIs(t, err, fencedb.ErrStale)
}

func TestSaveAnswersAKeyOnce(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	first, second := withID("ann", 4), withID("ann", 4) // the same request, sent twice
	_, found, err := s.Answered(t.Context(), grant(40), "0b6f", first)
	require.NoError(t, err)
	require.False(t, found)
	want, err := s.Save(t.Context(), grant(41), "0b6f", first)
	require.NoError(t, err)
	_, err = s.Remove(t.Context(), grant(42), first.ID)
	require.NoError(t, err)

	got, err := s.Save(t.Context(), grant(43), "0b6f", second)
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, found, err = s.Answered(t.Context(), grant(44), "0b6f", second)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, want, got)

	_, found, err = s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.False(t, found, "a second time nothing was written")
}

func TestAKeyStandsForOneRequest(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	_, err := s.Save(t.Context(), grant(41), "0b6f", withID("ann", 4))
	require.NoError(t, err)

	_, err = s.Save(t.Context(), grant(42), "0b6f", withID("ann", 3))
	require.ErrorIs(t, err, fencedb.ErrKeyReused)
	_, _, err = s.Answered(t.Context(), grant(43), "0b6f", withID("ann", 3))
	require.ErrorIs(t, err, fencedb.ErrKeyReused)
}

func TestAKeyOfARefusedWriteStaysFree(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	before := grant(41)
	require.NoError(t, s.Seal(t.Context(), grant(42)))
	_, err := s.Save(t.Context(), before, "0b6f", withID("ann", 4))
	require.ErrorIs(t, err, fencedb.ErrStale)

	_, found, err := s.Answered(t.Context(), grant(43), "0b6f", withID("ann", 4))
	require.NoError(t, err)
	require.False(t, found)
}

func TestSaveRefusesTheHolderBefore(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	before := grant(41)
	_, err := s.Save(t.Context(), grant(42), noKey, withID("bob", 2))
	require.NoError(t, err)

	_, err = s.Save(t.Context(), before, noKey, withID("ann", 4))
	require.ErrorIs(t, err, fencedb.ErrStale)

	b, _, err := s.Find(t.Context(), 12, evening)
	require.NoError(t, err)
	require.Equal(t, "bob", b.Guest)
}

func TestSealShutsTheHolderBeforeOut(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	before := grant(41)
	_, err := s.Save(t.Context(), before, noKey, withID("ann", 4))
	require.NoError(t, err)

	require.NoError(t, s.Seal(t.Context(), grant(42)))

	_, err = s.Save(t.Context(), before, noKey, withID("ann", 3))
	require.ErrorIs(t, err, fencedb.ErrStale)
	require.ErrorIs(t, s.Seal(t.Context(), before), fencedb.ErrStale)
}

func TestWritesNeedTheGrantOfTheTable(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	another := fencedb.NewGrant(booking.Resource(13), 41, uuid.New(), fencedb.NoEnd)
	ann := withID("ann", 4)
	_, err := s.Save(t.Context(), another, noKey, ann)
	require.ErrorIs(t, err, fencedb.ErrWrongResource)

	_, err = s.Save(t.Context(), grant(41), noKey, ann)
	require.NoError(t, err)
	_, err = s.Remove(t.Context(), another, ann.ID)
	require.ErrorIs(t, err, fencedb.ErrWrongResource)
}

func TestNobodyWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	_, err := s.Save(t.Context(), grant(41), noKey, withID("ann", 4))
	require.NoError(t, err)

	for _, statement := range []string{
		`INSERT INTO bookings (id, table_id, slot, guest, party) VALUES (gen_random_uuid(), 1, now(), 'eve', 1)`,
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

func newStore(t *testing.T) (*booking.Postgres, *pgxpool.Pool) {
	t.Helper()
	pool := testenv.Postgres(t)
	db := stdlib.OpenDBFromPool(pool)
	require.NoError(t, errors.Join(booking.Migrate(t.Context(), db), db.Close()))
	return booking.NewPostgres(pool), pool
}

func TestARemovalIsOneThoughItsAnswerIsLost(t *testing.T) {
	t.Parallel()
	direct, pool := newStore(t)
	holder, ann := grant(41), withID("ann", 4)
	_, err := direct.Save(t.Context(), holder, noKey, ann)
	require.NoError(t, err)
	proxy := faulty.NewPostgresProxy(t, pool.Config().ConnString())
	through, err := pgxpool.New(t.Context(), proxy.URL())
	require.NoError(t, err)
	t.Cleanup(through.Close)
	proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate {
		if done, ok := msg.(*pgproto3.CommandComplete); ok && string(done.CommandTag) == "COMMIT" {
			return faulty.Cut
		}
		return faulty.Pass
	})

	removed, err := booking.NewPostgres(through).Remove(t.Context(), holder, ann.ID)

	require.NoError(t, err)
	require.True(t, removed)
	_, found, err := direct.Get(t.Context(), ann.ID)
	require.NoError(t, err)
	require.False(t, found)
}
