package faulty_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func connect(t *testing.T) (*faulty.PostgresProxy, *pgx.Conn) {
	proxy := faulty.NewPostgresProxy(t, testenv.Postgres(t).Config().ConnString())
	conn, err := pgx.Connect(t.Context(), proxy.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return proxy, conn
}

// soon bounds what a silence would make last for ever.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func ask(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.PgConn().CopyTo(ctx, io.Discard, `COPY (SELECT 1) TO STDOUT`) // which passes on how the connection ended
	return err
}

// counted counts what a client gets.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

func TestAnAnswerEndsAtAnyByteOnce(t *testing.T) {
	t.Parallel()
	proxy, _ := connect(t)
	config, err := pgx.ParseConfig(proxy.URL())
	require.NoError(t, err)
	var got atomic.Int64
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return counted{conn, &got}, err
	}
	length := int64(0)
	for n := int64(0); n <= length; n++ {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		before := got.Load()
		if length == 0 {
			require.NoError(t, ask(t.Context(), conn))
			length, before = got.Load()-before, got.Load()
		}
		proxy.AfterBytes(int(n), faulty.Cut)
		err = ask(t.Context(), conn)
		require.Equal(t, n, got.Load()-before)
		require.Equal(t, n < length, proxy.Fired())
		if n < length {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "after %d of %d bytes", n, length)
			continue
		}
		require.NoError(t, err)
		proxy.AfterBytes(-1, faulty.Cut)
		require.NoError(t, ask(t.Context(), conn))
		_ = conn.Close(t.Context())
	}
}

func TestEachFateLooksDifferentToTheClient(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate faulty.Fate
		says error
	}{
		"cut":     {faulty.Cut, io.ErrUnexpectedEOF},
		"orphan":  {faulty.Orphan, io.ErrUnexpectedEOF},
		"reset":   {faulty.Reset, syscall.ECONNRESET},
		"silence": {faulty.Silence, context.DeadlineExceeded},
	} {
		bounded := func(t *testing.T) context.Context { return t.Context() }
		if c.fate == faulty.Silence {
			bounded = soon
		}
		proxy, conn := connect(t)
		proxy.AfterBytes(3, c.fate)
		require.ErrorIs(t, ask(bounded(t), conn), c.says, name)

		proxy, conn = connect(t)
		proxy.OnServer(func(pgproto3.BackendMessage) faulty.Fate { return c.fate })
		require.ErrorIs(t, ask(bounded(t), conn), c.says, name)
	}
}

func TestTheServerLearnsNothingOfASilence(t *testing.T) {
	t.Parallel()
	proxy, conn := connect(t)
	other, err := pgx.Connect(t.Context(), proxy.URL())
	require.NoError(t, err)
	defer other.Close(context.Background())
	_, err = conn.Exec(t.Context(), `BEGIN`)
	require.NoError(t, err)
	pid := conn.PgConn().PID()

	proxy.AfterBytes(0, faulty.Silence)
	require.Error(t, ask(soon(t), conn))
	_ = conn.PgConn().Conn().Close()
	<-conn.PgConn().CleanupDone()

	backends := func() (n int) {
		require.NoError(t, other.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&n))
		return n
	}
	require.Equal(t, 1, backends())
	proxy.Sever()
	require.Eventually(t, func() bool { return backends() == 0 }, time.Minute, time.Millisecond)
}

func TestANetworkThatHangsComesBack(t *testing.T) {
	t.Parallel()
	proxy, conn := connect(t)
	proxy.Hang(true)

	err := ask(soon(t), conn)
	require.True(t, pgconn.Timeout(err) || errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	_, err = pgx.Connect(soon(t), proxy.URL())
	require.ErrorIs(t, err, context.DeadlineExceeded)

	proxy.Hang(false)
	conn, err = pgx.Connect(t.Context(), proxy.URL())
	require.NoError(t, err)
	defer conn.Close(context.Background())
	require.NoError(t, ask(t.Context(), conn))
}

// argument is encoded as what it returns, as late as pgx does that.
type argument func() int64

func (a argument) Value() (driver.Value, error) { return a(), nil }

func TestABreakpointIsReachedOnceBehindAllOfTheClient(t *testing.T) {
	t.Parallel()
	var b faulty.Breakpoint
	config := testenv.Postgres(t).Config().ConnConfig
	config.AfterNetConnect = b.Watch
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	var order []string
	b.Arm(func() { order = append(order, "reached") })

	for range 2 {
		batch := &pgx.Batch{}
		batch.Queue(`SELECT $1::bigint`, argument(func() int64 { order = append(order, "encoded"); return 1 }))
		require.NoError(t, conn.SendBatch(t.Context(), batch).Close())
	}

	require.Equal(t, []string{"encoded", "reached", "encoded"}, order)
}

func TestARoundKnowsWhatWasPreparedBefore(t *testing.T) {
	t.Parallel()
	proxy, conn := connect(t)
	const sql = `SELECT 1 / $1::int`
	var rounds []faulty.Round
	ask := func(by int) { _, _ = conn.Exec(t.Context(), sql, by) }
	ask(1)
	proxy.OnRound(func(r faulty.Round) faulty.Fate {
		rounds = append(rounds, r)
		return faulty.Pass
	})
	ask(1)
	ask(0)
	require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(pgx.Tx) error { return nil }))
	proxy.OnRound(func(faulty.Round) faulty.Fate { return faulty.Cut })
	ask(1)
	require.True(t, conn.IsClosed())
	require.Equal(t, []faulty.Round{
		{[]string{sql}, false, 'I'}, {[]string{sql}, true, 'I'},
		{nil, false, 'I'}, // pgx forgets the statement that has failed
		{[]string{"begin"}, false, 'T'}, {[]string{"commit"}, false, 'I'},
	}, rounds)
}
