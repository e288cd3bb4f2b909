package integration

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// adoption goes the way of docs/adopting.md on a table in use.
type adoption struct {
	*testing.T
	url    string
	admin  *pgx.Conn
	guide  map[string][]string // the SQL of each section, by its heading
	issuer *lease.Issuer

	refusals  int // of statements of the guide, by their lock_timeout
	onRefusal func()
	notices   []string

	stop   chan struct{}
	crew   sync.WaitGroup
	actors map[string]*actor
}

// actor is a program that does one thing over and over.
type actor struct {
	mu    sync.RWMutex // read while it does it
	act   func(context.Context) (added int, err error)
	done  atomic.Int64
	added atomic.Int64 // seats, by what it has committed

	excused func(error) bool // what the guide says may fail; guarded by mu
	excuses atomic.Int64
}

func newAdoption(t *testing.T) *adoption {
	t.Helper()
	page, err := os.ReadFile("../../docs/adopting.md")
	require.NoError(t, err)
	r := &adoption{
		T: t, url: testenv.OwnPostgres(t).URL(), guide: map[string][]string{},
		onRefusal: func() {}, stop: make(chan struct{}), actors: map[string]*actor{},
	}
	for _, section := range strings.Split(string(page), "\n## ") {
		heading, _, _ := strings.Cut(section, "\n")
		for _, block := range regexp.MustCompile("(?ms)^```sql\n(.*?)^```").FindAllStringSubmatch(section, -1) {
			r.guide[heading] = append(r.guide[heading], block[1])
		}
	}
	r.issuer, err = lease.New(testenv.Redis(t), lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)})
	require.NoError(t, err)
	cfg, err := pgx.ParseConfig(r.url)
	require.NoError(t, err)
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { r.notices = append(r.notices, n.Message) }
	r.admin, err = pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.admin.Close(context.Background()) })
	return r
}

// follow runs the next blocks of a section, all of them if n is 0: statement by statement, again if
// the lock_timeout ends one.
func (r *adoption) follow(section string, n int) {
	r.Helper()
	blocks := r.guide[section]
	require.NotEmpty(r, blocks, section)
	if n == 0 {
		n = len(blocks)
	}
	for _, statement := range strings.Split(strings.Join(blocks[:n], ""), ";\n") {
		require.Eventually(r, func() bool {
			_, err := r.admin.PgConn().Exec(r.Context(), statement).ReadAll()
			if code(err) == "55P03" {
				r.refusals++
				r.onRefusal()
				return false
			}
			require.NoError(r, err, statement)
			return true
		}, time.Minute, time.Millisecond, statement)
	}
	r.guide[section] = blocks[n:]
}

func code(err error) string {
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func (r *adoption) one(query string) (value string) {
	r.Helper()
	require.NoError(r, r.admin.QueryRow(r.Context(), `SELECT coalesce((`+query+`)::text, '')`).Scan(&value))
	return value
}

// as is the URL for a role and a program.
func (r *adoption) as(role, program string) string {
	u, err := url.Parse(r.url)
	require.NoError(r, err)
	u.User = url.User(role)
	query := u.Query()
	query.Set("application_name", program)
	u.RawQuery = query.Encode()
	return u.String()
}

func (r *adoption) pool(role, program string) *pgxpool.Pool {
	r.Helper()
	pool, err := pgxpool.New(r.Context(), r.as(role, program))
	require.NoError(r, err)
	r.Cleanup(pool.Close)
	return pool
}

// deploy starts an actor, or replaces what it does.
func (r *adoption) deploy(name string, excused func(error) bool, act func(context.Context) (int, error)) {
	a := r.actors[name]
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.act, a.excused = act, excused
		return
	}
	a = &actor{act: act, excused: excused}
	r.actors[name] = a
	r.crew.Go(func() {
		for !r.stopped() && r.step(name, a) {
		}
	})
}

func (r *adoption) stopped() bool {
	select {
	case <-r.stop:
		return true
	default:
		return r.Failed()
	}
}

func (r *adoption) step(name string, a *actor) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	added, err := a.act(ctx)
	switch {
	case err == nil:
		a.added.Add(int64(added))
		a.done.Add(1)
	case a.excused != nil && a.excused(err):
		a.excuses.Add(1)
	default:
		return assert.NoError(r, err, name)
	}
	return true
}

// await lets everybody do something more.
func (r *adoption) await() {
	r.Helper()
	before := map[*actor]int64{}
	for _, a := range r.actors {
		before[a] = a.done.Load()
	}
	for name, a := range r.actors {
		require.Eventually(r, func() bool {
			return a.done.Load() > before[a]+1 || r.Failed()
		}, time.Minute, time.Millisecond, name)
	}
	require.False(r, r.Failed())
}

// books are what is in the table and what the writers have added to it, while they stand still.
func (r *adoption) books() (table, added int64) {
	r.Helper()
	for _, a := range r.actors {
		a.mu.Lock()
		defer a.mu.Unlock()
		added += a.added.Load()
	}
	require.NoError(r, r.admin.QueryRow(r.Context(), `SELECT sum(seats) FROM bookings`).Scan(&table))
	return table, added
}

// watchLocks returns what says, in the end, how long anybody has waited for a lock of the table,
// and who. Locks of rows are the writers' own business.
func (r *adoption) watchLocks() (longest func() (time.Duration, string)) {
	r.Helper()
	conn, err := pgx.Connect(r.Context(), r.url)
	require.NoError(r, err)
	ctx, stop := context.WithCancel(r.Context())
	r.Cleanup(stop)
	done := make(chan struct{})
	var most float64
	var who string
	go func() {
		defer close(done)
		defer conn.Close(context.Background())
		for {
			var waited float64
			var now string
			err := conn.QueryRow(ctx, `SELECT extract(epoch FROM clock_timestamp() - l.waitstart)::float8, concat_ws(' ', a.application_name, a.query)
				FROM pg_sleep(0.01), pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE l.locktype = 'relation' AND l.waitstart IS NOT NULL ORDER BY 1 DESC LIMIT 1`).Scan(&waited, &now)
			switch {
			case ctx.Err() != nil:
				return
			case !errors.Is(err, pgx.ErrNoRows):
				assert.NoError(r, err)
			}
			if waited > most {
				most, who = waited, now
			}
		}
	}()
	return func() (time.Duration, string) {
		stop()
		<-done
		return time.Duration(most * float64(time.Second)), who
	}
}

const (
	seats   = `SELECT seats FROM bookings WHERE table_id = $1`
	reserve = `UPDATE bookings SET seats = $2 WHERE table_id = $1`
)

// The writers as they were: they read, decide and write, and exclude nobody.
func (r *adoption) writersAsTheyWere(direct *pgxpool.Pool, behind *sql.DB, legacy *pgxpool.Pool) {
	r.deploy("pgx", nil, func(ctx context.Context) (int, error) {
		return 1, unfenced(ctx, direct)
	})
	r.deploy("database/sql", nil, func(ctx context.Context) (int, error) {
		tx, err := behind.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		return 1, errors.Join(oneMoreSQL(ctx, tx, 13), tx.Commit())
	})
	r.deploy("cron", nil, func(ctx context.Context) (int, error) {
		conn, err := pgx.Connect(ctx, r.as("shop_app", "cron"))
		if err != nil {
			return 0, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		_, err = conn.Exec(ctx, `UPDATE bookings SET seats = seats + 1`)
		return 2, err
	})
	r.deploy("legacy", nil, plain(legacy))
}

// plain is the writer that is never changed. It writes ten times a second at most: each time it
// overtakes a holder.
func plain(pool *pgxpool.Pool) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		if _, err := pool.Exec(ctx, `SELECT pg_sleep(0.1)`); err != nil {
			return 0, err
		}
		_, err := pool.Exec(ctx, `UPDATE bookings SET seats = seats + 1 WHERE table_id = 12`)
		return 1, err
	}
}

func unfenced(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return oneMore(ctx, tx, 12)
	})
}

func fenced(ctx context.Context, desk *guard.Desk) error {
	return desk.Tx(ctx, "table:12", func(ctx context.Context, tx pgx.Tx) error {
		return oneMore(ctx, tx, 12)
	})
}

func fencedSQL(ctx context.Context, desk *guard.Desk, db *sql.DB) error {
	return desk.Do(ctx, "table:13", func(ctx context.Context, h *guard.Holder) error {
		return h.TxSQL(ctx, db, func(tx *sql.Tx) error {
			return oneMoreSQL(ctx, tx, 13)
		})
	})
}

func oneMore(ctx context.Context, tx pgx.Tx, table int) error {
	var n int
	if err := tx.QueryRow(ctx, seats, table).Scan(&n); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, reserve, table, n+1)
	return err
}

func oneMoreSQL(ctx context.Context, tx *sql.Tx, table int) error {
	var n int
	if err := tx.QueryRowContext(ctx, seats, table).Scan(&n); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, reserve, table, n+1)
	return err
}

// lost is what happens to a holder that is overtaken by a role, as the guide says.
func lost(err error) bool {
	return lease.IsLost(err) || code(err) == "40P01" || errors.Is(err, fencedb.ErrTooLong)
}

func TestTheGuideIsRehearsedUnderLoad(t *testing.T) {
	t.Parallel()
	r := newAdoption(t)
	r.follow("# Adopting fences on a table in use", 0)
	_, err := r.admin.Exec(t.Context(), `ALTER ROLE shop_app LOGIN`)
	require.NoError(t, err)
	direct := r.pool("shop_app", "api")
	bouncer := testenv.PgBouncer(t, r.as("shop_app", ""), "transaction", "default_pool_size=4")
	behind, err := sql.Open("pgx", bouncer.URL()+"&application_name=web&default_query_exec_mode=exec")
	require.NoError(t, err)
	t.Cleanup(func() { _ = behind.Close() })
	r.writersAsTheyWere(direct, behind, r.pool("shop_app", "billing"))
	r.readers()
	longest := r.watchLocks()
	r.await()

	db, err := sql.Open("pgx", r.url)
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), db))
	require.NoError(t, db.Close())
	r.follow("1. The schema", 0)
	r.await()

	_, err = r.admin.Exec(t.Context(), `SET client_min_messages = debug1`)
	require.NoError(t, err)
	r.follow("2. A resource for every row", 0)
	require.Contains(t, r.notices, `existing constraints on column "bookings.table_id" are sufficient to prove that it does not contain nulls`, "nobody waits for a scan")
	_, err = r.admin.Exec(t.Context(), `RESET client_min_messages`)
	require.NoError(t, err)
	r.await()

	report, err := direct.Begin(t.Context()) // a long one, that ends when the guide's statement has given up once
	require.NoError(t, err)
	_, err = report.Exec(t.Context(), `SELECT FROM bookings`)
	require.NoError(t, err)
	r.onRefusal = func() { _ = report.Rollback(t.Context()) }
	r.follow("3. The column", 0)
	require.Positive(t, r.refusals)
	r.onRefusal = func() {}
	r.await()
	require.LessOrEqual(t, r.actors["SELECT *"].excuses.Load(), int64(1), "once on its connection")
	type row struct {
		ID, TableID int
		Guest       string
		Seats       int
	}
	rows, err := r.admin.Query(t.Context(), `SELECT * FROM bookings`)
	require.NoError(t, err)
	_, err = pgx.CollectRows(rows, pgx.RowToStructByName[row])
	require.Error(t, err, "for good, as the guide says")

	r.follow("4. Observe", 0)
	r.await()
	require.Equal(t, "api, billing, cron, web", r.one(`SELECT string_agg(DISTINCT application, ', ' ORDER BY application) FROM fencedb.unfenced_writes`))

	r.writersEnter(direct, behind)
	r.await()
	r.follow("5. Writers enter", 1)
	require.Eventually(t, func() bool {
		return r.one(`SELECT string_agg(DISTINCT application || ' ' || reason, ', ') FROM fencedb.unfenced_writes`) == "billing FN002"
	}, time.Minute, 10*time.Millisecond, "the one that is left; what is noted lately is not written again at once")
	r.follow("5. Writers enter", 0)
	_, err = r.admin.Exec(t.Context(), `ALTER ROLE legacy LOGIN`)
	require.NoError(t, err)
	r.deploy("legacy", nil, plain(r.pool("legacy", "billing"))) // its configuration, not its code
	_, err = r.admin.Exec(t.Context(), `SELECT fencedb.prune('observed', '0', 'ann@desk', 'to see what still comes', clock_timestamp())`)
	require.NoError(t, err)
	r.await()
	require.Empty(t, r.one(`SELECT string_agg(DISTINCT application || ' ' || reason, ', ') FROM fencedb.unfenced_writes`))

	r.enforced(direct)
	close(r.stop)
	r.crew.Wait()
	require.False(t, t.Failed())
	waited, who := longest()
	require.Less(t, waited, 5*time.Second, who)
	for name, a := range r.actors {
		t.Logf("%-14s %5d times, %4d excused", name, a.done.Load(), a.excuses.Load())
	}
	t.Logf("the longest that anybody waited for a lock of the table: %v %s", waited, who)
}

func (r *adoption) readers() {
	r.Helper()
	named, star := r.pool("shop_app", "report"), r.pool("shop_app", "export")
	star.Config().MaxConns = 1
	r.deploy("named columns", nil, func(ctx context.Context) (int, error) {
		rows, err := named.Query(ctx, `SELECT table_id, guest, seats FROM bookings, pg_sleep(0.001)`)
		if err != nil {
			return 0, err
		}
		_, err = pgx.CollectRows(rows, pgx.RowToMap)
		return 0, err
	})
	r.deploy("SELECT *", func(err error) bool { return code(err) == "0A000" }, func(ctx context.Context) (int, error) {
		rows, err := star.Query(ctx, `SELECT * FROM bookings, LATERAL (SELECT pg_sleep(0.001)) AS pace`)
		if err != nil {
			return 0, err
		}
		_, err = pgx.CollectRows(rows, pgx.RowToMap)
		return 0, err
	})
}

// writersEnter deploys three of the writers anew, one after the other.
func (r *adoption) writersEnter(direct *pgxpool.Pool, behind *sql.DB) {
	r.Helper()
	desk := guard.New(r.issuer, direct)
	r.deploy("pgx", lost, func(ctx context.Context) (int, error) {
		return 1, fenced(ctx, desk)
	})
	r.await()
	r.deploy("database/sql", lost, func(ctx context.Context) (int, error) {
		return 1, fencedSQL(ctx, desk, behind)
	})
	r.await()
	r.deploy("cron", lost, func(ctx context.Context) (int, error) {
		conn, err := pgx.Connect(ctx, r.as("shop_app", "cron"))
		if err != nil {
			return 0, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		both := []string{"table:12", "table:13"}
		return 2, guard.New(r.issuer, conn).DoAll(ctx, both, func(ctx context.Context, h *guard.Holder) error {
			return h.Tx(ctx, func(tx pgx.Tx) error {
				return errors.Join(oneMore(ctx, tx, 12), oneMore(ctx, tx, 13))
			})
		})
	})
}

// enforced is the last step, the way back, and the last step again. The books are right from the
// first time on.
func (r *adoption) enforced(direct *pgxpool.Pool) {
	r.Helper()
	enforce, back := r.guide["6. Enforce"][0], r.guide["6. Enforce"][1]
	r.guide["6. Enforce"] = []string{enforce, back, enforce}
	r.follow("6. Enforce", 1)
	table, added := r.books()
	refused := func() {
		_, err := direct.Exec(r.Context(), reserve, 12, 0)
		require.ErrorIs(r, fencedb.Explain(err), fencedb.ErrNoToken)
	}
	refused()
	r.await()
	r.follow("6. Enforce", 1)
	r.await()
	r.follow("6. Enforce", 1)
	refused()
	r.await()
	now, addedNow := r.books()
	require.Equal(r, addedNow-added, now-table, "lost updates")
	require.ErrorIs(r, r.overtaken(direct), fencedb.ErrStale)
}

// overtaken is the answer to a holder that writes after the writer that is never changed.
func (r *adoption) overtaken(direct *pgxpool.Pool) error {
	r.Helper()
	return r.issuer.Do(r.Context(), "table:12", func(ctx context.Context, l *lease.Lease) error {
		require.NoError(r, fencedb.Seal(ctx, direct, l))
		legacy := r.actors["legacy"]
		before := legacy.done.Load()
		require.Eventually(r, func() bool {
			return legacy.done.Load() > before+1 || r.Failed()
		}, time.Minute, time.Millisecond)
		_, err := fencedb.Exec(ctx, direct, l, reserve, 12, 0)
		return err
	})
}
