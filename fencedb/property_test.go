package fencedb_test

import (
	"context"
	"flag"

	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// Random histories of holders, take-overs, pauses, savepoints, deletes, transactions over several
// resources and raw SQL, on a real server, each step compared with a model that is small enough to
// be read at once. rapid shrinks a history that fails.

func TestPropertiesS1ToS5(t *testing.T) {
	t.Parallel()
	require.NoError(t, flag.Set("rapid.steps", "160")) // a history, on average
	require.NoError(t, flag.Set("rapid.checks", "10"))
	w := newWorld(t)
	w.exec(`CREATE TABLE notes (resource text NOT NULL, n int, token bigint, PRIMARY KEY (resource, n))`)
	w.exec(`SELECT fencedb.protect('notes', resource => '{resource}')`)
	config := w.pool.Config()
	config.MaxConns = 16 // the default depends on the machine, and can be fewer than the transactions that the model opens
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	histories, steps := 0, 0

	atLeast := 10_000
	if testenv.Small() {
		atLeast = 800
	}
	for steps < atLeast { // a history ends when it likes
		rapid.Check(t, func(r *rapid.T) {
			histories++
			m := newModel(pool, fmt.Sprintf("h%d", histories))
			defer m.close()
			r.Repeat(map[string]func(*rapid.T){
				"acquire":    m.acquire,
				"reissue":    m.reissue,
				"enter":      m.enter,
				"write":      m.write,
				"delete":     m.delete,
				"trespass":   m.trespass,
				"savepoint":  m.savepoint,
				"rollbackTo": m.rollbackTo,
				"commit":     m.commit,
				"rollback":   m.rollback,
				"die":        m.die,
				"raw":        m.raw,
				"":           func(r *rapid.T) { steps++; m.check(r) },
			})
		})
	}
	t.Logf("%d steps in %d histories", steps, histories)
}

const resources = 3

// notes are the rows of one resource: number to the token that wrote it.
type notes map[int]int64

// fence is what the ledger must hold for a resource.
type fence struct {
	token int64
	lease uuid.UUID
}

// model is what the database must hold, and the transactions that are open.
type model struct {
	pool   *pgxpool.Pool
	prefix string

	issued int64
	grants []fencedb.Grant
	open   []*modelTx

	fences map[string]fence // committed
	rows   map[string]notes // committed
}

// modelTx is an open transaction. Transactions of one lease run side by side; so that they do not
// wait for each other's rows, which is not our subject, those open at the same time write notes of
// different slots.
type modelTx struct {
	slot     int
	conn     *pgxpool.Conn
	tx       pgx.Tx
	grants   map[string]fencedb.Grant
	advanced map[string]bool  // the fence is locked exclusively, because this transaction raised it
	rows     map[string]notes // of its slot, in the resources it has entered, with its own writes
	saved    []savepoint
}

const slotSize = 3

type savepoint struct {
	tx   pgx.Tx
	rows map[string]notes
}

func newModel(pool *pgxpool.Pool, prefix string) *model {
	return &model{pool: pool, prefix: prefix, fences: map[string]fence{}, rows: map[string]notes{}}
}

func (m *model) close() {
	for _, t := range m.open {
		t.end()
	}
}

func (t *modelTx) end() {
	_ = t.tx.Rollback(context.Background())
	t.conn.Release()
}

func (m *model) resource(r *rapid.T) string {
	return m.resources()[rapid.IntRange(0, resources-1).Draw(r, "resource")]
}

func (m *model) resources() (all []string) {
	for i := range resources {
		all = append(all, fmt.Sprintf("%s:%d", m.prefix, i))
	}
	return all
}

// acquire gives a new holder the next token. The older holders do not know.
func (m *model) acquire(r *rapid.T) {
	m.issued++
	m.grants = append(m.grants, fencedb.NewGrant(m.resource(r), m.issued, uuid.New(), fencedb.NoEnd))
}

// reissue is Redis having lost its data: a token is given out again, to another lease.
func (m *model) reissue(r *rapid.T) {
	old := m.grant(r)
	m.grants = append(m.grants, fencedb.NewGrant(old.Resource(), old.Token(), uuid.New(), fencedb.NoEnd))
}

func (m *model) grant(r *rapid.T) fencedb.Grant {
	if len(m.grants) == 0 {
		r.Skip("nobody has acquired anything")
	}
	return rapid.SampledFrom(m.grants).Draw(r, "grant")
}

func (m *model) transaction(r *rapid.T) *modelTx {
	if len(m.open) == 0 {
		r.Skip("no transaction is open")
	}
	return m.open[rapid.IntRange(0, len(m.open)-1).Draw(r, "transaction")]
}

// enter begins a transaction with one or two grants. The model says what must come of it.
func (m *model) enter(r *rapid.T) {
	chosen := map[string]fencedb.Grant{}
	for range rapid.IntRange(1, 2).Draw(r, "grants") {
		g := m.grant(r)
		chosen[g.Resource()] = g
	}
	if len(m.open) > 4 {
		r.Skip("enough transactions are open")
	}
	conn, err := m.pool.Acquire(context.Background())
	require.NoError(r, err)
	tx, err := conn.Begin(context.Background())
	require.NoError(r, err)
	_, err = tx.Exec(context.Background(), `SET LOCAL lock_timeout = '5ms'`) // to see that it waits, without waiting
	require.NoError(r, err)
	t := &modelTx{slot: m.freeSlot(), conn: conn, tx: tx, grants: chosen,
		advanced: map[string]bool{}, rows: map[string]notes{}}

	err = enter(context.Background(), tx, fencedb.All(slices.Collect(maps.Values(chosen))...))
	if want := m.expect(t); want != nil {
		t.end()
		require.ErrorIs(r, err, want)
		return
	}
	require.NoError(r, err)
	m.open = append(m.open, t)
}

// expect decides in the order in which fences are taken, and fills in what t holds if it enters.
func (m *model) expect(t *modelTx) error {
	for _, resource := range slices.Sorted(maps.Keys(t.grants)) {
		g, stored := t.grants[resource], m.fences[resource]
		switch {
		case g.Token() < stored.token, g.Token() == stored.token && g.LeaseID() != stored.lease:
			return fencedb.ErrStale
		case g.Token() == stored.token && m.lockedBy(resource, true):
			return fencedb.ErrBusy
		case g.Token() > stored.token && m.lockedBy(resource, false):
			return fencedb.ErrBusy
		}
		t.advanced[resource] = g.Token() > stored.token
		t.rows[resource] = m.rows[resource].slot(t.slot, true)
	}
	return nil
}

// slot returns the notes of one slot, or, if in is false, all others.
func (n notes) slot(slot int, in bool) notes {
	part := notes{}
	for number, token := range n {
		if (number/slotSize == slot) == in {
			part[number] = token
		}
	}
	return part
}

func (m *model) freeSlot() (slot int) {
	for slices.ContainsFunc(m.open, func(t *modelTx) bool { return t.slot == slot }) {
		slot++
	}
	return slot
}

// lockedBy reports whether an open transaction keeps others from raising the fence, or,
// exclusively, from sharing it.
func (m *model) lockedBy(resource string, exclusively bool) bool {
	return slices.ContainsFunc(m.open, func(t *modelTx) bool {
		return t.grants[resource] != nil && (t.advanced[resource] || !exclusively)
	})
}

func (t *modelTx) current() pgx.Tx {
	if n := len(t.saved); n > 0 {
		return t.saved[n-1].tx
	}
	return t.tx
}

func (t *modelTx) own(r *rapid.T) string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(t.grants))).Draw(r, "own")
}

// write inserts or overwrites a note of a resource that the transaction has entered.
func (m *model) write(r *rapid.T) {
	t := m.transaction(r)
	resource, n := t.own(r), m.number(r, t)
	_, err := t.current().Exec(context.Background(),
		`INSERT INTO notes VALUES ($1, $2, $3) ON CONFLICT (resource, n) DO UPDATE SET token = EXCLUDED.token`,
		resource, n, t.grants[resource].Token())
	require.NoError(r, err)
	t.rows[resource][n] = t.grants[resource].Token()
}

func (m *model) delete(r *rapid.T) {
	t := m.transaction(r)
	resource, n := t.own(r), m.number(r, t)
	_, err := t.current().Exec(context.Background(), `DELETE FROM notes WHERE resource = $1 AND n = $2`, resource, n)
	require.NoError(r, err)
	delete(t.rows[resource], n)
}

func (m *model) number(r *rapid.T, t *modelTx) int {
	return t.slot*slotSize + rapid.IntRange(0, slotSize-1).Draw(r, "n")
}

// trespass writes to a resource that the transaction has not entered, behind a savepoint so that it
// can go on.
func (m *model) trespass(r *rapid.T) {
	t, resource := m.transaction(r), m.resource(r)
	if t.grants[resource] != nil {
		r.Skip("it has entered that one")
	}
	err := pgx.BeginFunc(context.Background(), t.current(), func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `INSERT INTO notes VALUES ($1, -1, 0)`, resource)
		return err
	})
	require.ErrorIs(r, fencedb.Explain(err), fencedb.ErrWrongResource)
}

func (m *model) savepoint(r *rapid.T) {
	t := m.transaction(r)
	tx, err := t.current().Begin(context.Background())
	require.NoError(r, err)
	saved := savepoint{tx: tx, rows: map[string]notes{}}
	for resource, rows := range t.rows {
		saved.rows[resource] = maps.Clone(rows)
	}
	t.saved = append(t.saved, saved)
}

func (m *model) rollbackTo(r *rapid.T) {
	t := m.transaction(r)
	n := len(t.saved)
	if n == 0 {
		r.Skip("no savepoint")
	}
	require.NoError(r, t.saved[n-1].tx.Rollback(context.Background()))
	t.rows, t.saved = t.saved[n-1].rows, t.saved[:n-1]
}

func (m *model) commit(r *rapid.T) {
	t := m.transaction(r)
	for i := len(t.saved) - 1; i >= 0; i-- {
		require.NoError(r, t.saved[i].tx.Commit(context.Background()))
	}
	require.NoError(r, t.tx.Commit(context.Background()))
	t.conn.Release()
	m.forget(t)
	for resource, g := range t.grants {
		m.checkCommit(r, resource, g)
		m.fences[resource] = fence{g.Token(), g.LeaseID()}
		rows := m.rows[resource].slot(t.slot, false)
		maps.Copy(rows, t.rows[resource])
		m.rows[resource] = rows
	}
}

// checkCommit is what has been promised, in the words of the model, of a commit that the server has
// let through.
func (m *model) checkCommit(r *rapid.T, resource string, g fencedb.Grant) {
	before := m.fences[resource]
	require.True(r, g.Token() > before.token || g.Token() == before.token && g.LeaseID() == before.lease,
		"S1, S2: %s went from %v to %d of %v", resource, before, g.Token(), g.LeaseID())
	for _, other := range m.open {
		if og := other.grants[resource]; og != nil {
			require.Equal(r, g.LeaseID(), og.LeaseID(), "S3: %s changed under an open transaction of another holder", resource)
		}
	}
}

func (m *model) rollback(r *rapid.T) {
	t := m.transaction(r)
	require.NoError(r, t.tx.Rollback(context.Background()))
	t.conn.Release()
	m.forget(t)
}

// die is a holder killed in the middle of its transaction.
func (m *model) die(r *rapid.T) {
	t := m.transaction(r)
	pid := t.conn.Conn().PgConn().PID()
	require.NoError(r, t.conn.Conn().Close(context.Background()))
	t.conn.Release()
	m.forget(t)
	require.Eventually(r, func() bool { // the server ends it in its own time
		var gone bool
		err := m.pool.QueryRow(context.Background(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&gone)
		return err == nil && gone
	}, time.Minute, time.Millisecond)
}

func (m *model) forget(t *modelTx) {
	m.open = slices.DeleteFunc(m.open, func(o *modelTx) bool { return o == t })
}

// raw is somebody with psql.
func (m *model) raw(r *rapid.T) {
	sql := rapid.SampledFrom([]string{
		`INSERT INTO notes VALUES ('%s', -1, 0)`,
		`UPDATE notes SET token = 0 WHERE resource = '%s'`,
		`DELETE FROM notes WHERE resource = '%s'`,
		`TRUNCATE notes -- %s`,
		`SELECT set_config('fencedb.entered', '1 9000000000000 9000000000000 ' || E'\x011r%[1]s\x01t9\x01', false); DELETE FROM notes WHERE resource = '%[1]s'`,
	}).Draw(r, "sql")
	_, err := m.pool.Exec(context.Background(), fmt.Sprintf(`SET lock_timeout = '5ms'; `+sql, m.resource(r)))
	var pgErr *pgconn.PgError
	require.ErrorAs(r, err, &pgErr)
	if pgErr.Code != "55P03" { // TRUNCATE may not get its lock; that is a refusal as well
		require.Equal(r, "FN002", pgErr.Code, "%v", err)
	}
}

// check compares everything with the model after each step: what has committed, and what each open
// transaction sees.
func (m *model) check(r *rapid.T) {
	committed, err := m.read(m.pool)
	require.NoError(r, err)
	var tokens []int64
	require.NoError(r, m.pool.QueryRow(context.Background(), `SELECT array_agg(coalesce(fencedb.last_token(r), 0) ORDER BY n) FROM unnest($1::text[]) WITH ORDINALITY u(r, n)`,
		m.resources()).Scan(&tokens))
	for i, resource := range m.resources() {
		require.Equal(r, orEmpty(m.rows[resource]), orEmpty(committed[resource]), "committed rows of %s", resource)
		require.Equal(r, m.fences[resource].token, tokens[i], "fence of %s", resource)
	}
	for _, t := range m.open {
		m.checkStable(r, t)
	}
}

// checkStable compares what a transaction sees of the resources it has entered: its own slot as it
// has left it, and of the others what has committed, which checkCommit has judged.
func (m *model) checkStable(r *rapid.T, t *modelTx) {
	seen, err := m.read(t.current())
	require.NoError(r, err)
	for resource, g := range t.grants {
		want := m.rows[resource].slot(t.slot, false)
		maps.Copy(want, t.rows[resource])
		require.Equal(r, want, orEmpty(seen[resource]), "what the holder of %s with token %d sees", resource, g.Token())
	}
}

func (m *model) read(db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) (map[string]notes, error) {
	rows, err := db.Query(context.Background(), `SELECT resource, n, token FROM notes WHERE resource = ANY ($1)`, m.resources())
	if err != nil {
		return nil, err
	}
	found := map[string]notes{}
	var (
		resource string
		n        int
		token    int64
	)
	_, err = pgx.ForEachRow(rows, []any{&resource, &n, &token}, func() error {
		if found[resource] == nil {
			found[resource] = notes{}
		}
		found[resource][n] = token
		return nil
	})
	return found, err
}

func orEmpty(n notes) notes {
	if n == nil {
		return notes{}
	}
	return n
}
