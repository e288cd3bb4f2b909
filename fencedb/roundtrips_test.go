package fencedb_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// Counted on the wire, with warm statement caches. A cold cache costs pgx one round trip more, with the fence or without.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE plain (id int)`)
	pool, proxy := w.behindProxy()
	ctx, g := t.Context(), grant("table:12", 41)
	two := fencedb.All(g, grant("table:13", 7))
	one := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT count(*) FROM plain WHERE id = $1`, 1)
		return err
	}
	three := func() *pgx.Batch {
		b := &pgx.Batch{}
		for i := range 3 {
			b.Queue(`INSERT INTO plain VALUES ($1)`, i)
		}
		return b
	}

	for _, c := range []struct {
		name  string
		trips int64
		do    func() error
	}{
		{"pgx.BeginFunc, one statement", 3, func() error { return pgx.BeginFunc(ctx, pool, one) }},
		{"Tx, no statement", 2, func() error { return fencedb.Tx(ctx, pool, g, func(pgx.Tx) error { return nil }) }},
		{"Tx, one statement", 2, func() error { return fencedb.Tx(ctx, pool, g, one) }},
		{"Tx, one batch", 2, func() error {
			return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return tx.SendBatch(ctx, three()).Close() })
		}},
		{"pgx.BeginFunc, savepoint with one statement", 5, func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pgx.BeginFunc(ctx, tx, one) })
		}},
		{"Tx, savepoint with one statement", 4, func() error {
			return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error { return pgx.BeginFunc(ctx, tx, one) })
		}},
		{"Tx, two resources", 2, func() error { return fencedb.Tx(ctx, pool, two, one) }},
		{"Exec", 1, func() error {
			_, err := fencedb.Exec(ctx, pool, g, `INSERT INTO plain VALUES ($1)`, 1)
			return err
		}},
		{"QueryRow", 1, func() error {
			var id int
			return fencedb.QueryRow(ctx, pool, g, `INSERT INTO plain VALUES ($1) RETURNING id`, 1).Scan(&id)
		}},
		{"Query", 1, func() error {
			rows, err := fencedb.Query(ctx, pool, g, `INSERT INTO plain VALUES ($1) RETURNING id`, 1)
			rows.Close()
			return errors.Join(err, rows.Err())
		}},
		{"SendBatch", 1, func() error { return fencedb.SendBatch(ctx, pool, g, three()) }},
		{"Seal", 1, func() error { return fencedb.Seal(ctx, pool, g) }},
	} {
		require.NoError(t, c.do(), "%s, cold", c.name)
		before := proxy.Turns()
		require.NoError(t, c.do(), "%s, warm", c.name)
		require.Equal(t, c.trips, proxy.Turns()-before, c.name)
	}
}
