// Command fencedb is for operators of a system that uses fencedb. It shows who holds what and who
// can write, checks the set-up, and ends a holder safely. See fencedb --help and the README in this
// directory.
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
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9/logging"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"
)

func main() {
	become()
	logging.Disable() // go-redis would print the errors that the command reports
	ctx, stop := signal.NotifyContext(context.Background(), heeded(os.Interrupt, syscall.SIGHUP)...)
	a := &app{in: os.Stdin, out: os.Stdout, errOut: os.Stderr, screen: screenOf(os.Stdout),
		watched: term.IsTerminal(int(os.Stderr.Fd()))}
	code := a.run(ctx, os.Args)
	stop()
	os.Exit(code)
}

// heeded are SIGTERM and those of the signals that the caller has not switched off, as nohup does.
func heeded(signals ...os.Signal) []os.Signal {
	return append(slices.DeleteFunc(slices.Clone(signals), signal.Ignored), syscall.SIGTERM)
}

// run carries one command out and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	err := cmp.Or(a.root().Run(ctx, args), a.noHelp)
	if err == nil {
		return exitDone
	}
	own := withCode{code: exitFailed}
	if !errors.As(err, &own) && !a.checked {
		err, own.code = usage("%w", err), exitUsage // of the parser
	}
	fmt.Fprintln(a.errOut, "fencedb:", a.outcome(err, ctx.Err() != nil))
	if e, is := errors.AsType[*pgconn.PgError](err); is && e.Hint != "" && !strings.Contains(err.Error(), e.Hint) {
		fmt.Fprintln(a.errOut, "hint:", e.Hint)
	}
	return own.code
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

const description = `Leases live in Redis, fences in Postgres. The two addresses come from
flags or from the environment:

   export FENCEDB_POSTGRES_URL=postgres://operator@db/app
   export FENCEDB_REDIS_URL=redis://cache:6379/0

The URL of Redis has one of these forms:

` + redisForms + `

What to call when:

   fencedb inspect table:12          who has table 12, and since when?
   fencedb history table:12          what happened to it?
   fencedb leases table:             what is held now?
   fencedb watch table:              what is happening now?
   fencedb doctor                    is the set-up sound?
   fencedb ttl table                 how long should a lease last?
   fencedb adopt bookings            who still writes without a token?
   fencedb revoke table:12           a holder is stuck: end its lease
   fencedb reset table:12            a fence is too high for any lease
   fencedb with --help               repair a row by hand, with psql
   fencedb drill                     show me a late write being refused
   fencedb chaos                     does all of it hold on my servers?

Do not delete keys in Redis or rows of fencedb.fences by hand: without its
fence, a resource accepts a stale holder again.

Exit codes:

   0   done
   1   failed, doctor found an error, or chaos or drill a broken promise
   2   usage error; nothing was read or changed
   3   not confirmed; nothing was changed
   4   revoked in Redis but not sealed in Postgres

fencedb with has codes of its own.`

func (a *app) root() *cli.Command {
	all := []*cli.Command{a.migrate(), a.inspect(), a.history(), a.leases(), a.watch(), a.revoke(), a.reset(),
		a.ttl(), a.explain(), a.adopt(), a.prune(), a.doctor(), a.version()}
	root := &cli.Command{
		Name:                            "fencedb",
		Usage:                           "operate leases and fences",
		Description:                     description,
		Commands:                        append(all, a.ofUnix()...),
		EnableShellCompletion:           true,
		Version:                         builtFrom().Version,
		ConfigureShellCompletionCommand: a.completion,
		Reader:                          a.in,
		Writer:                          a.out,
		ErrWriter:                       a.errOut,
		ExitErrHandler:                  func(context.Context, *cli.Command, error) {}, // only run exits
		Action:                          unknownCommand,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "postgres", Destination: &a.postgresURL, Usage: "`URL` of the database with the fences", Sources: cli.EnvVars("FENCEDB_POSTGRES_URL")},
			&cli.StringFlag{Name: "redis", Destination: &a.redisURL, Usage: "`URL` of the Redis with the leases", Sources: cli.EnvVars("FENCEDB_REDIS_URL")},
			&cli.StringFlag{Name: "namespace", Destination: &a.names.namespace, Usage: "`NAME` in lease.Config.Namespace", Sources: cli.EnvVars("FENCEDB_NAMESPACE")},
			&cli.BoolFlag{Name: "hash-resources", Destination: &a.names.hashed, Usage: "as in lease.Config", Sources: cli.EnvVars("FENCEDB_HASH_RESOURCES")},
			&cli.BoolFlag{Name: "json", Destination: &a.json, Usage: "print JSON, see schema.json", Sources: cli.EnvVars("FENCEDB_JSON")},
			&cli.DurationFlag{Name: "timeout", Destination: &a.timeout, Usage: "give up after this `TIME`",
				Value: 30 * time.Second, Validator: positive, Sources: cli.EnvVars("FENCEDB_TIMEOUT")},
		},
	}
	_ = root.Walk(func(c *cli.Command) error {
		c.OnUsageError = wrongFlag
		c.CommandNotFound = func(_ context.Context, cmd *cli.Command, name string) { a.noHelp = noCommand(cmd, name) }
		if c.Commands == nil {
			c.ArgValidator = a.checkCall
		}
		return nil
	})
	return root
}

// completion is the command of the library, checked as ours are.
func (a *app) completion(c *cli.Command) {
	c.Hidden, c.Action = false, unknownCommand
	for _, shell := range c.Commands {
		shell.ArgValidator = a.checkCall
	}
}

// wrongFlag is what the parser says of a flag, with the one that may have been meant.
func wrongFlag(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	text := strings.Replace(err.Error(), "for flag -", "for flag --", 1)
	if name, unknown := strings.CutPrefix(text, "flag provided but not defined: -"); unknown {
		var flags []cli.Flag
		for _, c := range cmd.Lineage() {
			flags = append(flags, c.VisibleFlags()...)
		}
		text = fmt.Sprintf("there is no flag --%s; did you mean %s?", name, cli.SuggestFlag(flags, name, false))
	}
	return usage("%s; see %s --help", text, cmd.FullName())
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

// bounded limits one exchange with the servers by --timeout. The time that a person takes to answer
// does not count.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	answered := a.waits("the servers, for %s at most (--timeout)", span(a.timeout))
	return ctx, func() { answered(); cancel() }
}
