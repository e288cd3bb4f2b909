package shop_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestACartIsReservedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	_, err := w.shop.Reserve(t.Context(), "ann", lines("a", 2, "b", 2))
	require.ErrorIs(t, err, shop.ErrSoldOut)
	require.Equal(t, map[string]int{"a": 10, "b": 1}, w.left())
	require.Zero(t, w.count(`SELECT count(*) FROM carts`))

	c, err := w.shop.Reserve(t.Context(), "ann", lines("a", 2, "b", 1))
	require.NoError(t, err)
	require.Equal(t, map[string]int{"a": 8, "b": 0}, w.left())
	stored, err := w.shop.Cart(t.Context(), c.ID)
	require.NoError(t, err)
	require.True(t, c.Expires.Equal(stored.Expires))
	c.Expires = stored.Expires
	require.Equal(t, c, stored)
	require.Equal(t, shop.Reserved, stored.State)
}

func TestNoMoreIsReservedThanThereIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var reserved, soldOut int
	var mu sync.Mutex
	var buyers errgroup.Group
	for range 30 {
		buyers.Go(func() error {
			_, err := w.shop.Reserve(t.Context(), "ann", lines("a", 1))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				reserved++
			case errors.Is(err, shop.ErrSoldOut):
				soldOut++
			default:
				return err
			}
			return nil
		})
	}
	require.NoError(t, buyers.Wait())
	require.Equal(t, []int{10, 20}, []int{reserved, soldOut})
	require.Zero(t, w.left()["a"])
}

func TestReserveRefusesBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, wish := range map[string][]shop.Line{"nothing": nil, "unknown": lines("c", 1)} {
		_, err := w.shop.Reserve(t.Context(), "ann", wish)
		require.ErrorIs(t, err, shop.ErrInvalid, name)
	}
}

func TestACartIsPaidOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2)

	require.NoError(t, w.shop.Pay(t.Context(), c.ID))
	require.NoError(t, w.shop.Pay(t.Context(), c.ID), "again")

	require.Equal(t, []string{"charge"}, w.bank.asked(c.ID))
	require.Equal(t, shop.Sold, w.state(c.ID))
	require.Equal(t, "TAKEN", w.payment(c.ID))
}

func TestWhatCannotBePaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2)
	w.expire(c.ID)

	require.ErrorIs(t, w.shop.Pay(t.Context(), c.ID), shop.ErrExpired)
	require.ErrorIs(t, w.shop.Pay(t.Context(), uuid.New()), shop.ErrNoCart)
	require.Empty(t, w.bank.asked(c.ID))
}

func TestAnErrorOfTheBankLeavesTheCartReserved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2)
	declined := errors.New("declined")
	w.bank.fail(declined)

	require.ErrorIs(t, w.shop.Pay(t.Context(), c.ID), declined)
	require.Equal(t, shop.Reserved, w.state(c.ID))

	require.NoError(t, w.shop.Pay(t.Context(), c.ID), "another card")
	require.Equal(t, shop.Sold, w.state(c.ID))
}

func TestASweepPutsUnitsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	over, stays := w.reserve("a", 2, "b", 1), w.reserve("a", 3)
	w.expire(over.ID)

	require.NoError(t, w.shop.Sweep(t.Context()))
	require.NoError(t, w.shop.Sweep(t.Context()), "again")

	require.Equal(t, map[string]int{"a": 7, "b": 1}, w.left())
	require.Equal(t, []string{shop.Expired, shop.Reserved}, []string{w.state(over.ID), w.state(stays.ID)})
}

func TestASweepGoesOnWhenRedisHasGoneBackwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	over := w.reserve("a", 2)
	w.expire(over.ID)
	future := fencedb.NewGrant("sku:a", time.Now().Add(time.Hour).UnixMicro(), uuid.New(), fencedb.NoEnd)
	require.NoError(t, fencedb.Seal(t.Context(), w.db, future))

	require.NoError(t, w.shop.Sweep(t.Context()))
	require.Equal(t, shop.Expired, w.state(over.ID))
}

func TestOneProcessSweepsAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2)
	w.expire(c.ID)
	sweeper, err := w.leases.Acquire(t.Context(), "sweeper")
	require.NoError(t, err)

	require.NoError(t, w.shop.Sweep(t.Context()))
	require.Equal(t, shop.Reserved, w.state(c.ID))

	require.NoError(t, sweeper.Release(t.Context()))
	require.NoError(t, w.shop.Sweep(t.Context()))
	require.Equal(t, shop.Expired, w.state(c.ID))
}

func TestASweepLeavesACartToItsPayer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2)
	paid := w.payUntilTheBankIsAsked(c.ID)
	w.expire(c.ID)

	require.NoError(t, w.shop.Sweep(t.Context()))
	require.Equal(t, shop.Reserved, w.state(c.ID))

	w.bank.answer()
	require.NoError(t, <-paid)
	require.Equal(t, shop.Sold, w.state(c.ID))
}

func TestAPayerThatWasOvertakenIsRefusedAndItsMoneyGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2, "b", 1)
	paid := w.payUntilTheBankIsAsked(c.ID)
	fencedbtest.Expire(t, w.leases, "cart:"+c.ID.String())
	w.expire(c.ID)

	require.NoError(t, w.shop.Sweep(t.Context()))
	w.bank.answer()

	var stale *fencedb.StaleError
	require.ErrorAs(t, <-paid, &stale)
	require.Equal(t, "cart:"+c.ID.String(), stale.Resource)
	require.Less(t, stale.Token, stale.Stored)
	require.Equal(t, []string{"charge", "refund"}, w.bank.asked(c.ID))
	require.Equal(t, []string{shop.Expired, "REFUNDED"}, []string{w.state(c.ID), w.payment(c.ID)})
	require.Equal(t, map[string]int{"a": 10, "b": 1}, w.left())

	require.NoError(t, w.shop.Sweep(t.Context()), "nothing is left to do")
	require.Equal(t, []string{"charge", "refund"}, w.bank.asked(c.ID))
}

func TestALatePaymentCountsWhileNobodyHasTakenTheCartOver(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, lease.Config{TTL: 8 * time.Second, RenewEvery: lease.Never})
	c := w.reserve("a", 2)
	w.bank.slow = true // until the lease is over

	require.NoError(t, w.shop.Pay(t.Context(), c.ID))
	require.Equal(t, shop.Sold, w.state(c.ID))
}

func TestAPaymentThatEndsWithItsLeaseSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, lease.Config{TTL: 8 * time.Second, RenewEvery: lease.Never})
	c := w.reserve("a", 2)
	w.bank.slow = true
	unheard := errors.New("connection closed")
	w.bank.fail(unheard)

	err := w.shop.Pay(t.Context(), c.ID)
	require.ErrorIs(t, err, unheard)
	require.ErrorIs(t, err, lease.ErrExpired)
	require.Equal(t, []string{shop.Reserved, "STARTED"}, []string{w.state(c.ID), w.payment(c.ID)}, "the sweep is next")
}

func TestARefundIsTriedUntilTheBankHasHeard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 2)
	w.bank.fail(errors.New("no answer"))
	require.Error(t, w.shop.Pay(t.Context(), c.ID))
	w.expire(c.ID)
	deaf := errors.New("out of order")
	w.bank.fail(deaf)

	require.ErrorIs(t, w.shop.Sweep(t.Context()), deaf)
	require.Equal(t, []string{shop.Expired, "REFUND_DUE"}, []string{w.state(c.ID), w.payment(c.ID)})

	require.NoError(t, w.shop.Sweep(t.Context()))
	require.Equal(t, "REFUNDED", w.payment(c.ID))
}

func TestNobodyWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.reserve("a", 1)
	require.NoError(t, w.shop.Pay(t.Context(), c.ID))

	for _, statement := range []string{
		`UPDATE stock SET remaining = remaining + 1`,
		`INSERT INTO stock (sku, start, remaining, cents) VALUES ('c', 1, 1, 1)`,
		`UPDATE carts SET state = 'SOLD'`,
		`UPDATE cart_lines SET units = 1`,
		`DELETE FROM payments`,
		`TRUNCATE stock, carts, cart_lines, payments CASCADE`,
	} {
		_, err := w.db.Exec(t.Context(), statement)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, statement)
		require.Equal(t, "FN002", refused.Code, statement)
	}
}

func TestStockLeavesAloneWhatIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reserve("a", 1)

	require.NoError(t, w.shop.Stock(t.Context(), shop.Level{SKU: "a", Start: 99, Cents: 1}))
	require.NoError(t, w.shop.Stock(t.Context(), shop.Level{SKU: "c", Start: 5, Cents: 1}))

	require.Equal(t, map[string]int{"a": 9, "b": 1, "c": 5}, w.left())
}

// world is a shop with ten of a and one of b.
type world struct {
	*testing.T
	db     *pgxpool.Pool
	leases *fencedbtest.Issuer
	bank   *fakeBank
	shop   *shop.Shop
}

func newWorld(t *testing.T) *world {
	return newWorldOf(t, lease.Config{})
}

func newWorldOf(t *testing.T, leases lease.Config) *world {
	db := testenv.Postgres(t)
	plain := stdlib.OpenDBFromPool(db)
	require.NoError(t, errors.Join(shop.Migrate(t.Context(), plain), plain.Close()))
	w := &world{T: t, db: db, bank: &fakeBank{}}
	w.leases = fencedbtest.IssuerOn(t, testenv.Redis(t), leases)
	w.shop = shop.New(w.leases.Issuer, db, w.bank, time.Hour, 20*time.Second)
	require.NoError(t, w.shop.Stock(t.Context(), shop.Level{SKU: "a", Start: 10, Cents: 100}))
	require.NoError(t, w.shop.Stock(t.Context(), shop.Level{SKU: "b", Start: 1, Cents: 100}))
	return w
}

// lines are pairs of an SKU and its units.
func lines(pairs ...any) (ls []shop.Line) {
	for i := 0; i < len(pairs); i += 2 {
		ls = append(ls, shop.Line{SKU: pairs[i].(string), Units: pairs[i+1].(int)})
	}
	return ls
}

func (w *world) reserve(pairs ...any) shop.Cart {
	w.Helper()
	c, err := w.shop.Reserve(w.Context(), "ann", lines(pairs...))
	require.NoError(w, err)
	return c
}

func (w *world) left() map[string]int {
	w.Helper()
	levels, err := w.shop.Levels(w.Context())
	require.NoError(w, err)
	left := map[string]int{}
	for _, l := range levels {
		left[l.SKU] = l.Remaining
	}
	return left
}

func (w *world) count(sql string) (n int) {
	w.Helper()
	require.NoError(w, w.db.QueryRow(w.Context(), sql).Scan(&n))
	return n
}

func (w *world) state(id uuid.UUID) string {
	w.Helper()
	c, err := w.shop.Cart(w.Context(), id)
	require.NoError(w, err)
	return c.State
}

func (w *world) payment(id uuid.UUID) (state string) {
	w.Helper()
	require.NoError(w, w.db.QueryRow(w.Context(), `SELECT state FROM payments WHERE cart_id = $1`, id).Scan(&state))
	return state
}

// expire makes a reservation be over, as if time had passed. The fence would not let it, so the
// triggers are off for this.
func (w *world) expire(id uuid.UUID) {
	w.Helper()
	_, err := w.db.Exec(w.Context(), `
		SET session_replication_role = replica;
		UPDATE carts SET expires_at = clock_timestamp() WHERE id = '`+id.String()+`';
		SET session_replication_role = DEFAULT`)
	require.NoError(w, err)
}

// payUntilTheBankIsAsked pays, and returns while the bank has not answered.
func (w *world) payUntilTheBankIsAsked(id uuid.UUID) (paid <-chan error) {
	w.Helper()
	asked := w.bank.holdOn()
	done := make(chan error, 1)
	go func() { done <- w.shop.Pay(w.Context(), id) }()
	select {
	case <-asked:
	case err := <-done:
		require.Fail(w, "paid without the bank", "%v", err)
	}
	return done
}

// fakeBank does what it is asked for, and answers when it is told to. Like many a client, it does
// not look at its context, unless it is slow: then it answers to a charge when its context ends.
type fakeBank struct {
	slow bool

	mu      sync.Mutex
	log     map[uuid.UUID][]string // guarded by mu
	next    error                  // guarded by mu: of the next request
	reached chan struct{}          // guarded by mu: not nil: closed by the next charge, which then waits
	goOn    chan struct{}
}

func (b *fakeBank) note(key uuid.UUID, what string) (wait <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log == nil {
		b.log = map[uuid.UUID][]string{}
	}
	b.log[key] = append(b.log[key], what)
	err, b.next = b.next, nil
	if b.reached != nil && what == "charge" {
		close(b.reached)
		b.reached = nil
		return b.goOn, err
	}
	return nil, err
}

// Charge implements [shop.Bank].
func (b *fakeBank) Charge(ctx context.Context, key uuid.UUID, _ int64) error {
	wait, err := b.note(key, "charge")
	if b.slow {
		<-ctx.Done()
	}
	if wait != nil {
		<-wait
	}
	return err
}

// Refund implements [shop.Bank].
func (b *fakeBank) Refund(_ context.Context, key uuid.UUID) error {
	_, err := b.note(key, "refund")
	return err
}

func (b *fakeBank) asked(key uuid.UUID) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log[key]
}

func (b *fakeBank) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = err
}

func (b *fakeBank) holdOn() (reached <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reached, b.goOn = make(chan struct{}), make(chan struct{})
	return b.reached
}

func (b *fakeBank) answer() { close(b.goOn) }
