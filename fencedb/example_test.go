package fencedb_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// database is the Postgres of the examples, migrated, with the tables that they write to.
var database = sync.OnceValue(func() *pgxpool.Pool {
	ctx := context.Background()
	servers, err := testenv.Start(ctx, testenv.Options{}) // ends with the test binary
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, servers.PostgresURL)
	if err != nil {
		log.Fatal(err)
	}
	if err := migrations.Up(ctx, stdlib.OpenDBFromPool(pool)); err != nil {
		log.Fatal(err)
	}
	_, err = pool.Exec(ctx, `
		CREATE TABLE bookings (table_id int NOT NULL, guest text);
		SELECT fencedb.protect('bookings', resource => 'table:{table_id}');
		CREATE TABLE reports (id int PRIMARY KEY, state text,
			last_fencing_token bigint NOT NULL DEFAULT 0, last_lease_id uuid);
		INSERT INTO reports VALUES (1, 'NEW')`)
	if err != nil {
		log.Fatal(err)
	}
	return pool
})

// acquired stands for the lease that a program would have acquired from package lease.
func acquired(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.New(), time.Now().Add(10*time.Second))
}

// Two holders of the same table: the first was paused, and is stale when it writes.
func Example() {
	ctx, pool := context.Background(), database()
	first, second := acquired("table:1", 41), acquired("table:1", 42)

	book := func(grant fencedb.Grant, guest string) error {
		return fencedb.Tx(ctx, pool, grant, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (1, $1)`, guest)
			return err
		})
	}

	fmt.Println(book(second, "ben"))
	fmt.Println(book(first, "ann"))
	// Output:
	// <nil>
	// fencedb: stale fencing token: resource "table:1": carried 41, stored 42
}

// What is read in the transaction stays true until it commits, so it is safe to decide on.
func ExampleTx() {
	ctx, pool := context.Background(), database()

	reserve := func(grant fencedb.Grant, guest string) error {
		return fencedb.Tx(ctx, pool, grant, func(tx pgx.Tx) error {
			var taken bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM bookings WHERE table_id = 2)`).Scan(&taken)
			if err != nil {
				return err
			}
			if taken {
				return errTaken
			}
			_, err = tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (2, $1)`, guest)
			return err
		})
	}

	fmt.Println(reserve(acquired("table:2", 41), "ann"))
	fmt.Println(reserve(acquired("table:2", 42), "ben"))
	// Output:
	// <nil>
	// the table is taken
}

func ExampleTx_stale() {
	ctx, pool := context.Background(), database()
	if err := fencedb.Seal(ctx, pool, acquired("table:3", 42)); err != nil {
		log.Fatal(err)
	}

	err := fencedb.Tx(ctx, pool, acquired("table:3", 41), func(tx pgx.Tx) error { return nil })

	var stale *fencedb.StaleError
	if errors.As(err, &stale) {
		fmt.Println(stale.Resource, stale.Token, stale.Stored)
	}
	// Output: table:3 41 42
}

var errTaken = errors.New("the table is taken")

// Bookings are the statements of an application. Those that write can be called in Write alone.
type Bookings struct{ tx pgx.Tx }

func (b *Bookings) Add(ctx context.Context, table int, guest string) error {
	_, err := b.tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES ($1, $2)`, table, guest)
	return err
}

func (b *Bookings) Guests(ctx context.Context, table int) ([]string, error) {
	rows, _ := b.tx.Query(ctx, `SELECT guest FROM bookings WHERE table_id = $1`, table)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func ExampleRepository() {
	ctx, pool := context.Background(), database()
	lease := acquired("table:20", 41)
	repo := fencedb.NewRepository(pool, func(tx pgx.Tx) *Bookings { return &Bookings{tx} })

	err := repo.Write(ctx, lease, func(b *Bookings) error {
		guests, err := b.Guests(ctx, 20) // still true when the transaction commits
		if err == nil && len(guests) > 0 {
			err = errTaken // rolls back; nil would tell this guest that the table is theirs
		}
		if err != nil {
			return err
		}
		return b.Add(ctx, 20, "ann")
	})
	fmt.Println(err)

	err = repo.Read(ctx, func(b *Bookings) error {
		guests, err := b.Guests(ctx, 20)
		fmt.Println(guests)
		return err
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// [ann]
	// <nil>
}

func ExampleNewRepository() {
	pool := database()

	repo := fencedb.NewRepository(pool, func(tx pgx.Tx) *Bookings { return &Bookings{tx} })

	fmt.Printf("%T", repo)
	// Output: *fencedb.Repository[*github.com/fencedb/fencedb/fencedb_test.Bookings]
}

// The previous holder is refused, and writes nothing.
func ExampleRepository_Write() {
	ctx := context.Background()
	repo := fencedb.NewRepository(database(), func(tx pgx.Tx) *Bookings { return &Bookings{tx} })
	add := func(guest string) func(*Bookings) error {
		return func(b *Bookings) error { return b.Add(ctx, 21, guest) }
	}

	fmt.Println(repo.Write(ctx, acquired("table:21", 42), add("ben")))
	fmt.Println(repo.Write(ctx, acquired("table:21", 41), add("ann")))
	// Output:
	// <nil>
	// fencedb: stale fencing token: resource "table:21": carried 41, stored 42
}

func ExampleRepository_Read() {
	ctx := context.Background()
	repo := fencedb.NewRepository(database(), func(tx pgx.Tx) *Bookings { return &Bookings{tx} })

	err := repo.Read(ctx, func(b *Bookings) error { return b.Add(ctx, 22, "ann") })

	fmt.Println(errors.Is(err, fencedb.ErrNoToken))
	// Output: true
}

func ExampleExec() {
	ctx, pool := context.Background(), database()

	tag, err := fencedb.Exec(ctx, pool, acquired("table:4", 41), `INSERT INTO bookings (table_id, guest) VALUES (4, $1)`, "ann")

	fmt.Println(tag, err)
	// Output: INSERT 0 1 <nil>
}

func ExampleQueryRow() {
	ctx, pool := context.Background(), database()
	var token int64

	err := fencedb.QueryRow(ctx, pool, acquired("table:5", 41),
		`INSERT INTO bookings (table_id, guest) VALUES (5, $1) RETURNING last_fencing_token`, "ann").Scan(&token)

	fmt.Println(token, err)
	// Output: 41 <nil>
}

func ExampleQuery() {
	ctx, pool := context.Background(), database()

	rows, err := fencedb.Query(ctx, pool, acquired("table:6", 41),
		`INSERT INTO bookings (table_id, guest) VALUES (6, 'ann'), (6, 'ben') RETURNING guest`)
	if err != nil {
		log.Fatal(err)
	}
	guests, err := pgx.CollectRows(rows, pgx.RowTo[string])

	fmt.Println(guests, err)
	// Output: [ann ben] <nil>
}

func ExampleSendBatch() {
	ctx, pool := context.Background(), database()
	b := &pgx.Batch{}
	for _, guest := range []string{"ann", "ben", "cleo"} {
		b.Queue(`INSERT INTO bookings (table_id, guest) VALUES (7, $1)`, guest)
	}
	b.Queue(`SELECT count(*) FROM bookings WHERE table_id = 7`).QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		fmt.Println("guests:", n)
		return err
	})

	fmt.Println(fencedb.SendBatch(ctx, pool, acquired("table:7", 41), b))
	// Output:
	// guests: 3
	// <nil>
}

// Several resources in one transaction: all of them, or none.
func ExampleAll() {
	ctx, pool := context.Background(), database()
	from, to := acquired("table:8", 41), acquired("table:9", 17)

	err := fencedb.Tx(ctx, pool, fencedb.All(from, to), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE bookings SET table_id = 9 WHERE table_id = 8`)
		return err
	})

	fmt.Println(err)
	// Output: <nil>
}

// A transaction that the application begins: enter first, and ask for the outcome if it fails.
func ExampleEnter() {
	ctx, pool := context.Background(), database()

	var entry *fencedb.Entry
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		if entry, err = fencedb.Enter(ctx, tx, acquired("table:10", 41)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (10, 'ann')`)
		return err
	})
	if err != nil {
		err = entry.Outcome(ctx, pool, err) // the answer to COMMIT may have been lost
	}

	fmt.Println(err)
	// Output: <nil>
}

// Above READ COMMITTED the fence has to be older than the snapshot of the transaction.
func ExampleEnter_unsealed() {
	ctx, pool, grant := context.Background(), database(), acquired("table:26", 41)
	book := func(tx pgx.Tx) error {
		if _, err := fencedb.Enter(ctx, tx, grant); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (26, 'ann')`)
		return err
	}
	serializable := pgx.TxOptions{IsoLevel: pgx.Serializable}

	err := pgx.BeginTxFunc(ctx, pool, serializable, book)
	if errors.Is(err, fencedb.ErrUnsealed) {
		fmt.Println("sealed now:", fencedb.Seal(ctx, pool, grant))
		err = pgx.BeginTxFunc(ctx, pool, serializable, book)
	}

	fmt.Println(err)
	// Output:
	// sealed now: <nil>
	// <nil>
}

// After the seal every earlier holder is refused, before the new one has written anything.
func ExampleSeal() {
	ctx, pool := context.Background(), database()
	earlier, newer := acquired("table:11", 41), acquired("table:11", 42)

	fmt.Println(fencedb.Seal(ctx, pool, newer))
	fmt.Println(errors.Is(fencedb.Seal(ctx, pool, earlier), fencedb.ErrStale))
	// Output:
	// <nil>
	// true
}

// A token of another issuer: an etcd revision, with an id derived from the etcd lease.
func ExampleNewGrant() {
	ctx, pool := context.Background(), database()
	revision, etcdLease := int64(7_400_231), []byte("694d8257011f3712")
	grant := fencedb.NewGrant("table:12", revision, uuid.NewSHA1(uuid.NameSpaceOID, etcdLease), fencedb.NoEnd)

	_, err := fencedb.Exec(ctx, pool, grant, `INSERT INTO bookings (table_id, guest) VALUES (12, 'ann')`)

	fmt.Println(err)
	// Output: <nil>
}

// The client sends its request twice; the guest gets one table, and both get the same answer.
func ExampleOnce() {
	ctx, pool := context.Background(), database()
	reserve := func(idempotencyKey string) (answer string, replayed bool) {
		err := fencedb.Tx(ctx, pool, acquired("table:13", time.Now().UnixMicro()), func(tx pgx.Tx) error {
			result, again, err := fencedb.Once(ctx, tx, idempotencyKey, []byte("table 13 for ann"), func() ([]byte, error) {
				_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (13, 'ann')`)
				return []byte("booked"), err
			})
			answer, replayed = string(result), again
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
		return answer, replayed
	}

	fmt.Println(reserve("0b6f"))
	fmt.Println(reserve("0b6f"))
	// Output:
	// booked false
	// booked true
}

// A standby lags. Once it has the seal of the lease, what it shows is safe to decide on.
func ExampleAwaitReplay() {
	ctx := context.Background()
	pool, replica := replicated()
	first, second := acquired("table:9", 41), acquired("table:9", 42)
	if err := fencedb.Seal(ctx, pool, second); err != nil { // as package guard does
		log.Fatal(err)
	}

	isFree := func(lease fencedb.Grant) (free bool, err error) {
		if err := fencedb.AwaitReplay(ctx, replica, lease); err != nil {
			return false, err
		}
		// The standby has the seal, and all that was committed before it.
		err = replica.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM bookings WHERE table_id = 9)`).Scan(&free)
		return free, err
	}

	fmt.Println(isFree(second))
	fmt.Println(isFree(first))
	// Output:
	// true <nil>
	// false fencedb: stale fencing token: resource "table:9": carried 41, stored 42
}

// Once for a request and an answer in JSON. The key stands for one request.
func ExampleOnceJSON() {
	ctx, pool := context.Background(), database()
	type request struct{ Party int }
	type answer struct{ Seats string }
	reserve := func(party int) (seats answer, replayed bool, err error) {
		err = fencedb.Tx(ctx, pool, acquired("table:23", time.Now().UnixMicro()), func(tx pgx.Tx) error {
			seats, replayed, err = fencedb.OnceJSON(ctx, tx, "7a3e", request{party}, func() (answer, error) {
				_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (23, 'ann')`)
				return answer{"by the window"}, err
			})
			return err
		})
		return seats, replayed, err
	}

	fmt.Println(reserve(4))
	fmt.Println(reserve(4))
	_, _, err := reserve(5)
	fmt.Println(errors.Is(err, fencedb.ErrKeyReused))
	// Output:
	// {by the window} false <nil>
	// {by the window} true <nil>
	// true
}

// The resource of a row is the same text in SQL and in Go: protect reads the same template.
func ExampleTemplate() {
	seats := fencedb.MustTemplate("seat:{show}/{row}-{seat}")

	resource, err := seats.Format(uuid.MustParse("7d444840-9dc0-11d1-b245-5ffdce74fad2"), "C", 12)
	fmt.Println(resource, err)

	columns, err := seats.Parse("seat:7d444840-9dc0-11d1-b245-5ffdce74fad2/C-12")
	fmt.Println(columns["row"], columns["seat"], err)

	_, err = seats.Parse("seat:1/C-12-13")
	fmt.Println(err)

	_, err = fencedb.ParseTemplate("seat:{show}{row}")
	fmt.Println(err)
	// Output:
	// seat:7d444840-9dc0-11d1-b245-5ffdce74fad2/C-12 <nil>
	// C 12 <nil>
	// fencedb: the template "seat:{show}/{row}-{seat}" makes "seat:1/C-12-13" in more than one way, from map["row":"C" "seat":"12-13" "show":"1"] and from map["row":"C-12" "seat":"13" "show":"1"]
	// fencedb: the template "seat:{show}{row}" is wrong at character 12: it touches the column before; put text between them, so that they can be told apart
}
