// Command cron sends reminders that are due, from however many processes, as if there were one. See
// README.md.
//
//	cron add GUEST...   # a reminder for each guest, due now
//	cron [NAME]         # sends what is due every second, until it is interrupted; start as many as you like
package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	db, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	if err != nil || os.Getenv("FENCEDB_POSTGRES_URL") == "" {
		return errors.New("FENCEDB_POSTGRES_URL must be the URL of a database, such as postgres://user:password@host:5432/database")
	}
	defer db.Close()
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	if err != nil {
		return errors.New("FENCEDB_REDIS_URL must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("CRON_TTL"), "10s"))
	if err != nil {
		return fmt.Errorf("CRON_TTL: %w", err)
	}
	name := fmt.Sprint("scheduler ", os.Getpid())
	if len(args) > 0 {
		name = args[0]
	}
	client := redis.NewClient(options)
	defer client.Close()
	leases, err := lease.New(client, lease.Config{TTL: ttl, MaxHold: lease.Unlimited, Namespace: "cron", Holder: name})
	if err != nil {
		return err
	}
	if err := migrate(ctx, db); err != nil {
		return err
	}
	if len(args) > 0 && args[0] == "add" {
		_, err := db.Exec(ctx, `INSERT INTO reminders (guest, due_at) SELECT unnest($1::text[]), now()`, args[1:])
		return err
	}
	s := &scheduler{Name: name, Desk: guard.New(leases, db), Every: time.Second, Deliver: toOutbox}
	err = s.Run(ctx,
		lease.OnFollow(func(leader string) { log.Printf("%s leads", leader) }),
		lease.OnTerm(func(err error) { log.Print("this term is over: ", err) }))
	if ctx.Err() != nil {
		return leases.Close(context.WithoutCancel(ctx)) // so that the next one need not wait for the lease to expire
	}
	return err
}

func migrate(ctx context.Context, db *pgxpool.Pool) error {
	plain := stdlib.OpenDBFromPool(db)
	return errors.Join(migrations.Apply(ctx, plain, files, "cron_migrations"), plain.Close())
}

// toOutbox is delivery in the same transaction: a mailer reads the table.
func toOutbox(ctx context.Context, tx pgx.Tx, guest string) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox (guest) VALUES ($1)`, guest)
	return err
}
