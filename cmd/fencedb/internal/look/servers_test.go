package look

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn/conntest"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// slowScan lets SCAN wait until its time is over, as in a Redis that holds much else.
type slowScan struct{ redis.Hook }

func (slowScan) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "scan" {
			return next(ctx, cmd)
		}
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}
func (slowScan) DialHook(next redis.DialHook) redis.DialHook { return next }
func (slowScan) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestASearchOfTheNamespacesIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	slow := e.Slow()
	slow.AddHook(slowScan{})
	e.Client = slow
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	found, err := Read(ctx, e.Servers, "seat:1")

	require.NoError(t, err)
	codes := []string{}
	for _, n := range found.Notes {
		codes = append(codes, n.Code)
	}
	require.Equal(t, []string{"unknown_to_redis", "not_searched"}, codes)
	require.ErrorContains(t, found.Unsearched, "redis: SCAN was not done in 5s: Redis is slow, or has many keys; until then it named ")
	require.Nil(t, found.Elsewhere)
}

// Redis is asked again: what was read of it is as old as the rest of the examination took.
func TestDoctorNamesNobodyWhoHasReleasedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, hashed := range []bool{false, true} {
		e := conntest.Open(t)
		e.Names.Hashed = hashed
		i, err := lease.New(e.Client, lease.Config{TTL: time.Minute, RenewEvery: lease.Never, Namespace: "shop", HashResources: hashed})
		require.NoError(t, err)
		hold := func(resource string) *lease.Lease {
			l, err := i.Acquire(t.Context(), resource, lease.NoWait())
			require.NoError(t, err)
			require.NoError(t, fencedb.Seal(t.Context(), e.Pool, l))
			return l
		}
		former := hold("seat:1")
		require.NoError(t, former.Release(t.Context()))
		hold("seat:1")
		stale := hold("seat:2")
		e.Exec(fmt.Sprintf(`SELECT fencedb.enter('seat:2', %d, '%v')`, stale.Token()+1, uuid.New()))
		read := func(l *lease.Lease) []held {
			name := l.Resource()
			if hashed {
				name = protocol.Digest(name)
			}
			return []held{{Resource: name, Holder: Holder{LeaseID: l.LeaseID(), Token: l.Token()}}}
		}

		late := &examination{Servers: e.Servers, held: append(slices.Repeat(read(former), 20), read(stale)...)}
		require.NoError(t, late.askHolders(t.Context()))
		require.Len(t, late.findings, 1, "not those who have released since Redis was read")

		away := &examination{Servers: e.Servers, held: read(stale)}
		away.Client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		require.NoError(t, away.Client.Close())
		require.NoError(t, away.askHolders(t.Context()))
		require.Equal(t, "leases_hidden", away.findings[0].Code, "and Postgres has answered")
	}
}

// No question reads the audit once for each table of the database.
func TestDoctorReadsTheAuditAFewTimes(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	e.Exec(`DO $$ BEGIN
		FOR i IN 1..100 LOOP EXECUTE format('CREATE TABLE other_%s (id int)', i); END LOOP;
		PERFORM fencedb.record('revoke', 'seat:' || i, 'ann', 'it hangs') FROM generate_series(1, 100) i;
	END $$; ANALYZE`)
	for _, q := range questions {
		require.NoError(t, pgx.BeginFunc(t.Context(), e.Pool, func(tx pgx.Tx) error {
			const scans = `SELECT sum(pg_stat_get_xact_numscans(r)) FROM unnest('{fencedb.events,fencedb.events_kind,fencedb.events_resource}'::regclass[]) r`
			var before, after int
			err := tx.QueryRow(t.Context(), scans).Scan(&before)
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), strings.Replace(q[6], "@too_high", TooHigh, 1), pgx.NamedArgs{"long": 1.0})
			require.NoError(t, err, q[2])
			err = tx.QueryRow(t.Context(), scans).Scan(&after)
			require.LessOrEqual(t, after-before, 2, q[2])
			return err
		}))
	}
}

// until answers no query before that time.
type until time.Time

func (until) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (u until) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {
	<-time.After(time.Until(time.Time(u)))
}

// A fence may be entered while doctor asks, with a token that Redis's clock has passed by the time
// of the answer.
func TestDoctorTakesNoNewFenceForOneAheadOfTheClock(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	token := time.Now().Add(time.Second)
	e.Exec(fmt.Sprintf(`INSERT INTO fencedb.fences VALUES ('seat:1', %d, gen_random_uuid())`, token.UnixMicro()))
	config := e.Pool.Config()
	config.ConnConfig.Tracer = until(token.Add(time.Millisecond))
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	e.Pool = pool
	run := &examination{Servers: e.Servers, redis: []lease.ServerHealth{{RoundTrip: 1}}} // a clock like ours

	require.NoError(t, run.askCounters(t.Context()))

	require.Empty(t, run.findings)
}

func TestWatchSaysHowToSwitchTheFeedOnUnlessItIsOn(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	events := feed.New(e.Client, feed.Namespace("shop"))
	i, err := lease.New(e.Client, lease.Config{TTL: time.Minute, Namespace: "shop", Tracers: []lease.Tracer{events}})
	require.NoError(t, err)
	l, err := i.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, events.Close(t.Context()))
	var said bytes.Buffer
	e.ErrOut = &said

	hintAtFeed(t.Context(), e.Servers, feed.Namespace("shop"))
	require.Empty(t, said.String(), "somebody does publish")
	hintAtFeed(t.Context(), e.Servers, feed.Namespace("shop/other"))
	require.NotEmpty(t, said.String())
}
