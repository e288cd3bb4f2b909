package testenv

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Longer than any server takes to end.
const patience = time.Minute

func TestNothingIsLeftWhenTheProgramEnds(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"return", "panic", "log.Fatal"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			program := startProgram(t, way)
			program.awaitStart(t)
			require.NoError(t, program.stdin.Close())
			_ = program.cmd.Wait() // its exit status is that of a panic or of log.Fatal
			program.requireNothingLeft(t)
		})
	}
}

func TestNothingIsLeftWhenTheProgramIsKilled(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			program := startProgram(t, "signal")
			program.awaitStart(t)
			require.NoError(t, program.cmd.Process.Signal(sig))
			require.Error(t, program.cmd.Wait())
			program.requireNothingLeft(t)
		})
	}
}

// A terminal sends Ctrl-C to every process in the foreground, that is, to the program's whole
// group.
func TestNothingIsLeftAfterCtrlC(t *testing.T) {
	t.Parallel()
	program := startProgram(t, "signal")
	program.awaitStart(t)
	require.NoError(t, syscall.Kill(-program.cmd.Process.Pid, syscall.SIGINT))
	require.Error(t, program.cmd.Wait())
	program.requireNothingLeft(t)
}

// The moment is early: initdb has not ended yet, no server runs.
func TestNothingIsLeftWhenTheProgramIsKilledWhileItStarts(t *testing.T) {
	t.Parallel()
	program := startProgram(t, "signal")
	require.Eventually(t, func() bool {
		made, err := filepath.Glob(filepath.Join(program.temp, "*", "data", "*"))
		return err == nil && len(made) > 0
	}, patience, time.Millisecond)
	require.NoError(t, program.cmd.Process.Kill())
	require.Error(t, program.cmd.Wait())
	program.requireNothingLeft(t)
}

func TestNothingIsLeftWhenAServerDoesNotStart(t *testing.T) {
	temp := sharedTempDir(t)
	t.Setenv("TMPDIR", temp)
	_, err := newRedisNode(t.Context(), redisService.own(t), "", nil, "--no-such-option", "1")
	require.ErrorIs(t, err, errExited)
	require.ErrorContains(t, err, "no-such-option", "the error shows the server's log")
	_, err = newPostgresCluster(t.Context(), postgresService.own(t), "no_such_setting=1")
	require.ErrorIs(t, err, errExited)
	require.ErrorContains(t, err, "no_such_setting", "the error shows the server's log")
	require.Empty(t, entries(t, temp))
}

func TestNothingIsLeftWhenTheStartIsCancelled(t *testing.T) {
	temp := sharedTempDir(t)
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := newPostgresCluster(ctx, postgresService.own(t))
	require.ErrorIs(t, err, context.Canceled)
	_, err = newRedisNode(ctx, redisService.own(t), "", nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, entries(t, temp))
}

func TestACommandThatIsNotDoneInTimeIsStopped(t *testing.T) {
	t.Parallel()
	dir := sharedTempDir(t)
	inner := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(inner, 0o700))
	slow, err := supervise(inner, nil, nil, stopByKill, "sleep", "1000")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, slow.await(ctx, never), context.Canceled)
	require.NoError(t, slow.stop())
	require.Empty(t, entries(t, dir))
}

// never is what no server says.
var never = regexp.MustCompile(`(no server says this)`)

// Somebody may kill the supervisor. The server is then as good as gone, and must not be waited for.
func TestAKilledSupervisorIsNoticed(t *testing.T) {
	t.Parallel()
	node, err := newRedisNode(t.Context(), redisService.own(t), "", nil)
	require.NoError(t, err)
	defer os.RemoveAll(node.dir)
	require.NoError(t, node.process.shell.Process.Kill())
	require.ErrorIs(t, node.process.await(t.Context(), never), errExited)
	require.Error(t, node.stop(), "that is, the supervisor was killed")
}

// So that a package's tests may look for leaked goroutines while servers run.
func TestServersRunWithoutGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	cluster, err := newPostgresCluster(t.Context(), postgresService.own(t))
	require.NoError(t, err)
	defer cluster.stop()
	node, err := newRedisNode(t.Context(), redisService.own(t), "", nil)
	require.NoError(t, err)
	defer node.stop()
	goleak.VerifyNone(t, before)
}

// program is this test binary as startServersAndEnd.
type program struct {
	cmd    *exec.Cmd
	stdin  io.Closer // the program runs until it is closed
	stdout io.Reader
	temp   string // its TMPDIR: no other program uses it, and the servers' command lines name it
}

func startProgram(t *testing.T, way string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(os.Args[0]), temp: sharedTempDir(t)}
	p.cmd.Env = append(os.Environ(), endVar+"="+way, "TMPDIR="+p.temp, postgresURLVar+"=", redisURLVar+"=")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	p.stdout, err = p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // does nothing to one that was waited for
	return p
}

func (p *program) awaitStart(t *testing.T) {
	t.Helper()
	line, err := bufio.NewReader(p.stdout).ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "started "), line)
	require.Len(t, entries(t, p.temp), 2, "a directory per server")
	require.NotEmpty(t, processesNaming(t, p.temp))
}

func (p *program) requireNothingLeft(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return len(processesNaming(t, p.temp)) == 0 && len(entries(t, p.temp)) == 0
	}, patience, 100*time.Millisecond, "left: %v %v", processesNaming(t, p.temp), entries(t, p.temp))
}

// sharedTempDir returns a new directory like /tmp, in which everybody may make files. t.TempDir's
// cannot be reached by the other account that Postgres runs under when we are root.
func sharedTempDir(t *testing.T) string {
	t.Helper()
	var ourselves *account
	dir, err := ourselves.tempDir()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, os.ModeSticky|0o777))
	return dir
}

func entries(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	found, err := os.ReadDir(dir)
	require.NoError(t, err)
	return found
}

// processesNaming lists the processes whose command line contains the text.
func processesNaming(t *testing.T, text string) []string {
	t.Helper()
	all, err := exec.Command("ps", "-A", "-o", "pid=,args=").Output()
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func TestATakenPortIsTriedAgainWithAnother(t *testing.T) {
	var n node
	var ports []int
	err := n.onFreePort(t.Context(), func(context.Context) error {
		ports = append(ports, n.port)
		if len(ports) == 3 {
			return nil
		}
		// As another program may, a moment before us. The next port is that of a cluster's bus.
		taken, err := net.Listen("tcp", address(n.port+len(ports)-1))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, taken.Close()) })
		return errors.New("address already in use")
	})
	require.NoError(t, err)
	require.Len(t, ports, 3)
}

// A server is looked for on its port while it is down, and after its end.
func TestThePortOfAServerThatIsDownIsNobodyElses(t *testing.T) {
	var n node
	require.NoError(t, n.onFreePort(t.Context(), func(context.Context) error { return nil }))
	require.True(t, portFree(n.port))
	require.False(t, claim(n.port))
}

func TestAFailureThatIsNotThePortsIsFinal(t *testing.T) {
	attempts, broken := 0, errors.New("broken")
	err := new(node).onFreePort(t.Context(), func(context.Context) error { attempts++; return broken })
	require.ErrorIs(t, err, broken)
	require.Equal(t, 1, attempts)
}

func TestPortsStayBelowThoseOfOutgoingConnections(t *testing.T) {
	var n node
	for range 100 {
		require.NoError(t, n.onFreePort(t.Context(), func(context.Context) error {
			require.Less(t, n.port, 32768)
			return nil
		}))
	}
}

func TestServersRunAsOurselvesUnlessWeAreRoot(t *testing.T) {
	account, err := postgresAccount()
	require.NoError(t, err)
	if os.Geteuid() == 0 {
		require.NotZero(t, account.uid)
	} else {
		require.Nil(t, account)
		require.Nil(t, account.credential())
	}
}

// otherAccount is who Postgres runs as when we are root.
func otherAccount(t *testing.T) *account {
	t.Helper()
	other, err := postgresAccount()
	require.NoError(t, err)
	if other == nil {
		t.Skip("only root needs another account")
	}
	return other
}

func TestTheOtherAccountWritesWhereItCanGetToOnly(t *testing.T) {
	other, base := otherAccount(t), sharedTempDir(t)
	inside := filepath.Join(base, "inside")
	require.NoError(t, os.Mkdir(inside, 0o700))
	require.NoError(t, os.Chmod(inside, 0o777)) // whatever the umask says
	require.True(t, other.mayWrite(inside))
	require.NoError(t, os.Chmod(inside, 0o755))
	require.False(t, other.mayWrite(inside))
	require.NoError(t, os.Chmod(inside, 0o777))
	require.NoError(t, os.Chmod(base, 0o700))
	require.False(t, other.mayWrite(inside), "it cannot get there")
	require.False(t, other.mayWrite(filepath.Join(base, "missing")))
}

func TestOurDirectoriesAreInTMPDIR(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var ourselves *account
	dir, err := ourselves.tempDir()
	require.NoError(t, err)
	require.Equal(t, os.Getenv("TMPDIR"), filepath.Dir(dir))
}

// Root's TMPDIR may be root's alone.
func TestTheOtherAccountGetsADirectoryElsewhere(t *testing.T) {
	other := otherAccount(t)
	t.Setenv("TMPDIR", t.TempDir())
	dir, err := other.tempDir()
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NotEqual(t, os.Getenv("TMPDIR"), filepath.Dir(dir))
}
