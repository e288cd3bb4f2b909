package booking_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

func forGuest(guest string, party int) booking.Booking {
	return booking.Booking{Table: 12, Slot: evening, Guest: guest, Party: party}
}

func TestReserveBooksAFreeTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	require.NoError(t, w.service(goodCard).Reserve(t.Context(), forGuest("ann", 4)))

	require.Equal(t, forGuest("ann", 4), w.store.there)
	w.requireFree()
}

func TestReserveSealsBeforeItLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	require.NoError(t, w.service(goodCard).Reserve(t.Context(), forGuest("ann", 4)))

	require.Equal(t, []string{"seal table:12", "find", "save table:12"}, w.store.calls)
}

func TestReserveRefusesATakenTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.there = forGuest("ann", 4)

	err := w.service(goodCard).Reserve(t.Context(), forGuest("bob", 2))

	require.ErrorIs(t, err, booking.ErrTaken)
	require.Equal(t, forGuest("ann", 4), w.store.there)
	w.requireFree()
}

func TestReserveLetsTheGuestChangeTheParty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.there = forGuest("ann", 4)

	require.NoError(t, w.service(goodCard).Reserve(t.Context(), forGuest("ann", 3)))

	require.Equal(t, forGuest("ann", 3), w.store.there)
}

func TestReserveIsRefusedWhileAnotherIsAtIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var inside error
	during := func(ctx context.Context, _ string) error {
		inside = w.service(goodCard).Reserve(ctx, forGuest("bob", 2))
		return nil
	}

	require.NoError(t, w.service(during).Reserve(t.Context(), forGuest("ann", 4)))

	var held *lease.HeldError
	require.ErrorAs(t, inside, &held)
	require.Positive(t, held.RetryAfter)
	require.Equal(t, forGuest("ann", 4), w.store.there)
}

func TestReserveBooksNothingOnADeclinedCard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	declined := func(context.Context, string) error { return booking.ErrCardDeclined }

	err := w.service(declined).Reserve(t.Context(), forGuest("ann", 4))

	require.ErrorIs(t, err, booking.ErrCardDeclined)
	require.Zero(t, w.store.there)
	w.requireFree()
}

func TestReserveStopsWaitingForTheCardWhenTheLeaseEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.TTL, w.config.RenewEvery = 250*time.Millisecond, lease.Never
	slow := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}

	err := w.service(slow).Reserve(t.Context(), forGuest("ann", 4))

	require.ErrorIs(t, err, lease.ErrExpired)
	require.Zero(t, w.store.there)
}

func TestReserveSavesWhateverItsClockSaysAboutTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.TTL, w.config.RenewEvery = 250*time.Millisecond, lease.Never
	late := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return nil
	}

	require.NoError(t, w.service(late).Reserve(t.Context(), forGuest("ann", 4)), "the store let it in, so it stands")

	require.Equal(t, forGuest("ann", 4), w.store.there)
	require.NoError(t, w.store.saveCtx, "the store alone decides")
}

func TestReserveTellsWhyTheLeaseEndedWhenNothingWasBooked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.refusal = fencedb.ErrStale
	late := func(context.Context, string) error {
		w.redis.FastForward(w.config.TTL)
		return nil
	}

	err := w.service(late).Reserve(t.Context(), forGuest("ann", 4))

	require.ErrorIs(t, err, fencedb.ErrStale)
	require.ErrorIs(t, err, lease.ErrLost)
}

func TestReserveGivesUpWithItsCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, hangUp := context.WithCancel(t.Context())
	slow := func(ctx context.Context, _ string) error {
		hangUp()
		<-ctx.Done()
		return ctx.Err()
	}

	err := w.service(slow).Reserve(ctx, forGuest("ann", 4))

	require.ErrorIs(t, err, context.Canceled)
	w.requireFree()
}

func TestReserveFailsWithTheStore(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"seal table:12", "find"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.store.failing = call

			err := w.service(goodCard).Reserve(t.Context(), forGuest("ann", 4))

			require.ErrorIs(t, err, errStore)
			require.Zero(t, w.store.there)
			w.requireFree()
		})
	}
}

func TestReserveRefusesNonsense(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*booking.Booking){
		"table": func(b *booking.Booking) { b.Table = 0 },
		"slot":  func(b *booking.Booking) { b.Slot = time.Time{} },
		"guest": func(b *booking.Booking) { b.Guest = "" },
		"party": func(b *booking.Booking) { b.Party = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := forGuest("ann", 4)
			spoil(&b)

			require.ErrorIs(t, w.service(goodCard).Reserve(t.Context(), b), booking.ErrInvalid)

			require.Empty(t, w.store.calls)
			require.Empty(t, w.redis.Keys())
		})
	}
}

func TestNewRefusesABadLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := booking.New(w.client, lease.Config{TTL: -time.Second}, w.store, goodCard)
	require.ErrorIs(t, err, lease.ErrInvalid)
}

func goodCard(context.Context, string) error { return nil }

// world is a Redis of its own and a store that remembers what it was asked.
type world struct {
	*testing.T
	redis  *miniredis.Miniredis
	client *redis.Client
	config lease.Config
	store  *memory
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, redis: miniredis.NewMiniRedis(), config: lease.Config{TTL: time.Minute}, store: &memory{}}
	w.redis.ClockTTL(true)
	require.NoError(t, w.redis.Start())
	t.Cleanup(w.redis.Close)
	w.client = redis.NewClient(&redis.Options{Addr: w.redis.Addr()})
	t.Cleanup(func() { _ = w.client.Close() })
	return w
}

func (w *world) service(card booking.CardCheck) *booking.Service {
	w.Helper()
	s, err := booking.New(w.client, w.config, w.store, card)
	require.NoError(w, err)
	return s
}

// requireFree checks that the lease was given back.
func (w *world) requireFree() {
	w.Helper()
	require.False(w, w.redis.Exists("lease:v1:{table:12}:owner"))
}

var errStore = errors.New("the store is out of order")

// memory is a store of one booking.
type memory struct {
	mu      sync.Mutex
	there   booking.Booking
	calls   []string
	failing string // this call fails
	refusal error  // of Save
	saveCtx error  // of the context that Save got
}

func (m *memory) called(call string) error {
	m.calls = append(m.calls, call)
	if call == m.failing {
		return errStore
	}
	return nil
}

func (m *memory) Seal(_ context.Context, g fencedb.Grant) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.called("seal " + g.Resource())
}

func (m *memory) Find(context.Context, int, time.Time) (booking.Booking, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.there, m.there.Guest != "", m.called("find")
}

func (m *memory) Save(ctx context.Context, g fencedb.Grant, b booking.Booking) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saveCtx = ctx.Err()
	if err := errors.Join(m.called("save "+g.Resource()), m.refusal); err != nil {
		return err
	}
	m.there = b
	return nil
}
