// Command fencedb is for operators of a system that uses fencedb. It shows who holds what and who
// can write, checks the set-up, and ends a holder safely. See fencedb --help and the README in this
// directory.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
)

func main() {
	become()
	logging.Disable() // go-redis would print the errors that the command reports
	ctx, stop := signal.NotifyContext(context.Background(), app.Heeded(os.Interrupt, syscall.SIGHUP)...)
	code := run(ctx, app.New(os.Stdin, os.Stdout, os.Stderr), os.Args)
	stop()
	os.Exit(code)
}

// run carries one command out and returns the exit code.
func run(ctx context.Context, a *app.State, args []string) int { return a.Run(ctx, root(a), args) }

const description = `Leases live in Redis, fences in Postgres. The two addresses come from
flags or from the environment:

   export FENCEDB_POSTGRES_URL=postgres://operator@db/app
   export FENCEDB_REDIS_URL=redis://cache:6379/0

The URL of Redis has one of these forms:

` + conn.RedisForms + `

What to call when:

   fencedb inspect table:12          who has table 12, and since when?
   fencedb history table:12          what happened to it?
   fencedb leases table:             what is held now?
   fencedb watch table:              what is happening now?
   fencedb doctor                    is the set-up sound?
   fencedb ttl table                 how long should a lease last?
   fencedb adopt bookings            who still writes without a token?
   fencedb revoke table:12           a holder is stuck: end its lease
   fencedb reset table:12            a fence is too high for any lease
   fencedb with --help               repair a row by hand, with psql
   fencedb drill                     show me a late write being refused
   fencedb chaos                     does all of it hold on my servers?

Do not delete keys in Redis or rows of fencedb.fences by hand: without its
fence, a resource accepts a stale holder again.

Exit codes:

   0   done
   1   failed, doctor found an error, or chaos or drill a broken promise
   2   usage error; nothing was read or changed
   3   not confirmed; nothing was changed
   4   revoked in Redis but not sealed in Postgres

fencedb with has codes of its own.`

// root has all commands.
func root(a *app.State) *cli.Command {
	all := []*cli.Command{
		act.Migrate(a), look.Inspect(a), look.History(a), look.Leases(a), look.Watch(a), act.Revoke(a), act.Reset(a),
		look.TTL(a), look.Explain(a), look.Adopt(a), act.Prune(a), look.Doctor(a), look.Version(a),
	}
	return a.Root(&cli.Command{
		Name:        "fencedb",
		Usage:       "operate leases and fences",
		Description: description,
		Version:     look.BuiltFrom().Version,
		Commands:    append(all, ofUnix(a)...),
	})
}
