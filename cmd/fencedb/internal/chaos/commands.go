//go:build unix

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

var errViolated = errors.New("promises were broken")

// Command is the command chaos.
func Command(a *app.State) *cli.Command {
	var c Config
	var html string
	return &cli.Command{
		Name:  "chaos",
		Usage: "try leases and fences on your servers, under faults",
		Description: `Starts worker processes that count, set a register, move money between
accounts and more, each with a lease from your Redis and behind the fence in
your Postgres. Meanwhile they are stopped and killed, and their connections
are delayed, held and cut by proxies of this command. In the end it checks
the outcome of every attempt; docs/chaos.md has the rules.

Everything is in a namespace in Redis and a schema in Postgres that this run
makes and removes. The role needs CREATE on the database and nothing else; an
empty database of your server is best. What must stay, such as records in
the audit of a database that has the schema fencedb, is listed.

   fencedb chaos --for 1m --html verdict.html
   fencedb chaos --for 1m --seed 270069174949906     the same faults again
   fencedb chaos --for 10s --control no-fence        must fail

Wrong ways to write: ` + strings.Replace(term.Words(Controls()), ", safe", ",\nsafe", 1) + `.

The exit code is 1 if a promise was broken.`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "for", Destination: &c.For, Usage: "`TIME` for faults", Value: time.Minute, Validator: app.Positive},
			&cli.Uint64Flag{Name: "seed", Destination: &c.Seed, Usage: "repeat a run by its `NUMBER`", DefaultText: "new"},
			&cli.DurationFlag{Name: "ttl", Destination: &c.TTL, Usage: "`TIME` that a lease lasts", Value: time.Second, Validator: app.Positive},
			&cli.IntFlag{Name: "workers", Destination: &c.Workers, Usage: "`NUMBER` of processes", Value: 4, Validator: app.AtLeast(1)},
			&cli.IntFlag{Name: "clients", Destination: &c.Clients, Usage: "`NUMBER` in each process", Value: 3, Validator: app.AtLeast(1)},
			&cli.IntFlag{Name: "width", Destination: &c.Width, Usage: "`NUMBER` of each object", Value: 1, Validator: app.AtLeast(1)},
			&cli.StringSliceFlag{Name: "only", Destination: &c.Only, Usage: "`FAULT`; all if not given"},
			&cli.StringFlag{Name: "control", Destination: (*string)(&c.Control), Usage: "write in a wrong `WAY`, see above"},
			&cli.StringFlag{Name: "html", Destination: &html, Usage: "write the verdict to a `FILE` too"},
		},
		Action: outlive(a, &c, func(ctx context.Context) error { return runChaos(ctx, a, c, html) }),
	}
}

// outlive checks the settings, both servers and the query mode before a run, and keeps a broken
// pipe from ending the program: then a run could not take away what it has made. It ends in good
// order when nobody reads what it says.
func outlive(a *app.State, c *Config, run func(context.Context) error) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		c.PostgresURL, c.RedisURL, c.Open, c.Log = a.PostgresURL, a.RedisURL, conn.OpenRedis, a.Out
		if a.JSON {
			c.Log = a.ErrOut
		}
		if err := c.Check(); err != nil {
			return app.UsageError("%w", err)
		}
		tried := func(ctx context.Context, _ *conn.Servers) (term.Report, error) {
			if err := c.TryMode(ctx); err != nil {
				return nil, fmt.Errorf("%w: %w", app.ErrUnchanged, err)
			}
			return nil, nil
		}
		if err := conn.TimedAction(a, conn.Both|conn.Primary, nil, tried)(ctx, cmd); err != nil {
			return err
		}
		nobody := make(chan os.Signal, 1)
		signal.Notify(nobody, syscall.SIGPIPE)
		defer signal.Stop(nobody)
		a.Changed = "what it has made was removed again, but for what it says is left"
		return run(ctx)
	}
}

// trial is the result of chaos.
type trial struct{ *Verdict }

func (t trial) Print(p term.Page) { _ = t.Text(p.Out) }

func runChaos(ctx context.Context, a *app.State, c Config, html string) error {
	if html != "" { // before the run, which may take an hour, and without emptying an earlier verdict
		file, err := os.OpenFile(html, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return app.UsageError("--html: %w", err)
		}
		_ = file.Close()
	}
	v, err := Run(ctx, c)
	if err != nil {
		return err
	}
	err = a.Show(trial{v})
	if html != "" {
		var page bytes.Buffer
		err = errors.Join(err, v.HTML(&page), os.WriteFile(html, page.Bytes(), 0o666))
	}
	if err == nil && !v.Passed() {
		err = fmt.Errorf("%w: %d violations", errViolated, len(v.Violations))
	}
	return err
}

// DrillCommand is the command drill.
func DrillCommand(a *app.State) *cli.Command {
	var c Config
	return &cli.Command{
		Name:  "drill",
		Usage: "show on your servers what happens when a holder fails",
		Description: `Six stories with two processes that book tables, each checked on both
servers: two guests want one table; eight clients count; a holder loses its
connection; is killed; is stopped past its lease and writes late. The last
is the control: the same late write where there is no fence, which loses a
booking. For game days: see docs/runbook.md.

   fencedb drill
   fencedb drill --ttl 4s        the stories wait for that

It works in a namespace in Redis and a schema in Postgres of its own, which
it removes, and needs what fencedb chaos needs. The exit code is 1 if a story
did not end as promised.`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "ttl", Destination: &c.TTL, Usage: "`TIME` that a lease lasts", Value: 2 * time.Second, Validator: app.Positive},
		},
		Action: outlive(a, &c, func(ctx context.Context) error {
			c.Colour = a.Screen.Color && !a.JSON
			d, err := Drill(ctx, c)
			if err != nil {
				return err
			}
			err = a.Show(drilled{d})
			if broken := d.Broken(); err == nil && len(broken) > 0 {
				err = fmt.Errorf("%w: %s", errViolated, term.Words(broken))
			}
			return err
		}),
	}
}

// drilled is the result of drill. Text was written while it ran.
type drilled struct{ *Drilled }

func (d drilled) Print(p term.Page) {
	for _, left := range d.Left {
		fmt.Fprintf(p.Out, "left %s\n", left)
	}
}
