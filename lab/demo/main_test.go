package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// asProgram makes the test binary be the program under test, which in turn makes workers of it.
const asProgram = "DEMO_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testenv.Main(m)
}

var titles = []string{
	"1  Two guests, one table",
	"2  The stolen lock",
	"3  The crash",
	"4  The zombie",
	"5  The control: the same zombie, no fence",
}

func TestDemoKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	d := start(t)

	require.NoError(t, d.wait())

	text := d.out.String()
	for _, title := range titles {
		require.Equal(t, kept, d.verdict(title), title)
	}
	require.Contains(t, text, "5 of 5 stories ended as promised")
	requirePlainAndNarrow(t, text)
	requireRefusal(t, text)
}

// Plain because it goes to a pipe, narrow enough for a terminal of 80 columns.
func requirePlainAndNarrow(t *testing.T, text string) {
	t.Helper()
	require.NotContains(t, text, "\x1b")
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

// The zombie is refused with the token it carried and the one that was stored.
func requireRefusal(t *testing.T, text string) {
	t.Helper()
	tokens := regexp.MustCompile(`carried\s+(\d+),\s+stored\s+(\d+)`).FindStringSubmatch(text)
	require.Len(t, tokens, 3)
	carried, err := strconv.ParseInt(tokens[1], 10, 64)
	require.NoError(t, err)
	stored, err := strconv.ParseInt(tokens[2], 10, 64)
	require.NoError(t, err)
	require.Less(t, carried, stored)
}

func TestDemoNoticesThatTheFenceIsGone(t *testing.T) {
	t.Parallel()
	d := start(t, "-unprotected")

	var exit *exec.ExitError
	require.ErrorAs(t, d.wait(), &exit)
	require.Equal(t, 1, exit.ExitCode())

	for i, title := range titles {
		want := kept
		if i == 3 { // the zombie; the others do not depend on the fence
			want = broken
		}
		require.Equal(t, want, d.verdict(title), title)
	}
	require.Contains(t, d.out.String(), "4 of 5 stories ended as promised")
}

func TestNoProcessOutlivesAnInterruptedDemo(t *testing.T) {
	t.Parallel()
	d := begin(t, hasty(t))
	d.out.until(t, "kill -STOP")

	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))

	var exit *exec.ExitError
	require.ErrorAs(t, d.wait(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}

func TestNoProcessOutlivesAKilledDemo(t *testing.T) {
	t.Parallel()
	d := begin(t, hasty(t))
	d.out.until(t, "kill -STOP") // one of the workers can do nothing now

	require.NoError(t, d.cmd.Process.Kill())

	require.Error(t, d.wait())
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		`unknown argument "sing"`:    {"sing"},
		`unknown argument "dance"`:   {"page", "dance"},
		"-sing":                      {"-sing"},
		"-dance":                     {"page", "-dance"},
		`value "1500" for flag -ttl`: {"-ttl", "1500"}, // no unit
		"must be at least 1ms":       {"-ttl", "0s"},
	} {
		require.ErrorContains(t, run(t.Context(), args), says)
	}
	var exit *exec.ExitError
	require.ErrorAs(t, program(t, "sing").Run(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}

// running is the demo under test.
type running struct {
	*testing.T
	cmd    *exec.Cmd
	out    *watched
	stderr *os.File
}

// start runs the demo.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	return begin(t, program(t, args...))
}

// hasty is the demo for tests that wait for one of its later scenes only.
func hasty(t *testing.T) *exec.Cmd {
	t.Helper()
	return program(t, "-ttl", "500ms")
}

// begin runs the demo on the shared servers of the tests.
func begin(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	cmd.Env = append(cmd.Env,
		"FENCEDB_POSTGRES_URL="+testenv.PostgresURL(t),
		"FENCEDB_REDIS_URL=redis://"+testenv.Redis(t).Options().Addr+"/0")
	stderr, theirs, err := os.Pipe()
	require.NoError(t, err)
	d := &running{t, cmd, &watched{more: make(chan struct{}, 1)}, stderr}
	cmd.Stdout, cmd.Stderr = d.out, theirs
	require.NoError(t, cmd.Start())
	require.NoError(t, theirs.Close())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		if t.Failed() {
			t.Log(d.out.String())
		}
	})
	return d
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// wait waits until the demo has ended and all its workers with it: they share its stderr, which
// ends with the last of them.
func (d *running) wait() error {
	d.Helper()
	err := d.cmd.Wait()
	require.NoError(d, d.stderr.SetReadDeadline(time.Now().Add(20*time.Second)))
	said, readErr := io.ReadAll(d.stderr)
	require.NoError(d, readErr, "a worker lives on")
	if len(said) > 0 {
		d.Logf("stderr: %s", said)
	}
	return err
}

// verdict is what the summary says about a story, which has its title in front of it.
func (d *running) verdict(title string) (word string) {
	for line := range strings.Lines(d.out.String()) {
		if rest, ok := strings.CutPrefix(line, title); ok {
			word = strings.TrimSpace(rest)
		}
	}
	return word
}

// watched is a buffer that tells when it has grown.
type watched struct {
	more chan struct{}

	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
	return w.buf.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// until waits until a text was written.
func (w *watched) until(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(w.String(), text) {
		select {
		case <-w.more:
		case <-deadline:
			require.Fail(t, "not printed", "%q in %s", text, w)
		}
	}
}
