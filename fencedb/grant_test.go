package fencedb_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// pointerGrant is a grant like *lease.Lease, of which a nil pointer may be passed by mistake.
type pointerGrant struct{ resource string }

func (g *pointerGrant) Resource() string      { return g.resource }
func (g *pointerGrant) Token() int64          { return 1 }
func (g *pointerGrant) ValidUntil() time.Time { return fencedb.NoEnd }
func (g *pointerGrant) LeaseID() uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(g.resource))
}

func TestGrantsThatNobodyIssuedAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nowhere")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	id := uuid.New()
	new := func(resource string, token int64, id uuid.UUID) fencedb.Grant {
		return fencedb.NewGrant(resource, token, id, fencedb.NoEnd)
	}

	for _, bad := range []struct {
		grant fencedb.Grant
		says  string
	}{
		{nil, "the grant is nil"},
		{(*pointerGrant)(nil), "the grant is nil"},
		{fencedb.All[fencedb.Grant](), "there is no grant"},
		{fencedb.All(new("a", 1, id), nil), "the grant is nil"},
		{new("", 1, id), "1 to 512 bytes, it has 0"},
		{new(strings.Repeat("x", 513), 1, id), "1 to 512 bytes, it has 513"},
		{new("a\x00b", 1, id), "without NUL"},
		{new("a\xff", 1, id), "valid UTF-8"},
		{new("a", 0, id), `the fencing token for "a" must be positive, it is 0`},
		{new("a", -1, id), "must be positive, it is -1"},
		{new("a", 1, uuid.Nil), "nil id"},
		{fencedb.All(new("a", 1, id), new("b", 1, id), new("a", 2, id)), `two different grants for "a", with tokens 1 and 2`},
		{fencedb.All(new("a", 1, id), new("a", 1, uuid.New())), `two different grants for "a"`},
	} {
		err := fencedb.Tx(t.Context(), pool, bad.grant, func(pgx.Tx) error { panic("must not be called") })
		require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
		require.ErrorContains(t, err, bad.says)
		require.ErrorIs(t, fencedb.Seal(t.Context(), pool, bad.grant), fencedb.ErrInvalidGrant)
		require.ErrorIs(t, enter(t.Context(), nil, bad.grant), fencedb.ErrInvalidGrant)
	}
}

func TestResourcesOfEveryShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, resource := range []string{
		"a", "table:12", " ", `"`, `'`, `\`, "{}", "}{", "ünï:🎉", "a\nb", "%s", "$1", strings.Repeat("x", 512), strings.Repeat("🎉", 128),
	} {
		require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant(resource, 2)), "%q", resource)
		require.EqualValues(t, 2, w.fence(resource), "%q", resource)
		var stale *fencedb.StaleError
		require.ErrorAs(t, fencedb.Seal(t.Context(), w.pool, grant(resource, 1)), &stale)
		require.Equal(t, resource, stale.Resource)
	}
}

func TestTokensOfEverySize(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid')`)
	for _, token := range []int64{1, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<63 - 2, 1<<63 - 1} {
		resources := []string{"zxid:12", "table:12"}
		if token > 1<<53-1 {
			err := fencedb.Seal(t.Context(), w.pool, grant("table:12", token))
			require.ErrorIs(t, err, fencedb.ErrInvalidGrant, "it would shut out every token of package lease")
			resources = resources[:1]
		}
		for _, resource := range resources {
			require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant(resource, token)))
			var stale *fencedb.StaleError
			require.ErrorAs(t, fencedb.Seal(t.Context(), w.pool, grant(resource, max(1, token-1))), &stale)
			require.Equal(t, token, stale.Stored)
		}
	}
	require.EqualValues(t, 1<<53-1, w.fence("table:12"))
}

func TestAllEntersEveryGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := fencedb.All(&pointerGrant{"b"}, &pointerGrant{"a"}, &pointerGrant{"b"})
	nested := fencedb.All(all, grant("c", 3))

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, nested))

	require.Equal(t, []int64{1, 1, 3}, []int64{w.fence("a"), w.fence("b"), w.fence("c")})
	require.Equal(t, "b", nested.Resource())
	require.EqualValues(t, 1, nested.Token())
	require.NotEqual(t, uuid.Nil, nested.LeaseID())
	none := fencedb.All[fencedb.Grant]()
	require.Equal(t, "", none.Resource())
	require.Zero(t, none.Token())
	require.Equal(t, uuid.Nil, none.LeaseID())
}

func TestTheEarliestEndOfSeveralGrantsBoundsTheTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	grants := fencedb.All(grantFor("a", 1, time.Hour), grantFor("b", 1, -time.Second), grant("c", 1))

	require.ErrorIs(t, fencedb.Seal(t.Context(), w.pool, grants), fencedb.ErrLeaseOver)
}

func TestEnterJoinsAnOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()

	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := enter(ctx, tx, grant("table:12", 42)); err != nil {
			return err
		}
		return book(ctx, tx, 12, "ann")
	})
	require.NoError(t, err)

	attempt := func(g fencedb.Grant) error {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return enter(ctx, tx, g) })
	}
	require.ErrorIs(t, attempt(grant("table:12", 41)), fencedb.ErrStale)
	require.ErrorIs(t, attempt(grantFor("table:12", 43, -time.Second)), fencedb.ErrLeaseOver)

	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := enter(ctx, tx, grant("table:12", 43)); err != nil {
			return err
		}
		return enter(ctx, tx, grant("table:12", 44))
	})
	require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
	require.ErrorContains(t, err, "another grant for resource")

	require.EqualValues(t, 42, w.fence("table:12"))
}

// As psql with ON_ERROR_ROLLBACK and JDBC with autosave do: the fence and what entering leaves for
// the guards go back together.
func TestEnterBehindASavepointIsUndoneWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	enters := map[string]func(tx pgx.Tx, g fencedb.Grant) error{
		"one":     func(tx pgx.Tx, g fencedb.Grant) error { return enter(ctx, tx, g) },
		"several": func(tx pgx.Tx, g fencedb.Grant) error { return enter(ctx, tx, fencedb.All(g, grant("table:13", 41))) },
	}
	for name, enters := range enters {
		for _, sealed := range []bool{false, true} {
			w.exec(`TRUNCATE fencedb.fences; ALTER TABLE bookings DISABLE TRIGGER USER; TRUNCATE bookings; ALTER TABLE bookings ENABLE TRIGGER USER`)
			before, g := grant("table:12", 41), grant("table:12", 42)
			require.NoError(t, fencedb.Seal(ctx, w.pool, before))
			if sealed {
				require.NoError(t, fencedb.Seal(ctx, w.pool, g))
			}
			err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				kept, err := tx.Begin(ctx)
				require.NoError(t, err)
				undone, err := kept.Begin(ctx)
				require.NoError(t, err)
				require.NoError(t, enters(undone, g))
				require.NoError(t, book(ctx, undone, 12, "ann"))
				require.NoError(t, undone.Rollback(ctx))
				refused := pgx.BeginFunc(ctx, kept, func(tx pgx.Tx) error { return book(ctx, tx, 12, "ben") })
				require.ErrorIs(t, fencedb.Explain(refused), fencedb.ErrNoToken, name)
				if !sealed { // and the fence is free
					require.NoError(t, fencedb.Seal(ctx, w.pool, before))
				}
				require.NoError(t, enters(kept, g))
				require.NoError(t, book(ctx, kept, 12, "zoe"))
				require.NoError(t, kept.Commit(ctx))
				return book(ctx, tx, 12, "eve")
			})
			require.NoError(t, err, name)
			require.Equal(t, []string{"zoe", "eve"}, w.guests(), name)
			require.ErrorIs(t, fencedb.Seal(ctx, w.pool, before), fencedb.ErrStale, name)
		}
	}
}

func TestAContextThatIsDoneSendsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cause := context.Canceled
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.ErrorIs(t, fencedb.Tx(ctx, w.pool, grant("table:12", 41), func(pgx.Tx) error { return nil }), cause)
	require.ErrorIs(t, fencedb.Seal(ctx, w.pool, grant("table:12", 41)), cause)
	require.Zero(t, w.fence("table:12"))
}

func TestAContextCancelledBeforeCommitRollsBackAndSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost := &fencedb.BusyError{} // any error of its own type
	ctx, cancel := context.WithCancelCause(t.Context())
	conn := w.conn()

	err := fencedb.Tx(ctx, conn, grant("table:12", 41), func(tx pgx.Tx) error {
		defer cancel(lost)
		return book(ctx, tx, 12, "ann")
	})

	require.ErrorIs(t, err, lost, "the cause of the context is in the error")
	require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, "COMMIT was not sent")
	require.Empty(t, w.guests())
	require.NoError(t, conn.Ping(t.Context()), "the connection is as good as before")
}

// Whichever way it would have been written, before there is a connection.
func TestAContextThatIsOverBeforeItBeganSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := stdlib.OpenDBFromPool(w.pool)
	defer db.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	shutdown := errors.New("shutdown")
	cancel(shutdown)
	g := grant("table:12", 41)
	one := &pgx.Batch{}
	one.Queue(`SELECT 1`)

	_, exec := fencedb.Exec(ctx, w.pool, g, `SELECT 1`)
	_, query := fencedb.Query(ctx, w.pool, g, `SELECT 1`)
	for name, err := range map[string]error{
		"Exec": exec, "Query": query,
		"QueryRow":  fencedb.QueryRow(ctx, w.pool, g, `SELECT 1`).Scan(new(int)),
		"SendBatch": fencedb.SendBatch(ctx, w.pool, g, one),
		"Seal":      fencedb.Seal(ctx, w.pool, g),
		"Tx":        fencedb.Tx(ctx, w.pool, g, func(pgx.Tx) error { return nil }),
		"TxSQL":     fencedb.TxSQL(ctx, db, g, func(*sql.Tx) error { return nil }),
	} {
		require.ErrorIs(t, err, shutdown, name)
		require.ErrorIs(t, err, context.Canceled, name)
	}
	require.Zero(t, w.fence("table:12"))
}

func newJobs(t *testing.T) *world {
	w := newWorld(t)
	w.exec(`CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL)`)
	w.exec(`INSERT INTO jobs VALUES (1, 'NEW')`)
	return w
}

func TestAConditionalUpdateThatMatchesNothingIsExplained(t *testing.T) {
	t.Parallel()
	w := newJobs(t)
	w.exec(`ALTER TABLE jobs ADD last_fencing_token bigint NOT NULL DEFAULT 0`)
	ctx := t.Context()
	finish := func(id int, g fencedb.Grant) error {
		tag, err := w.pool.Exec(ctx, `UPDATE jobs SET state = 'DONE', last_fencing_token = $2
			WHERE id = $1 AND $2 > last_fencing_token AND state = 'NEW'`, id, g.Token())
		if err == nil && tag.RowsAffected() == 0 {
			return fencedb.ExplainNoRows(ctx, w.pool, g, `SELECT last_fencing_token FROM jobs WHERE id = $1`, id)
		}
		return err
	}

	require.NoError(t, finish(1, grant("job:1", 42)))
	var stale *fencedb.StaleError
	require.ErrorAs(t, finish(1, grant("job:1", 41)), &stale)
	require.EqualValues(t, 42, stale.Stored)
	require.ErrorIs(t, finish(2, grant("job:2", 43)), pgx.ErrNoRows)
	require.NoError(t, finish(1, grant("job:1", 43)), "the token is good: it is the state that does not match")
	require.ErrorIs(t, fencedb.ExplainNoRows(ctx, w.pool, nil, `SELECT 1`), fencedb.ErrInvalidGrant)
	require.Panics(t, func() { _ = fencedb.ExplainNoRows(ctx, w.pool, grant("job:1", 43), ``) }, "as pgx does")
	w.awaitIdle(w.pool)
}

// RUNNING and then DONE, by hand: what each form of the condition does, and what is said of it.
func TestAHoldersOwnSecondUpdateIsToldApart(t *testing.T) {
	t.Parallel()
	const token, lease = `AND $2 > last_fencing_token AND $3::uuid IS NOT NULL`, `AND (last_fencing_token < $2 OR last_fencing_token = $2 AND last_lease_id = $3)`
	mine, later := fencedb.NewGrant("job:1", 42, uuid.New(), fencedb.NoEnd), fencedb.NewGrant("job:1", 43, uuid.New(), fencedb.NoEnd)
	same := fencedb.NewGrant("job:1", 42, uuid.New(), fencedb.NoEnd) // the number was issued twice
	for _, c := range []struct {
		condition, columns string
		first, second      fencedb.Grant
		also               string // another condition of the second one
		want               error
	}{
		{token, "last_fencing_token", mine, mine, "", fencedb.ErrAlreadyWritten},
		{token, "last_fencing_token", mine, same, "", fencedb.ErrAlreadyWritten}, // it cannot know
		{token, "last_fencing_token", later, mine, "", fencedb.ErrStale},
		{token, "last_fencing_token", mine, later, "AND false", nil},
		{token, "last_fencing_token, NULL::uuid", mine, mine, "", fencedb.ErrAlreadyWritten},
		{lease, "last_fencing_token, last_lease_id", mine, mine, "AND false", nil},
		{lease, "last_fencing_token, last_lease_id", mine, same, "", fencedb.ErrStale},
		{lease, "last_fencing_token, last_lease_id", later, mine, "", fencedb.ErrStale},
		{lease, "last_fencing_token, last_lease_id", mine, later, "AND id = 2", nil},
	} {
		w := newJobs(t)
		w.exec(`ALTER TABLE jobs ADD last_fencing_token bigint NOT NULL DEFAULT 0, ADD last_lease_id uuid`)
		update := func(g fencedb.Grant, also string) int64 {
			tag, err := w.pool.Exec(t.Context(), `UPDATE jobs SET state = 'NEXT', last_fencing_token = $2, last_lease_id = $3 WHERE id = $1 `+c.condition+" "+also, 1, g.Token(), g.LeaseID())
			require.NoError(t, err)
			return tag.RowsAffected()
		}
		require.EqualValues(t, 1, update(c.first, ""))
		require.Zero(t, update(c.second, c.also), c.condition)

		err := fencedb.ExplainNoRows(t.Context(), w.pool, c.second, `SELECT `+c.columns+` FROM jobs WHERE id = 1`)

		require.ErrorIs(t, err, c.want, "%v", c)
		require.Equal(t, c.want == fencedb.ErrStale, errors.Is(err, fencedb.ErrStale))
		require.ErrorIs(t, fencedb.ExplainNoRows(t.Context(), w.pool, c.second, `SELECT `+c.columns+` FROM jobs WHERE id = 9`), pgx.ErrNoRows)
		if c.condition == lease {
			require.EqualValues(t, 1, update(later, ""), "twice by one holder")
			require.EqualValues(t, 1, update(later, ""))
		}
	}
}

// embedsAGrant hides what the grant has beside the interface.
type embedsAGrant struct{ fencedb.Grant }

func TestAGrantThatDoesNotSayWhenItEndsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := w.sqlDB()
	bounded := grantFor("table:12", 41, time.Minute)
	for name, c := range map[string]struct {
		grant fencedb.Grant
		hint  string
	}{
		"it hides its lease": {embedsAGrant{bounded}, "embeds a Grant"},
		"among others":       {fencedb.All(grant("table:13", 41), fencedb.Grant(embedsAGrant{bounded})), `"table:12", a fencedb_test.embedsAGrant`},
		"it has no time":     {fencedb.NewGrant("table:12", 41, uuid.New(), time.Time{}), "or fencedb.NoEnd"},
	} {
		all := map[string]error{
			"Enter": enter(t.Context(), nil, c.grant), "EnterSQL": enterSQL(t.Context(), nil, c.grant),
			"TxSQL": fencedb.TxSQL(t.Context(), db, c.grant, func(*sql.Tx) error { return nil }),
		}
		for call, run := range calls {
			all[call] = run(t.Context(), w, c.grant, insertAnn, 1)
		}
		for call, err := range all {
			require.ErrorIs(t, err, fencedb.ErrInvalidGrant, "%s: %s", name, call)
			require.ErrorContains(t, err, c.hint, "%s: %s", name, call)
		}
	}
	require.Zero(t, w.fence("table:12"))
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, embedsAGrant{bounded}), "nothing can hang in a seal")
}

// Whoever has the id of a lease can end it, and write in its name.
func TestGrantsArePrintedWithoutTheirLeaseIDs(t *testing.T) {
	t.Parallel()
	one, two := grant("table:12", 41), grant("table:13", 42)
	for name, c := range map[string]struct {
		grant fencedb.Grant
		want  string
	}{
		"one":            {one, `grant for "table:12" with token 41`},
		"all of one":     {fencedb.All(one), `grant for "table:12" with token 41`},
		"several":        {fencedb.All(one, two), `grant for "table:12" with token 41, grant for "table:13" with token 42`},
		"all of several": {fencedb.All(fencedb.All(one), two), `grant for "table:12" with token 41, grant for "table:13" with token 42`},
		"none":           {fencedb.All[fencedb.Grant](), "no grant"},
		"nil":            {fencedb.All[fencedb.Grant](nil), "no grant"},
	} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			require.Equal(t, c.want, fmt.Sprintf(format, c.grant), name)
		}
		var text, lines strings.Builder
		slog.New(slog.NewTextHandler(&text, nil)).Info("received", "grant", c.grant)
		slog.New(slog.NewJSONHandler(&lines, nil)).Info("received", "grant", c.grant)
		require.Contains(t, text.String(), fmt.Sprintf("%q", c.want), name)
		require.NotContains(t, lines.String(), one.LeaseID().String(), name)
	}
}
