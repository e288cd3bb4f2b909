package fencedb_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// Two holders, every order of events that matters. Each is a connection of its own, driven step by
// step; a step that must wait for the other holder runs in the background, and the test goes on
// when the server says that it waits.

// holder is one side: a connection with a transaction that has entered, or is about to.
type holder struct {
	*world
	conn  *pgx.Conn
	grant fencedb.Grant
	tx    pgx.Tx
}

func (w *world) holder(g fencedb.Grant) *holder {
	return &holder{world: w, conn: w.conn(), grant: g}
}

func (h *holder) begin(o pgx.TxOptions) error {
	var err error
	h.tx, err = h.conn.BeginTx(h.Context(), o)
	require.NoError(h, err)
	return enter(h.Context(), h.tx, h.grant)
}

// enter must succeed at once.
func (h *holder) enter() *holder {
	h.Helper()
	require.NoError(h, h.begin(pgx.TxOptions{}))
	return h
}

// entering begins in the background and returns once the server says that it waits.
func (h *holder) entering(o pgx.TxOptions) <-chan error {
	h.Helper()
	done := make(chan error, 1)
	go func() { done <- h.begin(o) }()
	h.awaitBlocked(h.conn.PgConn().PID())
	return done
}

func (h *holder) read() (guests []string) {
	h.Helper()
	rows, _ := h.tx.Query(h.Context(), `SELECT guest FROM bookings ORDER BY id`)
	guests, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(h, err)
	return guests
}

func (h *holder) book(guest string) {
	h.Helper()
	require.NoError(h, book(h.Context(), h.tx, 12, guest))
}

func (h *holder) commit() {
	h.Helper()
	require.NoError(h, h.tx.Commit(h.Context()))
}

func received[T any](t *testing.T, done <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-done:
	case <-time.After(time.Minute):
		require.Fail(t, "still waiting after a minute")
	}
	return value
}

func TestStaleWaitsBehindNewerAndIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.holder(grant("table:12", 41)), w.holder(grant("table:12", 42))
	a.enter().commit()

	b.enter() // 42 has advanced the fence, but not committed: a cannot know yet
	waiting := a.entering(pgx.TxOptions{})
	b.book("ben")
	b.commit()

	require.ErrorIs(t, received(t, waiting), fencedb.ErrStale)
	require.Equal(t, []string{"ben"}, w.guests())
}

func TestStaleGoesOnWhenTheNewerRollsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.holder(grant("table:12", 41)), w.holder(grant("table:12", 42))
	a.enter().commit()

	b.enter()
	waiting := a.entering(pgx.TxOptions{})
	require.NoError(t, b.tx.Rollback(t.Context()))

	require.NoError(t, received(t, waiting), "nothing newer has committed")
	a.book("ann")
	a.commit()
	require.Equal(t, []string{"ann"}, w.guests())
}

// S3. Without the wait, b would read an empty table and book it a second time.
func TestNewerWaitsForTheOlderAndReadsWhatItWrote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.holder(grant("table:12", 41)), w.holder(grant("table:12", 42))

	a.enter()
	require.Empty(t, a.read())
	waiting := b.entering(pgx.TxOptions{})
	a.book("ann")
	a.commit()

	require.NoError(t, received(t, waiting))
	require.Equal(t, []string{"ann"}, b.read())
	b.commit()
	require.ErrorIs(t, fencedb.Seal(t.Context(), w.pool, a.grant), fencedb.ErrStale)
}

// S3 from the other side: between b's read and b's write, a cannot commit anything.
func TestWhatTheNewerHasReadCannotBeChangedByTheOlder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.holder(grant("table:12", 41)), w.holder(grant("table:12", 42))
	a.enter().commit()

	b.enter()
	require.Empty(t, b.read())
	waiting := a.entering(pgx.TxOptions{})
	require.Empty(t, b.read())
	b.book("ben")
	b.commit()

	require.ErrorIs(t, received(t, waiting), fencedb.ErrStale)
	require.Equal(t, []string{"ben"}, w.guests())
}

func TestTransactionsOfOneLeaseRunSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grant("table:12", 41)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
	first, second := w.holder(g).enter(), w.holder(g).enter()

	first.book("ann")
	second.book("ben")
	second.commit()
	first.commit()

	require.Equal(t, []string{"ann", "ben"}, w.guests())
}

// Both see a fence that is too low. Had they shared it before raising it, neither could raise it.
func TestTwoFirstTransactionsOfOneLeaseDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 40)))
	g := grant("table:12", 41)
	first, second := w.holder(g), w.holder(g)

	first.enter()
	waiting := second.entering(pgx.TxOptions{})
	first.book("ann")
	first.commit()

	require.NoError(t, received(t, waiting))
	require.Equal(t, []string{"ann"}, second.read())
	second.commit()
}

func TestTwoFirstTransactionsOfANewResourceDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grant("table:12", 41)
	first, second := w.holder(g), w.holder(g)

	first.enter()
	waiting := second.entering(pgx.TxOptions{})
	first.commit()

	require.NoError(t, received(t, waiting))
	second.commit()
}

func TestANewcomerWaitsForAllTransactionsOfTheOldLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grant("table:12", 41)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, g))
	first, second := w.holder(g).enter(), w.holder(g).enter()
	b := w.holder(grant("table:12", 42))

	waiting := b.entering(pgx.TxOptions{})
	first.commit()
	w.awaitBlocked(b.conn.PgConn().PID())
	second.commit()

	require.NoError(t, received(t, waiting))
}

func TestResourcesInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.holder(fencedb.All(grant("x", 1), grant("y", 1)))
	b := w.holder(fencedb.All(grant("y", 2), grant("x", 2)))

	a.enter()
	waiting := b.entering(pgx.TxOptions{})
	a.commit()

	require.NoError(t, received(t, waiting))
	b.commit()
	require.EqualValues(t, 2, w.fence("x"))
	require.EqualValues(t, 2, w.fence("y"))
}

// What keeps them from deadlocking: whatever order they are passed in, fences are taken in byte
// order, capitals first. A transaction that waits for an early one holds none of the later ones.
func TestFencesAreTakenInByteOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, behind := grant("A", 3), grant("b", 3)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, fencedb.All(before, grant("B", 1), grant("Z", 1), grant("a", 1), behind)))
	first := w.holder(grant("Z", 2)).enter()
	several := w.holder(fencedb.All(behind, grant("a", 3), grant("Z", 3), grant("B", 3), before))

	waiting := several.entering(pgx.TxOptions{})
	free := collect[string](w, `SELECT resource FROM fencedb.fences ORDER BY resource COLLATE "C" FOR UPDATE SKIP LOCKED`)
	require.Equal(t, []string{"a", "b"}, free)
	first.commit()

	require.NoError(t, received(t, waiting))
}
