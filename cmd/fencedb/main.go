// Command fencedb is for operators of a system that uses fencedb. It shows who holds what and who
// can write, checks the set-up, and ends a holder safely. See fencedb --help and the README in this
// directory.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

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
	if hint := hint(err); hint != "" && !strings.Contains(err.Error(), hint) {
		fmt.Fprintln(a.errOut, "hint:", hint)
	}
	return own.code
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
