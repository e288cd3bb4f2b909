package integration

// What logical replication does to a protected table on its subscriber, where changes arrive
// without having passed a fence.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

const insert = `INSERT INTO bookings (id, table_id, guest) VALUES ($1, 12, $2)`

// Both sides are migrated and protected; the ledger is published with the table. Changes arrive
// past the triggers of the subscriber, which fire for its own clients only: they need a token, and
// one that is current on the publisher.
func TestASubscriberIsFilledPastItsFencesAndProtectedByThem(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, "wal_level=logical")
	publisher, subscriber := server.Pool(), testenv.OwnPostgres(t, "wal_retrieve_retry_interval=100ms").Pool()
	for _, side := range []*pgxpool.Pool{publisher, subscriber} {
		do(t, side, `CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`)
		do(t, side, `SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	}
	write := func(side *pgxpool.Pool, token int64, id int, guest string) error {
		lease := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(token)})
		_, err := fencedb.Exec(t.Context(), side, fencedb.NewGrant("table:12", token, lease, fencedb.NoEnd), insert, id, guest)
		return err
	}
	require.NoError(t, write(publisher, 41, 1, "ann"))

	do(t, publisher, `CREATE PUBLICATION bookings FOR TABLE bookings, fencedb.fences`)
	subscribe(t, subscriber, server.URL())
	require.NoError(t, write(publisher, 42, 2, "ben"))

	require.Equal(t, []string{"ann 41", "ben 42"}, await(t, subscriber, 2), "the first copy and the changes after it")
	_, err := subscriber.Exec(t.Context(), insert, 3, "cid")
	require.ErrorIs(t, fencedb.Explain(err), fencedb.ErrNoToken)
	require.Eventually(t, func() bool { return fence(t, subscriber) == 42 }, time.Minute, 10*time.Millisecond, "the ledger comes by itself")
	require.ErrorIs(t, write(subscriber, 41, 3, "cid"), fencedb.ErrStale)

	do(t, subscriber, `ALTER SUBSCRIPTION bookings DISABLE`) // it takes over
	require.NoError(t, write(subscriber, 43, 3, "cid"))
	require.Equal(t, []string{"ann 41", "ben 42", "cid 43"}, rows(t, subscriber))
}

// A guard that fires for replicated changes too stops them: nobody has entered there.
func TestAGuardThatAlwaysFiresStopsReplication(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, "wal_level=logical")
	publisher, subscriber := server.Pool(), testenv.OwnPostgres(t, "wal_retrieve_retry_interval=100ms").Pool()
	for _, side := range []*pgxpool.Pool{publisher, subscriber} {
		do(t, side, `CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text NOT NULL)`)
	}
	do(t, subscriber, `SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	do(t, publisher, `CREATE PUBLICATION bookings FOR TABLE bookings`)
	subscribe(t, subscriber, server.URL())
	do(t, publisher, `INSERT INTO bookings VALUES (1, 12, 'ann')`)
	require.Equal(t, []string{"ann 0"}, await(t, subscriber, 1))

	do(t, subscriber, `ALTER TABLE bookings ENABLE ALWAYS TRIGGER "~fencedb_row"`)
	do(t, publisher, `INSERT INTO bookings VALUES (2, 12, 'ben')`)
	refused(t, subscriber)
	do(t, subscriber, `ALTER TABLE bookings ENABLE TRIGGER "~fencedb_row"`)

	require.Equal(t, []string{"ann 0", "ben 0"}, await(t, subscriber, 2))
}

func subscribe(t *testing.T, subscriber *pgxpool.Pool, publisher string) {
	t.Helper()
	do(t, subscriber, fmt.Sprintf(`CREATE SUBSCRIPTION bookings CONNECTION '%s' PUBLICATION bookings`, publisher))
	t.Cleanup(func() { // the slot keeps the publisher from stopping in order
		_, _ = subscriber.Exec(context.Background(), `DROP SUBSCRIPTION bookings`)
	})
}

func do(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err, sql)
}

// rows are the guests and the tokens that booked them.
func rows(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	found, err := pool.Query(t.Context(), `SELECT guest || ' ' || last_fencing_token FROM bookings ORDER BY id`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

func fence(t *testing.T, pool *pgxpool.Pool) (token int64) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT coalesce(fencedb.last_token('table:12'), 0)`).Scan(&token))
	return token
}

// await returns the rows once n of them have arrived.
func await(t *testing.T, subscriber *pgxpool.Pool, n int) []string {
	t.Helper()
	require.Eventually(t, func() bool { return len(rows(t, subscriber)) >= n }, time.Minute, 10*time.Millisecond)
	return rows(t, subscriber)
}

// refused returns once the subscriber has failed to apply a change.
func refused(t *testing.T, subscriber *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool {
		var errors int
		err := subscriber.QueryRow(t.Context(), `SELECT apply_error_count FROM pg_stat_subscription_stats`).Scan(&errors)
		return err == nil && errors > 0
	}, time.Minute, 10*time.Millisecond)
}
