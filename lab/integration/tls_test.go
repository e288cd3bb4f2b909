package integration

// Connections with TLS: the server is verified, and asks for a certificate of the client. What the
// leases offer runs so in leasetest.RunRights, on one Redis, on Sentinel and on Cluster.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// overTLS are ways to write a booking of table 12.
var overTLS = map[string]func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, id int) error{
	"Exec": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, id int) error {
		_, err := fencedb.Exec(ctx, pool, g, insert, id, "ann")
		return err
	},
	"Tx": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, id int) error {
		return fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, id, "ann")
			return err
		})
	},
	"TxSQL": func(ctx context.Context, pool *pgxpool.Pool, g fencedb.Grant, id int) error {
		db := stdlib.OpenDBFromPool(pool)
		defer db.Close()
		return fencedb.TxSQL(ctx, db, g, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, insert, id, "ann")
			return err
		})
	},
}

func TestFencedWritesOverTLS(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	server.RequireTLS(testenv.NewCertificates(t))
	pool := server.Pool()
	do(t, pool, `CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text)`)
	do(t, pool, `SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	do(t, pool, `CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'`)
	do(t, pool, `CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON bookings DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stall()`)
	var encrypted bool
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted))
	require.True(t, encrypted)
	current, stale := fencedb.NewGrant("table:12", 42, uuid.New(), fencedb.NoEnd), fencedb.NewGrant("table:12", 41, uuid.New(), fencedb.NoEnd)
	written := func(id int) (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM bookings WHERE id = $1`, id).Scan(&n))
		return n
	}
	id := 0
	for name, write := range overTLS {
		id += 3
		require.NoError(t, write(t.Context(), pool, current, id), name)
		require.Equal(t, 1, written(id), name)
		require.ErrorIs(t, write(t.Context(), pool, stale, id+1), fencedb.ErrStale, name)
		require.Zero(t, written(id+1), name)
		if name == "Exec" { // one round trip: there is no id to ask about
			continue
		}
		writing := func(id int) func(*pgxpool.Pool) error {
			return func(pool *pgxpool.Pool) error { return write(t.Context(), pool, current, id) }
		}
		require.NoError(t, cutInCommit(t, server, pool, writing(id+1), true), name)
		require.Equal(t, 1, written(id+1), name)
		err := cutInCommit(t, server, pool, writing(id+2), false)
		require.ErrorContains(t, err, "rolled back: ", name)
		require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
		require.Zero(t, written(id+2), name)
	}
}

// cutInCommit loses the answer to COMMIT, which has succeeded or not.
func cutInCommit(t *testing.T, server *testenv.PostgresServer, admin *pgxpool.Pool,
	write func(*pgxpool.Pool) error, commits bool) error {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "net")
	network, err := faulty.NewNetwork(socket)
	require.NoError(t, err)
	defer network.Close()
	config, err := pgxpool.ParseConfig(server.URL())
	require.NoError(t, err)
	config.ConnConfig.DialFunc = faulty.Through(socket)
	own := uuid.NewString()
	config.ConnConfig.RuntimeParams["application_name"] = own
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	gate, err := admin.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = gate.Rollback(context.Background()) }()
	_, err = gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- write(pool) }()
	const sessions = ` FROM pg_stat_activity WHERE application_name = $1 AND `
	var session int
	require.Eventually(t, func() bool {
		return admin.QueryRow(t.Context(), `SELECT pid`+sessions+`wait_event = 'advisory'`, own).Scan(&session) == nil
	}, time.Minute, 5*time.Millisecond)
	network.Set(faulty.Weather{HoldReplies: true})
	if !commits {
		_, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend($1, 60000)`, session)
		require.NoError(t, err)
	}
	require.NoError(t, gate.Rollback(t.Context()))
	require.Eventually(t, func() bool {
		var left int
		err := admin.QueryRow(t.Context(), `SELECT count(*)`+sessions+`state <> 'idle'`, own).Scan(&left)
		return err == nil && left == 0
	}, time.Minute, 5*time.Millisecond)
	network.Set(faulty.Weather{Refuse: true})
	network.Set(faulty.Weather{})
	return <-done
}

// Each error says which certificate is wrong, and nothing was written.
func TestAPostgresThatCannotBeTrustedOrDoesNotTrustUs(t *testing.T) {
	t.Parallel()
	server, certs := testenv.OwnPostgres(t), testenv.NewCertificates(t)
	server.RequireTLS(certs)
	for name, change := range map[string]struct {
		says string
		make func(u *url.URL, query url.Values)
	}{
		"another authority": {"certificate signed by unknown authority", func(_ *url.URL, query url.Values) { query.Set("sslrootcert", testenv.NewCertificates(t).CA) }},
		"another host":      {"wanted to match localhost", func(u *url.URL, _ url.Values) { u.Host = "localhost:" + u.Port() }},
		"no certificate": {"connection requires a valid client certificate", func(_ *url.URL, query url.Values) {
			query.Del("sslcert")
			query.Del("sslkey")
		}},
		"of another role": {`authentication failed for user "ann"`, func(u *url.URL, _ url.Values) { u.User = url.User("ann") }},
		"without TLS":     {"no encryption", func(_ *url.URL, query url.Values) { query.Set("sslmode", "disable") }},
	} {
		u, err := url.Parse(server.URL())
		require.NoError(t, err)
		query := u.Query()
		change.make(u, query)
		u.RawQuery = query.Encode()
		pool, err := pgxpool.New(t.Context(), u.String())
		require.NoError(t, err)
		for way, write := range overTLS {
			err := write(t.Context(), pool, fencedb.NewGrant("table:12", 41, uuid.New(), fencedb.NoEnd), 1)
			require.ErrorContains(t, err, change.says, "%s, %s", name, way)
			require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, "%s, %s", name, way)
			connecting := (*pgconn.ConnectError)(nil)
			require.ErrorAs(t, err, &connecting)
		}
		pool.Close()
	}
}

// resetOr is for a server that closes the connection behind the reason: with TLS 1.3 the handshake
// is over by then, and what the client sends meanwhile can cost it the reason.
func resetOr(reason string) string { return reason + "|connection reset by peer|broken pipe" }

// The same for Redis: a caller learns it when its context ends, or after one TTL.
func TestARedisThatCannotBeTrustedOrDoesNotTrustUs(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	server := testenv.OwnRedis(t, certs.Redis()...)
	for name, change := range map[string]struct {
		says string
		make func(config *tls.Config)
	}{
		"another authority": {"certificate signed by unknown authority", func(config *tls.Config) { config.RootCAs = x509.NewCertPool() }},
		"another host":      {"wanted to match cache", func(config *tls.Config) { config.ServerName = "cache" }},
		"no certificate":    {resetOr("certificate required"), func(config *tls.Config) { config.Certificates = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := certs.Config(t)
			change.make(config)
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), TLSConfig: config})
			defer client.Close()
			issuer, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: "tls"})
			require.NoError(t, err)

			_, err = issuer.Acquire(t.Context(), "table:12", lease.NoWait())

			require.ErrorIs(t, err, lease.ErrUnreachable)
			require.Regexp(t, change.says, err.Error())
		})
	}
}
