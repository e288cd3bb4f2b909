package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

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

// span is a duration as a person reads it: two units at most.
func span(d time.Duration) string {
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
