package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/with"
)

// stubborn prints its process id, and ends at SIGKILL only.
const stubborn = `sh -c 'trap "" INT QUIT TERM; echo $$; exec sleep 1000'`

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// A lease is over, and what has run under it goes on: whatever became of its parent, its group and
// its session, it has ended when with says what became of the lease.
func TestNothingOutlivesWith(t *testing.T) {
	t.Parallel()
	const goesOn = "\nwhile :; do sleep 1; done"
	starts := map[string]string{
		"in its group":              stubborn + ` &`,
		"in a session of its own":   `setsid ` + stubborn + ` &`,
		"without its parent":        `(setsid ` + stubborn + ` &)`,
		"under another that is not": `setsid sh -c '` + strings.ReplaceAll(stubborn, `'`, `'\''`) + `; true' &`,
	}
	for ending, test := range map[string]struct {
		rest string
		end  func(w *world, pid int)
		code int
		says string
	}{
		"the lease is lost": {goesOn, func(w *world, _ int) { w.revoked("seat:1") }, with.ExitSignaled + int(syscall.SIGTERM), "the lease was lost before"},
		"the command ends":  {"", func(*world, int) {}, app.ExitDone, "seat:1 was held to the end"},
		"the command quits": {goesOn, func(w *world, with int) { require.NoError(w, syscall.Kill(with, syscall.SIGQUIT)) },
			with.ExitSignaled + int(syscall.SIGQUIT), "seat:1 was held to the end"},
	} {
		for how, start := range starts {
			t.Run(ending+", "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				command, errOut := w.process(under([]string{"--ttl", "15s", "--grace", "100ms", "seat:1"}, "sh", "-c", start+test.rest)...)
				out, err := command.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, command.Start())
				line, err := bufio.NewReader(out).ReadString('\n')
				require.NoError(t, err)
				pid, err := strconv.Atoi(strings.TrimSpace(line))
				require.NoError(t, err)

				test.end(w, command.Process.Pid)

				_ = command.Wait()
				require.False(t, alive(pid), errOut)
				require.Equal(t, test.code, command.ProcessState.ExitCode(), errOut)
				require.Regexp(t, `(?s)gets SIGTERM.*gets SIGKILL.*`+test.says, errOut.String())
				w.requireFree("seat:1")
			})
		}
	}
}

// The lease is held for as long as anything works under it.
func TestTheLeaseIsHeldUntilTheLastProcessHasEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate, reached := w.gate()
	reads := strings.TrimPrefix(gate, `\! `)

	running := w.start(under([]string{"--grace", "1h", "seat:1"}, "sh", "-c", `setsid sh -c 'trap "" TERM; `+reads+`' &`)...)

	require.Contains(t, running.next(running.errOut), "sh has ended, but not what it has started, which gets SIGTERM")
	require.NotNil(t, w.inspected("seat:1").Holder)
	reached()
	require.Contains(t, running.next(running.errOut), "seat:1 was held to the end")
	require.Zero(t, <-running.code)
	w.requireFree("seat:1")
}

// A script may start something, and then exec fencedb with.
func TestWithEndsNothingThatItHasNotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	command, errOut := w.process(under([]string{"seat:1"}, "true")...)
	script := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `sleep 1000 >&- 2>&- & echo $!; exec "$@"`, "sh", command.Path}, command.Args[1:]...)...)
	script.Env, script.Stderr = command.Env, errOut

	out, err := script.Output()

	require.NoError(t, err, errOut)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	require.True(t, alive(pid))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// psql asks for a password, ssh for a yes, also where their input is a file or a pipe.
func TestTheCommandMayAskInATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer master.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer terminal.Close()
	command, _ := w.process(under([]string{"seat:1"}, "sh", "-c", `read answer </dev/tty; echo "$answer"; exec sleep 1000`)...)
	command.Stderr = terminal
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	defer time.AfterFunc(time.Minute, func() { _ = command.Process.Kill() }).Stop()

	_, err = master.WriteString("an answer\n")
	require.NoError(t, err)
	require.Equal(t, "an answer", linesOf(t, out)())

	_, err = master.WriteString("\x03") // Ctrl-C
	require.NoError(t, err)
	_ = command.Wait()
	require.Equal(t, with.ExitSignaled+int(syscall.SIGINT), command.ProcessState.ExitCode())
	w.requireFree("seat:1")
}

// To the end: its lease is lost while the command runs as another user. It gets no signal, goes on,
// and with says so and waits for it. Where the tests are not root's, sudo makes it another user's.
func TestACommandOfAnotherUserGoesOnAfterALoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	without, another := []string{"setpriv", "--bounding-set=-kill"}, []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	if os.Geteuid() != 0 {
		without, another = []string{"env"}, []string{"sudo", "--non-interactive"}
	}
	wrapper, _ := w.process(under([]string{"--ttl", "15s", "--grace", "100ms", "seat:1"}, append(another, "sh", "-c", `echo $$; read line; echo "$line"`)...)...)
	var err error
	wrapper.Path, err = exec.LookPath(without[0])
	require.NoError(t, err)
	wrapper.Args, wrapper.Stderr = append(without, wrapper.Args...), nil
	in, err := wrapper.StdinPipe()
	require.NoError(t, err)
	out, err := wrapper.StdoutPipe()
	require.NoError(t, err)
	errOut, err := wrapper.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, wrapper.Start())
	next, said := linesOf(t, out), linesOf(t, errOut)
	pid := next()

	w.revoked("seat:1")

	denied := `no right to signal \[(\d+ )*` + pid + `\], of another user, as with sudo: it goes on, and fencedb waits for its end`
	require.Contains(t, said(), "the lease is lost after")
	require.Regexp(t, denied, said())
	require.Contains(t, said(), "it gets SIGKILL")
	require.Regexp(t, denied, said())
	_, err = in.Write([]byte("it went on\n"))
	require.NoError(t, err)
	require.Equal(t, "it went on", next())
	require.Contains(t, said(), "the lease was lost before the command ended")
	_ = wrapper.Wait()
	require.Equal(t, with.ExitLost, wrapper.ProcessState.ExitCode())
}
