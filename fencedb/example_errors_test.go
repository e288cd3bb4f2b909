package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/fencedb"
)

// The row belongs to another table than the lease.
func ExampleWrongResourceError() {
	ctx, pool := context.Background(), database()

	_, err := fencedb.Exec(ctx, pool, acquired("table:20", 41), `INSERT INTO bookings (table_id, guest) VALUES (21, 'ann')`)

	var wrong *fencedb.WrongResourceError
	if errors.As(err, &wrong) {
		fmt.Println(wrong.Table, wrong.Resource, wrong.Entered)
	}
	// Output: public.bookings table:21 [table:20]
}

// The previous holder has left a transaction open for longer than our lease lasts.
func ExampleBusyError() {
	ctx, pool := context.Background(), database()
	before, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer before.Rollback(ctx)
	if _, err := fencedb.Enter(ctx, before, acquired("table:22", 41)); err != nil {
		log.Fatal(err)
	}

	soon := time.Now().Add(time.Second)
	err = fencedb.Seal(ctx, pool, fencedb.NewGrant("table:22", 42, uuid.New(), soon))

	var busy *fencedb.BusyError
	if errors.As(err, &busy) {
		for _, b := range busy.Blockers {
			fmt.Println(busy.Resources, "held by a session that is", b.State)
		}
	}
	// Output: [table:22] held by a session that is idle in transaction
}

// A row that is its own fence, on a table without a guard, in one statement that is a transaction
// of its own. With > alone a holder could write only once; with >= two leases with the same number
// could write in turn.
func ExampleExplainNoRows() {
	ctx, pool := context.Background(), database()
	become := func(id int, grant fencedb.Grant, state string) error {
		tag, err := pool.Exec(ctx, `UPDATE reports SET state = $4, last_fencing_token = $2, last_lease_id = $3
			WHERE id = $1 AND ($2 > last_fencing_token OR $2 = last_fencing_token AND $3 = last_lease_id)`,
			id, grant.Token(), grant.LeaseID(), state)
		if err == nil && tag.RowsAffected() == 0 { // was the token too old, or is there no such row?
			err = fencedb.ExplainNoRows(ctx, pool, grant,
				`SELECT last_fencing_token, last_lease_id FROM reports WHERE id = $1`, id)
			if err == nil { // it would be written now: it was inserted since
				err = errors.New("not written, try again")
			}
		}
		return err
	}
	before, holder := acquired("report:1", 41), acquired("report:1", 42)

	fmt.Println(become(1, holder, "RUNNING"))
	fmt.Println(become(1, holder, "DONE"))
	fmt.Println(become(1, before, "FAILED"))
	fmt.Println(become(2, acquired("report:2", 41), "DONE"))
	// Output:
	// <nil>
	// <nil>
	// fencedb: stale fencing token: resource "report:1": carried 41, stored 42
	// no rows in result set
}

// The answer to COMMIT was lost, and the server did not answer then; later it does.
func ExampleCommitUnknownError() {
	ctx, pool := context.Background(), database()
	var xid uint64
	var epoch int64
	err := fencedb.Tx(ctx, pool, acquired("table:24", 41), func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint, last_value FROM fencedb.server_epoch`).Scan(&xid, &epoch)
	})
	if err == nil { // let us say that it had been:
		err = &fencedb.CommitUnknownError{XID: xid, Epoch: epoch}
	}

	var unknown *fencedb.CommitUnknownError
	if errors.As(err, &unknown) {
		var status string
		err := pool.QueryRow(ctx, `SELECT fencedb.outcome($1::text::xid8, $2)`, fmt.Sprint(unknown.XID), unknown.Epoch).Scan(&status)
		fmt.Println(status, err)
	}
	// Output: committed <nil>
}

// Other code uses the connection and commits. The writes before that stand; those after it were
// outside the fence, and are rolled back.
func ExampleTxEndedError() {
	ctx, pool := context.Background(), database()
	err := fencedb.Tx(ctx, pool, acquired("table:25", 41), func(tx pgx.Tx) error {
		const book = `INSERT INTO bookings (table_id, guest) VALUES (25, $1)`
		if _, err := tx.Exec(ctx, book, "ann"); err != nil {
			return err
		}
		if _, err := tx.Conn().Exec(ctx, `COMMIT AND CHAIN`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, book, "bob")
		return err
	})

	var ended *fencedb.TxEndedError
	if errors.As(err, &ended) {
		fmt.Println(ended.Outcome)
	}
	// Output: committed
}

// The lease has seconds left and is renewed; this transaction may take a minute.
func ExampleTimeout() {
	ctx, pool := context.Background(), database()

	err := fencedb.Tx(ctx, pool, acquired("table:16", 41), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) SELECT 16, 'guest ' || n FROM generate_series(1, 1000) n`)
		return err
	}, fencedb.Timeout(time.Minute))

	fmt.Println(err)
	// Output: <nil>
}

func ExampleTxOptions() {
	ctx, pool := context.Background(), database()
	var level string

	err := fencedb.Tx(ctx, pool, acquired("table:17", 41), func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&level)
	}, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}))

	fmt.Println(level, err)
	// Output: serializable <nil>
}

// printer is a tracer. Those of packages observe/slog, observe/prom and observe/otel do something
// useful.
type printer struct{}

func (printer) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context { return ctx }

func (printer) TraceWriteEnd(_ context.Context, e fencedb.TraceEnd) {
	fmt.Println(e.Op, e.Grants[0].Resource(), e.Err)
}

// The tracers belong to the pool: they learn of every write through it.
func ExampleWith() {
	ctx, db := context.Background(), fencedb.With(database(), fencedb.Trace(printer{}))

	_, _ = fencedb.Exec(ctx, db, acquired("table:18", 42), `SELECT 1`)
	_, _ = fencedb.Exec(ctx, db, acquired("table:18", 41), `SELECT 1`)
	// Output:
	// write table:18 <nil>
	// write table:18 fencedb: stale fencing token: resource "table:18": carried 41, stored 42
}

// A transaction of the application does not go through the pool of With, so Enter gets the tracers.
func ExampleTrace() {
	ctx, pool := context.Background(), database()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := fencedb.Enter(ctx, tx, acquired("table:19", 41), fencedb.Trace(printer{}))
		return err
	})

	fmt.Println(err)
	// Output:
	// enter table:19 <nil>
	// <nil>
}

// The clock by which rows are dated.
func ExampleClock() {
	ctx, clock := context.Background(), fencedb.Clock(database())

	now, err := clock(ctx)

	fmt.Println(time.Since(now).Round(time.Hour), err)
	// Output: 0s <nil>
}

// TxSQL is for database/sql, on which GORM, sqlx and bun are built.
func ExampleTxSQL() {
	ctx, db := context.Background(), stdlib.OpenDBFromPool(database())
	defer db.Close()

	err := fencedb.TxSQL(ctx, db, acquired("table:15", 41), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO bookings (table_id, guest) VALUES (15, 'ann')`)
		return err
	})

	fmt.Println(err)
	// Output: <nil>
}

func ExampleEnterSQL() {
	ctx, db := context.Background(), stdlib.OpenDBFromPool(database())
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()

	entry, err := fencedb.EnterSQL(ctx, tx, acquired("table:14", 41))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO bookings (table_id, guest) VALUES (14, 'ann')`); err != nil {
		log.Fatal(fencedb.Explain(err))
	}

	if err = tx.Commit(); err != nil {
		err = entry.OutcomeSQL(ctx, db, err)
	}

	fmt.Println(err)
	// Output: <nil>
}

// Explain turns an error of a driver or an ORM into one of this package.
func ExampleExplain() {
	ctx, pool := context.Background(), database()

	_, err := pool.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (15, 'eve')`) // no token

	fmt.Println(errors.Is(err, fencedb.ErrNoToken))
	fmt.Println(errors.Is(fencedb.Explain(err), fencedb.ErrNoToken))
	// Output:
	// false
	// true
}
