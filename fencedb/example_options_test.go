package fencedb_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/fencedb"
)

// The lease has seconds left and is being renewed; this transaction may take a minute.
func ExampleHold() {
	ctx, pool := context.Background(), database()

	err := fencedb.Tx(ctx, pool, acquired("table:16", 41), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) SELECT 16, 'guest ' || n FROM generate_series(1, 1000) n`)
		return err
	}, fencedb.Hold(time.Minute))

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

// teller is a tracer. Those of packages observe/slog, observe/prom and observe/otel do something useful.
type teller struct{}

func (teller) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context { return ctx }

func (teller) TraceWriteEnd(_ context.Context, e fencedb.TraceEnd) {
	fmt.Println(e.Op, e.Grants[0].Resource(), e.Err)
}

// The tracers belong to the pool: every write through it is told.
func ExampleTraced() {
	ctx, db := context.Background(), fencedb.Traced(database(), teller{})

	_ = fencedb.Seal(ctx, db, acquired("table:18", 42))
	_ = fencedb.Seal(ctx, db, acquired("table:18", 41))
	// Output:
	// write table:18 <nil>
	// write table:18 fencedb: stale fencing token: resource "table:18": carried 41, stored 42
}

// A transaction that the application opened itself has no pool to trace.
func ExampleTrace() {
	ctx, pool := context.Background(), database()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return fencedb.Enter(ctx, tx, acquired("table:19", 41), fencedb.Trace(teller{}))
	})

	fmt.Println(err)
	// Output:
	// enter table:19 <nil>
	// <nil>
}

// The clock by which rows are dated, for lease.Config.Clock.
func ExampleClock() {
	ctx, clock := context.Background(), fencedb.Clock(database())

	now, err := clock(ctx)

	fmt.Println(time.Since(now).Round(time.Hour), err)
	// Output: 0s <nil>
}
