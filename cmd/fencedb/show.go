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
	if err != nil {
		fmt.Fprintln(a.errOut) // nobody has pressed Enter
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
		return units(d, day, "d", time.Hour, "h")
	case d >= time.Hour:
		return units(d, time.Hour, "h", time.Minute, "m")
	case d >= time.Minute:
		return units(d, time.Minute, "m", time.Second, "s")
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// units leaves the smaller one out where it would be 0.
func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprint(int64(d/large), largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprint(int64(rest), smallName)
	}
	return text
}
