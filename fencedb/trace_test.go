package fencedb_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// recorder is a tracer of pgx that keeps the SQL it is told of, and what became of it outside of
// batches.
type recorder struct {
	seen  []string
	ended []pgx.TraceQueryEndData
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.seen = append(r.seen, d.SQL)
	return ctx
}
func (r *recorder) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	r.ended = append(r.ended, d)
}
func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (r *recorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	r.seen = append(r.seen, d.SQL)
}
func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// What travels in one round trip is told to the tracer as a batch, each statement once and in
// order.
func TestTracersSeeEveryStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, trace := w.recorded()
	const enter = `SELECT coalesce((SELECT r FROM fencedb.reenter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.uuid, $4::bigint, $6::boolean) r),` +
		` fencedb.enter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.uuid, $4::bigint, $5::bigint, true, $6::boolean)::pg_catalog.text)`

	require.NoError(t, fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), insertAnn, 1); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `SELECT 1`)
		return err
	}))
	require.Equal(t, []string{"begin", enter, insertAnn, `SELECT 1`, "commit"}, trace.seen)

	g := grant("table:12", 42)
	trace.seen = nil
	_, err := fencedb.Exec(t.Context(), pool, g, insertAnn, 2)
	require.NoError(t, err)
	require.Equal(t, []string{enter, insertAnn}, trace.seen, "the batch is the transaction")

	for sql, options := range map[string]pgx.TxOptions{
		`LOCK TABLE bookings`:          {}, // asks for a transaction block
		`DO 'BEGIN END'`:               {}, // could commit
		`UPDATE bookings SET guest=''`: {IsoLevel: pgx.ReadCommitted},
	} {
		trace.seen = nil
		_, err := fencedb.Exec(t.Context(), fencedb.With(pool, fencedb.TxOptions(options)), g, sql)
		require.NoError(t, err, sql)
		require.Len(t, trace.seen, 4, sql)
	}
}

// recorded returns a pool and the tracer of its connections.
func (w *world) recorded() (*pgxpool.Pool, *recorder) {
	w.Helper()
	trace := &recorder{}
	config := w.pool.Config()
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	return pool, trace
}

// journal is a tracer that keeps what it is told.
type journal struct {
	mu    sync.Mutex
	open  int
	ends  []fencedb.TraceEnd
	alien int // ends without the context of their start
}

type inPair fencedb.Op

func (j *journal) TraceWriteStart(ctx context.Context, s fencedb.TraceStart) context.Context {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open++
	return context.WithValue(ctx, inPair(s.Op), true)
}

func (j *journal) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open--
	j.ends = append(j.ends, e)
	if ctx.Value(inPair(e.Op)) == nil {
		j.alien++
	}
}

// take returns what was told since the last call, and checks that each start has had its end.
func (j *journal) take(t *testing.T) []fencedb.TraceEnd {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	require.Zero(t, j.open, "pairs that have not ended")
	require.Zero(t, j.alien)
	ends := j.ends
	j.ends = nil
	return ends
}

// takeOne is take where there must be one.
func (j *journal) takeOne(t *testing.T) fencedb.TraceEnd {
	t.Helper()
	ends := j.take(t)
	require.Len(t, ends, 1)
	return ends[0]
}

func TestTracersAreToldOfATransactionAndItsCommit(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), &journal{}
	db := fencedb.With(w.pool, fencedb.Trace(j))
	g := grant("table:12", 41)

	require.NoError(t, fencedb.Tx(t.Context(), db, g, func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") }))
	ends := j.take(t)
	require.Len(t, ends, 2)
	require.Equal(t, fencedb.OpCommit, ends[0].Op)
	require.Equal(t, fencedb.OpWrite, ends[1].Op)
	require.Equal(t, []fencedb.Grant{g}, ends[1].Grants)
	require.NoError(t, ends[1].Err)
	require.GreaterOrEqual(t, ends[1].Took, ends[0].Took)

	mine := errors.New("no such guest")
	require.ErrorIs(t, fencedb.Tx(t.Context(), db, g, func(pgx.Tx) error { return mine }), mine)
	require.ErrorIs(t, j.takeOne(t).Err, mine, "not committed, so no commit is told")
}

func TestTracersAreToldOfEveryWayToWrite(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), &journal{}
	db := fencedb.With(w.pool, fencedb.Trace(j))
	const insert = `INSERT INTO bookings (id, table_id, guest) VALUES ($1, 12, 'ann')`
	ways := map[string]func(g fencedb.Grant) error{
		"Exec": func(g fencedb.Grant) error {
			_, err := fencedb.Exec(t.Context(), db, g, insert, ids.Add(1))
			return err
		},
		"QueryRow": func(g fencedb.Grant) error {
			var id int
			return fencedb.QueryRow(t.Context(), db, g, insert+` RETURNING id`, ids.Add(1)).Scan(&id)
		},
		"Query": func(g fencedb.Grant) error {
			rows, err := fencedb.Query(t.Context(), db, g, insert+` RETURNING id`, ids.Add(1))
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"SendBatch": func(g fencedb.Grant) error {
			b := &pgx.Batch{}
			b.Queue(insert, ids.Add(1))
			return fencedb.SendBatch(t.Context(), db, g, b)
		},
		"Seal": func(g fencedb.Grant) error { return fencedb.Seal(t.Context(), db, g) },
	}
	token := int64(40)
	for name, write := range ways {
		op := map[bool]fencedb.Op{true: fencedb.OpSeal, false: fencedb.OpWrite}[name == "Seal"]
		token++
		require.NoError(t, write(grant("table:12", token)), name)
		told := j.takeOne(t)
		require.NoError(t, told.Err, name)
		require.Equal(t, op, told.Op, name)
		require.ErrorIs(t, write(grant("table:12", 1)), fencedb.ErrStale, name)
		told = j.takeOne(t)
		require.ErrorIs(t, told.Err, fencedb.ErrStale, name)
		require.Equal(t, op, told.Op, name)
	}
}

func TestTracersAreToldOfAnOutcomeThatIsAskedFor(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), &journal{}
	g := grant("table:12", 41)
	lost := errors.New("the answer was lost")
	for _, committed := range []bool{true, false} {
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		entry, err := fencedb.Enter(t.Context(), tx, g, fencedb.Trace(j))
		require.NoError(t, err)
		require.Equal(t, fencedb.OpEnter, j.takeOne(t).Op)
		end := tx.Rollback
		if committed {
			end = tx.Commit
		}
		require.NoError(t, end(t.Context()))
		err = entry.Outcome(t.Context(), w.pool, lost)
		told := j.takeOne(t)
		require.Equal(t, fencedb.TraceStart{Op: fencedb.OpOutcome, Grants: []fencedb.Grant{g}}, told.TraceStart)
		require.Equal(t, err, told.Err)
		require.Equal(t, committed, err == nil)
	}
	require.ErrorIs(t, (*fencedb.Entry)(nil).Outcome(t.Context(), w.pool, lost), lost)
	require.Empty(t, j.take(t), "nothing was entered, and nothing asked")
}

// Whatever comes in between, a pair that has begun ends, and never as committed.
func TestAPairEndsAfterAPanicAndWithoutAConnection(t *testing.T) {
	t.Parallel()
	w, j := newWorld(t), &journal{}
	db := fencedb.With(w.pool, fencedb.Trace(j))

	require.Panics(t, func() { _ = fencedb.Tx(t.Context(), db, grant("table:12", 41), func(pgx.Tx) error { panic("in fn") }) })
	require.Error(t, j.takeOne(t).Err)

	b := &pgx.Batch{}
	b.Queue(`SELECT 1`).QueryRow(func(pgx.Row) error { panic("in a callback") })
	require.Panics(t, func() { _ = fencedb.SendBatch(t.Context(), db, grant("table:12", 42), b) })
	require.Error(t, j.takeOne(t).Err)
	w.awaitIdle(w.pool)

	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := fencedb.Exec(done, db, grant("table:12", 43), `SELECT 1`)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, j.takeOne(t).Err, context.Canceled)

	_, err = fencedb.Exec(t.Context(), db, nil, `SELECT 1`)
	require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
	require.Empty(t, j.take(t), "nothing was to be sent")
}

func TestTracersOfOneCallJoinThoseOfTheDB(t *testing.T) {
	t.Parallel()
	w, inner, outer, own := newWorld(t), &journal{}, &journal{}, &journal{}
	db := fencedb.With(fencedb.With(w.pool, fencedb.Trace(inner)), fencedb.Trace(outer))

	err := fencedb.Tx(t.Context(), db, grant("table:12", 41), func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") }, fencedb.Trace(own))
	require.NoError(t, err)
	for _, j := range []*journal{inner, outer, own} {
		require.Len(t, j.take(t), 2)
	}

	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, enter(t.Context(), tx, grant("table:12", 1), fencedb.Trace(own)), fencedb.ErrStale)
	require.NoError(t, tx.Rollback(t.Context()))
	refused := own.takeOne(t)
	require.Equal(t, fencedb.OpEnter, refused.Op)
	require.ErrorIs(t, refused.Err, fencedb.ErrStale)
}

type key string

// marks is a tracer of writes and of pgx: what the pair puts into the context, and what statements
// have in theirs.
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
	db := fencedb.With(pool, fencedb.Trace(m))
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

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for word, err := range map[string]error{
		"stale":          &fencedb.StaleError{},
		"no_token":       fencedb.ErrNoToken,
		"wrong_resource": &fencedb.WrongResourceError{},
		"lease_over":     fencedb.ErrLeaseOver,
		"too_long":       fencedb.ErrTooLong,
		"tx_ended":       &fencedb.TxEndedError{},
		"unsealed":       fencedb.ErrUnsealed,
		"busy":           &fencedb.BusyError{},
		"commit_unknown": &fencedb.CommitUnknownError{},
		"invalid_grant":  fencedb.ErrInvalidGrant,
		"error":          errors.New("the caller's own"),
	} {
		require.Equal(t, word, fencedb.TraceEnd{Err: err}.Outcome())
		require.Contains(t, fencedb.Outcomes(), word)
	}
	require.Equal(t, "committed", fencedb.TraceEnd{}.Outcome())
	require.Equal(t, "committed", fencedb.TraceEnd{Err: fencedb.ErrCommitted}.Outcome())
	require.Equal(t, "error", fencedb.TraceEnd{Err: fencedb.ErrKeyReused}.Outcome())
	require.Len(t, fencedb.Outcomes(), 12)
}

func TestTheSubjectOfAnEnd(t *testing.T) {
	t.Parallel()
	table := fencedb.NewGrant("table:12", 7, uuid.New(), fencedb.NoEnd)
	sku := fencedb.NewGrant("sku:1", 8, uuid.New(), fencedb.NoEnd)
	for _, c := range []struct {
		err    error
		grant  fencedb.Grant
		stored int64
	}{
		{nil, table, 0},
		{fencedb.ErrBusy, table, 0},
		{&fencedb.StaleError{Resource: "sku:1", Stored: 9}, sku, 9},
		{&fencedb.StaleError{Stored: 9}, table, 9},
	} {
		e := fencedb.TraceEnd{TraceStart: fencedb.TraceStart{Grants: []fencedb.Grant{table, sku}}, Err: c.err}
		grant, stored := e.Subject()
		require.Equal(t, c.grant, grant)
		require.Equal(t, c.stored, stored)
	}
}
