package otel_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
)

// within returns the spans of others whose parent this is.
func (r *recorder) within(parent trace.ReadOnlySpan) (names []string) {
	for _, s := range r.Ended() {
		if s.Parent().SpanID() == parent.SpanContext().SpanID() {
			names = append(names, s.Name())
		}
	}
	return names
}

// pool is one whose statements otelpgx traces, with a protected table.
func (r *recorder) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg := testenv.Postgres(t).Config().Copy()
	cfg.ConnConfig.Tracer = otelpgx.NewTracer(otelpgx.WithTracerProvider(r.provider))
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE bookings (table_id int PRIMARY KEY, guest text NOT NULL);
		SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	require.NoError(t, err)
	r.Reset()
	return pool
}

func TestStatementsOfPgxAreWithinTheirWrite(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	db := fencedb.With(r.pool(t), fencedb.Trace(r))
	ctx, request := r.provider.Tracer("test").Start(t.Context(), "request")

	_, err := fencedb.Exec(ctx, db, grant("table:12", 7), `INSERT INTO bookings VALUES (12, 'ann')`)
	require.NoError(t, err)
	write := r.span(t, "fenced write")
	require.NotEmpty(t, r.within(write))

	r.Reset()
	err = fencedb.Tx(ctx, db, grant("table:12", 7), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE bookings SET guest = 'bob'`); err != nil {
			return err
		}
		inner, step := r.provider.Tracer("test").Start(ctx, "step")
		defer step.End()
		_, err := tx.Exec(inner, `DELETE FROM bookings`)
		return err
	})
	require.NoError(t, err)
	request.End()
	write = r.span(t, "fenced write")
	requireChild(t, r.span(t, "request"), write)
	commit := r.span(t, "fenced commit")
	requireChild(t, write, commit)
	require.Contains(t, r.within(commit), "COMMIT")
	require.Subset(t, r.within(write), []string{"batch start", "fenced commit"}, "all of %v", names(r.Ended()))
	require.NotEmpty(t, r.within(r.span(t, "step")), "a span of the caller's own within the function keeps its statements")
}

func names(spans []trace.ReadOnlySpan) (all []string) {
	for _, s := range spans {
		all = append(all, s.Name())
	}
	return all
}

func TestCommandsOfRedisAreWithinTheirAcquisition(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	options := *testenv.Redis(t).Options()
	client := redis.NewClient(&options)
	defer client.Close()
	require.NoError(t, redisotel.InstrumentTracing(client, redisotel.WithTracerProvider(r.provider)))
	cfg := lease.Config{TTL: time.Minute, Namespace: testenv.Namespace(t)}
	cfg.Tracers = []lease.Tracer{r}
	issuer, err := lease.New(client, cfg)
	require.NoError(t, err)
	ctx, request := r.provider.Tracer("test").Start(t.Context(), "request")

	holder, err := issuer.Acquire(ctx, "table:12", lease.NoWait())
	require.NoError(t, err)
	acquire := r.span(t, "lease acquire")
	require.NotEmpty(t, r.within(acquire))
	waiting, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		assert.Eventually(t, func() bool {
			return slices.ContainsFunc(r.Started(), func(s trace.ReadWriteSpan) bool { return s.Name() == "lease wait" })
		}, time.Minute, time.Millisecond)
	}()
	_, err = issuer.Acquire(waiting, "table:12")
	require.ErrorIs(t, err, lease.ErrHeld)
	_, within := r.provider.Tracer("test").Start(holder.Context(), "work")
	within.End()
	require.NoError(t, holder.Release(ctx))
	request.End()

	hold := r.span(t, "lease hold")
	require.Equal(t, holder.Token(), said(hold)["fencedb.token"])
	requireChild(t, hold, r.span(t, "work"))
	for _, part := range []trace.ReadOnlySpan{acquire, hold, r.span(t, "lease release")} {
		requireChild(t, r.span(t, "request"), part)
	}
	requireChild(t, r.named("lease acquire")[1], r.span(t, "lease wait"))
}
