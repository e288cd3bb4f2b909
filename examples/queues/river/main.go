// Command river bills customers with jobs of River. See ../README.md.
//
//	river add CUSTOMER...   # enqueues an invoice for each customer
//	river                   # works until it is interrupted; start as many as you like
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	if err != nil || os.Getenv("FENCEDB_POSTGRES_URL") == "" {
		return errors.New("FENCEDB_POSTGRES_URL must be the URL of a database, such as postgres://user:password@host:5432/database")
	}
	defer pool.Close()
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	if err != nil {
		return errors.New("FENCEDB_REDIS_URL must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	client := redis.NewClient(options)
	defer client.Close()
	leases, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Namespace: "invoices"})
	if err != nil {
		return err
	}
	if err := Migrate(ctx, pool); err != nil {
		return err
	}
	queue, err := newQueue(pool, &Worker{Desk: guard.New(leases, pool), Render: render})
	if err != nil {
		return err
	}
	if len(args) > 0 && args[0] == "add" {
		for _, customer := range args[1:] {
			if _, err := queue.Insert(ctx, Invoice{Customer: customer, Cents: 4200}, nil); err != nil {
				return err
			}
		}
		return nil
	}
	if err := queue.Start(ctx); err != nil { // what is under way when ctx ends has softStop to end as well
		return err
	}
	<-ctx.Done()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), softStop+10*time.Second)
	defer cancel()
	return errors.Join(queue.Stop(ending), leases.Close(ending))
}

// softStop is how long jobs may go on when the program is interrupted. Without it River ends their
// contexts at once, which uses up an attempt of each.
const softStop = 20 * time.Second

func newQueue(pool *pgxpool.Pool, worker *Worker) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		FetchPollInterval: 100 * time.Millisecond,
		SoftStopTimeout:   softStop,
		Workers:           workers,
	})
}

// render stands for work that takes a second.
func render(ctx context.Context, i Invoice) error {
	select {
	case <-time.After(time.Second):
		log.Printf("rendered an invoice of %s", i.Customer)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
