package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// Adopt is the command adopt.
func Adopt(a *app.State) *cli.Command {
	return &cli.Command{
		Name:      "adopt",
		Usage:     "show who still writes to a table without a token",
		ArgsUsage: "[TABLE]",
		Description: `For a table whose guard only observes: fencedb.protect(..., mode =>
'observe'), or fencedb.enforce(table, observing => true). Shows what the
guard would have refused: by which role and application, how, why, when, how
often, and of which resource.
It changes nothing.

Writes that were rolled back are not shown, nor those of transactions that
are still open. When nothing would have been refused for longer than the
rarest job takes to come round, call fencedb.enforce for the table. Without a
table it lists all that are protected.

   fencedb adopt bookings
   fencedb adopt --json | jq '.tables[] | select(.writers != [])'`,
		Action: conn.TimedAction(a, conn.Postgres, nil, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
			if a.Argument == "" {
				return readAdoptions(ctx, s.Pool)
			}
			return readAdoption(ctx, s.Pool, a.Argument)
		}),
	}
}

// Adoptions are those of all protected tables.
type Adoptions struct {
	Tables []*Adoption `json:"tables"`
}

func readAdoptions(ctx context.Context, pool *pgxpool.Pool) (*Adoptions, error) {
	rows, _ := pool.Query(ctx, `SELECT p.table_name::text FROM fencedb.protected_tables p WHERE p.resource <> '{}' ORDER BY 1`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, conn.Explained(err)
	}
	all := &Adoptions{Tables: []*Adoption{}}
	for _, name := range names {
		one, err := readAdoption(ctx, pool, name)
		if err != nil {
			return nil, err
		}
		all.Tables = append(all.Tables, one)
	}
	return all, nil
}

// Print implements [term.Report].
func (r *Adoptions) Print(p term.Page) {
	if len(r.Tables) == 0 {
		p.Say("No table is protected; its owner can begin with SELECT fencedb.protect(..., mode => 'observe').")
		return
	}
	term.Table(p, []string{"TABLE", "RESOURCE", "GUARD", "RECORDED", "LAST"}, r.Tables, func(one *Adoption) []string {
		times, last := int64(0), ""
		for _, w := range one.Writers {
			times += w.Times
		}
		if len(one.Writers) > 0 {
			last = term.Ago(p.Ahead.SincePostgres(one.Writers[0].LastAt))
		}
		return []string{term.Visible(one.Table), term.Visible(strings.Join(one.Resource, " and ")), one.state(p), fmt.Sprint(times), last}
	})
}

// Adoption is what is known of the writers of one table.
type Adoption struct {
	Table         string     `json:"table"`
	Mode          string     `json:"mode"`
	Resource      []string   `json:"resource"`
	ObservedSince *time.Time `json:"observed_since"` // nil: it is enforced
	SwitchedOff   []string   `json:"switched_off"`   // the table or parts of it, whose guard sees nothing
	QuietSince    *time.Time `json:"quiet_since"`    // at the latest; nil: it is enforced, or a guard is switched off
	UnrecordedAt  *time.Time `json:"unrecorded_at"`  // nil: all was recorded, as far as that is known
	Writers       []writer   `json:"writers"`        // the latest first
}

// writer is one kind of write that would have been refused.
type writer struct {
	Role        string    `json:"role"`
	Application string    `json:"application"`
	Statement   string    `json:"statement"`
	Reason      string    `json:"reason"` // the SQLSTATE of the refusal
	FirstAt     time.Time `json:"first_at"`
	LastAt      time.Time `json:"last_at"`
	Times       int64     `json:"times"`    // it was recorded: once in a minute, however often it came
	Resource    *string   `json:"resource"` // of one row; nil: none was written
}

// merged is how long after the record of a write others like it are not recorded.
const merged = time.Minute

func readAdoption(ctx context.Context, pool *pgxpool.Pool, table string) (*Adoption, error) {
	found := &Adoption{Mode: "enforce"}
	var oid uint32
	var sees bool // otherwise the list of writers is empty
	var unrecorded *time.Time
	// A cast to regclass would ask for rights to the schema of the table, which operators need not
	// have.
	err := pool.QueryRow(ctx, `
		SELECT c.oid, p.table_name::text, p.resource, p.observed_since,
			pg_has_role(c.relowner, 'USAGE') OR has_table_privilege('fencedb.events', 'SELECT'),
			to_timestamp(pg_sequence_last_value('fencedb.unrecorded') / 1000.0), coalesce(p.switched_off, '{}')
		FROM fencedb.protected_tables p JOIN pg_class c ON c.oid = p.table_name
			JOIN pg_namespace n ON n.oid = c.relnamespace, parse_ident($1) AS parts
		WHERE (parts = ARRAY[n.nspname, c.relname]::text[]
			OR parts = ARRAY[c.relname]::text[] AND pg_table_is_visible(c.oid)) AND p.resource <> '{}'`,
		table).Scan(&oid, &found.Table, &found.Resource, &found.ObservedSince, &sees, &unrecorded, &found.SwitchedOff)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, notProtected(ctx, pool, table)
	case err != nil:
		return nil, notAName(table, conn.Explained(err))
	case !sees:
		return nil, conn.ErrMayNot
	}
	rows, _ := pool.Query(ctx, `SELECT role::text, application, statement, reason, first_at, last_at, times, resource FROM fencedb.unfenced_writes
		WHERE table_name = $1::oid ORDER BY last_at DESC, role, application, statement, reason`, oid)
	found.Writers, err = pgx.AppendRows([]writer{}, rows, pgx.RowToStructByPos[writer])
	for i := range found.Writers {
		found.Writers[i].FirstAt, found.Writers[i].LastAt = found.Writers[i].FirstAt.UTC(), found.Writers[i].LastAt.UTC()
	}
	if found.ObservedSince != nil {
		since := found.ObservedSince.UTC()
		quiet := since
		if len(found.Writers) > 0 && found.Writers[0].LastAt.Add(merged).After(quiet) {
			quiet = found.Writers[0].LastAt.Add(merged)
		}
		if unrecorded != nil && unrecorded.After(since) {
			found.UnrecordedAt = new(unrecorded.UTC())
			if unrecorded.After(quiet) {
				quiet = *found.UnrecordedAt
			}
		}
		found.Mode, found.ObservedSince = "observe", &since
		if len(found.SwitchedOff) == 0 {
			found.QuietSince = &quiet
		}
	}
	return found, conn.Explained(err)
}

const invalidParameter = "22023"

// notAName says how a name is written that Postgres cannot read.
func notAName(table string, err error) error {
	if refused, _ := errors.AsType[*pgconn.PgError](err); app.Value(refused).Code != invalidParameter {
		return err
	}
	return app.UsageError("%s is not the name of a table, as SQL writes it: in double quotes if it has spaces or signs, as in fencedb adopt '%s'",
		term.Visible(table), term.Visible(pgx.Identifier{table}.Sanitize()))
}

// notProtected says what is wrong with a name, and which tables may be meant.
func notProtected(ctx context.Context, pool *pgxpool.Pool, table string) error {
	var exists bool
	var meant []string
	err := pool.QueryRow(ctx, `
		SELECT coalesce(bool_or(parts = ARRAY[n.nspname, c.relname]::text[] OR parts = ARRAY[c.relname]::text[] AND pg_table_is_visible(c.oid)), false),
			coalesce(array_agg(c.oid::regclass::text ORDER BY c.oid) FILTER (WHERE p.resource <> '{}'), '{}')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN fencedb.protected_tables p ON p.table_name = c.oid, parse_ident($1) parts
		WHERE c.relkind IN ('r', 'p', 'f') AND lower(c.relname) = lower(parts[cardinality(parts)])`, table).Scan(&exists, &meant)
	if err != nil {
		return conn.Explained(err)
	}
	text := "does not exist"
	if exists {
		text = "is not protected; its owner can observe it with SELECT fencedb.protect(..., mode => 'observe')"
	}
	if len(meant) > 0 {
		text += "; did you mean " + term.Visible(strings.Join(meant, " or ")) + "?"
	} else if !exists {
		text += ", or is not in the search_path; write its name as in SQL, with its schema and, where it has capitals, in double quotes"
	}
	return fmt.Errorf("table %s %s", term.Visible(table), text)
}

// reasons are words for what a guard refuses.
var reasons = map[string]string{
	"FN001": "stale token",
	"FN002": "no token",
	"FN003": "another resource",
	"FN006": "lease over",
}

// state says what the guard does, and since when.
func (r *Adoption) state(p term.Page) string {
	switch {
	case len(r.SwitchedOff) > 0:
		return "switched off"
	case r.ObservedSince == nil:
		return "enforced"
	}
	return "observed for " + lasted(p, *r.ObservedSince)
}

// lasted is the time since then, 0 where the clock was set back.
func lasted(p term.Page, then time.Time) string {
	return term.Span(max(0, p.Ahead.SincePostgres(then)))
}

// Print implements [term.Report].
func (r *Adoption) Print(p term.Page) {
	p.Facts([2]string{"TABLE", term.Visible(r.Table)}, [2]string{"RESOURCE", term.Visible(strings.Join(r.Resource, " and "))}, [2]string{"GUARD", r.state(p)})
	header := []string{"ROLE", "APPLICATION", "STATEMENT", "REFUSED FOR", "FIRST", "LAST", "RECORDED", "RESOURCE"}
	term.List(p, header, r.Writers, func(w writer) []string {
		return []string{term.Visible(w.Role), term.Visible(w.Application), w.Statement, cmp.Or(reasons[w.Reason], "error "+w.Reason),
			term.Ago(p.Ahead.SincePostgres(w.FirstAt)), term.Ago(p.Ahead.SincePostgres(w.LastAt)),
			fmt.Sprint(w.Times), term.Visible(app.Value(w.Resource))}
	})
	fmt.Fprintln(p.Out)
	if len(r.Writers) > 0 {
		p.Point("One write of a line is recorded in a minute: there may have been more, of other resources, and up to a minute after LAST.")
	}
	switch {
	case len(r.SwitchedOff) > 0:
		p.Point("The guard of %s is switched off: it refuses nothing and sees nothing. Call fencedb.protect once more for %s, which switches it on.",
			term.Visible(strings.Join(r.SwitchedOff, ", ")), term.Visible(r.Table))
	case r.ObservedSince == nil:
		p.Point("It refuses such writes now. What is shown was observed before; what is refused is not recorded.")
	case r.UnrecordedAt != nil:
		p.Point("The list is incomplete: %s a write could not be recorded, to this table or to another. The log of the Postgres server says why. Repair that, and observe for as long again.", term.Ago(p.Ahead.SincePostgres(*r.UnrecordedAt)))
	case len(r.Writers) > 0 && p.Ahead.SincePostgres(*r.QuietSince) < 0:
		p.Point("The last of these writes was less than a minute ago, so more may have come since.")
	case len(r.Writers) > 0:
		p.Point("Nothing would have been refused for %s. Before that, the writes above would have been.", lasted(p, *r.QuietSince))
	default:
		p.Point("The list is empty: nothing would have been refused since observing began, or since the list was pruned. A writer that was recorded just before the pruning is recorded again after a minute.")
	}
}
