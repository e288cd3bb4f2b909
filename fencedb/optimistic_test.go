package fencedb_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// When a version in the row is enough, and when only the fence helps. In all of them A was
// overtaken by B and writes late.

// newSeats is a world with one seat at version 1, protected by nothing.
func newSeats(t *testing.T) *world {
	w := newWorld(t)
	w.exec(`CREATE TABLE seats (id int PRIMARY KEY, guest text NOT NULL DEFAULT '', version int NOT NULL DEFAULT 1)`)
	w.exec(`INSERT INTO seats (id) VALUES (1)`)
	return w
}

// seat writes guest into the seat if it is still at version, and returns how many rows that were.
func (w *world) seat(guest string, version int) int64 {
	w.Helper()
	tag, err := w.pool.Exec(w.Context(), `UPDATE seats SET guest = $1, version = version + 1 WHERE id = 1 AND version = $2`, guest, version)
	require.NoError(w, err)
	return tag.RowsAffected()
}

func (w *world) seated() string {
	w.Helper()
	return collect[string](w, `SELECT guest FROM seats`)[0]
}

// A reads one row and writes the same row. Nothing else depends on it. No lease is needed at all.
func TestAVersionIsEnoughForOneRowThatIsReadAndWritten(t *testing.T) {
	t.Parallel()
	w := newSeats(t)

	require.EqualValues(t, 1, w.seat("ben", 1))
	require.Zero(t, w.seat("ann", 1), "A, who read version 1 before B wrote, must read again")

	require.Equal(t, "ben", w.seated())
}

// A decides by rows that are not there: there is no version to compare.
func TestAVersionDoesNotSeeWhatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newSeats(t)
	w.exec(`CREATE TABLE parties (id int PRIMARY KEY, hall int NOT NULL, version int NOT NULL DEFAULT 1)`)
	parties := func() int { return collect[int](w, `SELECT count(*) FROM parties WHERE hall = 7`)[0] }
	const room = 1 // for one party

	a, b := grant("hall:7", 41), grant("hall:7", 42)
	require.Less(t, parties(), room, "A looks, and is paused")
	require.Less(t, parties(), room, "so does B")
	w.exec(`INSERT INTO parties VALUES (1, 7)`)
	w.exec(`INSERT INTO parties VALUES (2, 7)`)
	require.Greater(t, parties(), room)

	w.exec(`DELETE FROM parties`)
	book := func(g fencedb.Grant, id int) error {
		return fencedb.Tx(t.Context(), w.pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO parties SELECT $1, 7 WHERE (SELECT count(*) FROM parties WHERE hall = 7) < $2`, id, room)
			return err
		})
	}
	require.NoError(t, book(b, 1))
	require.ErrorIs(t, book(a, 2), fencedb.ErrStale)
	require.Equal(t, room, parties())
}

// The row is deleted and made again, and its version is 1 again.
func TestAVersionStartsAgainWithItsRow(t *testing.T) {
	t.Parallel()
	w := newSeats(t)
	again := func() { w.exec(`DELETE FROM seats`); w.exec(`INSERT INTO seats (id, guest) VALUES (1, 'ben')`) }

	again()
	require.EqualValues(t, 1, w.seat("ann", 1), "A overwrites a booking that it has never seen")

	again()
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("seat:1", 42)))
	_, err := fencedb.Exec(t.Context(), w.pool, grant("seat:1", 41), `UPDATE seats SET guest = 'ann' WHERE id = 1 AND version = 1`)
	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, "ben", w.seated())
}

// A wakes, is told of the conflict, and does what everybody does: reads again and tries again. That
// it is not its turn any more, the version cannot say.
func TestAVersionDoesNotKnowWhoseTurnItIs(t *testing.T) {
	t.Parallel()
	w := newSeats(t)
	require.EqualValues(t, 1, w.seat("ben", 1))

	require.Zero(t, w.seat("ann", 1))
	version := collect[int](w, `SELECT version FROM seats`)[0]
	require.EqualValues(t, 1, w.seat("ann", version), "B's guest has been told that the seat is his")

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("seat:1", 42)))
	_, err := fencedb.Exec(t.Context(), w.pool, grant("seat:1", 41), `UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	require.ErrorIs(t, err, fencedb.ErrStale)
}

// Inside one lease the version still helps: it keeps the holder's own goroutines, which the fence
// lets run side by side, from overwriting each other.
func TestAVersionBesideTheFenceOrdersTheWritesOfOneHolder(t *testing.T) {
	t.Parallel()
	w := newSeats(t)
	holder := grant("seat:1", 41)
	write := func(guest string) (int64, error) {
		tag, err := fencedb.Exec(t.Context(), w.pool, holder, `UPDATE seats SET guest = $1, version = version + 1 WHERE id = 1 AND version = 1`, guest)
		return tag.RowsAffected(), err
	}

	first, err := write("ann")
	require.NoError(t, err)
	second, err := write("ben")
	require.NoError(t, err)

	require.Equal(t, []int64{1, 0}, []int64{first, second})
	require.Equal(t, "ann", w.seated())
}
