package migrations_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newJobs is a session with a row-fenced table of two jobs.
func newJobs(t *testing.T) *session {
	s := newSession(t)
	s.exec(`CREATE TABLE jobs (id int PRIMARY KEY, state text NOT NULL)`)
	s.exec(`INSERT INTO jobs VALUES (1, 'NEW'), (2, 'NEW')`)
	s.exec(`SELECT fencedb.protect_row('jobs', resource => $$ 'job:' || id $$)`)
	return s
}

func (s *session) carried(token int, resource, sql string) string {
	return "BEGIN; " + carry(token, resource) + "; " + sql + "; COMMIT"
}

func TestATransactionCarriesGrantsOneByOne(t *testing.T) {
	t.Parallel()
	s := newJobs(t)

	s.exec(s.carried(41, "job:1", carry(7, "job:2")+`; UPDATE jobs SET state = 'DONE'`))
	s.refused("22023", s.carried(42, "job:1", carry(43, "job:1")))

	require.Equal(t, "41 7", s.one(`SELECT string_agg(last_fencing_token::text, ' ' ORDER BY id) FROM jobs`))
}

func TestARowIsItsOwnLedger(t *testing.T) {
	t.Parallel()
	s := newJobs(t)

	s.exec(s.carried(41, "job:1", `UPDATE jobs SET state = 'RUNNING' WHERE id = 1`))
	s.exec(s.carried(41, "job:1", `UPDATE jobs SET state = 'DONE' WHERE id = 1`)) // the holder's own second write
	s.exec(s.carried(42, "job:1", `UPDATE jobs SET state = 'REDONE' WHERE id = 1`))
	err := s.refused("FN001", s.carried(41, "job:1", `UPDATE jobs SET state = 'LATE' WHERE id = 1`))

	require.JSONEq(t, `{"resource": "job:1", "token": 41, "stored": 42}`, err.Detail)
	require.Equal(t, "REDONE", s.one(`SELECT state FROM jobs WHERE id = 1`))
	require.Equal(t, "42", s.one(`SELECT last_fencing_token FROM jobs WHERE id = 1`))
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.fences`), "the ledger is not written")
}

func TestARowRefusesAnEqualTokenOfAnotherLease(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	s.exec(s.carried(41, "job:1", `UPDATE jobs SET state = 'RUNNING' WHERE id = 1`))

	s.refused("FN001", `BEGIN; SELECT fencedb.carry('job:1', 41, gen_random_uuid()); UPDATE jobs SET state = 'STOLEN' WHERE id = 1`)
}

func TestRowFencedWritesNeedAGrantForTheirRow(t *testing.T) {
	t.Parallel()
	s := newJobs(t)

	for _, write := range []string{
		`UPDATE jobs SET state = 'X' WHERE id = 1`,
		`INSERT INTO jobs VALUES (3, 'NEW')`,
		`INSERT INTO jobs VALUES (1, 'NEW') ON CONFLICT (id) DO UPDATE SET state = 'X'`,
		`MERGE INTO jobs USING (VALUES (1)) v(id) ON jobs.id = v.id WHEN MATCHED THEN UPDATE SET state = 'X'`,
	} {
		s.refused("FN002", write)
		s.refused("FN003", s.carried(41, "job:2", write))
	}
	s.refused("FN002", `DELETE FROM jobs`)
	s.refused("FN002", `TRUNCATE jobs`)
	s.exec(s.carried(41, "job:3", `INSERT INTO jobs VALUES (3, 'NEW')`))
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM jobs WHERE id = 3`))
}

func TestWhatIsCarriedAdmitsNoRowOfTheLedger(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (room text NOT NULL); SELECT fencedb.protect('seats', 'room')`)

	for _, room := range []string{"job:1", ""} {
		s.refused("FN003", s.carried(41, "job:1", `INSERT INTO seats VALUES ('`+room+`')`))
	}
}

func TestATransactionThatOnlyReadsCanCarry(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	s.exec(s.carried(41, "job:1", `UPDATE jobs SET state = 'RUNNING' WHERE id = 1`)) // the epoch of the server is drawn

	s.exec("BEGIN READ ONLY; " + carry(42, "job:1") + "; TABLE jobs; COMMIT")
	s.refused("25006", "BEGIN READ ONLY; "+carry(42, "job:1")+"; UPDATE jobs SET state = 'DONE' WHERE id = 1")
}

// Where the write comes from another table's trigger, the guard of statements does not look.
func TestARowFencedWriteOfATriggerNeedsAGrant(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	s.exec(`CREATE TABLE ticks (id int); CREATE FUNCTION tick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE jobs SET state = 'X' WHERE id = NEW.id; RETURN NEW; END $$;
		CREATE TRIGGER tick AFTER INSERT ON ticks FOR EACH ROW EXECUTE FUNCTION tick()`)

	s.refused("FN002", `INSERT INTO ticks VALUES (1)`)
	s.refused("FN003", s.carried(41, "job:1", `INSERT INTO ticks VALUES (2)`))
	s.exec(s.carried(41, "job:1", `INSERT INTO ticks VALUES (1)`))
	s.refused("FN006", `BEGIN; SELECT fencedb.carry('job:1', 42, gen_random_uuid(), 1000);
		SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%';
		SELECT pg_sleep(1.001); INSERT INTO ticks VALUES (1)`)
}

// What a transaction carries is a setting, which anybody can write, and so it is signed.
func TestACarriedGrantForgedByHandOpensNothing(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	s.exec("BEGIN; " + carry(41, "job:1"))
	own := s.one(`current_setting('fencedb.carried')`)
	s.exec("COMMIT")
	require.Regexp(t, `^[0-9a-f]{64}{"job:1": "41 [0-9a-f-]{36}"}$`, own)

	for _, forged := range map[string]string{
		"copied from an earlier transaction": own,
		"another token":                      strings.Replace(own, `"41 `, `"99 `, 1),
		"a signature made up":                strings.Repeat("0", 64) + own[64:],
		"no signature":                       own[64:],
		"nonsense":                           "{",
	} {
		for _, write := range []string{`UPDATE jobs SET state = 'EVE' WHERE id = 1`, `INSERT INTO jobs VALUES (1, 'EVE')`} {
			s.refused("FN003", "BEGIN; "+carry(41, "job:2")+`; SELECT set_config('fencedb.carried', '`+forged+`', true); `+write)
		}
	}
}

func TestARowFenceCannotBeTakenAway(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	const notSupported = "0A000"

	s.refused(notSupported, s.carried(41, "job:1", `DELETE FROM jobs WHERE id = 1`))
	s.refused(notSupported, "BEGIN; "+carry(41, "job:1")+"; "+carry(41, "job:9")+"; UPDATE jobs SET id = 9 WHERE id = 1")
	s.exec(s.carried(41, "job:1", `UPDATE jobs SET last_fencing_token = 0, last_lease_id = NULL WHERE id = 1`))
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM jobs WHERE id = 1`), "the stamp cannot be chosen")
}

// The ledger has what was sealed, revoked or entered for other tables.
func TestACarriedGrantIsJudgedByTheLedgerToo(t *testing.T) {
	t.Parallel()
	const update = `UPDATE jobs SET state = 'LATE' WHERE id = 1`
	again := carry(42, "job:1") + `; UPDATE jobs SET state = 'RUNNING' WHERE id = 1; COMMIT`
	for name, c := range map[string]struct{ before, begin, beside, write, code string }{
		"the same has entered":         {enter(42, "job:1"), `BEGIN`, ``, update, ""},
		"an older one has entered":     {enter(41, "job:1"), `BEGIN`, ``, update, ""},
		"a newer one has entered":      {enter(43, "job:1"), `BEGIN`, ``, update, "FN001"},
		"the same, of another lease":   {`SELECT fencedb.enter('job:1', 42, gen_random_uuid())`, `BEGIN`, ``, update, "FN001"},
		"after it has written":         {`BEGIN; ` + again + `; ` + enter(43, "job:1"), `BEGIN`, ``, update, "FN001"},
		"it inserts":                   {enter(43, "job:3"), `BEGIN; ` + carry(42, "job:3"), ``, `INSERT INTO jobs VALUES (3, 'LATE')`, "FN001"},
		"meanwhile":                    {``, `BEGIN`, enter(43, "job:1"), update, "FN001"},
		"meanwhile, at an old level":   {``, `BEGIN ISOLATION LEVEL REPEATABLE READ`, enter(43, "job:1"), update, ""}, // as carry says
		"before, at an old level":      {enter(43, "job:1"), `BEGIN ISOLATION LEVEL REPEATABLE READ`, ``, update, "FN001"},
		"it was set back":              {enter(900, "job:1") + `; SELECT fencedb.reset_fence('job:1', 41, 'ann', 'a slip')`, `BEGIN`, ``, update, ""},
		"it was set back to this one":  {enter(900, "job:1") + `; SELECT fencedb.reset_fence('job:1', 42, 'ann', 'a slip')`, `BEGIN`, ``, update, "FN001"},
		"it was overtaken by somebody": {`BEGIN; ` + carry(1, "job:1") + `; UPDATE jobs SET state = 'OLD' WHERE id = 1; COMMIT; BEGIN; ` + enter(42, "job:1") + `; COMMIT; SELECT fencedb.take_over_as('jobs', current_user::regrole, now() + interval '1 day'); UPDATE jobs SET state = 'TAKEN' WHERE id = 1; SELECT fencedb.end_take_over('jobs')`, `BEGIN`, ``, update, "FN001"},
	} {
		s := newJobs(t)
		s.exec(c.before)
		s.exec(c.begin + "; " + carry(42, "job:1") + "; SELECT FROM jobs")
		if c.beside != "" {
			s.beside().exec(c.beside)
		}

		if c.code != "" {
			s.refused(c.code, c.write)
			require.NotContains(t, s.one(`SELECT string_agg(state, ' ') FROM jobs`), "LATE", name)
		} else {
			s.exec(c.write + `; COMMIT`)
		}
	}
}

// The older holder's update waits for the newer's row lock, and is then judged by what the newer
// left.
func TestAStaleUpdateThatWaitedIsJudgedByTheNewRow(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	older := s.beside()
	s.exec("BEGIN; " + carry(42, "job:1") + `; UPDATE jobs SET state = 'NEWER' WHERE id = 1`)

	done := make(chan error, 1)
	go func() {
		_, err := older.conn.PgConn().Exec(t.Context(), "BEGIN; "+carry(41, "job:1")+`; UPDATE jobs SET state = 'OLDER' WHERE id = 1; COMMIT`).ReadAll()
		done <- err
	}()
	watcher := s.beside()
	watcher.awaitBlocked(older.conn.PgConn().PID())
	s.exec("COMMIT")

	require.ErrorContains(t, <-done, "FN001")
	require.Equal(t, "NEWER", s.one(`SELECT state FROM jobs WHERE id = 1`))
}

func TestEnteringIsCarryingAndMore(t *testing.T) {
	t.Parallel()
	s := newJobs(t)
	s.exec(`CREATE TABLE logs (job int, line text); SELECT fencedb.protect('logs', $$ 'job:' || job $$)`)
	const both = `UPDATE jobs SET state = 'DONE' WHERE id = 1; INSERT INTO logs VALUES (1, 'done')`

	s.refused("FN003", s.carried(41, "job:1", both))
	s.exec(s.fenced(41, "job:1", both))
	s.exec("BEGIN; " + carry(41, "job:1") + "; " + enter(41, "job:1") + "; " + both + "; COMMIT")
	s.exec("BEGIN; " + enter(41, "job:1") + "; " + carry(41, "job:1") + "; " + both + "; COMMIT")
	s.refused("22023", "BEGIN; "+carry(41, "job:1")+"; "+enter(42, "job:1"))
}

func TestCarryChecksWhatEnterChecks(t *testing.T) {
	t.Parallel()
	s := newJobs(t)

	for range 2 { // at first, and in the common case
		s.refused("22023", `SELECT fencedb.carry('job:1', 0, gen_random_uuid())`)
		s.refused("22023", `SELECT fencedb.carry('job:1', 9007199254740992, gen_random_uuid())`)
		s.refused("22023", `SELECT fencedb.carry('job:1', 1, NULL)`)
		s.refused("22023", `SELECT fencedb.carry('', 1, gen_random_uuid())`)
		s.refused("22023", `SELECT fencedb.carry(repeat('x', 513), 1, gen_random_uuid())`)
		s.refused("FN004", `SELECT fencedb.carry('job:1', 1, gen_random_uuid(), 0)`)
		s.exec(carry(1, "job:1"))
	}
	s.exec(`BEGIN; SELECT fencedb.carry('job:1', 1, gen_random_uuid(), 5000)`)
	require.Regexp(t, left5s, s.one(`current_setting('idle_in_transaction_session_timeout')`))
	s.exec(`COMMIT`)
	s.refused("FN002", `UPDATE jobs SET state = 'X'`)
}

func TestProtectRowRefusesResourcesOfSeveralRows(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE parts (a int, b int, c text UNIQUE NULLS NOT DISTINCT, d int, e int UNIQUE, PRIMARY KEY (a, b)); CREATE UNIQUE INDEX ON parts (d) WHERE a > 0`)

	for _, expression := range []string{`ARRAY[c]`, `'x'`, `'a:' || a`, `'b:' || b`, `'d:' || d`, `coalesce('e:' || e, 'none')`} {
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect_row('parts', $1)`, expression)
		require.ErrorContains(t, err, "does not name a unique key", expression)
	}
	for _, expression := range []string{`'ab:' || a || ',' || b`, `c`, `'abd:' || a || ',' || b || ',' || d`} {
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.protect_row('parts', $1)`, expression)
		require.NoError(t, err, expression)
		s.refused("42710", `SELECT fencedb.protect('parts', $$ 'x' $$)`)
		s.exec(`SELECT fencedb.unprotect('parts')`)
	}
	require.Equal(t, "5", s.one(`SELECT count(*) FROM pg_attribute WHERE attrelid = 'parts'::regclass AND attnum > 0 AND NOT attisdropped`))
}

// A crash empties it, and a row that is stored again would know of no token.
func TestProtectRowRefusesTablesThatACrashEmpties(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE UNLOGGED TABLE jobs (id int PRIMARY KEY); CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id);
		CREATE TABLE logged PARTITION OF parts FOR VALUES IN (1); CREATE UNLOGGED TABLE unlogged PARTITION OF parts FOR VALUES IN (2)`)

	for table, unlogged := range map[string]string{"jobs": "public.jobs", "parts": "public.unlogged"} {
		require.Contains(t, s.refused("0A000", `SELECT fencedb.protect_row('`+table+`', $$ 'job:' || id $$)`).Message, unlogged+" is unlogged")
		s.exec(`SELECT fencedb.protect('` + table + `', $$ 'job:' || id $$)`) // the fences are in the ledger
	}
}

// Neither table knows of the keys in the other.
func TestProtectRowRefusesTablesWithChildren(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE jobs (id int PRIMARY KEY); CREATE TABLE now () INHERITS (jobs)`)
	require.Contains(t, s.refused("0A000", `SELECT fencedb.protect_row('jobs', $$ 'job:' || id $$)`).Message, "public.now inherits from public.jobs")

	s.exec(`ALTER TABLE now NO INHERIT jobs; SELECT fencedb.protect_row('jobs', $$ 'job:' || id $$); CREATE TABLE later () INHERITS (jobs)`)
	s.refused("0A000", `SELECT fencedb.protect_row('jobs', $$ 'job:' || id $$)`)
}

func TestARowWithoutAResourceIsRefusedHereToo(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE jobs (name text UNIQUE NULLS NOT DISTINCT); SELECT fencedb.protect_row('jobs', 'name')`)

	s.refused("22004", s.carried(1, "a", `INSERT INTO jobs VALUES (NULL)`))
}
