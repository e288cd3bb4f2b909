package migrations_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// newLegacy is newSeatsWithDetours, and the name of a role that writes to it without a token, as a
// session that has logged in.
func newLegacy(t *testing.T) (s, legacy *session, role string) {
	s = newSeatsWithDetours(t)
	role = s.withRole("writer")
	s.exec(`GRANT ALL ON seats, seats_view TO ` + role + `; GRANT CREATE ON SCHEMA public TO ` + role + `; SELECT fencedb.take_over_as('seats', '` + role + `', now() + interval '1 hour')`)
	legacy = s.beside()
	legacy.exec(`SET SESSION AUTHORIZATION ` + role)
	return s, legacy, role
}

const clockToken = `last_fencing_token BETWEEN (extract(epoch FROM clock_timestamp()) - 60) * 1000000 AND extract(epoch FROM clock_timestamp()) * 1000000`

func TestARoleThatTakesOverWritesAndTheHolderIsStale(t *testing.T) {
	t.Parallel()
	for name, write := range writes {
		s, legacy, _ := newLegacy(t)
		s.exec(s.fenced(1_000_000_000_000_041, "room:red", `UPDATE seats SET guest = 'eve' WHERE id = 2`))

		legacy.exec(write)
		legacy.exec(`BEGIN; SAVEPOINT a; UPDATE seats SET guest = 'leo' WHERE id = 2; RELEASE a; UPDATE seats SET guest = 'max' WHERE id = 2; COMMIT`)

		require.Equal(t, "true", s.one(`SELECT `+clockToken+` FROM fencedb.fences WHERE resource = 'room:red'`), name)
		require.Equal(t, "true", s.one(`SELECT last_fencing_token = fencedb.last_token('room:red') FROM seats WHERE id = 2`), name)
		s.refused("FN001", s.fenced(1_000_000_000_000_041, "room:red", `UPDATE seats SET guest = 'late' WHERE id = 2`))
		legacy.exec(s.fenced(1_900_000_000_000_041, "room:blue", `UPDATE seats SET guest = 'own' WHERE id = 3`)) // it may still enter
		legacy.refused("FN003", s.fenced(1_900_000_000_000_042, "room:blue", `UPDATE seats SET guest = 'own' WHERE id = 2`))
		legacy.refused("FN002", `TRUNCATE seats`)
	}
}

// What is overtaken is each resource that is written to, and with the transaction, not without it.
func TestATakeOverIsOfWhatIsWritten(t *testing.T) {
	t.Parallel()
	s, legacy, _ := newLegacy(t)
	fences := `SELECT coalesce(string_agg(resource || ' ' || (last_fencing_token > 41), ', ' ORDER BY resource), '') FROM fencedb.fences`
	s.exec(enter(41, "room:red") + "; " + enter(41, "room:blue"))
	require.Equal(t, "room:blue false, room:red false", s.one(fences))

	legacy.exec(`UPDATE seats SET guest = 'zoe' WHERE false; BEGIN; UPDATE seats SET guest = 'zoe'; ROLLBACK; BEGIN; SAVEPOINT a; UPDATE seats SET guest = 'zoe' WHERE id = 3; ROLLBACK TO a; COMMIT`)
	require.Equal(t, "room:blue false, room:red false", s.one(fences))
	legacy.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	require.Equal(t, "room:blue false, room:red true", s.one(fences))
	legacy.exec(`UPDATE seats SET room = 'blue' WHERE id = 1; INSERT INTO seats VALUES (7, 'new')`)
	require.Equal(t, "room:blue true, room:new true, room:red true", s.one(fences))

	require.Equal(t, "room:blue 42, room:red 43", s.one(`SELECT string_agg(resource || ' ' || last_fencing_token, ', ' ORDER BY resource) FROM fencedb.fences WHERE resource <> 'room:new'`),
		"tokens that are not of package lease stay small")
	s.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid'); CREATE TABLE nodes (id int NOT NULL); SELECT fencedb.protect('nodes', 'zxid:{id}')`)
	role := legacy.one(`quote_ident(session_user)`)
	s.exec(`GRANT ALL ON nodes TO ` + role)
	legacy.refused("FN002", `INSERT INTO nodes VALUES (1)`) // it overtakes in another table
	s.exec(`SELECT fencedb.take_over_as('nodes', '` + role + `', now() + interval '1 hour')`)
	legacy.exec(`INSERT INTO nodes VALUES (1)`)
	require.Equal(t, "1", s.one(`fencedb.last_token('zxid:1')`))
}

// A role takes over the tables that it was let for. But what it has overtaken is entered.
func TestWhatIsOvertakenForOneTableAdmitsToNoOther(t *testing.T) {
	t.Parallel()
	s, legacy, role := newLegacy(t)
	s.exec(enter(41, "room:red"))
	s.exec(`CREATE TABLE notes (room text NOT NULL); SELECT fencedb.protect('notes', 'room:{room}'); CREATE TABLE parts (room text NOT NULL) PARTITION BY LIST (room); SELECT fencedb.protect('parts', 'room:{room}');
		CREATE TABLE late PARTITION OF parts FOR VALUES IN ('red'); GRANT ALL ON notes, parts, late TO ` + role)
	const overtaken = `BEGIN; UPDATE seats SET guest = 'zoe' WHERE id = 1; `
	s.exec(`REVOKE EXECUTE ON FUNCTION fencedb.enter FROM ` + role)
	forgery := overtaken + `SELECT set_config('fencedb.entered', ` + forged("room:red", "100") + `, true); `
	writes := []string{`INSERT INTO notes VALUES ('red')`, `INSERT INTO parts VALUES ('red')`, `INSERT INTO late VALUES ('red')`}

	for _, write := range writes {
		legacy.refused("FN002", overtaken+write)
		legacy.refused("FN002", forgery+write)
	}
	s.exec(`BEGIN; SELECT fencedb.take_over_as('notes', '` + role + `', now() + interval '1 hour'); COMMIT`)
	legacy.exec(overtaken + writes[0] + `; UPDATE seats SET guest = 'leo' WHERE id = 2; UPDATE notes SET room = 'red'; COMMIT`) // each by its own right
	require.Equal(t, "1", s.one(`SELECT count(DISTINCT t) FROM (SELECT last_fencing_token FROM seats WHERE guest IN ('zoe', 'leo') UNION ALL SELECT last_fencing_token FROM notes) x(t)`), "one transaction overtakes a fence once")
	s.exec(`SELECT fencedb.take_over_as('notes', NULL, NULL)`)

	// A cascade has no guard of statements, and a savepoint gives the fence back.
	s.exec(`CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'); GRANT ALL ON rooms TO ` + role + `; ALTER TABLE notes ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE`)
	several := strings.Repeat(`UPDATE seats SET guest = 'zoe' WHERE room = 'red'; `, 2)
	legacy.refused("FN002", `BEGIN; `+several+`DELETE FROM rooms`)
	legacy.refused("FN002", `BEGIN; SAVEPOINT a; `+several+`ROLLBACK TO a; DELETE FROM rooms`)
}

// A run of rows is overtaken once, and each of its resources.
func TestATakeOverAdvancesAFenceOnce(t *testing.T) {
	t.Parallel()
	s, legacy, role := newLegacy(t)
	s.exec(`CREATE TABLE moves (id int, a text NOT NULL, b text NOT NULL); SELECT fencedb.protect('moves', ARRAY['room:{a}', 'room:{b}']); GRANT ALL ON moves TO ` + role + `;
		SELECT fencedb.take_over_as('moves', '` + role + `', now() + interval '1 hour'); ` + enter(41, "room:red") + "; " + enter(51, "room:blue"))
	tokens := func() string {
		return s.one(`SELECT string_agg(last_fencing_token::text, ' ' ORDER BY resource DESC) FROM fencedb.fences WHERE resource IN ('room:red', 'room:blue')`)
	}

	legacy.exec(`BEGIN; UPDATE seats SET guest = 'zoe'; UPDATE seats SET guest = 'leo'; SAVEPOINT a; DELETE FROM seats WHERE id = 3; ROLLBACK TO a; INSERT INTO seats SELECT i, CASE i % 2 WHEN 0 THEN 'red' ELSE 'blue' END FROM generate_series(10, 29) i; COMMIT`)
	require.Equal(t, "42 52", tokens())
	require.Equal(t, "12 42, 11 52", s.one(`SELECT string_agg(concat_ws(' ', n, token), ', ' ORDER BY token) FROM (SELECT count(*) AS n, last_fencing_token AS token FROM seats GROUP BY 2) x`))
	legacy.exec(`INSERT INTO moves SELECT i, 'red', 'blue' FROM generate_series(1, 9) i`)
	require.Equal(t, "43 53", tokens())
	require.Equal(t, "43", s.one(`SELECT DISTINCT last_fencing_token FROM moves`))
	legacy.exec(`UPDATE moves SET a = 'blue', b = 'red'`)
	require.Equal(t, "44 54", tokens())
	require.Equal(t, "54", s.one(`SELECT DISTINCT last_fencing_token FROM moves`))
	legacy.exec(`UPDATE seats SET room = 'blue' WHERE id = 1; DELETE FROM moves WHERE id < 5`)
	require.Equal(t, "45 55", tokens(), "the stamp of a row is of its first resource")

	// A holder that entered while nobody overtook writes at once afterwards.
	s.exec(s.fenced(47, "room:red", `UPDATE seats SET guest = 'own' WHERE room = 'red'`))
	s.refused("FN001", enter(46, "room:red"))

	// Where a fence was set back, who overtakes does not take that back.
	s.exec(s.fenced(9_000_000_000_000_000, "room:red", `UPDATE seats SET guest = 'by mistake' WHERE room = 'red'`) + `; SELECT fencedb.reset_fence('room:red', 60, 'ann@host', 'entered by mistake')`)
	legacy.exec(`UPDATE seats SET guest = 'zoe' WHERE room = 'red'`)
	require.Equal(t, "61 55", tokens())
	require.Equal(t, "61", s.one(`SELECT DISTINCT last_fencing_token FROM seats WHERE room = 'red'`))
}

func TestATakeOverIsNoWayRound(t *testing.T) {
	t.Parallel()
	s, legacy, _ := newLegacy(t)
	s.exec(`ALTER TABLE seats ALTER room DROP NOT NULL`)
	legacy.exec(`UPDATE seats SET guest = 'zoe'`)

	legacy.refused("FN002", `TRUNCATE seats`)
	legacy.refused("FN003", `INSERT INTO seats VALUES (9, NULL)`)
	legacy.refused("FN003", `UPDATE seats SET room = NULL`)
}

func TestATakeOverIsRecordedAndEnds(t *testing.T) {
	t.Parallel()
	s, legacy, role := newLegacy(t)
	other := s.withRole("operator")
	s.exec(`GRANT ALL ON seats TO ` + other)
	const write, again = `UPDATE seats SET guest = 'zoe' WHERE id = 1`, `SELECT fencedb.take_over_as('seats', '%s', now() + interval '1 hour')`
	legacy.exec(write)
	require.Equal(t, "FN002", s.as(other, write), "another role")
	require.Equal(t, insufficientPrivilege, legacy.refused(insufficientPrivilege, `SELECT fencedb.take_over_as('seats', '`+role+`', now() + interval '2 hours')`).Code)
	legacy.refused(insufficientPrivilege, `SELECT fencedb.take_over_as('seats', NULL, NULL)`)
	legacy.exec(`SELECT fencedb.let_overtake('seats'), fencedb.end_overtaking('seats')`) // no news: what the owner has ordered
	legacy.refused(insufficientPrivilege, `INSERT INTO fencedb.take_overs VALUES (1, 1, now())`)

	s.exec(`UPDATE fencedb.take_overs SET ledger = 1`) // as in a copy, where another table may have the number of this one
	legacy.refused("FN002", write)
	s.exec(`SELECT fencedb.take_over_as('seats', '` + role + `', (SELECT until FROM fencedb.take_overs))`)
	legacy.exec(write)
	s.exec(`UPDATE fencedb.take_overs SET until = clock_timestamp()`) // its date has come
	legacy.refused("FN002", write)
	s.exec(`SELECT fencedb.take_over_as('seats', '` + role + `', now() + interval '2 hours')`)
	legacy.exec(write)
	legacy.exec(`BEGIN; UPDATE seats SET guest = 'leo' WHERE id = 3`)
	s.exec(`SET lock_timeout = '10ms'; SELECT fencedb.take_over_as('seats', '` + role + `', NULL); SELECT fencedb.take_over_as('seats', '` + role + `', NULL)`)
	legacy.refused("FN002", write)
	s.exec(`SELECT fencedb.take_over_as('seats', '` + role + `', now() + interval '1 hour'); RESET lock_timeout`)
	legacy.exec(write)
	s.exec(`SELECT fencedb.unprotect('seats', keep_column => true); SELECT fencedb.protect('seats', 'room:{room}')`)
	legacy.refused("FN002", write)

	require.Equal(t, "take_over_as true, take_over_as true, take_over_as true, take_over_as, take_over_as true, take_over_as",
		s.one(`SELECT string_agg(concat_ws(' ', event, ((details ->> 'until')::timestamptz > now())::text), ', ' ORDER BY id) FROM fencedb.audit WHERE details ->> 'role' = $1`, legacy.one(`session_user`)))
	for _, wrong := range []string{`'seats', '` + role + `', now()`, `'seats', '` + role + `', 'infinity'`, `'seats', '999999', NULL`, `'seats', NULL, now() + interval '1 hour'`} {
		s.refused("22023", `SELECT fencedb.take_over_as(`+wrong+`)`)
	}
	s.exec(`CREATE TABLE plain (id int)`)
	s.refused(notInPrerequisiteState, `SELECT fencedb.take_over_as('plain', '`+role+`', now() + interval '1 hour')`)
}

// Anybody can own a table, temporary ones at least, make it look protected, and say of which
// resource a row is. So who overtakes could shut every holder out, if it were enough to own a
// table.
func TestWhoMayNotEnterLetsNobodyOvertake(t *testing.T) {
	t.Parallel()
	const look = `CREATE TABLE %[1]s.seats (id int, room text); CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON %[1]s.seats FOR EACH ROW EXECUTE FUNCTION fencedb.guard_others();`
	const takeOver = `SELECT fencedb.take_over_as('%[1]s.seats', session_user::regrole, now() + interval '1 hour');`
	const wrongType = "42809"
	s := newSession(t)
	stranger, writer := s.withRole("operator"), s.withRole("writer")
	s.exec(`CREATE TABLE others (room text NOT NULL); SELECT fencedb.protect('others', 'room:{room}'); REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencedb FROM ` + stranger)
	for schema, code := range map[string]string{"pg_temp": wrongType, "own": insufficientPrivilege} {
		s.exec(`DROP SCHEMA IF EXISTS own CASCADE; CREATE SCHEMA own AUTHORIZATION ` + stranger)
		require.Equal(t, code, s.as(stranger, fmt.Sprintf(look+takeOver, schema)), schema)
	}
	require.Equal(t, insufficientPrivilege, s.as(stranger, `CREATE TABLE own.rooms (id int NOT NULL); SELECT fencedb.protect('own.rooms', 'table:12');`+
		strings.ReplaceAll(fmt.Sprintf(takeOver, "own"), "seats", "rooms")))
	require.Equal(t, wrongType, s.as(writer, strings.ReplaceAll(fmt.Sprintf(look+takeOver, "pg_temp"), "seats", "rooms")))
	require.Equal(t, "0 0", s.one(`SELECT concat((SELECT count(*) FROM fencedb.take_overs), ' ', (SELECT count(*) FROM fencedb.audit WHERE event = 'take_over_as'))`))

	// Nor does the guard of a table let anybody overtake on one of their own.
	s.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', 'seat:{id}'), fencedb.take_over_as('seats', '` + writer + `', now() + interval '1 hour')`)
	require.Equal(t, "FN002", s.as(writer, `CREATE TABLE pg_temp.own (id int, room text, last_fencing_token bigint DEFAULT 41); CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON pg_temp.own FOR EACH ROW EXECUTE FUNCTION fencedb.guard_seats(); INSERT INTO pg_temp.own VALUES (1)`))
	require.Empty(t, s.one(`fencedb.last_token('seat:1')`))
}

// Where the fence was lost, the rows still tell. Nobody overtakes with a token that enter refuses.
func TestWhoOvertakesComesAfterTheStampOfTheRow(t *testing.T) {
	t.Parallel()
	s, legacy, _ := newLegacy(t)
	const ahead, write = 1_900_000_000_000_041, `UPDATE seats SET guest = 'zoe' WHERE id = 2`
	stamp := func(token int) {
		s.exec(fmt.Sprintf(`SET session_replication_role = replica; UPDATE seats SET last_fencing_token = %d WHERE id = 2; RESET session_replication_role`, token))
	}
	stamp(ahead)
	legacy.exec(write)
	require.Equal(t, fmt.Sprint(ahead+1), s.one(`fencedb.last_token('room:red')`))
	for _, token := range []int{9007199254740991, 9223372036854775806} {
		stamp(token)
		legacy.refused("22023", write)
	}
	require.Equal(t, fmt.Sprint(ahead+1), s.one(`fencedb.last_token('room:red')`))
}

// It waits for the holder's open transaction, as every newcomer does. Where that holder comes to
// want the row that it has locked meanwhile, Postgres ends one of the two.
func TestATakeOverWaitsForTheHolder(t *testing.T) {
	t.Parallel()
	s, legacy, _ := newLegacy(t)
	s.exec(`ALTER DATABASE "` + s.one(`current_database()`) + `" SET deadlock_timeout = '20ms'`)
	issued := func() int { // as package lease issues it
		token, err := strconv.Atoi(s.one(`SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`))
		require.NoError(t, err)
		return token
	}
	holder := issued()
	start := func() chan error {
		done := make(chan error, 1)
		go func() {
			_, err := legacy.conn.PgConn().Exec(t.Context(), `UPDATE seats SET guest = 'zoe' WHERE id = 1`).ReadAll()
			done <- err
		}()
		watcher := s.beside()
		watcher.awaitBlocked(legacy.conn.PgConn().PID())
		return done
	}

	s.exec("BEGIN; " + enter(holder, "room:red") + `; UPDATE seats SET guest = 'ann' WHERE id = 2`)
	done := start()
	s.exec(`COMMIT`)
	require.NoError(t, <-done)
	s.refused("FN001", enter(holder, "room:red"))

	for _, before := range []string{``, `DELETE FROM fencedb.fences`} {
		s.exec(before)
		holder = issued()
		s.exec("BEGIN; " + enter(holder, "room:red"))
		done = start()
		_, err := s.conn.Exec(t.Context(), `UPDATE seats SET guest = 'ann' WHERE id = 1`)
		s.exec(`COMMIT`)
		other := <-done
		require.True(t, (err == nil) != (other == nil), "%v, %v", err, other)
		for _, err := range []error{err, other} {
			if err != nil {
				require.Equal(t, "40P01", pgError(t, err).Code)
			}
		}
		legacy.exec(`ROLLBACK`)
		require.Equal(t, map[bool]string{true: "ann", false: "zoe"}[err == nil], s.one(`SELECT guest FROM seats WHERE id = 1`))
	}

	s.exec("BEGIN; " + enter(issued(), "room:red"))
	legacy.exec(`SET lock_timeout = '50ms'`)
	legacy.refused("55P03", `UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	s.exec(`COMMIT`)
	legacy.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	require.Equal(t, "50ms", legacy.one(`current_setting('lock_timeout')`))
}

// The type of a resource may be one whose tokens are not ours to make large.
func TestATakeOverOfAForeignIssuersResourceCountsByOne(t *testing.T) {
	t.Parallel()
	s, _, role := newLegacy(t)
	const most = 1 << 53
	s.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid'); CREATE TABLE nodes (id int NOT NULL, room text NOT NULL DEFAULT 'red'); SELECT fencedb.protect('nodes', ARRAY['zxid:{id}', 'room:{room}']); GRANT ALL ON nodes TO ` + role + `;
		SELECT fencedb.take_over_as('nodes', '` + role + `', now() + interval '1 hour')`)
	s.exec(fmt.Sprintf(`SELECT fencedb.enter('zxid:2', %d, gen_random_uuid()), fencedb.enter('zxid:3', 9223372036854775807, gen_random_uuid())`, most))

	require.Empty(t, s.as(role, `INSERT INTO nodes VALUES (1), (2)`))
	require.Equal(t, fmt.Sprintf("1 %d", most+1), s.one(`fencedb.last_token('zxid:1') || ' ' || fencedb.last_token('zxid:2')`))
	require.Equal(t, "true", s.one(`SELECT `+clockToken+` FROM fencedb.fences WHERE resource = 'room:red'`))
	require.Equal(t, "22003", s.as(role, `INSERT INTO nodes VALUES (3)`), "there is no higher token")
}

// Two that overtake in opposite order: Postgres ends one of them, as it does where they lock rows
// like that.
func TestTwoTakeOversInOppositeOrderEnd(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", enter(41, "room:red") + "; " + enter(41, "room:blue")} {
		s, _, role := newLegacy(t)
		s.exec(before + `; ALTER DATABASE "` + s.one(`current_database()`) + `" SET deadlock_timeout = '20ms'`)
		a, b := s.beside(), s.beside()
		for _, one := range []*session{a, b} {
			one.exec(`SET SESSION AUTHORIZATION ` + role + `; BEGIN`)
		}
		a.exec(`UPDATE seats SET guest = 'a' WHERE id = 1`)
		b.exec(`UPDATE seats SET guest = 'b' WHERE id = 3`)

		results := make(chan error, 2)
		for one, write := range map[*session]string{a: `INSERT INTO seats VALUES (8, 'blue'); COMMIT`, b: `INSERT INTO seats VALUES (9, 'red'); COMMIT`} {
			go func() {
				_, err := one.conn.PgConn().Exec(t.Context(), write).ReadAll()
				results <- err
			}()
		}

		first, second := <-results, <-results
		require.True(t, (first == nil) != (second == nil), "%v, %v", first, second)
	}
}

// Nor does it go to a role that gets the name.
func TestATakeOverStaysWithItsRole(t *testing.T) {
	t.Parallel()
	s, _, role := newLegacy(t)
	renamed := pgx.Identifier{"renamed_" + s.one(`current_database()`)}.Sanitize()
	s.exec(`ALTER ROLE ` + role + ` RENAME TO ` + renamed)
	defer s.exec(`ALTER ROLE ` + renamed + ` RENAME TO ` + role) // for those who clean up

	require.Empty(t, s.as(renamed, `UPDATE seats SET guest = 'zoe' WHERE id = 1`))

	s.exec(`SELECT fencedb.take_over_as('seats', ` + "'" + renamed + `', NULL)`)
	require.Equal(t, "FN002", s.as(renamed, `UPDATE seats SET guest = 'zoe' WHERE id = 1`))
}

func TestAPartitionIsTakenOverWithItsTable(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	role := s.withRole("writer")
	s.exec(`GRANT ALL ON parts, red, low TO ` + role + `; SELECT fencedb.take_over_as('parts', '` + role + `', now() + interval '1 hour')`)
	s.refused(objectInUse, `SELECT fencedb.take_over_as('red', '`+role+`', now() + interval '1 hour')`)

	require.Empty(t, s.as(role, `UPDATE parts SET guest = 'zoe'; UPDATE red SET guest = 'eve'; INSERT INTO low VALUES (1, 'blue')`))

	s.refused("FN001", enter(42, "room:red"))
	require.Equal(t, "2", s.one(`SELECT count(*) FROM parts WHERE last_fencing_token > 42`))
}

// It overtakes also where the guard only observes, or a holder that reads before it writes could
// lose what the role has written. Nor is the role listed among those who would be refused.
func TestARoleThatTakesOverIsNotObserved(t *testing.T) {
	t.Parallel()
	s, legacy, _ := newLegacy(t)
	s.exec(`SELECT fencedb.enforce('seats', observing => true); ` + enter(41, "room:red"))

	for _, write := range writes {
		legacy.exec(`BEGIN; ` + write + `; ROLLBACK`)
	}
	legacy.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 1; DELETE FROM seats WHERE id = 2; INSERT INTO seats VALUES (2, 'red')`)

	require.Empty(t, s.observed())
	s.refused("FN001", enter(41, "room:red"))
	stored := s.one(`fencedb.last_token('room:red')`)
	require.Equal(t, stored, s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`))
	s.exec(`SELECT fencedb.enforce('seats')`)
	legacy.exec(`UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	require.NotEqual(t, stored, s.one(`fencedb.last_token('room:red')`))
}

// adoption is a table in use: writers and readers that go on until they fail, or until stop is
// closed.
type adoption struct {
	*session
	stop    chan struct{}
	done    map[string]*atomic.Int64
	results map[string]chan error
}

func (a *adoption) run(name string, step func() error) {
	count, result := new(atomic.Int64), make(chan error, 1)
	a.done[name], a.results[name] = count, result
	go func() {
		for {
			select {
			case <-a.stop:
				result <- nil
				return
			default:
			}
			if err := step(); err != nil {
				result <- err
				return
			}
			count.Add(1)
		}
	}()
}

// await waits until each has done five steps more.
func (a *adoption) await(names ...string) {
	a.Helper()
	for _, name := range names {
		count := a.done[name]
		before := count.Load()
		wrote := func() bool { return count.Load() >= before+5 || len(a.results[name]) > 0 }
		require.Eventually(a, wrote, time.Minute, time.Millisecond, name)
		if len(a.results[name]) > 0 {
			require.NoError(a, <-a.results[name], name)
		}
	}
}

// ended is the SQLSTATE of what ended it.
func (a *adoption) ended(name string) string {
	a.Helper()
	err := <-a.results[name]
	refused := new(pgconn.PgError)
	if err != nil {
		require.ErrorAs(a, err, &refused, name)
	}
	return refused.Code
}

// increment reads, decides and writes under a token of now, until that is not overtaken or too
// late.
func (s *session) increment(id int) error {
	for {
		err := pgx.BeginFunc(s.Context(), s.conn, func(tx pgx.Tx) error {
			var n int
			if _, err := tx.Exec(s.Context(), `SELECT fencedb.enter('counter:' || $1::int, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, gen_random_uuid(), 1000)`, id); err != nil {
				return err
			}
			if err := tx.QueryRow(s.Context(), `SELECT n FROM counters WHERE id = $1`, id).Scan(&n); err != nil {
				return err
			}
			_, err := tx.Exec(s.Context(), `UPDATE counters SET n = $2 WHERE id = $1`, id, n+1)
			return err
		})
		refused := new(pgconn.PgError)
		switch errors.As(err, &refused); refused.Code {
		case "FN001", "40P01", "55P03", "57014", "FN004", "FN006":
		case "25P03", "25P04": // it has waited for the role that overtakes until its time was over
			if s.conn, err = pgx.ConnectConfig(s.Context(), s.conn.Config()); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// The whole way of docs/adopting.md, on a table in use: no statement fails on it but those without
// a token after the last step, and no increment is lost between a holder that reads before it
// writes and a role that takes over.
func TestATableInUseIsAdoptedWithoutAFailure(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	legacy := s.withRole("writer")
	s.exec(`CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL); INSERT INTO counters SELECT i, 0 FROM generate_series(1, 5) i; GRANT ALL ON counters TO ` + legacy)
	s.exec(`ALTER DATABASE "` + s.one(`current_database()`) + `" SET deadlock_timeout = '200ms'`)
	steps := &adoption{s, make(chan struct{}), map[string]*atomic.Int64{}, map[string]chan error{}}
	plain := []string{"reader", "prepared", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}
	for id, level := range plain[2:] { // on rows of their own, so that no conflict is theirs
		one := s.beside()
		steps.run(level, func() error {
			_, err := one.conn.PgConn().Exec(t.Context(), fmt.Sprintf(`BEGIN ISOLATION LEVEL %s; UPDATE counters SET n = n + 1 WHERE id = %d; COMMIT`, level, id+1)).ReadAll()
			return err
		})
	}
	prepared, reader, old, holder := s.beside(), s.beside(), s.beside(), s.beside()
	steps.run("prepared", func() error {
		_, err := prepared.conn.Exec(t.Context(), `UPDATE counters SET n = n + 1 WHERE id = $1`, 4)
		return err
	})
	steps.run("reader", func() error {
		return reader.conn.QueryRow(t.Context(), `SELECT n FROM counters WHERE id = $1`, 5).Scan(new(int))
	})

	steps.await(plain...)
	s.exec(`SET lock_timeout = '5s'; ALTER TABLE counters ADD last_fencing_token bigint NOT NULL DEFAULT 0`)
	steps.await(plain...)
	s.exec(`SELECT fencedb.protect('counters', 'counter:{id}', mode => 'observe')`)
	steps.await(plain...)
	s.exec(`SELECT fencedb.take_over_as('counters', '` + legacy + `', now() + interval '1 hour')`)
	steps.await(plain...)
	s.exec(`SELECT fencedb.enforce('counters')`)
	for _, name := range plain[1:] {
		require.Equal(t, "FN002", steps.ended(name))
	}
	old.exec(`SET SESSION AUTHORIZATION ` + legacy)
	steps.run("legacy", func() error {
		for {
			_, err := old.conn.Exec(t.Context(), `UPDATE counters SET n = n + 1 WHERE id = $1`, 5)
			if refused := new(pgconn.PgError); !errors.As(err, &refused) || refused.Code != "40P01" { // which it can meet, as a service does that locks rows
				return err
			}
		}
	})
	steps.run("holder", func() error { return holder.increment(5) })
	steps.await("legacy", "holder", "reader")
	close(steps.stop)
	for _, name := range []string{"legacy", "holder", "reader"} {
		require.Empty(t, steps.ended(name))
	}

	for name, id := range map[string]int{"READ COMMITTED": 1, "REPEATABLE READ": 2, "SERIALIZABLE": 3, "prepared": 4} {
		require.Equal(t, fmt.Sprint(steps.done[name].Load()), s.one(`SELECT n FROM counters WHERE id = $1`, id), name)
	}
	require.Equal(t, fmt.Sprint(steps.done["legacy"].Load()+steps.done["holder"].Load()), s.one(`SELECT n FROM counters WHERE id = 5`))
	require.Equal(t, "UPDATE", s.one(`SELECT string_agg(DISTINCT statement, ',') FROM fencedb.unfenced_writes WHERE reason = 'FN002' AND role = session_user`))
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.unfenced_writes WHERE role <> session_user`))
}
