package booking_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/lease"
)

var evening = time.Date(2030, time.June, 1, 19, 0, 0, 0, time.UTC)

func forGuest(guest string, party int) booking.Booking {
	return booking.Booking{Table: 12, Slot: evening, Guest: guest, Party: party}
}

func TestReserveBooksAFreeTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	require.NoError(t, w.reserve(t.Context(), goodCard, forGuest("ann", 4)))

	require.Equal(t, forGuest("ann", 4), w.booked())
	w.requireFree()
}

func TestReserveSealsBeforeItLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	require.NoError(t, w.reserve(t.Context(), goodCard, forGuest("ann", 4)))

	require.Equal(t, []string{"seal table:12", "find", "save table:12"}, w.store.calls)
}

func TestReserveRefusesATakenTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.there = forGuest("ann", 4)

	err := w.reserve(t.Context(), goodCard, forGuest("bob", 2))

	require.ErrorIs(t, err, booking.ErrTaken)
	require.Equal(t, forGuest("ann", 4), w.booked())
	w.requireFree()
}

func TestReserveLetsTheGuestChangeTheParty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.there = forGuest("ann", 4)

	require.NoError(t, w.reserve(t.Context(), goodCard, forGuest("ann", 3)))

	require.Equal(t, forGuest("ann", 3), w.booked())
}

func TestReserveIsRefusedWhileAnotherIsAtIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var inside error
	during := func(ctx context.Context, _ string) error {
		inside = w.reserve(ctx, goodCard, forGuest("bob", 2))
		return nil
	}

	require.NoError(t, w.reserve(t.Context(), during, forGuest("ann", 4)))

	var held *lease.HeldError
	require.ErrorAs(t, inside, &held)
	require.Positive(t, held.RetryAfter)
	require.Equal(t, forGuest("ann", 4), w.booked())
}

func TestReserveBooksNothingOnADeclinedCard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	declined := func(context.Context, string) error { return booking.ErrCardDeclined }

	err := w.reserve(t.Context(), declined, forGuest("ann", 4))

	require.ErrorIs(t, err, booking.ErrCardDeclined)
	require.Zero(t, w.store.there)
	w.requireFree()
}

func TestReserveStopsWaitingForTheCardWhenTheLeaseEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Lease.TTL, w.config.Lease.RenewEvery = time.Second, lease.Never
	slow := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}

	err := w.reserve(t.Context(), slow, forGuest("ann", 4))

	require.ErrorIs(t, err, lease.ErrExpired)
	require.Zero(t, w.store.there)
}

func TestReserveSavesWhateverItsClockSaysAboutTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Lease.TTL, w.config.Lease.RenewEvery = time.Second, lease.Never
	late := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return nil
	}

	require.NoError(t, w.reserve(t.Context(), late, forGuest("ann", 4)), "the store let it in, so it stands")

	require.Equal(t, forGuest("ann", 4), w.booked())
	require.NoError(t, w.store.saveCtx, "the store alone decides")
}

func TestReserveTellsWhyTheLeaseEndedWhenNothingWasBooked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.refusal = fencedb.ErrStale
	late := func(context.Context, string) error {
		fencedbtest.Expire(t, w.leases, booking.Resource(12))
		return nil
	}

	err := w.reserve(t.Context(), late, forGuest("ann", 4))

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

	err := w.reserve(ctx, slow, forGuest("ann", 4))

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

			err := w.reserve(t.Context(), goodCard, forGuest("ann", 4))

			require.ErrorIs(t, err, errStore)
			require.Zero(t, w.store.there)
			w.requireFree()
		})
	}
}

func TestReserveTakesTheSameMomentForTheSameSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := forGuest("ann", 4)
	b.Slot = evening.In(time.FixedZone("there", 2*60*60))

	require.NoError(t, w.reserve(t.Context(), goodCard, b))

	require.Equal(t, forGuest("ann", 4), w.booked())
}

func TestReserveRefusesNonsense(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		field string
		spoil func(*booking.Booking)
	}{
		"no table":       {"table", func(b *booking.Booking) { b.Table = 0 }},
		"table too high": {"table", func(b *booking.Booking) { b.Table = booking.MaxTable + 1 }},
		"no slot":        {"slot", func(b *booking.Booking) { b.Slot = time.Time{} }},
		"no such year":   {"slot", func(b *booking.Booking) { b.Slot = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -3600)) }},
		"before years":   {"slot", func(b *booking.Booking) { b.Slot = time.Date(0, 1, 1, 0, 0, 0, 0, time.FixedZone("east", 3600)) }},
		"odd slot":       {"slot", func(b *booking.Booking) { b.Slot = evening.Add(time.Minute) }},
		"no guest":       {"guest", func(b *booking.Booking) { b.Guest = " " }},
		"long guest":     {"guest", func(b *booking.Booking) { b.Guest = strings.Repeat("é", booking.MaxGuest+1) }},
		"control":        {"guest", func(b *booking.Booking) { b.Guest = "ann\x00" }},
		"nobody":         {"party", func(b *booking.Booking) { b.Party = 0 }},
		"a crowd":        {"party", func(b *booking.Booking) { b.Party = booking.MaxParty + 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := forGuest("ann", 4)
			tc.spoil(&b)

			err := w.reserve(t.Context(), goodCard, b)

			var invalid *booking.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, tc.field, invalid.Field)
			require.Empty(t, w.store.calls)
			w.requireUntouched()
		})
	}
}

func TestReserveWaitsForWhoIsAtTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Wait = time.Minute
	second := make(chan error, 1)
	during := func(context.Context, string) error {
		go func() { second <- w.reserve(t.Context(), goodCard, forGuest("bob", 2)) }()
		require.Eventually(t, func() bool { return w.inspect().Waiters > 0 }, 10*time.Second, time.Millisecond)
		return nil
	}

	require.NoError(t, w.reserve(t.Context(), during, forGuest("ann", 4)))

	require.ErrorIs(t, <-second, booking.ErrTaken)
}

func TestReserveWaitsNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Wait = time.Second // long enough to hear who holds
	var inside error
	during := func(ctx context.Context, _ string) error {
		inside = w.reserve(ctx, goodCard, forGuest("bob", 2))
		return nil
	}

	require.NoError(t, w.reserve(t.Context(), during, forGuest("ann", 4)))

	require.ErrorIs(t, inside, lease.ErrHeld)
	require.ErrorIs(t, inside, context.DeadlineExceeded)
}

func TestReserveAnswersAKeyAsBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := 0
	card := func(context.Context, string) error { asked++; return nil }
	s := w.service(card)
	first, err := s.Reserve(t.Context(), "0b6f", forGuest("ann", 4))
	require.NoError(t, err)
	require.NotEqual(t, uuid.Nil, first.ID)
	w.store.there = forGuest("bob", 2) // ann has cancelled, and bob was quick

	again, err := s.Reserve(t.Context(), "0b6f", forGuest("ann", 4))

	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, forGuest("bob", 2), w.booked())
	require.Equal(t, 1, asked, "the bank is asked once")
	w.requireFree()
}

func TestCancelGivesTheTableFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.there = forGuest("ann", 4)
	w.store.there.ID = uuid.New()

	require.NoError(t, w.service(goodCard).Cancel(t.Context(), w.store.there.ID))

	require.Zero(t, w.store.there)
	require.Equal(t, []string{"get", "seal table:12", "remove table:12"}, w.store.calls)
	w.requireFree()
}

func TestCancelKnowsWhatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.ErrorIs(t, w.service(goodCard).Cancel(t.Context(), uuid.New()), booking.ErrUnknown)
	w.requireUntouched() // nobody was kept waiting for it

	w.store.there = forGuest("ann", 4)
	w.store.there.ID = uuid.New()
	w.store.vanishes = true
	require.ErrorIs(t, w.service(goodCard).Cancel(t.Context(), w.store.there.ID), booking.ErrUnknown)
	w.requireFree()
}

func TestCancelIsRefusedWhileAnotherIsAtTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.there = forGuest("ann", 4)
	w.store.there.ID = uuid.New()
	var inside error
	during := func(ctx context.Context, _ string) error {
		inside = w.service(goodCard).Cancel(ctx, w.store.there.ID)
		return nil
	}

	require.NoError(t, w.reserve(t.Context(), during, forGuest("ann", 3)))

	require.ErrorIs(t, inside, lease.ErrHeld)
	require.Equal(t, forGuest("ann", 3), w.booked())
}

func TestListRefusesATableThatCannotBe(t *testing.T) {
	t.Parallel()
	_, err := newWorld(t).service(goodCard).List(t.Context(), 0, evening)
	require.ErrorAs(t, err, new(*booking.InvalidError))
}

func TestReserveRaisesACounterThatIsBehindTheStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	w.store.fence = ahead // and Redis has lost its data, and its clock went back

	require.NoError(t, w.reserve(t.Context(), goodCard, forGuest("ann", 4)))

	require.Greater(t, w.store.fence, ahead)
	require.Equal(t, forGuest("ann", 4), w.booked())
	w.requireFree()
}

func TestLeasesAreThoseOfTheTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service(goodCard)
	l, err := s.Leases().TryAcquire(t.Context(), booking.Resource(12))
	require.NoError(t, err)

	_, err = s.Reserve(t.Context(), "", forGuest("ann", 4))

	require.ErrorIs(t, err, lease.ErrHeld)
	require.NoError(t, l.Release(t.Context()))
}

func TestNewRefusesABadLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := booking.New(w.leases.Client, booking.Config{Lease: lease.Config{TTL: -time.Second}, Store: w.store})
	require.ErrorIs(t, err, lease.ErrInvalid)
}

func goodCard(context.Context, string) error { return nil }

// world is a Redis of its own and a store that remembers what it was asked.
type world struct {
	*testing.T
	leases *fencedbtest.Issuer // shares its resources with every service
	config booking.Config
	store  *memory
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store := &memory{answers: map[string]booking.Answer{}}
	w := &world{T: t, leases: fencedbtest.NewIssuer(t, lease.Config{}), store: store}
	w.config = booking.Config{Lease: w.leases.Config, Store: w.store}
	return w
}

func (w *world) service(card booking.CardCheck) *booking.Service {
	w.Helper()
	cfg := w.config
	cfg.CheckCard = card
	s, err := booking.New(w.leases.Client, cfg)
	require.NoError(w, err)
	return s
}

// reserve asks a service of its own, without a key.
func (w *world) reserve(ctx context.Context, card booking.CardCheck, b booking.Booking) error {
	_, err := w.service(card).Reserve(ctx, "", b)
	return err
}

// booked is what the store holds, but for the ID.
func (w *world) booked() booking.Booking {
	b := w.store.there
	b.ID = uuid.Nil
	return b
}

// requireFree checks that the lease was given back.
func (w *world) requireFree() {
	w.Helper()
	require.Eventually(w, func() bool { return w.inspect().Holder == uuid.Nil }, 5*time.Second, time.Millisecond)
}

// requireUntouched checks that nobody has asked for the table.
func (w *world) requireUntouched() {
	w.Helper()
	require.Zero(w, w.inspect().LastToken)
}

func (w *world) inspect() lease.Inspection {
	w.Helper()
	found, err := w.leases.Inspect(w.Context(), booking.Resource(12))
	require.NoError(w, err)
	return found
}

var errStore = errors.New("the store is out of order")

// memory is a store of one booking.
type memory struct {
	mu       sync.Mutex
	there    booking.Booking
	fence    int64 // the highest token that was sealed
	answers  map[string]booking.Answer
	calls    []string
	failing  string // this call fails
	vanishes bool   // what Get has found, Remove does not
	refusal  error  // of Save
	saveCtx  error  // of the context that Save got
}

var _ booking.Store = (*memory)(nil)

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
	if g.Token() < m.fence {
		return &fencedb.StaleError{Resource: g.Resource(), Token: g.Token(), Stored: m.fence}
	}
	m.fence = g.Token()
	return m.called("seal " + g.Resource())
}

func (m *memory) Find(context.Context, int, time.Time) (booking.Booking, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.there, m.there.Guest != "", m.called("find")
}

func (m *memory) Get(_ context.Context, id uuid.UUID) (booking.Booking, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.there, m.there.ID == id, m.called("get")
}

func (m *memory) List(context.Context, int, time.Time) ([]booking.Booking, error) { return nil, nil }

func (m *memory) Answered(_ context.Context, _ fencedb.Grant, key string,
	_ booking.Booking) (booking.Answer, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	answer, found := m.answers[key]
	return answer, found, m.called("answered")
}

func (m *memory) Save(ctx context.Context, g fencedb.Grant, key string, b booking.Booking) (booking.Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saveCtx = ctx.Err()
	if err := errors.Join(m.called("save "+g.Resource()), m.refusal); err != nil {
		return booking.Answer{}, err
	}
	m.there = b
	m.answers[key] = booking.Answer{Booking: b, Created: true}
	return m.answers[key], nil
}

func (m *memory) Remove(_ context.Context, g fencedb.Grant, id uuid.UUID) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.called("remove " + g.Resource()); err != nil || m.vanishes || m.there.ID != id {
		return false, err
	}
	m.there = booking.Booking{}
	return true, nil
}
