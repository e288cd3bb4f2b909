//go:build unix

package with

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/lease"
)

// Exit codes of with that are not those of its command: those of xargs, timeout and env, which few
// commands use. After those from ExitHeld on, the command was not run.
const (
	ExitLost          = 123
	ExitHeld          = 124
	ExitNotRun        = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitSignaled      = 128 // and the number of the signal
)

// wrapping holds the arguments of with, and what became of the command and of its leases.
type wrapping struct {
	*conn.Servers
	resources         []string
	command           []string
	path              string // of the command
	wait, hold, grace time.Duration
	force             bool
	cfg               lease.Config

	leases         lease.Leases
	began          time.Time
	code           int
	killed         bool
	lost, released error // nil: held to the end, released
}

// lingering is how long processes that the command has started may take to end behind it, as one
// that reads what it has written.
const lingering = time.Second

// killAgain is the time between two SIGKILL: a process may have started another one meanwhile.
const killAgain = 100 * time.Millisecond

// runCommand runs the command until it and all that it has started have ended, and passes signals
// on, SIGTERM too. It ends all of them if a lease is lost, and what outlives the command.
func (w *wrapping) runCommand(ctx context.Context) error {
	// Not ignored, which the command would inherit: whoever reads may be gone, as head is, and the
	// command is still to be ended.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	signals := make(chan os.Signal, 16)
	passed := app.Heeded(syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	signal.Notify(signals, passed...)
	defer signal.Stop(signals)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	command := &exec.Cmd{Path: w.path, Args: w.command, Env: append(os.Environ(), w.environment()...),
		Stdin: w.In, Stdout: w.Out, Stderr: w.ErrOut}
	// A group of its own lets signals reach what the command has started. In a terminal it would be a
	// group in the background, which is stopped when it reads, also when it asks for a password while
	// its input is a file; there Ctrl-C reaches all of them anyway.
	alone := !w.inTerminal()
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: alone}
	all := newFamily()
	if err := command.Start(); err != nil {
		return app.ExitError{Code: ExitNotExecutable, Err: err}
	}
	if all.command = command.Process; alone {
		all.group = command.Process.Pid
	}
	w.watchOver(ctx, command, all, signals)
	w.code = codeOf(command.ProcessState)
	return nil
}

// inTerminal reports whether the input is a terminal, or this process in the foreground of one.
func (w *wrapping) inTerminal() bool {
	if in, isFile := w.In.(*os.File); isFile && xterm.IsTerminal(int(in.Fd())) {
		return true
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

// watchOver returns when all processes have ended.
func (w *wrapping) watchOver(ctx context.Context, command *exec.Cmd, all *family, signals <-chan os.Signal) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // its state says how it ended
	}()
	work, stop := w.leases.Bind(context.WithoutCancel(ctx))
	defer stop()
	name, lost := term.Visible(w.command[0]), work.Done()
	var gone <-chan struct{}
	var outlived, kill <-chan time.Time
	for {
		select {
		case s := <-signals:
			w.mayNot(all.passOn(s.(syscall.Signal), ended == nil))
		case <-lost:
			lost, w.lost, kill = nil, w.loss(), time.After(w.grace)
			denied := all.signal(syscall.SIGTERM) // first: to write may fail, or wait for who reads
			fmt.Fprintf(w.ErrOut, "fencedb: the lease is lost after %s: %s; %s gets SIGTERM\n", term.Span(time.Since(w.began)), app.InWords(w.lost), name)
			w.mayNot(denied)
		case <-ended:
			ended, gone = nil, all.gone()
			if w.lost == nil {
				outlived = time.After(lingering)
			}
		case <-outlived:
			kill = time.After(w.grace)
			denied := all.signal(syscall.SIGTERM)
			fmt.Fprintf(w.ErrOut, "fencedb: %s has ended, but not what it has started, which gets SIGTERM\n", name)
			w.mayNot(denied)
		case <-kill:
			denied := all.signal(syscall.SIGKILL)
			if !w.killed {
				fmt.Fprintf(w.ErrOut, "fencedb: %s, or what it has started, has not ended for %s; it gets SIGKILL\n", name, term.Span(w.grace))
				w.mayNot(denied)
			}
			w.killed, kill = true, time.After(killAgain)
		case <-gone:
			if w.lost == nil {
				w.lost = w.loss()
			}
			return
		}
	}
}

// passOn passes on a signal that this process has got. A terminal has sent those of its keys to the
// command too.
func (f *family) passOn(s syscall.Signal, outlived bool) (denied []int) {
	pid := -f.group
	switch fromKey := s == syscall.SIGINT || s == syscall.SIGQUIT; {
	case outlived:
		return f.signal(s)
	case f.group == 0 && fromKey:
		return nil
	case f.group == 0:
		pid = f.command.Pid
	}
	if syscall.Kill(pid, s) == syscall.EPERM {
		return []int{f.command.Pid}
	}
	return nil
}

// mayNot says which processes go on, and that this one waits for them.
func (w *wrapping) mayNot(denied []int) {
	if len(denied) > 0 {
		fmt.Fprintf(w.ErrOut, "fencedb: no right to signal %v, of another user, as with sudo: it goes on, and fencedb waits for its end; "+
			"end it yourself. Its writes to protected tables are refused once the lease is over and the next holder has written\n", denied)
	}
}

func codeOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return ExitSignaled + int(status.Signal())
	}
	return state.ExitCode()
}

// loss is which lease is over, and why; nil if none is.
func (w *wrapping) loss() error {
	for _, l := range w.leases {
		if err := l.Err(); err != nil {
			return fmt.Errorf("%s: %w", term.Visible(l.Resource()), err)
		}
	}
	return nil
}

// environment is what the command needs to enter.
func (w *wrapping) environment() []string {
	type grant struct {
		Resource string    `json:"resource"`
		Token    int64     `json:"token"`
		LeaseID  uuid.UUID `json:"lease_id"`
	}
	var grants []grant
	var resources, tokens, ids []string
	for _, l := range w.leases {
		grants = append(grants, grant{Resource: l.Resource(), Token: l.Token(), LeaseID: l.LeaseID()})
		resources = append(resources, literal(l.Resource()))
		tokens = append(tokens, fmt.Sprint(l.Token()))
		ids = append(ids, literal(l.LeaseID().String()))
	}
	text, _ := json.Marshal(grants) // strings and numbers
	enter := fmt.Sprintf("SELECT * FROM fencedb.enter_all(ARRAY[%s], ARRAY[%s]::bigint[], ARRAY[%s]::pg_catalog.uuid[], %d)",
		strings.Join(resources, ", "), strings.Join(tokens, ", "), strings.Join(ids, ", "), w.hold.Milliseconds())
	var resource, token, id string // empty for several, also where another such command with a single one runs this one
	if len(grants) == 1 {
		enter = fmt.Sprintf("SELECT * FROM fencedb.enter(%s, %s, %s, %d)", resources[0], tokens[0], ids[0], w.hold.Milliseconds())
		resource, token, id = grants[0].Resource, tokens[0], grants[0].LeaseID.String()
	}
	return []string{"FENCEDB_POSTGRES_URL=" + conn.ForPsql(w.PostgresURL), "FENCEDB_ENTER=" + enter, "FENCEDB_GRANTS=" + string(text),
		"FENCEDB_RESOURCE=" + resource, "FENCEDB_TOKEN=" + token, "FENCEDB_LEASE_ID=" + id}
}

// literal is a string in SQL, whatever standard_conforming_strings is.
func literal(text string) string {
	text = strings.ReplaceAll(text, "'", "''")
	if !strings.Contains(text, `\`) {
		return "'" + text + "'"
	}
	return "E'" + strings.ReplaceAll(text, `\`, `\\`) + "'"
}
