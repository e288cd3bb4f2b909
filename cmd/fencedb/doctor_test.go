package main

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// sound is a set-up that there is nothing to say about: its own Redis, which keeps its data, and nobody connected.
func sound(t *testing.T, redisArgs ...string) *world {
	t.Helper()
	w := newWorld(t)
	args := append([]string{"--appendonly", "yes", "--maxmemory-policy", "noeviction"}, redisArgs...)
	w.flags = append(w.flags, "--redis", "redis://"+testenv.OwnRedis(t, args...).Addr())
	return w
}

// disconnect waits until the server has seen that the application is gone: connected as a superuser it would be a finding.
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
		codes = append(codes, string(f.Severity)+" "+f.Code)
	}
	return codes
}

func TestDoctorIsSilentOnASoundSetUp(t *testing.T) {
	t.Parallel()
	w := sound(t)
	require.Empty(t, w.diagnosed(exitDone))
	require.Empty(t, w.ok("doctor"))
}

func TestDoctorNamesWhatIsWrongAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		redis []string
		sql   string
		code  int
		want  []string
	}{
		"eviction":         {redis: []string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"}, code: exitFailed, want: []string{"error redis_unfit"}},
		"no persistence":   {redis: []string{"--appendonly", "no"}, want: []string{"warning redis_warning"}},
		"trigger disabled": {sql: `ALTER TABLE seats DISABLE TRIGGER "~fencedb_row"`, code: exitFailed, want: []string{"error trigger_disabled"}},
		"not protected":    {sql: `CREATE TABLE rooms (last_fencing_token bigint)`, want: []string{"warning unprotected_table"}},
		"old schema":       {sql: `UPDATE fencedb.goose_db_version SET is_applied = false WHERE version_id = 6`, code: exitFailed, want: []string{"error schema_pending"}},
		"ledger ahead": {sql: `INSERT INTO fencedb.fences VALUES ('seat:1', 9007199254740000, gen_random_uuid())`, code: exitFailed,
			want: []string{"error redis_behind"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := sound(t, test.redis...)
			if test.sql != "" {
				w.exec(test.sql)
			}
			require.Equal(t, test.want, w.diagnosed(test.code))
			w.screen = screen{width: 80, color: true}
			require.Contains(t, w.run("doctor").out, "Do: ")
		})
	}
}

func TestDoctorNamesSuperusersAndLongTransactions(t *testing.T) {
	t.Parallel()
	w := sound(t)
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, fencedb.Enter(t.Context(), tx, fencedb.NewGrant("seat:1", 41, uuid.New(), time.Time{})))

	out := w.ok("doctor")
	require.Contains(t, out, "superuser_writer")
	require.NotContains(t, out, "long_transaction", "it has only just begun")
	require.Contains(t, w.ok("doctor", "--long", "1ns"), "long_transaction")
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestDoctorJudgesVersionsAndClocks(t *testing.T) {
	t.Parallel()
	require.Len(t, versionFindings(120022), 1)
	require.Empty(t, versionFindings(150000))
	require.Len(t, clockFindings(-time.Hour, time.Millisecond), 1)
	require.Empty(t, clockFindings(time.Second, time.Millisecond))
}
