package migrations_test

import (
	"encoding/json"
	"fmt"

	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestEnterRefusesAnOlderToken(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(42, "table:12"))

	err := s.refused("FN001", enter(41, "table:12"))

	var detail map[string]any
	require.NoError(t, json.Unmarshal([]byte(err.Detail), &detail))
	require.Equal(t, map[string]any{"resource": "table:12", "token": 41.0, "stored": 42.0}, detail)
	require.NotEmpty(t, err.Hint)
	require.Equal(t, "42", s.one(`fencedb.last_token('table:12')`))
}

func TestEnterRefusesTheSameTokenUnderAnotherLease(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(42, "table:12"))

	s.refused("FN001", `SELECT fencedb.enter('table:12', 42, gen_random_uuid())`)

	s.exec(enter(42, "table:12"))
	require.Equal(t, "42", s.one(`fencedb.last_token('table:12')`))
}

// A lease id can be used again, so the token counts although the id is the same.
func TestEnterComparesTheTokenUnderTheSameLease(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	lease := uuid.New()
	same := func(token int) string { return fmt.Sprintf("SELECT fencedb.enter('table:12', %d, '%s')", token, lease) }
	s.exec(same(42))

	s.refused("FN001", same(41))
	require.Equal(t, "42", s.one(`fencedb.last_token('table:12')`))

	s.exec(same(43))
	require.Equal(t, "43", s.one(`fencedb.last_token('table:12')`))
	s.refused("FN001", same(42))
}

// The stale writer must not queue behind the live holder, nor hold anything that the holder needs.
func TestEnterRefusesAStaleTokenWithoutWaiting(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(42, "table:12"))
	holder := s.beside()
	holder.exec("BEGIN; " + enter(42, "table:12"))

	s.exec(`SET lock_timeout = '1ms'`)
	s.refused("FN001", enter(41, "table:12"))

	holder.exec("COMMIT")
}

func TestARolledBackTransactionRaisesNoFence(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	s.exec("BEGIN; " + enter(42, "table:12") + "; ROLLBACK")

	require.Empty(t, s.one(`fencedb.last_token('table:12')`))
}

func TestEnterRefusesGrantsThatNobodyIssued(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	for name, call := range map[string]string{
		"resource of no bytes":       `('', 1, gen_random_uuid())`,
		"resource of 513 bytes":      `(repeat('x', 513), 1, gen_random_uuid())`,
		"no resource":                `(NULL::text, 1, gen_random_uuid())`,
		"token zero":                 `('a', 0, gen_random_uuid())`,
		"negative token":             `('a', -1, gen_random_uuid())`,
		"no token":                   `('a', NULL, gen_random_uuid())`,
		"no lease":                   `('a', 1, NULL)`,
		"no grants":                  `_all('{}'::text[], '{}', '{}')`,
		"NULL for grants":            `_all(NULL::text[], NULL, NULL)`,
		"fewer tokens":               `_all('{a,b}'::text[], '{1}', ARRAY[gen_random_uuid(), gen_random_uuid()])`,
		"more tokens":                `_all('{a}'::text[], '{1,2}', ARRAY[gen_random_uuid()])`,
		"fewer leases":               `_all('{a,b}'::text[], '{1,2}', ARRAY[gen_random_uuid()])`,
		"more leases":                `_all('{a}'::text[], '{1}', ARRAY[gen_random_uuid(), gen_random_uuid()])`,
		"two tokens for a resource":  `_all('{a,a}'::text[], '{1,2}', ARRAY[gen_random_uuid(), gen_random_uuid()])`,
		"an invalid one among valid": `_all('{a,b}'::text[], '{1,0}', ARRAY[gen_random_uuid(), gen_random_uuid()])`,
	} {
		err := s.refused("22023", "SELECT fencedb.enter"+call)
		require.Contains(t, err.Message, "fencedb.enter", name)
		if strings.HasPrefix(name, "fewer") || strings.HasPrefix(name, "more") {
			require.Contains(t, err.Message, "needs as many tokens and lease ids as resources", name)
		}
	}
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.fences`))
	s.exec(`SELECT fencedb.enter(repeat('x', 512), 9007199254740991, gen_random_uuid())`)

	s.exec(enter(1, "a"))
	s.refused("22023", `SELECT fencedb.enter('a', 2, NULL)`)
}

// At first, and in the common case; and whoever holds the fence: it is over, not busy.
func TestALeaseThatIsOverDoesNotEnter(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	other := s.beside()
	for range 2 {
		for _, remaining := range []string{"0", "-1"} {
			s.refused("FN004", fmt.Sprintf(`SELECT fencedb.enter('a', 41, '%v', %s)`, leases, remaining))
		}
		s.exec(fmt.Sprintf(`SELECT fencedb.enter('a', 41, '%v')`, leases))
	}
	other.exec("BEGIN; " + enter(42, "a"))
	s.refused("FN004", `SELECT fencedb.enter('a', 43, gen_random_uuid(), 0)`)
	other.exec("COMMIT")
}

// A token by mistake would shut out everybody who comes after it, for good.
func TestEnterRefusesTokensThatNoLeaseCanFollow(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const invalid = "22023"

	for range 2 { // for a new fence, and for one that is there
		for _, token := range []string{"9007199254740992", "9223372036854775807"} {
			s.refused(invalid, `SELECT fencedb.enter('table:12', `+token+`, gen_random_uuid())`)
			s.refused(invalid, `SELECT fencedb.enter_all('{zxid:1,table:12}', '{1,`+token+`}', ARRAY[gen_random_uuid(), gen_random_uuid()])`)
		}
		s.exec(enter(1, "table:12"))
	}
	s.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid')`)
	require.Equal(t, "zxid true", s.one(`SELECT concat(resource_type, ' ', (declared_by = session_user)::text) FROM fencedb.foreign_issuers`))
	for _, wrong := range []string{``, `zxid:1`} {
		s.refused("23514", `INSERT INTO fencedb.foreign_issuers VALUES ('`+wrong+`')`)
	}

	s.exec(`SELECT fencedb.enter('zxid:1', 9223372036854775807, gen_random_uuid())`)
	s.refused(invalid, `SELECT fencedb.enter('zxid2:1', 9223372036854775807, gen_random_uuid())`)
	require.Equal(t, "2", s.one(`SELECT count(*) FROM fencedb.fences`))
}

// As clients say it that have no word for "for ever". Settings of Postgres end at 2^31 - 1 ms.
func TestEnterTakesTheLongestTimes(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	const longest = `'` + "6ba7b810-9dad-11d1-80b4-00c04fd430c8" + `', 9223372036854775807`
	for token, way := range []string{
		`enter('room:red', 1, ` + longest + `)`,
		`enter('room:red', 1, ` + longest + `)`,
		`enter('room:red', 2, ` + longest + `)`,
		`enter_all('{room:red}', '{3}', ARRAY['6ba7b810-9dad-11d1-80b4-00c04fd430c8']::uuid[], 9223372036854775807)`,
	} {
		s.exec(`BEGIN; SELECT fencedb.` + way + `; UPDATE seats SET guest = 'ann' WHERE id = 1; COMMIT`)
		require.Equal(t, fmt.Sprint(max(token, 1)), s.one(`fencedb.last_token('room:red')`))
	}

	holder := s.beside()
	holder.exec("BEGIN; " + enter(3, "room:blue"))
	entered := make(chan error, 1)
	go func() {
		_, err := s.conn.PgConn().Exec(t.Context(), `SELECT fencedb.enter('room:blue', 4, gen_random_uuid(), wait_ms => 9223372036854775807)`).ReadAll()
		entered <- err
	}()
	holder.awaitBlocked(s.conn.PgConn().PID())
	holder.exec(`COMMIT`)
	require.NoError(t, <-entered)
}

// Ids wrap round after four billion; a stale writer that tries again and again must not use them
// up.
func TestARefusalTakesNoTransactionID(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(42, "table:12"))
	for code, call := range map[string]string{
		"FN001": `fencedb.enter('table:12', 41, gen_random_uuid())`,
		"FN004": `fencedb.enter('table:12', 43, gen_random_uuid(), 0)`,
		"22023": `fencedb.enter('table:12', 0, gen_random_uuid())`,
	} {
		s.exec(`DO $$ BEGIN
			BEGIN
				PERFORM ` + call + `;
			EXCEPTION WHEN SQLSTATE '` + code + `' THEN
			END;
			ASSERT pg_current_xact_id_if_assigned() IS NULL, '` + code + `';
		END $$`)
	}
}

// Drivers that do not tell the server the types of parameters leave it to find the one function of
// that name.
func TestFunctionsOfTheContractHaveOneFormEach(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	require.Empty(t, s.one(`SELECT string_agg(proname, ', ') FROM (
		SELECT proname FROM pg_proc WHERE pronamespace = 'fencedb'::regnamespace AND proname <> 'protect' GROUP BY proname HAVING count(*) > 1) several`))
	s.exec(`PREPARE one AS SELECT fencedb.enter($1, $2, $3, $4); EXECUTE one('a', 1, '6ba7b810-9dad-11d1-80b4-00c04fd430c8', NULL)`)
	s.exec(`PREPARE several AS SELECT fencedb.enter_all($1, $2, $3); EXECUTE several('{a}', '{1}', '{6ba7b810-9dad-11d1-80b4-00c04fd430c8}')`)
}

// A column of the caller's may have a collation of its own, and one by which two names are the
// same.
func TestTheCollationOfANameDoesNotMatter(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE COLLATION like_any_case (provider = icu, deterministic = false, locale = 'und-u-ks-level2');
		CREATE TABLE names (name text COLLATE like_any_case, exact text COLLATE "POSIX");
		INSERT INTO names VALUES ('a', 'x:a'), ('A', 'x:A')`)
	const lease = `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid`

	for _, column := range []string{"name", "exact"} {
		s.exec(`BEGIN; SELECT fencedb.enter(` + column + `, 1, ` + lease + `) FROM names; COMMIT`)
		s.exec(`BEGIN; SELECT fencedb.enter(` + column + `, 2, ` + lease + `, wait_ms => 0) FROM names; COMMIT`)
		s.exec(`SELECT fencedb.enter_all(array_agg(` + column + `), '{3,3}', ARRAY[` + lease + `, ` + lease + `]) FROM names`)
		s.refused("FN001", `SELECT fencedb.enter(`+column+`, 2, `+lease+`) FROM names WHERE name COLLATE "C" = 'A'`)
		require.Equal(t, "{3,3}", s.one(`SELECT array_agg(fencedb.last_token(`+column+`)) FROM names`))
		require.Equal(t, "0", s.one(`SELECT count(*) FROM names, fencedb.blockers(ARRAY[`+column+`])`))
		require.Equal(t, "0", s.one(`SELECT fencedb.prune('fences', '1 day', 'ann', 'test', clock_timestamp(), array_agg(`+column+`)) FROM names`))
		s.exec(`SELECT fencedb.reset_fence(` + column + `, 1, 'ann', 'test') FROM names`)
		require.Equal(t, "{1,1}", s.one(`SELECT array_agg(fencedb.last_token(`+column+`)) FROM names`))
		s.refused("22023", `SELECT fencedb.enter(`+column+`, 9007199254740992, `+lease+`) FROM names`)

		s.exec(`INSERT INTO fencedb.once (key) SELECT ` + column + ` FROM names`)
		require.Equal(t, "2", s.one(`SELECT count(*) FROM names, fencedb.once WHERE key = `+column+` COLLATE "C"`))
	}
}

func TestOneTransactionEntersAResourceUnderOneGrant(t *testing.T) {
	t.Parallel()
	s := newSession(t)

	s.exec("BEGIN; " + enter(41, "a") + "; " + enter(41, "a") + "; " + enter(7, "b") + "; COMMIT")
	s.refused("22023", "BEGIN; "+enter(41, "a")+"; "+enter(42, "a"))

	require.Equal(t, "41", s.one(`fencedb.last_token('a')`))
	require.Equal(t, "7", s.one(`fencedb.last_token('b')`))
}

func TestEnteringSeveralIsAllOrNone(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(42, "b"))

	s.refused("FN001", `SELECT fencedb.enter_all('{a,b,c}'::text[], '{1,41,3}', ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()])`)

	require.Equal(t, "b", s.one(`SELECT string_agg(resource, ',') FROM fencedb.fences`))

	const lease = `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid`
	s.refused("22023", `SELECT fencedb.enter_all('{d,e,d}'::text[], '{1,2,3}', ARRAY[`+lease+`, `+lease+`, `+lease+`])`)
	s.exec(`SELECT fencedb.enter_all('{d,e,d}'::text[], '{1,2,1}', ARRAY[` + lease + `, ` + lease + `, ` + lease + `])`)
}

// To enter several resources is to enter each of them, in byte order: for every state in which each
// of three can be, the answer, the ledger, and what others can lock meanwhile are the same.
func TestEnteringSeveralIsEnteringEach(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	holder, judge := s.beside(), s.beside()
	const own, foreign = `'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid`, `'6ba7b811-9dad-11d1-80b4-00c04fd430c8'::uuid`
	type state struct{ name, stored, lock string }
	states := []state{
		{"new", "", ""},
		{"older", "40, " + foreign, ""},
		{"entered before", "41, " + own, ""},
		{"of another lease", "41, " + foreign, ""},
		{"newer", "42, " + foreign, ""},
		{"older, and held", "40, " + foreign, "FOR SHARE"},
		{"entered before, and shared", "41, " + own, "FOR SHARE"},
		{"older, and being raised", "40, " + foreign, "FOR NO KEY UPDATE"},
	}
	resources := []string{"B", "a", "c"}
	// play enters in a transaction and returns the answer, and what is locked then and how.
	play := func(level string, is []state, entering ...string) string {
		s.exec(`TRUNCATE fencedb.fences`)
		holder.exec(`BEGIN`)
		defer holder.exec(`ROLLBACK`)
		for i, state := range is {
			if state.stored != "" {
				s.exec(`INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES ('` + resources[i] + `', ` + state.stored + `)`)
			}
			if state.lock != "" {
				holder.exec(`SELECT FROM fencedb.fences WHERE resource = '` + resources[i] + `' ` + state.lock)
			}
		}
		s.exec(`BEGIN ISOLATION LEVEL ` + level)
		defer s.exec(`ROLLBACK`)
		for _, sql := range entering {
			if _, err := s.conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				pgErr := new(pgconn.PgError)
				require.ErrorAs(t, err, &pgErr)
				return pgErr.Code + " " + pgErr.Message
			}
		}
		const left = `SELECT coalesce(string_agg(resource, ',' ORDER BY resource), '-') FROM (SELECT resource FROM fencedb.fences `
		return s.one(`SELECT string_agg(concat_ws(' ', resource, last_fencing_token, lease_id), ', ' ORDER BY resource) FROM fencedb.fences`) +
			"; entered: " + s.one(`SELECT string_agg(resource || fencedb.token_of(resource), ',' ORDER BY resource) FROM fencedb.fences WHERE fencedb.token_of(resource) IS NOT NULL`) +
			"; free to raise: " + judge.one(left+`FOR NO KEY UPDATE SKIP LOCKED) f`) + "; to share: " + judge.one(left+`FOR SHARE SKIP LOCKED) f`)
	}
	step := 1
	if testenv.Small() {
		step = 5 // odd, so that each of the three is in every state
	}
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ"} {
		for n := 0; n < len(states)*len(states)*len(states); n += step {
			is := []state{states[n%len(states)], states[n/len(states)%len(states)], states[n/len(states)/len(states)]}
			var each []string
			for _, resource := range resources {
				each = append(each, `SELECT fencedb.enter('`+resource+`', 41, `+own+`, wait_ms => 0)`)
			}
			several := `SELECT fencedb.enter_all('{c,B,a}'::text[], '{41,41,41}', ARRAY[` + own + `, ` + own + `, ` + own + `], wait_ms => 0)`
			require.Equal(t, play(level, is, each...), play(level, is, several), "%s: %v", level, is)
		}
	}
}

// allOf enters fences in one call: those of which i, from 1 to most, fulfils the condition.
func allOf(token, most int, condition string) string {
	return fmt.Sprintf(`SELECT fencedb.enter_all(array_agg('r' || i ORDER BY random()), array_agg(%d), array_agg('%v'::uuid)) FROM generate_series(1, %d) i WHERE %s`,
		token, leaseOf(token), most, condition)
}

// Known fences, older ones, those that other transactions of the lease share and those that are new
// stand between each other, so that they are taken in many rounds.
func TestHundredsOfFencesAreEnteredInAnyMixture(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(allOf(41, 300, `i % 4 = 1`))
	s.exec(allOf(42, 300, `i % 4 > 1`))
	sharer := s.beside()
	sharer.exec(`BEGIN; ` + allOf(42, 300, `i % 4 = 2`))

	s.exec(`BEGIN; ` + allOf(42, 300, `true`))
	require.Equal(t, "300", s.one(`SELECT count(*) FROM fencedb.fences WHERE last_fencing_token = 42 AND fencedb.token_of(resource) = 42`))
	require.Equal(t, "0", sharer.one(`SELECT count(*) FROM (SELECT FROM fencedb.fences FOR NO KEY UPDATE SKIP LOCKED) f`), "all are held")
	s.exec(`COMMIT`)
}

// Whoever waits for a fence that another transaction is making holds none behind it.
func TestFencesBehindOneThatIsBeingMadeAreNotTaken(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	maker, other := s.beside(), s.beside()
	maker.exec(`BEGIN; ` + enter(41, "r2"))
	entered := make(chan error, 1)
	go func() {
		_, err := s.conn.PgConn().Exec(t.Context(), allOf(42, 3, `true`)).ReadAll()
		entered <- err
	}()
	maker.awaitBlocked(s.conn.PgConn().PID())

	other.exec(`SET lock_timeout = '1ms'; BEGIN; ` + enter(41, "r3") + `; ROLLBACK`)
	maker.exec(`COMMIT`)
	require.NoError(t, <-entered)
	require.Equal(t, "3", s.one(`SELECT count(*) FROM fencedb.fences WHERE last_fencing_token = 42`))
}

// A stale token is refused at once, and who waits learns for whom, also behind a fence that is new.
func TestAFenceThatIsAdvancedIsJudgedBehindOneThatIsNew(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(41, "r2"))
	holder := s.beside()
	holder.exec(`BEGIN; ` + enter(42, "r2"))

	s.exec(`SET lock_timeout = '1ms'`)
	s.refused("FN001", allOf(40, 2, `true`))
	require.Contains(t, s.refused("55P03", allOf(43, 2, `true`)).Detail, fmt.Sprint(holder.conn.PgConn().PID()))
	holder.exec(`COMMIT`)
}

// begin begins a transaction with a statement that enters, and returns its answer.
func (s *session) begin(enters string) (answer string) {
	s.Helper()
	results, err := s.conn.PgConn().Exec(s.Context(), `BEGIN; `+enters).ReadAll()
	require.NoError(s, err, enters)
	return string(results[1].Rows[0][0])
}

// reenter is enter in the form that is part of the statement which calls it.
func reenter(token int, resource, remaining string) string {
	return strings.TrimSuffix(strings.Replace(enter(token, resource), "fencedb.enter", "coalesce(max(r), 'nothing') FROM fencedb.reenter", 1), ")") + ", " + remaining + ") r"
}

func TestReenterIsEnterWhereNobodyStandsInTheWay(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	const nothing, said = "nothing", `coalesce(current_setting('fencedb.entered', true), '')`
	s.exec(enter(41, "a") + "; " + enter(41, "z") + "; SELECT fencedb.reset_fence('z', 0, 'ann@host', 'by mistake')")
	s.exec(`UPDATE fencedb.fences SET lease_id = '` + uuid.NewSHA1(leases, []byte{0, 0}).String() + `' WHERE resource = 'z'`)
	s.refused("22023", enter(0, "z"))

	for why, reenters := range map[string]string{
		"a newer token":                reenter(42, "a", "5000"),
		"an older token":               reenter(40, "a", "5000"),
		"another lease":                strings.Replace(reenter(40, "a", "5000"), "40", "41", 1),
		"a resource without a fence":   reenter(41, "b", "5000"),
		"a lease that is over":         reenter(41, "a", "0"),
		"no token":                     reenter(0, "z", "5000"),
		"a lease that has ended since": `pg_sleep(0.021); SELECT ` + strings.TrimPrefix(reenter(41, "a", "20"), "SELECT "),
		"one that has entered":         strings.TrimPrefix(enter(41, "a"), "SELECT ") + `; ` + reenter(41, "a", "5000"),
	} {
		s.exec("BEGIN")
		first, second, both := strings.Cut(strings.TrimPrefix(reenters, "SELECT "), "; ")
		if both {
			s.exec("SELECT " + first)
			first = second
		}
		require.Equal(t, nothing, s.one(`SELECT `+strings.TrimPrefix(first, "SELECT ")), why)
		s.exec("ROLLBACK")
	}

	newcomer := s.beside()
	newcomer.exec("BEGIN; " + enter(42, "a"))
	s.exec("BEGIN")
	require.Equal(t, nothing, s.one(reenter(41, "a", "5000")), "it waits for nobody")
	require.Empty(t, s.one(said), "and says nothing of a fence that it could not lock")
	s.exec("ROLLBACK")
	newcomer.exec("ROLLBACK")

	require.Regexp(t, `(?s)^\d+ .* \d+$`, s.begin(reenter(41, "a", "5000")), "the transaction id first, the epoch last")
	require.Equal(t, "true", s.one(said+` ~ concat('^', pg_current_xact_id(), ' [0-9]{13} [0-9]{13} ', E'\x01', pg_current_xact_id(), E'ra\x01t41\x01$')`))
	require.Regexp(t, left5s, s.one(`current_setting('statement_timeout')`))
	require.Regexp(t, left5s, s.one(`current_setting('idle_in_transaction_session_timeout')`))
	newcomer.refused("55P03", strings.Replace(enter(42, "a"), "')", "', 60000, 20)", 1)) // the fence is held
	s.exec("COMMIT")
	newcomer.exec(enter(42, "a"))

	s.refused("0A000", strings.Replace(enter(42, "a"), "enter", "reenter", 1)) // outside of FROM
}

// left5s is a limit of five seconds, some of which may be over: the server's clock judges.
const left5s = `^(5s|4\d\d\dms)$`

func TestEnterBoundsTheTransactionAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`SET statement_timeout = '1s'; SET idle_in_transaction_session_timeout = '1h'`) // one tighter than the lease, one not

	s.exec("BEGIN; SELECT fencedb.enter('a', 1, gen_random_uuid(), 5000)")
	require.Equal(t, "1s", s.one(`current_setting('statement_timeout')`), "tighter than the lease: stays")
	require.Regexp(t, left5s, s.one(`current_setting('idle_in_transaction_session_timeout')`), "lowered")
	if s.conn.PgConn().ParameterStatus("server_version") >= "17" {
		require.Regexp(t, left5s, s.one(`current_setting('transaction_timeout')`))
	}
	s.exec("COMMIT")

	require.Equal(t, "1s", s.one(`current_setting('statement_timeout')`))
	require.Equal(t, "1h", s.one(`current_setting('idle_in_transaction_session_timeout')`))

	s.exec("RESET ALL; " + enter(1, "b"))
	role := s.withRole("writer") // who enters as part of its own statement
	limits := []string{"statement_timeout", "idle_in_transaction_session_timeout"}
	if s.conn.PgConn().ParameterStatus("server_version") >= "17" {
		limits = append(limits, "transaction_timeout")
	}
	for _, limit := range limits {
		for _, way := range []string{
			strings.TrimSuffix(enter(1, "b"), ")") + ", 5000)", reenter(1, "b", "5000"),
			"SELECT fencedb.enter_all('{c,d}', '{1,1}', ARRAY[gen_random_uuid(), gen_random_uuid()], 5000)",
			strings.TrimSuffix(enter(1, "b"), ")") + ", 5000, NULL, false, NULL)",
		} {
			for own, bound := range map[string]string{"0": left5s, "1h": left5s, "4s": `^4s$`} {
				s.exec("RESET ROLE; RESET ALL; DELETE FROM fencedb.fences WHERE resource IN ('c', 'd'); SET ROLE " + role + "; SET " + limit + " = '" + own + "'")
				s.begin(way)
				require.Regexp(t, bound, s.one(`current_setting('`+limit+`')`), "%s was %s: %s", limit, own, way)
				s.exec("COMMIT")
				require.Equal(t, own, s.one(`current_setting('`+limit+`')`))
			}
		}
	}

	for _, way := range []string{ // sent as a whole
		strings.TrimSuffix(enter(1, "b"), ")") + ", 5000, NULL, true, false)", strings.TrimSuffix(reenter(1, "b", "5000"), ") r") + ", false) r",
	} {
		s.exec("RESET ALL")
		s.begin(way)
		require.Regexp(t, left5s, s.one(`current_setting('statement_timeout')`), way)
		require.Equal(t, "0", s.one(`current_setting('idle_in_transaction_session_timeout')`), way)
		s.exec("COMMIT")
	}

	s.exec("RESET ROLE; RESET ALL; BEGIN; SELECT fencedb.enter('new', 1, gen_random_uuid(), wait_ms => 5000)")
	require.Equal(t, "0", s.one(`current_setting('lock_timeout')`), "the bound of the wait is not one of the transaction")
	s.exec("COMMIT")

	s.refused("FN004", "SELECT fencedb.enter('a', 2, gen_random_uuid(), 0)")
	s.refused("FN004", "SELECT fencedb.enter('a', 2, gen_random_uuid(), -7)")
	require.Equal(t, "1", s.one(`fencedb.last_token('a')`))
}

// Whoever waited for the fence has that much less time behind it.
func TestTheTimeSpentWaitingIsPartOfTheBound(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	holder := s.beside()
	holder.exec("BEGIN; " + enter(41, "a"))
	released := make(chan error, 1)
	go func() {
		_, err := holder.conn.PgConn().Exec(t.Context(), `DO $$ BEGIN
				WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))) LOOP
					PERFORM pg_sleep(0.001), pg_stat_clear_snapshot();
				END LOOP;
				PERFORM pg_sleep(0.1);
			END $$; COMMIT`).ReadAll()
		released <- err
	}()

	s.exec("BEGIN; SELECT fencedb.enter('a', 42, gen_random_uuid(), 5000)")

	require.NoError(t, <-released)
	for _, limit := range []string{"statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"} {
		require.Equal(t, "true", s.one(`current_setting('`+limit+`')::interval <= interval '4.9 s'`), limit)
	}
}

func TestOnlyWhoIsAllowedEnters(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL); SELECT fencedb.protect('seats', resource => 'seat:{id}')`)
	role := "app_" + s.one(`current_database()`)
	s.exec(`CREATE ROLE "` + role + `"; GRANT ALL ON seats TO "` + role + `"`)
	owner := s.beside()
	defer func() { owner.exec(`DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `"`) }()
	const insufficientPrivilege = "42501"

	s.exec(`SET ROLE "` + role + `"`)
	s.refused(insufficientPrivilege, enter(41, "seat:1"))
	s.refused("FN002", `INSERT INTO seats VALUES (1)`)
	s.exec(`RESET ROLE; SELECT fencedb.allow('"` + role + `"'); SET ROLE "` + role + `"`)

	s.exec(s.fenced(41, "seat:1", `INSERT INTO seats VALUES (1)`))
	s.exec(`SELECT * FROM fencedb.goose_db_version`) // what Status asks, for a service's readiness
	for _, past := range []string{
		`SELECT * FROM fencedb.fences`,
		`UPDATE fencedb.fences SET last_fencing_token = 1`,
		`DELETE FROM fencedb.fences`,
		`SELECT fencedb.take('{seat:1}', '{42}', ARRAY[gen_random_uuid()], NULL)`,
	} {
		s.refused(insufficientPrivilege, past)
	}
}
