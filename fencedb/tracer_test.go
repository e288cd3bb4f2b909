package fencedb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// recorder is a tracer of pgx that keeps the SQL it is told of.
type recorder struct{ seen []string }

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.seen = append(r.seen, d.SQL)
	return ctx
}
func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (r *recorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	r.seen = append(r.seen, d.SQL)
}
func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// What travels in one round trip is told to the tracer as a batch, each statement once and in order.
func TestTracersSeeEveryStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trace := &recorder{}
	config := w.pool.Config()
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	const enter = `SELECT xid::text::bigint, epoch FROM fencedb.enter($1::text, $2::bigint, $3::uuid, $4::bigint, $5::bigint)`

	require.NoError(t, fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), insertAnn, 1); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `SELECT 1`)
		return err
	}))
	require.Equal(t, []string{"begin", enter, insertAnn, `SELECT 1`, "commit"}, trace.seen)

	trace.seen = nil
	_, err = fencedb.Exec(t.Context(), pool, grant("table:12", 42), insertAnn, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"begin", enter, insertAnn, "commit"}, trace.seen)
}
