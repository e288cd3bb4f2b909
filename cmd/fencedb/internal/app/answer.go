package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// Show prints the result of a command, as text or as JSON.
func (a *State) Show(r term.Report) error {
	if !a.JSON {
		out := bufio.NewWriter(a.Out) // keeps the first error
		r.Print(a.Page(out))
		return out.Flush()
	}
	encoder := json.NewEncoder(a.Out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// Confirm shows what the question is about and asks, on stderr so that --json stays clean. It
// returns errDeclined unless the answer is yes. Ctrl-C is an answer too; what is read later is
// dropped.
func (a *State) Confirm(ctx context.Context, question string, about ...term.Report) error {
	if a.yes {
		return nil
	}
	for _, r := range about {
		r.Print(a.Page(a.ErrOut))
		fmt.Fprintln(a.ErrOut)
	}
	fmt.Fprintf(a.ErrOut, "%s [y/N] ", question)
	var answer string
	var err error
	typed := make(chan struct{})
	go func() {
		defer close(typed)
		answer, err = bufio.NewReader(a.In).ReadString('\n')
	}()
	select {
	case <-typed:
	case <-ctx.Done():
		fmt.Fprintln(a.ErrOut)
		return fmt.Errorf("%w: %w", errDeclined, context.Cause(ctx))
	}
	switch {
	case errors.Is(err, io.EOF):
		fmt.Fprintln(a.ErrOut) // the input ended without a newline
	case err != nil:
		return fmt.Errorf("%w: %w", errDeclined, err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// YesFlag is the flag that answers what Confirm asks.
func (a *State) YesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Destination: &a.yes, Usage: "do not ask"}
}

// Page prints on out for the screen that there is.
func (a *State) Page(out io.Writer) term.Page {
	return term.Page{Out: out, Screen: a.Screen, Ahead: a.Ahead}
}
