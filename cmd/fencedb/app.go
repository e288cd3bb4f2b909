package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"github.com/fencedb/fencedb/lease"
)

// app is the command with its input and output, and the flags that every command has.
type app struct {
	in          io.Reader
	out, errOut io.Writer
	screen      screen
	watched     bool   // errOut is a terminal
	checked     bool   // the call is no usage error of the parser
	noHelp      error  // there is none for what was asked for, and the library has no way back for that error
	argument    string // the first one of the command, or ""
	changed     string // what may have been changed if the command fails now; "": nothing
	waiting     bool   // for a server, of which a person is told

	postgresURL, redisURL string
	names                 names
	json, yes             bool
	timeout               time.Duration

	ahead clocks
}

// Exit codes. They are documented in docs/command.md and do not change.
const (
	exitDone     = 0
	exitFailed   = 1 // failed, doctor found an error, or chaos or drill a broken promise
	exitUsage    = 2 // usage error; nothing was read or changed
	exitDeclined = 3 // not confirmed; nothing was changed
	exitHalf     = 4 // revoked in Redis, not sealed in Postgres
)

// withCode is an error with an exit code of its own.
type withCode struct {
	code int
	error
}

func (e withCode) Unwrap() error { return e.error }

var (
	errUsage    = withCode{exitUsage, errors.New("usage error")}
	errDeclined = withCode{exitDeclined, errors.New("not confirmed, nothing was changed")}
	errHalf     = withCode{exitHalf, errors.New("revoked in Redis, but not sealed in Postgres")}
)

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}

// heeded are SIGTERM and those of the signals that the caller has not switched off, as nohup does.
func heeded(signals ...os.Signal) []os.Signal {
	return append(slices.DeleteFunc(slices.Clone(signals), signal.Ignored), syscall.SIGTERM)
}

// atLeast is the condition of a flag.
func atLeast[T cmp.Ordered](least T) func(T) error {
	return func(given T) error {
		if given < least {
			return fmt.Errorf("must be at least %v", least)
		}
		return nil
	}
}

var notNegative, positive = atLeast(time.Duration(0)), atLeast(time.Millisecond)

// arguments says how many a command takes, by the name that its help has for them.
var arguments = map[string]struct {
	least, most int
	text        string
}{
	"":           {0, 0, "no argument"},
	"[PREFIX]":   {0, 1, "one prefix"},
	"DIR":        {1, 1, "one directory, such as migrations"},
	"RESOURCE":   {1, 1, "one resource, such as table:12"},
	"[RESOURCE]": {0, 1, "one resource, such as table:12"},
	"[TABLE]":    {0, 1, "one table, such as bookings"},
	"LINE":       {1, 1, "one line of a log, in quotes"},
	"TYPE":       {1, 1, "one type of resources, which is what stands before the colon: table for table:12"},
}

// checkCall checks what commands have in common, before any of them begins.
func (a *app) checkCall(_ context.Context, cmd *cli.Command) error {
	a.checked, a.argument = true, cmd.Args().First()
	takes, known := arguments[cmd.ArgsUsage] // not those of with
	if n := cmd.Args().Len(); known && (n < takes.least || n > takes.most || takes.least > 0 && a.argument == "") {
		return usage("%s takes %s, got %q", cmd.FullName(), takes.text, cmd.Args().Slice())
	}
	if known && !utf8.ValidString(a.argument) { // Postgres would refuse it, perhaps when half of the work is done
		return usage("%q is not valid UTF-8", a.argument)
	}
	return nil
}

// names say how the programs name keys in Redis.
type names struct {
	namespace string
	hashed    bool
}

// fenceRetention is how long Redis remembers a token that revoke has issued. A shorter time than
// the programs' own setting would shorten theirs; a longer one does no harm.
const fenceRetention = 30 * 24 * time.Hour

// config is for looking on: its TTL is not used.
func (n names) config() lease.Config {
	return lease.Config{TTL: time.Minute, Namespace: n.namespace, HashResources: n.hashed, FenceRetention: fenceRetention}
}

// screen describes the terminal.
type screen struct {
	width int // columns; 0: unlimited, as for a file
	color bool
}

func screenOf(out *os.File) screen {
	terminal := term.IsTerminal(int(out.Fd()))
	var s screen
	if columns := os.Getenv("COLUMNS"); columns != "" {
		s.width, _ = strconv.Atoi(columns)
	} else if terminal {
		s.width, _, _ = term.GetSize(int(out.Fd()))
	}
	s.color = terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return s
}

// semaphore reads and revokes permits.
func (n names) semaphore(client redis.UniversalClient) (*lease.Semaphore, error) {
	return lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: lease.MaxLimit, Lease: n.config()})
}

// unknownCommand is the action of a command with subcommands, called without one.
func unknownCommand(_ context.Context, cmd *cli.Command) error {
	if name := cmd.Args().First(); name != "" {
		return noCommand(cmd, name)
	}
	return cli.ShowSubcommandHelp(cmd)
}

func noCommand(cmd *cli.Command, name string) error {
	return usage("there is no command %q; did you mean %s? See %s --help",
		name, cli.SuggestCommand(cmd.VisibleCommands(), name), cmd.FullName())
}
