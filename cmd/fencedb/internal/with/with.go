//go:build unix

// Package with runs a command while leases are held: fencedb with.
package with

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// Command is the command with.
func Command(a *app.State) *cli.Command {
	var w wrapping
	return &cli.Command{
		Name:      "with",
		Usage:     "run a command while it holds resources",
		ArgsUsage: "RESOURCE... -- COMMAND [ARGUMENT...]",
		Description: `Acquires the resources, all or none, and seals them in Postgres: no earlier
holder can write to protected tables from then on. Then it runs COMMAND,
renews the leases while that runs, and releases them. Signals are passed on.
If a lease is lost, the command and all that it has started get SIGTERM, and
after --grace SIGKILL. Processes that outlive the command are ended in
the same way: the leases are released when the last one has ended.

The command finds in its environment:

   FENCEDB_ENTER     SQL that must come first in each of its transactions
   FENCEDB_GRANTS    JSON, an array with resource, token and lease_id of each
   FENCEDB_RESOURCE, FENCEDB_TOKEN, FENCEDB_LEASE_ID
                     the same, of a single one; empty for several
   FENCEDB_POSTGRES_URL
                     the database, also if --postgres has named it, in a form
                     that psql takes: without parameters of pgx

   fencedb with order:7 -- psql "$FENCEDB_POSTGRES_URL" -f fix.sql
   fencedb with --wait 1m order:7 order:8 -- ./fix.sh

In fix.sql:

   \set ON_ERROR_STOP on
   \getenv enter FENCEDB_ENTER
   BEGIN;
   :enter;
   UPDATE orders SET state = 'paid' WHERE id = 7;
   COMMIT;

stderr says what became of the leases. The exit code is that of the
command, 128 + N if signal N ended it, or

   123   the command ended with 0, but a lease was lost before
   124   another holds one of the resources; the command was not run
   125   failed; the command was not run
   126   the command cannot be run
   127   there is no such command`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "wait", Destination: &w.wait, Usage: "wait this `TIME` for what is held by others", Validator: app.NotNegative},
			&cli.DurationFlag{Name: "ttl", Destination: &w.cfg.TTL, Usage: "`TIME` that a lease lasts without renewal", Value: time.Minute, Validator: app.Positive},
			&cli.DurationFlag{Name: "max-hold", Destination: &w.cfg.MaxHold, Usage: "renew for this `TIME` at most, or for --ttl", Value: time.Hour},
			&cli.DurationFlag{Name: "hold", Destination: &w.hold, Usage: "`TIME` that one transaction may take", DefaultText: "as --ttl", Validator: app.Positive},
			&cli.DurationFlag{Name: "grace", Destination: &w.grace, Usage: "`TIME` from SIGTERM to SIGKILL",
				Value: 10 * time.Second, Validator: app.NotNegative},
			&cli.BoolFlag{Name: "force", Destination: &w.force, Usage: "run even if another namespace of Redis has a resource"},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			err := conn.Action(a, conn.Both, w.complete, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
				w.Servers = s
				return nil, w.run(ctx)
			})(ctx, cmd)
			if err == nil || errors.As(err, new(app.ExitError)) {
				return err
			}
			return app.ExitError{Code: ExitNotRun, Err: fmt.Errorf("%w; the command was not run", err)}
		},
	}
}

// givingBack is how long a call that fails waits until what it has acquired is given back.
const givingBack = 5 * time.Second

func (w *wrapping) complete(cmd *cli.Command) error {
	// The parser drops the first "--", but not from what the root was given.
	typed := cmd.Root().Args().Slice()
	if i := slices.Index(typed, "--"); i >= 0 {
		w.command = typed[i+1:]
	}
	w.resources = cmd.Args().Slice()[:cmd.Args().Len()-len(w.command)]
	w.cfg.MaxHold = max(w.cfg.MaxHold, w.cfg.TTL)
	w.hold = cmp.Or(w.hold, w.cfg.TTL)
	switch {
	case len(w.command) == 0:
		return app.UsageError("no command; put it behind --, as in %s order:7 -- ./fix.sh", cmd.FullName())
	case len(w.resources) == 0 || slices.Contains(w.resources, ""):
		return app.UsageError("no resource; put it before --, as in %s order:7 -- ./fix.sh", cmd.FullName())
	}
	var err error
	switch w.path, err = exec.LookPath(w.command[0]); {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return app.ExitError{Code: ExitNotFound, Err: fmt.Errorf("%w; nothing was acquired", err)}
	case err != nil:
		return app.ExitError{Code: ExitNotExecutable, Err: fmt.Errorf("%w; nothing was acquired", err)}
	}
	return nil
}

func (w *wrapping) run(ctx context.Context) error {
	if filepath.Base(w.command[0]) == "psql" { // the shell has put the URL there
		for i, argument := range w.command {
			if argument == w.PostgresURL {
				w.command[i] = conn.ForPsql(argument)
			}
		}
	}
	err := w.acquire(ctx)
	switch {
	case errors.Is(err, lease.ErrInvalid):
		return app.UsageError("%w", err)
	case errors.Is(err, lease.ErrHeld), errors.Is(err, fencedb.ErrBusy):
		return app.ExitError{Code: ExitHeld, Err: fmt.Errorf("%w; the command was not run", err)}
	case err != nil:
		return err
	}
	w.began = time.Now()
	err = w.runCommand(ctx)
	took := term.Span(time.Since(w.began))
	ending, cancel := w.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	if w.released = w.leases.Release(ending); w.lost == nil && lease.IsLost(w.released) {
		w.lost = w.released
	}
	if err != nil {
		return err
	}
	return w.conclude(took)
}

// acquire acquires and seals all resources, or none.
func (w *wrapping) acquire(ctx context.Context) error {
	w.cfg.Namespace, w.cfg.HashResources, w.cfg.FenceRetention = w.Names.Namespace, w.Names.Hashed, app.FenceRetention
	w.cfg.Seal = fencedb.Sealer(w.Pool)
	i, err := lease.New(w.Client, w.cfg)
	if err != nil {
		return err
	}
	opt := lease.NoWait()
	if w.wait > 0 {
		opt = lease.WaitAtMost(w.wait)
	}
	ctx, cancel := context.WithTimeout(ctx, w.wait+w.Timeout)
	defer cancel()
	answered := w.Waits(func() string {
		return fmt.Sprintf("%s, for %s at most (--wait and --timeout)", term.Visible(strings.Join(w.resources, ", ")), term.Span(w.wait+w.Timeout)) +
			w.InTheWay(ctx, w.resources)
	})
	defer func() { cancel(); answered() }()
	if err := w.onlyHere(ctx, i); err != nil {
		return err
	}
	if w.leases, err = i.AcquireAll(ctx, w.resources, opt); err == nil {
		return nil
	}
	err = conn.Explained(err)
	// What was acquired and not sealed is given back behind the call, on a client that is about to be
	// closed.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(w.Timeout, givingBack))
	defer cancel()
	if left := i.Close(ending); left != nil {
		return fmt.Errorf("%w; %v", err, left) // what is left says nothing of why it was not acquired
	}
	return err
}

// onlyHere refuses resources that another namespace has, unless forced.
func (w *wrapping) onlyHere(ctx context.Context, i *lease.Issuer) error {
	if w.force {
		return nil
	}
	known := map[string]bool{}
	for _, resource := range w.resources { // an invalid name first
		found, err := i.Inspect(ctx, resource)
		if err != nil {
			return err
		}
		known[resource] = found.LastToken > 0
	}
	locations, unsearched := look.Search(ctx, w.Servers, w.resources...)
	for _, resource := range w.resources {
		if err := look.NotElsewhere(w.Servers, resource, known[resource], locations[resource], unsearched); err != nil {
			return err
		}
	}
	return nil
}

// conclude says what became of the leases.
func (w *wrapping) conclude(took string) error {
	what := term.Visible(w.leases[0].Resource()) + " was"
	if n := len(w.leases); n > 1 {
		what = fmt.Sprintf("%d resources were", n)
	}
	text := fmt.Sprintf("%s held to the end, for %s", what, took)
	switch {
	case w.lost != nil:
		text = fmt.Sprintf("the lease was lost before the command ended, which took %s: %s. What it has committed in protected tables stands; "+
			"what it did elsewhere may conflict with the work of another holder", took, app.InWords(w.lost))
		w.code = cmp.Or(w.code, ExitLost)
	case w.released != nil:
		text += fmt.Sprintf(". It could not be released, so it stays blocked for its TTL at most: %s", app.InWords(w.released))
	}
	if w.code == app.ExitDone {
		fmt.Fprintln(w.ErrOut, "fencedb:", text)
		return nil
	}
	return app.ExitError{Code: w.code, Err: errors.New(text)}
}
