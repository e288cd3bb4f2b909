// Command cron runs a few schedulers of one job, each on its own beat, and shows that together they send every reminder once.
//
//	go run ./examples/cron     # exits with 0 if it went as promised
//
// It finds or starts a Postgres and a Redis. A Redis that it found keeps the last tokens for a day; nothing else is left behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/examples/cron/reminders"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := demo(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cron:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, out io.Writer) (err error) {
	env, err := testenv.Start(ctx, testenv.Options{AllowMiniredis: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	db, err := pgxpool.New(ctx, env.PostgresURL)
	if err != nil {
		return err
	}
	defer db.Close()
	options, err := redis.ParseURL(env.RedisURL)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	leases, err := lease.New(client, lease.Config{TTL: 5 * time.Second, Namespace: "demo_" + strconv.FormatUint(rand.Uint64()>>16, 36)})
	if err != nil {
		return err
	}
	if err := prepare(ctx, db); err != nil {
		return err
	}
	if err := runAll(ctx, db, leases); err != nil {
		return err
	}
	return summary(ctx, out, db)
}

const (
	guests     = 60
	schedulers = 3
	ticks      = 8
	beat       = 50 * time.Millisecond
)

// prepare makes the tables, and reminders that become due while the schedulers run.
func prepare(ctx context.Context, db *pgxpool.Pool) error {
	plain := stdlib.OpenDBFromPool(db)
	if err := errors.Join(reminders.Migrate(ctx, plain), plain.Close()); err != nil {
		return err
	}
	if _, err := db.Exec(ctx, `CREATE TABLE outbox (guest text NOT NULL)`); err != nil {
		return err
	}
	_, err := db.Exec(ctx, `
		INSERT INTO reminders (guest, due_at)
		SELECT 'guest ' || n, now() + n * interval '1 second' * $2 FROM generate_series(1, $1) n`,
		guests, (ticks/2*beat).Seconds()/guests)
	return err
}

func runAll(ctx context.Context, db *pgxpool.Pool, leases *lease.Issuer) error {
	all, ctx := errgroup.WithContext(ctx)
	for n := range schedulers {
		s := &reminders.Scheduler{Name: fmt.Sprint("scheduler ", n+1), DB: db, Leases: leases, Deliver: toOutbox}
		all.Go(func() error {
			beats := time.NewTicker(beat)
			defer beats.Stop()
			for range ticks {
				if err := tick(ctx, s); err != nil {
					return err
				}
				select {
				case <-beats.C:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return tick(ctx, s) // what was left while another one was at it
		})
	}
	return all.Wait()
}

// tick goes on with the next beat after a run that was too late: what it had not sent is still due.
func tick(ctx context.Context, s *reminders.Scheduler) error {
	_, err := s.Tick(ctx)
	if errors.Is(err, fencedb.ErrStale) || errors.Is(err, fencedb.ErrLeaseOver) {
		return nil
	}
	return err
}

func toOutbox(ctx context.Context, tx pgx.Tx, guest string) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox VALUES ($1)`, guest)
	return err
}

func summary(ctx context.Context, out io.Writer, db *pgxpool.Pool) error {
	rows, err := db.Query(ctx, `SELECT sent_by, count(*) FROM reminders WHERE sent_by IS NOT NULL GROUP BY 1 ORDER BY 1`)
	if err != nil {
		return err
	}
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		fmt.Fprintf(out, "%s sent %d\n", name, n)
		return nil
	}); err != nil {
		return err
	}
	var delivered, different int
	if err := db.QueryRow(ctx, `SELECT count(*), count(DISTINCT guest) FROM outbox`).Scan(&delivered, &different); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d reminders, %d delivered, %d different\n", guests, delivered, different)
	if delivered != guests || different != guests {
		return errors.New("not every reminder was sent once")
	}
	return nil
}
