package main

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

//go:embed complete.bash complete.zsh complete.fish
var completions embed.FS

// completion makes the library's command print the scripts of this package: those of the library
// cannot complete a word with a colon, as resources have.
func (a *app) completion(c *cli.Command) {
	c.Hidden, c.Action, c.Commands = false, unknownCommand, nil
	c.Usage = "print a completion script for a shell"
	c.Description = `The scripts complete commands and flags, resources that Redis remembers,
types of resources, protected tables, and kinds of events. For that they ask
the servers of the environment, for a second at most.

   source <(fencedb completion bash)       in .bashrc
   source <(fencedb completion zsh)        in .zshrc
   fencedb completion fish | source        in config.fish`
	for _, shell := range []string{"bash", "zsh", "fish"} {
		c.Commands = append(c.Commands, &cli.Command{
			Name: shell, Usage: "print the one for " + shell, OnUsageError: wrongFlag, ArgValidator: a.checkCall,
			Action: func(context.Context, *cli.Command) error {
				script, _ := completions.ReadFile("complete." + shell)
				_, err := a.out.Write(script)
				return err
			},
		})
	}
}

// complete prints what the next word may be, one a line, with what it is behind a tab. The scripts
// leave out those that do not begin with what is typed of it, unless that is a flag: then it is the
// last argument.
func (a *app) complete(ctx context.Context, cmd *cli.Command) {
	typed := cmd.Args().Slice()
	last := ""
	if len(typed) > 0 {
		last = typed[len(typed)-1]
	}
	if !strings.HasPrefix(last, "-") {
		for _, c := range cmd.VisibleCommands() {
			a.offer(c.Name, c.Usage)
		}
		a.offerArguments(ctx, cmd.ArgsUsage, len(typed))
		return
	}
	for _, c := range cmd.Lineage() {
		for _, flag := range c.VisibleFlags() {
			name := "--" + flag.Names()[0]
			usage := ""
			if documented, is := flag.(cli.DocGenerationFlag); is {
				usage = strings.ReplaceAll(documented.GetUsage(), "`", "")
			}
			if name == last {
				a.offerValues(flag.Names()[0])
			} else if strings.HasPrefix(name, last) {
				a.offer(name, usage)
			}
		}
	}
}

func (a *app) offer(word, what string) { fmt.Fprintf(a.out, "%s\t%s\n", word, what) }

// offerValues offers those that a flag may have.
func (a *app) offerValues(flag string) {
	switch flag {
	case "kind":
		for _, kind := range kinds {
			a.offer(string(kind), "")
		}
	case "for":
		for _, tool := range slices.Sorted(maps.Keys(layouts)) {
			a.offer(tool, "")
		}
	}
}

// offerArguments offers those that a command takes, by the name that its help has for them, behind
// some that are typed.
func (a *app) offerArguments(ctx context.Context, takes string, typed int) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	several := strings.Contains(takes, "...")
	switch {
	case typed > 0 && !several:
	case strings.Contains(takes, "RESOURCE"), strings.Contains(takes, "PREFIX"):
		for _, resource := range a.remembered(ctx) {
			a.offer(resource, "")
		}
	case takes == "TYPE":
		var types []string
		for _, resource := range a.remembered(ctx) {
			kind, _, _ := strings.Cut(resource, ":")
			types = append(types, kind)
		}
		for _, kind := range slices.Compact(types) {
			a.offer(kind, "")
		}
	case strings.Contains(takes, "TABLE"):
		for _, table := range a.protected(ctx) {
			a.offer(table, "")
		}
	}
}

// remembered are the resources in Redis that can be typed, in the namespace of the flags. Nothing
// is said of what is in the way.
func (a *app) remembered(ctx context.Context) (names []string) {
	s, err := a.open(ctx, onRedis)
	defer s.close()
	if err != nil {
		return nil
	}
	keys, _ := s.survey(ctx, func(k lease.Key) bool {
		return counts(k) && k.Namespace == a.names.namespace && !strings.HasPrefix(k.Resource, "sha256:") &&
			visible(k.Resource) == k.Resource && !strings.ContainsAny(k.Resource, " '\"\\$`")
	})
	for _, k := range keys {
		names = append(names, k.Resource)
	}
	slices.Sort(names)
	return names
}

// protected are the tables with a guard.
func (a *app) protected(ctx context.Context) []string {
	s, err := a.open(ctx, onPostgres)
	defer s.close()
	if err != nil {
		return nil
	}
	rows, _ := s.pool.Query(ctx, `SELECT table_name::text FROM fencedb.protected_tables WHERE resource <> '{}' ORDER BY 1`)
	tables, _ := pgx.CollectRows(rows, pgx.RowTo[string])
	return tables
}
