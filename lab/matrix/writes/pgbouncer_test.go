package writes

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lab/matrix"
)

// TestPgBouncer has a PgBouncer in transaction mode in between, and faults on either side of it.
func TestPgBouncer(t *testing.T) {
	const crews = 6
	table, servers := matrix.NewTable(2*crews), newWorlds(t, 2*crews)
	sides := map[string]chan *world{"before": make(chan *world, crews), "behind": make(chan *world, crews)}
	modes := []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for range crews {
		behind, before := <-servers, <-servers
		behind.front = newBouncer(t, behind.proxy.URL())
		before.proxy = faulty.NewPostgresProxy(t, newBouncer(t, before.proxy.URL()))
		before.front = before.proxy.URL()
		sides["behind"] <- behind
		sides["before"] <- before
	}
	var cells []matrix.Cell
	for i := range entries {
		for f := range bouncerFaults {
			for m, mode := range modes {
				for side, worlds := range sides {
					s := setup{&entries[i], levels[0], mode, (i+m)%2 == 0, pooled}
					if !matrix.Full && (i+f+m)%2 == 0 || prepares(s) {
						continue
					}
					c := cell(table, worlds, s, &bouncerFaults[f])
					c.Name += "/" + side
					cells = append(cells, c)
				}
			}
		}
	}
	table.Play(t, cells)
}

func newBouncer(t *testing.T, server string) (url string) {
	return testenv.PgBouncer(t, server, "transaction", "default_pool_size=8").URL()
}

// prepares is whether an entry point gives a statement a name of its own. Only newer PgBouncers
// keep track of these.
func prepares(s setup) bool { return s.name == "Tx Prepare" }

// bouncerFaults are like faults. What has arrived at PgBouncer may not have been passed on.
var bouncerFaults = []fault{
	{name: "none behind PgBouncer", means: "nothing goes wrong, in transaction mode",
		points: once, allowed: only(committed), unless: prepares},
	{name: "reset with PgBouncer", means: "the connection is reset, before or behind a PgBouncer in transaction mode",
		points: chosen, verdict: faulty.Reset, unread: true, allowed: mostly, unless: prepares},
	{name: "silence with PgBouncer", means: "the connection falls silent, before or behind it",
		points: chosen, verdict: faulty.Silence, unread: true, allowed: mostly, validity: silenceValidity,
		bound: silenceValidity + answering, slow: true, unless: prepares},
	{name: "killed behind PgBouncer", means: "the session of the server is ended",
		points: chosen, do: killed, unread: true, dead: true, allowed: mostly, unless: prepares},
}
