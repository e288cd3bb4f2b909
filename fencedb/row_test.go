package fencedb_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func newJobs(t *testing.T) *world {
	w := newWorld(t)
	w.exec(`CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL)`)
	w.exec(`INSERT INTO jobs VALUES (1, 'NEW')`)
	return w
}

func (w *world) state() string { return collect[string](w, `SELECT state FROM jobs`)[0] }

func TestARowFenceTakesAHolderFromRunningToDone(t *testing.T) {
	t.Parallel()
	w := newJobs(t)
	w.exec(`SELECT fencedb.protect_row('jobs', $$ 'job:' || id $$)`)
	ctx, holder, newer := t.Context(), fencedb.Carry(grant("job:1", 41)), fencedb.Carry(grant("job:1", 42))
	become := func(g fencedb.Grant, state string) error {
		return fencedb.Tx(ctx, w.pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE jobs SET state = $1 WHERE id = 1`, state)
			return err
		})
	}

	require.NoError(t, become(holder, "RUNNING"))
	require.NoError(t, become(holder, "DONE"))
	_, err := fencedb.Exec(ctx, w.pool, newer, `UPDATE jobs SET state = 'REDONE' WHERE id = 1`)
	require.NoError(t, err)
	var stale *fencedb.StaleError
	require.ErrorAs(t, become(holder, "LATE"), &stale)
	require.EqualValues(t, 42, stale.Stored)

	require.Equal(t, "REDONE", w.state())
	require.Zero(t, w.fence("job:1"), "the ledger is not needed")
	require.ErrorIs(t, become(fencedb.Carry(grant("job:2", 43)), "X"), fencedb.ErrWrongResource)
	require.ErrorIs(t, fencedb.Seal(ctx, w.pool, fencedb.Carry(nil)), fencedb.ErrInvalidGrant)
}

func TestACarriedGrantAmongEnteredOnesIsEntered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, fencedb.All(fencedb.Carry(grant("a", 1)), grant("b", 1))))
	require.EqualValues(t, 1, w.fence("a"))
	_, err := fencedb.Exec(t.Context(), w.pool, fencedb.Carry(fencedb.All(grant("c", 1), grant("d", 1))), `SELECT 1`)
	require.NoError(t, err)
	require.Zero(t, w.fence("c"))
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, fencedb.Carry(grant("c", 1))))
	require.EqualValues(t, 1, w.fence("c"), "to seal is to raise")
	expired := fencedb.Carry(fencedb.All(fencedb.Carry(grantFor("e", 1, -time.Second))))
	_, err = fencedb.Exec(t.Context(), w.pool, expired, `SELECT 1`)
	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
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
			return fencedb.WhyNoRow(ctx, w.pool, g, `SELECT last_fencing_token FROM jobs WHERE id = $1`, id)
		}
		return err
	}

	require.NoError(t, finish(1, grant("job:1", 42)))
	var stale *fencedb.StaleError
	require.ErrorAs(t, finish(1, grant("job:1", 41)), &stale)
	require.EqualValues(t, 42, stale.Stored)
	require.ErrorIs(t, finish(2, grant("job:2", 43)), pgx.ErrNoRows)
	require.NoError(t, finish(1, grant("job:1", 43)), "the token is good: it is the state that does not match")
	require.ErrorIs(t, fencedb.WhyNoRow(ctx, w.pool, nil, `SELECT 1`), fencedb.ErrInvalidGrant)
}
