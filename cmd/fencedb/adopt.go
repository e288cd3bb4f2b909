package main

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
)

func (a *app) adopt() *cli.Command {
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
		Action: a.read(onPostgres, nil, func(ctx context.Context, s *servers) (report, error) {
			if a.argument == "" {
				return readAdoptions(ctx, s.pool)
			}
			return readAdoption(ctx, s.pool, a.argument)
		}),
	}
}

// adoptions are those of all protected tables.
type adoptions struct {
	Tables []*adoption `json:"tables"`
}

func readAdoptions(ctx context.Context, pool *pgxpool.Pool) (*adoptions, error) {
	rows, _ := pool.Query(ctx, `SELECT p.table_name::text FROM fencedb.protected_tables p WHERE p.resource <> '{}' ORDER BY 1`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, explained(err)
	}
	all := &adoptions{Tables: []*adoption{}}
	for _, name := range names {
		one, err := readAdoption(ctx, pool, name)
		if err != nil {
			return nil, err
		}
		all.Tables = append(all.Tables, one)
	}
	return all, nil
}

func (r *adoptions) print(p page) {
	if len(r.Tables) == 0 {
		p.say("No table is protected; its owner can begin with SELECT fencedb.protect(..., mode => 'observe').")
		return
	}
	table(p, []string{"TABLE", "RESOURCE", "GUARD", "RECORDED", "LAST"}, r.Tables, func(one *adoption) []string {
		times, last := int64(0), ""
		for _, w := range one.Writers {
			times += w.Times
		}
		if len(one.Writers) > 0 {
			last = ago(p.ahead.sincePostgres(one.Writers[0].LastAt))
		}
		return []string{visible(one.Table), visible(strings.Join(one.Resource, " and ")), one.state(p), fmt.Sprint(times), last}
	})
}

// adoption is what is known of the writers of one table.
type adoption struct {
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

func readAdoption(ctx context.Context, pool *pgxpool.Pool, table string) (*adoption, error) {
	found := &adoption{Mode: "enforce"}
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
		return nil, notAName(table, explained(err))
	case !sees:
		return nil, errMayNot
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
	return found, explained(err)
}

const invalidParameter = "22023"

// notAName says how a name is written that Postgres cannot read.
func notAName(table string, err error) error {
	if refused, _ := errors.AsType[*pgconn.PgError](err); value(refused).Code != invalidParameter {
		return err
	}
	return usage("%s is not the name of a table, as SQL writes it: in double quotes if it has spaces or signs, as in fencedb adopt '%s'",
		visible(table), visible(pgx.Identifier{table}.Sanitize()))
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
		return explained(err)
	}
	text := "does not exist"
	if exists {
		text = "is not protected; its owner can observe it with SELECT fencedb.protect(..., mode => 'observe')"
	}
	if len(meant) > 0 {
		text += "; did you mean " + visible(strings.Join(meant, " or ")) + "?"
	} else if !exists {
		text += ", or is not in the search_path; write its name as in SQL, with its schema and, where it has capitals, in double quotes"
	}
	return fmt.Errorf("table %s %s", visible(table), text)
}

// reasons are words for what a guard refuses.
var reasons = map[string]string{
	"FN001": "stale token",
	"FN002": "no token",
	"FN003": "another resource",
	"FN006": "lease over",
}

// state says what the guard does, and since when.
func (r *adoption) state(p page) string {
	switch {
	case len(r.SwitchedOff) > 0:
		return "switched off"
	case r.ObservedSince == nil:
		return "enforced"
	}
	return "observed for " + lasted(p, *r.ObservedSince)
}

// lasted is the time since then, 0 where the clock was set back.
func lasted(p page, then time.Time) string { return span(max(0, p.ahead.sincePostgres(then))) }

func (r *adoption) print(p page) {
	p.facts([2]string{"TABLE", visible(r.Table)}, [2]string{"RESOURCE", visible(strings.Join(r.Resource, " and "))}, [2]string{"GUARD", r.state(p)})
	header := []string{"ROLE", "APPLICATION", "STATEMENT", "REFUSED FOR", "FIRST", "LAST", "RECORDED", "RESOURCE"}
	list(p, header, r.Writers, func(w writer) []string {
		return []string{visible(w.Role), visible(w.Application), w.Statement, cmp.Or(reasons[w.Reason], "error "+w.Reason),
			ago(p.ahead.sincePostgres(w.FirstAt)), ago(p.ahead.sincePostgres(w.LastAt)),
			fmt.Sprint(w.Times), visible(value(w.Resource))}
	})
	fmt.Fprintln(p.out)
	if len(r.Writers) > 0 {
		p.point("One write of a line is recorded in a minute: there may have been more, of other resources, and up to a minute after LAST.")
	}
	switch {
	case len(r.SwitchedOff) > 0:
		p.point("The guard of %s is switched off: it refuses nothing and sees nothing. Call fencedb.protect once more for %s, which switches it on.",
			visible(strings.Join(r.SwitchedOff, ", ")), visible(r.Table))
	case r.ObservedSince == nil:
		p.point("It refuses such writes now. What is shown was observed before; what is refused is not recorded.")
	case r.UnrecordedAt != nil:
		p.point("The list is incomplete: %s a write could not be recorded, to this table or to another. The log of the Postgres server says why. Repair that, and observe for as long again.", ago(p.ahead.sincePostgres(*r.UnrecordedAt)))
	case len(r.Writers) > 0 && p.ahead.sincePostgres(*r.QuietSince) < 0:
		p.point("The last of these writes was less than a minute ago, so more may have come since.")
	case len(r.Writers) > 0:
		p.point("Nothing would have been refused for %s. Before that, the writes above would have been.", lasted(p, *r.QuietSince))
	default:
		p.point("The list is empty: nothing would have been refused since observing began, or since the list was pruned. A writer that was recorded just before the pruning is recorded again after a minute.")
	}
}
