// Command inventory is a shop in a flash sale. See README.md.
//
//	inventory stock                        # what is left
//	inventory reserve BUYER SKU=UNITS...   # all of it or nothing
//	inventory pay CART
//	inventory                              # ends what is not paid in time, until it is interrupted
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/lease"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

const (
	ttl  = 5 * time.Second  // of the leases
	keep = 20 * time.Second // how long a reservation lasts
	turn = 3 * time.Second  // how long a request waits for its turn
)

var goods = []shop.Level{
	{SKU: "sneaker", Start: 100, Cents: 8990},
	{SKU: "t-shirt", Start: 500, Cents: 1990},
	{SKU: "poster", Start: 3, Cents: 990},
}

func run(ctx context.Context, out io.Writer, args []string) error {
	db, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	if err != nil || os.Getenv("FENCEDB_POSTGRES_URL") == "" {
		return errors.New("FENCEDB_POSTGRES_URL must be the URL of a database, such as postgres://user:password@host:5432/database")
	}
	defer db.Close()
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	if err != nil {
		return errors.New("FENCEDB_REDIS_URL must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	client := redis.NewClient(options)
	defer client.Close()
	leases, err := lease.New(client, lease.Config{TTL: ttl, Namespace: "inventory"})
	if err != nil {
		return err
	}
	s := shop.New(leases, db, bank{}, keep, turn)
	err = shop.Migrate(ctx, stdlib.OpenDBFromPool(db))
	for n := 0; err == nil && n < len(goods); n++ {
		err = s.Stock(ctx, goods[n])
	}
	if err == nil {
		err = command(ctx, s, out, args)
	}
	return errors.Join(err, leases.Close(context.WithoutCancel(ctx))) // so that nobody waits for them to expire
}

func command(ctx context.Context, s *shop.Shop, out io.Writer, args []string) error {
	switch {
	case len(args) == 0:
		sweep(ctx, s)
		return nil
	case args[0] == "stock" && len(args) == 1:
		levels, err := s.Levels(ctx)
		for _, l := range levels {
			fmt.Fprintf(out, "%d of %d %s\n", l.Remaining, l.Start, l.SKU)
		}
		return err
	case args[0] == "reserve" && len(args) > 2:
		var lines []shop.Line
		for _, arg := range args[2:] {
			sku, units, _ := strings.Cut(arg, "=")
			n, _ := strconv.Atoi(units) // anything but a number becomes 0, which is refused
			lines = append(lines, shop.Line{SKU: sku, Units: n})
		}
		c, err := s.Reserve(ctx, args[1], lines)
		if err == nil {
			fmt.Fprintln(out, c.ID)
		}
		return err
	case args[0] == "pay" && len(args) == 2 && uuid.Validate(args[1]) == nil:
		return s.Pay(ctx, uuid.MustParse(args[1]))
	}
	return errors.New("usage: inventory [stock | reserve BUYER SKU=UNITS... | pay CART], with the cart that reserve has printed")
}

func sweep(ctx context.Context, s *shop.Shop) {
	for again := time.NewTicker(time.Second); ctx.Err() == nil; {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// bank stands for a payment provider that takes its time, and always pays. Like many a client it
// does not look at its context.
type bank struct{}

func (bank) Charge(_ context.Context, cart uuid.UUID, cents int64) error {
	log.Printf("the bank is asked for %d cents for cart %s", cents, cart)
	time.Sleep(3 * time.Second)
	return nil
}

func (bank) Refund(_ context.Context, cart uuid.UUID) error {
	log.Printf("the bank gives back what it has taken for cart %s", cart)
	return nil
}
