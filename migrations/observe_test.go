package migrations_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// forgetObserved goes past the trigger, as only a superuser can.
const forgetObserved = `SET session_replication_role = replica; DELETE FROM fencedb.events WHERE kind = 'observed'; RESET session_replication_role`

// newObserved is newSeats, with a guard that only observes.
func newObserved(t *testing.T) *session {
	s := newSeatsWithDetours(t)
	s.exec(`CREATE SEQUENCE numbers START 1000; SELECT fencedb.enforce('seats', observing => true); SET application_name = 'cron'`)
	return s
}

// observed lists what was observed, without times.
func (s *session) observed() string {
	s.Helper()
	return s.one(`SELECT coalesce(string_agg(concat_ws(' ', table_name, application, statement, reason, resource), '; ' ORDER BY table_name::text, application, statement, reason), '')
		FROM fencedb.unfenced_writes`)
}

func TestWhatIsObservedIsRecordedAndNotRefused(t *testing.T) {
	t.Parallel()
	for name, write := range writes {
		s := newObserved(t)

		s.exec(write)

		require.Regexp(t, `seats cron (INSERT|UPDATE|DELETE) FN002 room:red`, s.observed(), name)
		s.exec(`SELECT fencedb.enforce('seats')`)
		s.beside().refused("FN002", write)
	}
}

func TestEveryReasonIsObserved(t *testing.T) {
	t.Parallel()
	timeless := `SELECT fencedb.enter('room:red', 41, gen_random_uuid(), 1000); SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%'; SELECT pg_sleep(1.001); `
	rooms := `CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'), ('blue'); ALTER TABLE seats ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE`
	for name, c := range map[string]struct{ before, write, want string }{
		"no token, no row":         {``, `UPDATE seats SET guest = 'zoe' WHERE false`, "seats cron UPDATE FN002"},
		"truncate":                 {``, `TRUNCATE seats`, "seats cron TRUNCATE FN002"},
		"truncate with a token":    {``, "BEGIN; " + enter(41, "room:red") + `; TRUNCATE seats; COMMIT`, "seats cron TRUNCATE FN002"},
		"another resource":         {``, "BEGIN; " + enter(41, "room:red") + `; UPDATE seats SET guest = 'zoe'; COMMIT`, "seats cron UPDATE FN003 room:blue"},
		"cascade":                  {rooms, `DELETE FROM rooms WHERE name = 'red'`, "seats cron DELETE FN002 room:red"},
		"cascade without rows":     {rooms + `; INSERT INTO rooms VALUES ('new')`, `DELETE FROM rooms WHERE name = 'new'`, ""},
		"the ledger was emptied":   {"BEGIN; " + enter(43, "room:red") + `; UPDATE seats SET guest = 'ann' WHERE id = 1; COMMIT; DELETE FROM fencedb.fences`, "BEGIN; " + enter(41, "room:red") + `; UPDATE seats SET guest = 'zoe' WHERE id = 1; COMMIT`, "seats cron UPDATE FN001 room:red"},
		"no resource":              {`ALTER TABLE seats ALTER room DROP NOT NULL`, "BEGIN; " + enter(41, "room:red") + `; INSERT INTO seats VALUES (9); COMMIT`, "seats cron INSERT FN003"},
		"too long":                 {``, `BEGIN; ` + timeless + `UPDATE seats SET guest = 'zoe' WHERE id = 1; COMMIT`, "seats cron UPDATE FN006 room:red"},
		"too long, no row":         {``, `BEGIN; ` + timeless + `UPDATE seats SET guest = 'zoe' WHERE false; COMMIT`, "seats cron UPDATE FN006"},
		"its column was renamed":   {`ALTER TABLE seats RENAME room TO hall`, "BEGIN; " + enter(41, "room:red") + `; UPDATE seats SET guest = 'zoe' WHERE id = 1; COMMIT`, "seats cron UPDATE 42703"},
		"a setting that is forged": {``, `SET fencedb.entered = 'x'; BEGIN; ` + enter(41, "room:red") + `; UPDATE seats SET guest = 'zoe' WHERE id = 1; COMMIT`, ""},
		"with the row's own":       {``, "BEGIN; " + enter(41, "room:red") + `; UPDATE seats SET guest = 'zoe' WHERE room = 'red'; COMMIT`, ""},
		"rolled back":              {``, `BEGIN; UPDATE seats SET guest = 'zoe'; ROLLBACK`, ""},
		"rolled back to a point":   {``, `BEGIN; SAVEPOINT a; UPDATE seats SET guest = 'zoe'; ROLLBACK TO a; COMMIT`, ""},
		"again after a roll back":  {``, `BEGIN; UPDATE seats SET guest = 'zoe'; ROLLBACK; UPDATE seats SET guest = 'zoe' WHERE id = 1`, "seats cron UPDATE FN002 room:red"},
	} {
		s := newObserved(t)
		s.exec(`SET application_name = 'before'; ` + c.before + `; ` + forgetObserved + `; SET application_name = 'cron'`)

		s.exec(c.write)

		require.Equal(t, c.want, s.observed(), name)
	}
}

// What a holder writes late is recorded at every level, not refused, and no lock of it is in the
// way: neither of the newer holder's, nor of his.
func TestAnObservedWriterMeetsANewerHolder(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		for _, committed := range []bool{false, true} {
			s := newObserved(t)
			s.exec(enter(41, "room:red") + "; " + enter(41, "room:blue"))
			newer := s.beside()
			newer.exec(`SET lock_timeout = '1s'`)
			s.exec(`SET lock_timeout = '1s'; BEGIN ISOLATION LEVEL ` + level + `; ` + enter(41, "room:blue") + `; SELECT count(*) FROM seats`)
			newer.exec(`BEGIN; ` + enter(42, "room:red"))
			if committed {
				newer.exec(`COMMIT`)
			}
			s.exec(`UPDATE seats SET guest = 'late' WHERE id = 1; UPDATE seats SET guest = 'own' WHERE id = 3; INSERT INTO seats VALUES (9, 'red')`)
			if !committed {
				newer.exec(`COMMIT`)
			}
			newer.exec(enter(43, "room:red")) // that fence is nobody's: what is observed locks none
			s.exec(`COMMIT`)

			require.Equal(t, "seats cron INSERT FN003 room:red; seats cron UPDATE FN003 room:red", s.observed(), level)
			require.Equal(t, "9 0; 1 0; 3 41", s.one(`SELECT string_agg(concat_ws(' ', id, last_fencing_token), '; ' ORDER BY last_fencing_token, id DESC) FROM seats WHERE id <> 2`), level)
		}
	}
}

// A transaction that is older than the guard meets it all the same.
func TestATransactionThatIsOlderThanTheGuardMeetsIt(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		s := newSession(t)
		s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL, guest text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO seats VALUES (1, 'red'), (3, 'blue'); ` + enter(41, "room:blue"))
		old := s.beside()
		const write = `UPDATE seats SET guest = 'zoe' WHERE id = 1`
		begin := func() {
			old.exec(`SET application_name = 'cron'; BEGIN ISOLATION LEVEL ` + level + `; ` + enter(41, "room:blue") + `; SELECT count(*) FROM pg_class`)
		}
		begin()
		s.exec(`SELECT fencedb.protect('seats', 'room:{room}', mode => 'observe')`)
		old.exec(write + `; COMMIT`)
		require.Equal(t, "seats cron UPDATE FN003 room:red", s.observed(), level)
		begin()
		s.exec(`SELECT fencedb.enforce('seats')`)
		old.refused("FN003", write)
		begin()
		s.exec(`SELECT fencedb.enforce('seats', observing => true)`)
		old.exec(write + `; COMMIT`)
		begin()
		s.exec(`SELECT fencedb.unprotect('seats')`)
		old.exec(write)
		s.refused("55P03", `SET lock_timeout = '10ms'; SELECT fencedb.protect('seats', 'room:{room}')`)
		old.exec(`COMMIT`)
		begin()
		s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)
		old.refused("FN003", write)
	}
}

// Switching the mode disturbs neither those who hold nor those who have no token, but for the
// refusal.
func TestTheModeIsSwitchedUnderTraffic(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	s.exec(enter(41, "room:red") + "; " + enter(41, "room:blue"))
	var all errgroup.Group
	stop := make(chan struct{})
	var fenced, plain, refused atomic.Int64
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ"} {
		holder, legacy := s.beside(), s.beside()
		all.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				_, err := holder.conn.PgConn().Exec(t.Context(), `BEGIN ISOLATION LEVEL `+level+`; `+enter(41, "room:red")+`; INSERT INTO seats VALUES (nextval('numbers'), 'red'); COMMIT`).ReadAll()
				if err != nil {
					return err
				}
				fenced.Add(1)
			}
		})
		all.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				_, err := legacy.conn.PgConn().Exec(t.Context(), `BEGIN ISOLATION LEVEL `+level+`; INSERT INTO seats VALUES (nextval('numbers'), 'blue'); COMMIT`).ReadAll()
				if err == nil {
					plain.Add(1)
					continue
				}
				if pgError := new(pgconn.PgError); !errors.As(err, &pgError) || pgError.Code != "FN002" {
					return err
				}
				refused.Add(1)
				if _, err := legacy.conn.Exec(t.Context(), `ROLLBACK`); err != nil {
					return err
				}
			}
		})
	}
	for range 10 {
		for _, step := range []struct {
			call  string
			count *atomic.Int64
		}{{`enforce('seats')`, &refused}, {`enforce('seats', observing => true)`, &plain}} {
			s.exec(`SELECT fencedb.` + step.call)
			for _, count := range []*atomic.Int64{step.count, &fenced} {
				before := count.Load()
				require.Eventually(t, func() bool { return count.Load() > before+2 }, time.Minute, time.Millisecond, step.call)
			}
		}
	}
	close(stop)
	require.NoError(t, all.Wait())
	require.Equal(t, fmt.Sprint(fenced.Load()), s.one(`SELECT count(*) FROM seats WHERE last_fencing_token = 41`))
}

// The mode is the text of the guard, so no writer is waited for, and none waits.
func TestSwitchingTheModeWaitsForNobody(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	writer, reader, other := s.beside(), s.beside(), s.beside()
	writer.exec(`BEGIN; UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	reader.exec(`BEGIN; SELECT FROM seats`)
	s.exec(`SET lock_timeout = '10ms'`)

	for range 2 { // there is nothing to do the second time
		s.exec(`SELECT fencedb.enforce('seats')`)
		other.refused("FN002", `UPDATE seats SET guest = 'eve' WHERE id = 2`)
	}
	for range 2 {
		s.exec(`SELECT fencedb.enforce('seats', observing => true)`)
		other.exec(`UPDATE seats SET guest = 'eve' WHERE id = 2`)
	}
	writer.exec(`COMMIT`)
	reader.exec(`COMMIT`)
	s.exec(`SELECT fencedb.enforce('seats')`)
	writer.refused("FN002", `UPDATE seats SET guest = 'zoe' WHERE id = 1`)

	require.Equal(t, "protect, observe, protect, observe, protect", s.one(`SELECT string_agg(event, ', ' ORDER BY id) FROM fencedb.audit`))
}

// A transaction with an old snapshot sees the mode as it is now, and switches that.
func TestSwitchingTheModeDoesNotDependOnASnapshot(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	old := s.beside()
	for mode, call := range map[string]string{"observe": `SELECT fencedb.enforce('seats', observing => true)`, "enforce": `SELECT fencedb.enforce('seats')`} {
		s.exec(call)
		old.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM seats`)
		s.exec(map[string]string{"observe": `SELECT fencedb.enforce('seats')`, "enforce": `SELECT fencedb.enforce('seats', observing => true)`}[mode])
		old.exec(call + `; COMMIT`)
		require.Equal(t, mode, s.one(`SELECT CASE WHEN observed THEN 'observe' ELSE 'enforce' END FROM fencedb.protected_tables`))
		if mode == "enforce" {
			old.refused("FN002", `UPDATE seats SET guest = 'zoe' WHERE id = 1`)
		}
	}
}

func TestAGuardThatIsSwitchedOffIsNotEnforced(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`CREATE TABLE jobs (id int PRIMARY KEY); SELECT fencedb.protect('jobs', 'job:{id}')`)
	s.exec(`CREATE TABLE seats (room text NOT NULL); CREATE TABLE boxes () INHERITS (seats); SELECT fencedb.protect('seats', 'room:{room}')`)
	for _, c := range []struct{ table, off, again string }{
		{"parts", `ALTER TABLE parts DISABLE TRIGGER ALL`, `protect('parts', 'room:{room}')`},
		{"parts", `ALTER TABLE red DISABLE TRIGGER USER`, `protect('parts', 'room:{room}')`},
		{"parts", `ALTER TABLE parts ENABLE REPLICA TRIGGER "~fencedb_statement"`, `protect('parts', 'room:{room}')`},
		{"seats", `ALTER TABLE boxes DISABLE TRIGGER "~fencedb_row"`, `protect('seats', 'room:{room}')`},
		{"jobs", `ALTER TABLE jobs DISABLE TRIGGER "~fencedb_truncate"`, `protect('jobs', 'job:{id}')`},
	} {
		s.exec(`SELECT fencedb.enforce('` + c.table + `')`)
		s.exec(c.off)
		s.refused(notInPrerequisiteState, `SELECT fencedb.enforce('`+c.table+`')`)
		s.exec(`SELECT fencedb.enforce('` + c.table + `', observing => true)`) // the way back is open
		require.Contains(t, s.refused(notInPrerequisiteState, `SELECT fencedb.enforce('`+c.table+`')`).Message, "is switched off")
		s.exec(`SELECT fencedb.` + c.again + `; SELECT fencedb.enforce('` + c.table + `')`)
	}
}

// Protecting in one mode and switching to the other give the same guard, for every form that a
// guard has.
func TestAGuardIsTheSameAfterItHasObserved(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for i, protect := range []string{
		`fencedb.protect('%s', 'room:{room}'%s)`,
		`fencedb.protect('%s', 'day:{day}'%s)`,
		`fencedb.protect('%s', ARRAY['room:{room}', 'day:{day}']%s)`,
		`fencedb.protect('%s', 'global'%s)`,
	} {
		table := fmt.Sprint("t", i)
		s.exec(`CREATE TABLE ` + table + ` (room text PRIMARY KEY, day date NOT NULL)`)
		s.exec(`SELECT ` + fmt.Sprintf(protect, table, ""))
		enforced := s.guard(table)
		s.exec(`SELECT fencedb.enforce('` + table + `', observing => true)`)
		s.exec(`INSERT INTO ` + table + ` VALUES ('red', '2026-01-01')`)
		seen := s.guard(table)
		s.exec(`SELECT fencedb.enforce('` + table + `')`)
		require.Equal(t, enforced, s.guard(table), protect)
		s.refused("FN002", `UPDATE `+table+` SET room = 'blue'`)
		s.exec(`SELECT fencedb.unprotect('` + table + `'); SELECT ` + fmt.Sprintf(protect, table, ", mode => 'observe'"))
		require.Equal(t, seen, s.guard(table), protect)
		require.Empty(t, s.observed(), "unprotect forgets")
	}
	s.refused("42710", `SELECT fencedb.protect('t0', 'room:{room}', mode => 'enforce')`)
	s.exec(`SELECT fencedb.protect('t0', 'room:{room}')`) // again, in the mode that it has
	require.Equal(t, "true", s.one(`SELECT observed FROM fencedb.protected_tables WHERE table_name = 't0'::regclass`))
	s.exec(`SELECT fencedb.enforce('t0')`)
	s.refused("42710", `SELECT fencedb.protect('t0', 'room:{room}', mode => 'observe')`)
	s.refused("22023", `SELECT fencedb.protect('t0', 'room:{room}', mode => 'watch')`)
	s.exec(`CREATE TABLE plain (a text)`)
	s.refused("55000", `SELECT fencedb.enforce('plain', observing => true)`)
	s.refused("55000", `SELECT fencedb.enforce('plain')`)
}

func (s *session) guard(table string) string {
	s.Helper()
	return s.one(`SELECT pg_get_functiondef(guard) FROM fencedb.protected_tables WHERE table_name = $1::regclass`, table)
}

func TestPartitionsAndChildrenAreObservedWithTheirTable(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`CREATE TABLE late PARTITION OF parts FOR VALUES IN ('late');
		CREATE TABLE seats (room text NOT NULL); CREATE TABLE boxes () INHERITS (seats); SELECT fencedb.protect('seats', 'room:{room}', mode => 'observe');
		SELECT fencedb.enforce('parts', observing => true); SET application_name = 'cron'`)
	s.refused("55006", `SELECT fencedb.enforce('red', observing => true)`)
	s.refused("55006", `SELECT fencedb.enforce('boxes')`)

	s.exec(`UPDATE parts SET guest = 'zoe'; INSERT INTO low VALUES (1, 'blue'); INSERT INTO late VALUES (1, 'late'); TRUNCATE low;
		INSERT INTO boxes VALUES ('red'); UPDATE seats SET room = 'blue'`)

	require.Equal(t, "parts cron INSERT FN002 room:blue; parts cron TRUNCATE FN002; parts cron UPDATE FN002 room:red; "+
		"seats cron INSERT FN002 room:red; seats cron UPDATE FN002 room:blue", s.observed())
	s.exec(forgetObserved)
	late := s.beside()
	late.exec(`INSERT INTO late VALUES (2, 'late')`)
	require.Equal(t, "1", s.one(`SELECT times FROM fencedb.unfenced_writes WHERE table_name = 'parts'::regclass`), "though no guard sees the statement")
	s.exec(`ALTER TABLE parts DETACH PARTITION red; UPDATE red SET guest = 'eve'; TRUNCATE red`)
	s.exec(`SELECT fencedb.enforce('parts'), fencedb.enforce('seats')`)
	other := s.beside()
	for _, write := range []string{`INSERT INTO low VALUES (1, 'blue')`, `INSERT INTO late VALUES (1, 'late')`, `UPDATE seats SET room = 'red'`, `DELETE FROM boxes`} {
		other.refused("FN002", write)
	}
	other.refused(notInPrerequisiteState, `UPDATE red SET guest = 'ann'`)
}

// Three writers that record the same, at every level, while another is open or has committed since
// their snapshot: none of them waits, and all commit.
func TestObservedWritersDoNotMeet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level, first, order string
		recorded            string
	}{
		{"READ COMMITTED", "", "abc", "2"}, // what has committed lately is as good
		{"READ COMMITTED", "first", "abc", "1"},
		{"READ COMMITTED", "first", "bac", "1"},
		{"REPEATABLE READ", "", "abc", "3"},
		{"REPEATABLE READ", "first", "abc", "4"},
		{"REPEATABLE READ", "first", "bac", "4"},
		{"SERIALIZABLE", "", "abc", "3"},
		{"SERIALIZABLE", "first", "bac", "4"},
	} {
		s := newObserved(t)
		if c.first != "" {
			s.exec(`UPDATE seats SET guest = 'ann' WHERE id = 3`)
		}
		writers := map[rune]*session{}
		for _, name := range "abc" {
			w := s.beside()
			w.exec(`SET application_name = 'cron'; SET lock_timeout = '5ms'; BEGIN ISOLATION LEVEL ` + c.level)
			w.exec(fmt.Sprintf(`SELECT FROM seats WHERE id = %d`, name-'a'+1)) // takes its snapshot
			writers[name] = w
		}

		for _, name := range c.order {
			writers[name].exec(fmt.Sprintf(`UPDATE seats SET guest = 'zoe' WHERE id = %d`, name-'a'+1))
			if name == 'b' {
				writers[name].exec(`COMMIT`)
			}
		}
		writers['a'].exec(`COMMIT`)
		writers['c'].exec(`COMMIT`)

		require.Equal(t, c.recorded, s.one(`SELECT sum(times) FROM fencedb.unfenced_writes`), "%v", c)
	}
}

// A list that was emptied after a snapshot shows what the transaction with that snapshot writes.
func TestWhatIsForgottenAfterASnapshotHidesNoLaterWrite(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	s.exec(`UPDATE seats SET guest = 'ann' WHERE id = 3`)
	late := s.beside()
	late.exec(`SET application_name = 'cron'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM seats`)
	s.exec(forgetObserved)
	late.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 1; COMMIT`)
	require.Equal(t, "seats cron UPDATE FN002 room:red", s.observed())
}

// As after a rename, and as in a copy of the database, where another table has the number of this
// one.
func TestWhatWasObservedStaysWithItsTable(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	s.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 1; ALTER TABLE seats RENAME TO "My seats"`)
	require.Equal(t, `"My seats" cron UPDATE FN002 room:red`, s.observed())
	s.exec(later)
	other := s.beside()
	other.exec(`SET application_name = 'cron'; UPDATE "My seats" SET guest = 'zoe' WHERE id = 1`)
	require.Equal(t, "2", s.one(recordedTimes))

	s.exec(`CREATE TABLE another (LIKE "My seats"); SELECT fencedb.protect('another', 'room:{room}', mode => 'observe');
		ALTER TABLE "My seats" RENAME TO old; ALTER TABLE another RENAME TO "My seats"`)
	require.Equal(t, `old cron UPDATE FN002 room:red`, s.observed(), "the one that has its name has not")
	s.exec(`ALTER TABLE "My seats" RENAME TO another; ALTER TABLE old RENAME TO "My seats"`)

	s.exec(`SET session_replication_role = replica; UPDATE fencedb.events SET table_schema = 'public', table_name = 'My seats', details = jsonb_build_object('oid', 'another'::regclass::oid::text, 'ledger', '1') WHERE kind = 'observed'; RESET session_replication_role`)
	require.Equal(t, `"My seats" cron UPDATE FN002 room:red`, s.observed())
	s.exec(forgetObserved)
	require.Empty(t, s.observed())
}

func TestWhatIsObservedIsBoundedInSize(t *testing.T) {
	t.Parallel()
	s := newObserved(t)

	s.exec(`SELECT setval('fencedb.observations', 999400)`)
	s.exec(`DO $$ BEGIN FOR i IN 1 .. 601 LOOP PERFORM set_config('application_name', 'app-' || i, false); UPDATE seats SET guest = 'zoe' WHERE id = 1; END LOOP; END $$`)

	// A statement and its row each have one.
	require.Equal(t, "300 600", s.one(`SELECT concat_ws(' ', sum(times), (SELECT count(*) FROM fencedb.events WHERE kind = 'observed')) FROM fencedb.unfenced_writes`))
	require.NotEmpty(t, s.one(`pg_sequence_last_value('fencedb.unrecorded')`), "and that the list is full is noticed")
	require.Equal(t, "600", s.one(`SELECT fencedb.prune('observed', '0', 'ann@host', 'full', clock_timestamp(), at_most => 601)`))
	s.exec(`SET application_name = 'last'; UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	require.Contains(t, s.observed(), "last UPDATE FN002 room:red")
	kept := s.one(`SELECT count(*) FROM fencedb.events WHERE kind = 'observed'`)
	require.Equal(t, insufficientPrivilege, s.as(s.withRole("writer"), `SELECT fencedb.let_pass('seats'::regclass, 'INSERT', 'FN002', true, '')`))

	// Temporary tables come and go, and anybody can make one look observed.
	require.Empty(t, s.as(s.withRole("operator"), `CREATE TABLE pg_temp.look (id int, room text, last_fencing_token bigint); CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON pg_temp.look FOR EACH ROW EXECUTE FUNCTION fencedb.guard_seats();
		INSERT INTO pg_temp.look VALUES (1)`))
	require.Equal(t, kept, s.one(`SELECT count(*) FROM fencedb.events WHERE kind = 'observed'`))
}

// At SERIALIZABLE a kind has a row for each time that it is recorded.
func TestKindsOfWritesAreCountedNotTheirRows(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	s.exec(`BEGIN ISOLATION LEVEL SERIALIZABLE; DO $$ BEGIN FOR i IN 1 .. 600 LOOP PERFORM set_config('application_name', 'app-' || i % 2, false); UPDATE seats SET guest = 'zoe' WHERE false; END LOOP; END $$; COMMIT`)
	require.Equal(t, "600", s.one(`SELECT count(*) FROM fencedb.events WHERE kind = 'observed'`))

	s.exec(`SET application_name = 'month-end'; UPDATE seats SET guest = 'zoe' WHERE false`)

	require.Equal(t, "seats app-0 UPDATE FN002; seats app-1 UPDATE FN002; seats month-end UPDATE FN002", s.observed())
}

// Postgres refuses to delete from a table without a key that is published.
func TestWhatIsPublishedIsObserved(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	s.exec(`CREATE PUBLICATION everything FOR ALL TABLES`)
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		for range 2 { // the first is taken along by the second
			s.exec(`BEGIN ISOLATION LEVEL ` + level + `; UPDATE seats SET guest = 'zoe' WHERE id = 1; COMMIT`)
			s.exec(`RESET ALL; SET application_name = 'cron'`)
		}
		require.Equal(t, "seats cron UPDATE FN002 room:red", s.observed(), level)
		s.exec(forgetObserved)
		require.Empty(t, s.observed(), level)
	}
	require.Empty(t, s.one(`pg_sequence_last_value('fencedb.unrecorded')`))
	s.exec(`SELECT fencedb.unprotect('seats', keep_column => true)`)
	require.Empty(t, s.one(`SELECT string_agg(c.relname, ', ') FROM pg_class c WHERE c.relnamespace = 'fencedb'::regnamespace AND c.relkind = 'r' AND c.relreplident = 'd'
		AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)`))
}

func TestWhatCouldNotBeRecordedIsNoticed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ level, before string }{
		"it fails":         {"READ COMMITTED", `ALTER TABLE fencedb.events ADD CHECK (kind <> 'observed') NOT VALID`},
		"it is locked":     {"READ COMMITTED", `BEGIN; LOCK TABLE fencedb.events`},
		"it fails as well": {"REPEATABLE READ", `ALTER TABLE fencedb.events ADD CHECK (kind <> 'observed') NOT VALID`},
		"it is full":       {"SERIALIZABLE", `SELECT setval('fencedb.observations', 1000000)`},
	} {
		s := newObserved(t)
		s.beside().exec(c.before)

		s.exec(`BEGIN ISOLATION LEVEL ` + c.level + `; INSERT INTO seats VALUES (9, 'blue'); COMMIT`)

		require.Equal(t, "true", s.one(`to_timestamp(pg_sequence_last_value('fencedb.unrecorded') / 1000.0) BETWEEN now() - interval '1 minute' AND clock_timestamp()`), name)
	}
}

// recordedTimes are those of all that was observed, whenever that began.
const recordedTimes = `SELECT sum(row_count) FROM fencedb.events WHERE kind = 'observed'`

// later lets two minutes pass, for what was observed and for this session.
const later = `SET session_replication_role = replica; UPDATE fencedb.events SET at = at - interval '2 minutes' WHERE kind = 'observed'; RESET session_replication_role;
	SELECT set_config(n, overlay(current_setting(n) PLACING '0000000001' FROM 2 FOR 10), false) FROM concat('fencedb.seen_', (SELECT table_name::oid FROM fencedb.protected_tables), '_UPDATE') n WHERE current_setting(n, true) <> ''`

// A session need not write each time, nor each of many sessions.
func TestAKindOfWriteIsRecordedOnceInAMinute(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	for range 100 {
		s.exec(`UPDATE seats SET guest = 'zoe'`)
	}
	other := s.beside()
	other.exec(`SET application_name = 'cron'; UPDATE seats SET guest = 'eve'`)
	require.Equal(t, "1", s.one(`SELECT times FROM fencedb.unfenced_writes`))
	s.exec(later)
	s.exec(`UPDATE seats SET guest = 'zoe'; UPDATE seats SET guest = 'zoe'`)
	require.Equal(t, "2", s.one(recordedTimes))

	s.exec(`SET application_name = 'other'; UPDATE seats SET guest = 'eve'; SET application_name = 'cron'; INSERT INTO seats VALUES (9, 'blue')`)

	require.Equal(t, "seats cron INSERT FN002 room:blue; seats cron UPDATE FN002 room:red; seats other UPDATE FN002 room:red", s.observed())
	require.Equal(t, "true", s.one(`SELECT first_at < last_at AND last_at > now() - interval '1 minute' FROM fencedb.unfenced_writes WHERE statement = 'UPDATE' AND application = 'cron'`))
}

func TestOnlyTheOwnerSwitchesAndOnlyOwnersAndOperatorsSee(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, operator, app := "owner_"+s.one(`current_database()`), s.withRole("operator"), s.withRole("writer")
	s.exec(`CREATE ROLE "` + owner + `"; CREATE SCHEMA shop AUTHORIZATION "` + owner + `"`)
	defer func() {
		s.exec(`RESET SESSION AUTHORIZATION; DROP OWNED BY "` + owner + `"; DROP ROLE "` + owner + `"`)
	}()
	s.exec(`SET SESSION AUTHORIZATION "` + owner + `"; CREATE TABLE shop.seats (id int NOT NULL); SELECT fencedb.protect('shop.seats', 'seat:{id}', mode => 'observe');
		GRANT USAGE ON SCHEMA shop TO ` + app + `; GRANT INSERT ON shop.seats TO ` + app)

	require.Empty(t, s.as(app, `INSERT INTO shop.seats VALUES (1)`))
	for _, past := range []string{`SELECT fencedb.enforce('shop.seats')`, `SELECT fencedb.enforce('shop.seats', observing => true)`, `DELETE FROM fencedb.events`, `SELECT * FROM fencedb.events`, `SELECT nextval('fencedb.observations')`,
		`SELECT fencedb.prune('observed', '0', 'ann@host', 'to hide it')`, `SELECT fencedb.let_pass(1, 'a', 'b', true, 'c')`} {
		require.Equal(t, insufficientPrivilege, s.as(app, past), past)
	}
	for role, want := range map[string]string{`"` + owner + `"`: "1", operator: "1", app: "0"} {
		s.exec(`SET SESSION AUTHORIZATION ` + role)
		require.Equal(t, want, s.one(`SELECT count(*) FROM fencedb.unfenced_writes WHERE statement = 'INSERT'`), role)
		s.exec(`RESET SESSION AUTHORIZATION`)
	}
	require.Empty(t, s.as(`"`+owner+`"`, `SELECT fencedb.enforce('shop.seats')`))
	require.Equal(t, "FN002", s.as(app, `INSERT INTO shop.seats VALUES (1)`))
	require.Equal(t, "observe true, protect true", s.one(`SELECT string_agg(event || ' ' || (role = $1::name), ', ' ORDER BY id) FROM fencedb.audit`, owner))
}

// A migration of its own has added the column: protect takes it, and unprotect leaves it.
func TestProtectTakesAStampThatIsThere(t *testing.T) {
	t.Parallel()
	for _, column := range []string{`bigint NOT NULL DEFAULT 0`, `bigint`} {
		s := newSession(t)
		s.exec(`CREATE TABLE seats (id int NOT NULL); INSERT INTO seats VALUES (1); ALTER TABLE seats ADD last_fencing_token ` + column)
		columns := `SELECT json_agg(a ORDER BY attnum) FROM pg_attribute a WHERE attrelid = 'seats'::regclass`
		before := s.one(columns)

		s.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)

		require.Equal(t, before, s.one(columns), column)
		s.exec(s.fenced(42, "seat:1", `UPDATE seats SET id = 1`))
		require.Equal(t, "42", s.one(`SELECT last_fencing_token FROM seats`), column)
		s.exec(`SELECT fencedb.unprotect('seats')`)
		require.Equal(t, before, s.one(columns), column)
	}
}

// A statement without a token that was recorded lately costs its session one call, and each row one
// comparison.
func TestWhatAnObservedWriteCosts(t *testing.T) {
	t.Parallel()
	s := newObserved(t)
	const write = `INSERT INTO seats SELECT i, 'red' FROM generate_series(10, 109) i; UPDATE seats SET guest = 'zoe' WHERE id > 9; DELETE FROM seats WHERE id > 9; `

	s.exec(write + write + write + `SET track_functions = 'all'`)
	s.exec(`BEGIN; ` + write)

	require.Equal(t, "guard_seats 303", s.one(`SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) FROM pg_stat_xact_user_functions`))
	s.exec(`COMMIT`)
}
