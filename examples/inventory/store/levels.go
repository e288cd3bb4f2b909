// Package store is the SQL of the flash sale: one function for each statement, over whatever the caller reads or writes with.
//
// None of them protects anything. What keeps a late writer out are the triggers that the migration puts on the tables: they
// refuse every row whose resource the transaction has not entered with a current token. So the writes here succeed only
// within package fencedb, and a reader of [github.com/fencedb/fencedb/examples/inventory/shop] finds every one of them there.
package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Level is how much of a SKU there is.
type Level struct {
	SKU       string `json:"sku"`
	Start     int    `json:"start"`
	Remaining int    `json:"remaining"` // neither sold nor reserved
	Cents     int64  `json:"cents"`     // of a unit, at the full price
	Version   int64  `json:"-"`
}

// Reader is a pool or a transaction.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Writer is a transaction.
type Writer interface {
	Reader
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

const selectLevels = `SELECT sku, start, remaining, cents, version FROM stock`

// AllLevels reads everything that is for sale, in the order of the SKUs.
func AllLevels(ctx context.Context, db Reader) ([]Level, error) {
	return collect[Level](db.Query(ctx, selectLevels+` ORDER BY sku`))
}

// Levels reads those of some SKUs, in the order of the SKUs. What does not exist is missing.
func Levels(ctx context.Context, db Reader, skus []string) ([]Level, error) {
	return collect[Level](db.Query(ctx, selectLevels+` WHERE sku = ANY ($1) ORDER BY sku`, skus))
}

// LockLevels is Levels that keeps everyone else from locking or changing the rows until the transaction ends.
func LockLevels(ctx context.Context, tx Writer, skus []string) ([]Level, error) {
	return collect[Level](tx.Query(ctx, selectLevels+` WHERE sku = ANY ($1) ORDER BY sku FOR UPDATE`, skus))
}

func collect[T any](rows pgx.Rows, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// SetLevels writes how much remains, whatever is there: for a caller who knows that it is what they have read.
func SetLevels(ctx context.Context, tx Writer, levels []Level) error {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`UPDATE stock SET remaining = $2, version = version + 1 WHERE sku = $1`, l.SKU, l.Remaining)
	}
	return tx.SendBatch(ctx, &b).Close()
}

// SetLevelsIfUnchanged is SetLevels for rows that are as they were read. It returns how many were; then it has written those.
func SetLevelsIfUnchanged(ctx context.Context, tx Writer, levels []Level) (unchanged int, err error) {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`UPDATE stock SET remaining = $2, version = version + 1 WHERE sku = $1 AND version = $3`, l.SKU, l.Remaining, l.Version).
			Exec(func(tag pgconn.CommandTag) error {
				unchanged += int(tag.RowsAffected())
				return nil
			})
	}
	err = tx.SendBatch(ctx, &b).Close()
	return unchanged, err
}

// AddLevels puts new SKUs up for sale and leaves those alone that are there.
func AddLevels(ctx context.Context, tx Writer, levels []Level) error {
	var b pgx.Batch
	for _, l := range levels {
		b.Queue(`INSERT INTO stock (sku, start, remaining, cents) VALUES ($1, $2, $2, $3) ON CONFLICT DO NOTHING`, l.SKU, l.Start, l.Cents)
	}
	return tx.SendBatch(ctx, &b).Close()
}
