package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What someone found who read the SQL to break it: each opened a table before.

func TestACollationOfTheSessionEqualsNoResources(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE SCHEMA mine; CREATE COLLATION mine."C" (provider = icu, locale = 'und-u-ks-level1', deterministic = false); SET search_path = mine, pg_catalog`)
	s.exec(enter(41, "room:red"))
	s.refused("FN003", `BEGIN; `+enter(41, "room:RED")+`; INSERT INTO public.seats VALUES (9, 'red')`)
	s.refused("FN003", `BEGIN; `+enter(41, "room:red")+`; UPDATE public.seats SET room = 'RED' WHERE id = 1`)
}

// A refusal of a take-over shows no lease id.
func TestTheLeaseOfATakeOverIsNobodysToSay(t *testing.T) {
	t.Parallel()
	_, legacy, _ := newLegacy(t)
	refusal := legacy.refused("22023", `BEGIN; INSERT INTO seats VALUES (9, 'red'); INSERT INTO seats VALUES (10, repeat('x', 600))`)
	require.Empty(t, refusal.Detail, "which would show the row of the ledger, and behind a savepoint the transaction goes on")
	legacy.exec(`BEGIN; INSERT INTO seats VALUES (9, 'red'); UPDATE seats SET guest = 'leo' WHERE id = 9`)
	require.Equal(t, "1", legacy.one(`SELECT count(DISTINCT last_fencing_token) FROM seats WHERE id = 9`))
	legacy.exec(`COMMIT`)
}

// A guard that has lost its table is nobody's to take over, as long as a trigger runs it.
func TestAGuardWithoutItsTableIsNobodysToWrite(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	role := s.withRole("writer")
	s.exec(`CREATE TABLE seats (id int, room text NOT NULL) PARTITION BY LIST (id); CREATE TABLE old PARTITION OF seats FOR VALUES IN (1);
		SELECT fencedb.protect('seats', 'room:{room}'); ALTER TABLE seats DETACH PARTITION old; SELECT fencedb.unprotect('seats');
		GRANT CREATE ON SCHEMA public TO ` + role)
	s.refused("55000", `INSERT INTO old VALUES (1, 'red')`)
	other := s.beside()
	other.exec(`SET SESSION AUTHORIZATION ` + role)
	other.exec(`CREATE TABLE planted (id int NOT NULL);
		CREATE TRIGGER "~fencedb_row" BEFORE INSERT ON planted FOR EACH ROW EXECUTE FUNCTION fencedb.guard_seats();
		SELECT fencedb.order_guard('planted', '{"resource": ["x:{id}"], "observes": true}'), fencedb.write_guard('planted')`)
	s.refused("55000", `INSERT INTO old VALUES (1, 'red')`)
}

// A guard that is younger than a snapshot keeps its name.
func TestAnOldSnapshotWritesNoYoungerGuard(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	role := s.withRole("writer")
	s.exec(`CREATE TABLE seats (id int, room text NOT NULL); CREATE SCHEMA theirs AUTHORIZATION ` + role)
	other := s.beside()
	other.exec(`SET SESSION AUTHORIZATION ` + role)
	other.exec(`CREATE TABLE theirs.seats (id int NOT NULL)`)
	other.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)
	other.exec(`SELECT fencedb.order_guard('theirs.seats', '{"resource": ["x:{id}"], "observes": true}'), fencedb.write_guard('theirs.seats'); COMMIT`)
	s.refused("FN002", `INSERT INTO seats VALUES (1, 'red')`)
}

func TestSeveralResourcesAreNoneOfTheirText(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE one (r text NOT NULL); SELECT fencedb.protect('one', '{r}');
		CREATE TABLE two (sku int NOT NULL, wh int NOT NULL); SELECT fencedb.protect('two', ARRAY['sku:{sku}', 'wh:{wh}'])`)
	s.exec(enter(41, "{sku:1,wh:2}"))
	s.refused("FN003", `BEGIN; `+enter(41, "{sku:1,wh:2}")+`; INSERT INTO one VALUES ('{sku:1,wh:2}'); INSERT INTO two VALUES (1, 2)`)
}

func TestStatisticsShowNoLeaseIDs(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(enter(41, "room:red") + `; ANALYZE`)
	require.Equal(t, "0", s.one(`SELECT count(*) FROM pg_statistic s JOIN pg_attribute a ON a.attrelid = s.starelid AND a.attnum = s.staattnum
		WHERE a.attrelid IN ('fencedb.fences'::regclass, 'fencedb.audit'::regclass) AND a.attname IN ('lease_id', 'details')`))
}
