package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"
)

const flagLong = "long"

func (a *app) doctor() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look for what makes leases or fences unsafe in both servers; only reads",
		Description: `Says what it found, why that matters and what to do, errors first. Exit code 0: no errors, 1: at least one. On a set-up
with nothing to say about it is silent. A server that does not answer is a finding; the other one is examined all the same.

   fencedb doctor || page somebody`,
		Flags:  []cli.Flag{&cli.DurationFlag{Name: flagLong, Usage: "fenced transactions are long after this `TIME`", Value: time.Minute}},
		Action: a.examine,
	}
}

type severity string

const (
	failure severity = "error"   // writes or leases are unsafe now, or do not work
	warning severity = "warning" // something to look at
)

// finding is one thing that is not as it should be. The code is for programs and does not change.
type finding struct {
	Severity severity `json:"severity"`
	Code     string   `json:"code"`
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Do       string   `json:"do"`
}

// about is the finding with its What, a format, filled in.
func (f finding) about(args ...any) finding {
	f.What = fmt.Sprintf(f.What, args...)
	return f
}

type diagnosis struct {
	Findings []finding `json:"findings"`
}

func (d *diagnosis) add(findings ...finding) { d.Findings = append(d.Findings, findings...) }

// sort puts errors first and leaves the order of the examination otherwise. It returns how many there are.
func (d *diagnosis) sort() (errors int) {
	rank := func(f finding) int {
		if f.Severity == failure {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(d.Findings, func(a, b finding) int { return rank(a) - rank(b) })
	for errors < len(d.Findings) && d.Findings[errors].Severity == failure {
		errors++
	}
	return errors
}

func (d *diagnosis) print(p page) {
	for i, f := range d.Findings {
		if i > 0 {
			fmt.Fprintln(p.out)
		}
		style := yellow
		if f.Severity == failure {
			style = red
		}
		fmt.Fprintln(p.out, p.styled(string(f.Severity), style)+" "+f.Code)
		p.paragraph("  ", f.What, "  ")
		p.paragraph("  ", "Why: "+f.Why, "  ")
		p.paragraph("  ", "Do: "+f.Do, "  ")
	}
}

var errFindings = errors.New("errors were found")

func (a *app) examine(ctx context.Context, cmd *cli.Command) error {
	if err := noArguments(cmd); err != nil {
		return err
	}
	ctx, cancel, err := bounded(ctx, cmd)
	if err != nil {
		return err
	}
	defer cancel()
	e, closeBoth, err := newExamination(ctx, cmd)
	if err != nil {
		return err
	}
	defer closeBoth()
	if err := e.run(ctx); err != nil {
		return err
	}
	failures := e.sort()
	if err := a.show(cmd, &e.diagnosis); err != nil {
		return err
	}
	if failures > 0 {
		return fmt.Errorf("%w: %d", errFindings, failures)
	}
	return nil
}
