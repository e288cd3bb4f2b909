package conn

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// Transaction is an open transaction that holds a fence.
type Transaction struct {
	PID         int    `json:"pid"`
	Application string `json:"application"`
	State       string `json:"state"`
	OpenMS      *int64 `json:"open_ms"` // nil: not visible; then State says to whom, and what to grant
	User        string `json:"user"`
	Client      string `json:"client"`    // address and port, or socket; "": not visible, or it is prepared
	WaitsFor    string `json:"waits_for"` // as in pg_stat_activity, with who is in its way; "": nothing, or not visible
}

// Transactions reads those that hold fences of resources. It also tells what the role of the
// command may see of the sessions.
func Transactions(ctx context.Context, pool *pgxpool.Pool, resources ...string) ([]Transaction, error) {
	rows, _ := pool.Query(ctx, `SELECT b.pid, b.application, b.state, b.open_ms, coalesce(a.usename, p.owner, ''),
			coalesce(host(a.client_addr) || ':' || a.client_port, CASE a.client_port WHEN -1 THEN 'socket' END, ''),
			concat_ws(', ', nullif(concat_ws(' ', a.wait_event_type, a.wait_event), ''), CASE WHEN a.wait_event_type = 'Lock' THEN 'held by pid ' || array_to_string(pg_blocking_pids(a.pid), ', ') END)
		FROM fencedb.blockers($1::text[]) b LEFT JOIN pg_stat_activity a ON a.pid = b.pid
			LEFT JOIN pg_prepared_xacts p ON b.pid = 0 AND p.gid = b.application AND p.database = current_database()
		ORDER BY b.open_ms DESC NULLS LAST`, resources)
	all, err := pgx.AppendRows([]Transaction{}, rows, pgx.RowToStructByPos[Transaction])
	return all, Explained(err)
}

// Describe names each with what it does, and for how long.
func Describe(all []Transaction) string {
	var names []string
	for _, t := range all {
		names = append(names, fmt.Sprintf("pid %d (%s, %s, open for %s)", t.PID, term.Visible(t.Application), term.Visible(t.State), t.OpenFor()))
	}
	return strings.Join(names, ", ")
}

// Name is for people.
func (t Transaction) Name() string {
	if t.PID == 0 {
		return "the prepared transaction " + term.Visible(t.Application)
	}
	return fmt.Sprintf("pid %d (%s)", t.PID, term.Visible(t.Application))
}

// OpenFor is for how long it has been open.
func (t Transaction) OpenFor() string {
	if t.OpenMS == nil {
		return "not visible"
	}
	return term.Millis(*t.OpenMS)
}
