package sale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) {
	worker.Become(map[string]worker.Life{"sale": Work})
	testenv.Main(m)
}

// light is a load that a busy machine can bear, with one process stopped in the middle.
var light = Load{Buyers: 24, SKUs: 4, Stock: 2000, For: 4 * time.Second, Pauses: 1, Pause: 2 * time.Second,
	TTL: time.Second}

func serversOf(t *testing.T) service.Servers {
	return service.Servers{
		PostgresURL: testenv.PostgresURL(t),
		RedisURL:    "redis://" + testenv.Redis(t).Options().Addr + "/0",
		Namespace:   testenv.Namespace(t),
	}
}

// The books of each way are as they should be. Those of the control, under a lock alone, must not
// be.
func TestEachWayKeepsItsBooksAsItShould(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), mode, serversOf(t), light)
			require.NoError(t, err)

			var table strings.Builder
			require.NoError(t, WriteTable(&table, []Result{r}))
			t.Log("\n" + table.String())
			require.Empty(t, r.Problems())
			if mode == Fenced {
				require.Equal(t, 1, r.Told.StoppedNot, "the buyer who was stopped is refused")
			}
			if mode == Lock {
				require.Equal(t, 1, r.Told.StoppedWrote, "the buyer who was stopped writes over what others have "+
					"written")
				require.Positive(t, r.End.Oversold)
			}
		})
	}
}

// Without a stop even a lock is enough.
func TestNoWayReservesMoreThanThereIs(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := prepared(t, mode, Load{SKUs: 2, Stock: 10, TTL: time.Minute})
			var reserved, soldOut atomic.Int64
			var buyers errgroup.Group
			for range 20 {
				buyers.Go(func() error {
					_, err := p.shop.Reserve(t.Context(), "ann", []shop.Line{{SKU: sku(2), Units: 1}, {SKU: sku(1), Units: 1}})
					switch {
					case err == nil:
						reserved.Add(1)
					case errors.Is(err, shop.ErrSoldOut):
						soldOut.Add(1)
					default:
						return err
					}
					return nil
				})
			}
			require.NoError(t, buyers.Wait())
			require.Equal(t, []int64{10, 10}, []int64{reserved.Load(), soldOut.Load()})
			b, err := audit(t.Context(), p.DB)
			require.NoError(t, err)
			require.True(t, b.Balanced())
			require.Zero(t, b.Remaining)
		})
	}
}

func TestASaleThatIsInterruptedLeavesNoProcess(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	load := light
	load.For, load.Pauses = time.Hour, 0
	servers, ended := serversOf(t), make(chan error)
	go func() {
		_, err := Run(ctx, Fenced, servers, load)
		ended <- err
	}()
	db, err := pgxpool.New(t.Context(), servers.PostgresURL)
	require.NoError(t, err)
	defer db.Close()
	require.Eventually(t, func() bool {
		var carts int
		return db.QueryRow(t.Context(), `SELECT count(*) FROM carts`).Scan(&carts) == nil && carts > 0
	}, time.Minute, 20*time.Millisecond)
	interrupt()
	require.ErrorIs(t, <-ended, context.Canceled) // Run has waited for its workers by then
}

// late comes too late once, as on a busy machine.
type late struct {
	seller
	came bool
}

func (s *late) first() error {
	if s.came {
		return nil
	}
	s.came = true
	return fmt.Errorf("cart 7: %w", fencedb.ErrLeaseOver)
}

func (s *late) Reserve(ctx context.Context, buyer string, lines []shop.Line) (shop.Cart, error) {
	if err := s.first(); err != nil {
		return shop.Cart{}, err
	}
	return s.seller.Reserve(ctx, buyer, lines)
}

func (s *late) Sweep(ctx context.Context) error {
	if err := s.first(); err != nil {
		return err
	}
	return s.seller.Sweep(ctx)
}

func TestTheEndOfASaleIsTriedAgainWhenItComesTooLate(t *testing.T) {
	t.Parallel()
	p := prepared(t, Fenced, Load{SKUs: 2, Stock: 10, TTL: time.Second})
	own := p.shop
	p.shop = &late{seller: own}
	require.NoError(t, p.empty())
	p.shop = &late{seller: own}
	require.NoError(t, p.settle())
	b, err := audit(t.Context(), p.DB)
	require.NoError(t, err)
	require.Zero(t, b.Unsettled)
}

// The process that starts workers can be killed, and cannot tell them then.
func TestAWorkerEndsWithTheProcessThatStartedIt(t *testing.T) {
	t.Parallel()
	load := light
	load.TTL = time.Minute // longer than anybody would wait
	p := prepared(t, Fenced, load)
	w, err := worker.Start[report](t.Context(), "sale", settings{p.Servers, load, Fenced, "worker-1", 8})
	require.NoError(t, err)
	defer w.Kill()
	require.NoError(t, w.Order(orderHold))
	held, err := w.Next(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, held.SKUs, "a buyer is held, and others wait for it")

	w.EndOrders()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	last, err := w.Next(ctx)
	require.NoError(t, err)
	require.NotNil(t, last.Tally)
	_, err = w.Next(ctx)
	require.ErrorContains(t, err, "has ended")
}

func TestLoadsThatShowNothingAreRefused(t *testing.T) {
	t.Parallel()
	require.NoError(t, light.Validate())
	for says, change := range map[string]func(*Load){
		"2 buyers":           func(l *Load) { l.Buyers = 2 },
		"have to outlast":    func(l *Load) { l.Pause = l.TTL },
		"do not fit into 4s": func(l *Load) { l.Pauses = 2 },
	} {
		load := light
		change(&load)
		require.ErrorContains(t, load.Validate(), says)
	}
}

// prepared is a sale that has not begun.
func prepared(t *testing.T, mode Mode, l Load) *play {
	t.Helper()
	p, err := prepare(t.Context(), mode, serversOf(t), l)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func execute(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// The control does all that a lock alone can do.
func TestWhoLooksAtItsLeaseInTimeDoesNotWrite(t *testing.T) {
	t.Parallel()
	issuer, err := lease.New(testenv.Redis(t), lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)})
	require.NoError(t, err)
	leases, err := issuer.AcquireAll(t.Context(), []string{"sku:a", "sku:b"})
	require.NoError(t, err)
	require.NoError(t, leases[1].Release(t.Context()))

	err = (&rival{mode: Lock}).setLevels(t.Context(), nil, leases, nil, []shop.Level{{SKU: "a"}})

	require.ErrorIs(t, err, lease.ErrReleased)
	require.NoError(t, leases[0].Release(t.Context()))
}
