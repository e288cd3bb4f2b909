package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/chaos"
)

// bare is a console on a Redis and an empty database, whose role may make schemas and no more.
func bare(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.exec(`SELECT fencedb.unprotect('seats'); DROP TABLE seats; DROP SCHEMA fencedb CASCADE`)
	w.flags = []string{"--redis", redisURL(w.redis), "--postgres",
		w.login("tester", `DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), %[1]s::regrole); END $$`)}
	return w
}

// left is what is in the database, beside what Postgres puts there, and in Redis of a run.
func (w *world) left(run string) []string {
	w.Helper()
	keys, err := w.redis.Keys(w.Context(), "*"+run+"*").Result()
	require.NoError(w, err)
	return append(keys, w.one(`SELECT coalesce(string_agg(nspname, ' '), '') FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema|public$)'`))
}

func TestChaosPassesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := bare(t)
	page := filepath.Join(t.TempDir(), "verdict.html")
	var v chaos.Verdict

	got := w.run("--json", "chaos", "--for", "4s", "--ttl", "500ms", "--seed", "41", "--html", page)

	require.Equal(t, app.ExitDone, got.code, got.errOut+got.out)
	require.Contains(t, got.errOut, "seed 41", "the time line is not in the way of JSON")
	w.decode("chaos", &v, got.out)
	require.Positive(t, v.Outcomes[chaos.Committed])
	require.NotEmpty(t, v.Faults)
	require.Empty(t, v.Left)
	require.Equal(t, []string{""}, w.left(v.Run))
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "Passed")
}

// As when the connection to the terminal is lost, and in fencedb chaos | head.
func TestChaosThatNobodyWatchesAnyMoreLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*exec.Cmd, io.Closer) error{
		"hung up":       func(command *exec.Cmd, _ io.Closer) error { return command.Process.Signal(syscall.SIGHUP) },
		"a closed pipe": func(_ *exec.Cmd, out io.Closer) error { return out.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := bare(t)
			command, errOut := w.process("chaos", "--for", "1h", "--ttl", "500ms")
			out, _, run := atFirstFault(t, command)

			require.NoError(t, leave(command, out))

			_, _ = io.Copy(io.Discard, out)
			_ = command.Wait()
			require.Equal(t, []string{""}, w.left(run), errOut)
		})
	}
}

// atFirstFault starts a chaos run and waits for its first fault. It returns what comes after that,
// and the name of the run.
func atFirstFault(t *testing.T, command *exec.Cmd) (out io.ReadCloser, next func() string, run string) {
	t.Helper()
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	next = linesOf(t, out)
	run, _, _ = strings.Cut(strings.TrimPrefix(next(), "run "), ":")
	next()
	return out, next, run
}

// The signal also comes when a worker is killed to which its network is writing.
func TestChaosGoesOnWhenAnotherPipeBreaks(t *testing.T) {
	t.Parallel()
	w := bare(t)
	command, errOut := w.process("chaos", "--for", "1h", "--ttl", "500ms", "--only", "jitter")
	out, next, _ := atFirstFault(t, command)

	require.NoError(t, command.Process.Signal(syscall.SIGPIPE))

	require.Contains(t, next(), "jitter")
	require.NoError(t, command.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, out)
	require.NoError(t, command.Wait(), errOut)
}

func TestChaosAndDrillGiveUpOnAServerThatHangs(t *testing.T) {
	t.Parallel()
	w := bare(t).as("--timeout", "10s").as("--postgres", "postgres://ann@"+silent(t)+"/none?sslmode=disable")
	for _, command := range []string{"chaos", "drill"} {
		got := w.run(command)
		require.Equal(t, app.ExitFailed, got.code)
		require.Contains(t, got.errOut, "postgres: no answer from 127.0.0.1:")
	}
}

func TestChaosFailsWithAControl(t *testing.T) {
	t.Parallel()
	w := bare(t)

	got := w.run("chaos", "--for", "5s", "--ttl", "500ms", "--control", "no-fence", "--only", "pause")
	for range 3 { // a busy machine may leave no time for a violation
		if got.code != app.ExitFailed {
			got = w.run("chaos", "--for", "5s", "--ttl", "500ms", "--control", "no-fence", "--only", "pause")
		}
	}

	require.Equal(t, app.ExitFailed, got.code, got.out)
	require.Contains(t, got.out, "VIOLATED  ")
	require.Empty(t, w.one(`SELECT coalesce(string_agg(nspname, ' '), '') FROM pg_namespace WHERE nspname ~ '^(chaos_|fencedb)'`))
}

func TestDrillTellsEachStoryAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := bare(t)
	var d chaos.Drilled

	got := w.run("--json", "drill", "--ttl", "8s")

	require.Equal(t, app.ExitDone, got.code, got.errOut)
	w.decode("drill", &d, got.out)
	require.Empty(t, d.Broken())
	require.Empty(t, d.Left)
	require.Equal(t, []string{""}, w.left(d.Run))
	for _, story := range d.Stories {
		require.Contains(t, got.errOut, story.Title)
	}
	require.Contains(t, got.errOut, "6 of 6 stories ended as promised")
}

// The processes share its stderr, which ends with the last of them. One of them can do nothing: it
// is stopped.
func TestNoProcessOutlivesADrill(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]os.Signal{"interrupted": os.Interrupt, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := bare(t)
			command, _ := w.process("drill", "--ttl", "8s")
			stderr, theirs, err := os.Pipe()
			require.NoError(t, err)
			command.Stderr = theirs
			out, err := command.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, command.Start())
			require.NoError(t, theirs.Close())
			for next := linesOf(t, out); !strings.Contains(next(), "kill -STOP"); {
			}

			require.NoError(t, command.Process.Signal(s))

			_, _ = io.Copy(io.Discard, out)
			var exit *exec.ExitError
			require.ErrorAs(t, command.Wait(), &exit)
			require.Equal(t, map[os.Signal]int{os.Interrupt: app.ExitFailed, os.Kill: -1}[s], exit.ExitCode())
			require.NoError(t, stderr.SetReadDeadline(time.Now().Add(time.Minute)))
			said, err := io.ReadAll(stderr)
			require.NoError(t, err, "a process lives on; %s", said)
		})
	}
}

// A database that has the schema fencedb keeps it, and no guard of a run, also of one that is
// interrupted.
func TestDrillAndChaosLeaveNothingThatDoctorOrHistoryNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	found := w.diagnosed(app.ExitDone)
	told := said(w.told("seat:1"))

	w.ok("drill", "--ttl", "8s")
	command, errOut := w.process("chaos", "--for", "1h", "--ttl", "500ms")
	out, _, _ := atFirstFault(t, command)
	require.NoError(t, command.Process.Signal(syscall.SIGINT))
	_, _ = io.Copy(io.Discard, out)
	require.NoError(t, command.Wait(), errOut)

	require.Equal(t, found, w.diagnosed(app.ExitDone))
	require.Equal(t, told, said(w.told("seat:1")))
	require.Equal(t, "5 5", w.one(`SELECT concat_ws(' ', count(*) FILTER (WHERE event = 'protect'), count(*) FILTER (WHERE event = 'unprotect'))
		FROM fencedb.audit WHERE details ->> 'table' ~ '^chaos_'`))
}

func TestChaosRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range [][]string{
		{"chaos", "--control", "luck"},
		{"chaos", "--only", "earthquake"},
		{"chaos", "--ttl", "1ms"},
		{"chaos", "--workers", "-1"},
		{"chaos", "--for", "0s"},
		{"chaos", "--workers", "0"},
		{"drill", "--ttl", "0s"},
		{"chaos", "--html", filepath.Join(t.TempDir(), "none", "verdict.html")},
		{"chaos", "now"},
		{"drill", "now"},
		{"drill", "--ttl", "1ms"},
		{"--redis", "", "drill"},
		{"--postgres", "", "chaos"},
		{"--redis", "http://cache", "chaos"},
	} {
		require.Equal(t, app.ExitUsage, w.run(args...).code, args)
	}
}

func TestChaosThatCannotBeginKeepsAnEarlierVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	page := filepath.Join(t.TempDir(), "verdict.html")
	require.NoError(t, os.WriteFile(page, []byte("of an earlier run"), 0o600))

	w.flags = []string{"--redis", redisURL(w.redis), "--postgres", w.login("may_create_nothing", "")}

	got := w.run("chaos", "--html", page)

	require.Equal(t, app.ExitFailed, got.code, got.errOut)
	require.Contains(t, got.errOut, "may not enter fences")
	kept, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, "of an earlier run", string(kept))
}
