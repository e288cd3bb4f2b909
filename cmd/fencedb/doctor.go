package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

const flagLong = "long"

func (a *app) doctor() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "look for what makes leases or fences unsafe in both servers; only reads",
		Description: `Says what it found, why that matters and what to do, errors first. Exit code 0: no errors, 1: at least one. On a set-up
with nothing to say about it is silent.

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

type diagnosis struct {
	Findings []finding `json:"findings"`
}

func (d *diagnosis) add(findings ...finding) { d.Findings = append(d.Findings, findings...) }

func (d *diagnosis) of(s severity) (some []finding) {
	for _, f := range d.Findings {
		if f.Severity == s {
			some = append(some, f)
		}
	}
	return some
}

func (d *diagnosis) print(p page) {
	for _, f := range d.Findings {
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
	return a.onServers(ctx, cmd, func(i *lease.Issuer, pool *pgxpool.Pool) error {
		d := &diagnosis{Findings: []finding{}}
		if err := examineAll(ctx, d, i, pool, cmd.Duration(flagLong)); err != nil {
			return err
		}
		failures := d.of(failure)
		d.Findings = append(append([]finding{}, failures...), d.of(warning)...)
		if err := a.show(cmd, d); err != nil {
			return err
		}
		if len(failures) > 0 {
			return fmt.Errorf("%w: %d", errFindings, len(failures))
		}
		return nil
	})
}

func examineAll(ctx context.Context, d *diagnosis, i *lease.Issuer, pool *pgxpool.Pool, long time.Duration) error {
	health, problem := i.Check(ctx)
	d.add(redisFindings(health, problem)...)
	clock, migrated, err := examineServer(ctx, d, pool)
	if err != nil || !migrated {
		return err
	}
	for _, s := range health.Servers {
		d.add(clockFindings(s.Clock-clock, s.RoundTrip)...)
	}
	for _, q := range questions {
		if err := q.ask(ctx, d, pool); err != nil {
			return err
		}
	}
	if err := longTransaction.ask(ctx, d, pool, long.Seconds()); err != nil {
		return err
	}
	return examineCounters(ctx, d, i, pool)
}
