package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/protocol"
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
	}, 10*time.Second, 2*time.Millisecond)
}

func (w *world) diagnosed(code int) []string {
	w.Helper()
	w.disconnect()
	got := w.run("--json", "doctor")
	require.Equal(w, code, got.code, got.errOut)
	var d diagnosis
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
	require.Empty(t, w.diagnosed(exitDone))
	require.Empty(t, w.ok("doctor"))
}

func TestDoctorNamesATableThatLostItsProtection(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`DROP TRIGGER "~fencedb_row" ON seats; DROP TRIGGER "~fencedb_statement" ON seats; DROP TRIGGER "~fencedb_truncate" ON seats`)
	require.Equal(t, []string{"error protection_lost", "error unprotected_table", "warning guard_left"}, w.diagnosed(exitFailed))

	w.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)
	require.Empty(t, w.diagnosed(exitDone), "protect drops guards that guard nothing")
}

func TestDoctorNamesATableWhoseHistoryHasAGap(t *testing.T) {
	t.Parallel()
	w := sound(t)
	const protect = `SELECT fencedb.protect('seats', 'seat:{id}', history => true)`
	for _, gap := range []string{`DROP TRIGGER "~fencedb_note_update" ON seats`, `ALTER TABLE seats DISABLE TRIGGER "~fencedb_note_insert"`, `ALTER TABLE seats ENABLE REPLICA TRIGGER "~fencedb_note_delete"`} {
		w.exec(protect)
		require.Empty(t, w.diagnosed(exitDone))
		w.exec(gap)
		require.Equal(t, []string{"warning history_incomplete"}, w.diagnosed(exitDone), gap)
	}
	w.exec(protect)
	require.Empty(t, w.diagnosed(exitDone), "what it says to do ends it")
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

	require.Equal(t, []string{"error guard_replaced"}, w.diagnosed(exitFailed))
	w.exec(`DROP TRIGGER "~fencedb_row" ON seats; SELECT fencedb.protect('seats', 'seat:{id}')`)
	require.Empty(t, w.diagnosed(exitDone))
}

// What it says to do ends it.
func TestDoctorNamesAGuardWhoseColumnWasRenamed(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`ALTER TABLE seats RENAME id TO no`)
	require.Equal(t, []string{"error guard_broken"}, w.diagnosed(exitFailed))

	w.exec(`ALTER TABLE seats RENAME no TO id; BEGIN; SELECT fencedb.unprotect('seats', keep_columns => true);
		ALTER TABLE seats RENAME id TO no; SELECT fencedb.protect('seats', 'seat:{no}'); COMMIT`)
	require.Empty(t, w.diagnosed(exitDone))
}

func TestDoctorNamesAGuardThatLostItsComment(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`COMMENT ON FUNCTION fencedb.guard_seats IS NULL`)
	require.Equal(t, []string{"warning guard_unknown"}, w.diagnosed(exitDone))

	w.exec(`BEGIN; SELECT fencedb.unprotect('seats'), fencedb.protect('seats', 'seat:{id}'); COMMIT`)
	require.Empty(t, w.diagnosed(exitDone))
}

// A program that checks the output against the schema accepts each finding.
func TestTheSchemaKnowsEveryFinding(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("schema.json")
	require.NoError(t, err)
	for _, text := range texts {
		require.Contains(t, string(schema), `"`+text[2]+`"`)
	}
}

// A question whose comment is not as expected would not be asked.
func TestDoctorAsksEveryQuestionInItsFile(t *testing.T) {
	t.Parallel()
	require.Len(t, questions, strings.Count(doctorSQL, "\nSELECT "))
	for _, q := range questions {
		require.Equal(t, 1, strings.Count(q[6], ";"), q[2])
	}
}

// No question reads the audit once for each table of the database.
func TestDoctorReadsTheAuditAFewTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`DO $$ BEGIN
		FOR i IN 1..100 LOOP EXECUTE format('CREATE TABLE other_%s (id int)', i); END LOOP;
		PERFORM fencedb.record('revoke', 'seat:' || i, 'ann', 'it hangs') FROM generate_series(1, 100) i;
	END $$; ANALYZE`)
	for _, q := range questions {
		require.NoError(t, pgx.BeginFunc(w.Context(), w.pool, func(tx pgx.Tx) error {
			const scans = `SELECT sum(pg_stat_get_xact_numscans(r)) FROM unnest('{fencedb.events,fencedb.events_kind,fencedb.events_resource}'::regclass[]) r`
			var before, after int
			err := tx.QueryRow(w.Context(), scans).Scan(&before)
			require.NoError(t, err)
			_, err = tx.Exec(w.Context(), strings.Replace(q[6], "@too_high", tooHigh, 1), pgx.NamedArgs{"long": 1.0})
			require.NoError(t, err, q[2])
			err = tx.QueryRow(w.Context(), scans).Scan(&after)
			require.LessOrEqual(t, after-before, 2, q[2])
			return err
		}))
	}
}

// A finding that is not in the file would end the program.
func TestDoctorHasATextForEveryFinding(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doctor.go")
	require.NoError(t, err)
	codes := slices.Collect(maps.Values(warnings))
	for _, call := range regexp.MustCompile(`e\.add\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		codes = append(codes, call[1])
	}
	require.Len(t, codes, len(texts)-len(questions), "and none without a use")
	for _, code := range codes {
		e := &examination{}
		e.add(code, "this", "that", "other", "then", "soon")
		require.NotContains(t, e.findings[0].What, "%")
	}
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
		require.Empty(t, w.diagnosed(exitDone))
		stale := hold("seat:2")
		enter("seat:2", stale.Token()+1, uuid.New())
		read := func(l *lease.Lease) []held {
			name := l.Resource()
			if hashed {
				name = protocol.Digest(name)
			}
			return []held{{Resource: name, holder: holder{LeaseID: l.LeaseID(), Token: l.Token()}}}
		}
		late := &examination{servers: w.servers(), held: append(slices.Repeat(read(former), 20), read(stale)...)}
		require.NoError(t, late.askHolders(t.Context()))
		require.Len(t, late.findings, 1, "not those who have released since Redis was read")
		away := &examination{servers: w.servers(), held: read(stale)}
		away.client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		require.NoError(t, away.client.Close())
		require.NoError(t, away.askHolders(t.Context()))
		require.Equal(t, "leases_hidden", away.findings[0].Code, "and Postgres has answered")

		twice, err := i.Acquire(t.Context(), "seat:3", lease.NoWait())
		require.NoError(t, err)
		enter("seat:3", twice.Token(), uuid.New())

		require.Equal(t, []string{"warning stale_holder", "warning stale_holder"}, w.diagnosed(exitDone))
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
		"eviction":          {[]string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"}, exitFailed, "error redis_evicts"},
		"eviction some day": {[]string{"--maxmemory-policy", "allkeys-lru"}, exitDone, "warning redis_may_evict"},
		"no persistence":    {[]string{"--appendonly", "no"}, exitDone, "warning redis_unlogged"},
		"replica":           {[]string{"--replicaof", host, port}, exitFailed, "error redis_replica"},
		"refuses writes":    {[]string{"--min-replicas-to-write", "1"}, exitFailed, "error redis_unfit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sound(t, test.args...)
			require.Equal(t, []string{test.want}, w.diagnosed(test.code))
			w.screen = screen{width: 80, color: true}
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
		w.as("--timeout", "6s").as("--redis", "redis://"+silent(t)).diagnosed(exitFailed))
	require.Equal(t, []string{"error postgres_unreachable", "warning redis_unlogged"},
		w.as("--redis", "redis://"+w.own.Addr()).as("--postgres", "postgres://ann@"+silent(t)+"/none?sslmode=disable").diagnosed(exitFailed))
}

func TestDoctorSaysWhatRedisDoesNotTell(t *testing.T) {
	t.Parallel()
	w := sound(t)
	require.NoError(t, w.own.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err())
	require.Equal(t, []string{"warning redis_hidden"}, w.diagnosed(exitDone))
}

func TestDoctorNamesABrokenKey(t *testing.T) {
	t.Parallel()
	w := sound(t)
	broken := "lease:v1:{" + w.namespace + "/table:11}:owner"
	require.NoError(t, w.own.Client().Set(t.Context(), broken, "by hand", 0).Err())
	require.Equal(t, []string{"error redis_corrupt"}, w.diagnosed(exitFailed))
	require.Contains(t, strings.Join(strings.Fields(w.run("doctor").out), " "), broken)

	require.NoError(t, w.own.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-scan").Err())
	require.Equal(t, []string{"warning leases_hidden"}, w.diagnosed(exitDone))
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
	require.Equal(t, found, w.as("--timeout", "2s").diagnosed(exitFailed))
	w.exec(`ALTER DATABASE ` + name + ` SET lock_timeout = '10ms'`)
	require.Equal(t, found, w.as("--timeout", "1m").diagnosed(exitFailed))
	require.Contains(t, w.run("doctor").out, "55P03")
}

func TestDoctorNamesABadDatabaseAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sql  string
		code int
		want string
	}{
		"trigger disabled":  {`ALTER TABLE seats DISABLE TRIGGER "~fencedb_row"`, exitFailed, "error trigger_disabled"},
		"statement trigger": {`ALTER TABLE seats ENABLE REPLICA TRIGGER "~fencedb_truncate"`, exitFailed, "error trigger_disabled"},
		"later trigger": {`CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 2; RETURN NEW; END';
			CREATE TRIGGER "über" BEFORE UPDATE ON seats FOR EACH ROW EXECUTE FUNCTION moved()`, exitFailed, "error late_trigger"},
		"not protected, beside a later trigger that changes nothing": {`CREATE TABLE rooms (last_fencing_token bigint);
			CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER "über" BEFORE DELETE ON seats FOR EACH ROW EXECUTE FUNCTION kept()`, exitFailed, "error unprotected_table"},
		"inheritance child":         {`CREATE TABLE rooms () INHERITS (seats)`, exitFailed, "error unguarded_child"},
		"truncate trigger dropped":  {`DROP TRIGGER "~fencedb_truncate" ON seats`, exitFailed, "error guard_incomplete"},
		"statement trigger dropped": {`DROP TRIGGER "~fencedb_statement" ON seats`, exitFailed, "error guard_incomplete"},
		"another trigger in its place": {`DROP TRIGGER "~fencedb_truncate" ON seats; CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER "~fencedb_truncate" BEFORE TRUNCATE ON seats FOR EACH STATEMENT EXECUTE FUNCTION kept()`, exitFailed, "error guard_replaced"},
		"the guard on a condition":  {`CREATE OR REPLACE TRIGGER "~fencedb_row" BEFORE INSERT OR UPDATE OR DELETE ON seats FOR EACH ROW WHEN (false) EXECUTE FUNCTION fencedb.guard_seats()`, exitFailed, "error guard_replaced"},
		"the guard of fewer writes": {`CREATE OR REPLACE TRIGGER "~fencedb_statement" BEFORE INSERT OR DELETE ON seats FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_seats()`, exitFailed, "error guard_replaced"},
		"the guard of a column":     {`CREATE OR REPLACE TRIGGER "~fencedb_statement" BEFORE INSERT OR UPDATE OF guest OR DELETE ON seats FOR EACH STATEMENT EXECUTE FUNCTION fencedb.guard_seats()`, exitFailed, "error guard_replaced"},
		"Aurora":                    {`CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '16.2' $$`, exitDone, "warning aurora"},
		"read only database":        {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = true', current_database()); END $$`, exitFailed, "error postgres_read_only"},
		"later partition":           {latePartition, exitDone, "warning unguarded_partition"},
		"detached late partition":   {lateAndDetached, exitFailed, "error unprotected_table"},
		"detached partition":        {detached, exitFailed, "error guard_lost"},
		"row trigger dropped":       {`DROP TRIGGER "~fencedb_row" ON seats`, exitFailed, "error guard_lost"},
		"row trigger renamed":       {`ALTER TRIGGER "~fencedb_row" ON seats RENAME TO aaa`, exitDone, "warning guard_renamed"},
		"observed partition left":   {observedPartition + `; ALTER TABLE parts DETACH PARTITION parts_1; DROP TABLE parts`, exitFailed, "error guard_lost"},
		"column of tokens dropped":  {`ALTER TABLE seats DROP COLUMN last_fencing_token`, exitFailed, "error guard_broken"},
		"anybody may reset":         {`GRANT EXECUTE ON FUNCTION fencedb.reset_fence TO PUBLIC`, exitFailed, "error open_to_all"},
		"schema closed":             {`REVOKE USAGE ON SCHEMA fencedb FROM PUBLIC`, exitFailed, "error schema_closed"},
		"take-over":                 {`SELECT fencedb.take_over_as('seats', current_user::regrole, now() + interval '1 hour')`, exitDone, "warning take_over"},
		"take-over, ended":          {`SELECT fencedb.take_over_as('seats', current_user::regrole, now() + interval '1 hour'), fencedb.end_take_over('seats'); DROP TABLE seats`, exitDone, "warning guard_left"},
		"replica for a database":    {`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$`, exitFailed, "error replica_role"},
		"replica for a function":    {`CREATE FUNCTION f() RETURNS int LANGUAGE sql SET session_replication_role = replica AS 'SELECT 1'`, exitFailed, "error replica_role"},
		"only observed":             {`SELECT fencedb.enforce('seats', observing => true)`, exitDone, "warning observed_table"},
		"dropped table":             {`CREATE TABLE rooms (id int NOT NULL); SELECT fencedb.protect('rooms', 'room:{id}'); DROP TABLE rooms`, exitDone, "warning guard_left"},
		"schema behind":             {`UPDATE fencedb.goose_db_version SET is_applied = false WHERE version_id = 3`, exitFailed, "error schema_pending"},
		"ledger ahead":              {`INSERT INTO fencedb.fences VALUES ('seat:1', 9007199254740000, gen_random_uuid())`, exitFailed, "error redis_behind"},
		"ledger by a minute":        {`INSERT INTO fencedb.fences VALUES ('seat:1', extract(epoch FROM now() + interval '1 minute') * 1000000, gen_random_uuid())`, exitFailed, "error redis_behind"},
		"ledger at its end":         {`INSERT INTO fencedb.fences VALUES ('seat:1', 9007199254740991, gen_random_uuid())`, exitFailed, "error fence_too_high"},
		"ledger beyond it":          {`INSERT INTO fencedb.fences VALUES ('seat:1', 9223372036854775807, gen_random_uuid())`, exitFailed, "error fence_too_high"},
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
	require.Equal(t, []string{"warning postgres_keepalives"}, w.diagnosed(exitDone))
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

		require.Equal(t, append([]string{"warning clock_difference"}, more...), w.diagnosed(exitDone))
		require.Regexp(t, `is (59m5\d|1h0m\d)s`, w.ok("doctor"), "by how much")
	}
}

func TestDoctorLeavesTheTokensOfAnotherIssuerAlone(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`INSERT INTO fencedb.foreign_issuers VALUES ('zxid')`)
	w.exec(`INSERT INTO fencedb.fences VALUES ('zxid:1', 9223372036854775807, gen_random_uuid()), ('zxid:2', 9007199254740000, gen_random_uuid())`)
	require.Empty(t, w.diagnosed(exitDone))
}

// A fence that is ahead of Redis's clock counts even where Postgres's clock has passed it.
func TestDoctorComparesTheLedgerWithTheClockThatTokensComeFrom(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.exec(`INSERT INTO fencedb.fences VALUES ('seat:1', extract(epoch FROM now() - interval '1 minute') * 1000000, gen_random_uuid())`)
	require.Empty(t, w.diagnosed(exitDone))
	w.as("--redis", "redis://"+timeProxy(t, w.own.Addr(), -time.Hour))

	require.Equal(t, []string{"error redis_behind", "warning clock_difference"}, w.diagnosed(exitFailed))
}

// until answers no query before that time.
type until time.Time

func (until) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (u until) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {
	<-time.After(time.Until(time.Time(u)))
}

// A fence may be entered while doctor asks, with a token that Redis's clock has passed by the time
// of the answer.
func TestDoctorTakesNoNewFenceForOneAheadOfTheClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := time.Now().Add(time.Second)
	w.exec(fmt.Sprintf(`INSERT INTO fencedb.fences VALUES ('seat:1', %d, gen_random_uuid())`, token.UnixMicro()))
	config := w.pool.Config()
	config.ConnConfig.Tracer = until(token.Add(time.Millisecond))
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	s := w.servers()
	s.pool = pool
	e := &examination{servers: s, redis: []lease.ServerHealth{{RoundTrip: 1}}} // a clock like ours

	require.NoError(t, e.askCounters(t.Context()))

	require.Empty(t, e.findings)
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

	require.Equal(t, []string{"error postgres_version"}, w.diagnosed(exitFailed))
	require.Contains(t, w.run("doctor").out, "12.22")
}

func TestDoctorNamesAServerThatIsAwayAndExaminesTheOther(t *testing.T) {
	t.Parallel()
	away := sound(t)
	away.exec(`CREATE TABLE rooms (last_fencing_token bigint)`)
	away.as("--redis", "redis://127.0.0.1:1")
	require.Equal(t, []string{"error redis_unreachable", "error unprotected_table"}, away.diagnosed(exitFailed))

	away = sound(t, "--appendonly", "no").as("--postgres", "postgres://ann:hunter2@127.0.0.1:1/app")
	require.Equal(t, []string{"error postgres_unreachable", "warning redis_unlogged"}, away.diagnosed(exitFailed))
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
	require.Equal(t, exitFailed, said.code)
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
	require.Equal(t, []string{"error replica_role"}, w.diagnosed(exitFailed))
	require.Contains(t, w.run("doctor").out, "role\n  loader_")

	w.exec(`SELECT fencedb.unprotect('seats')`)
	require.Empty(t, w.diagnosed(exitDone), "there is nothing to get past")
}

// What matters is who writes behind fences: a role for reports may well be read only, and so may
// whoever asks.
func TestDoctorTellsForWhomPostgresIsReadOnly(t *testing.T) {
	t.Parallel()
	const readOnly = `ALTER ROLE %[2]s SET default_transaction_read_only = on`
	w := sound(t)
	w.login("reports", `GRANT SELECT ON seats TO %[2]s; `+readOnly)
	operator := w.login("operator", `SELECT fencedb.allow(%[1]s, operator => true); GRANT pg_read_all_stats TO %[2]s; `+readOnly)
	require.Empty(t, w.diagnosed(exitDone))
	asked := w.run("--postgres", operator, "doctor")
	require.Equal(t, exitDone, asked.code)
	require.Contains(t, asked.out, "session_read_only")
	require.NotContains(t, asked.out, "postgres_read_only")

	w.login("shop", `SELECT fencedb.allow(%[1]s); `+readOnly)
	require.Equal(t, []string{"error postgres_read_only"}, w.diagnosed(exitFailed))
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

// Each transaction that shares a fence writes a multixact that lists every sharer.
func TestDoctorReadsTheMultixacts(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, "autovacuum_multixact_freeze_max_age=10000", "autovacuum=off")
	pool := server.Pool()
	question := questions[slices.IndexFunc(questions, func(q []string) bool { return q[2] == "multixacts_old" })][6]
	ask := func(sql string) (answer string) {
		err := pool.QueryRow(t.Context(), sql).Scan(&answer)
		if errors.Is(err, pgx.ErrNoRows) {
			return ""
		}
		require.NoError(t, err)
		return answer
	}
	require.Empty(t, ask(question), "nobody shares")

	g := fencedb.NewGrant("seat:1", 41, uuid.New(), fencedb.NoEnd)
	require.NoError(t, fencedb.Seal(t.Context(), pool, g))
	for range 40 {
		conn, err := pgx.Connect(t.Context(), server.URL())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = fencedb.Enter(t.Context(), tx, g)
		require.NoError(t, err)
	}
	ask(`CHECKPOINT`)
	require.Empty(t, ask(question), "they have room")
	require.Regexp(t, `^the oldest multixact is \d+ multixacts old, and the last ones have 2\d\.\d members each$`, ask(strings.Replace(question, "1073741824", "100", 1)))

	_, err := pool.Exec(t.Context(), `DO $$ BEGIN
		FOR i IN 1 .. 13000 LOOP
			BEGIN
				PERFORM FROM fencedb.fences FOR SHARE;
				RAISE division_by_zero;
			EXCEPTION WHEN division_by_zero THEN
			END;
		END LOOP;
	END $$`)
	require.NoError(t, err)
	require.Regexp(t, `^the oldest multixact is 13\d{3} multixacts old`, ask(question))
	_, err = pool.Exec(t.Context(), `VACUUM (FREEZE)`)
	require.NoError(t, err)
	ask(question) // what was sampled before may have gone
}

func TestDoctorTellsARoleWhatItLacks(t *testing.T) {
	t.Parallel()
	w := sound(t)
	w.as("--postgres", w.login("nobody", ``))
	require.Equal(t, []string{"error missing_rights"}, w.diagnosed(exitFailed))
	require.Contains(t, w.run("doctor").out, "operator => true")

	w.as("--postgres", w.login("operator", `SELECT fencedb.allow(%[1]s, operator => true)`))
	require.Equal(t, []string{"warning sessions_hidden"}, w.diagnosed(exitDone))

	w.as("--postgres", w.login("monitor", `SELECT fencedb.allow(%[1]s, operator => true); GRANT pg_read_all_stats TO %[2]s`))
	require.Empty(t, w.diagnosed(exitDone))

	w.login("owner", `ALTER SCHEMA fencedb OWNER TO %[2]s; GRANT USAGE ON SCHEMA fencedb TO PUBLIC`)
	require.Equal(t, []string{"warning blockers_hidden"}, w.diagnosed(exitDone))
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
	require.Equal(t, []string{"warning lease_ttl"}, w.diagnosed(exitDone))
	require.Contains(t, w.ok("doctor"), "seat:2 is held by "+label)

	owner := fmt.Sprintf("%s:%d:call", uuid.New(), time.Now().Add(-48*time.Hour).UnixMicro()) // renewed for two days
	require.NoError(t, w.own.Client().Set(t.Context(), "lease:v1:{"+w.namespace+"/seat:2}:owner", owner, time.Minute).Err())
	require.Equal(t, []string{"warning lease_unbounded"}, w.diagnosed(exitDone))
	require.Contains(t, w.ok("doctor"), "for 2d")
}
