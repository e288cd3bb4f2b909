package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// The service sells articles: it looks at the stock, asks a bank, which takes a while, and writes
// what is left. Now and then a request stands still for longer than its lease lasts. Each way to
// exclude others does so in turns.

const (
	articles  = 128
	customers = 128             // at once
	conns     = 16              // to Postgres, as a service has
	willing   = 5 * time.Second // how long a customer waits
	pieces    = 1_000_000_000   // of each article
)

// banks are how long a payment takes.
var banks = []time.Duration{5 * time.Millisecond, 100 * time.Millisecond}

// shop is what a way to sell works with.
type shop struct {
	pool           *pgxpool.Pool
	issuer, sealed *lease.Issuer
	ttl            time.Duration // of the leases, which are not renewed
	rarely         int           // one request of so many stands still, for twice as long
	bank           time.Duration
}

// way sells one article, and says how often the bank was asked.
type way struct {
	name  string
	table string
	sell  func(ctx context.Context, s *shop, article int) (asked int, err error)
}

var ways = []way{
	{"nothing", "stock", func(ctx context.Context, s *shop, article int) (int, error) {
		return 1, s.trade(ctx, s.pool, article, "")
	}},
	{"FOR UPDATE", "stock", inTransaction(pgx.TxOptions{}, "", " FOR UPDATE")},
	{"advisory lock", "stock", inTransaction(pgx.TxOptions{}, advisory, "")},
	{"SERIALIZABLE", "stock", inTransaction(pgx.TxOptions{IsoLevel: pgx.Serializable}, "", "")},
	{"version check", "stock", checked},
	{"lease only", "stock", func(ctx context.Context, s *shop, article int) (int, error) {
		return 1, underLease(ctx, s.issuer, article, func(*lease.Lease) error { return s.trade(ctx, s.pool, article, "") })
	}},
	{"lease and fence", "fenced", func(ctx context.Context, s *shop, article int) (int, error) {
		return 1, underLease(ctx, s.sealed, article, func(l *lease.Lease) error {
			left, err := s.ask(ctx, s.pool, "fenced", article, "")
			if err != nil {
				return err
			}
			_, err = fencedb.Exec(ctx, s.pool, l, `UPDATE fenced SET pieces = $2 WHERE article = $1`, article, left-1)
			return err
		})
	}},
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// ask looks at the stock, and asks the bank. A process that stands still does not see that a
// context has ended.
func (s *shop) ask(ctx context.Context, db querier, table string, article int, lock string) (left int64, err error) {
	if err := db.QueryRow(ctx, `SELECT pieces FROM `+table+` WHERE article = $1`+lock, article).Scan(&left); err != nil {
		return 0, err
	}
	time.Sleep(s.bank)
	if rand.IntN(s.rarely) == 0 {
		time.Sleep(2 * s.ttl)
	}
	return left, nil
}

func (s *shop) trade(ctx context.Context, db querier, article int, lock string) error {
	left, err := s.ask(ctx, db, "stock", article, lock)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, `UPDATE stock SET pieces = $2 WHERE article = $1`, article, left-1)
	return err
}

// inTransaction holds a transaction open while the bank is asked, and begins anew where Postgres
// asks for it.
func inTransaction(options pgx.TxOptions, first, lock string) func(context.Context, *shop, int) (int, error) {
	return func(ctx context.Context, s *shop, article int) (asked int, err error) {
		for {
			asked++
			err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
				if first != "" {
					if _, err := tx.Exec(ctx, first, article); err != nil {
						return err
					}
				}
				return s.trade(ctx, tx, article, lock)
			})
			if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) || refused.Code != "40001" {
				return asked, err
			}
		}
	}
}

// checked writes if nobody has written since it looked, and else asks the bank again.
func checked(ctx context.Context, s *shop, article int) (asked int, err error) {
	for {
		left, err := s.ask(ctx, s.pool, "stock", article, "")
		if err != nil {
			return asked, err
		}
		asked++
		tag, err := s.pool.Exec(ctx, `UPDATE stock SET pieces = $2 WHERE article = $1 AND pieces = $3`, article, left-1, left)
		if err != nil || tag.RowsAffected() == 1 {
			return asked, err
		}
	}
}

func underLease(ctx context.Context, issuer *lease.Issuer, article int, do func(*lease.Lease) error) error {
	l, err := issuer.Acquire(ctx, "article:"+strconv.Itoa(article))
	if err != nil {
		return err
	}
	defer l.Release(context.WithoutCancel(ctx)) //nolint:errcheck // a lease that is over has nothing to give back
	return do(l)
}

// evening is what came of one round of a way.
type evening struct {
	took    []time.Duration // each request
	rate    float64         // sales for each second
	times   float64         // the same as a multiple of the first way's
	sold    int
	asked   int // the bank
	refused int // told to come back later
	wrong   int // sold, and still in stock
}

// service compares the ways, in turns.
func (b *bench) service(ctx context.Context) error {
	s, err := openShop(ctx, b, time.Second, 500)
	if err != nil {
		return err
	}
	defer s.pool.Close()
	during := b.during / 4
	fmt.Fprintf(b.out, "A service sells %d articles to %d customers at once, with %d connections. One request in %d stands still for twice its lease of %v.\n"+
		"Medians of %d rounds of %v; the wrong of all rounds.\n", articles, customers, conns, s.rarely, s.ttl, b.rounds, during)
	for _, s.bank = range banks {
		evenings, err := inTurns(b.rounds, ways, func(w way) (evening, error) { return s.open(ctx, w, during) })
		if err != nil {
			return err
		}
		rows := []string{fmt.Sprintf("a payment takes %v\tsales/s\ttimes\tmedian\tp99\tpayments for a sale\tcome back later\twrong", s.bank)}
		for n, w := range ways {
			wrong := 0
			for round := range evenings[n] {
				e := &evenings[n][round]
				e.times = e.rate / evenings[0][round].rate
				wrong += e.wrong
			}
			all := evenings[n]
			rows = append(rows, fmt.Sprintf("%s\t%.0f\t%.2f\t%s\t%s\t%.2f\t%.1f %%\t%d", w.name,
				over(all, 0.5, func(e evening) float64 { return e.rate }),
				over(all, 0.5, func(e evening) float64 { return e.times }),
				milli(over(all, 0.5, func(e evening) time.Duration { return quantile(e.took, 0.5) })),
				milli(over(all, 0.5, func(e evening) time.Duration { return quantile(e.took, 0.99) })),
				over(all, 0.5, func(e evening) float64 { return float64(e.asked) / float64(max(e.sold, 1)) }),
				over(all, 0.5, func(e evening) float64 { return 100 * float64(e.refused) / float64(max(len(e.took), 1)) }),
				wrong))
		}
		if err := table(b.out, rows...); err != nil {
			return err
		}
	}
	fmt.Fprintln(b.out)
	return nil
}

func openShop(ctx context.Context, b *bench, ttl time.Duration, rarely int) (*shop, error) {
	pool, err := openPool(ctx, b.postgres, conns, "on")
	if err != nil {
		return nil, err
	}
	config := lease.Config{TTL: ttl, RenewEvery: lease.Never}
	issuer, issuerErr := lease.New(b.client, config)
	config.Seal = fencedb.Sealer(pool)
	sealed, sealedErr := lease.New(b.client, config)
	_, err = pool.Exec(ctx, fmt.Sprintf(`
		DROP TABLE IF EXISTS stock, fenced;
		CREATE TABLE stock (article int PRIMARY KEY, pieces bigint NOT NULL) WITH (fillfactor = 50);
		CREATE TABLE fenced (LIKE stock INCLUDING ALL) WITH (fillfactor = 50);
		INSERT INTO stock SELECT i, %[1]d FROM generate_series(0, %[2]d) i;
		INSERT INTO fenced TABLE stock;
		SELECT fencedb.protect('fenced', 'article:{article}')`, pieces, articles-1))
	return &shop{pool, issuer, sealed, ttl, rarely, banks[0]}, errors.Join(issuerErr, sealedErr, err)
}

// open lets customers in for a while, and counts afterwards.
func (s *shop) open(ctx context.Context, w way, during time.Duration) (evening, error) {
	before, err := s.left(ctx, w)
	if err != nil {
		return evening{}, err
	}
	var (
		all    evening
		mu     sync.Mutex
		inside sync.WaitGroup
		began  = time.Now()
	)
	for range customers {
		inside.Go(func() {
			for time.Since(began) < during {
				came := time.Now()
				patient, leave := context.WithTimeout(ctx, willing)
				asked, err := w.sell(patient, s, rand.IntN(articles))
				leave()
				mu.Lock()
				all.took, all.asked = append(all.took, time.Since(came)), all.asked+asked
				switch {
				case err != nil:
					all.refused++
				case time.Since(began) < during:
					all.rate += 1 / during.Seconds()
					fallthrough
				default:
					all.sold++
				}
				mu.Unlock()
			}
		})
	}
	inside.Wait()
	after, err := s.left(ctx, w)
	all.wrong = all.sold - int(before-after)
	return all, errors.Join(err, ctx.Err())
}

func (s *shop) left(ctx context.Context, w way) (n int64, err error) {
	err = s.pool.QueryRow(ctx, `SELECT sum(pieces) FROM `+w.table).Scan(&n)
	return n, err
}
