package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"
)

// withoutBashCompletion stands in for the one function that the script for bash takes from the package bash-completion, where
// that is not installed. What it would find out, the script has found out already.
const withoutBashCompletion = `declare -F _comp_initialize >/dev/null || declare -F _get_comp_words_by_ref >/dev/null || _get_comp_words_by_ref() { :; }

`

func (a *app) completion(c *cli.Command) {
	c.Hidden = false
	c.Usage = "print a completion script: source <(fencedb completion bash)"
	c.Action = unknownCommand
	for _, shell := range c.Commands {
		if shell.Name != "bash" {
			continue
		}
		script := shell.Action
		shell.Action = func(ctx context.Context, cmd *cli.Command) error {
			fmt.Fprint(a.out, withoutBashCompletion)
			return script(ctx, cmd)
		}
	}
}
