package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

func (a *app) man() *cli.Command {
	return &cli.Command{
		Name:  "man",
		Usage: "print the help of all commands as a manual page",
		Description: `Prints in the format of man what --help says of fencedb and of each of its
commands.

   fencedb man | man -l -
   fencedb man > /usr/local/share/man/man1/fencedb.1`,
		Action: func(context.Context, *cli.Command) error {
			fresh := (&app{out: io.Discard, errOut: io.Discard}).root()
			// Help completes the commands, and takes no value from the environment. Its context must not be
			// that of this command, or it would be a part of it.
			if err := fresh.Run(context.Background(), []string{"fencedb", "--help"}); err != nil {
				return err
			}
			out := bufio.NewWriter(a.out) // keeps the first error
			manual(out, fresh)
			return out.Flush()
		},
	}
}

// manual writes the help of root in the macros of man(7).
func manual(out io.Writer, root *cli.Command) {
	fmt.Fprintf(out, ".TH FENCEDB 1 \"\" \"fencedb %s\"\n", roff(root.Version))
	fmt.Fprintf(out, ".SH NAME\nfencedb \\- %s\n", roff(root.Usage))
	fmt.Fprintf(out, ".SH SYNOPSIS\n.B fencedb\n[options] command [command options] [arguments]\n")
	fmt.Fprintf(out, ".SH DESCRIPTION\n")
	asTyped(out, root.Description)
	fmt.Fprintf(out, ".SH OPTIONS\n")
	flags(out, root)
	fmt.Fprintf(out, ".SH COMMANDS\n")
	_ = root.Walk(func(c *cli.Command) error {
		if c == root || c.Hidden || c.Name == "help" {
			return nil
		}
		fmt.Fprintf(out, ".SS %s\n%s\n", roff(strings.TrimSpace(c.FullName()+" "+c.ArgsUsage)), roff(c.Usage))
		if c.Description != "" {
			fmt.Fprintln(out, ".PP")
			asTyped(out, c.Description)
		}
		flags(out, c)
		return nil
	})
}

// asTyped writes a description with its own lines.
func asTyped(out io.Writer, description string) {
	fmt.Fprintln(out, ".nf")
	for line := range strings.Lines(description) {
		fmt.Fprintln(out, roff(strings.TrimRight(line, "\n")))
	}
	fmt.Fprintln(out, ".fi")
}

func flags(out io.Writer, cmd *cli.Command) {
	for _, flag := range cmd.VisibleFlags() {
		_ = flag.PreParse() // gives it its default
		if slices.Contains(flag.Names(), "help") {
			continue
		}
		name, usage, _ := strings.Cut(flag.String(), "\t")
		fmt.Fprintf(out, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
	}
}

// roff escapes what man would take for its own.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`).Replace(line)
	if strings.HasPrefix(line, ".") {
		return `\&` + line
	}
	return line
}
