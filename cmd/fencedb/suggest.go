package main

import (
	"context"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// noSuchFlag is how the parser begins.
const noSuchFlag = "flag provided but not defined: -"

func wrongFlag(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	text := strings.Replace(err.Error(), "for flag -", "for flag --", 1)
	if name, unknown := strings.CutPrefix(text, noSuchFlag); unknown {
		text = "there is no flag --" + name + meant("--", name, flagNames(cmd))
	}
	return usage("%s; see %s --help", text, cmd.FullName())
}

// flagNames are those that a command takes, its own first.
func flagNames(cmd *cli.Command) (names []string) {
	for _, c := range cmd.Lineage() {
		for _, flag := range c.VisibleFlags() {
			names = append(names, flag.Names()...)
		}
	}
	return names
}

// unknownCommand is the action of a command with subcommands, called without one.
func unknownCommand(_ context.Context, cmd *cli.Command) error {
	if name := cmd.Args().First(); name != "" {
		return noCommand(cmd, name)
	}
	return cli.ShowSubcommandHelp(cmd)
}

func noCommand(cmd *cli.Command, name string) error {
	var names []string
	for _, c := range cmd.VisibleCommands() {
		names = append(names, c.Name)
	}
	return usage("there is no command %q%s; see %s --help", name, meant("", name, names), cmd.FullName())
}

// noHelpFor keeps the error of fencedb help NAME, for which the library has no way back.
func (a *app) noHelpFor(_ context.Context, cmd *cli.Command, name string) {
	a.noHelp = noCommand(cmd, name)
}

// meant asks whether the name was meant that is next to the one typed, if one is near.
func meant(prefix, typed string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	nearest := slices.MinFunc(names, func(a, b string) int { return distance(typed, a) - distance(typed, b) })
	if distance(typed, nearest) > max(1, len(typed)/3) {
		return ""
	}
	return "; did you mean " + prefix + nearest + "?"
}

// distance is how many letters have to be inserted, removed, replaced or exchanged with their
// neighbour to make one text of the other.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1) // of the two shorter beginnings of a
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		now := make([]int, len(b)+1)
		now[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			now[j+1] = min(last[j+1]+1, now[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				now[j+1] = min(now[j+1], before[j-1]+1)
			}
		}
		before, last = last, now
	}
	return last[len(b)]
}
