package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// sound is a set-up that there is nothing to say about: its own Redis, which keeps its data, and
// nobody connected.
func sound(t *testing.T, redisArgs ...string) *world {
	t.Helper()
	return newWorld(t, append([]string{"--appendonly", "yes", "--maxmemory-policy", "noeviction"}, redisArgs...)...)
}

// disconnect waits until the server has seen that the application is gone: connected as a superuser
// it would be a finding.
func (w *world) disconnect() {
	w.Helper()
	w.pool.Reset()
	conn, err := pgx.Connect(w.Context(), w.pool.Config().ConnString()+"&application_name=fencedb")
	require.NoError(w, err)
	defer conn.Close(context.Background())
	require.Eventually(w, func() bool {
		var left int
		err := conn.QueryRow(w.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'fencedb'`).Scan(&left)
		return err == nil && left == 0
	}, time.Minute, 2*time.Millisecond)
}

func (w *world) diagnosed(code int) []string {
	w.Helper()
	w.disconnect()
	got := w.run("--json", "doctor")
	require.Equal(w, code, got.code, got.errOut)
	var d look.Diagnosis
	w.decode("doctor", &d, got.out)
	var codes []string
	for _, f := range d.Findings {
		codes = append(codes, f.Severity+" "+f.Code)
	}
	return codes
}

func TestDoctorIsSilentOnASoundSetUp(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`CREATE TABLE "Odd" ("Key" int PRIMARY KEY, "it's" text NOT NULL, "NEW.a" date);
		SELECT fencedb.protect('"Odd"', ARRAY['NEW.b:{Key}/{it''s}', 'OLD.{{a}}:{Key}']);
		CREATE TABLE days (id int, day date NOT NULL); SELECT fencedb.protect('days', 'OLD.c:{day}');
		ALTER TABLE days RENAME TO dates; ALTER TABLE dates RENAME id TO no;
		CREATE TABLE config (name text); SELECT fencedb.protect('config', 'config:global', history => true); SELECT fencedb.keep_history('1 day');
		CREATE TABLE rooms (id int NOT NULL); SELECT fencedb.protect('rooms', 'room:{id}'), fencedb.unprotect('rooms')`)
	require.Empty(t, w.diagnosed(app.ExitDone))
	require.Empty(t, w.ok("doctor"))
}

func TestDoctorNamesATableThatLostItsProtection(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`DROP TRIGGER "~fencedb_row" ON seats; DROP TRIGGER "~fencedb_statement" ON seats; DROP TRIGGER "~fencedb_truncate" ON seats`)
	require.Equal(t, []string{"error protection_lost", "error unprotected_table", "warning guard_left"}, w.diagnosed(app.ExitFailed))

	w.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)
	require.Empty(t, w.diagnosed(app.ExitDone), "protect drops guards that guard nothing")
}

func TestDoctorNamesATableWhoseHistoryHasAGap(t *testing.T) {
	t.Parallel()
	w := sound(t)
	const protect = `SELECT fencedb.protect('seats', 'seat:{id}', history => true)`
	for _, gap := range []string{`DROP TRIGGER "~fencedb_note_update" ON seats`, `ALTER TABLE seats DISABLE TRIGGER "~fencedb_note_insert"`, `ALTER TABLE seats ENABLE REPLICA TRIGGER "~fencedb_note_delete"`} {
		w.exec(protect)
		require.Empty(t, w.diagnosed(app.ExitDone))
		w.exec(gap)
		require.Equal(t, []string{"warning history_incomplete"}, w.diagnosed(app.ExitDone), gap)
	}
	w.exec(protect)
	require.Empty(t, w.diagnosed(app.ExitDone), "what it says to do ends it")
}

// Whoever has the privilege needs no other right to the table.
func TestDoctorNamesAGuardThatAnotherRoleHasReplaced(t *testing.T) {
	t.Parallel()
	w := sound(t)
	vandal, err := pgx.Connect(t.Context(), w.login("vandal", `GRANT TRIGGER ON seats TO %[2]s; GRANT CREATE ON SCHEMA public TO %[2]s`))
	require.NoError(t, err)
	_, err = vandal.Exec(t.Context(), `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE OR REPLACE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON seats FOR EACH ROW EXECUTE FUNCTION nothing()`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.NoError(t, vandal.Close(t.Context()))

	require.Equal(t, []string{"error guard_replaced"}, w.diagnosed(app.ExitFailed))
	w.exec(`DROP TRIGGER "~fencedb_row" ON seats; SELECT fencedb.protect('seats', 'seat:{id}')`)
	require.Empty(t, w.diagnosed(app.ExitDone))
}

// What it says to do ends it.
func TestDoctorNamesAGuardWhoseColumnWasRenamed(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`ALTER TABLE seats RENAME id TO no`)
	require.Equal(t, []string{"error guard_broken"}, w.diagnosed(app.ExitFailed))

	w.exec(`ALTER TABLE seats RENAME no TO id; BEGIN; SELECT fencedb.unprotect('seats', keep_column => true);
		ALTER TABLE seats RENAME id TO no; SELECT fencedb.protect('seats', 'seat:{no}'); COMMIT`)
	require.Empty(t, w.diagnosed(app.ExitDone))
}

func TestDoctorNamesAGuardThatLostItsComment(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`COMMENT ON FUNCTION fencedb.guard_seats IS NULL`)
	require.Equal(t, []string{"warning guard_unknown"}, w.diagnosed(app.ExitDone))

	w.exec(`BEGIN; SELECT fencedb.unprotect('seats'), fencedb.protect('seats', 'seat:{id}'); COMMIT`)
	require.Empty(t, w.diagnosed(app.ExitDone))
}

// as puts a flag that is given later before the one there is.
func (w *world) as(flag, value string) *world {
	w.flags = append(w.flags, flag, value)
	return w
}

// As after an older copy of Redis has come back: the holder renews, and Postgres refuses it.
func TestDoctorNamesHoldersThatAreStale(t *testing.T) {
	t.Parallel()
	for _, hashed := range []bool{false, true} {
		w := sound(t)
		if hashed {
			w.flags = append(w.flags, "--hash-resources")
		}
		i := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, HashResources: hashed, Holder: label})
		enter := func(resource string, token int64, id uuid.UUID) {
			w.exec(fmt.Sprintf(`SELECT fencedb.enter('%s', %d, '%v')`, resource, token, id))
		}
		hold := func(resource string) *lease.Lease {
			l, err := i.Acquire(t.Context(), resource, lease.NoWait())
			require.NoError(t, err)
			enter(resource, l.Token(), l.LeaseID())
			return l
		}
		former := hold("seat:1")
		require.NoError(t, former.Release(t.Context()))
		hold("seat:1")
		require.Empty(t, w.diagnosed(app.ExitDone))
		stale := hold("seat:2")
		enter("seat:2", stale.Token()+1, uuid.New())
		twice, err := i.Acquire(t.Context(), "seat:3", lease.NoWait())
		require.NoError(t, err)
		enter("seat:3", twice.Token(), uuid.New())

		require.Equal(t, []string{"warning stale_holder", "warning stale_holder"}, w.diagnosed(app.ExitDone))
		told := flowing(w.ok("doctor"))
		require.Contains(t, told, fmt.Sprintf("seat:2 is held by %s with token ", label))
		require.Contains(t, told, fmt.Sprintf("seat:3 is held by %s with token %d, but another lease has entered since, with token %[2]d", label, twice.Token()))
	}
}

func TestDoctorNamesABadRedisAndNothingElse(t *testing.T) {
	t.Parallel()
	primary := testenv.OwnRedis(t)
	host, port, err := net.SplitHostPort(primary.Addr())
	require.NoError(t, err)
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"eviction":          {[]string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"}, app.ExitFailed, "error redis_evicts"},
		"eviction some day": {[]string{"--maxmemory-policy", "allkeys-lru"}, app.ExitDone, "warning redis_may_evict"},
		"no persistence":    {[]string{"--appendonly", "no"}, app.ExitDone, "warning redis_unlogged"},
		"replica":           {[]string{"--replicaof", host, port}, app.ExitFailed, "error redis_replica"},
		"refuses writes":    {[]string{"--min-replicas-to-write", "1"}, app.ExitFailed, "error redis_unfit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sound(t, test.args...)
			require.Equal(t, []string{test.want}, w.diagnosed(test.code))
			w.screen = term.Screen{Width: 80, Color: true}
			require.Contains(t, w.run("doctor").out, "Do: ")
		})
	}
}

// silent is the address of a server that takes connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func TestDoctorNamesAServerThatHangsAndExaminesTheOther(t *testing.T) {
	t.Parallel()
	w := sound(t, "--appendonly", "no")
	w.exec(`CREATE TABLE rooms (last_fencing_token bigint)`)

	require.Equal(t, []string{"error redis_unreachable", "error unprotected_table"},
		w.as("--timeout", "20s").as("--redis", "redis://"+silent(t)).diagnosed(app.ExitFailed))
	require.Equal(t, []string{"error postgres_unreachable", "warning redis_unlogged"},
		w.as("--redis", "redis://"+w.own.Addr()).as("--postgres", "postgres://ann@"+silent(t)+"/none?sslmode=disable&connect_timeout=1").diagnosed(app.ExitFailed))
}

func TestDoctorSaysWhatRedisDoesNotTell(t *testing.T) {
	t.Parallel()
	w := sound(t)
	require.NoError(t, w.own.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err())
	require.Equal(t, []string{"warning redis_hidden"}, w.diagnosed(app.ExitDone))
}

func TestDoctorNamesABrokenKey(t *testing.T) {
	t.Parallel()
	w := sound(t)
	broken := "lease:v1:{" + w.namespace + "/table:11}:owner"
	require.NoError(t, w.own.Client().Set(t.Context(), broken, "by hand", 0).Err())
	require.Equal(t, []string{"error redis_corrupt"}, w.diagnosed(app.ExitFailed))
	require.Contains(t, strings.Join(strings.Fields(w.run("doctor").out), " "), broken)

	require.NoError(t, w.own.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-scan").Err())
	require.Equal(t, []string{"warning leases_hidden"}, w.diagnosed(app.ExitDone))
}

// A server that only waits is not away, and what was found before is told.
func TestDoctorTellsWhatItFoundWherePostgresLetsItWait(t *testing.T) {
	t.Parallel()
	w := sound(t, "--appendonly", "no")
	name := w.one(`quote_ident(current_database())`)
	lock, err := pgx.Connect(t.Context(), w.pool.Config().ConnString()+"&application_name=fencedb")
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Close(context.Background()) })
	_, err = lock.Exec(t.Context(), `BEGIN; LOCK TABLE fencedb.fences IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)

	found := []string{"error postgres_unfinished", "warning redis_unlogged"}
	require.Equal(t, found, w.as("--timeout", "10s").diagnosed(app.ExitFailed))
	w.exec(`ALTER DATABASE ` + name + ` SET lock_timeout = '10ms'`)
	require.Equal(t, found, w.as("--timeout", "1m").diagnosed(app.ExitFailed))
	require.Contains(t, w.run("doctor").out, "55P03")
}

func TestDoctorNamesABadDatabaseAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sql  string
		code int
		want string
	}{
		"trigger disabled":  {`ALTER TABLE seats DISABLE TRIGGER "~fencedb_row"`, app.ExitFailed, "error trigger_disabled"},
		"statement trigger": {`ALTER TABLE seats ENABLE REPLICA TRIGGER "~fencedb_truncate"`, app.ExitFailed, "error trigger_disabled"},
		"later trigger": {`CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 2; RETURN NEW; END';
			CREATE TRIGGER "über" BEFORE UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION moved()`, app.ExitFailed, "error late_trigger"},
		"not protected, beside a later trigger that changes nothing": {`CREATE TABLE rooms (last_fencing_token bigint);
			CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER "über" BEFORE DELETE ON seats FOR EACH ROW EXECUTE FUNCTION kept()`, app.ExitFailed, "error unprotected_table"},
		"inheritance child":         {`CREATE TABLE rooms () INHERITS (seats)`, app.ExitFailed, "error unguarded_child"},
		"truncate trigger dropped":  {`DROP TRIGGER "~fencedb_truncate" ON seats`, app.ExitFailed, "error guard_incomplete"},
		"statement trigger dropped": {`DROP TRIGGER "~fencedb_statement" ON seats`, app.ExitFailed, "error guard_incomplete"},
		"another trigger in its place": {`DROP TRIGGER "~fencedb_truncate" ON seats; CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE ON seats FOR EACH STATEMENT EXECUTE FUNCTION kept()`, app.ExitFailed, "error guard_replaced"},
		"the guard on a condition":  {`CREATE OR REPLACE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON seats FOR EACH ROW WHEN (false) EXECUTE FUNCTION fencedb.guard_seats()`, app.ExitFailed, "error guard_replaced"},
		"the guard of fewer writes": {`CREATE OR REPLACE TRIGGER "~fencedb_statement" BEFORE INSERT OR DELETE ON seats FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_seats()`, app.ExitFailed, "error guard_replaced"},
		"the guard of a column":     {`CREATE OR REPLACE TRIGGER "~fencedb_statement" BEFORE INSERT OR UPDATE OF guest OR DELETE ON seats FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_seats()`, app.ExitFailed, "error guard_replaced"},
		"Aurora":                    {`CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '16.2' $$`, app.ExitDone, "warning aurora"},
		"read only database":        {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = true', current_database()); END $$`, app.ExitFailed, "error postgres_read_only"},
		"later partition":           {latePartition, app.ExitDone, "warning unguarded_partition"},
		"detached late partition":   {lateAndDetached, app.ExitFailed, "error unprotected_table"},
		"detached partition":        {detached, app.ExitFailed, "error guard_lost"},
		"row trigger dropped":       {`DROP TRIGGER "~fencedb_row" ON seats`, app.ExitFailed, "error guard_lost"},
		"row trigger renamed":       {`ALTER TRIGGER "~fencedb_row" ON seats RENAME TO aaa`, app.ExitDone, "warning guard_renamed"},
		"observed partition left":   {observedPartition + `; ALTER TABLE parts DETACH PARTITION parts_1; DROP TABLE parts`, app.ExitFailed, "error guard_lost"},
		"column of tokens dropped":  {`ALTER TABLE seats DROP COLUMN last_fencing_token`, app.ExitFailed, "error guard_broken"},
		"anybody may reset":         {`GRANT EXECUTE ON FUNCTION fencedb.reset_fence TO PUBLIC`, app.ExitFailed, "error open_to_all"},
		"schema closed":             {`REVOKE USAGE ON SCHEMA fencedb FROM PUBLIC`, app.ExitFailed, "error schema_closed"},
		"take-over":                 {`SELECT fencedb.take_over_as('seats', current_user::regrole, now() + interval '1 hour')`, app.ExitDone, "warning take_over"},
		"take-over, ended":          {`SELECT fencedb.take_over_as('seats', current_user::regrole, now() + interval '1 hour'), fencedb.take_over_as('seats', NULL, NULL); DROP TABLE seats`, app.ExitDone, "warning guard_left"},
		"replica for a database":    {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$`, app.ExitFailed, "error replica_role"},
		"replica for a function":    {`CREATE FUNCTION f() RETURNS int LANGUAGE sql SET session_replication_role = replica AS 'SELECT 1'`, app.ExitFailed, "error replica_role"},
		"only observed":             {`SELECT fencedb.enforce('seats', observing => true)`, app.ExitDone, "warning observed_table"},
		"dropped table":             {`CREATE TABLE rooms (id int NOT NULL); SELECT fencedb.protect('rooms', 'room:{id}'); DROP TABLE rooms`, app.ExitDone, "warning guard_left"},
		"schema behind":             {`UPDATE fencedb.goose_db_version SET is_applied = false WHERE version_id = 3`, app.ExitFailed, "error schema_pending"},
		"ledger ahead":              {`INSERT INTO fencedb.fences VALUES ('seat:1', 9007199254740000, gen_random_uuid())`, app.ExitFailed, "error redis_behind"},
		"ledger by a minute":        {`INSERT INTO fencedb.fences VALUES ('seat:1', extract(epoch FROM now() + interval '1 minute') * 1000000, gen_random_uuid())`, app.ExitFailed, "error redis_behind"},
		"ledger at its end":         {`INSERT INTO fencedb.fences VALUES ('seat:1', 9007199254740991, gen_random_uuid())`, app.ExitFailed, "error fence_too_high"},
		"ledger beyond it":          {`INSERT INTO fencedb.fences VALUES ('seat:1', 9223372036854775807, gen_random_uuid())`, app.ExitFailed, "error fence_too_high"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sound(t)
			w.exec(test.sql)
			require.Equal(t, []string{test.want}, w.diagnosed(test.code))
		})
	}
}

func TestDoctorNamesConnectionsThatOutliveTheirClients(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET tcp_keepalives_idle = 7200', current_database()); END $$`)
	require.Equal(t, []string{"warning postgres_keepalives"}, w.diagnosed(app.ExitDone))
}

const observedPartition = `
	CREATE TABLE parts (id int NOT NULL) PARTITION BY LIST (id);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
	SELECT fencedb.protect('parts', 'part:{id}', mode => 'observe')`

const latePartition = `
	CREATE TABLE rooms (id int NOT NULL) PARTITION BY LIST (id);
	SELECT fencedb.protect('rooms', 'room:{id}');
	CREATE TABLE rooms_1 PARTITION OF rooms FOR VALUES IN (1)`

// It loses all that it had.
const lateAndDetached = latePartition + `; ALTER TABLE rooms DETACH PARTITION rooms_1`

const detached = latePartition + `; SELECT fencedb.protect('rooms', 'room:{id}'); ALTER TABLE rooms DETACH PARTITION rooms_1`

func TestDoctorNamesAClockThatIsOff(t *testing.T) {
	t.Parallel()
	for off, more := range map[time.Duration][]string{time.Hour: nil, -time.Hour: {"warning tokens_ahead"}} {
		w := sound(t)
		require.NoError(t, w.book(w.acquire("seat:1")), "in the ledger is what Redis knows")
		w.as("--redis", "redis://"+timeProxy(t, w.own.Addr(), off))

		require.Equal(t, append([]string{"warning clock_difference"}, more...), w.diagnosed(app.ExitDone))
		require.Regexp(t, `is (59m5\d|1h0m\d)s`, w.ok("doctor"), "by how much")
	}
}

func TestDoctorLeavesTheTokensOfAnotherIssuerAlone(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid')`)
	w.exec(`INSERT INTO fencedb.fences VALUES ('zxid:1', 9223372036854775807, gen_random_uuid()), ('zxid:2', 9007199254740000, gen_random_uuid())`)
	require.Empty(t, w.diagnosed(app.ExitDone))
}

// A fence that is ahead of Redis's clock counts even where Postgres's clock has passed it.
func TestDoctorComparesTheLedgerWithTheClockThatTokensComeFrom(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`INSERT INTO fencedb.fences VALUES ('seat:1', extract(epoch FROM now() - interval '1 minute') * 1000000, gen_random_uuid())`)
	require.Empty(t, w.diagnosed(app.ExitDone))
	w.as("--redis", "redis://"+timeProxy(t, w.own.Addr(), -time.Hour))

	require.Equal(t, []string{"error redis_behind", "warning clock_difference"}, w.diagnosed(app.ExitFailed))
}

// An old Postgres is a new one that says otherwise and has no schema: it could not have. doctor
// asks it for nothing else.
func TestDoctorNamesAnOldPostgres(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`SELECT fencedb.unprotect('seats')`)
	w.ok("migrate", "reset", "--yes")
	proxy := faulty.NewPostgresProxy(t, w.pool.Config().ConnString())
	proxy.OnServer(func(m pgproto3.BackendMessage) faulty.Fate {
		if status, ok := m.(*pgproto3.ParameterStatus); ok && status.Name == "server_version" {
			status.Value = "12.22 (Debian 12.22-1.pgdg120+1)"
		}
		return faulty.Pass
	})
	w.as("--postgres", proxy.URL())

	require.Equal(t, []string{"error postgres_version"}, w.diagnosed(app.ExitFailed))
	require.Contains(t, w.run("doctor").out, "12.22")
}

func TestDoctorNamesAServerThatIsAwayAndExaminesTheOther(t *testing.T) {
	t.Parallel()
	away := sound(t)
	away.exec(`CREATE TABLE rooms (last_fencing_token bigint)`)
	away.as("--redis", "redis://127.0.0.1:1")
	require.Equal(t, []string{"error redis_unreachable", "error unprotected_table"}, away.diagnosed(app.ExitFailed))

	away = sound(t, "--appendonly", "no").as("--postgres", "postgres://ann:hunter2@127.0.0.1:1/app")
	require.Equal(t, []string{"error postgres_unreachable", "warning redis_unlogged"}, away.diagnosed(app.ExitFailed))
	require.NotContains(t, away.run("doctor").out, "hunter2")
}

func TestDoctorNamesSuperusersAndLongTransactions(t *testing.T) {
	t.Parallel()
	w := sound(t)
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, fencedb.NewGrant("seat:1", 41, uuid.New(), fencedb.NoEnd))
	require.NoError(t, err)

	out := w.ok("doctor")
	require.Contains(t, out, "superuser_writer")
	require.NotContains(t, out, "long_transaction", "it has only just begun")
	require.Contains(t, w.ok("doctor", "--long", "1ns"), "long_transaction")
	require.NoError(t, tx.Rollback(t.Context()))
}

// Terminating who waits helps nobody, and the cause may not be fenced.
func TestDoctorNamesWhoIsInTheWayAndNotWhoWaits(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`CREATE TABLE notes (id int)`)
	begin := func(application string, statements ...string) *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), w.pool.Config().ConnString()+"&application_name="+application)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = conn.Exec(t.Context(), strings.Join(append([]string{"BEGIN"}, statements...), ";"))
		require.NoError(t, err)
		return conn
	}
	waits := func(conn *pgx.Conn, statement string) {
		go func() { _, _ = conn.Exec(context.Background(), statement) }()
		require.Eventually(t, func() bool {
			return w.one(fmt.Sprintf(`SELECT count(*) FROM pg_locks WHERE pid = %d AND NOT granted`, conn.PgConn().PID())) == "1"
		}, time.Minute, 10*time.Millisecond)
	}
	enter := func(token int) string {
		return fmt.Sprintf(`SELECT fencedb.enter('seat:1', %d, gen_random_uuid(), 600000)`, token)
	}
	begin("plain", `LOCK TABLE notes`)
	first := begin("first", `SET deadlock_timeout = '1h'`, enter(41))
	newcomer := begin("newcomer", `SET deadlock_timeout = '1h'`)
	waits(newcomer, enter(42))

	out := w.run("doctor", "--long", "1ns").out
	require.Contains(t, flowing(out), "open for long: pid "+fmt.Sprint(first.PgConn().PID())+" (first, idle in transaction) Why")
	require.Equal(t, 1, strings.Count(out, "long_transaction"), out)

	waits(first, `LOCK TABLE notes`)
	out = w.run("doctor", "--long", "1ns").out
	require.Contains(t, flowing(out), "(plain, idle in transaction), which is not fenced, is in the way of one")
	require.Equal(t, 1, strings.Count(out, "long_transaction"), out)
}

// While it reads its file it says that it has none.
func TestDoctorDoesNotMistakeARedisThatLoads(t *testing.T) {
	t.Parallel()
	w := sound(t, "--enable-debug-command", "yes")
	client := w.own.Client()
	_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for n := range 32 * 1024 { // it looks up after 1024
			pipe.Set(t.Context(), fmt.Sprint("filler:", n), n, 0)
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, client.ConfigSet(t.Context(), "key-load-delay", "300").Err())
	go client.Do(context.Background(), "DEBUG", "LOADAOF")
	require.Eventually(t, func() bool {
		return strings.Contains(client.Info(t.Context(), "persistence").Val(), "loading:1")
	}, time.Minute, time.Millisecond)

	said := w.run("doctor")
	require.Equal(t, app.ExitFailed, said.code)
	require.Regexp(t, `LOADING|redis_unreachable`, said.out) // on a busy machine it does not answer in time
	require.NotContains(t, said.out, "redis_unlogged")
}

// Whoever examines with the URL of an application must not take its sessions for their own.
func TestDoctorNamesASuperuserWithTheNameOfItsURL(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.disconnect()
	address := w.pool.Config().ConnString() + "&application_name=shop"
	shop, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = shop.Close(context.Background()) })
	require.Contains(t, w.ok("--postgres", address, "doctor"), "superuser_writer")
}

func TestDoctorNamesARoleThatMaySwitchTheGuardsOff(t *testing.T) {
	t.Parallel()
	w := sound(t)
	loader, err := pgx.Connect(t.Context(), w.login("loader", `GRANT SET ON PARAMETER session_replication_role TO %[2]s`))
	require.NoError(t, err)
	require.Regexp(t, `of\s+loader_\w+,\s+which\s+may\s+set\s+session_replication_role`, w.ok("doctor"))
	require.NoError(t, loader.Close(t.Context()))
}

func TestDoctorNamesARoleForWhichTriggersDoNotFire(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.login("loader", ``)
	database := w.one(`current_database()`)
	w.exec(`ALTER ROLE "loader_` + database + `" IN DATABASE "` + database + `" SET session_replication_role = replica`)
	require.Equal(t, []string{"error replica_role"}, w.diagnosed(app.ExitFailed))
	require.Contains(t, w.run("doctor").out, "role\n  loader_")

	w.exec(`SELECT fencedb.unprotect('seats')`)
	require.Empty(t, w.diagnosed(app.ExitDone), "there is nothing to get past")
}

// What matters is who writes behind fences: a role for reports may well be read only, and so may
// whoever asks.
func TestDoctorTellsForWhomPostgresIsReadOnly(t *testing.T) {
	t.Parallel()
	const readOnly = `ALTER ROLE %[2]s SET default_transaction_read_only = on`
	w := sound(t)
	w.login("reports", `GRANT SELECT ON seats TO %[2]s; `+readOnly)
	operator := w.login("operator", `SELECT fencedb.allow(%[1]s, operator => true); GRANT pg_read_all_stats TO %[2]s; `+readOnly)
	require.Empty(t, w.diagnosed(app.ExitDone))
	asked := w.run("--postgres", operator, "doctor")
	require.Equal(t, app.ExitDone, asked.code)
	require.Contains(t, asked.out, "session_read_only")
	require.NotContains(t, asked.out, "postgres_read_only")

	w.login("shop", `SELECT fencedb.allow(%[1]s); `+readOnly)
	require.Equal(t, []string{"error postgres_read_only"}, w.diagnosed(app.ExitFailed))
	require.Regexp(t, `role\s+shop_`, w.run("doctor").out)
}

// Also one that has made its fence, which nobody else can see.
func TestDoctorNamesPreparedTransactionsThatHoldFences(t *testing.T) {
	t.Parallel()
	for _, before := range []string{``, `SELECT fencedb.enter('seat:1', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8')`} {
		w := sound(t)
		w.exec(before)
		gid := "forgotten-" + w.one(`current_database()`)
		w.exec(`BEGIN; SELECT fencedb.enter('seat:1', 41, '6ba7b810-9dad-11d1-80b4-00c04fd430c8'); PREPARE TRANSACTION '` + gid + `'`)
		w.exec(`BEGIN; SELECT fencedb.record('note', NULL, 'ann', 'x'); PREPARE TRANSACTION 'other-` + gid + `'`)
		t.Cleanup(func() {
			_, _ = w.pool.Exec(context.Background(), `ROLLBACK PREPARED '`+gid+`'`)
			_, _ = w.pool.Exec(context.Background(), `ROLLBACK PREPARED 'other-`+gid+`'`)
		})
		w.disconnect()

		require.NotContains(t, w.ok("doctor"), "prepared_transaction", "it has only just begun")
		out := w.ok("doctor", "--long", "1ns")
		require.Contains(t, out, "prepared_transaction")
		require.Contains(t, out, gid)
		require.NotContains(t, out, "other-")
		require.Contains(t, w.ok("inspect", "seat:1"), gid)
	}
}

func TestDoctorTellsARoleWhatItLacks(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.as("--postgres", w.login("nobody", ``))
	require.Equal(t, []string{"error missing_rights"}, w.diagnosed(app.ExitFailed))
	require.Contains(t, w.run("doctor").out, "operator => true")

	w.as("--postgres", w.login("operator", `SELECT fencedb.allow(%[1]s, operator => true)`))
	require.Equal(t, []string{"warning sessions_hidden"}, w.diagnosed(app.ExitDone))

	w.as("--postgres", w.login("monitor", `SELECT fencedb.allow(%[1]s, operator => true); GRANT pg_read_all_stats TO %[2]s`))
	require.Empty(t, w.diagnosed(app.ExitDone))

	w.login("owner", `ALTER SCHEMA fencedb OWNER TO %[2]s; GRANT USAGE ON SCHEMA fencedb TO PUBLIC`)
	require.Equal(t, []string{"warning blockers_hidden"}, w.diagnosed(app.ExitDone))
	w.exec(`ALTER SCHEMA fencedb OWNER TO CURRENT_USER`)
}

// The answer to TIME: seconds and microseconds.
var timeReply = regexp.MustCompile(`\*2\r\n\$10\r\n(\d{10})\r\n\$\d+\r\n\d+\r\n`)

// timeProxy stands in front of a real Redis whose clock clients then see ahead by that much. It
// returns the address.
func timeProxy(t *testing.T, server string, ahead time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go relayTime(client, server, ahead)
		}
	}()
	return listener.Addr().String()
}

func relayTime(client net.Conn, server string, ahead time.Duration) {
	defer client.Close()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	buffer := make([]byte, 1<<20) // whole replies: Redis writes each with one call
	for {
		n, err := upstream.Read(buffer)
		if err != nil {
			return
		}
		if _, err := client.Write(shifted(buffer[:n], ahead)); err != nil {
			return
		}
	}
}

func shifted(reply []byte, ahead time.Duration) []byte {
	found := timeReply.FindSubmatchIndex(reply)
	if found == nil {
		return reply
	}
	seconds, _ := strconv.ParseInt(string(reply[found[2]:found[3]]), 10, 64)
	return fmt.Appendf(nil, "%s%d%s", reply[:found[2]], seconds+int64(ahead.Seconds()), reply[found[3]:])
}

func TestDoctorNamesLeasesWithoutAnEnd(t *testing.T) {
	t.Parallel()
	w := sound(t)
	many := w.own.Client().Pipeline() // that are as they should be, and come before the others
	for n := range 1000 {
		owner := fmt.Sprintf("%s:%d:call", uuid.New(), time.Now().UnixMicro())
		many.Set(t.Context(), fmt.Sprintf("lease:v1:{%s/a:%d}:owner", w.namespace, n), owner, time.Minute)
	}
	_, err := many.Exec(t.Context())
	require.NoError(t, err)
	w.acquire("seat:1")
	for resource, ttl := range map[string]time.Duration{"seat:2": 2 * time.Hour, "seat:3": time.Minute} {
		i, err := lease.New(w.own.Client(), lease.Config{
			TTL: ttl, RenewEvery: lease.Never, Namespace: w.namespace, Holder: label,
		})
		require.NoError(t, err)
		_, err = i.Acquire(t.Context(), resource, lease.NoWait())
		require.NoError(t, err)
	}
	require.Equal(t, []string{"warning lease_ttl"}, w.diagnosed(app.ExitDone))
	require.Contains(t, w.ok("doctor"), "seat:2 is held by "+label)

	owner := fmt.Sprintf("%s:%d:call", uuid.New(), time.Now().Add(-48*time.Hour).UnixMicro()) // renewed for two days
	require.NoError(t, w.own.Client().Set(t.Context(), "lease:v1:{"+w.namespace+"/seat:2}:owner", owner, time.Minute).Err())
	require.Equal(t, []string{"warning lease_unbounded"}, w.diagnosed(app.ExitDone))
	require.Contains(t, w.ok("doctor"), "for 2d")
}
