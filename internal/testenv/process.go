package testenv

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

//go:embed supervise.sh
var superviseScript string

// superviseCode is the script without its comments, which would fill every listing of processes.
var superviseCode = regexp.MustCompile(`(?m)^#.*\n+`).ReplaceAllString(superviseScript, "")

const (
	// startTimeout bounds everything from the first look for a server to its first answer. It is
	// long because a loaded CI machine can take that long for initdb, or for pulling an image.
	startTimeout = 2 * time.Minute

	// stopTimeout bounds the end of a server. Postgres, told to stop at once, gives its children
	// five seconds before it kills them.
	stopTimeout = 20 * time.Second

	pollEvery = 10 * time.Millisecond
)

// STOP for supervise.sh. A paused process sees its signals only once it is continued, except KILL.
const (
	stopRedis    = `kill -s KILL "$server"`
	stopPostgres = `kill -s QUIT "$server"; kill -s CONT "$server"` // children stop with the parent

	stopPgBouncer = `kill -s KILL "$server"`
)

// command is what a supervisor is to run.
type command struct {
	dir     string   // data and log; the supervisor removes it at the end
	account *account // nil: our own
	stop    string   // STOP for supervise.sh
	env     []string
	argv    []string
}

// process is a server under its supervisor. It keeps no goroutine, so that a test may look for
// leaked ones while servers are running. Not safe for concurrent use.
type process struct {
	pid    int // of the server, not of the supervisor
	dir    string
	shell  *exec.Cmd
	hold   io.WriteCloser // our end of the supervisor's stdin: the server lives while it is open
	report *os.File       // the supervisor's stdout
	lines  *bufio.Reader  // of report
	status *int           // how the server ended; nil while that is not known
}

// supervise starts a command under a supervisor. On error nothing runs; the directory may be there still.
func supervise(c command) (*process, error) {
	shell := exec.Command("/bin/sh", append([]string{"-c", superviseCode, "supervise", c.dir, c.stop}, c.argv...)...)
	shell.Dir = c.dir
	shell.Env = c.env
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.account.credential()}
	hold, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	// An os.Pipe of our own instead of StdoutPipe: it takes deadlines, so nobody has to sit and read.
	report, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	shell.Stdout = theirs
	if err := shell.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a supervisor for %s: %w", c.argv[0], err), report.Close())
	}
	p := &process{dir: c.dir, shell: shell, hold: hold, report: report, lines: bufio.NewReader(report)}
	if err := p.readReport(time.Now().Add(startTimeout), "started %d", &p.pid); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", c.argv[0], err), p.stop())
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

// exited reports whether the server has ended, waiting for it until the deadline.
func (p *process) exited(deadline time.Time) bool {
	if p.status != nil {
		return true
	}
	status := statusUnknown
	if err := p.readReport(deadline, "exited %d", &status); errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	p.status = &status
	return true
}

// statusUnknown is the exit status of a server whose supervisor somebody has killed.
const statusUnknown = -1

// await asks ready again and again until it answers yes. It gives up when the server has ended or
// ctx has, with an error that shows the server's log.
func (p *process) await(ctx context.Context, every time.Duration, ready func(context.Context) bool) error {
	for !ready(ctx) {
		if p.exited(time.Now().Add(every)) {
			return fmt.Errorf("%w with status %d; %s", errExited, *p.status, p.log())
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no answer: %w; %s", context.Cause(ctx), p.log())
		}
	}
	return nil
}

// finish waits for a command that is to end by itself, and well.
func (p *process) finish(ctx context.Context) error {
	for !p.exited(time.Now().Add(pollEvery)) {
		if ctx.Err() != nil {
			return fmt.Errorf("not done: %w; %s", context.Cause(ctx), p.log())
		}
	}
	if *p.status != 0 {
		return fmt.Errorf("exit status %d; %s", *p.status, p.log())
	}
	return nil
}

// log returns the end of what the server wrote.
func (p *process) log() string {
	const most = 4 << 10
	text, err := os.ReadFile(filepath.Join(p.dir, "server.log"))
	if err != nil {
		return fmt.Sprintf("its log cannot be read: %v", err)
	}
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return "its log ends:\n" + strings.TrimSpace(string(text))
}

// signal sends a signal to the server, unless it has ended and the PID may be somebody else's.
func (p *process) signal(sig syscall.Signal) error {
	if p.exited(time.Now().Add(time.Millisecond)) {
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
	if !p.exited(time.Now().Add(stopTimeout)) {
		return fmt.Errorf("process %d is still there %v after %v", p.pid, stopTimeout, sig)
	}
	return nil
}

// succeed starts another command over the directory of one that has ended, if there was one. Should
// we die between its two steps, both supervisors remove the directory, which is as good as one.
func (p *process) succeed(c command) (*process, error) {
	if p == nil {
		return supervise(c)
	}
	if !p.exited(time.Now().Add(pollEvery)) {
		return nil, fmt.Errorf("process %d is still running in %s", p.pid, p.dir)
	}
	next, err := supervise(c)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(p.hold, "keep"); err != nil {
		return nil, errors.Join(err, next.stop())
	}
	return next, p.stop()
}

// stop ends the server and removes its directory.
func (p *process) stop() error {
	closed := p.hold.Close()
	overdue := time.AfterFunc(stopTimeout, func() { _ = syscall.Kill(-p.shell.Process.Pid, syscall.SIGKILL) })
	defer overdue.Stop()
	return errors.Join(closed, p.shell.Wait(), p.report.Close())
}
