package migrations_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newSeats is a session with a protected table of three seats, written under token 41 of their
// rooms.
func newSeats(t *testing.T) *session {
	return newSession(t, `CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL, guest text)`,
		`INSERT INTO seats VALUES (1, 'red', 'ann'), (2, 'red', NULL), (3, 'blue', NULL)`,
		`SELECT fencedb.protect('seats', resource => 'room:{room}')`)
}

// writes is every kind of statement that changes a row of the red room.
var writes = map[string]string{
	"INSERT":            `INSERT INTO seats VALUES (9, 'red', 'zoe')`,
	"INSERT SELECT":     `INSERT INTO seats SELECT 9, 'red', 'zoe'`,
	"ON CONFLICT":       `INSERT INTO seats VALUES (1, 'red', 'zoe') ON CONFLICT (id) DO UPDATE SET guest = EXCLUDED.guest`,
	"UPDATE":            `UPDATE seats SET guest = 'zoe' WHERE id = 1`,
	"UPDATE FROM":       `UPDATE seats SET guest = v.g FROM (VALUES (1, 'zoe')) v(id, g) WHERE seats.id = v.id`,
	"DELETE":            `DELETE FROM seats WHERE id = 1`,
	"DELETE USING":      `DELETE FROM seats USING (VALUES (1)) v(id) WHERE seats.id = v.id`,
	"writable CTE":      `WITH w AS (UPDATE seats SET guest = 'zoe' WHERE id = 1 RETURNING 1) SELECT count(*) FROM w`,
	"MERGE update":      `MERGE INTO seats USING (VALUES (1)) v(id) ON seats.id = v.id WHEN MATCHED THEN UPDATE SET guest = 'zoe'`,
	"MERGE insert":      `MERGE INTO seats USING (VALUES (9)) v(id) ON seats.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (9, 'red', 'zoe')`,
	"MERGE delete":      `MERGE INTO seats USING (VALUES (1)) v(id) ON seats.id = v.id WHEN MATCHED THEN DELETE`,
	"through a view":    `UPDATE seats_view SET guest = 'zoe' WHERE id = 1`,
	"through a routine": `CALL reseat()`,
}

func newSeatsWithDetours(t *testing.T) *session {
	s := newSeats(t)
	s.exec(`CREATE VIEW seats_view AS SELECT * FROM seats`)
	s.exec(`CREATE PROCEDURE reseat() LANGUAGE sql SECURITY DEFINER AS $$ UPDATE seats SET guest = 'zoe' WHERE id = 1 $$`)
	return s
}

func TestNoWriteWithoutAToken(t *testing.T) {
	t.Parallel()
	s := newSeatsWithDetours(t)
	before := s.one(`SELECT json_agg(seats ORDER BY id) FROM seats`)

	for _, write := range writes {
		s.refused("FN002", write)
	}
	s.refused("FN002", `TRUNCATE seats`)
	s.refused("FN002", `TRUNCATE seats CASCADE`)
	s.refused("FN002", `COPY seats FROM PROGRAM 'printf "9\\tred\\tzoe\\t0\\n"'`)
	s.refused("FN002", `UPDATE seats SET guest = 'zoe' WHERE false`)

	require.Equal(t, before, s.one(`SELECT json_agg(seats ORDER BY id) FROM seats`))
}

func TestNoWriteWithATokenOfAnotherResource(t *testing.T) {
	t.Parallel()
	s := newSeatsWithDetours(t)

	for _, write := range writes {
		err := s.refused("FN003", s.fenced(41, "room:blue", write))
		var detail struct {
			Resource string
			Entered  []string
		}
		require.NoError(t, json.Unmarshal([]byte(err.Detail), &detail))
		require.Equal(t, "room:red", detail.Resource)
		require.Equal(t, []string{"room:blue"}, detail.Entered)
	}
	s.refused("FN002", s.fenced(41, "room:blue", `TRUNCATE seats`))
}

func TestEveryWriteWithTheRightToken(t *testing.T) {
	t.Parallel()
	s := newSeatsWithDetours(t)

	for name, write := range writes {
		s.exec("BEGIN; " + enter(41, "room:red") + "; " + write)
		if name != "DELETE" && name != "DELETE USING" && name != "MERGE delete" {
			require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM seats WHERE guest = 'zoe'`), name)
		}
		s.exec("ROLLBACK")
	}
	s.exec("BEGIN; " + enter(41, "room:red") + `; COPY seats FROM PROGRAM 'printf "9\\tred\\tzoe\\t0\\n"'; COMMIT`)
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM seats WHERE id = 9`))
}

func TestARowThatMovesNeedsTheTokensOfBothResources(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const move = `UPDATE seats SET room = 'blue' WHERE id = 1`

	s.refused("FN003", s.fenced(41, "room:red", move))
	s.refused("FN003", s.fenced(41, "room:blue", move))
	s.exec("BEGIN; " + enter(41, "room:red") + "; " + enter(7, "room:blue") + "; " + move + "; COMMIT")

	require.Equal(t, "7", s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`), "stamped with the token of where it is now")
}

func TestADeletedRowCannotBeReinsertedWithAnOlderToken(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(s.fenced(42, "room:red", `DELETE FROM seats WHERE room = 'red'`))

	s.refused("FN001", s.fenced(41, "room:red", `INSERT INTO seats VALUES (1, 'red', 'zoe')`))

	require.Equal(t, "1", s.one(`SELECT count(*) FROM seats`))
}

func TestASessionThatIsResetHasToEnterAgain(t *testing.T) {
	t.Parallel()
	s := newSeatsWithDetours(t)
	for _, write := range writes {
		begun := `BEGIN; ` + enter(41, "room:red") + `; `
		s.refused("FN002", begun+`RESET ALL; `+write)
		s.exec(begun + `RESET ALL; ` + enter(41, "room:red") + `; ` + write + `; ROLLBACK`)
		s.exec(begun + `DISCARD SEQUENCES; DISCARD PLANS; DISCARD TEMP; ` + write + `; ROLLBACK`) // nothing of it is there
	}
	require.Contains(t, s.refused("FN002", `BEGIN; `+enter(41, "room:red")+`; RESET ALL; UPDATE seats SET guest = 'ann' WHERE id = 1`).Hint, "RESET ALL")
}

func TestTheStampCannotBeChosen(t *testing.T) {
	t.Parallel()
	s := newSeats(t)

	s.exec(s.fenced(41, "room:red", `UPDATE seats SET last_fencing_token = 99 WHERE id = 1`))

	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM seats WHERE id = 1`))
}

// Somebody emptied the ledger; the rows still know.
func TestARowRefusesAnOlderTokenEvenWithoutItsLedger(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(s.fenced(42, "room:red", `UPDATE seats SET guest = 'zoe' WHERE id = 1`))
	s.exec(`DELETE FROM fencedb.fences`)

	s.refused("FN001", s.fenced(41, "room:red", `UPDATE seats SET guest = 'old' WHERE id = 1`))
	s.refused("FN001", s.fenced(41, "room:red", `DELETE FROM seats WHERE id = 1`))
}

// Transactions of one lease share the fence, and each of them has locked it; what others share
// opens nothing.
func TestASharedFenceIsTheirsWhoShareIt(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(41, "room:red"))
	first, second, stranger := s.beside(), s.beside(), s.beside()
	const write = `UPDATE seats SET guest = 'zoe' WHERE room = 'red'`
	for _, holder := range []*session{first, second} {
		holder.exec("BEGIN; " + enter(41, "room:red"))
	}
	stranger.refused("FN003", "BEGIN; "+enter(41, "room:blue")+"; "+write)
	stranger.refused("FN003", "BEGIN; "+enter(41, "room:blue")+"; SELECT FROM fencedb.fences WHERE resource = 'room:red' FOR SHARE; "+write) // locked by hand, as by a foreign key to the ledger
	first.exec(write + "; " + write)
	first.exec("COMMIT")
	second.exec(write + "; COMMIT")
}

// What was judged last is of one resource, one token and one transaction, and goes back with a
// savepoint.
func TestTheGuardJudgesEveryRowAsIfItWereTheFirst(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE moves (a text NOT NULL, b text NOT NULL); SELECT fencedb.protect('moves', ARRAY['room:{a}', 'room:{b}']); ALTER TABLE seats ALTER room DROP NOT NULL`)
	s.exec(`CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'), ('blue');
		ALTER TABLE seats ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE`)
	const first = `UPDATE seats SET guest = 'ann' WHERE id = 1; `
	entered := "BEGIN; " + enter(41, "room:red") + "; " + first

	s.refused("FN003", entered+`UPDATE seats SET guest = 'zoe'`)
	s.refused("FN003", entered+`UPDATE seats SET room = 'blue' WHERE id = 2`)
	s.refused("FN003", entered+`UPDATE seats SET room = 'red' WHERE id = 3`)
	s.refused("FN003", entered+`INSERT INTO seats VALUES (9, 'red'), (10, 'blue')`)
	s.refused("FN003", entered+`DELETE FROM seats`)
	for _, write := range []string{`INSERT INTO seats VALUES (9, NULL)`, `UPDATE seats SET room = NULL WHERE id = 2`} {
		require.Contains(t, s.refused("FN003", entered+write).Message, "the row has no resource")
		require.Contains(t, s.refused("FN003", entered+`ALTER TABLE seats DISABLE TRIGGER "~fencedb_statement"; `+write).Message, "the row has no resource")
	}
	s.refused("FN003", entered+`INSERT INTO moves VALUES ('red', 'blue')`)
	s.refused("FN003", "BEGIN; "+enter(41, "{room:red,room:blue}")+"; INSERT INTO moves VALUES ('red', 'blue')")
	s.exec(entered + `SAVEPOINT a; UPDATE seats SET guest = 'ann' WHERE room = 'red'; ROLLBACK TO a; UPDATE seats SET guest = 'zoe' WHERE room = 'red';
		DELETE FROM seats WHERE id = 2; INSERT INTO seats VALUES (2, 'red'); COMMIT`)
	require.Equal(t, "41 41", s.one(`SELECT string_agg(last_fencing_token::text, ' ') FROM seats WHERE room = 'red'`))
	s.refused("FN006", `BEGIN; SELECT fencedb.enter('room:red', 42, gen_random_uuid(), 1000); `+first+`
		SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%';
		DO $$ BEGIN UPDATE seats SET guest = 'ann' || pg_sleep(1.001) WHERE id = 1; UPDATE seats SET guest = 'zoe' WHERE id = 1; END $$`)
	s.exec(s.fenced(43, "room:red", `UPDATE seats SET guest = 'zoe' WHERE id = 2`) + `; DELETE FROM fencedb.fences`)
	s.refused("FN001", entered+`UPDATE seats SET guest = 'late' WHERE id = 2`)
}

// Also when the holder has switched off the time limits that enter set, and for rows that a cascade
// reaches.
func TestAWriteAfterTheLeaseIsOverIsRefused(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'), ('blue')`)
	s.exec(`ALTER TABLE seats ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE`)

	const write, cascade, nothing = `UPDATE seats SET guest = 'zoe' WHERE room = 'red'`, `DELETE FROM rooms WHERE name = 'red'`, `DELETE FROM seats WHERE false`
	// What the first leaves as judged last is of no use to the second.
	for _, writes := range [][]string{{nothing, write}, {nothing, cascade}, {write, cascade}, {write, nothing}} {
		before, write := writes[0], writes[1]
		s.refused("FN006", `BEGIN; SELECT fencedb.enter('room:red', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', 1000); `+before+`;
			SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%';
			SELECT pg_sleep(1.001); `+write)
	}

	// A statement that begins in time ends by its time limit, and not by the guard; nothing comes
	// behind it.
	s.refused("57014", `BEGIN; SELECT fencedb.enter('room:red', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', 1000); UPDATE seats SET guest = 'zoe' WHERE room = 'red' AND pg_sleep(1.001) IS NOT NULL`)
	s.refused("FN006", `BEGIN; SELECT fencedb.enter('room:red', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', 1000);
		SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%';
		UPDATE seats SET guest = 'zoe' WHERE room = 'red' AND pg_sleep(1.001) IS NOT NULL; `+nothing)

	// A partition that came later has no guard of statements.
	s.exec(`CREATE TABLE parts (id int, room text NOT NULL) PARTITION BY LIST (room); SELECT fencedb.protect('parts', 'room:{room}'); CREATE TABLE red PARTITION OF parts FOR VALUES IN ('red')`)
	s.beside().refused("FN006", `BEGIN; SELECT fencedb.enter('room:red', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', 1000);
		SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%';
		SELECT pg_sleep(1.001); INSERT INTO red VALUES (1, 'red')`)
}

// Later grants of the transaction may have more time, and rows of theirs may have been judged
// before.
func TestTheGrantThatEndsFirstBoundsTheWholeTransaction(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'), ('blue')`)
	s.exec(`ALTER TABLE seats ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE`)
	const lease = `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'`

	for _, grants := range []string{
		`fencedb.enter('room:blue', 41, ` + lease + `, 1000); SELECT fencedb.enter('room:red', 41, ` + lease + `, 60000)`,
		`fencedb.enter('room:red', 41, ` + lease + `, 60000); UPDATE seats SET guest = 'ann' WHERE room = 'red'; SELECT fencedb.enter('room:blue', 41, ` + lease + `, 1000)`,
	} {
		s.refused("FN006", `BEGIN; SELECT `+grants+`;
			SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%';
			SELECT pg_sleep(1.001); DELETE FROM rooms WHERE name = 'red'`)
	}
}

// A reset, an operator's UPDATE and a foreign key of somebody else's table change or lock a fence.
// None of them is an entry.
func TestAFenceThatChangesIsNotOneThatIsEntered(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(41, "room:red") + `; CREATE TABLE visits (room text REFERENCES fencedb.fences)`)
	for _, change := range []string{
		`SELECT fencedb.reset_fence('room:red', 40, 'ann@host', 'entered by mistake')`,
		`UPDATE fencedb.fences SET advanced_at = '2020-01-01' WHERE resource = 'room:red'`,
		`INSERT INTO visits VALUES ('room:red')`,
		`SELECT FROM fencedb.fences FOR UPDATE`,
	} {
		s.refused("FN003", "BEGIN; "+enter(41, "room:blue")+"; "+change+`; UPDATE seats SET guest = 'zoe' WHERE id = 1`)
		s.refused("FN002", "BEGIN; "+change+`; UPDATE seats SET guest = 'zoe' WHERE id = 1`)
	}
}

// So that on servers without transaction_timeout a transaction cannot string one full time limit
// after the other.
func TestEveryWriteDrawsTheTimeLimitsIn(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const limit = `extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000`
	const write = `UPDATE seats SET guest = 'zoe' WHERE id = 1`
	begin := func(remainingMS string) string {
		s.exec(`BEGIN; SELECT fencedb.enter('room:red', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', ` + remainingMS + `)`)
		return s.one(limit)
	}

	before := begin("600000")
	require.Regexp(t, `^597[0-6]\d\d\.`, before, "short of the lease by one part in 256, about two seconds")
	s.exec(write)
	require.Equal(t, before, s.one(limit), "which have not passed yet")
	s.exec(`COMMIT`)

	before = begin("10000")
	s.exec(`SELECT pg_sleep(0.1)`)
	var bounded bool // from the start of the statement, from which Postgres counts
	require.NoError(t, s.conn.QueryRow(t.Context(),
		write+` RETURNING extract(epoch FROM statement_timestamp()) * 1000 + `+limit+` <= split_part(current_setting('fencedb.entered'), ' ', 3)::numeric`).Scan(&bounded))
	require.True(t, bounded, "no statement outlasts the lease")
	require.Equal(t, "true", s.one(limit+` <= $1::numeric - 60`, before), "40 ms have passed")
	s.exec(`COMMIT`)
}

func TestForeignKeyActionsAreWritesToo(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'), ('blue'), ('empty')`)
	s.exec(`ALTER TABLE seats ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE ON UPDATE CASCADE`)

	s.exec(`DELETE FROM rooms WHERE name = 'empty'`) // reaches no protected row
	s.refused("FN002", `DELETE FROM rooms WHERE name = 'red'`)
	s.refused("FN002", `UPDATE rooms SET name = 'pink' WHERE name = 'red'`)
	s.refused("FN002", `TRUNCATE rooms CASCADE`)
	s.refused("FN003", s.fenced(41, "room:blue", `DELETE FROM rooms WHERE name = 'red'`))
	s.exec(s.fenced(41, "room:red", `DELETE FROM rooms WHERE name = 'red'`))

	require.Equal(t, "1", s.one(`SELECT count(*) FROM seats`))
}

// A TRUNCATE within another table's trigger reaches no guard of rows.
func TestATruncateOfATriggerIsRefused(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE parts (room text NOT NULL) PARTITION BY LIST (room); CREATE TABLE red PARTITION OF parts FOR VALUES IN ('red');
		SELECT fencedb.protect('parts', 'room:{room}'); CREATE TABLE ticks (name text)`)
	s.exec(`CREATE FUNCTION tick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'TRUNCATE ' || NEW.name; RETURN NEW; END $$;
		CREATE TRIGGER tick AFTER INSERT ON ticks FOR EACH ROW EXECUTE FUNCTION tick()`)

	for _, table := range []string{"seats", "parts", "red"} {
		s.refused("FN002", `INSERT INTO ticks VALUES ('`+table+`')`)
		s.refused("FN002", s.fenced(41, "room:red", `INSERT INTO ticks VALUES ('`+table+`')`))
	}
}

func TestNamesThatNeedQuoting(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE SCHEMA "My ""App"""; CREATE TABLE "My ""App"""."Seat's $$ %s {list}" ("Room Nr" int NOT NULL, "select" text NOT NULL, "100 %1$s '""" text NOT NULL, before text NOT NULL, "NEW" text)`)
	const table, quoted = `"My ""App"""."Seat's $$ %s {list}"`, `'"My ""App"""."Seat''s $$ %s {list}"'`
	const resource = `it's $guard$ 50% \n {x} 1:a:b:before`

	s.exec(`SELECT fencedb.protect(` + quoted + `, resource => $r$it's $guard$ 50% \n {{x}} {Room Nr}:{select}:{100 %1$s '"}:{before}$r$)`)

	s.refused("FN002", `INSERT INTO `+table+` VALUES (1, 'a', 'b', 'before')`)
	entered := `BEGIN; SELECT fencedb.enter($r$` + resource + `$r$, 41, gen_random_uuid()); `
	for _, setting := range []string{`on`, `off`} {
		s.exec(entered + `SET LOCAL standard_conforming_strings = ` + setting + `; INSERT INTO ` + table + ` VALUES (1, 'a', 'b', 'before'); UPDATE ` + table + ` SET "NEW" = 'x'; ROLLBACK`)
		s.refused("FN003", entered+`SET LOCAL standard_conforming_strings = `+setting+`; INSERT INTO `+table+` VALUES (2, 'a', 'b', 'before')`)
	}
	s.exec(`SELECT fencedb.enforce(` + quoted + `, observing => true); SELECT fencedb.enforce(` + quoted + `)`)
	s.exec(entered + `INSERT INTO ` + table + ` VALUES (1, 'a', 'b', 'before'); COMMIT`)
	s.exec(`SELECT fencedb.unprotect(` + quoted + `)`)
	s.exec(`INSERT INTO ` + table + ` VALUES (2, 'a', 'b', 'c')`)

	// A name that one of our functions has, and one that is cut.
	for _, name := range []string{"text", "text(regclass, text[])", strings.Repeat("x", 63)} {
		s.exec(`CREATE TABLE "` + name + `" (id int NOT NULL); SELECT fencedb.protect('"` + name + `"', 'seat:{id}')`)
		s.refused("FN002", `INSERT INTO "`+name+`" VALUES (1)`)
		s.exec(s.fenced(41, "seat:1", `INSERT INTO "`+name+`" VALUES (1)`) + `; SELECT fencedb.unprotect('"` + name + `"')`)
	}
}

func TestPartitionedTables(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int, room text NOT NULL) PARTITION BY LIST (room);
		CREATE TABLE seats_red PARTITION OF seats FOR VALUES IN ('red');
		CREATE TABLE seats_rest (room text NOT NULL, id int); ALTER TABLE seats ATTACH PARTITION seats_rest DEFAULT`) // columns in another order
	s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)
	s.exec(`CREATE TABLE seats_blue PARTITION OF seats FOR VALUES IN ('blue')`) // comes later

	for _, table := range []string{"seats", "seats_red"} {
		s.refused("FN002", `INSERT INTO `+table+` VALUES (1, 'red')`)
		s.refused("FN003", s.fenced(41, "room:blue", `INSERT INTO `+table+` VALUES (1, 'red')`))
		s.exec(s.fenced(41, "room:red", `INSERT INTO `+table+` VALUES (1, 'red')`))
		s.refused("FN002", `TRUNCATE `+table)
	}
	s.refused("FN002", `INSERT INTO seats_blue VALUES (1, 'blue')`)
	s.exec(s.fenced(41, "room:green", `INSERT INTO seats VALUES (1, 'green')`))
	s.refused("FN003", s.fenced(41, "room:red", `UPDATE seats SET room = 'green' WHERE room = 'red'`))
	s.exec("BEGIN; " + enter(41, "room:red") + "; " + enter(41, "room:green") + `; UPDATE seats SET room = 'green' WHERE room = 'red'; COMMIT`)
	require.Equal(t, "3", s.one(`SELECT count(*) FROM seats_rest WHERE last_fencing_token = 41`))

	s.exec(`TRUNCATE seats_blue`) // the documented gap of a partition that came later, until protect is called again
	s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)
	s.refused("FN002", `TRUNCATE seats_blue`)

	s.exec(`SELECT fencedb.unprotect('seats')`)
	s.exec(`TRUNCATE seats; INSERT INTO seats VALUES (1, 'red')`)
}

func TestInheritedTables(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int, room text NOT NULL); CREATE TABLE box_seats (sofa boolean) INHERITS (seats)`)
	s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)

	s.refused("FN002", `INSERT INTO box_seats VALUES (1, 'red')`)
	s.exec(s.fenced(41, "room:red", `INSERT INTO box_seats VALUES (1, 'red')`))
	s.refused("FN003", s.fenced(41, "room:blue", `UPDATE seats SET id = 2`))
	s.refused("FN002", `TRUNCATE box_seats`)

	s.exec(`SELECT fencedb.unprotect('seats'); TRUNCATE seats`)
}

func TestARowOfSeveralResources(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE transfers (id int, debtor int NOT NULL, creditor int NOT NULL, day date NOT NULL DEFAULT '2026-01-01')`)
	s.exec(`SELECT fencedb.protect('transfers', ARRAY['account:{debtor}', 'account:{creditor}', 'day:{day}'])`)
	const write = `INSERT INTO transfers VALUES (1, 7, 8)`
	day := enter(40, "day:2026-01-01") + "; "
	both := "BEGIN; " + day + enter(41, "account:7") + "; " + enter(42, "account:8") + "; "

	s.refused("FN003", s.fenced(41, "account:7", day+write))
	s.refused("FN003", s.fenced(41, "account:8", day+write))
	s.exec(both + write + "; COMMIT")
	require.Equal(t, "41", s.one(`SELECT last_fencing_token FROM transfers`), "that of the first template")
	for _, again := range []string{`UPDATE transfers SET id = 2`, `DELETE FROM transfers`, `UPDATE transfers SET debtor = 8, creditor = 7`} {
		s.refused("FN003", s.fenced(41, "account:7", day+again))
		s.exec(both + write + "; " + again + "; ROLLBACK")
	}
	s.refused("FN003", both+`UPDATE transfers SET creditor = 9`)

	// One of them missing is no resource named NULL, whatever the session has set.
	for _, setting := range []string{"on", "off"} {
		s.refused("FN003", both+enter(43, "NULL")+"; "+write+"; SET LOCAL array_nulls = "+setting+"; INSERT INTO transfers VALUES (1, 7, 8, 'infinity')")
	}
}

func TestTheGuardJudgesTheRowAsItIsStored(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE FUNCTION to_blue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.room := 'blue'; RETURN NEW; END $$`)
	s.exec(`CREATE TRIGGER zzz BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION to_blue()`)

	s.refused("FN003", s.fenced(41, "room:red", `INSERT INTO seats VALUES (9, 'red')`))
}

func TestProtectRefusesWhatIsNoTable(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE VIEW v AS SELECT 'a'::text AS a; CREATE SEQUENCE q; CREATE TABLE odd (a text NOT NULL, last_fencing_token text)`)

	for _, target := range []string{"v", "q", "pg_class_oid_index", "fencedb.fences"} {
		s.refused("42809", `SELECT fencedb.protect('`+target+`', 'x')`)
	}
	s.refused("42804", `SELECT fencedb.protect('odd', '{a}')`)
	s.refused("42P01", `SELECT fencedb.protect('nowhere', 'x')`)
	s.refused("22023", `SELECT fencedb.protect(NULL, 'x')`)
}

// to_regclass and to_regrole give NULL where there is nothing of that name.
func TestNullIsRefusedWhereATableOrARoleIsNeeded(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	for _, call := range []string{
		`protect(NULL, 'x')`, `protect('seats', NULL::text[])`, `unprotect(NULL)`, `enforce(NULL, observing => true)`, `enforce(NULL)`,
		`take_over_as(NULL, current_role::regrole, now() + interval '1 hour')`, `take_over_as('seats', NULL, now() + interval '1 hour')`,
		`allow(NULL)`, `allow(NULL, operator => true)`,
	} {
		_, err := s.conn.Exec(t.Context(), `SELECT fencedb.`+call)
		require.ErrorContains(t, err, "needs a ", call)
		require.NotContains(t, err.Error(), "<NULL>", call)
	}
}

func TestProtectingTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	triggers := `SELECT json_agg(t ORDER BY t.oid) FROM pg_trigger t`
	before := s.one(triggers)

	s.exec(`SELECT fencedb.protect('seats', resource => 'room:{room}')`)

	require.Equal(t, before, s.one(triggers))
	err := s.refused("42710", `SELECT fencedb.protect('seats', resource => 'seat:{id}')`)
	require.Contains(t, err.Hint, "unprotect")
}

// Postgres may read the comments of all functions of the schema before it joins them with the
// triggers, as it does where many tables are protected.
func TestProtectedTablesAreListedByAnyPlan(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`SET jit = off`) // what is off counts as so expensive that each plan would be compiled
	for _, method := range []string{"nestloop", "hashjoin", "mergejoin"} {
		s.exec(`SET enable_` + method + ` = off`)
		require.Equal(t, "seats room:{room}", s.one(`SELECT concat(p.table_name::regclass::text, ' ', p.resource[1]) FROM fencedb.protected_tables p WHERE p.resource IS NOT NULL`), method)
		s.exec(`SELECT fencedb.protect('seats', 'room:{room}', history => true)`)
	}
}

func TestUnprotectSaysWhatHoldsItsColumn(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE VIEW everything AS SELECT * FROM seats`)

	refused := s.refused("2BP01", `SELECT fencedb.unprotect('seats')`)

	require.Contains(t, refused.Hint, "keep_column", "not DROP ... CASCADE, which nobody has called")
	require.Contains(t, refused.Detail, "everything")
	s.exec(`SELECT fencedb.unprotect('seats', keep_column => true)`)
}

func TestUnprotectUndoesProtect(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL); CREATE TABLE own (id int NOT NULL, last_fencing_token bigint)`)
	catalog := `SELECT json_build_array(
		(SELECT json_agg(attname ORDER BY attnum) FROM pg_attribute WHERE attrelid IN ('seats'::regclass, 'own'::regclass) AND NOT attisdropped),
		(SELECT count(*) FROM pg_trigger), (SELECT count(*) FROM pg_proc))`
	before := s.one(catalog)

	s.exec(`SELECT fencedb.protect('seats', 'seat:{id}'); SELECT fencedb.protect('own', 'own:{id}')`)
	require.Equal(t, "own,seats", s.one(`SELECT string_agg(table_name::text, ',' ORDER BY table_name::text) FROM fencedb.protected_tables WHERE enabled`))
	s.exec(`SELECT fencedb.unprotect('seats'); SELECT fencedb.unprotect('own'); SELECT fencedb.unprotect('own')`)

	require.Equal(t, before, s.one(catalog))

	s.exec(`SELECT fencedb.protect('seats', 'seat:{id}'); SELECT fencedb.unprotect('seats', keep_column => true)`)
	require.Equal(t, "bigint", s.one(`SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'seats'::regclass AND attname = 'last_fencing_token'`))
}

// What an ORM does at each start, if its models change tables.
func TestATypeIsRepeatedBetweenUnprotectAndProtect(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	_, err := s.conn.Exec(t.Context(), `ALTER TABLE seats ALTER COLUMN room TYPE text`)
	require.ErrorContains(t, err, "cannot alter type of a column used in a trigger definition (SQLSTATE 0A000)")

	s.exec(`BEGIN`)
	s.exec(`SELECT fencedb.unprotect('seats', keep_column => true)`)
	s.exec(`ALTER TABLE seats ALTER COLUMN room TYPE text`)
	s.exec(`SELECT fencedb.protect('seats', resource => 'room:{room}')`)
	s.exec(`COMMIT`)

	_, err = s.conn.Exec(t.Context(), writes["UPDATE"])
	require.ErrorContains(t, err, "FN002")
}

// As the runbook says of FN002 in a migration.
func TestAMigrationFillsAProtectedTable(t *testing.T) {
	t.Parallel()
	s := newSeats(t)

	s.exec(`BEGIN`)
	s.exec(`SELECT fencedb.enforce('seats', observing => true)`)
	s.exec(writes["UPDATE"])
	s.exec(`SELECT fencedb.enforce('seats')`)
	s.exec(`COMMIT`)

	require.Equal(t, "zoe", s.one(`SELECT guest FROM seats WHERE id = 1`))
	_, err := s.conn.Exec(t.Context(), writes["UPDATE"])
	require.ErrorContains(t, err, "FN002")
}
