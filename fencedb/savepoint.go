package fencedb

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// savepoint is the pseudo nested transaction that Begin returns. It differs from that of pgx in that its statements
// pass through the fenced transaction around it; so the first can open that, in one round trip.
type savepoint struct {
	pgx.Tx // of
	of     *fencedTx
	name   string
	closed bool
}

// Commit keeps what was done since the savepoint, for the transaction around it to commit.
func (s *savepoint) Commit(ctx context.Context) error { return s.close(ctx, "release savepoint ") }

// Rollback undoes what was done since the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	return s.close(ctx, "rollback to savepoint ")
}

func (s *savepoint) close(ctx context.Context, sql string) error {
	if s.closed {
		return pgx.ErrTxClosed
	}
	s.closed = true
	ctx = s.of.within(ctx)
	if err := s.of.open(ctx); err != nil {
		return err
	}
	_, err := s.of.inner.Exec(ctx, sql+s.name)
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
		return noRows(pgx.ErrTxClosed)
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
