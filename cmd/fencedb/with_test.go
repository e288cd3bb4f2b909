package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/with"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// script is psql with the world's database and a file of these lines, which it stops at an error.
func (w *world) script(lines ...string) []string {
	w.Helper()
	file := filepath.Join(w.TempDir(), "fix.sql")
	text := "\\set ON_ERROR_STOP on\n\\getenv enter FENCEDB_ENTER\n" + strings.Join(lines, "\n") + "\n"
	require.NoError(w, os.WriteFile(file, []byte(text), 0o600))
	return []string{testenv.Psql(w), "--no-psqlrc", w.pool.Config().ConnString(), "-f", file}
}

// under are the arguments of with.
func under(flags []string, command ...string) []string {
	return append(append(append([]string{"with"}, flags...), "--"), command...)
}

// gate is a line of a script that waits for the function, which lets it go on when it has come
// there and something else is done.
func (w *world) gate() (line string, open func(first ...func())) {
	w.Helper()
	path := filepath.Join(w.TempDir(), "gate")
	require.NoError(w, syscall.Mkfifo(path, 0o600))
	return `\! cat ` + path, func(first ...func()) {
		w.Helper()
		var writer *os.File
		require.Eventually(w, func() bool {
			var err error
			writer, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0) // fails unless somebody reads
			return err == nil
		}, time.Minute, time.Millisecond)
		for _, do := range first {
			do()
		}
		require.NoError(w, writer.Close())
	}
}

func (w *world) requireFree(resources ...string) {
	w.Helper()
	for _, resource := range resources {
		require.Nil(w, w.inspected(resource).Holder, resource)
	}
}

func TestWithHoldsToTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	got := w.run(under([]string{"seat:1"}, w.script(
		`BEGIN;`, `:enter;`, `INSERT INTO seats VALUES (1, 'Ann');`, `COMMIT;`,
		`BEGIN ISOLATION LEVEL SERIALIZABLE;`, `:enter;`, `UPDATE seats SET guest = 'Eve';`, `COMMIT;`)...)...)

	require.Equal(t, app.ExitDone, got.code, got.errOut+got.out)
	require.Contains(t, got.errOut, "seat:1 was held to the end")
	require.Equal(t, "Eve", w.one(`SELECT guest FROM seats`))
	w.requireFree("seat:1")
}

func TestWithRefusesAScriptThatDoesNotEnter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	got := w.run(under([]string{"seat:1"}, w.script(`INSERT INTO seats VALUES (1, 'Ann');`)...)...)

	require.Equal(t, 3, got.code, "psql's own code")
	require.Contains(t, got.errOut, "held to the end")
	require.Contains(t, got.errOut, "without a fencing token")
	require.Equal(t, "0", w.one(`SELECT count(*) FROM seats`))
}

// The repair that only raises the token in Postgres does not stop such a holder.
func TestWithShutsOutAHolderThatHasNotEnteredYet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := w.acquire("seat:1")
	require.NoError(t, w.redis.Del(t.Context(), "lease:v1:{"+w.namespace+"/seat:1}:owner").Err(), "it expires")

	require.Zero(t, w.run(under([]string{"seat:1"}, "true")...).code)

	require.ErrorIs(t, w.book(late), fencedb.ErrStale)
}

func TestWithSaysThatAFenceIsTooHigh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`SELECT fencedb.enter('seat:1', 9007199254740991, gen_random_uuid(), 60000)`)

	for range 2 { // the first raises Redis to the fence
		got := w.run(under([]string{"seat:1"}, "true")...)

		line, advice, _ := strings.Cut(got.errOut, "\nhint: ")
		require.Contains(t, line, "tokens exhausted")
		require.Contains(t, advice, "fencedb explain ErrExhausted")
		require.NotContains(t, got.errOut, "acquire the lease again")
		require.Contains(t, w.ok("explain", line), "A fence is too high")
	}
}

func TestWithSeveralResourcesEntersAllOfThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{"seat:1", `seat:O'Neil\ö`, "seat:2"}
	script := w.script(`\getenv grants FENCEDB_GRANTS`,
		`CREATE SCHEMA app; CREATE TABLE app.uuid (of int); SET search_path = public, app, pg_catalog;`, // a table is a type as well
		`BEGIN;`, `:enter;`, `INSERT INTO seats VALUES (1), (2);`,
		`CREATE TABLE grants AS SELECT g ->> 'resource' AS resource, (g ->> 'token')::bigint AS token FROM json_array_elements(:'grants') g;`, `COMMIT;`)

	got := w.run(under(names, script...)...)

	require.Equal(t, app.ExitDone, got.code, got.errOut)
	require.Contains(t, got.errOut, "3 resources were held to the end")
	require.Equal(t, "2", w.one(`SELECT count(*) FROM seats`))
	require.Equal(t, "3", w.one(`SELECT count(*) FROM grants JOIN fencedb.fences USING (resource) WHERE token = last_fencing_token`))
	w.requireFree(names...)
}

func TestTheCommandFindsItsGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	got := w.run(under([]string{"seat:1", "--ttl", "20s", "--hold", "5m"}, "env")...)

	require.Zero(t, got.code, got.errOut)
	env := map[string]string{}
	for line := range strings.Lines(got.out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	var grants []map[string]any
	require.NoError(t, json.Unmarshal([]byte(env["FENCEDB_GRANTS"]), &grants))
	require.Len(t, grants, 1)
	require.Equal(t, []any{"seat:1", env["FENCEDB_LEASE_ID"]}, []any{grants[0]["resource"], grants[0]["lease_id"]})
	require.Equal(t, "seat:1", env["FENCEDB_RESOURCE"])
	require.Equal(t, w.pool.Config().ConnString(), env["FENCEDB_POSTGRES_URL"], "which --postgres has named")
	require.Equal(t, env["FENCEDB_TOKEN"]+" "+env["FENCEDB_LEASE_ID"], w.one(`SELECT concat_ws(' ', last_fencing_token, lease_id) FROM fencedb.fences`))
	require.Equal(t, fmt.Sprintf("SELECT * FROM fencedb.enter('seat:1', %s, '%s', 300000)", env["FENCEDB_TOKEN"], env["FENCEDB_LEASE_ID"]), env["FENCEDB_ENTER"])
}

// One that holds several finds nothing of a single one that it runs under.
func TestTheCommandDoesNotFindTheGrantOfAnother(t *testing.T) {
	w := newWorld(t)
	t.Setenv("FENCEDB_RESOURCE", "seat:9")
	t.Setenv("FENCEDB_TOKEN", "9")
	t.Setenv("FENCEDB_LEASE_ID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8")

	got := w.run(under([]string{"seat:1", "seat:2"}, "env")...)

	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "FENCEDB_GRANTS=")
	require.NotRegexp(t, "FENCEDB_(RESOURCE|TOKEN|LEASE_ID)=.", got.out)
}

// The transaction is open when the lease is revoked: the command is ended, and what it had not
// committed is not written.
func TestALeaseThatIsLostEndsTheCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate, reached := w.gate()
	running := w.start(under([]string{"--ttl", "15s", "seat:1"}, w.script(`BEGIN;`, `:enter;`, `INSERT INTO seats VALUES (1, 'Ann');`, gate, `\! sleep 60`, `COMMIT;`)...)...)
	reached()

	w.revoked("seat:1")

	require.Contains(t, running.next(running.errOut), "the lease is lost")
	require.Contains(t, running.next(running.errOut), "lease: revoked")
	require.Equal(t, with.ExitSignaled+int(syscall.SIGTERM), <-running.code)
	require.Equal(t, "0", w.one(`SELECT count(*) FROM seats`))
}

// A command that does not heed the signal comes to Postgres too late.
func TestTheCommitOfACommandWhoseLeaseIsLostIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate, reached := w.gate()
	again, told := w.gate()
	script := w.script(`BEGIN;`, `:enter;`, `INSERT INTO seats VALUES (1, 'Ann');`, `COMMIT;`, gate, again,
		`BEGIN;`, `:enter;`, `INSERT INTO seats VALUES (1, 'Eve');`, `COMMIT;`)
	running := w.start(under([]string{"--ttl", "15s", "--grace", "1h", "seat:1"}, append([]string{"sh", "-c", `trap "" TERM; "$@"`, "sh"}, script...)...)...)
	reached()
	w.revoked("seat:1")
	require.Contains(t, running.next(running.errOut), "gets SIGTERM")
	told()

	require.Contains(t, running.next(running.errOut), "is stale")
	require.Equal(t, 3, <-running.code)
	require.Equal(t, "Ann", w.one(`SELECT string_agg(guest, ' ') FROM seats`), "what was committed before stands")
}

func TestACommandThatIsDoneAfterItsLeaseWasLostHasNotSucceeded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate, reached := w.gate()
	running := w.start(under([]string{"--ttl", "1h", "seat:1"}, "sh", "-c", strings.TrimPrefix(gate, `\! `))...)
	require.Eventually(t, func() bool { return w.inspected("seat:1").Holder != nil }, time.Minute, 5*time.Millisecond)
	w.revoked("seat:1")
	reached()

	require.Contains(t, running.next(running.errOut), "the lease was lost before the command ended")
	require.Equal(t, with.ExitLost, <-running.code)
}

func TestACommandThatDoesNotEndAfterTheLossIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running := w.start(under([]string{"--ttl", "15s", "--grace", "1ms", "seat:1"}, "sh", "-c", `trap "" TERM; echo ready; while :; do sleep 1; done`)...)
	require.Equal(t, "ready", running.next(running.out))

	w.revoked("seat:1")

	require.Contains(t, running.next(running.errOut), "gets SIGTERM")
	require.Contains(t, running.next(running.errOut), "gets SIGKILL")
	require.Equal(t, with.ExitSignaled+int(syscall.SIGKILL), <-running.code)
}

func TestWithRunsNothingWhileAnotherHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:2")
	started := filepath.Join(t.TempDir(), "started")

	for _, flags := range [][]string{nil, {"--wait", "1s"}} {
		got := w.run(under(append(flags, "seat:1", "seat:2"), "touch", started)...)
		require.Equal(t, with.ExitHeld, got.code, got.errOut)
		require.Contains(t, got.errOut, `"seat:2"`)
		require.Contains(t, got.errOut, label, "who it is")
		require.Contains(t, got.errOut, "the command was not run")
	}

	require.NoFileExists(t, started)
	w.requireFree("seat:1")
	require.NoError(t, l.Extend(t.Context()))
}

func TestWithWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	running := w.start(under([]string{"--wait", "1m", "seat:1"}, "echo", "my turn")...)
	w.awaitWaiter("seat:1")
	require.NoError(t, l.Release(t.Context()))

	require.Equal(t, "my turn", running.next(running.out))
	require.Contains(t, running.next(running.errOut), "held to the end")
	require.Zero(t, <-running.code)
}

func TestWithOvertakesALedgerThatRedisIsBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, l.Release(t.Context()))
	ahead := fencedb.NewGrant("seat:1", l.Token()+1_000_000_000_000, l.LeaseID(), fencedb.NoEnd)
	require.NoError(t, w.book(ahead))

	require.Zero(t, w.run(under([]string{"seat:1"}, "true")...).code)

	require.ErrorIs(t, w.book(ahead), fencedb.ErrStale)
}

// A forgotten namespace: nobody else has the lease there, and sealing would shut the real holder
// out.
func TestWithWithoutTheNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")

	got := w.run(append([]string{"--namespace", ""}, under([]string{"seat:1"}, "true")...)...)

	require.Equal(t, with.ExitNotRun, got.code)
	require.Contains(t, got.errOut, `in namespace "`+w.namespace+`"`)
	require.NoError(t, w.book(l))
}

func TestExitCodesOfWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	noProgram := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(noProgram, nil, 0o600))
	format := filepath.Join(t.TempDir(), "format")
	require.NoError(t, os.WriteFile(format, []byte{0x7f, 'E', 'L', 'F'}, 0o700))
	for name, test := range map[string]struct {
		code    int
		command []string
		flags   []string
	}{
		"its own":           {7, []string{"sh", "-c", "exit 7"}, nil},
		"ended by a signal": {128 + 9, []string{"sh", "-c", "kill -KILL $$"}, nil},
		"not executable":    {with.ExitNotExecutable, []string{noProgram}, nil},
		"no program":        {with.ExitNotExecutable, []string{format}, nil},
		"not there":         {with.ExitNotFound, []string{"no-such-command"}, nil},
		"no file":           {with.ExitNotFound, []string{"./no-such-command"}, nil},
		"no Redis":          {with.ExitNotRun, []string{"true"}, []string{"--redis", "redis://127.0.0.1:1"}},
		"no Postgres":       {with.ExitNotRun, []string{"true"}, []string{"--postgres", "postgres://nobody@127.0.0.1:1/none"}},
		"refused":           {app.ExitUsage, []string{"true"}, []string{"--namespace", strings.Repeat("n", 200)}},
	} {
		got := w.run(append(test.flags, under([]string{"seat:1"}, test.command...)...)...)
		require.Equal(t, test.code, got.code, "%s: %s", name, got.errOut)
		require.NotEmpty(t, got.errOut, name)
		require.Equal(t, test.code == with.ExitNotRun, strings.Contains(got.errOut, "the command was not run"), "%s: %s", name, got.errOut)
		w.requireFree("seat:1")
	}
}

// linesOf returns the lines of r, one for each call.
func linesOf(t *testing.T, r io.Reader) func() string {
	s := bufio.NewScanner(r)
	return func() string {
		t.Helper()
		require.True(t, s.Scan(), "no more lines")
		return s.Text()
	}
}

// Ctrl-C in a terminal, or kill: the command gets the signal, with all that it has started, and
// decides; the lease is released when it has ended.
func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, s := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		program := fmt.Sprintf(`trap 'echo "got %d"; exit 7' %d; echo ready; while :; do sleep 1; done`, s, s)
		command, errOut := w.process(under([]string{"seat:1"}, "sh", "-c", program)...)
		command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // out of the terminal, if there is one
		out, err := command.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		next := linesOf(t, out)
		require.Equal(t, "ready", next())

		require.NoError(t, command.Process.Signal(s))

		require.Equal(t, fmt.Sprintf("got %d", s), next())
		_ = command.Wait()
		require.Equal(t, 7, command.ProcessState.ExitCode())
		require.Contains(t, errOut.String(), "seat:1 was held to the end")
		w.requireFree("seat:1")
	}
}

// Its output goes to head, or to a tee that has died or is stopped: the command is ended all the
// same, before anything is said.
func TestALossEndsTheCommandThoughNobodyReads(t *testing.T) {
	t.Parallel()
	for name, unread := range map[string]func(t *testing.T, read, write *os.File){
		"as the reader is gone":        func(t *testing.T, read, _ *os.File) { require.NoError(t, read.Close()) },
		"as the reader does not go on": func(t *testing.T, _, write *os.File) { fill(t, int(write.Fd())) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			command, _ := w.process(under([]string{"seat:1"}, "sh", "-c", "exec 2>/dev/null; trap 'echo ended >&3; exit 7' TERM; echo ready >&3; while :; do sleep 1; done")...)
			read, write, err := os.Pipe()
			require.NoError(t, err)
			defer read.Close()
			out, told, err := os.Pipe()
			require.NoError(t, err)
			command.Stderr, command.Stdout, command.ExtraFiles = write, write, []*os.File{told}
			require.NoError(t, command.Start())
			require.NoError(t, told.Close())
			next := linesOf(t, out)
			require.Equal(t, "ready", next())
			unread(t, read, write)
			require.NoError(t, write.Close())

			w.ok("revoke", "seat:1", "--reason", "it hangs", "--yes")

			require.Equal(t, "ended", next())
			_ = read.Close() // then it can say what it wanted to, to nobody
			_ = command.Wait()
			require.Equal(t, 7, command.ProcessState.ExitCode())
		})
	}
}

// fill makes the next write to a pipe wait.
func fill(t *testing.T, pipe int) {
	t.Helper()
	require.NoError(t, syscall.SetNonblock(pipe, true))
	for _, size := range []int{4096, 1} {
		for err := error(nil); err == nil; _, err = syscall.Write(pipe, make([]byte, size)) {
		}
	}
	require.NoError(t, syscall.SetNonblock(pipe, false))
}

func TestNohupIsPassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	command, errOut := w.process(under([]string{"seat:1"}, "sh", "-c", "trap 'echo went on; exit 0' USR1; echo ready; while :; do sleep 1; done")...)
	command.Path, command.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}, command.Args...)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	next := linesOf(t, out)
	require.Equal(t, "ready", next())

	require.NoError(t, command.Process.Signal(syscall.SIGHUP))
	require.NoError(t, command.Process.Signal(syscall.SIGUSR1))

	require.Equal(t, "went on", next())
	require.NoError(t, command.Wait(), errOut)
}

func TestCtrlCWhileWithWaitsRunsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	command, errOut := w.process(under([]string{"--wait", "1h", "seat:1"}, "true")...)
	require.NoError(t, command.Start())
	w.awaitWaiter("seat:1")

	require.NoError(t, command.Process.Signal(os.Interrupt))

	_ = command.Wait()
	require.Equal(t, with.ExitHeld, command.ProcessState.ExitCode(), errOut)
	require.Contains(t, errOut.String(), "the command was not run")
	require.NoError(t, l.Extend(context.Background()))
}

// Somebody has locked the ledger, so the lease cannot be sealed.
func TestWithGivesBackWhatItCouldNotSeal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	unlock := w.lockLedger()

	got := w.run(under([]string{"--timeout", "10s", "--ttl", "1h", "seat:1"}, "true")...)

	require.Equal(t, with.ExitNotRun, got.code, got.errOut)
	require.Contains(t, got.errOut, "the command was not run")
	unlock()
	w.requireFree("seat:1")
}

func TestWithNamesWhatItCouldNotGiveBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.own = testenv.OwnRedis(t)
	w.as("--redis", "redis://"+w.own.Addr())
	w.lockLedger()
	command, errOut := w.process(under([]string{"--timeout", "10s", "--wait", "1h", "--ttl", "1h", "seat:1"}, "true")...)
	require.NoError(t, command.Start())
	require.Eventually(t, func() bool {
		return w.one(`SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
			WHERE NOT granted AND relation = 'fencedb.fences'::regclass AND datname = current_database()`) == "1"
	}, time.Minute, 5*time.Millisecond)
	w.own.Pause()
	defer w.own.Resume()

	require.NoError(t, command.Process.Signal(os.Interrupt))

	_ = command.Wait()
	require.Equal(t, with.ExitNotRun, command.ProcessState.ExitCode(), errOut)
	require.Contains(t, errOut.String(), `may stay blocked: "seat:1" until`)
}

// lockLedger keeps everybody from the fences until unlock is called.
func (w *world) lockLedger() (unlock func()) {
	w.Helper()
	tx, err := w.pool.Begin(w.Context())
	require.NoError(w, err)
	unlock = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(w.Context())) })
	w.Cleanup(unlock)
	_, err = tx.Exec(w.Context(), `LOCK TABLE fencedb.fences`)
	require.NoError(w, err)
	return unlock
}

func TestWithSaysThatTheLeaseCouldNotBeReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.own = testenv.OwnRedis(t)
	w.as("--redis", "redis://"+w.own.Addr())
	gate, reached := w.gate()
	running := w.start(under([]string{"--timeout", "10s", "seat:1"}, "sh", "-c", strings.TrimPrefix(gate, `\! `))...)
	reached(func() { w.own.Pause() })

	require.Contains(t, running.next(running.errOut), "could not be released")
	require.Zero(t, <-running.code)
	w.own.Resume()
}

// Somebody types at night what the runbook says: its scripts, and its lines for the shell.
func TestTheRunbookRepairsRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, section, _ := strings.Cut(runbook(t), "## Repair a row by hand")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```sql\n")
	sql := func(n int) string { text, _, _ := strings.Cut(blocks[n], "```"); return text }
	w.exec(sql(1))
	_, err := fencedb.Exec(t.Context(), w.pool, fencedb.All(w.releasedGrants("table:12", "table:13", "table:14")...),
		`INSERT INTO bookings (table_id, guest) VALUES (12, 'Eve'), (13, 'Ahn'), (14, 'Ahn')`)
	require.NoError(t, err)
	dir := t.TempDir()
	for file, before := range map[string]string{"fix.sql": "`fix.sql` is", "many.sql": "`many.sql` is"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(listing(t, section, before)), 0o600))
	}
	for line := range strings.Lines(section) {
		if regexp.MustCompile(`^    (fencedb|psql|xargs) `).MatchString(line) {
			w.shell(dir, line)
		}
	}
	require.Equal(t, "Ann Ann Ann", w.one(`SELECT string_agg(guest, ' ') FROM bookings`))
	require.Equal(t, "1", w.one(`SELECT count(*) FROM fencedb.audit WHERE event = 'repair'`))

	// Without Redis: a holder that has acquired and not entered yet is shut out by the clock.
	l := w.acquire("table:12")
	w.exec(sql(2))
	_, err = fencedb.Exec(t.Context(), w.pool, fencedb.NewGrant("table:12", l.Token(), l.LeaseID(), fencedb.NoEnd), `UPDATE bookings SET guest = 'Eve' WHERE table_id = 12`)
	require.ErrorIs(t, err, fencedb.ErrStale)
}

// shell runs a line that must succeed, in a directory, where fencedb is this program.
func (w *world) shell(dir, line string) {
	w.Helper()
	self, err := os.Executable()
	require.NoError(w, err)
	require.NoError(w, os.WriteFile(filepath.Join(dir, "fencedb"), []byte("#!/bin/sh\n"+commandVar+"=1 exec '"+self+"' \"$@\"\n"), 0o700))
	shell := exec.CommandContext(w.Context(), "sh", "-ec", line)
	shell.Dir = dir
	shell.Env = append(os.Environ(), "PATH="+dir+":"+filepath.Dir(testenv.Psql(w))+":"+os.Getenv("PATH"),
		"FENCEDB_POSTGRES_URL="+w.pool.Config().ConnString(), "FENCEDB_REDIS_URL="+redisURL(w.redis), "FENCEDB_NAMESPACE="+w.namespace)
	out, err := shell.CombinedOutput()
	require.NoError(w, err, "%s%s", line, out)
}

// Who is refused in psql, and does what the hint says, writes.
func TestTheHintOfARefusalLeadsToAWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, w.book(w.releasedGrants("seat:1")[0]))
	dir := t.TempDir()
	file := filepath.Join(dir, "plain.sql")

	_, err := w.pool.Exec(t.Context(), `DELETE FROM seats`)
	refused, _ := errors.AsType[*pgconn.PgError](err)
	require.Equal(t, "FN002", refused.Code)
	require.JSONEq(t, `{"table": "public.seats"}`, refused.Detail)
	_, line, _ := strings.Cut(refused.Hint, "with psql: ")
	line, _, _ = strings.Cut(line, "). ROLLBACK TO")
	line = strings.Replace(line, "RESOURCE", "seat:1", 1)

	require.NoError(t, os.WriteFile(file, []byte(`SELECT 1 / 0; DELETE FROM seats;`), 0o600))
	w.shell(dir, "! { "+line+"; }")
	require.Equal(t, "1", w.one(`SELECT count(*) FROM seats`))

	require.NoError(t, os.WriteFile(file, []byte(`DELETE FROM seats;`), 0o600))
	w.shell(dir, line)
	require.Equal(t, "0", w.one(`SELECT count(*) FROM seats`))
}

// A partition that came later refuses rows, and names their resource.
func TestTheHintOfARefusalQuotesTheResourceForAShell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE parts (room text NOT NULL) PARTITION BY LIST (room); SELECT fencedb.protect('parts', 'room:{room}'); CREATE TABLE rooms PARTITION OF parts DEFAULT`)
	const write = `INSERT INTO rooms VALUES (E'o''hara \\ $HOME');`

	_, err := w.pool.Exec(t.Context(), write)
	refused, _ := errors.AsType[*pgconn.PgError](err)
	require.Equal(t, "FN002", refused.Code)
	_, line, _ := strings.Cut(refused.Hint, "with psql: ")
	line, _, _ = strings.Cut(line, "). ROLLBACK TO")

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "plain.sql"), []byte(write), 0o600))
	w.shell(dir, line)
	require.Equal(t, "1", w.one(`SELECT count(*) FROM parts`))
}

// releasedGrants are those of leases that are over, which nobody has overtaken.
func (w *world) releasedGrants(resources ...string) (all []fencedb.Grant) {
	w.Helper()
	for _, resource := range resources {
		l := w.acquire(resource)
		all = append(all, fencedb.NewGrant(resource, l.Token(), l.LeaseID(), fencedb.NoEnd))
		require.NoError(w, l.Release(w.Context()))
	}
	return all
}

// Each question, and Ctrl-C for an answer: nothing is changed, and nobody has to press return
// first.
func TestCtrlCLeavesEachPrompt(t *testing.T) {
	t.Parallel()
	w := aged(t)
	before := w.fences()
	for _, args := range [][]string{
		{"revoke", "seat:1", "--reason", "it hangs"},
		{"reset", "a:1", "--to", "1", "--reason", "a mistake"},
		{"prune", "--apply", "--reason", "monthly"},
		{"migrate", "down"},
		{"migrate", "reset"},
	} {
		for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			command, _ := w.process(args...)
			_, err := command.StdinPipe() // nobody types
			require.NoError(t, err)
			command.Stderr = nil
			errOut, err := command.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, command.Start())
			said := bufio.NewReader(errOut)
			for text := ""; !strings.HasSuffix(text, "[y/N] "); {
				b, err := said.ReadByte()
				require.NoError(t, err, text)
				text += string(b)
			}

			require.NoError(t, command.Process.Signal(s))

			_, _ = io.Copy(io.Discard, said)
			_ = command.Wait()
			require.Equal(t, app.ExitDeclined, command.ProcessState.ExitCode(), args)
		}
	}
	require.Equal(t, before, w.fences())
	require.Equal(t, "0", w.one(`SELECT count(*) FROM fencedb.audit WHERE event <> 'protect'`))
	require.NotNil(t, w.inspected("seat:1").Holder)
}

// Programs have parameters of pgx in their URL, which psql refuses: as an argument, and in the
// environment of a script.
func TestWithGivesPsqlAURLThatItTakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address := w.pool.Config().ConnString() + "&default_query_exec_mode=exec&pool_max_conns=3&statement_cache_capacity=0&search_path=%22a%20b%22,public&application_name=fix"
	w.as("--postgres", address)
	const asks = `SELECT current_setting('search_path') || ' of ' || current_setting('application_name')`
	for _, command := range [][]string{
		{testenv.Psql(w), "--no-psqlrc", "-At", address, "-c", asks},
		{"sh", "-c", `"$0" --no-psqlrc -At "$FENCEDB_POSTGRES_URL" -c "$1"`, testenv.Psql(w), asks},
	} {
		got := w.run(under([]string{"seat:1"}, command...)...)
		require.Zero(t, got.code, got.errOut)
		require.Equal(t, "\"a b\",public of fix\n", got.out)
	}
}
