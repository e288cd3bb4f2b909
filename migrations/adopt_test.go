package migrations_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// What it takes to protect a table that has long been in use.

// The column has a constant default, which Postgres keeps in the catalog: rows are not touched,
// however many they are.
func TestProtectingRewritesNothing(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL);
		INSERT INTO seats SELECT i, 'red' FROM generate_series(1, 1000) i`)
	const file, row = `pg_relation_filenode('seats')`, `SELECT ctid::text || xmin FROM seats WHERE id = 1000`
	before := []string{s.one(file), s.one(row)}

	s.exec(`SELECT fencedb.protect('seats', 'room:{room}')`)

	require.Equal(t, before, []string{s.one(file), s.one(row)})
	require.Equal(t, "1000", s.one(`SELECT count(*) FROM seats WHERE last_fencing_token = 0`))
}

func TestProtectGivesUpAtTheLockTimeoutAndCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(`CREATE TABLE seats (id int NOT NULL)`)
	reader := s.beside()
	reader.exec(`BEGIN; SELECT FROM seats`)
	const lockNotAvailable = "55P03"

	s.exec(`SET lock_timeout = '10ms'`)
	s.refused(lockNotAvailable, `SELECT fencedb.protect('seats', 'seat:{id}')`)
	s.exec(`INSERT INTO seats VALUES (1)`) // nothing was done
	reader.exec(`COMMIT`)
	s.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)

	s.refused("FN002", `INSERT INTO seats VALUES (2)`)
}

// It needs the right to create a schema in this database, and no more.
func TestAnOrdinaryRoleMigratesAndOwnsTheLedger(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	admin := connect(t, url)
	role := "migrator_" + admin.one(`current_database()`)
	admin.exec(`CREATE ROLE "` + role + `"; GRANT CREATE ON DATABASE "` + admin.one(`current_database()`) + `" TO "` + role + `"; CREATE SCHEMA shop AUTHORIZATION "` + role + `"`)
	defer admin.exec(`DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `"`)
	db := open(t, url+"&role="+role)

	require.NoError(t, migrations.Up(t.Context(), db))

	s, sharer := connect(t, url+"&role="+role), connect(t, url+"&role="+role)
	s.exec(`CREATE TABLE shop.seats (id int NOT NULL); SELECT fencedb.protect('shop.seats', 'seat:{id}')`)
	s.exec(enter(41, "seat:1"))
	sharer.exec("BEGIN; " + enter(41, "seat:1"))
	s.exec(s.fenced(41, "seat:1", `INSERT INTO shop.seats VALUES (1)`))
	s.refused("55P03", `SET lock_timeout = '1ms'; `+enter(42, "seat:1"))
	require.Equal(t, "1", s.one(`SELECT count(*) FROM fencedb.blockers('{seat:1}')`))
	sharer.exec("COMMIT")
	s.refused("FN001", enter(40, "seat:1"))
	s.exec(`SELECT fencedb.unprotect('shop.seats')`)
	require.NoError(t, migrations.Reset(t.Context(), db))
}

// The error names the right that is missing, and has the statement that grants it.
func TestMigratingNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	admin := connect(t, url)
	database := admin.one(`current_database()`)
	role := "m_" + database
	admin.exec(`CREATE ROLE "` + role + `"`)
	defer admin.exec(`DROP SCHEMA IF EXISTS fencedb CASCADE; DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `"`)
	db := open(t, url+"&role="+role)

	err := migrations.Up(t.Context(), db)

	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "42501", refused.Code)
	require.ErrorContains(t, err, role+" lacks CREATE on the database "+database)
	grant := regexp.MustCompile(`hint: Let .* run (.+); then migrate again\.$`).FindStringSubmatch(err.Error())
	require.NotEmpty(t, grant, err)
	admin.exec(grant[1])
	require.NoError(t, migrations.Up(t.Context(), db))
}

// As services do that set up their database when they start.
func TestSessionsMayProtectAndAllowAtOnce(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	other, role := s.beside(), s.withRole("writer")
	s.exec(`CREATE TABLE seats (id int PRIMARY KEY, room text NOT NULL)`)
	for _, call := range []string{`protect('seats', 'room:{room}')`, `allow('` + role + `')`, `allow('` + role + `', operator => true)`} {
		s.exec(`BEGIN; SELECT fencedb.` + call)
		result := make(chan error, 1)
		go func() {
			_, err := other.conn.PgConn().Exec(t.Context(), `SELECT fencedb.`+call).ReadAll()
			result <- err
		}()
		s.beside().awaitBlocked(other.conn.PgConn().PID())
		s.exec(`COMMIT`)

		require.NoError(t, <-result, call)
	}
	require.Equal(t, "1", s.one(`SELECT count(*) FROM pg_proc WHERE proname ~ '^guard_' AND prorettype = 'trigger'::regtype`))
}

// Postgres only warns of a GRANT that does nothing, and then nobody but the migrator could enter.
func TestASchemaOfAnotherOwnerIsRefusedUnlessEverybodyMayUseIt(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	admin := connect(t, url)
	role := "migrator_" + admin.one(`current_database()`)
	admin.exec(`CREATE ROLE "` + role + `"; CREATE SCHEMA fencedb; GRANT ALL ON SCHEMA fencedb TO "` + role + `"`)
	defer admin.exec(`DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `"`)
	db := open(t, url+"&role="+role)

	refused := new(pgconn.PgError)
	require.ErrorAs(t, migrations.Up(t.Context(), db), &refused)
	require.Contains(t, refused.Hint, "GRANT USAGE ON SCHEMA fencedb TO PUBLIC")
	admin.exec(`GRANT USAGE ON SCHEMA fencedb TO PUBLIC`)
	require.NoError(t, migrations.Up(t.Context(), db))

	for range 2 {
		require.NoError(t, migrations.Reset(t.Context(), db))
		require.Equal(t, "0", admin.one(`SELECT count(*) FROM pg_class WHERE relnamespace = 'fencedb'::regnamespace`), "the schema stays")
	}
	require.NoError(t, migrations.Up(t.Context(), db))
}

// Neither those that they take away from everybody, nor those that they give to somebody.
func TestTheDefaultPrivilegesOfWhoeverMigratesDoNotMatter(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	admin := connect(t, url)
	role := "migrator_" + admin.one(`current_database()`)
	app := "app_" + admin.one(`current_database()`)
	admin.exec(`CREATE ROLE "` + role + `"; CREATE ROLE "` + app + `"; GRANT CREATE ON DATABASE "` + admin.one(`current_database()`) + `" TO "` + role + `"`)
	defer admin.exec(`DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `", "` + app + `"`)
	acl := `SELECT string_agg(concat_ws(' ', name, privilege), ', ' ORDER BY name, privilege) FROM (
		SELECT c.relname, c.relacl, CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char" FROM pg_class c WHERE c.relnamespace = 'fencedb'::regnamespace AND c.relkind <> 'i'
		UNION ALL SELECT n.nspname, n.nspacl, 'n' FROM pg_namespace n WHERE n.nspname = 'fencedb'
		UNION ALL SELECT p.oid::regprocedure::text, p.proacl, 'f' FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace) o(name, acl, kind),
		LATERAL (SELECT grantee::regrole || ' ' || privilege_type FROM aclexplode(coalesce(acl, acldefault(kind, '` + role + `'::regrole)))) g(privilege)`
	acls := [2]string{}
	for i := range acls {
		require.NoError(t, migrations.Up(t.Context(), open(t, url+"&role="+role)))
		acls[i] = admin.one(acl)
		require.NoError(t, migrations.Reset(t.Context(), open(t, url+"&role="+role)))
		require.Equal(t, strconv.Itoa(4*i), admin.one(`SELECT count(*) FROM pg_default_acl`))
		admin.exec(`ALTER DEFAULT PRIVILEGES FOR ROLE "` + role + `" REVOKE ALL ON FUNCTIONS FROM PUBLIC; ALTER DEFAULT PRIVILEGES FOR ROLE "` + role + `" GRANT ALL ON FUNCTIONS TO "` + app + `";
			ALTER DEFAULT PRIVILEGES FOR ROLE "` + role + `" GRANT ALL ON TABLES TO "` + app + `"; ALTER DEFAULT PRIVILEGES FOR ROLE "` + role + `" GRANT ALL ON SEQUENCES TO "` + app + `";
			ALTER DEFAULT PRIVILEGES FOR ROLE "` + role + `" GRANT ALL ON SCHEMAS TO "` + app + `"`)
	}
	require.Equal(t, acls[0], acls[1])
}

// Between the statement that reads the fence and the one that locks it, a newer holder comes and
// commits. Row security, under which the owner is here and which waits when told to, stands for an
// unlucky moment.
func TestAHolderThatIsOvertakenBetweenTwoStatementsOfEnterIsStale(t *testing.T) {
	t.Parallel()
	url := testenv.PostgresURL(t)
	admin := connect(t, url)
	role := "migrator_" + admin.one(`current_database()`)
	admin.exec(`CREATE ROLE "` + role + `"; GRANT CREATE ON DATABASE "` + admin.one(`current_database()`) + `" TO "` + role + `"`)
	defer admin.exec(`DROP OWNED BY "` + role + `"; DROP ROLE "` + role + `"`)
	require.NoError(t, migrations.Up(t.Context(), open(t, url+"&role="+role)))
	older, newer := connect(t, url+"&role="+role), connect(t, url+"&role="+role)
	older.exec(enter(41, "a"))
	admin.exec(`CREATE SEQUENCE public.reads; GRANT ALL ON public.reads TO PUBLIC;
		CREATE FUNCTION public.visible() RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('test.waits', true) = nextval('public.reads')::text THEN
				PERFORM pg_advisory_xact_lock(7);
			END IF;
			RETURN true;
		END $$;
		CREATE POLICY wait ON fencedb.fences USING (public.visible());
		ALTER TABLE fencedb.fences ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`)

	for n, way := range []struct {
		waits int // at this read of the fence; the next one has locked it
		enter string
	}{
		{1, `SELECT fencedb.enter('a', %d, gen_random_uuid())`},
		{1, `SELECT fencedb.enter_all('{a}', '{%d}', ARRAY[gen_random_uuid()])`},
		{2, `SELECT fencedb.enter_all('{a}', '{%d}', ARRAY[gen_random_uuid()])`},
	} {
		token := 42 + 10*n
		admin.exec(`SELECT setval('public.reads', 1, false); SELECT pg_advisory_lock(7)`)
		done := make(chan error, 1)
		go func() {
			_, err := older.conn.PgConn().Exec(t.Context(), fmt.Sprintf(`SET test.waits = '%d'; `+way.enter, way.waits, token)).ReadAll()
			done <- err
		}()
		admin.awaitBlocked(older.conn.PgConn().PID())
		newer.exec("BEGIN; SET LOCAL lock_timeout = '1s'; " + enter(token+1, "a") + "; COMMIT")
		admin.exec(`SELECT pg_advisory_unlock(7)`)

		require.ErrorContains(t, <-done, "is stale")
		require.Equal(t, strconv.Itoa(token+1), admin.one(`fencedb.last_token('a')`))
	}
}

// Three roles: one migrated fencedb, one owns the application's tables, one is the application.
func TestTheOwnerOfATableProtectsItWithoutRightsToTheLedger(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	owner, app := "owner_"+s.one(`current_database()`), "app_"+s.one(`current_database()`)
	s.exec(`CREATE ROLE "` + owner + `"; CREATE ROLE "` + app + `"; CREATE SCHEMA shop AUTHORIZATION "` + owner + `"; SELECT fencedb.allow('"` + app + `"')`)
	admin := s.beside()
	defer func() {
		s.exec(`ROLLBACK; RESET ROLE`)
		admin.exec(`DROP OWNED BY "` + owner + `", "` + app + `"; DROP ROLE "` + owner + `", "` + app + `"`)
	}()
	const insufficientPrivilege = "42501"

	s.exec(`SET ROLE "` + owner + `"`)
	s.exec(`CREATE TABLE shop.seats (id int NOT NULL); SELECT fencedb.protect('shop.seats', 'seat:{id}')`)
	s.exec(`GRANT USAGE ON SCHEMA shop TO "` + app + `"; GRANT ALL ON shop.seats TO "` + app + `"`)
	s.refused(insufficientPrivilege, enter(41, "seat:1"))
	s.refused("FN002", `INSERT INTO shop.seats VALUES (1)`)

	s.exec(`RESET ROLE; SET ROLE "` + app + `"`)
	s.exec(s.fenced(41, "seat:1", `INSERT INTO shop.seats VALUES (1)`))
	for _, past := range []string{
		`ALTER TABLE shop.seats DISABLE TRIGGER ALL`,
		`SELECT fencedb.unprotect('shop.seats')`,
		`SET session_replication_role = replica`,
		`CREATE OR REPLACE FUNCTION fencedb.guard_seats() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`,
	} {
		s.refused(insufficientPrivilege, past)
	}
	s.refused("FN002", `INSERT INTO shop.seats VALUES (2)`)
}

// The limit of every trigger: who may switch triggers off can write past them, and the list tells.
func TestWhoMaySwitchTriggersOffGoesPastThem(t *testing.T) {
	t.Parallel()
	s := newSeats(t)

	s.exec(`SET session_replication_role = replica; INSERT INTO seats VALUES (8, 'red'); RESET session_replication_role`)
	s.exec(`ALTER TABLE seats DISABLE TRIGGER USER; INSERT INTO seats VALUES (9, 'red')`)

	require.Equal(t, "false", s.one(`SELECT enabled FROM fencedb.protected_tables`))
}

// Partitions of a protected table are guarded as they come, its children are not.
func TestAChildThatComesLaterIsGuardedByProtectingAgain(t *testing.T) {
	t.Parallel()
	s := newSeats(t)
	s.exec(`CREATE TABLE box_seats (sofa boolean) INHERITS (seats); INSERT INTO box_seats (id, room) VALUES (8, 'red')`)

	s.exec(`SELECT fencedb.protect('seats', resource => 'room:{room}')`)

	s.refused("FN002", `INSERT INTO box_seats (id, room) VALUES (9, 'red')`)
	s.exec(s.fenced(41, "room:red", `INSERT INTO box_seats (id, room) VALUES (9, 'red')`))
}
