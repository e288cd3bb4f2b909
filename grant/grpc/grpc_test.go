package grpc_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/grant"
	grantgrpc "github.com/fencedb/fencedb/grant/grpc"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// service is a server of health checks, with one call of each kind, that runs work in both.
type service struct {
	health.UnimplementedHealthServer
	work func(ctx context.Context) error
}

func (s service) Check(ctx context.Context, _ *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	return &health.HealthCheckResponse{}, s.work(ctx)
}

func (s service) Watch(_ *health.HealthCheckRequest, stream health.Health_WatchServer) error {
	if err := s.work(stream.Context()); err != nil {
		return err
	}
	return stream.Send(&health.HealthCheckResponse{})
}

// calls are the two kinds of a call to a service that believes trust and runs work.
func calls(t *testing.T, trust grant.Trust, work func(context.Context) error) map[string]func(context.Context) error {
	t.Helper()
	c, _ := cuttable(t, trust, work)
	return c
}

// cuttable is calls, with a function that cuts the connection.
func cuttable(t *testing.T, trust grant.Trust, work func(context.Context) error,
	opts ...grpc.DialOption) (_ map[string]func(context.Context) error, cut func()) {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	var wire atomic.Pointer[net.Conn]
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grantgrpc.UnaryServer(trust)),
		grpc.ChainStreamInterceptor(grantgrpc.StreamServer(trust)))
	health.RegisterHealthServer(server, service{work: work})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:b", append(opts,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := listener.DialContext(ctx)
			wire.Store(&c)
			return c, err
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grantgrpc.UnaryClient()),
		grpc.WithChainStreamInterceptor(grantgrpc.StreamClient()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := health.NewHealthClient(conn)
	return map[string]func(context.Context) error{
		"unary": func(ctx context.Context) error {
			_, err := client.Check(ctx, &health.HealthCheckRequest{})
			return err
		},
		"stream": func(ctx context.Context) error {
			stream, err := client.Watch(ctx, &health.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}, func() { _ = (*wire.Load()).Close() }
}

const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.001s",
	"maxBackoff": "0.1s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

func until(end time.Time) fencedb.Grant { return fencedb.NewGrant("table:12", 41, uuid.New(), end) }

func TestACallCarriesItsGrant(t *testing.T) {
	t.Parallel()
	var got fencedb.Grant
	var there bool
	var md metadata.MD
	for kind, call := range calls(t, grant.Trusted(time.Minute), func(ctx context.Context) error {
		got, there = grant.FromContext(ctx)
		md, _ = metadata.FromIncomingContext(ctx)
		return nil
	}) {
		want := until(time.Now().Add(time.Hour))
		ctx := grant.NewContext(t.Context(), want)
		ctx = metadata.AppendToOutgoingContext(ctx, "of", "the caller", "fencing-grant", "of another")
		require.NoError(t, call(ctx), kind)
		require.True(t, there, kind)
		require.Equal(t, []any{want.Resource(), want.Token(), want.LeaseID()},
			[]any{got.Resource(), got.Token(), got.LeaseID()}, kind)
		require.Equal(t, []string{"the caller"}, md.Get("of"), kind)
		require.Empty(t, md.Get("fencing-grant"), "%s: nobody can log it", kind)

		require.NoError(t, call(t.Context()), kind)
		require.False(t, there, "%s: without a grant", kind)

		both := fencedb.All(want, fencedb.NewGrant("table:13", 7, uuid.New(), fencedb.NoEnd))
		require.NoError(t, call(grant.NewContext(t.Context(), both)), kind)
		require.Len(t, got.(interface{ Grants() []fencedb.Grant }).Grants(), 2, kind)

		got = nil
		require.ErrorIs(t, call(grant.NewContext(t.Context(), until(time.Now()))), fencedb.ErrLeaseOver, kind)
		require.Nil(t, got, "%s: it is not sent", kind)
	}
}

func TestWhatIsNotBelievedDoesNotReachTheServer(t *testing.T) {
	t.Parallel()
	leases := fencedbtest.NewIssuer(t, lease.Config{TTL: time.Minute})
	nowhere, err := lease.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}), lease.Config{TTL: time.Minute})
	require.NoError(t, err)
	madeUp := grant.NewContext(t.Context(), until(fencedb.NoEnd))
	secret := metadata.AppendToOutgoingContext(t.Context(), "fencing-grant", "secret")
	for name, tc := range map[string]struct {
		trust grant.Trust
		ctx   context.Context
		want  codes.Code
	}{
		"malformed":     {grant.Trusted(time.Minute), secret, codes.InvalidArgument},
		"over":          {grant.Trusted(time.Nanosecond), madeUp, codes.Aborted},
		"not current":   {grant.Verified(leases.Issuer), madeUp, codes.Aborted},
		"Redis is away": {grant.Verified(nowhere), madeUp, codes.Unavailable},
		"no trust":      {grant.Trust{}, madeUp, codes.Internal},
	} {
		for kind, call := range calls(t, tc.trust, func(context.Context) error { panic("it was reached") }) {
			err := call(tc.ctx)
			require.Equal(t, tc.want, status.Code(err), "%s, %s: %v", name, kind, err)
			require.NotEmpty(t, status.Convert(err).Message())
			for _, detail := range []string{"secret", "table", "127.0.0.1", "refused", "version", "word"} {
				require.NotContains(t, err.Error(), detail)
			}
		}
	}
}

func TestTheContextOfTheServerEndsWithTheGrant(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	for kind, call := range calls(t, grant.Trusted(3*time.Second), func(ctx context.Context) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	}) {
		require.NoError(t, call(grant.NewContext(t.Context(), until(fencedb.NoEnd))), kind)
		require.ErrorIs(t, <-ended, fencedb.ErrLeaseOver, kind)
	}
}

// A holds and is overtaken while B works for it.
func TestAServerIsRefusedWithItsCaller(t *testing.T) {
	t.Parallel()
	pool, leases := testenv.Postgres(t), fencedbtest.IssuerOn(t, testenv.Redis(t), lease.Config{TTL: time.Minute})
	for _, sql := range []string{`CREATE TABLE seats (table_id int NOT NULL)`, `SELECT fencedb.protect('seats', 'table:{table_id}')`} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	overtaken := false
	for kind, call := range calls(t, grant.Verified(leases.Issuer), func(ctx context.Context) error {
		g, _ := grant.FromContext(ctx)
		if overtaken {
			fencedbtest.Overtake(t, leases, pool, "table:12")
		}
		err := fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO seats VALUES (12)`)
			return err
		})
		if lease.IsLost(err) {
			return status.Error(codes.Aborted, err.Error())
		}
		return err
	}) {
		for _, overtaken = range []bool{false, true} {
			l, err := leases.Acquire(t.Context(), "table:12")
			require.NoError(t, err)
			want := codes.OK
			if overtaken {
				want = codes.Aborted
			}
			err = call(grant.NewContext(t.Context(), l))
			require.Equal(t, want, status.Code(err), "%s: %v", kind, err)
			_ = l.Release(t.Context())
		}
	}
	var seats int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM seats`).Scan(&seats))
	require.Equal(t, 2, seats)
}

// The first attempt writes, and its answer is lost. The next one finds that the lease is over, or
// is refused by the handler.
func TestAnAnswerToARetriedCallSaysNothingOfTheFirstAttempt(t *testing.T) {
	t.Parallel()
	leases := fencedbtest.NewIssuer(t, lease.Config{TTL: time.Minute})
	for name, tc := range map[string]struct {
		over   bool // the lease, at the second attempt
		answer error
		want   codes.Code
	}{
		"the lease is over": {over: true, want: codes.Unknown},
		"busy":              {answer: status.Error(codes.Aborted, "busy"), want: codes.Unknown},
		"done":              {want: codes.OK},
		"another refusal":   {answer: status.Error(codes.FailedPrecondition, "closed"), want: codes.FailedPrecondition},
	} {
		var attempts int
		var held *lease.Lease
		var cut func()
		var all map[string]func(context.Context) error
		all, cut = cuttable(t, grant.Verified(leases.Issuer), func(context.Context) error {
			if attempts++; attempts > 1 {
				return tc.answer
			}
			if tc.over {
				_ = held.Release(t.Context())
			}
			cut()
			return nil
		}, grpc.WithDefaultServiceConfig(retries))
		for kind, call := range all {
			attempts = 0
			var err error
			held, err = leases.Acquire(t.Context(), "table:12")
			require.NoError(t, err)
			err = call(grant.NewContext(t.Context(), held))
			require.Equal(t, tc.want, status.Code(err), "%s, %s: %v", name, kind, err)
			_ = held.Release(t.Context())
		}
	}
}
