package fencedb

import (
	"github.com/jackc/pgx/v5"
)

// The results of a first statement are part of the batch that opened the transaction. These types close the batch where
// pgx would have freed the connection: when the rows are read to their end or closed, and when the row is scanned.

type firstRows struct {
	pgx.Rows
	results  pgx.BatchResults
	closeErr error
}

func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *firstRows) Close() {
	r.Rows.Close()
	r.closeErr = r.results.Close()
}

func (r *firstRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.closeErr
}

type firstRow struct{ results pgx.BatchResults }

func (r firstRow) Scan(dest ...any) error {
	err := r.results.QueryRow().Scan(dest...)
	if closeErr := r.results.Close(); err == nil {
		err = closeErr
	}
	return err
}

// firstBatch hides that its batch began the transaction.
type firstBatch struct{ pgx.BatchResults }

func (firstBatch) Tx() pgx.Tx { return nil }
