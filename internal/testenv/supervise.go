package testenv

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

//go:embed supervise.sh
var superviseScript string

// superviseCode is the script without its comments, which would fill every listing of processes.
var superviseCode = regexp.MustCompile(`(?m)^#.*\n+`).ReplaceAllString(superviseScript, "")

const (
	// startTimeout bounds everything from the first look for a server to its first answer. It is
	// long because a loaded CI machine can take that long for initdb.
	startTimeout = 2 * time.Minute

	// stopTimeout bounds the end of a server. Postgres, told to stop at once, gives its children
	// five seconds before it kills them.
	stopTimeout = 20 * time.Second

	pollEvery = 10 * time.Millisecond
)

// STOP for supervise.sh. A paused process sees its signals only once it is continued, except KILL.
const (
	stopByKill   = `kill -s KILL "$server"`
	stopPostgres = `kill -s QUIT "$server"; kill -s CONT "$server"` // children stop with the parent
)

// process is a server under its supervisor. It keeps no goroutine, so that a test may look for
// leaked ones while servers are running. Not safe for concurrent use.
type process struct {
	pid    int // of the server, not of the supervisor
	dir    string
	shell  *exec.Cmd
	hold   io.WriteCloser // our end of the supervisor's stdin: the server lives while it is open
	report *os.File       // the supervisor's stdout
	lines  *bufio.Reader  // of report
	ended  bool
	status int // exit status, when it has ended; -1 if its supervisor was killed
}

// supervise starts a command under a supervisor, which writes its log to dir and removes dir at the
// end. stop is STOP for supervise.sh. On error nothing runs; the directory may be there still.
func supervise(dir string, a *account, env []string, stop string, argv ...string) (*process, error) {
	shell := exec.Command("/bin/sh", append([]string{"-c", superviseCode, "supervise", dir, stop}, argv...)...)
	shell.Dir = dir
	shell.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // what changes the defaults of servers or clients
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	shell.Env = append(append(shell.Env, "LC_ALL=C"), env...)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential()}
	hold, err := shell.StdinPipe()
	// An os.Pipe of our own instead of StdoutPipe: it takes deadlines, so nobody has to sit and
	// read.
	report, theirs, err2 := os.Pipe()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	defer theirs.Close()
	shell.Stdout = theirs
	if err := shell.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a supervisor for %s: %w", argv[0], err), report.Close())
	}
	p := &process{dir: dir, shell: shell, hold: hold, report: report, lines: bufio.NewReader(report)}
	if err := p.readReport(time.Now().Add(startTimeout), "started %d", &p.pid); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", argv[0], err), p.stop())
	}
	return p, nil
}

// readReport reads the next line of the supervisor's stdout, waiting for it until the deadline.
func (p *process) readReport(deadline time.Time, format string, value *int) error {
	if err := p.report.SetReadDeadline(deadline); err != nil {
		return err
	}
	// Nothing is lost when the deadline strikes: so short a line enters a pipe whole or not at all.
	line, err := p.lines.ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Sscanf(line, format, value)
	return err
}

// exited reports whether the server has ended, waiting for it for some time.
func (p *process) exited(within time.Duration) bool {
	if !p.ended {
		p.status = -1
		err := p.readReport(time.Now().Add(within), "exited %d", &p.status)
		p.ended = !errors.Is(err, os.ErrDeadlineExceeded)
	}
	return p.ended
}

// await waits until the log has what a server says when it serves, or without that until a command
// has succeeded. It gives up when the process or ctx has ended, with an error that shows the log.
// The log is that of our own process: nothing that another server on its port answers counts.
func (p *process) await(ctx context.Context, says *regexp.Regexp) error {
	there := func() bool {
		if says == nil {
			return p.ended && p.status == 0
		}
		return p.logged(says) != ""
	}
	for !there() {
		if p.exited(pollEvery) && !there() {
			return fmt.Errorf("%w with status %d; %s", errExited, p.status, p.log())
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no answer: %w; %s", context.Cause(ctx), p.log())
		}
	}
	return nil
}

func (p *process) logFile() string { return filepath.Join(p.dir, "server.log") }

// logged returns what the first group of a pattern matches in the log, or "".
func (p *process) logged(pattern *regexp.Regexp) string {
	text, _ := os.ReadFile(p.logFile()) // not there yet, perhaps
	if found := pattern.FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}

// log returns the end of what the server wrote.
func (p *process) log() string {
	const most = 4 << 10
	text, err := os.ReadFile(p.logFile())
	if err != nil {
		return fmt.Sprintf("its log cannot be read: %v", err)
	}
	return "its log ends:\n" + strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// signal sends a signal to the server, unless it has ended and the PID may be somebody else's.
func (p *process) signal(sig syscall.Signal) error {
	if p.exited(time.Millisecond) {
		return errExited
	}
	return syscall.Kill(p.pid, sig)
}

// end sends a signal and waits for the server to end. Its directory stays.
func (p *process) end(sig syscall.Signal) error {
	if err := p.signal(sig); errors.Is(err, errExited) {
		return nil
	} else if err != nil {
		return err
	}
	if !p.exited(stopTimeout) {
		return fmt.Errorf("process %d is still there %v after %v", p.pid, stopTimeout, sig)
	}
	return nil
}

// stop ends the server and removes its directory.
func (p *process) stop() error {
	closed := p.hold.Close()
	defer time.AfterFunc(stopTimeout, func() { _ = syscall.Kill(-p.shell.Process.Pid, syscall.SIGKILL) }).Stop()
	return errors.Join(closed, p.shell.Wait(), p.report.Close())
}

// node is a server of ours: its directory and, once it was started, its process.
type node struct {
	dir     string   // data and log
	account *account // nil: our own
	env     []string // beside what is in ours
	port    int      // 0: not by our choice
	*process
}

// newNode makes the directory.
func newNode(a *account, env ...string) (node, error) {
	dir, err := a.tempDir()
	return node{dir: dir, account: a, env: env}, err
}

// run starts a command and returns when it serves, which await says. stop is STOP for supervise.sh.
// If there was a command before, it has ended, and leaves its directory to the next. Should we die
// between these two steps, both supervisors remove the directory, which is as good as one.
func (n *node) run(ctx context.Context, says *regexp.Regexp, stop string, argv ...string) error {
	before := n.process
	if before != nil && !before.exited(pollEvery) {
		return fmt.Errorf("process %d is still running in %s", before.pid, n.dir)
	}
	next, err := supervise(n.dir, n.account, n.env, stop, argv...)
	if err != nil {
		return err
	}
	n.process = next
	if before != nil {
		_, err := fmt.Fprintln(before.hold, "keep")
		if err := errors.Join(err, before.stop()); err != nil {
			return err
		}
	}
	if err := next.await(ctx, says); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

// stop ends the server and removes its directory.
func (n *node) stop() error {
	if n.process == nil {
		return os.RemoveAll(n.dir)
	}
	return n.process.stop()
}

// own is what a Redis and a Postgres of one test's own have in common.
type own struct {
	t       testing.TB
	stopped bool
	server  interface {
		fmt.Stringer
		signal(sig syscall.Signal) error
		end(sig syscall.Signal) error
		restart(ctx context.Context) error
		stop() error
	}
}

// Kill crashes the server with SIGKILL and returns once it is gone. The children of a Postgres
// follow it. What it had saved stays, for Restart.
func (o *own) Kill() {
	o.t.Helper()
	o.must("kill", o.server.end(syscall.SIGKILL))
}

// Pause stops the server in its tracks (SIGSTOP). A Redis keeps its connections open and answers
// nothing. Of a Postgres that is the postmaster: connections that are open go on working, new ones
// are not answered.
func (o *own) Pause() {
	o.t.Helper()
	o.must("pause", o.server.signal(syscall.SIGSTOP))
}

// Resume lets a paused server go on. It then answers what was sent meanwhile.
func (o *own) Resume() {
	o.t.Helper()
	o.must("resume", o.server.signal(syscall.SIGCONT))
}

// Restart starts the server again, on its port and its data, and returns once it serves. One that
// still runs is shut down in good order first, ending its connections; a Redis saves its data then,
// if it has save points.
func (o *own) Restart() {
	o.t.Helper()
	o.must("restart", o.server.restart(starting(o.t)))
}

// Stop ends the server for good and removes its data. The end of the test does the same.
func (o *own) Stop() {
	o.t.Helper()
	if !o.stopped {
		o.must("stop", o.server.stop())
		o.stopped = true
	}
}

func (o *own) must(what string, err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatalf("testenv: %s %s: %v", what, o.server, err)
	}
}

// Ports are taken from below the range that operating systems give to outgoing connections. A
// client that keeps dialling a dead server inside that range sooner or later gets the server's own
// port as its source, connects to itself, and the server cannot come back.
const (
	lowestPort  = 15000
	highestPort = 32000
)

const portAttempts = 20

// onFreePort calls start when the node has a port that was free a moment ago, as was the next one,
// which the bus of a Redis Cluster takes. It takes another port when start failed and one of the
// two is taken by then: between asking and binding lies a race that cannot be closed, only run
// again.
func (n *node) onFreePort(ctx context.Context, start func(context.Context) error) error {
	failure := errors.New("found no free port on " + loopback)
	for range portAttempts {
		n.port = lowestPort + 2*rand.IntN((highestPort-lowestPort)/2)
		if !claim(n.port) || !portFree(n.port) {
			continue
		}
		failure = start(ctx)
		if failure == nil || ctx.Err() != nil || portFree(n.port) {
			return failure
		}
	}
	return failure
}

// claims has a socket for each port that was claimed, which would be closed as garbage otherwise.
var claims sync.Map

// claim keeps a port, and with it the next one, from all other tests for as long as our process
// lives: its server may be down for a while, and a test may ask whether anything still answers
// there. The claim is the UDP port of that number, which no server of ours uses.
func claim(port int) bool {
	socket, err := net.ListenPacket("udp", address(port))
	if err == nil {
		claims.Store(port, socket)
	}
	return err == nil
}

// portFree reports whether the port and the next one can be bound right now.
func portFree(port int) bool {
	for _, port := range []int{port, port + 1} {
		listener, err := net.Listen("tcp", address(port))
		if err != nil || listener.Close() != nil {
			return false
		}
	}
	return true
}

const loopback = "127.0.0.1"

func address(port int) string {
	return net.JoinHostPort(loopback, strconv.Itoa(port))
}

// account is a user other than ourselves for a server to run as; nil means ourselves.
type account struct {
	name     string
	uid, gid int
}

// postgresAccount returns the account to run Postgres under: ourselves, unless we are root, which
// initdb and postgres refuse to be. The account needs an entry in the user database, because initdb
// looks its own name up.
func postgresAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		a := &account{name: name}
		if _, err := fmt.Sscan(found.Uid+" "+found.Gid, &a.uid, &a.gid); err == nil {
			return a, nil
		}
	}
	return nil, errors.New("Postgres refuses to run as root, and there is neither a user postgres nor a user nobody to run it as")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// memoryDir is where Linux keeps files in memory. A database is some 300 files, and to copy and
// drop one for each test is ten times as fast there as on many a disk.
const memoryDir = "/dev/shm"

// enoughMemory, in bytes free, for the servers of several test binaries at once. Containers that
// get memoryDir at its usual 64 MiB stay with the disk.
const enoughMemory = 4 << 30

// tempDir makes a directory that the account owns, can reach and can remove: in TMPDIR if that is
// set, otherwise in memory if there is enough.
func (a *account) tempDir() (string, error) {
	bases := []string{os.TempDir(), "/tmp", "/var/tmp"}
	var memory syscall.Statfs_t
	enough := syscall.Statfs(memoryDir, &memory) == nil && uint64(memory.Bavail)*uint64(memory.Bsize) >= enoughMemory
	if os.Getenv("TMPDIR") == "" && enough {
		bases = append([]string{memoryDir}, bases...)
	}
	for _, base := range bases {
		if a != nil && !a.mayWrite(base) {
			continue
		}
		dir, err := os.MkdirTemp(base, "fencedb-testenv-")
		if err != nil {
			return "", err
		}
		if a != nil {
			if err := os.Chown(dir, a.uid, a.gid); err != nil {
				return "", errors.Join(err, os.Remove(dir))
			}
		}
		return dir, nil
	}
	return "", fmt.Errorf("we are root, so Postgres is to run as %s, who can make a directory in none of %q; "+
		"point TMPDIR at one that everybody can write to", a.name, bases)
}

// mayWrite reports whether the account can get to a directory and make files there.
func (a *account) mayWrite(dir string) bool {
	test := exec.Command("/bin/sh", "-c", `test -w "$0" && test -x "$0"`, dir)
	test.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential()}
	return test.Run() == nil
}
