package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const notInPrerequisiteState, objectInUse = "55000", "55006"

const protectParts = `SELECT fencedb.protect('parts', 'room:{room}');`

// newParts is a session with a protected, partitioned table whose partition red has a row written
// with 42, and that is part of a tree two levels deep.
func newParts(t *testing.T) *session {
	s := newSession(t)
	s.exec(`CREATE TABLE parts (id int NOT NULL, room text NOT NULL, guest text) PARTITION BY LIST (room);
		CREATE TABLE red PARTITION OF parts FOR VALUES IN ('red');
		CREATE TABLE others PARTITION OF parts DEFAULT PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF others FOR VALUES FROM (0) TO (100);` + protectParts)
	s.exec(s.fenced(42, "room:red", `INSERT INTO parts VALUES (1, 'red', 'ann')`))
	return s
}

func (s *session) listed() string {
	s.Helper()
	return s.one(`SELECT string_agg(concat_ws(' ', table_name, CASE WHEN resource IS NULL THEN 'none' ELSE 'ledger' END, enabled::text), ', ' ORDER BY table_name::text) FROM fencedb.protected_tables`)
}

func TestADetachedPartitionRefusesEveryWrite(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`CREATE TABLE rooms (name text PRIMARY KEY); INSERT INTO rooms VALUES ('red'); ALTER TABLE parts ADD FOREIGN KEY (room) REFERENCES rooms ON DELETE CASCADE;
		CREATE TABLE log (x int); CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE red SET guest = 'zoe'; RETURN NULL; END $$;
		CREATE TRIGGER meddle AFTER INSERT ON log EXECUTE FUNCTION meddle()`)
	s.exec(`ALTER TABLE parts DETACH PARTITION red; ALTER TABLE parts DETACH PARTITION others`)

	for _, write := range []string{
		`INSERT INTO red VALUES (2, 'red', 'zoe')`, `UPDATE red SET guest = 'zoe'`, `DELETE FROM red`, `TRUNCATE red`, `COPY red FROM PROGRAM 'true'`,
		`MERGE INTO red USING (VALUES (1)) v(id) ON red.id = v.id WHEN MATCHED THEN DELETE`,
		`DELETE FROM rooms`, `INSERT INTO log VALUES (1)`, `INSERT INTO others VALUES (1, 'blue')`, `INSERT INTO low VALUES (1, 'blue')`, `TRUNCATE low`,
	} {
		for _, sql := range []string{write, s.fenced(99, "something else", write), s.fenced(43, "room:red", write)} {
			err := s.refused(notInPrerequisiteState, sql)
			require.Contains(t, err.Message, "detached")
			require.Contains(t, err.Hint, "fencedb.protect")
			require.Contains(t, err.Hint, "fencedb.unprotect")
		}
	}
	require.Equal(t, "low none false, others none false, parts ledger true, red none false", s.listed())

	// Nor does somebody with the TRIGGER privilege get past that.
	s.exec(`CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON red FOR EACH ROW EXECUTE FUNCTION f()`)
	s.refused(notInPrerequisiteState, s.fenced(43, "room:red", `INSERT INTO red VALUES (2, 'red', 'zoe')`))
	require.Contains(t, s.listed(), "red none false")
	s.exec(`SELECT fencedb.unprotect('red'); DROP TRIGGER IF EXISTS "~fencedb_row" ON red; INSERT INTO red VALUES (2, 'red', 'zoe')`)
}

// Rows that are written by a statement that no guard sees look at the clock as well, also those of
// the resource that was judged last. Such a statement names a partition that is younger than its
// guard, or a parent that is not protected.
func TestALeaseEndsWhereNoGuardSeesTheStatement(t *testing.T) {
	t.Parallel()
	const columns = `(id int NOT NULL, room text NOT NULL, n int, last_fencing_token bigint NOT NULL DEFAULT 0)`
	for name, c := range map[string]struct{ before, after, protected, written string }{
		"a partition that is younger": {`CREATE TABLE parts ` + columns + ` PARTITION BY LIST (room)`, `CREATE TABLE part PARTITION OF parts DEFAULT`, "parts", "part"},
		"a partitioned parent":        {`CREATE TABLE parts ` + columns + ` PARTITION BY LIST (room); CREATE TABLE part PARTITION OF parts DEFAULT`, ``, "part", "parts"},
		"a parent that is inherited":  {`CREATE TABLE parts ` + columns + `; CREATE TABLE part () INHERITS (parts)`, ``, "part", "parts"},
	} {
		for _, mode := range []string{"enforce", "observe"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				s := newSession(t)
				s.exec(c.before + `; SELECT fencedb.protect('` + c.protected + `', 'room:{room}', mode => '` + mode + `'); ` + c.after)
				s.exec(s.fenced(40, "room:blue", `INSERT INTO part VALUES (1, 'blue')`) + `; SET application_name = 'cron'`)
				update := `UPDATE ` + c.written + ` SET n = 1;`
				late := `BEGIN; SELECT fencedb.enter('room:blue', 41, gen_random_uuid(), 1000); ` + update + `
					SELECT set_config(name, '0', true) FROM pg_settings WHERE name LIKE '%\_timeout' AND category LIKE 'Client%'; SELECT pg_sleep(1.001); ` + update + ` COMMIT`
				if mode == "enforce" {
					s.refused("FN006", late)
				} else {
					s.exec(late)
					require.Equal(t, c.protected+" cron UPDATE FN006 room:blue", s.observed())
				}
			})
		}
	}
}

// What the catalog says now counts, not what it said when the transaction began.
func TestAPartitionIsDetachedWhileATransactionIsOpen(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(enter(41, "room:blue"))
	for i, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		for _, partition := range []string{"red", "others"} {
			writer := s.beside()
			into := map[string]string{"red": "red", "others": "low"}[partition]
			writer.exec(`BEGIN ISOLATION LEVEL ` + level + `; ` + enter(41, "room:blue") + `; SELECT FROM fencedb.protected_tables`)
			if i == 1 { // what it has cached of the other does not matter
				writer.exec(`SELECT count(*) FROM low`)
				writer.exec(`COMMIT; BEGIN ISOLATION LEVEL ` + level + `; ` + enter(41, "room:blue"))
			}
			s.exec(`ALTER TABLE parts DETACH PARTITION ` + partition)
			for _, write := range []string{`INSERT INTO ` + into + ` VALUES (1, 'red')`, `UPDATE ` + into + ` SET guest = 'eve'`, `TRUNCATE ` + into} {
				writer.exec(`SAVEPOINT a`)
				_, err := writer.conn.Exec(t.Context(), write)
				require.Equal(t, notInPrerequisiteState, pgError(t, err).Code, write)
				writer.exec(`ROLLBACK TO a`)
			}
			writer.exec(`ROLLBACK`)
			s.exec(`ALTER TABLE parts ATTACH PARTITION ` + partition + map[string]string{"red": ` FOR VALUES IN ('red')`, "others": ` DEFAULT`}[partition])
			s.refused("FN003", s.fenced(41, "room:blue", `UPDATE red SET guest = 'eve'`))
		}
	}
}

// A guard remembers which table it is part of, and a name is not enough.
func TestADetachedPartitionIsNotPartOfWhatGetsTheName(t *testing.T) {
	t.Parallel()
	const insert = `INSERT INTO red VALUES (2, 'red', 'eve')`
	for _, renewed := range []string{
		`SELECT fencedb.unprotect('parts'); ` + protectParts,
		`SELECT fencedb.unprotect('parts', keep_column => true); ` + protectParts,
		`DROP TABLE parts; CREATE TABLE parts (id int NOT NULL, room text NOT NULL, guest text) PARTITION BY LIST (room); ` + protectParts,
		`ALTER TABLE parts RENAME TO former; CREATE TABLE parts (id int NOT NULL, room text NOT NULL, guest text) PARTITION BY LIST (room); ` + protectParts,
		`ALTER TABLE parts RENAME TO former`,
	} {
		s := newParts(t)
		s.exec(`ALTER TABLE parts DETACH PARTITION red; ` + renewed)
		s.refused(notInPrerequisiteState, insert)
		s.refused(notInPrerequisiteState, s.fenced(99, "room:blue", insert))
		s.exec(`SELECT fencedb.protect('red', 'red:{id}')`)
		s.refused("FN003", s.fenced(99, "room:red", insert))
		s.exec(s.fenced(99, "red:2", insert))
	}
}

// A part that is on its own gets a guard of its own. That of the whole stays as it is.
func TestAPartGetsAGuardOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, part, itsRoom, whole, room string }{
		{`ALTER TABLE parts DETACH PARTITION red`, "red", "red", "parts", "blue"}, {`ALTER TABLE parts DETACH PARTITION others`, "others", "blue", "parts", "red"},
		{`ALTER TABLE child NO INHERIT heap`, "child", "red", "heap", "blue"}, {`ALTER TABLE child NO INHERIT heap`, "heap", "red", "child", "blue"},
	} {
		for _, mode := range []string{"enforce", "observe"} {
			s := newParts(t)
			s.exec(`CREATE TABLE heap (id int NOT NULL, room text NOT NULL); CREATE TABLE child () INHERITS (heap); SELECT fencedb.protect('heap', 'room:{room}'); ` + c.before)
			before := s.guard(c.whole)
			if c.whole != "parts" { // these are protected already, with that template
				s.refused(notInPrerequisiteState, `SELECT fencedb.enforce('`+c.part+`', observing => true)`)
				s.refused("42710", `SELECT fencedb.protect('`+c.part+`', 'id:{id}')`)
				s.exec(`SELECT fencedb.protect('` + c.part + `', 'room:{room}'); SELECT fencedb.enforce('` + c.part + `', observing => '` + mode + `' = 'observe')`)
			} else {
				s.exec(`SELECT fencedb.protect('` + c.part + `', 'id:{id}', mode => '` + mode + `')`)
			}

			require.Equal(t, before, s.guard(c.whole))
			require.Equal(t, mode, s.one(`SELECT CASE WHEN observed THEN 'observe' ELSE 'enforce' END FROM fencedb.protected_tables WHERE table_name = $1::regclass`, c.part))
			other := s.beside()
			whole, part := `INSERT INTO `+c.whole+` (id, room) VALUES (7, '`+c.room+`')`, `INSERT INTO `+c.part+` (id, room) VALUES (7, '`+c.itsRoom+`')`
			other.refused("FN002", whole)
			other.refused("FN003", other.fenced(41, "room:green", whole))
			other.exec(other.fenced(43, "room:"+c.room, whole))
			if mode == "enforce" {
				other.refused("FN002", part)
				other.refused("FN003", other.fenced(41, "room:green", part))
			} else {
				other.exec(part)
			}
			other.exec(other.fenced(43, "room:"+c.itsRoom, enter(41, "id:7")+"; "+part))
			s.exec(`SELECT fencedb.unprotect('` + c.whole + `'), fencedb.unprotect('` + c.part + `')`)
			other.exec(whole + `; ` + part)
		}
	}
}

// A table that is protected by itself stays so below an unguarded parent, where no statement is
// judged.
func TestAGuardedTableIsAttachedToAnUnguardedOne(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE blue (id int NOT NULL, room text NOT NULL); SELECT fencedb.protect('blue', 'room:{room}');
		CREATE TABLE parts (id int NOT NULL, room text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY LIST (room); ALTER TABLE parts ATTACH PARTITION blue FOR VALUES IN ('blue')`)

	for _, table := range []string{"blue", "parts"} {
		s.refused("FN002", `INSERT INTO `+table+` VALUES (1, 'blue')`)
		s.refused("FN003", s.fenced(41, "room:red", `INSERT INTO `+table+` VALUES (1, 'blue')`))
		s.exec(s.fenced(41, "room:blue", `INSERT INTO `+table+` VALUES (1, 'blue')`))
		s.refused("FN002", `TRUNCATE `+table)
		s.refused("FN002", `DELETE FROM `+table)
	}
	s.refused("42710", `SELECT fencedb.protect('parts', 'room:{room}')`)
	s.exec(`SELECT fencedb.unprotect('blue', keep_column => true); SELECT fencedb.protect('parts', 'room:{room}')`)
	s.exec(s.fenced(41, "room:blue", `INSERT INTO parts VALUES (1, 'blue')`))
}

// Its guard does not go by the name.
func TestAPartitionedTableIsRenamed(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`ALTER TABLE parts RENAME TO pieces; CREATE SCHEMA other; ALTER TABLE pieces SET SCHEMA other; ALTER TABLE red RENAME TO scarlet; CREATE TABLE late PARTITION OF other.pieces FOR VALUES IN ('late')`)

	for _, table := range []string{"other.pieces", "scarlet"} {
		s.refused("FN002", `UPDATE `+table+` SET guest = 'eve'`)
		s.exec(s.fenced(43, "room:red", `UPDATE `+table+` SET guest = 'zoe' WHERE room = 'red'`))
	}
	s.exec(s.fenced(43, "room:blue", `INSERT INTO low VALUES (1, 'blue'); UPDATE others SET guest = 'bob'`) + `; ` + s.fenced(43, "room:late", `INSERT INTO late VALUES (1, 'late')`))
	s.exec(`SELECT fencedb.protect('other.pieces', 'room:{room}')`)
	s.refused("FN002", `TRUNCATE late`)
	s.refused("FN002", `TRUNCATE low`)
}

func TestADetachedPartitionCanBeProtectedAgain(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`ALTER TABLE parts DETACH PARTITION red; ALTER TABLE parts DETACH PARTITION others`)

	s.exec(`SELECT fencedb.protect('red', 'room:{room}'), fencedb.protect('others', 'room:{room}')`)

	require.Equal(t, "others ledger true, parts ledger true, red ledger true", s.listed())
	s.refused("FN002", `UPDATE red SET guest = 'zoe'`)
	s.refused("FN003", s.fenced(99, "something else", `UPDATE red SET guest = 'zoe'`))
	s.refused("FN001", s.fenced(41, "room:red", `UPDATE red SET guest = 'zoe'`))
	s.exec(s.fenced(43, "room:red", `UPDATE red SET guest = 'zoe'`))
	s.exec(s.fenced(43, "room:blue", `INSERT INTO low VALUES (1, 'blue')`))
	s.exec(`SELECT fencedb.unprotect('red'), fencedb.unprotect('others')`)
	require.Equal(t, "43", s.one(`SELECT last_fencing_token FROM red`), "the column was there before")
	s.exec(`UPDATE red SET guest = 'zoe'; TRUNCATE others; SELECT fencedb.unprotect('parts')`)
	require.Empty(t, s.listed())
	require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_proc WHERE prorettype = 'trigger'::regtype AND proname ~ '^guard_'`))
}

// A partition that is taken out and put back, as maintenance does, with and without a guard of its
// own in between.
func TestADetachedPartitionCanBeAttachedAgain(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]string{
		"as it is":            ``,
		"unprotected":         `SELECT fencedb.unprotect('red'); UPDATE red SET guest = 'by anybody';`,
		"protected by itself": `SELECT fencedb.protect('red', 'room:{room}'); BEGIN; SELECT fencedb.unprotect('red');`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newParts(t)
			s.exec(`ALTER TABLE parts DETACH PARTITION red;` + between + `ALTER TABLE parts ATTACH PARTITION red FOR VALUES IN ('red'); COMMIT;` + protectParts)

			require.Equal(t, "parts ledger true", s.listed())
			for _, table := range []string{"parts", "red"} {
				s.refused("FN002", `UPDATE `+table+` SET guest = 'zoe'`)
				s.refused("FN003", s.fenced(99, "something else", `UPDATE `+table+` SET guest = 'zoe'`))
				s.refused("FN001", s.fenced(41, "room:red", `UPDATE `+table+` SET guest = 'zoe'`))
				s.exec(s.fenced(43, "room:red", `UPDATE `+table+` SET guest = 'zoe'`))
				s.refused("FN002", `TRUNCATE `+table)
			}
			s.exec(`ALTER TABLE parts DETACH PARTITION red`)
			s.refused(notInPrerequisiteState, s.fenced(43, "room:red", `UPDATE red SET guest = 'zoe'`))
		})
	}
}

func TestATableCanBeAttachedToAProtectedOne(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`CREATE TABLE blue (id int NOT NULL, room text NOT NULL, guest text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO blue VALUES (7, 'blue', 'bob');
		ALTER TABLE parts ATTACH PARTITION blue FOR VALUES IN ('blue')`)

	s.refused("FN002", `UPDATE blue SET guest = 'zoe'`)
	s.exec(s.fenced(41, "room:blue", `UPDATE blue SET guest = 'zoe'`))
	s.exec(protectParts)
	s.refused("FN002", `TRUNCATE blue`)
}

func TestForeignTablesAreGuardedWithTheirParent(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER far FOREIGN DATA WRAPPER nowhere;
		CREATE TABLE heap (room varchar(9) NOT NULL); CREATE FOREIGN TABLE child () INHERITS (heap) SERVER far;
		CREATE TABLE parts (room varchar(9) NOT NULL) PARTITION BY LIST (room); CREATE FOREIGN TABLE part PARTITION OF parts FOR VALUES IN ('red') SERVER far;
		SELECT fencedb.protect('heap', 'room:{room}'), fencedb.protect('parts', 'room:{room}')`)

	require.Equal(t, "2", s.one(`SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('child'::regclass, 'part'::regclass) AND tgname = '~fencedb_row'`))
	s.exec(`SELECT fencedb.protect('heap', 'room:{room}'), fencedb.protect('parts', 'room:{room}')`)
	for _, table := range []string{"heap", "parts"} { // Postgres collects no rows of the foreign part
		s.refused("42809", `SELECT fencedb.protect('`+table+`', 'room:{room}', history => true)`)
	}
	s.exec(`SELECT fencedb.unprotect('parts'), fencedb.unprotect('heap')`)
	require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_trigger WHERE tgname ~ '^~fencedb'`))
	s.refused("42809", `SELECT fencedb.protect('part', 'room:{room}')`)
}

func TestAMemberIsGuardedWithItsParent(t *testing.T) {
	t.Parallel()
	s := newParts(t)
	s.exec(`CREATE TABLE heap (room text NOT NULL); CREATE TABLE child () INHERITS (heap); SELECT fencedb.protect('heap', '{room}'); CREATE TABLE later () INHERITS (heap)`)

	for _, member := range []string{"red", "others", "low", "child", "later"} {
		for _, call := range []string{`SELECT fencedb.unprotect('` + member + `')`, `SELECT fencedb.protect('` + member + `', '{room}')`} {
			err := s.refused(objectInUse, call)
			require.Contains(t, err.Message, "public."+member+" is guarded as a part of public.")
		}
	}
	s.exec(`SELECT fencedb.unprotect('parts'), fencedb.unprotect('heap')`)
	require.Empty(t, s.listed())
}

func TestAChildThatNoLongerInheritsStaysGuarded(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"heap", "child"}, {"child", "heap"}} {
		s := newSession(t)
		s.exec(`CREATE TABLE heap (room text NOT NULL); CREATE TABLE child (x int) INHERITS (heap); SELECT fencedb.protect('heap', 'room:{room}'); ALTER TABLE child NO INHERIT heap`)

		require.Equal(t, "child ledger true, heap ledger true", s.listed())
		for _, table := range []string{"child", "heap"} {
			s.refused("FN002", `INSERT INTO `+table+` VALUES ('red')`)
			s.refused("FN003", s.fenced(41, "room:blue", `INSERT INTO `+table+` VALUES ('red')`))
			s.exec(s.fenced(41, "room:red", `INSERT INTO `+table+` VALUES ('red')`))
		}
		s.exec(`SELECT fencedb.unprotect('` + order[0] + `')`)
		s.exec(`INSERT INTO ` + order[0] + ` VALUES ('red')`)
		s.refused("FN002", `INSERT INTO `+order[1]+` VALUES ('red')`)
		s.exec(`SELECT fencedb.unprotect('` + order[1] + `')`)
		require.Empty(t, s.listed())
		require.Equal(t, "0", s.one(`SELECT (SELECT count(*) FROM pg_trigger WHERE tgname ~ '^~fencedb') + (SELECT count(*) FROM pg_proc WHERE prorettype = 'trigger'::regtype AND proname ~ '^guard_')`))
		require.Equal(t, "room room x", s.one(`SELECT string_agg(attname, ' ' ORDER BY attname) FROM pg_attribute WHERE attrelid IN ('heap'::regclass, 'child'::regclass) AND attnum > 0 AND NOT attisdropped`))
	}
}

func TestUnprotectCleansWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, gone := range [][]string{{"row"}, {"statement"}, {"truncate"}, {"row", "statement"}, {"row", "truncate"}, {"statement", "truncate"}} {
		s := newSeats(t)
		for _, trigger := range gone {
			s.exec(`DROP TRIGGER "~fencedb_` + trigger + `" ON seats`)
		}
		require.NotEmpty(t, s.listed(), gone)
		s.exec(`SELECT fencedb.unprotect('seats')`)
		require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_trigger WHERE tgname ~ '^~fencedb'`), gone)
		s.exec(`TRUNCATE seats`)
	}
	s := newSeats(t)
	s.exec(`ALTER TABLE seats DROP last_fencing_token; SELECT fencedb.unprotect('seats'); TRUNCATE seats`)
}

// The names of guards are cut to what Postgres allows, which counts bytes.
func TestLongNamesAndNamesUsedBeforeDoNotCollide(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for _, name := range []string{"座席の予約を管理するための長い名前の表一", "ééééééééééééééééééééééééééééééé", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"} {
		for i := range 3 {
			s.exec(`CREATE TABLE "` + name + `" (id int NOT NULL); SELECT fencedb.protect('"` + name + `"', 'seat:{id}')`)
			s.refused("FN002", `INSERT INTO "`+name+`" VALUES (1)`)
			s.exec(s.fenced(41, "seat:1", `INSERT INTO "`+name+`" VALUES (1)`))
			s.exec(`ALTER TABLE "` + name + `" RENAME TO "renamed` + string(rune('a'+i)) + s.one(`SELECT count(*) FROM fencedb.protected_tables`) + `"`)
		}
	}
	require.Equal(t, "9", s.one(`SELECT count(DISTINCT guard) FROM fencedb.protected_tables`))
}
