package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/with"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
)

// A person at a terminal learns what is in the way; a script that is done soon gets the error only.
func TestAPersonLearnsWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	redis, _ := hanging(t)
	postgres, _ := hanging(t)
	w := newWorld(t)
	_, err := w.pool.Exec(t.Context(), `SELECT pg_advisory_lock(x'66656e63656462'::bigint)`)
	require.NoError(t, err)
	for says, args := range map[string][]string{
		"waiting for redis at " + redis:                        {"--redis", "redis://" + redis, "leases"},
		"waiting for postgres at " + postgres:                  {"--postgres", "postgres://ann@" + postgres + "/none?sslmode=disable", "adopt", "seats"},
		"waiting for the servers, for 30s at most (--timeout)": {"migrate", "up"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			c := newConsole(t, slices.Concat(w.flags, []string{"--timeout", "30s"})...)
			c.watched = true
			got := c.start(args...)
			require.Contains(t, got.line(got.errOut), says)
			got.interrupt()
			require.NotContains(t, got.line(got.errOut), "waiting for")
			require.NotZero(t, <-got.code)

			got = newConsole(t, slices.Concat(w.flags, []string{"--timeout", "500ms"})...).start(args...)
			require.NotContains(t, got.line(got.errOut), "waiting for")
			require.NotZero(t, <-got.code)
		})
	}

	slow := newConsole(t, "--timeout", "30s", "--redis", "redis://"+redis+"?read_timeout=20s", "--postgres", w.pool.Config().ConnString())
	for _, args := range [][]string{{"inspect", "seat:1"}, {"history", "seat:1"}, {"leases"}, {"doctor"}} {
		got := slow.start(args...)
		require.Regexp(t, `^fencedb: \d+(\.\d)?s: waiting for `, got.line(got.errOut), args)
	}

	// told is what a person sees of a command that is interrupted at its first word.
	told := func(args ...string) (said string, code int) {
		ctx, interrupt := context.WithCancel(t.Context())
		text := new(strings.Builder)
		a := &app.State{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.MultiWriter(text, onWrite(interrupt)), Watched: true}
		code = run(ctx, a, slices.Concat([]string{"fencedb"}, w.flags, args))
		return text.String(), code
	}
	l := w.acquire("seat:1")
	said, code := told("--timeout", "50s", "with", "--wait", "10s", "seat:1", "--", "true")
	require.Equal(t, with.ExitHeld, code, said)
	require.Contains(t, said, "waiting for seat:1, for 1m at most (--wait and --timeout)")

	require.NoError(t, w.book(l))
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, l)
	require.NoError(t, err)
	var pid int
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT pg_backend_pid() FROM set_config('application_name', 'lunch', false)`).Scan(&pid))
	for _, args := range [][]string{
		{"revoke", "seat:1", "--reason", "it hangs", "--yes"},
		{"revoke", "seat:1", "--reason", "it hangs", "--yes", "--seal-only"},
		{"reset", "seat:1", "--to", "1", "--force", "--reason", "a trial", "--yes"},
		{"with", "seat:1", "--", "true"},
		{"revoke", "--behind", "--reason", "it hangs", "--yes"}, // Redis has the tokens of those before
	} {
		said, code := told(append([]string{"--timeout", "30s"}, args...)...)
		line, _, _ := strings.Cut(said, "\n")
		require.Regexp(t, fmt.Sprintf(`: waiting for .*; open transactions are in the way: pid %d \(lunch, idle in transaction, open for [^)]+\)$`, pid), line, args)
		require.NotZero(t, code)
	}
	require.NoError(t, tx.Rollback(t.Context()))

	require.Empty(t, newConsole(t, "--postgres", testenv.PostgresURL(t)).run("migrate", "status").errOut, "what is quick is not told")
}

// onWrite is called when something is written.
type onWrite func()

func (f onWrite) Write(text []byte) (int, error) {
	f()
	return len(text), nil
}
