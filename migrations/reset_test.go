package migrations_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mistake is the highest token that enter takes: nobody can have a higher one.
const mistake = 1<<53 - 1

func reset(resource string, to int) string {
	return fmt.Sprintf(`SELECT fencedb.reset_fence('%s', %d, 'ann@host', 'entered by mistake')`, resource, to)
}

// mistaken is a session with a table in which everything of room red was written under token 41,
// and then under the mistake.
func mistaken(t *testing.T, table, protect string) *session {
	t.Helper()
	s := newSession(t)
	s.exec(table + `; INSERT INTO seats VALUES (1, 'red'), (2, 'red'), (3, 'blue')`)
	s.exec(protect)
	for _, token := range []int{41, mistake} {
		s.exec(s.fenced(token, "room:red", `UPDATE seats SET id = id WHERE room = 'red'`))
	}
	s.refused("FN001", enter(42, "room:red"))
	return s
}

func TestAFenceThatIsSetBackLetsTheNextHolderWrite(t *testing.T) {
	t.Parallel()
	const protect, plain = `SELECT fencedb.protect('seats', resource => 'room:{room}')`, `CREATE TABLE seats (id int, room text NOT NULL)`
	for name, c := range map[string]struct{ table, protect string }{
		"a table":           {plain, protect},
		"several resources": {plain, `SELECT fencedb.protect('seats', resource => ARRAY['room:{room}', 'room:red'])`},
		"partitions": {`CREATE TABLE seats (id int, room text NOT NULL) PARTITION BY LIST (room); CREATE TABLE red PARTITION OF seats FOR VALUES IN ('red');
			CREATE TABLE rest PARTITION OF seats DEFAULT`, protect},
		"without a stamp of its own": {`CREATE TABLE seats (id int, room text NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0)`, protect},
	} {
		for _, write := range []string{`UPDATE seats SET id = id + 10 WHERE room = 'red'`, `DELETE FROM seats WHERE room = 'red'`, `INSERT INTO seats VALUES (9, 'red')`} {
			s := mistaken(t, c.table, c.protect)
			s.exec(reset("room:red", 41))

			s.refused("FN001", enter(41, "room:red")) // had it before, but the token is nobody's now
			s.refused("FN001", `SELECT fencedb.enter('room:red', 41, (SELECT (details ->> 'former_lease_id')::uuid FROM fencedb.audit WHERE event = 'reset'))`)
			s.refused("FN001", enter(40, "room:red"))
			s.exec(s.fenced(50, "room:red", write))
			s.refused("FN001", s.fenced(45, "room:red", write))
			require.Equal(t, "50", s.one(`fencedb.last_token('room:red')`), "%s: %s", name, write)
			require.Equal(t, "", s.one(`SELECT string_agg(last_fencing_token::text, ',') FROM seats WHERE room = 'red' AND id > 3 AND last_fencing_token <> 50`))
			s.exec(s.fenced(51, "room:red", `UPDATE seats SET id = id WHERE room = 'red'`))
		}
	}
}

// Stamps count from the highest token that a fence was set back from.
func TestAResetRemembersWhichStampsDoNotCount(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL); INSERT INTO seats VALUES (1), (2); SELECT fencedb.protect('seats', resource => 'seat:{id}')`)
	const from = `SELECT reset_from FROM fencedb.fences WHERE resource = 'seat:1'`
	write := func(token int) string { return s.fenced(token, "seat:1", `UPDATE seats SET id = id WHERE id = 1`) }
	stamp := func(token int) {
		s.exec(fmt.Sprintf(`SET session_replication_role = replica; UPDATE seats SET last_fencing_token = %d WHERE id = 1; RESET session_replication_role`, token))
	}
	s.exec(write(50))
	require.Empty(t, s.one(from))
	stamp(51)
	s.refused("FN001", write(50))

	s.exec(reset("seat:1", 41))
	require.Equal(t, "50", s.one(from))
	s.refused("FN001", write(45))
	s.exec(enter(60, "seat:1") + "; " + reset("seat:1", 41))
	require.Equal(t, "60", s.one(from))
	s.exec(write(45))
	stamp(60)
	s.exec(write(45))
	stamp(61)
	s.refused("FN001", write(45))

	s.exec(reset("seat:1", 42))
	require.Equal(t, "60", s.one(from), "it never goes down")
}

func TestAResetIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(70, "seat:1"))
	login := s.withRole("operator")

	require.Empty(t, s.as(login, reset("seat:1", 41)))
	require.Empty(t, s.as(login, reset("seat:1", 0)))

	require.Equal(t, "seat:1 ann@host entered by mistake 70 41; seat:1 ann@host entered by mistake 41 0",
		s.one(`SELECT string_agg(concat_ws(' ', resource, operator, reason, details ->> 'former_token', details ->> 'token'), '; ' ORDER BY id) FROM fencedb.audit`))
	require.Equal(t, "true", s.one(`SELECT bool_and(role::text LIKE 'operator%' AND details ->> 'former_lease_id' IS NOT NULL AND details ->> 'lease_id' IS NOT NULL) FROM fencedb.audit`))
	require.Equal(t, s.one(`SELECT lease_id FROM fencedb.fences`), s.one(`SELECT details ->> 'lease_id' FROM fencedb.audit ORDER BY id DESC LIMIT 1`))
	s.exec(enter(1, "seat:1"))
	const invalidParameter = "22023"
	s.refused(invalidParameter, `SELECT fencedb.record('reset', 'seat:1', 'bob@host', 'made up')`)
}

func TestAResetOnlySetsBack(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(70, "seat:1"))
	const invalidParameter = "22023"
	for call, code := range map[string]string{
		`('seat:1', 70, 'ann@host', 'equal')`:         invalidParameter,
		`('seat:1', 71, 'ann@host', 'higher')`:        invalidParameter,
		`('seat:1', -1, 'ann@host', 'negative')`:      invalidParameter,
		`('seat:1', NULL, 'ann@host', 'none')`:        invalidParameter,
		`('seat:2', 41, 'ann@host', 'no such fence')`: invalidParameter,
		`(NULL, 41, 'ann@host', 'no resource')`:       invalidParameter,
		`('seat:1', 41, 'ann@host', NULL)`:            invalidParameter,
		`('seat:1', 41, 'ann@host', '')`:              invalidParameter,
		`('seat:1', 41, '', 'nobody')`:                invalidParameter,
	} {
		s.refused(code, `SELECT fencedb.reset_fence`+call)
	}
	require.Equal(t, insufficientPrivilege, s.as(s.withRole("writer"), reset("seat:1", 41)))

	require.Equal(t, "seat:1 70", s.one(`SELECT string_agg(resource || ' ' || last_fencing_token, ',') FROM fencedb.fences WHERE reset_from IS NULL`))
	require.Equal(t, "0", s.one(`SELECT count(*) FROM fencedb.audit`))
}

func TestAResetWaitsForOpenTransactionsAndNamesThem(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	holder := s.beside()
	s.exec(enter(70, "seat:1"))
	holder.exec("BEGIN; " + enter(70, "seat:1"))
	refused := s.refused("55P03", `SELECT fencedb.reset_fence('seat:1', 41, 'ann@host', 'x', wait_ms => 50)`)
	var detail struct {
		Resource string
		Blockers []struct{ PID uint32 }
	}
	require.NoError(t, json.Unmarshal([]byte(refused.Detail), &detail))
	require.Equal(t, "seat:1", detail.Resource)
	require.Len(t, detail.Blockers, 1)
	require.Equal(t, holder.conn.PgConn().PID(), detail.Blockers[0].PID)

	other, done := s.beside(), make(chan error, 1)
	go func() {
		_, err := other.conn.PgConn().Exec(t.Context(), `SELECT fencedb.reset_fence('seat:1', 41, 'ann@host', 'x', wait_ms => 60000)`).ReadAll()
		done <- err
	}()
	s.awaitBlocked(other.conn.PgConn().PID())
	holder.exec("COMMIT")
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "still waiting")
	}
	require.Equal(t, "41", s.one(`fencedb.last_token('seat:1')`))
	require.Equal(t, "0", s.one(`current_setting('lock_timeout')`))
}

// Tokens of another issuer may be as high as a bigint.
func TestTheHighestTokenOfAnotherIssuerIsSetBack(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE nodes (id int PRIMARY KEY); INSERT INTO nodes VALUES (1); SELECT fencedb.protect('nodes', resource => 'zxid:{id}'); INSERT INTO fencedb.foreign_issuers VALUES ('zxid')`)
	write := func(token int) string { return s.fenced(token, "zxid:1", `UPDATE nodes SET id = id`) }
	s.exec(write(math.MaxInt64))
	s.refused("FN001", write(math.MaxInt64-1))

	s.exec(reset("zxid:1", math.MaxInt64-3))

	s.exec(write(math.MaxInt64 - 2))
	s.refused("FN001", write(math.MaxInt64-3))
	s.exec(reset("zxid:1", 41))
	s.exec(write(42))
}

// What is left of a reset goes with the fence that it is about, and then the rows are what is left
// to judge by.
func TestAFenceThatWasSetBackIsNotForgotten(t *testing.T) {
	t.Parallel()
	s := mistaken(t, `CREATE TABLE seats (id int, room text NOT NULL)`, `SELECT fencedb.protect('seats', resource => 'room:{room}')`)
	s.exec(reset("room:red", 41))
	s.exec(`UPDATE fencedb.fences SET advanced_at = advanced_at - interval '31 days'`)
	require.Equal(t, "0", s.one(`SELECT fencedb.prune('fences', '30 days', 'ann@host', 'monthly', clock_timestamp(), '{room:red}')`))
	s.exec(s.fenced(42, "room:red", `UPDATE seats SET id = id WHERE id = 1`))

	s.exec(`DELETE FROM fencedb.fences`)

	s.refused("FN001", s.fenced(41, "room:red", `UPDATE seats SET id = id WHERE id = 1`))
	s.refused("FN001", s.fenced(42, "room:red", `UPDATE seats SET id = id WHERE id = 2`))
	s.exec(`SELECT fencedb.enter('room:red', (SELECT last_fencing_token FROM seats WHERE id = 2), gen_random_uuid()); ` + reset("room:red", 41))
	s.exec(s.fenced(42, "room:red", `UPDATE seats SET id = id WHERE id = 2`))
}
