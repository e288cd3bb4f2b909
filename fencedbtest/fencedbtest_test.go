package fencedbtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/admission"
	"github.com/fencedb/fencedb/lease/once"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// printed is a test whose result is printed.
type printed struct {
	testing.TB
	name     string
	text     strings.Builder
	cleanups []func()
}

func begin(name string) *printed { return &printed{name: name} }

func (p *printed) end() {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
	fmt.Print(p.text.String())
	fmt.Printf("%s: %s\n", map[bool]string{true: "FAIL", false: "PASS"}[p.Failed()], p.name)
}

func (p *printed) Helper()                        {}
func (p *printed) Name() string                   { return p.name }
func (p *printed) Context() context.Context       { return context.Background() }
func (p *printed) Cleanup(f func())               { p.cleanups = append(p.cleanups, f) }
func (p *printed) Failed() bool                   { return p.text.Len() > 0 }
func (p *printed) Skipped() bool                  { return false }
func (p *printed) Logf(string, ...any)            {}
func (p *printed) Errorf(format string, a ...any) { fmt.Fprintf(&p.text, format+"\n", a...) }
func (p *printed) Fatalf(format string, a ...any) { p.Errorf(format, a...); runtime.Goexit() }
func (p *printed) Fatal(a ...any)                 { p.Fatalf("%s", fmt.Sprint(a...)) }
func (p *printed) FailNow()                       { p.Fatal("failed") }

// database is the URL of one with table 12, which is free.
func database(t testing.TB) string {
	t.Helper()
	pool := testenv.Postgres(t)
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE bookings (table_id int PRIMARY KEY, guest text NOT NULL);
		CREATE TABLE unprotected (table_id int PRIMARY KEY, guest text NOT NULL);
		INSERT INTO bookings VALUES (12, '');
		INSERT INTO unprotected VALUES (12, '');
		SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	require.NoError(t, err)
	return pool.Config().ConnString()
}

func poolOf(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

type world struct {
	*testing.T
	leases   *fencedbtest.Issuer
	postgres *fencedbtest.Postgres
	pool     *pgxpool.Pool
}

func newWorld(t *testing.T) *world { return newWorldOn(t, database(t)) }

func newWorldOn(t *testing.T, url string) *world {
	w := &world{T: t, leases: fencedbtest.NewIssuer(t, lease.Config{})}
	w.postgres = fencedbtest.NewPostgres(t, url)
	w.pool = poolOf(t, w.postgres.URL())
	return w
}

const update = `UPDATE bookings SET guest = $1 WHERE table_id = 12`

func (w *world) guest() (name string) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT guest FROM bookings WHERE table_id = 12`).Scan(&name))
	return name
}

// ways are those in which the code under test may write for Ann.
var ways = map[string]func(w *world, l fencedb.Grant) error{
	"Tx": func(w *world, l fencedb.Grant) error {
		return fencedb.Tx(w.Context(), w.pool, l, func(tx pgx.Tx) error {
			_, err := tx.Exec(w.Context(), update, "Ann")
			return err
		})
	},
	"Exec": func(w *world, l fencedb.Grant) error {
		_, err := fencedb.Exec(w.Context(), w.pool, l, update, "Ann")
		return err
	},
	"TxSQL": func(w *world, l fencedb.Grant) error {
		db := stdlib.OpenDBFromPool(w.pool)
		defer db.Close()
		return fencedb.TxSQL(w.Context(), db, l, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(w.Context(), update, "Ann")
			return err
		})
	},
	"simple protocol": func(w *world, l fencedb.Grant) error {
		_, err := fencedb.Exec(w.Context(), poolOf(w, w.postgres.URL()+"&default_query_exec_mode=simple_protocol"), l, update, "Ann")
		return err
	},
}

func (w *world) overtake() {
	fencedbtest.Overtake(w, w.leases, w.pool, "table:12", func(tx pgx.Tx) error {
		_, err := tx.Exec(w.Context(), update, "Bob")
		return err
	})
}

// TxSQL enters in a round trip of its own, so there the fence is what is waited for.
func at(way string) string {
	if way == "TxSQL" {
		return "fencedb.enter"
	}
	return "UPDATE bookings"
}

// underALease are the ways to hold table 12 for work: the door seals, an issuer may, and neither
// need.
var underALease = map[string]func(w *world, work func(fencedb.Grant) error) error{
	"issuer": func(w *world, work func(fencedb.Grant) error) error {
		return w.leases.Do(w.Context(), "table:12", func(_ context.Context, l *lease.Lease) error { return work(l) })
	},
	"sealing issuer": func(w *world, work func(fencedb.Grant) error) error {
		sealed := w.leases.Sealed(fencedb.Sealer(w.pool))
		return sealed.Do(w.Context(), "table:12", func(_ context.Context, l *lease.Lease) error { return work(l) })
	},
	"door": func(w *world, work func(fencedb.Grant) error) error {
		return guard.New(w.leases.Issuer, w.pool).Do(w.Context(), "table:12", func(_ context.Context, h *guard.Holder) error { return work(h.Grant()) })
	},
	"door of several": func(w *world, work func(fencedb.Grant) error) error {
		return guard.New(w.leases.Issuer, w.pool).DoAll(w.Context(), []string{"table:12", "table:13"},
			func(_ context.Context, h *guard.Holder) error { return work(h.Grant()) })
	},
}

// A seal is no entry: who is stopped there has not decided yet.
func TestOvertakenBetweenDecisionAndWrite(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		for how, hold := range underALease {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				w, decided := newWorld(t), false
				var unchanged func()
				w.postgres.Pause(at(name), func() {
					require.True(t, decided)
					w.overtake()
					unchanged = fencedbtest.Snapshot(t, w.pool, "bookings", "unprotected")
				})

				err := hold(w, func(g fencedb.Grant) error {
					decided = true
					return write(w, g)
				})

				fencedbtest.Refused(t, err)
				require.ErrorIs(t, err, fencedb.ErrStale)
				unchanged()
				require.Equal(t, "Bob", w.guest())
			})
		}
	}
}

// Nobody can come there, and the test says so, instead of waiting.
func TestAStopWithinATransactionIsNoPlaceToOvertake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inner := begin(t.Name())
	w.postgres.Pause("UPDATE bookings", func() { fencedbtest.Overtake(inner, w.leases, w.pool, "table:12") })
	err := guard.New(w.leases.Issuer, w.pool).Tx(t.Context(), "table:12", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, update, "Ann")
		return err
	})
	require.NoError(t, err, "it was the holder")
	require.Contains(t, inner.text.String(), `stop the code before that transaction enters: Pause at its first statement, or at "fencedb.enter"`)
	require.Contains(t, inner.text.String(), "idle in transaction")
}

// withWaiter is an issuer whose first waiter is quick.
type withWaiter struct {
	*world
	*fencedbtest.Issuer
}

func (i withWaiter) Revoke(ctx context.Context, resource string) (*lease.Revocation, error) {
	revoked, err := i.Issuer.Revoke(ctx, resource)
	require.NoError(i.world, err)
	next, err := i.Acquire(ctx, resource, lease.NoWait())
	require.NoError(i.world, err)
	require.NoError(i.world, fencedb.Seal(ctx, i.pool, next))
	return revoked, err
}

// The other holder would be stale itself.
func TestAWaiterIsInTheWayOfOvertake(t *testing.T) {
	t.Parallel()
	w, inner, done := newWorld(t), begin(t.Name()), make(chan struct{})
	go func() {
		defer close(done)
		fencedbtest.Overtake(inner, withWaiter{w, w.leases}, w.pool, "table:12")
	}()
	<-done
	require.Contains(t, inner.text.String(), `somebody entered before the holder that took "table:12" over; let nobody wait`)
}

// The door enters before the function runs, and that is where it can be stopped.
func TestTheDoorsTxIsStoppedWhereItEnters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.postgres.Pause("fencedb.enter", w.overtake)
	err := guard.New(w.leases.Issuer, w.pool).Tx(t.Context(), "table:12", func(context.Context, pgx.Tx) error {
		t.Error("it runs")
		return nil
	})
	fencedbtest.Refused(t, err)
}

// guard heals where Redis has gone backwards; a holder that was overtaken must not be healed.
func TestAnOvertakenHolderIsNotHealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.postgres.Pause("UPDATE bookings", w.overtake)
	_, err := guard.New(w.leases.Issuer, w.pool).Exec(t.Context(), "table:12", update, "Ann")
	fencedbtest.Refused(t, err)
	require.Equal(t, "Bob", w.guest())
}

func TestAPauseIsOneForOneStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runs := 0
	w.postgres.Pause("no such statement", func() { t.Error("it ran") })
	w.postgres.Pause("UPDATE bookings", func() { runs++ })
	for range 2 {
		_, err := guard.New(w.leases.Issuer, w.pool).Exec(t.Context(), "table:12", update, "Ann")
		require.NoError(t, err)
	}
	require.Equal(t, 1, runs)
}

func TestAServerThatIsReachedWithTLSIsReachedThroughItsURL(t *testing.T) {
	t.Parallel()
	encrypted, err := url.Parse(database(t))
	require.NoError(t, err)
	encrypted.RawQuery = "sslmode=require"
	require.NoError(t, poolOf(t, fencedbtest.NewPostgres(t, encrypted.String()).URL()).Ping(t.Context()))
}

// The name of the helper's alias stands for a column there, and that one does not change.
func TestSnapshotSeesEveryColumn(t *testing.T) {
	t.Parallel()
	pool := poolOf(t, database(t))
	_, err := pool.Exec(t.Context(), `CREATE TABLE notes (fencedbtest text, body text); INSERT INTO notes VALUES ('a', 'old')`)
	require.NoError(t, err)
	p := begin(t.Name())
	check := fencedbtest.Snapshot(p, pool, "notes")
	_, err = pool.Exec(t.Context(), `UPDATE notes SET body = 'new'`)
	require.NoError(t, err)
	check()
	require.Contains(t, p.text.String(), "(a,old)\nnow:\n  (a,new)")
}

func TestSnapshotIsForACleanupToo(t *testing.T) {
	t.Parallel()
	pool := poolOf(t, database(t))
	t.Cleanup(fencedbtest.Snapshot(t, pool, "bookings", "unprotected"))
}

// Or a typing error in the text makes a test that passes without its fault.
func TestAFaultThatNeverHappensFailsTheTest(t *testing.T) {
	t.Parallel()
	server := database(t)
	for fault, ask := range map[string]func(p *fencedbtest.Postgres){
		`Pause: no statement contained "UPDATE typo_bookings"`: func(p *fencedbtest.Postgres) {
			p.Pause("UPDATE typo_bookings", func() { t.Error("it ran") })
		},
		"CutCommit: nothing was committed":          (*fencedbtest.Postgres).CutCommit,
		"CutCommitAndServer: nothing was committed": func(p *fencedbtest.Postgres) { p.CutCommitAndServer() },
	} {
		for _, failed := range []bool{false, true} {
			inner := begin("inner")
			p := fencedbtest.NewPostgres(inner, server)
			ask(p)
			conn, err := pgx.Connect(t.Context(), p.URL())
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), `SELECT FROM bookings`)
			require.NoError(t, err)
			require.NoError(t, conn.Close(t.Context()))
			if failed {
				inner.Errorf("the code is wrong")
			}
			inner.end()
			if failed {
				require.Equal(t, "the code is wrong\n", inner.text.String(), "the reason is not hidden")
			} else {
				require.Contains(t, inner.text.String(), "fencedbtest: "+fault)
			}
		}
	}
}

func TestACutCommitIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		for how, hold := range underALease {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.postgres.CutCommit() // not that of the seal, nor of what is read first
				read := fencedb.NewRepository(w.pool, func(tx pgx.Tx) pgx.Tx { return tx }).Read
				require.NoError(t, hold(w, func(g fencedb.Grant) error {
					err := read(t.Context(), func(tx pgx.Tx) error {
						_, err := tx.Exec(t.Context(), `SELECT 1`)
						return err
					})
					return errors.Join(err, write(w, g))
				}))
				require.Equal(t, "Ann", w.guest())
			})
		}
	}
	w := newWorld(t)
	w.postgres.CutCommit()
	err := pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE unprotected SET guest = 'Ann'`)
		return err
	})
	require.Error(t, err, "without fencedb it looks as if nothing was written")
	check := fencedbtest.Snapshot(t, w.pool, "unprotected")
	check()
}

func TestAServerThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	url := database(t)
	w := newWorldOn(t, url)
	direct := &world{T: t, pool: poolOf(t, url)}
	ctx, cancel := context.WithCancel(t.Context())
	l, err := w.leases.Acquire(ctx, "table:12")
	require.NoError(t, err)
	restore := w.postgres.CutCommitAndServer()
	go func() { // or it would ask until after the lease
		defer cancel()
		assert.Eventually(t, func() bool { return direct.guest() == "Ann" }, time.Minute, time.Millisecond)
	}()
	err = fencedb.Tx(ctx, w.pool, l, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, update, "Ann")
		return err
	})
	require.ErrorIs(t, err, fencedb.ErrCommitUnknown)
	require.False(t, lease.IsLost(err))
	restore()
	require.Equal(t, "Ann", w.guest())
}

func TestExpireAndFlush(t *testing.T) {
	t.Parallel()
	own := fencedbtest.NewIssuer(t, lease.Config{})
	for name, i := range map[string]*fencedbtest.Issuer{
		"in the process": own,
		"on a server":    fencedbtest.IssuerOn(t, testenv.Redis(t), lease.Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			believes, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
			require.NoError(t, err)
			_, err = i.Acquire(t.Context(), "table:12", lease.NoWait())
			require.ErrorIs(t, err, lease.ErrHeld)

			fencedbtest.Expire(t, i, "table:12")

			next, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
			require.NoError(t, err)
			require.NoError(t, believes.Err())
			require.Greater(t, next.Token(), believes.Token())
			require.ErrorIs(t, believes.Extend(t.Context()), lease.ErrLost)

			keys, err := once.New(i.Client, once.Config{Namespace: i.Config.Namespace})
			require.NoError(t, err)
			_, _, err = keys.Do(t.Context(), "order:7", nil, func(context.Context, *lease.Lease) ([]byte, error) { return nil, nil })
			require.NoError(t, err)
			limiter, err := admission.New(i.Client, admission.Config{Limit: 1, Window: time.Hour,
				OnError: admission.FailClosed, Namespace: i.Config.Namespace})
			require.NoError(t, err)
			allow := func() bool {
				decision, err := limiter.Allow(t.Context(), "tenant:7")
				require.NoError(t, err)
				return decision.Allowed
			}
			require.True(t, allow())

			fencedbtest.Flush(t, i)

			state, err := keys.State(t.Context(), "order:7")
			require.NoError(t, err)
			require.Equal(t, once.Absent, state.Phase)
			require.True(t, allow())
			found, err := i.Inspect(t.Context(), "table:12")
			require.NoError(t, err)
			require.Zero(t, found.Token)
			require.Zero(t, found.LastToken)
			third, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
			require.NoError(t, err)
			require.Greater(t, third.Token(), next.Token(), "by Redis's clock")
		})
	}
}

func TestAnIssuerEndsWithItsTest(t *testing.T) {
	t.Parallel()
	for name, issuer := range map[string]func(t testing.TB) *fencedbtest.Issuer{
		"in the process": func(t testing.TB) *fencedbtest.Issuer { return fencedbtest.NewIssuer(t, lease.Config{}) },
		"on a server": func(t testing.TB) *fencedbtest.Issuer {
			return fencedbtest.IssuerOn(t, testenv.Redis(t), lease.Config{})
		},
	} {
		var left *lease.Lease
		waited := make(chan error, 1)
		t.Run(name, func(t *testing.T) {
			i := issuer(t)
			var err error
			left, err = i.Acquire(t.Context(), "table:12", lease.NoWait())
			require.NoError(t, err)
			go func() {
				_, err := i.Acquire(context.Background(), "table:12")
				waited <- err
			}()
		})
		require.ErrorIs(t, left.Err(), lease.ErrReleased, name)
		require.ErrorIs(t, <-waited, lease.ErrClosed, name)
	}
}

func TestATestMayCloseItsClient(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(testenv.Redis(t).Options())
	defer client.Close() // before the end of the issuer
	_, err := fencedbtest.IssuerOn(t, client, lease.Config{}).Inspect(t.Context(), "table:12")
	require.NoError(t, err)
}

func TestRefusedKnowsWhatTheFenceRefuses(t *testing.T) {
	t.Parallel()
	for err, refused := range map[error]bool{
		fencedb.ErrStale: true, fencedb.ErrLeaseOver: true, fencedb.ErrBusy: true,
		fencedb.ErrNoToken: true, fencedb.ErrWrongResource: true,
		&pgconn.PgError{Code: "FN001"}: true, &pgconn.PgError{Code: "23505"}: false,
		fencedb.ErrCommitUnknown: false, fencedb.ErrCommitted: false, errors.New("another"): false, error(nil): false,
	} {
		inner := begin("inner")
		fencedbtest.Refused(inner, err)
		require.Equal(t, !refused, inner.Failed(), "%v", err)
	}
}

// What cannot be asserted fails the test and says so.
func TestMisuse(t *testing.T) {
	t.Parallel()
	i := fencedbtest.NewIssuer(t, lease.Config{})
	closed := fencedbtest.NewIssuer(t, lease.Config{})
	require.NoError(t, closed.Client.Close())
	w := newWorld(t)
	for name, misuse := range map[string]func(t testing.TB){
		"no lease to expire": func(t testing.TB) { fencedbtest.Expire(t, i, "table:12") },
		"hashed": func(t testing.TB) {
			fencedbtest.Expire(t, fencedbtest.NewIssuer(t, lease.Config{HashResources: true}), "a:1")
		},
		"no such table":      func(t testing.TB) { fencedbtest.Snapshot(t, w.pool, "nowhere") },
		"no URL":             func(t testing.TB) { fencedbtest.NewPostgres(t, "host=localhost") },
		"no config":          func(t testing.TB) { fencedbtest.NewIssuer(t, lease.Config{TTL: -1}) },
		"no Redis":           func(t testing.TB) { fencedbtest.Flush(t, closed) },
		"nobody to overtake": func(t testing.TB) { fencedbtest.Overtake(t, closed, w.pool, "table:12") },
		"a write that fails": func(t testing.TB) {
			fencedbtest.Overtake(t, i, w.pool, "table:12", func(pgx.Tx) error { return errors.New("the kitchen is closed") })
		},
	} {
		inner, done := begin(name), make(chan struct{})
		go func() {
			defer close(done)
			misuse(inner)
		}()
		<-done
		require.True(t, inner.Failed(), name)
		require.Contains(t, inner.text.String(), "fencedbtest: ", name)
	}
	require.NotNil(t, fencedbtest.NewPostgres(t, "postgres://localhost/without_a_port"))
}
