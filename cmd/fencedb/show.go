package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"
)

// report is the result of a command: its JSON form is the value itself, as schema.json describes it.
type report interface {
	print(p page)
}

func (a *app) show(cmd *cli.Command, r report) error {
	if !cmd.Bool(flagJSON) {
		r.print(page{a.out, a.screen})
		return nil
	}
	encoder := json.NewEncoder(a.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// confirm asks, on stderr so that --json stays clean, and returns errDeclined unless the answer is yes.
func (a *app) confirm(cmd *cli.Command, question string) error {
	if cmd.Bool(flagYes) {
		return nil
	}
	fmt.Fprintf(a.errOut, "%s [y/N] ", question)
	answer, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errDeclined, err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

const flagYes = "yes"

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: flagYes, Aliases: []string{"y"}, Usage: "do not ask"}
}
