package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"
	"testing/fstest"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// nothing gives an example a database without anything in it.
func nothing() (db *sql.DB, drop func()) {
	servers, err := testenv.Start(context.Background(), testenv.Options{})
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("pgx", servers.PostgresURL)
	if err != nil {
		log.Fatal(err)
	}
	return db, func() {
		_ = db.Close()
		_ = servers.Close()
	}
}

// At the start of a deployment; where nothing is missing it does nothing.
func ExampleUp() {
	ctx := context.Background()
	db, drop := nothing()
	defer drop()

	err := migrations.Up(ctx, db)

	again := migrations.Up(ctx, db)
	fmt.Println(err, again)
	// Output: <nil> <nil>
}

// An application embeds its own migrations, with //go:embed *.sql, and applies them behind those of
// fencedb.
func ExampleApply() {
	db, drop := nothing()
	defer drop()
	files := fstest.MapFS{"00001_bookings.sql": {Data: []byte(`-- +goose Up
CREATE TABLE bookings (table_id int PRIMARY KEY, guest text NOT NULL);
SELECT fencedb.protect('bookings', resource => 'table:{table_id}');`)}}

	err := migrations.Apply(context.Background(), db, files, "goose_db_version")

	_, unfenced := db.Exec(`INSERT INTO bookings VALUES (12, 'Ann')`)
	fmt.Println("err:", err, "refused without a token:", unfenced != nil)
	// Output: err: <nil> refused without a token: true
}

// Reset refuses while a table is protected: without the fences every old token would be good again.
func ExampleReset() {
	ctx := context.Background()
	db, drop := nothing()
	defer drop()
	if err := migrations.Up(ctx, db); err != nil {
		log.Fatal(err)
	}
	exec := func(statement string) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			log.Fatal(err)
		}
	}

	exec(`CREATE TABLE bookings (table_id int NOT NULL); SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	fmt.Println("refused:", migrations.Reset(ctx, db) != nil)
	exec(`SELECT fencedb.unprotect('bookings')`)
	fmt.Println("err:", migrations.Reset(ctx, db))
	// Output:
	// refused: true
	// err: <nil>
}

// For a readiness check: a migration that is not applied is missing in the database.
func ExampleStatus() {
	ctx := context.Background()
	db, drop := nothing()
	defer drop()

	steps, err := migrations.Status(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(steps[0].Version, steps[0].Name, "applied:", steps[0].Applied)
	// Output: 1 00001_ledger.sql applied: false
}

// Plain SQL, for tools other than goose.
func ExampleScripts() {
	first := migrations.Scripts()[0]

	fmt.Println(first.Name)
	fmt.Println(strings.Contains(first.Up, "CREATE TABLE fencedb.fences"))
	// Output:
	// ledger
	// true
}
