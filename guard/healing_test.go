package guard_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// S8, L7: who seals, and what is healed of a Redis that went backwards.

// Also where the issuer seals by itself, in this database or in another.
func TestEveryCallHealsARedisThatWentBackwards(t *testing.T) {
	t.Parallel()
	for name, call := range calls() {
		for seals, seal := range map[string]func(w *world) func(context.Context, ...lease.Grant) error{
			"the desk seals":   nil,
			"the issuer seals": func(w *world) func(context.Context, ...lease.Grant) error { return fencedb.Sealer(w.pool) },
			"the issuer seals elsewhere": func(*world) func(context.Context, ...lease.Grant) error {
				return func(context.Context, ...lease.Grant) error { return nil }
			},
		} {
			t.Run(name+", "+seals, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				if seal != nil {
					w.config.Seal = seal(w)
					issuer, err := lease.New(w.redis, w.config)
					require.NoError(t, err)
					w.desk = guard.New(issuer, w.pool)
				}
				future := w.ahead("table:12", "table:13")
				require.NoError(t, call(t.Context(), w, w.desk, insertAnn))
				require.Equal(t, 1, w.bookings())
				require.Greater(t, w.stored("table:12"), future)
				w.free("table:12")
				require.NoError(t, call(t.Context(), w, w.desk, insertAnn), "healed for everybody")
			})
		}
	}
}

// The seal of an issuer may be of another database.
func TestADeskSealsInItsOwnDatabase(t *testing.T) {
	t.Parallel()
	w, seals, runs := newWorld(t), 0, 0
	w.config.Seal = func(context.Context, ...lease.Grant) error { seals++; return nil }
	issuer, err := lease.New(w.redis, w.config)
	require.NoError(t, err)
	check := func(_ context.Context, h *guard.Holder) error {
		runs++
		require.Equal(t, h.Grant().Token(), w.stored(h.Grant().Resource()))
		return nil
	}
	desk := guard.New(issuer, w.pool)
	require.NoError(t, desk.Do(t.Context(), "table:11", check))
	require.NoError(t, desk.DoAll(t.Context(), []string{"table:12"}, check))
	ctx, stop := context.WithCancel(t.Context())
	require.ErrorIs(t, desk.Lead(ctx, "table:13", func(ctx context.Context, h *guard.Holder) error {
		defer stop()
		return check(ctx, h)
	}), context.Canceled)
	require.Equal(t, 3, runs)
	require.Equal(t, 3, seals)
}

// Redis that has lost everything is behind for every resource.
func TestEveryResourceIsHealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	resources := []string{"table:11", "table:12", "table:13"}

	w.ahead(resources...)
	require.NoError(t, w.desk.SendBatch(t.Context(), resources, batch(insertAnn)))
	w.ahead(resources...)
	runs := 0
	require.NoError(t, w.desk.DoAll(t.Context(), resources, func(ctx context.Context, h *guard.Holder) error {
		runs++
		_, err := h.Exec(ctx, insertAnn)
		return err
	}))

	require.Equal(t, []int{1, 2}, []int{runs, w.bookings()})
	for _, resource := range resources {
		w.free(resource)
	}
}

// The price of Unsealed, and its remedy.
func TestUnsealedWorkIsNotHealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	future := w.ahead("table:12")
	desk := guard.New(w.issuer, w.pool, guard.Unsealed())
	call := calls()["Do Exec"]
	for range 2 {
		require.ErrorIs(t, call(t.Context(), w, desk, insertAnn), fencedb.ErrStale)
	}
	_, err := w.issuer.Raise(t.Context(), "table:12", future)
	require.NoError(t, err)
	require.NoError(t, call(t.Context(), w, desk, insertAnn))
	w.ahead("table:12")
	require.NoError(t, calls()["Exec"](t.Context(), w, desk, insertAnn), "what enters at once is healed")
	require.Equal(t, 2, w.bookings())
}

// The holder is known to Postgres before the function runs, and only then without Unsealed.
func TestWhoSeals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, desk := range map[string]*guard.Desk{"sealed": w.desk, "unsealed": guard.New(w.issuer, w.pool, guard.Unsealed())} {
		knows := func(ctx context.Context, h *guard.Holder) error {
			for _, g := range h.Leases() {
				require.Equal(t, name == "sealed", w.stored(g.Resource()) == g.Token(), name)
			}
			return nil
		}
		require.NoError(t, desk.Do(t.Context(), "table:12", knows))
		require.NoError(t, desk.DoAll(t.Context(), []string{"table:13", "table:12"}, knows))
		ctx, stop := context.WithCancel(t.Context())
		require.ErrorIs(t, desk.Lead(ctx, "role:chef", func(ctx context.Context, h *guard.Holder) error {
			defer stop()
			return knows(ctx, h)
		}), context.Canceled)
	}
}

// Postgres was right: the lease is gone, and somebody else has entered. Healing must not bring it
// back, and the function does not run.
func TestAHolderThatWasOvertakenIsNotHealed(t *testing.T) {
	t.Parallel()
	for name, call := range calls() {
		if name == "Do fencedb.Enter" { // it enters on a connection of its own
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			postgres := fencedbtest.NewPostgres(t, w.pool.Config().ConnString())
			slow, err := pgxpool.New(t.Context(), postgres.URL())
			require.NoError(t, err)
			t.Cleanup(slow.Close)
			postgres.Pause(entry(name), func() { fencedbtest.Overtake(t, w.issuer, w.pool, "table:12") })
			w.pool, slow = slow, w.pool

			err = call(t.Context(), w, guard.New(w.issuer, w.pool, guard.Unsealed()), insertAnn)

			require.ErrorIs(t, err, fencedb.ErrStale)
			w.pool = slow
			require.Zero(t, w.bookings())
		})
	}
}

// A callback meets a refusal of another database, about the same resource, when all is written.
func TestWhatHasHappenedIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	w, archive := newWorld(t), newWorld(t)
	archive.ahead("table:12")
	old := fencedb.NewGrant("table:12", 7, uuid.New(), fencedb.NoEnd)
	refusal := func() error {
		_, err := fencedb.Exec(t.Context(), archive.pool, old, insertAnn)
		return err
	}
	b := &pgx.Batch{}
	b.Queue(insertAnn).Exec(func(pgconn.CommandTag) error { return refusal() })
	require.ErrorIs(t, w.desk.SendBatch(t.Context(), []string{"table:12"}, b), fencedb.ErrStale)
	require.Equal(t, 1, w.bookings())

	runs := 0
	err := w.desk.Tx(t.Context(), "table:12", func(context.Context, pgx.Tx) error {
		runs++
		return refusal()
	})
	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, 1, runs)
}
