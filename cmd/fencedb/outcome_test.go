package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/with"
)

// calls is one of each command that asks a server.
var calls = map[string][]string{
	"migrate up":     nil,
	"migrate down":   {"--yes"},
	"migrate reset":  {"--yes"},
	"migrate status": nil,
	"inspect":        {"seat:1"},
	"history":        {"seat:1"},
	"leases":         nil,
	"watch":          {"--since", "1m"},
	"revoke":         {"seat:1", "--reason", "it hangs", "--yes"},
	"reset":          {"seat:1", "--to", "1", "--reason", "a mistake", "--yes"},
	"ttl":            {"seat"},
	"adopt":          {"seats"},
	"prune":          {"--apply", "--reason", "monthly", "--yes"},
	"doctor":         nil,
	"with":           {"seat:1", "--", "true"},
	"drill":          nil,
	"chaos":          nil,
}

// serverless are the others.
var serverless = []string{"version", "explain", "migrate print", "migrate export", "help", "migrate help"}

func call(name string) []string { return append(strings.Fields(name), calls[name]...) }

func TestEachCommandIsCalledHere(t *testing.T) {
	t.Parallel()
	root := root(&app.State{})
	var asked []string
	require.NoError(t, root.Walk(func(c *cli.Command) error {
		for _, sub := range c.Commands {
			name := strings.TrimSpace(strings.TrimPrefix(c.Name+" "+sub.Name, "fencedb"))
			if sub.Commands == nil && !slices.Contains(serverless, name) {
				asked = append(asked, name)
			}
		}
		return nil
	}))
	var called []string
	for name := range calls {
		called = append(called, name)
	}
	require.ElementsMatch(t, asked, called)
}

// hanging is a server that takes requests and does not answer, and tells that it has got one.
func hanging(t *testing.T) (addr string, asked <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	requests := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				for buffer := make([]byte, 100); ; requests <- struct{}{} {
					if _, err := conn.Read(buffer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String(), requests
}

// saysUnchanged requires that a command that was cut short says that nothing was changed.
func saysUnchanged(t *testing.T, name string, got answer) {
	t.Helper()
	require.NotContains(t, got.out+got.errOut, "context", name)
	switch name {
	case "with":
		require.Equal(t, with.ExitNotRun, got.code, got.errOut)
		require.Contains(t, got.errOut, "the command was not run")
	default:
		require.Equal(t, app.ExitFailed, got.code, "%s: %s", name, got.errOut)
		require.Equal(t, 1, strings.Count(got.errOut, "nothing was changed"), "%s: %s", name, got.errOut)
	}
}

func TestCtrlCSaysThatNothingWasChanged(t *testing.T) {
	t.Parallel()
	for name := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, asked := hanging(t)
			c := newConsole(t, "--redis", "redis://"+addr, "--postgres", "postgres://ann@"+addr+"/none?sslmode=disable", "--timeout", "1h")
			command, errOut := c.process(call(name)...)
			var out bytes.Buffer
			command.Stdout = &out
			require.NoError(t, command.Start())
			<-asked

			require.NoError(t, command.Process.Signal(os.Interrupt))

			_ = command.Wait()
			got := answer{command.ProcessState.ExitCode(), out.String(), errOut.String()}
			if name == "watch" { // Ctrl-C is how it ends
				require.Zero(t, got.code)
				require.Empty(t, got.out)
				require.NotContains(t, got.errOut, "interrupt")
				return
			}
			saysUnchanged(t, name, got)
			require.Contains(t, got.errOut, "interrupt")
		})
	}
}

func TestATimeoutSaysThatNothingWasChanged(t *testing.T) {
	t.Parallel()
	for name := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, _ := hanging(t)
			postgres, _ := hanging(t)
			c := newConsole(t, "--redis", "redis://"+redis, "--postgres", "postgres://ann@"+postgres+"/none?sslmode=disable", "--timeout", "400ms")

			got := c.run(call(name)...)

			if name == "doctor" { // it answers
				require.Contains(t, got.out, "error postgres_unreachable\n  Postgres cannot be reached: "+postgres+": no answer in time")
				require.NotContains(t, got.out, "context")
				return
			}
			saysUnchanged(t, name, got)
			for _, addr := range []string{redis, postgres} {
				require.LessOrEqual(t, strings.Count(got.errOut, addr), 1, "%s: %s", name, got.errOut)
			}
		})
	}
}

// obstacle holds what a command needs, and tells when that waits for it. Nobody has the resource of
// the call: its fence was entered long ago.
type obstacle struct {
	*world
	conn *pgx.Conn
}

func newObstacle(t *testing.T, sql string) *obstacle {
	t.Helper()
	w := aged(t)
	conn, err := pgx.Connect(t.Context(), w.pool.Config().ConnString())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return &obstacle{w, conn}
}

func (o *obstacle) await() {
	o.Helper()
	require.Eventually(o, func() bool {
		return o.one(`SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fencedb' AND (wait_event_type = 'Lock' OR query LIKE '%pg_try_advisory_lock%')`) == "true"
	}, time.Minute, 5*time.Millisecond)
}

// In the middle of a change: what is said is what the servers tell then.
func TestACommandThatIsCutShortWithinAChangeTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	const (
		inTurn  = `SELECT pg_advisory_lock(x'66656e63656462'::bigint)`
		noAudit = `BEGIN; LOCK TABLE fencedb.events`
		entered = `BEGIN; SELECT FROM fencedb.fences FOR UPDATE`
	)
	for name, test := range map[string]struct {
		obstacle          string
		args              []string
		interrupted, late string
	}{
		"migrate up":    {inTurn, []string{"migrate", "up"}, "nothing was changed", "nothing was changed"},
		"migrate down":  {inTurn, []string{"migrate", "down", "--yes"}, "nothing was changed", "nothing was changed"},
		"migrate reset": {inTurn, []string{"migrate", "reset", "--yes"}, "nothing was changed", "nothing was changed"},
		"reset":         {entered, []string{"reset", "a:1", "--to", "1", "--reason", "x", "--yes"}, "whether the fence was set back is not known", "the fence was not changed"},
		"prune":         {noAudit, []string{"prune", "--apply", "--reason", "x", "--yes"}, "0 fences were forgotten and recorded, and perhaps", "0 fences were forgotten and recorded, and perhaps"},
		"revoke":        {entered, []string{"revoke", "a:1", "--reason", "x", "--yes"}, "revoked in Redis, but not sealed in Postgres", "revoked in Redis, but not sealed in Postgres"},
		"revoke, sealing": {entered, []string{"revoke", "a:1", "--seal-only", "--reason", "x", "--yes"},
			"it is not known to be sealed", "it is not known to be sealed"},
		"with": {entered, []string{"with", "a:1", "--", "true"}, "the command was not run", "the command was not run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newObstacle(t, test.obstacle)
			command, errOut := o.process(append([]string{"--timeout", "1h"}, test.args...)...)
			require.NoError(t, command.Start())
			o.await()
			require.NoError(t, command.Process.Signal(syscall.SIGINT))
			_ = command.Wait()
			require.NotZero(t, command.ProcessState.ExitCode())
			require.Contains(t, errOut.String(), test.interrupted)
			require.NotContains(t, errOut.String(), "context")

			got := o.run(append([]string{"--timeout", "10s"}, test.args...)...)
			require.NotZero(t, got.code)
			require.Contains(t, got.errOut, test.late)
			require.NotContains(t, got.errOut, "context")
		})
	}
}

func TestAFailureOfMigrateSaysWhatWasApplied(t *testing.T) {
	t.Parallel()
	w := bare(t)
	w.exec(`CREATE SCHEMA fencedb AUTHORIZATION CURRENT_USER; CREATE TABLE fencedb.take_overs ()`)
	w.as("--postgres", w.pool.Config().ConnString())

	got := w.run("migrate", "up")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "; applied now: 00001_ledger.sql\n")
}
