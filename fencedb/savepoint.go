package fencedb

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// savepoint is the pseudo nested transaction that a fenced transaction begins with, when its first use is Begin: pgx would
// set its savepoint in a round trip of its own. Savepoints within it, and later ones, are pgx's.
type savepoint struct {
	pgx.Tx // the transaction around it
	closed bool
}

const (
	setSavepoint        = "savepoint fencedb_first"
	releaseSavepoint    = "release savepoint fencedb_first"
	rollbackToSavepoint = "rollback to savepoint fencedb_first"
)

// Commit keeps what was done since the savepoint, for the transaction around it to commit.
func (s *savepoint) Commit(ctx context.Context) error { return s.close(ctx, releaseSavepoint) }

// Rollback undoes what was done since the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error { return s.close(ctx, rollbackToSavepoint) }

func (s *savepoint) close(ctx context.Context, sql string) error {
	if s.closed {
		return pgx.ErrTxClosed
	}
	s.closed = true
	_, err := s.Tx.Exec(ctx, sql)
	return err
}

func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if s.closed {
		return nil, pgx.ErrTxClosed
	}
	return s.Tx.Begin(ctx)
}

func (s *savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if s.closed {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return s.Tx.Exec(ctx, sql, args...)
}

func (s *savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if s.closed {
		return failed(pgx.ErrTxClosed).Query()
	}
	return s.Tx.Query(ctx, sql, args...)
}

func (s *savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.closed {
		return failed(pgx.ErrTxClosed).QueryRow()
	}
	return s.Tx.QueryRow(ctx, sql, args...)
}

func (s *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if s.closed {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return s.Tx.SendBatch(ctx, b)
}

func (s *savepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if s.closed {
		return 0, pgx.ErrTxClosed
	}
	return s.Tx.CopyFrom(ctx, table, columns, src)
}

func (s *savepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if s.closed {
		return nil, pgx.ErrTxClosed
	}
	return s.Tx.Prepare(ctx, name, sql)
}
