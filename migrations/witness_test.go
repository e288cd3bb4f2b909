package migrations_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// What a transaction has entered, and what it has not.

const ownLease, foreignLease = `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid`, `'6ba7b811-9dad-11d1-80b4-00c04fd430c8'::uuid`

var levels = []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// Every way to enter with token 41, in every state of the fence, at every level, behind a savepoint
// or not: the answer, what may be written then, and what is left after ROLLBACK TO.
func TestEveryWayToEnterInEveryStateOfTheFence(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(enter(1, "other")) // the epoch is drawn, without which nobody enters again
	holder, newcomer := s.beside(), s.beside()
	const nothing = "nothing"
	ways := map[string]string{
		"enter":             `SELECT xid::text FROM fencedb.enter('room:red', 41, ` + ownLease + `, 60000, 0)`,
		"enter_all":         `SELECT xid::text FROM fencedb.enter_all('{room:red}', '{41}', ARRAY[` + ownLease + `], 60000, 0)`,
		"enter_all, of two": `SELECT xid::text FROM fencedb.enter_all('{room:red,room:blue,room:red}', '{41,41,41}', ARRAY[` + ownLease + `, ` + ownLease + `, ` + ownLease + `], 60000, 0)`,
		"reenter":           `SELECT coalesce(max(r), 'nothing') FROM fencedb.reenter('room:red', 41, ` + ownLease + `, 60000) r`,
	}
	for name, c := range map[string]struct {
		stored, held          string // as in INSERT, and how the holder has entered
		committed, repeatable string // the SQLSTATE by the level, empty for success
	}{
		"fresh":                           {"", "", "", "40001"},
		"same token":                      {"41, " + ownLease, "", "", ""},
		"newer token":                     {"40, " + foreignLease, "", "", "40001"},
		"stale":                           {"42, " + foreignLease, "", "FN001", "FN001"},
		"same token, other lease":         {"41, " + foreignLease, "", "FN001", "FN001"},
		"held by the holder before":       {"40, " + foreignLease, "40, " + foreignLease, "55P03", "40001"},
		"shared by this lease":            {"41, " + ownLease, "41, " + ownLease, "", ""},
		"being taken over":                {"41, " + ownLease, "42, " + foreignLease, "55P03", "55P03"},
		"being made by another":           {"", "40, " + foreignLease, "55P03", "40001"},
		"being entered first, this lease": {"40, " + foreignLease, "41, " + ownLease, "55P03", "40001"},
	} {
		for way, enters := range ways {
			for _, level := range levels {
				for _, savepoint := range []bool{false, true} {
					where := fmt.Sprint(name, "; ", way, " at ", level, ", savepoint: ", savepoint)
					want := c.repeatable
					if level == "READ COMMITTED" {
						want = c.committed
					}
					if way == "reenter" && (name != "same token" && name != "shared by this lease") {
						want = nothing
					}
					var got string
					for range 20 { // reenter is for what comes right after BEGIN; the machine may stand still
						s.exec(`DELETE FROM fencedb.fences; INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES ('room:blue', 41, ` + ownLease + `)`)
						if c.stored != "" {
							s.exec(`INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES ('room:red', ` + c.stored + `)`)
						}
						if c.held != "" {
							holder.exec(`BEGIN; SELECT fencedb.enter('room:red', ` + c.held + `)`)
						}
						begin := `BEGIN ISOLATION LEVEL ` + level
						if savepoint {
							begin += `; SAVEPOINT a`
						}
						got = s.try(begin + `; ` + enters)
						if got == want || way != "reenter" {
							break
						}
						s.exec(`ROLLBACK`)
						holder.exec(`ROLLBACK`)
					}
					require.Equal(t, want, got, where)
					if want == nothing {
						require.Equal(t, "FN002", s.try(`UPDATE seats SET guest = 'bob' WHERE room = 'red'`), where)
					}
					if want == "" {
						require.Equal(t, "true", s.one(`fencedb.left_ms() > 0 AND current_setting('statement_timeout') <> '0'`), where)
						s.exec(`UPDATE seats SET guest = 'bob' WHERE room = 'red'`)
						require.Equal(t, "41", s.one(`SELECT string_agg(DISTINCT last_fencing_token::text, ',') FROM seats WHERE room = 'red'`), where)
						require.Equal(t, "55P03", newcomer.try(`SELECT fencedb.enter('room:red', 99, gen_random_uuid(), 60000, 0)`), "%s: it is held", where)
					}
					if savepoint {
						s.exec(`ROLLBACK TO a`)
						require.Equal(t, "", s.one(`fencedb.left_ms()`), where)
						require.Equal(t, "0 0", s.one(`current_setting('statement_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout')`), where)
						require.Equal(t, "FN002", s.try(`UPDATE seats SET guest = 'eve' WHERE room = 'red'`), where)
						if c.held == "" {
							require.Empty(t, newcomer.try(`SELECT fencedb.enter('room:red', 99, gen_random_uuid(), 60000, 0)`), "%s: it is free again", where)
						}
					}
					s.exec(`ROLLBACK`)
					holder.exec(`ROLLBACK`)
				}
			}
		}
	}
}

// try runs sql and returns the SQLSTATE, the last value if that is "nothing", or nothing.
func (s *session) try(sql string) string {
	s.Helper()
	results, err := s.conn.PgConn().Exec(s.Context(), sql).ReadAll()
	if code := sqlstate(err); code != "" {
		return code
	}
	require.NoError(s, err, sql)
	if last := results[len(results)-1]; len(last.Rows) > 0 && string(last.Rows[0][0]) == "nothing" {
		return "nothing"
	}
	return ""
}

func TestASavepointTakesBackWhatWasEnteredBehindIt(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	red, blue := enter(41, "room:red"), enter(41, "room:blue")
	const writeRed, writeBlue = `UPDATE seats SET guest = 'bob' WHERE id = 1`, `UPDATE seats SET guest = 'bob' WHERE id = 3`
	for name, c := range map[string]struct{ sql, code string }{
		"released":                           {`SAVEPOINT a; ` + red + `; RELEASE a; ` + writeRed, ""},
		"rolled back":                        {`SAVEPOINT a; ` + red + `; ` + writeRed + `; ROLLBACK TO a; ` + writeRed, "FN002"},
		"rolled back and entered again":      {`SAVEPOINT a; ` + red + `; ROLLBACK TO a; ` + red + `; ` + writeRed, ""},
		"entered before":                     {red + `; SAVEPOINT a; ` + writeRed + `; ROLLBACK TO a; ` + writeRed, ""},
		"entered before and again behind":    {red + `; SAVEPOINT a; ` + red + `; ROLLBACK TO a; ` + writeRed, ""},
		"the second rolled back":             {red + `; SAVEPOINT a; ` + blue + `; ` + writeBlue + `; ROLLBACK TO a; ` + writeRed, ""},
		"the second rolled back and written": {red + `; SAVEPOINT a; ` + blue + `; ` + writeBlue + `; ROLLBACK TO a; ` + writeRed + `; ` + writeBlue, "FN003"},
		"nested":                             {`SAVEPOINT a; SAVEPOINT b; ` + red + `; RELEASE b; SAVEPOINT c; ` + writeRed + `; ROLLBACK TO a; ` + writeRed, "FN002"},
		"an exception block":                 {`DO $$ BEGIN PERFORM fencedb.enter('room:red', 41, '` + leaseOf(41).String() + `'); RAISE 'x'; EXCEPTION WHEN raise_exception THEN END $$; ` + writeRed, "FN002"},
		"an exception block that passes":     {`DO $$ BEGIN PERFORM fencedb.enter('room:red', 41, '` + leaseOf(41).String() + `'); EXCEPTION WHEN raise_exception THEN END $$; ` + writeRed, ""},
		"another grant behind it":            {red + `; SAVEPOINT a; ` + enter(42, "room:red"), "22023"},
		"another grant after it":             {`SAVEPOINT a; ` + red + `; RELEASE a; ` + enter(42, "room:red"), "22023"},
		"another grant once it is back":      {`SAVEPOINT a; ` + red + `; ROLLBACK TO a; ` + enter(42, "room:red") + `; ` + writeRed, ""},
		"an older grant behind a newer one":  {enter(42, "room:red") + `; SAVEPOINT a; ` + red, "22023"},
	} {
		s.exec(`DELETE FROM fencedb.fences; ` + `BEGIN; ` + red + `; ` + blue + `; COMMIT; SET session_replication_role = replica; UPDATE seats SET last_fencing_token = 0; RESET session_replication_role`)
		require.Equal(t, c.code, s.try(`BEGIN; `+c.sql+`; COMMIT`), name)
		s.exec(`ROLLBACK`)
	}
}

// What a client says that sets a savepoint before each statement, by itself.
func TestClientsThatSetSavepointsWork(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	psql := exec.CommandContext(t.Context(), testenv.Psql(t), "--dbname="+s.conn.Config().ConnString(), "--no-psqlrc", "--quiet", "--set=ON_ERROR_ROLLBACK=on")
	psql.Stdin = strings.NewReader("BEGIN;\n" + enter(41, "room:red") + ";\nUPDATE seats SET guest = 'psql' WHERE id = 1;\nSELECT 1/0;\nUPDATE seats SET guest = 'psql' WHERE id = 2;\nUPDATE seats SET guest = 'psql' WHERE id = 3;\nCOMMIT;\n")
	said, err := psql.CombinedOutput()
	require.NoError(t, err, string(said))
	require.Contains(t, string(said), "division by zero")
	require.Contains(t, string(said), `resource "room:blue"`)
	require.Equal(t, "psql,psql,", s.one(`SELECT string_agg(coalesce(guest, ''), ',' ORDER BY id) FROM seats`))

	s.exec(`BEGIN`) // autosave=always of JDBC
	for _, statement := range []struct{ sql, code string }{
		{enter(42, "room:red"), ""}, {`UPDATE seats SET guest = 'jdbc' WHERE id = 1`, ""}, {`SELECT 1/0`, "22012"}, {enter(40, "room:blue"), "FN001"},
		{`UPDATE seats SET guest = 'jdbc' WHERE id = 3`, "FN003"}, {`UPDATE seats SET guest = 'jdbc' WHERE id = 2`, ""}, {enter(42, "room:blue"), ""}, {`UPDATE seats SET guest = 'jdbc' WHERE id = 3`, ""},
	} {
		if statement.sql == enter(40, "room:blue") {
			s.beside().exec(enter(41, "room:blue"))
		}
		s.exec(`SAVEPOINT PGJDBC_AUTOSAVE`)
		require.Equal(t, statement.code, s.try(statement.sql), statement.sql)
		if statement.code != "" {
			s.exec(`ROLLBACK TO PGJDBC_AUTOSAVE`)
		}
		s.exec(`RELEASE PGJDBC_AUTOSAVE`)
	}
	s.exec(`COMMIT`)
	require.Equal(t, "jdbc,jdbc,jdbc", s.one(`SELECT string_agg(guest, ',' ORDER BY id) FROM seats`))
}

// AcquireAll gives one lease to several resources. One that was not entered has not been waited
// for: 11 were sold of 10.
func TestOneLeaseOfSeveralResourcesOpensOnlyWhatWasEntered(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for _, first := range []string{enter(7, "sku:b"), `SELECT fencedb.enter_all('{sku:b,sku:c,sku:b}', '{7,7,7}', ARRAY[` + strings.Repeat(`'`+leaseOf(7).String()+`', `, 2) + `'` + leaseOf(7).String() + `']::uuid[])`} {
			s := newSession(t)
			other := s.beside()
			s.exec(`CREATE TABLE stock (sku text PRIMARY KEY, n int NOT NULL, sold int NOT NULL DEFAULT 0); INSERT INTO stock VALUES ('a', 10), ('b', 10), ('c', 10); SELECT fencedb.protect('stock', resource => 'sku:{sku}')`)
			s.exec(`BEGIN; ` + enter(7, "sku:a") + `; ` + enter(7, "sku:b") + `; ` + enter(7, "sku:c") + `; COMMIT`)
			const sell = `UPDATE stock SET n = n - 1, sold = sold + 1 WHERE sku = 'a'`

			other.exec(`BEGIN; ` + enter(7, "sku:a") + `; ` + sell)
			s.exec(`BEGIN ISOLATION LEVEL ` + level + `; ` + first + `; UPDATE stock SET n = n - 1 WHERE sku = 'b'`)
			require.Equal(t, "FN003", s.beside().try(`SET lock_timeout = '5s'; BEGIN ISOLATION LEVEL `+level+`; `+first+`; INSERT INTO stock VALUES ('a', 1)`))
			other.exec(`COMMIT`)
			want := map[bool]string{true: "FN003", false: "40001"}[level == "READ COMMITTED"] // the row has changed since the snapshot
			require.Equal(t, want, s.try(sell), level)
			s.exec(`ROLLBACK; BEGIN ISOLATION LEVEL ` + level + `; ` + first)
			require.Equal(t, "FN003", s.try(sell), level)
			s.exec(`ROLLBACK; BEGIN ISOLATION LEVEL ` + level + `; ` + first + `; UPDATE stock SET n = n - 1 WHERE sku = 'b'`)
			require.Equal(t, "FN003", s.try(`UPDATE stock SET sku = 'a2' WHERE sku = 'a'`), "nor away from it")
			s.exec(`ROLLBACK`)
			require.Equal(t, "9 1", s.one(`SELECT concat_ws(' ', n, sold) FROM stock WHERE sku = 'a'`))
		}
	}
}

// A lock on a fence is no entry, however it came about.
func TestALockIsNoEntry(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE leases (resource text REFERENCES fencedb.fences)`)
	s.exec(enter(41, "room:red") + `; ` + enter(41, "room:blue"))
	locks := []string{`INSERT INTO leases VALUES ('room:red')`}
	for _, strength := range []string{"UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"} {
		locks = append(locks, `SELECT FROM fencedb.fences WHERE resource = 'room:red' FOR `+strength, `SELECT FROM fencedb.fences_to_share WHERE resource = 'room:red' FOR `+strength)
	}
	for _, lock := range locks {
		for _, level := range levels {
			for code, begin := range map[string]string{"FN002": lock, "FN003": enter(41, "room:blue") + `; ` + lock} {
				for _, write := range writes {
					if strings.Contains(write, "seats_view") || strings.Contains(write, "reseat") {
						continue
					}
					require.Equal(t, code, s.try(`BEGIN ISOLATION LEVEL `+level+`; `+begin+`; `+write), "%s: %s", lock, write)
					s.exec(`ROLLBACK`)
				}
			}
		}
	}
}

// The owner of the schema may be a plain role, who sees no other sessions' activity.
func TestBlockersSayWhatTheOwnerCannotSee(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	admin := connect(t, url)
	owner := "owner_" + admin.one(`SELECT md5(current_database())`)
	admin.exec(`CREATE ROLE "` + owner + `"; GRANT CREATE ON DATABASE "` + admin.one(`current_database()`) + `" TO "` + owner + `"`)
	for _, script := range migrations.Scripts() {
		admin.exec(`BEGIN; SET LOCAL ROLE "` + owner + `"; ` + script.Up + `; COMMIT`)
	}
	holder := connect(t, url)
	holder.exec(enter(41, "a"))
	holder.exec(`BEGIN; ` + enter(41, "a"))

	for range 2 {
		if granted := admin.one(`pg_has_role($1, 'pg_read_all_stats', 'USAGE')`, owner) == "true"; granted {
			require.Equal(t, "idle in transaction", admin.one(`SELECT state FROM fencedb.blockers('{a}')`))
			require.Equal(t, "true", admin.one(`SELECT open_ms BETWEEN 0 AND 600000 FROM fencedb.blockers('{a}')`))
			break
		}
		want := "not visible: grant pg_read_all_stats to " + owner
		require.Equal(t, want, admin.one(`SELECT state FROM fencedb.blockers('{a}')`))
		require.Equal(t, "1", admin.one(`SELECT count(*) FROM fencedb.blockers('{a}') WHERE open_ms IS NULL`))
		var detail struct {
			Blockers []struct {
				PID    uint32
				State  string
				OpenMS *int64 `json:"open_ms"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(admin.refused("55P03", `SELECT fencedb.enter('a', 42, gen_random_uuid(), wait_ms => 0)`).Detail), &detail))
		require.Len(t, detail.Blockers, 1)
		require.Equal(t, holder.conn.PgConn().PID(), detail.Blockers[0].PID)
		require.Equal(t, want, detail.Blockers[0].State)
		require.Nil(t, detail.Blockers[0].OpenMS)
		admin.exec(`GRANT pg_read_all_stats TO "` + owner + `"`)
	}
	holder.exec(`COMMIT`)
	admin.exec(`DROP SCHEMA fencedb CASCADE; DROP OWNED BY "` + owner + `"; DROP ROLE "` + owner + `"`)
}
