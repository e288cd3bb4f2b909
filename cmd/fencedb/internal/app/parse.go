package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

// Run carries out the command that args name, and returns the exit code.
func (a *State) Run(ctx context.Context, root *cli.Command, args []string) int {
	err := cmp.Or(root.Run(ctx, args), a.noHelp)
	if err == nil {
		return ExitDone
	}
	own := ExitError{Code: ExitFailed}
	if !errors.As(err, &own) && !a.checked {
		err, own.Code = UsageError("%w", err), ExitUsage // of the parser
	}
	fmt.Fprintln(a.ErrOut, "fencedb:", a.outcome(err, ctx.Err() != nil))
	if hint := a.hint(err); hint != "" && !strings.Contains(err.Error(), hint) {
		fmt.Fprintln(a.ErrOut, "hint:", hint)
	}
	return own.Code
}

// Root completes the command that has all others: with the flags that each of them has, and with
// what is printed for a usage error.
func (a *State) Root(root *cli.Command) *cli.Command {
	root.EnableShellCompletion, root.ConfigureShellCompletionCommand = true, a.completion
	root.Reader, root.Writer, root.ErrWriter = a.In, a.Out, a.ErrOut
	root.ExitErrHandler = func(context.Context, *cli.Command, error) {} // only run exits
	root.Action = WithoutSubcommand
	root.Flags = []cli.Flag{
		&cli.StringFlag{Name: "postgres", Destination: &a.PostgresURL, Usage: "`URL` of the database with the fences", Sources: cli.EnvVars("FENCEDB_POSTGRES_URL")},
		&cli.StringFlag{Name: "redis", Destination: &a.RedisURL, Usage: "`URL` of the Redis with the leases", Sources: cli.EnvVars("FENCEDB_REDIS_URL")},
		&cli.StringFlag{Name: "namespace", Destination: &a.Names.Namespace, Usage: "`NAME` in lease.Config.Namespace", Sources: cli.EnvVars("FENCEDB_NAMESPACE")},
		&cli.BoolFlag{Name: "hash-resources", Destination: &a.Names.Hashed, Usage: "as in lease.Config", Sources: cli.EnvVars("FENCEDB_HASH_RESOURCES")},
		&cli.BoolFlag{Name: "json", Destination: &a.JSON, Usage: "print JSON, see schema.json", Sources: cli.EnvVars("FENCEDB_JSON")},
		&cli.DurationFlag{Name: "timeout", Destination: &a.Timeout, Usage: "give up after this `TIME`",
			Value: 30 * time.Second, Validator: Positive, Sources: cli.EnvVars("FENCEDB_TIMEOUT")},
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
func (a *State) completion(c *cli.Command) {
	c.Hidden, c.Action = false, WithoutSubcommand
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
	return UsageError("%s; see %s --help", text, cmd.FullName())
}

// AtLeast is the condition of a flag.
func AtLeast[T cmp.Ordered](least T) func(T) error {
	return func(given T) error {
		if given < least {
			return fmt.Errorf("must be at least %v", least)
		}
		return nil
	}
}

// The conditions of flags that are times.
var (
	NotNegative = AtLeast(time.Duration(0))
	Positive    = AtLeast(time.Millisecond)
)

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

// Takes describes an argument, by the name that the help of commands has for it.
func Takes(argument string) string { return arguments[argument].text }

// checkCall checks what commands have in common, before any of them begins.
func (a *State) checkCall(_ context.Context, cmd *cli.Command) error {
	a.checked, a.Argument = true, cmd.Args().First()
	wanted, known := arguments[cmd.ArgsUsage] // not those of with
	if n := cmd.Args().Len(); known && (n < wanted.least || n > wanted.most || wanted.least > 0 && a.Argument == "") {
		return UsageError("%s takes %s, got %q", cmd.FullName(), wanted.text, cmd.Args().Slice())
	}
	if known && !utf8.ValidString(a.Argument) { // Postgres would refuse it, perhaps when half of the work is done
		return UsageError("%q is not valid UTF-8", a.Argument)
	}
	return nil
}

// WithoutSubcommand is the action of a command with subcommands, called without one.
func WithoutSubcommand(_ context.Context, cmd *cli.Command) error {
	if name := cmd.Args().First(); name != "" {
		return noCommand(cmd, name)
	}
	return cli.ShowSubcommandHelp(cmd)
}

func noCommand(cmd *cli.Command, name string) error {
	return UsageError("there is no command %q; did you mean %s? See %s --help",
		name, cli.SuggestCommand(cmd.VisibleCommands(), name), cmd.FullName())
}
