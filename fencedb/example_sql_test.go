package fencedb_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/fencedb"
)

// A transaction of database/sql, as GORM, sqlx and bun have them: enter first.
func ExampleEnterSQL() {
	ctx, db := context.Background(), stdlib.OpenDBFromPool(database())
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()

	if err := fencedb.EnterSQL(ctx, tx, acquired("table:14", 41)); err != nil {
		log.Fatal(err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO bookings (table_id, guest) VALUES (14, 'ann')`); err != nil {
		log.Fatal(fencedb.Explain(err))
	}

	fmt.Println(tx.Commit())
	// Output: <nil>
}

// What came back from a driver or an ORM, in the words of this package.
func ExampleExplain() {
	ctx, pool := context.Background(), database()

	_, err := pool.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES (15, 'eve')`) // no token

	fmt.Println(errors.Is(err, fencedb.ErrNoToken))
	fmt.Println(errors.Is(fencedb.Explain(err), fencedb.ErrNoToken))
	// Output:
	// false
	// true
}
