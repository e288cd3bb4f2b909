package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// sessions are the blocks of the guide that begin with a prompt.
var sessions = regexp.MustCompile(`(?m)^    \$ fencedb (.*)\n((?:    .*\n|\n)*)`)

// What differs from run to run.
var incidental = []struct {
	is   *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d( [+-]\d\d:\d\d)?|\b\d\d [A-Z][a-z]{2} \d\d:\d\d:\d\d\.\d{3}`), "WHEN"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8}\b`), "LEASE"},
	{regexp.MustCompile(`xid +\| +epoch\s+-+\+-+\s+\d+ \| +\d+`), "TRANSACTION"}, // an epoch may look like a token
	{regexp.MustCompile(`\b\d{16}\b`), "TOKEN"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`), "CLOCK"},
	{regexp.MustCompile(`(\b\d\d [A-Z][a-z]{2} )?\b\d\d:\d\d:\d\d\b`), "SECOND"},
	{regexp.MustCompile(`\b\d+(d(\d+h)?|h(\d+m)?|m(\d+s)?|(\.\d)?m?s)\b`), "TIME"},
	{regexp.MustCompile(`(127\.0\.0\.1|10\.0\.0\.7|cache):\d+`), "ADDRESS"},
	{regexp.MustCompile(`\w+( +ADDRESS +Client ClientRead)`), "USER$1"},
	{regexp.MustCompile(`\b\d+( +worker-8 +idle)`), "PID$1"},
	{regexp.MustCompile(`\b\d+ in fencedb.audit`), "ID in fencedb.audit"},
	{regexp.MustCompile(`\s+`), " "},
}

func essence(text string) string {
	for _, i := range incidental {
		text = i.is.ReplaceAllString(text, i.text)
	}
	return strings.TrimSpace(text)
}

// It runs what the pages show, in order, on the system that they describe.
func TestTheGuideShowsWhatIsPrinted(t *testing.T) {
	t.Parallel()
	var guide string
	for _, page := range []string{"command.md", "postgres.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		guide += string(text) + "\n"
	}
	found := sessions.FindAllStringSubmatch(guide, -1)
	require.Len(t, found, 11)
	r := newRestaurant(t)
	r.script = listing(t, guide, "In `fix.sql`:")
	for _, session := range found {
		line, want := session[1], strings.ReplaceAll("\n"+session[2], "\n    ", "\n")
		got := r.typed(line, strings.Count(strings.TrimSpace(want), "\n")+1)
		require.Equal(t, essence(want), essence(got), "fencedb %s\n%s", line, got)
	}
}

// listing is the indented text behind a line of a page.
func listing(t *testing.T, page, line string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, line+"\n\n")
	require.True(t, found, line)
	rest, _, _ = strings.Cut(rest, "\n\n")
	return strings.ReplaceAll("\n"+rest, "\n    ", "\n") + "\n"
}

// restaurant is the system of the guide: worker-7 lost table 12 to worker-8, which has a
// transaction open.
type restaurant struct {
	*world
	tables map[string]fencedb.Grant
	open   pgx.Tx
	script string // fix.sql
}

func newRestaurant(t *testing.T) *restaurant {
	t.Helper()
	w := sound(t, "--appendonly", "no")
	w.screen.Width, w.answer = 100, "y\n"
	w.exec(`CREATE TABLE waitlist (last_fencing_token bigint)`)
	r := &restaurant{world: w, tables: map[string]fencedb.Grant{}}
	for _, table := range []string{"table:11", "table:12", "table:13"} {
		l := w.acquire(table)
		r.tables[table] = fencedb.NewGrant(table, l.Token(), l.LeaseID(), l.ValidUntil())
	}
	stale, stored := r.tables["table:11"].Token(), r.tables["table:12"].Token()
	w.publish(
		fmt.Sprintf(`{"kind":"granted","resource":"table:12","worker":"worker-7","token":%d,"ttl_ms":9800}`, stale),
		fmt.Sprintf(`{"kind":"extended","resource":"table:12","worker":"worker-7","token":%d,"ttl_ms":9800}`, stale),
		fmt.Sprintf(`{"kind":"lost","resource":"table:12","worker":"worker-7","token":%d,"took_ms":9800,"cause":"expired"}`, stale),
		fmt.Sprintf(`{"kind":"granted","resource":"table:12","worker":"worker-8","token":%d,"ttl_ms":9800,"took_ms":4200}`, stored),
		fmt.Sprintf(`{"kind":"refused","resource":"table:12","worker":"worker-7","token":%d,"stored":%d}`, stale, stored),
		fmt.Sprintf(`{"kind":"extended","resource":"table:12","worker":"worker-8","token":%d,"ttl_ms":9800}`, stored),
	)
	require.NoError(t, w.own.Client().Del(t.Context(), "lease:v1:{"+w.namespace+"/table:11}:owner").Err())
	return r
}

// typed is what a person sees who types line, and then y; of a command that goes on, the first
// lines.
func (r *restaurant) typed(line string, lines int) string {
	r.Helper()
	var args []string
	file := filepath.Join(r.TempDir(), "fix.sql")
	require.NoError(r, os.WriteFile(file, []byte(r.script), 0o600))
	line = strings.NewReplacer(`-- psql "$FENCEDB_POSTGRES_URL" -f fix.sql`, "-- "+testenv.Psql(r)+" --no-psqlrc "+r.pool.Config().ConnString()+" -f "+file).Replace(line)
	for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		args = append(args, strings.Trim(word, "'"))
	}
	r.prepare(args[0])
	if r.screen.Width = 100; args[0] == "history" {
		r.screen.Width = 120
	}
	if args[0] == "watch" {
		watching, seen := r.start(args...), ""
		for range lines {
			seen += watching.next(watching.out) + "\n"
		}
		return seen
	}
	got := r.run(args...)
	require.Equal(r, map[string]int{"doctor": app.ExitFailed}[args[0]], got.code, got.errOut) // it names a table that is not protected
	switch args[0] {
	case "with": // it asks nothing
		return got.out + got.errOut
	case "doctor":
		return got.out
	}
	if got.errOut != "" {
		got.errOut += r.answer
	}
	return got.errOut + got.out
}

// prepare makes happen what the guide tells between two commands.
func (r *restaurant) prepare(command string) {
	r.Helper()
	switch command {
	case "doctor":
		r.disconnect()
	case "inspect":
		conn, err := pgx.Connect(r.Context(), r.pool.Config().ConnString()+"&application_name=worker-8")
		require.NoError(r, err)
		r.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = fencedb.Exec(r.Context(), r.pool, r.tables["table:12"], `SELECT`)
		require.NoError(r, err)
		r.open, err = conn.Begin(r.Context())
		require.NoError(r, err)
		_, err = fencedb.Enter(r.Context(), r.open, r.tables["table:12"])
		require.NoError(r, err)
	case "revoke":
		require.NoError(r, r.open.Commit(r.Context()))
	case "history":
		r.evening()
	case "with":
		r.exec(`CREATE TABLE orders (id int NOT NULL, state text); INSERT INTO orders VALUES (7, 'open'); SELECT fencedb.protect('orders', 'order:{id}')`)
	case "adopt":
		r.observe()
	case "ttl":
		require.NoError(r, r.redis.Del(r.Context(), "fencedb:v1:"+r.namespace+":events").Err())
		r.held("table", "released", 1500)
	}
}

// observe makes a table to which a cron job and a report write, not as they should.
func (r *restaurant) observe() {
	r.Helper()
	r.exec(`CREATE TABLE bookings (table_id int NOT NULL); SELECT fencedb.protect('bookings', 'table:{table_id}', mode => 'observe');
		CREATE ROLE legacy; SELECT fencedb.allow('legacy'); GRANT ALL ON bookings TO legacy`)
	r.Cleanup(func() {
		_, err := r.pool.Exec(context.Background(), `DROP OWNED BY legacy; DROP ROLE legacy`, pgx.QueryExecModeSimpleProtocol)
		require.NoError(r, err)
	})
	conn, err := pgx.Connect(r.Context(), r.pool.Config().ConnString())
	require.NoError(r, err)
	defer conn.Close(context.Background())
	for _, sql := range []string{
		`SET ROLE legacy`,
		`SET application_name = 'report'`,
		`BEGIN; SELECT fencedb.enter('table:14', 1795178573132057, gen_random_uuid()); INSERT INTO bookings VALUES (13); COMMIT`,
		`SET application_name = 'cron'`,
		`SELECT`,
	} {
		_, err := conn.Exec(r.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(r, err)
	}
	for range 3 {
		_, err := conn.Exec(r.Context(), `RESET ALL; SET application_name = 'cron'; BEGIN ISOLATION LEVEL REPEATABLE READ; UPDATE bookings SET table_id = 12; COMMIT`, pgx.QueryExecModeSimpleProtocol)
		require.NoError(r, err)
	}
	r.exec(`ALTER TABLE fencedb.events DISABLE TRIGGER keep; UPDATE fencedb.events SET at = at - interval '3 minutes' WHERE kind = 'observed'; ALTER TABLE fencedb.events ENABLE TRIGGER keep`)
}

// runbook is the text of all its pages.
func runbook(t *testing.T) (text string) {
	t.Helper()
	files, err := filepath.Glob("../../docs/runbook/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range append(files, "../../docs/runbook.md") {
		page, err := os.ReadFile(file)
		require.NoError(t, err)
		text += string(page) + "\n"
	}
	return text
}

// Somebody types at night what the runbook says.
func TestTheRunbookNamesCommandsAndFlagsThatExist(t *testing.T) {
	t.Parallel()
	adopting, err := os.ReadFile("../../docs/adopting.md")
	require.NoError(t, err)
	root := root(&app.State{})
	calls := regexp.MustCompile("(?m)(?:^    |`)fencedb ([a-z]+)([^`#\n]*)").FindAllStringSubmatch(runbook(t)+string(adopting), -1)
	require.NotEmpty(t, calls)
	for _, call := range calls {
		command := root.Command(call[1])
		require.NotNil(t, command, call[0])
		flags := slices.Concat(root.Flags, command.Flags)
		for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(call[2], -1) {
			known := slices.ContainsFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flag[1]) })
			require.True(t, known, call[0])
		}
	}
}
