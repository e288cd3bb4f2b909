package fencedb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

type key string

// marks is a tracer of writes and of pgx: what the pair puts into the context, and what statements have in theirs.
type marks struct{ seen []any }

func (m *marks) TraceWriteStart(ctx context.Context, s fencedb.TraceStart) context.Context {
	return context.WithValue(ctx, key("span"), string(s.Op))
}

func (m *marks) TraceWriteEnd(context.Context, fencedb.TraceEnd) {}

func (m *marks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	m.seen = append(m.seen, ctx.Value(key("span")))
	return ctx
}

func (m *marks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (m *marks) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	m.seen = append(m.seen, ctx.Value(key("span")))
	return ctx
}

func (m *marks) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (m *marks) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// The function has the context of the caller, from before there was a pair.
func TestStatementsOfTheFunctionAreWithinThePair(t *testing.T) {
	t.Parallel()
	w, m := newWorld(t), new(marks)
	cfg := w.pool.Config()
	cfg.ConnConfig.Tracer = m
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	db := fencedb.Traced(pool, m)
	g := grant("table:12", 41)

	for name, outer := range map[string]any{"none": nil, "of the caller": "request", "not comparable": []int{1}} {
		m.seen = nil
		ctx := context.WithValue(t.Context(), key("span"), outer)
		own := context.WithValue(ctx, key("span"), "own")
		require.NoError(t, fencedb.Tx(ctx, db, g, func(tx pgx.Tx) error {
			for _, ctx := range []context.Context{ctx, ctx, own} {
				if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
					return err
				}
			}
			return nil
		}))
		wanted := []any{"write", "write", "own", "commit"}
		if name == "not comparable" {
			wanted[0], wanted[1] = outer, outer
		}
		require.Equal(t, wanted, m.seen, name)
	}
}
