package fencedb_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// What a single round trip answers, when the server or the client stumbles over one of its statements: in every query mode,
// for pgx reads errors at different moments in each.

// one is a batch, what is true of it, and how SendBatch has to say so.
type one struct {
	name      string
	queue     func(b *pgx.Batch)
	committed bool
	says      error // nil for an error of its own kind
}

var errMine = errors.New("mine")

func swallow(row pgx.Row) error {
	var x int
	_ = row.Scan(&x)
	return nil
}

func mistype(row pgx.Row) error {
	var at time.Time
	return row.Scan(&at)
}

var stumbles = []one{
	{"a duplicate key in the last statement, swallowed by its callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(swallow)
	}, false, nil},
	{"a duplicate key in the middle, swallowed by its callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(swallow)
		b.Queue(`INSERT INTO effects VALUES (2)`)
	}, false, nil},
	{"an error after the first rows, which the callback does not read", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`SELECT 1 / (x - 500) FROM generate_series(1, 1000) x`).Query(func(rows pgx.Rows) error { rows.Next(); return errMine })
	}, false, nil},
	{"an error at COMMIT", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO late VALUES (1)`)
		b.Queue(`INSERT INTO late VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES (1)`)
	}, false, nil},
	{"an error at COMMIT, and one of a callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO late VALUES (1)`)
		b.Queue(`INSERT INTO late VALUES (1) RETURNING id`).QueryRow(mistype)
		b.Queue(`INSERT INTO effects VALUES (1)`)
	}, false, nil},
	{"a row that cannot be scanned, in the first statement", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(mistype)
		b.Queue(`INSERT INTO effects VALUES (2)`)
	}, true, fencedb.ErrCommitted},
	{"a row that cannot be scanned, in the last statement", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (2)`)
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(mistype)
	}, true, fencedb.ErrCommitted},
	{"an error of a callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).Query(func(pgx.Rows) error { return errMine })
		b.Queue(`INSERT INTO effects VALUES (2)`)
	}, true, errMine},
	{"an argument that cannot be encoded", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES ($1)`, make(chan int))
	}, false, nil},
	{"a statement that cannot be prepared", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO nowhere VALUES (1)`)
	}, false, nil},
	{"a procedure that would commit half", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`CALL commit_half()`)
	}, false, nil},
	{"a BEGIN of its own", func(b *pgx.Batch) {
		b.Queue(`BEGIN`)
		b.Queue(`INSERT INTO effects VALUES (1)`)
	}, true, nil},
}

func TestSingleRoundTripsTellTheTruthInEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`CREATE TABLE effects (id int PRIMARY KEY); CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
			w.exec(`CREATE PROCEDURE commit_half() LANGUAGE plpgsql AS $$ BEGIN COMMIT; INSERT INTO effects VALUES (7); END $$`)
			pool := w.poolIn(mode)
			for i, stumble := range stumbles {
				w.exec(`TRUNCATE effects, late`)
				b := &pgx.Batch{}
				stumble.queue(b)

				err := fencedb.SendBatch(t.Context(), pool, grant("effects", int64(i)+1), b)

				committed := collect[int](w, `SELECT count(*) FROM effects`)[0] > 0
				require.Equal(t, stumble.committed, committed, stumble.name)
				require.Equal(t, committed, err == nil || errors.Is(err, fencedb.ErrCommitted), "%s: %v", stumble.name, err)
				require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, stumble.name)
				if stumble.says != nil {
					require.ErrorIs(t, err, stumble.says, stumble.name)
				}
				w.awaitIdle(pool)
			}
		})
	}
}

func TestARefusedQueryRowSaysSoInEveryQueryMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, mode := range queryModes {
		var id int

		err := fencedb.QueryRow(t.Context(), w.poolIn(mode), grant("table:12", int64(i)+1),
			`INSERT INTO bookings (id, table_id, guest) VALUES (1, 13, 'ann') RETURNING id`).Scan(&id)

		require.ErrorIs(t, err, fencedb.ErrWrongResource, mode.String())
		require.NotErrorIs(t, err, fencedb.ErrCommitted, mode.String())
	}
	require.Empty(t, w.guests())
}
