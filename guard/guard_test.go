package guard_test

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
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type world struct {
	*testing.T
	pool   *pgxpool.Pool
	redis  *redis.Client
	issuer *lease.Issuer

	namespace string
}

func newWorld(t *testing.T, seal bool) *world {
	w := &world{T: t, pool: testenv.Postgres(t), redis: testenv.Redis(t), namespace: testenv.Namespace(t)}
	config := lease.Config{TTL: 10 * time.Second, Namespace: w.namespace}
	if seal {
		config.Seal = fencedb.Sealer(w.pool)
	}
	var err error
	w.issuer, err = lease.New(w.redis, config)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `CREATE TABLE bookings (table_id int NOT NULL, guest text)`)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `SELECT fencedb.protect('bookings', 'table:{table_id}')`)
	require.NoError(t, err)
	return w
}

func (w *world) insert(ctx context.Context, tx pgx.Tx, table int) error {
	_, err := tx.Exec(ctx, `INSERT INTO bookings VALUES ($1, 'ann')`, table)
	return err
}

func (w *world) book(table int) func(context.Context, *lease.Lease, pgx.Tx) error {
	return func(ctx context.Context, _ *lease.Lease, tx pgx.Tx) error { return w.insert(ctx, tx, table) }
}

func (w *world) bookings() (n int) {
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT count(*) FROM bookings`).Scan(&n))
	return n
}

// ahead makes Redis look as if it had gone backwards: Postgres has seen a token of the future.
func (w *world) ahead(resource string) int64 {
	future := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(w, fencedb.Seal(w.Context(), w.pool, fencedb.NewGrant(resource, future, uuid.New(), fencedb.NoEnd)))
	return future
}

func (w *world) free(resource string) {
	w.Helper()
	// It may be given back behind the call.
	l, err := w.issuer.Acquire(w.Context(), resource, lease.WaitAtMost(5*time.Second))
	require.NoError(w, err, "the lease must have been given back")
	require.NoError(w, l.Release(w.Context()))
}

func TestTxWritesAndGivesTheLeaseBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)

	require.NoError(t, guard.Tx(t.Context(), w.issuer, w.pool, "table:12", w.book(12)))
	require.NoError(t, guard.TxAll(t.Context(), w.issuer, w.pool, []string{"table:13", "table:12"}, func(ctx context.Context, ls lease.Leases, tx pgx.Tx) error {
		require.Len(t, ls, 2)
		return w.insert(ctx, tx, 13)
	}))

	require.Equal(t, 2, w.bookings())
	w.free("table:12")
	w.free("table:13")
}

func TestTheLeaseIsGivenBackOnErrorAndPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	mine := errors.New("mine")

	err := guard.Tx(t.Context(), w.issuer, w.pool, "table:12", func(context.Context, *lease.Lease, pgx.Tx) error { return mine })
	require.ErrorIs(t, err, mine)
	w.free("table:12")

	require.Panics(t, func() {
		_ = guard.Tx(t.Context(), w.issuer, w.pool, "table:12", func(context.Context, *lease.Lease, pgx.Tx) error { panic("boom") })
	})
	w.free("table:12")

	ctx, cancel := context.WithCancel(t.Context())
	err = guard.Tx(ctx, w.issuer, w.pool, "table:12", func(context.Context, *lease.Lease, pgx.Tx) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	w.free("table:12")
	require.Zero(t, w.bookings())
}

func TestTxHealsWhenRedisHasGoneBackwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	future := w.ahead("table:12")
	runs := 0

	err := guard.TxAll(t.Context(), w.issuer, w.pool, []string{"table:11", "table:12"}, func(ctx context.Context, _ lease.Leases, tx pgx.Tx) error {
		runs++
		return w.insert(ctx, tx, 12)
	})

	require.NoError(t, err)
	require.Equal(t, 2, runs)
	require.Equal(t, 1, w.bookings())
	var stored int64
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT fencedb.last_token('table:12')`).Scan(&stored))
	require.Greater(t, stored, future)
	w.free("table:12")
	require.NoError(t, guard.Tx(t.Context(), w.issuer, w.pool, "table:12", w.book(12)), "healed for everybody")
}

func TestSealedAcquisitionsHealToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	w.ahead("table:12")

	require.NoError(t, guard.Tx(t.Context(), w.issuer, w.pool, "table:12", w.book(12)))
	require.Equal(t, 1, w.bookings())
	w.free("table:12")
}

// Redis that has lost everything is behind for every resource.
func TestEveryResourceIsHealed(t *testing.T) {
	t.Parallel()
	resources := []string{"table:11", "table:12", "table:13"}
	for name, c := range map[string]struct {
		sealed bool
		runs   int
	}{"sealed": {true, 1}, "not sealed": {false, 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.sealed)
			ahead := func() {
				for _, resource := range resources {
					w.ahead(resource)
				}
			}
			runs := 0

			ahead()
			insert := func(ctx context.Context, _ lease.Leases, tx pgx.Tx) error {
				runs++
				return w.insert(ctx, tx, 12)
			}
			require.NoError(t, guard.TxAll(t.Context(), w.issuer, w.pool, resources, insert))
			require.Equal(t, c.runs, runs)

			ahead()
			b := &pgx.Batch{}
			b.Queue(insertAnn)
			require.NoError(t, guard.SendBatch(t.Context(), w.issuer, w.pool, resources, b))

			require.Equal(t, 2, w.bookings())
			for _, resource := range resources {
				w.free(resource)
			}
		})
	}
}

// What a holder reads before its first fenced transaction stays true only if its lease was sealed.
func TestASealedLeaseKeepsEarlierHoldersFromChangingWhatWasRead(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string]bool{"sealed": true, "not sealed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, sealed)
			stopped, err := w.issuer.TryAcquire(t.Context(), "table:12")
			require.NoError(t, err)
			require.NoError(t, w.redis.Del(t.Context(), lease.Key{Namespace: w.namespace, Resource: "table:12", Field: "owner"}.String()).Err())

			next, err := w.issuer.TryAcquire(t.Context(), "table:12")
			require.NoError(t, err)
			require.Zero(t, w.bookings(), "what the next holder decides by")
			_, late := fencedb.Exec(t.Context(), w.pool, stopped, `INSERT INTO bookings VALUES (12, 'ann')`)

			if sealed {
				require.ErrorIs(t, late, fencedb.ErrStale)
			} else {
				require.NoError(t, late)
			}
			require.Equal(t, sealed, w.bookings() == 0)
			require.NoError(t, next.Release(t.Context()))
		})
	}
}

// Postgres was right: the lease is gone, and somebody else has entered. Healing must not bring it
// back.
func TestAHolderThatWasOvertakenIsNotHealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)

	err := guard.Tx(t.Context(), w.issuer, w.pool, "table:12", func(ctx context.Context, l *lease.Lease, tx pgx.Tx) error {
		revoked, err := w.issuer.Revoke(t.Context(), "table:12")
		require.NoError(t, err)
		require.NoError(t, fencedb.Seal(t.Context(), w.pool, revoked))
		return w.insert(t.Context(), tx, 12)
	})

	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Zero(t, w.bookings())
}

// A callback meets a refusal of another database, about the same resource, when all is written.
func TestWhatHasCommittedIsNotHealed(t *testing.T) {
	t.Parallel()
	w, archive := newWorld(t, false), newWorld(t, false)
	archive.ahead("table:12")
	old := fencedb.NewGrant("table:12", 7, uuid.New(), fencedb.NoEnd)
	refusal := func() error {
		_, err := fencedb.Exec(t.Context(), archive.pool, old, insertAnn)
		return err
	}
	for i, write := range []func() error{
		func() error {
			b := &pgx.Batch{}
			b.Queue(insertAnn).Exec(func(pgconn.CommandTag) error { return refusal() })
			return guard.SendBatch(t.Context(), w.issuer, w.pool, []string{"table:12"}, b)
		},
		func() error {
			return guard.Tx(t.Context(), w.issuer, w.pool, "table:12", func(ctx context.Context, _ *lease.Lease, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertAnn+`; COMMIT`)
				return errors.Join(err, refusal())
			})
		},
	} {
		err := write()

		require.ErrorIs(t, err, fencedb.ErrStale)
		require.Equal(t, i+1, w.bookings(), "%v", err)
	}
}

func TestTheWorkEndsWithTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)

	err := guard.Tx(t.Context(), w.issuer, w.pool, "table:12", func(ctx context.Context, l *lease.Lease, tx pgx.Tx) error {
		_, err := w.issuer.Revoke(t.Context(), "table:12")
		require.NoError(t, err)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), lease.ErrRevoked)
		return w.insert(ctx, tx, 12)
	})

	require.ErrorIs(t, err, lease.ErrRevoked)
	require.Zero(t, w.bookings())
}

func TestAnUnreachableRedisGivesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	require.NoError(t, w.redis.Close())

	require.Error(t, guard.Tx(t.Context(), w.issuer, w.pool, "table:12", w.book(12)))
	require.Zero(t, w.bookings())
}

// A lease that its holder has released is refused without asking Postgres, although no other has
// come. It is a mistake, and not "busy, try again".
func TestALeaseThatWasReleasedWritesNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	l, err := w.issuer.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.NoError(t, fencedb.Tx(t.Context(), w.pool, l, func(tx pgx.Tx) error { return w.insert(t.Context(), tx, 12) }))
	require.NoError(t, l.Release(t.Context()))

	err = fencedb.Tx(t.Context(), w.pool, l, func(tx pgx.Tx) error { return w.insert(t.Context(), tx, 12) })

	require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
	require.ErrorIs(t, err, lease.ErrReleased)
	require.ErrorContains(t, err, `the lease on "table:12" was released`)
	require.False(t, lease.IsLost(err))

	closing, err := lease.New(w.redis, lease.Config{TTL: 10 * time.Second, Namespace: w.namespace})
	require.NoError(t, err)
	l, err = closing.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.NoError(t, closing.Close(t.Context()))
	err = fencedb.Tx(t.Context(), w.pool, l, func(tx pgx.Tx) error { return w.insert(t.Context(), tx, 12) })
	require.ErrorIs(t, err, fencedb.ErrLeaseOver, "a program that ends has made no mistake")
	require.ErrorIs(t, err, lease.ErrClosed)
	require.True(t, lease.IsLost(err))
	require.Equal(t, 1, w.bookings())
	require.False(t, new(lease.Lease).Released())
}

func TestOptionsAmongTheArgumentsAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	for name, write := range oneShots {
		for says, option := range map[string]any{"a lease.Option": lease.NoWait(), "a fencedb.Option": fencedb.Hold(time.Minute)} {
			_, err := write(t.Context(), w.issuer, w.pool, "table:12", insertAnn, option)
			require.ErrorContains(t, err, says, name)
			require.ErrorContains(t, err, "issuer.With(...)", name)
		}
	}
	require.Zero(t, w.bookings())
}

func TestOptionsOfTheAcquisition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	held, err := w.issuer.TryAcquire(t.Context(), "table:12")
	require.NoError(t, err)
	for _, opt := range []lease.Option{lease.NoWait(), lease.WaitAtMost(2 * time.Second)} {
		for name, write := range oneShots {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // for a wait that should not be
			_, err := write(ctx, w.issuer.With(opt), w.pool, "table:12", insertAnn)
			require.ErrorIs(t, err, lease.ErrHeld, name)
			require.NoError(t, ctx.Err(), name)
			cancel()
		}
		require.ErrorIs(t, guard.Tx(t.Context(), w.issuer, w.pool, "table:12", w.book(12), opt), lease.ErrHeld)
		require.ErrorIs(t, guard.SendBatch(t.Context(), w.issuer, w.pool, []string{"table:13", "table:12"}, new(pgx.Batch), opt), lease.ErrHeld)
	}
	require.NoError(t, held.Release(t.Context()))

	id := uuid.New()
	require.NoError(t, guard.Tx(t.Context(), w.issuer, w.pool, "table:12", func(ctx context.Context, l *lease.Lease, tx pgx.Tx) error {
		require.Equal(t, id, l.LeaseID())
		require.NoError(t, l.Err())
		return nil
	}, lease.LeaseID(id), lease.NoWait()))
}

const insertAnn = `INSERT INTO bookings VALUES (12, 'ann') RETURNING guest`

// oneShots are the forms for one statement; each returns the guest that the statement does.
var oneShots = map[string]func(
	ctx context.Context, issuer *lease.Issuer, pool *pgxpool.Pool, resource, sql string, args ...any) (string, error){
	"Exec": func(ctx context.Context, issuer *lease.Issuer, pool *pgxpool.Pool, resource, sql string, args ...any) (string, error) {
		tag, err := guard.Exec(ctx, issuer, pool, resource, sql, args...)
		return map[string]string{"INSERT 0 1": "ann"}[tag.String()], err
	},
	"QueryRow": func(ctx context.Context, issuer *lease.Issuer, pool *pgxpool.Pool, resource, sql string, args ...any) (guest string, err error) {
		err = guard.QueryRow(ctx, issuer, pool, resource, sql, args...).Scan(&guest)
		return guest, err
	},
	"Query": func(ctx context.Context, issuer *lease.Issuer, pool *pgxpool.Pool, resource, sql string, args ...any) (string, error) {
		guests, err := guard.Query(ctx, issuer, pool, resource, pgx.RowTo[string], sql, args...)
		return strings.Join(guests, " "), err
	},
}

func TestOneShotsOfOneStatement(t *testing.T) {
	t.Parallel()
	for name, write := range oneShots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			w.ahead("table:12") // and they heal
			guest, err := write(t.Context(), w.issuer, w.pool, "table:12", insertAnn)
			require.NoError(t, err)
			require.Equal(t, "ann", guest)
			require.Equal(t, 1, w.bookings())
			w.free("table:12")

			_, err = write(t.Context(), w.issuer, w.pool, "table:13", insertAnn)
			require.ErrorIs(t, err, fencedb.ErrWrongResource)
			require.Equal(t, 1, w.bookings())
			w.free("table:13")
		})
	}
}

// What has committed is not told as if it had not, when its result cannot be read.
func TestOneShotsThatCannotReadTheirResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	var number int
	require.ErrorIs(t, guard.QueryRow(t.Context(), w.issuer, w.pool, "table:12", insertAnn).Scan(&number), fencedb.ErrCommitted)
	require.Equal(t, 1, w.bookings())
	_, err := guard.Query(t.Context(), w.issuer, w.pool, "table:12", pgx.RowTo[int], insertAnn)
	require.ErrorIs(t, err, fencedb.ErrCommitted)
	require.Equal(t, 2, w.bookings())
	err = guard.QueryRow(t.Context(), w.issuer, w.pool, "table:12", `UPDATE bookings SET guest = 'eve' WHERE false RETURNING guest`).Scan(new(string))
	require.ErrorIs(t, err, pgx.ErrNoRows)
	require.NotErrorIs(t, err, fencedb.ErrCommitted, "it has written nothing")
	err = guard.QueryRow(t.Context(), w.issuer, w.pool, "table:12",
		`WITH x AS (UPDATE bookings SET guest = 'eve' RETURNING guest) SELECT guest FROM x WHERE false`).Scan(new(string))
	require.ErrorIs(t, err, pgx.ErrNoRows)
	require.ErrorIs(t, err, fencedb.ErrCommitted, "nobody can know")
	w.free("table:12")
}

// It would be sent again.
func TestARowIsScannedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	var guest string
	row := guard.QueryRow(t.Context(), w.issuer, w.pool, "table:12", insertAnn)
	require.NoError(t, row.Scan(&guest))
	require.ErrorContains(t, row.Scan(&guest), "scanned before")
	require.Equal(t, 1, w.bookings())
}

// A permit has the type of a lease, and other holders beside it.
func TestAPermitIsNoGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	permits, err := lease.NewSemaphore(w.redis, lease.SemaphoreConfig{Limit: 2,
		Lease: lease.Config{TTL: 10 * time.Second, Namespace: w.namespace}})
	require.NoError(t, err)
	permit, err := permits.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.True(t, permit.IsPermit())
	for _, grant := range []fencedb.Grant{permit, fencedb.All(permit)} {
		_, err = fencedb.Exec(t.Context(), w.pool, grant, insertAnn)
		require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
		require.ErrorContains(t, err, "permit of a semaphore")
	}
	require.Zero(t, w.bookings())
	require.NoError(t, permit.Release(t.Context()))
	require.NoError(t, permits.Close(t.Context()))
	l, err := w.issuer.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	require.False(t, l.IsPermit())
	require.False(t, (*lease.Lease)(nil).IsPermit())
	require.NoError(t, l.Release(t.Context()))
}

func TestOneShotBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	_, err := guard.Exec(t.Context(), w.issuer, w.pool, "table:12", `INSERT INTO bookings VALUES ($1, $2)`, 12, "ann")
	require.NoError(t, err)

	b := &pgx.Batch{}
	for _, table := range []int{12, 13} {
		b.Queue(`INSERT INTO bookings VALUES ($1, 'bob')`, table)
	}
	require.ErrorIs(t, guard.SendBatch(t.Context(), w.issuer, w.pool, []string{"table:13"}, b), fencedb.ErrWrongResource)
	require.Equal(t, 1, w.bookings())
	require.NoError(t, guard.SendBatch(t.Context(), w.issuer, w.pool, []string{"table:13", "table:12"}, b))
	require.Equal(t, 3, w.bookings())
	for _, resource := range []string{"table:12", "table:13"} {
		found, err := w.issuer.Inspect(t.Context(), resource)
		require.NoError(t, err)
		require.Zero(t, found.Holder, "given back")
	}
}
