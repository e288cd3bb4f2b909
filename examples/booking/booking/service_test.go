package booking_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const noKey = ""

var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

func forGuest(guest string, party int) booking.Booking {
	return booking.Booking{Table: 12, Slot: evening, Guest: guest, Party: party}
}

func TestATableIsBookedChangedFoundAndCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service(goodCard)
	first, err := s.Reserve(t.Context(), noKey, forGuest("ann", 4))
	require.NoError(t, err)
	want := forGuest("ann", 4)
	want.ID = first.ID
	require.Equal(t, booking.Answer{Booking: want, Created: true}, first)
	require.NotEqual(t, uuid.Nil, first.ID)

	_, err = s.Reserve(t.Context(), noKey, forGuest("bob", 2))
	require.ErrorIs(t, err, booking.ErrTaken)

	fewer := forGuest("ann", 3)
	fewer.Slot = evening.In(time.FixedZone("there", 2*60*60)) // the same moment
	changed, err := s.Reserve(t.Context(), noKey, fewer)
	require.NoError(t, err)
	want.Party = 3
	require.Equal(t, booking.Answer{Booking: want}, changed, "with the ID that the guest was told")
	got, err := s.Get(t.Context(), first.ID)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, s.Cancel(t.Context(), first.ID))
	require.ErrorIs(t, s.Cancel(t.Context(), first.ID), booking.ErrUnknown)
	_, err = s.Get(t.Context(), first.ID)
	require.ErrorIs(t, err, booking.ErrUnknown)
	require.Empty(t, w.booked())
	w.requireFree()
}

// Ann's request is stopped for longer than its lease lasts, and Bob gets the table.
func TestARequestThatWasStoppedBooksNothing(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"while the card is checked": "0b6f", "between that and the write": noKey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			postgres := fencedbtest.NewPostgres(t, w.pool.Config().ConnString())
			through, err := pgxpool.New(t.Context(), postgres.URL())
			require.NoError(t, err)
			t.Cleanup(through.Close)
			var unchanged func()
			overtake := func() {
				fencedbtest.Overtake(t, w.leases, w.pool, booking.Resource(12), func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), `INSERT INTO bookings (id, table_id, slot, guest, party)
						VALUES (gen_random_uuid(), 12, $1, 'bob', 2)`, evening)
					return err
				})
				unchanged = fencedbtest.Snapshot(t, w.pool, "bookings")
			}
			card := func(context.Context, string) error { overtake(); return nil }
			if key == noKey { // otherwise the key comes first in the transaction
				card = goodCard
				postgres.Pause("INSERT INTO bookings", overtake)
			}

			_, err = booking.New(w.leases.Issuer, through, card).Reserve(t.Context(), key, forGuest("ann", 4))

			fencedbtest.Refused(t, err)
			unchanged()
			require.True(t, lease.IsLost(err))
			_, err = w.service(goodCard).Reserve(t.Context(), key, forGuest("ann", 4))
			require.ErrorIs(t, err, booking.ErrTaken, "the key of a refused write stays free")
		})
	}
}

func TestReserveIsRefusedWhileAnotherIsAtIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	there, err := w.service(goodCard).Reserve(t.Context(), noKey, forGuest("ann", 4))
	require.NoError(t, err)
	errs := make([]error, 2)
	during := func(ctx context.Context, _ string) error {
		_, errs[0] = w.service(goodCard).Reserve(ctx, noKey, forGuest("bob", 2))
		errs[1] = w.service(goodCard).Cancel(ctx, there.ID)
		return nil
	}

	_, err = w.service(during).Reserve(t.Context(), noKey, forGuest("ann", 3))

	require.NoError(t, err)
	for _, err := range errs {
		held, is := errors.AsType[*lease.HeldError](err)
		require.True(t, is, "%v", err)
		require.Positive(t, held.RetryAfter)
	}
	require.Equal(t, []string{"ann"}, w.booked())
}

func TestReserveWaitsForWhoIsAtTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := make(chan error, 1)
	during := func(context.Context, string) error {
		go func() {
			_, err := booking.New(w.leases.Issuer, w.pool, goodCard).Reserve(t.Context(), noKey, forGuest("bob", 2))
			second <- err
		}()
		require.Eventually(t, func() bool { return w.inspect().Waiters > 0 }, time.Minute, time.Millisecond)
		return nil
	}

	_, err := w.service(during).Reserve(t.Context(), noKey, forGuest("ann", 4))

	require.NoError(t, err)
	require.ErrorIs(t, <-second, booking.ErrTaken)
}

func TestReserveBooksNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		card  func(w *world, leave func()) booking.CardCheck
		fails error
	}{
		"on a declined card": {func(*world, func()) booking.CardCheck {
			return func(context.Context, string) error { return booking.ErrCardDeclined }
		}, booking.ErrCardDeclined},
		"when the caller leaves": {func(_ *world, leave func()) booking.CardCheck {
			return func(ctx context.Context, _ string) error {
				leave()
				<-ctx.Done()
				return ctx.Err()
			}
		}, context.Canceled},
		"when the lease ends during the card check": {func(w *world, _ func()) booking.CardCheck {
			return func(ctx context.Context, _ string) error {
				_, err := w.leases.Revoke(w.Context(), booking.Resource(12))
				<-ctx.Done()
				return errors.Join(err, context.Cause(ctx))
			}
		}, lease.ErrRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()

			_, err := w.service(tc.card(w, leave)).Reserve(ctx, noKey, forGuest("ann", 4))

			require.ErrorIs(t, err, tc.fails)
			require.Empty(t, w.booked())
			w.requireFree()
		})
	}
}

func TestReserveRefusesNonsense(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, spoil := range map[string]func(*booking.Booking){
		"table: no table":    func(b *booking.Booking) { b.Table = 0 },
		"table: too high":    func(b *booking.Booking) { b.Table = booking.MaxTable + 1 },
		"slot: no slot":      func(b *booking.Booking) { b.Slot = time.Time{} },
		"slot: no such year": func(b *booking.Booking) { b.Slot = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -3600)) },
		"slot: before years": func(b *booking.Booking) { b.Slot = time.Date(0, 1, 1, 0, 0, 0, 0, time.FixedZone("east", 3600)) },
		"slot: no full hour": func(b *booking.Booking) { b.Slot = evening.Add(time.Minute) },
		"guest: no guest":    func(b *booking.Booking) { b.Guest = " " },
		"guest: long":        func(b *booking.Booking) { b.Guest = strings.Repeat("é", booking.MaxGuest+1) },
		"guest: control":     func(b *booking.Booking) { b.Guest = "ann\x00" },
		"party: nobody":      func(b *booking.Booking) { b.Party = 0 },
		"party: a crowd":     func(b *booking.Booking) { b.Party = booking.MaxParty + 1 },
	} {
		b := forGuest("ann", 4)
		spoil(&b)

		_, err := w.service(goodCard).Reserve(t.Context(), noKey, b)

		require.ErrorIs(t, err, booking.ErrInvalid, name)
		field, _, _ := strings.Cut(name, " ")
		require.ErrorContains(t, err, field, name)
	}
	require.Zero(t, w.inspect().LastToken, "nobody has asked for the table")
	require.ErrorIs(t, w.service(goodCard).Cancel(t.Context(), uuid.New()), booking.ErrUnknown)
	require.Zero(t, w.inspect().LastToken, "nobody was kept waiting for it")
}

func TestAKeyIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := 0
	s := w.service(func(context.Context, string) error { asked++; return nil })
	first, err := s.Reserve(t.Context(), "0b6f", forGuest("ann", 4))
	require.NoError(t, err)
	require.NoError(t, s.Cancel(t.Context(), first.ID))
	_, err = s.Reserve(t.Context(), noKey, forGuest("bob", 2))
	require.NoError(t, err)

	again, err := s.Reserve(t.Context(), "0b6f", forGuest("ann", 4))
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, []string{"bob"}, w.booked(), "a second time nothing was written")
	require.Equal(t, 2, asked, "the bank is asked once for each guest")

	_, err = s.Reserve(t.Context(), "0b6f", forGuest("ann", 3))
	require.ErrorIs(t, err, fencedb.ErrKeyReused)
}

func TestReserveHealsARedisThatWentBackwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	future := fencedb.NewGrant(booking.Resource(12), ahead, uuid.New(), fencedb.NoEnd)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, future))

	_, err := w.service(goodCard).Reserve(t.Context(), noKey, forGuest("ann", 4))

	require.NoError(t, err)
	require.Greater(t, w.inspect().LastToken, ahead)
}

func TestNobodyWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.service(goodCard).Reserve(t.Context(), noKey, forGuest("ann", 4))
	require.NoError(t, err)

	for _, statement := range []string{
		`INSERT INTO bookings (id, table_id, slot, guest, party) VALUES (gen_random_uuid(), 1, now(), 'eve', 1)`,
		`UPDATE bookings SET guest = 'eve'`,
		`DELETE FROM bookings`,
		`TRUNCATE bookings`,
	} {
		_, err := w.pool.Exec(t.Context(), statement)
		refused, is := errors.AsType[*pgconn.PgError](err)
		require.True(t, is, statement)
		require.Equal(t, "FN002", refused.Code, statement)
	}
}

func goodCard(context.Context, string) error { return nil }

// world is a database and leases, for any number of services.
type world struct {
	*testing.T
	pool   *pgxpool.Pool
	leases *fencedbtest.Issuer // shares its resources with every service
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t, testenv.Postgres(t), fencedbtest.NewIssuer(t, lease.Config{})}
	db := stdlib.OpenDBFromPool(w.pool)
	require.NoError(t, errors.Join(booking.Migrate(t.Context(), db), db.Close()))
	return w
}

// service is one of its own, which does not wait.
func (w *world) service(card booking.CardCheck) *booking.Service {
	return booking.New(w.leases.With(lease.NoWait()), w.pool, card)
}

// booked are the guests.
func (w *world) booked() (guests []string) {
	w.Helper()
	rows, _ := w.pool.Query(w.Context(), `SELECT guest FROM bookings ORDER BY guest`)
	guests, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w, err)
	return guests
}

// requireFree checks that the lease was given back.
func (w *world) requireFree() {
	w.Helper()
	require.Eventually(w, func() bool { return w.inspect().Holder == uuid.Nil }, time.Minute, time.Millisecond)
}

func (w *world) inspect() lease.Inspection {
	w.Helper()
	found, err := w.leases.Inspect(w.Context(), booking.Resource(12))
	require.NoError(w, err)
	return found
}
