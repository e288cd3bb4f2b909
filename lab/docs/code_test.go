package docs

// Go that pages show and no example has, so that it is compiled and run.

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	door "github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
	"github.com/fencedb/fencedb/observe/feed"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
	"github.com/fencedb/fencedb/observe/prom"
	fencelog "github.com/fencedb/fencedb/observe/slog"
)

// Each block of Go in a page, without its indentation, is somewhere in a Go file. A line of three
// dots stands for what is left out.
func TestTheGoInTheDocumentationIsCompiled(t *testing.T) {
	t.Parallel()
	ends := regexp.MustCompile(`\s*\n\s*`)
	lines := func(text string) string { return ends.ReplaceAllString("\n"+text+"\n", "\n") }
	var compiled strings.Builder
	for _, file := range tracked(t) {
		if filepath.Ext(file) == ".go" {
			text, err := os.ReadFile("../" + file)
			require.NoError(t, err)
			compiled.WriteString(lines(string(text)))
		}
	}
	blocks := 0
	for page, text := range pages(t) {
		for _, block := range regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```").FindAllStringSubmatch(text, -1) {
			blocks++
			for _, part := range regexp.MustCompile(`(?m)^\s*\.\.\.$`).Split(block[1], -1) {
				require.True(t, strings.Contains(compiled.String(), lines(part)), "%s: no Go file has\n%s", page, part)
			}
		}
	}
	require.Greater(t, blocks, 8)
}

// docs/testing.md shows it.
func TestABookingSurvivesAZombie(t *testing.T) {
	leases := fencedbtest.NewIssuer(t, lease.Config{})
	postgres := fencedbtest.NewPostgres(t, databaseURL(t)) // of a database for tests
	pool, err := pgxpool.New(t.Context(), postgres.URL())  // for the code under test
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, sql := range []string{
		`CREATE TABLE bookings (table_id int PRIMARY KEY, guest text NOT NULL)`,
		`INSERT INTO bookings VALUES (12, '')`,
		`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	bookings := newService(leases.Issuer, pool) // as main makes it, with guard.New(issuer, pool)

	var unchanged func()
	postgres.Pause("UPDATE bookings", func() { // Ann's request has decided, and not written yet
		fencedbtest.Overtake(t, leases, pool, "table:12", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `UPDATE bookings SET guest = 'Bob' WHERE table_id = 12`)
			return err
		})
		unchanged = fencedbtest.Snapshot(t, pool, "bookings")
	})

	err = bookings.Book(t.Context(), "Ann")

	fencedbtest.Refused(t, err)
	unchanged()
	if !lease.IsLost(err) { // which the handler answers with "busy"
		t.Error("Ann is told", err)
	}
}

func databaseURL(t *testing.T) string { return testenv.Postgres(t).Config().ConnString() }

// service decides by what it has read, and writes later.
type service struct {
	db   *pgxpool.Pool
	desk *door.Desk
}

func newService(issuer *lease.Issuer, db *pgxpool.Pool) service {
	return service{db, door.New(issuer, db)}
}

func (d service) Book(ctx context.Context, guest string) error {
	return d.desk.Do(ctx, "table:12", func(ctx context.Context, h *door.Holder) error {
		var free bool
		if err := d.db.QueryRow(ctx, `SELECT true FROM bookings WHERE table_id = 12 AND guest = ''`).Scan(&free); err != nil {
			return err // pgx.ErrNoRows: it is taken
		}
		return h.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE bookings SET guest = $1 WHERE table_id = 12`, guest)
			return err
		})
	})
}

var errSoldOut = errors.New("sold out")

// The README shows it.
func TestARuleOfTheWritersOwnRollsBack(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testenv.Postgres(t)
	issuer, err := lease.New(testenv.Redis(t), lease.Config{TTL: 10 * time.Second, Namespace: testenv.Namespace(t)})
	require.NoError(t, err)
	_, err = pool.Exec(ctx, `CREATE TABLE stock (sku int PRIMARY KEY, pieces int NOT NULL);
		INSERT INTO stock VALUES (6, 3);
		SELECT fencedb.protect('stock', resource => 'sku:{sku}')`)
	require.NoError(t, err)
	desk := door.New(issuer, pool)
	sell := func() error {
		err := desk.Tx(ctx, "sku:6", func(ctx context.Context, tx pgx.Tx) error {
			var left int
			err := tx.QueryRow(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE sku = 6 RETURNING pieces`).Scan(&left)
			if err == nil && left < 0 {
				err = errSoldOut // rolls back
			}
			return err
		}, lease.WaitAtMost(2*time.Second))
		return err
	}

	for range 3 {
		require.NoError(t, sell())
	}
	require.ErrorIs(t, sell(), errSoldOut)
	var pieces int
	require.NoError(t, pool.QueryRow(ctx, `SELECT pieces FROM stock`).Scan(&pieces))
	require.Zero(t, pieces)
	require.NoError(t, issuer.Close(ctx))
}

// docs/patterns.md shows it.
func TestAPeriodIsDoneOnceAlsoIfRedisForgets(t *testing.T) {
	t.Parallel()
	ctx, pool, due, sent := t.Context(), testenv.Postgres(t), time.Now(), 0
	remind := func(context.Context, pgx.Tx) error {
		sent++
		return nil
	}
	for range 2 {
		keys, err := once.New(testenv.OwnRedis(t).Client(), once.Config{}) // a Redis that knows nothing
		require.NoError(t, err)

		key := "reminders " + due.UTC().Format("2006-01-02T15") // the scheduled time, not time.Now()
		_, _, err = keys.Do(ctx, key, nil, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
			return nil, fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
				_, _, err := fencedb.Once(ctx, tx, key, nil, func() ([]byte, error) { return nil, remind(ctx, tx) })
				return err
			})
		})

		require.NoError(t, err)
	}
	require.Equal(t, 1, sent)
}

// docs/observing.md and docs/leases.md show it.
func TestATracerOfEachKindAndACacheEntry(t *testing.T) {
	t.Parallel()
	client, pool := testenv.Redis(t), testenv.Postgres(t)

	events := feed.New(client, feed.OnOutage(func(err error) { // nil: events pass again
		slog.Warn("the events of leases are dropped", "error", err)
	}))
	defer events.Close(context.Background()) // sends what is still buffered
	metrics := prom.New(prom.Config{Dropped: events.Dropped})
	prometheus.MustRegister(metrics) // promhttp.Handler() serves them
	logs := fencelog.New(slog.Default(), fencelog.Config{})
	telemetry := fenceotel.New(fenceotel.Config{})

	issuer, err := lease.New(client, lease.Config{
		TTL:     10 * time.Second,
		Tracers: []lease.Tracer{telemetry, metrics, logs, events},
	})
	db := fencedb.With(pool, fencedb.Trace(telemetry, metrics, logs, events))

	require.NoError(t, err)
	defer prometheus.Unregister(metrics) // for -count=2
	require.NoError(t, issuer.Do(t.Context(), testenv.Namespace(t)+":1", func(ctx context.Context, l *lease.Lease) error {
		text := l.Resource()
		key := lease.Key{Kind: "cache", Resource: l.Resource(), Field: "value"}.String()
		_, err := l.Eval(ctx, `return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])`,
			[]string{key}, text, time.Minute.Milliseconds())
		require.NoError(t, err)
		require.Equal(t, text, client.Get(ctx, key).Val())
		_, err = fencedb.Exec(ctx, db, l, `SELECT`)
		return err
	}))
	require.NoError(t, issuer.Close(t.Context()))
}

// The README and docs/patterns.md show it.
func TestTheFenceKnowsASealedLease(t *testing.T) {
	t.Parallel()
	client, pool := testenv.Redis(t), testenv.Postgres(t)

	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Seal: fencedb.Sealer(pool)})

	require.NoError(t, err)
	require.NoError(t, issuer.Do(t.Context(), testenv.Namespace(t)+":1", func(ctx context.Context, l *lease.Lease) error {
		var last int64
		err := pool.QueryRow(ctx, `SELECT fencedb.last_token($1)`, l.Resource()).Scan(&last)
		require.Equal(t, l.Token(), last)
		return err
	}))
	require.NoError(t, issuer.Close(t.Context()))
}

// docs/production.md shows it.
func TestAClientOfEachDeployment(t *testing.T) {
	t.Parallel()
	server := redis.NewClient(&redis.Options{Addr: "cache:6379"})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "cache", SentinelAddrs: []string{"s1:26379", "s2:26379", "s3:26379"}})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"n1:6379", "n2:6379"}})

	for _, client := range []redis.UniversalClient{server, sentinel, cluster} {
		issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
		require.NoError(t, err)
		require.NoError(t, issuer.Close(t.Context()))
	}
}

// What adopting.md has people look for in their code finds every call that may not seal.
func TestTheSearchForAcquisitionsFindsEveryWayToAcquire(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("adopting.md")
	require.NoError(t, err)
	search := regexp.MustCompile(regexp.MustCompile("`grep -rE '(.*)'`").FindStringSubmatch(string(page))[1])
	ways, acquires := reflect.TypeFor[*lease.Issuer](), 0
	for m := range ways.NumMethod() {
		call, name := ways.Method(m).Type, ways.Method(m).Name
		if call.IsVariadic() && call.In(call.NumIn()-1) == reflect.TypeFor[[]lease.Option]() && name != "With" {
			require.Regexp(t, search, "issuer."+name+"(ctx, ")
			acquires++
		}
	}
	require.NotZero(t, acquires)
}
