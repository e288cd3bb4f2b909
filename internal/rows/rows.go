// Package rows has rows of pgx that do more when they are closed.
package rows

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// OnClose returns rows that call closed once: when they are closed, when they have been read to
// their end, or when one could not be scanned. There pgx frees the connection. What closed returns
// is then the error of the rows.
func OnClose(rows pgx.Rows, closed func() error) pgx.Rows {
	return &closing{Rows: rows, onClose: closed}
}

type closing struct {
	pgx.Rows
	onClose func() error
	closed  bool
	err     error                     // of onClose
	fields  []pgconn.FieldDescription // when they are closed, which resets those of pgx
}

func (r *closing) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *closing) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *closing) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

func (r *closing) Close() {
	r.Rows.Close()
	if !r.closed {
		r.fields = append(r.fields, r.Rows.FieldDescriptions()...)
		r.closed, r.err = true, r.onClose()
	}
}

func (r *closing) FieldDescriptions() []pgconn.FieldDescription {
	if r.closed {
		return r.fields
	}
	return r.Rows.FieldDescriptions()
}

func (r *closing) Err() error {
	if r.err != nil {
		return r.err
	}
	return r.Rows.Err()
}

// Failed is what Query answers instead of rows. Those of pgx panic when they are asked for what
// they do not have.
func Failed(err error) (pgx.Rows, error) {
	none, err := pgx.FailedBatchResults(new(pgx.Batch), err).Query()
	return failed{none}, err
}

type failed struct{ pgx.Rows }

func (failed) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r failed) Scan(...any) error                          { return r.Err() }

// Once returns a row whose scan sends the statement. It can be scanned once.
func Once(scan func(dest ...any) error) pgx.Row { return &once{scan} }

type once struct{ scan func(dest ...any) error }

func (r *once) Scan(dest ...any) error {
	scan := r.scan
	if scan == nil {
		return errors.New("fencedb: the row was scanned before, and can be scanned once; nothing was written this time")
	}
	r.scan = nil
	return scan(dest...)
}
