package fencedb

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Clock returns a function that asks Postgres for the time, for lease.Config.Clock: so lease.Issuer.Check compares
// Redis's clock, from which tokens come, with the one by which rows are dated. Only its context bounds it.
func Clock(db DB) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (now time.Time, err error) {
		batch := new(pgx.Batch)
		batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		return now, db.SendBatch(ctx, batch).Close()
	}
}
