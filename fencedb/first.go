package fencedb

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The results of a first or only statement are part of a batch. These types close the batch where pgx would have freed the
// connection: when the rows are read to their end or closed, and when the row is scanned.

type firstRows struct {
	pgx.Rows
	close    func() error // closes the batch; what it returns is the error of the rows
	closed   bool
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
	if !r.closed {
		r.closed, r.closeErr = true, r.close()
	}
}

func (r *firstRows) Err() error {
	if r.closeErr != nil {
		return r.closeErr
	}
	return r.Rows.Err()
}

// noRows returns what Query answers instead of rows. Those of pgx panic when they are asked for what they do not have.
func noRows(err error) (pgx.Rows, error) {
	rows, err := failed(err).Query()
	return failedRows{rows}, err
}

type failedRows struct{ pgx.Rows }

func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r failedRows) Scan(...any) error                          { return r.Err() }

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
