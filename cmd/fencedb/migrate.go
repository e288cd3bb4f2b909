package main

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/migrations"
)

func (a *app) migrate() *cli.Command {
	return &cli.Command{
		Name:  "migrate",
		Usage: "install, show or remove the schema fencedb",
		Commands: []*cli.Command{
			{Name: "up", Usage: "apply missing migrations; safe to repeat and in parallel", Action: a.onSchema(nil, migrations.Up)},
			{Name: "down", Usage: "undo the newest migration; asks first", Flags: []cli.Flag{a.yesFlag()}, Action: a.onSchema(ofNewest, migrations.Down)},
			{Name: "reset", Usage: "remove the schema with all fences; asks first", Flags: []cli.Flag{a.yesFlag()}, Action: a.onSchema(ofAll, migrations.Reset)},
			{Name: "status", Usage: "list the migrations and whether they are applied", Action: a.onSchema(nil, nil)},
			{Name: "print", Usage: "print the SQL of all migrations, without a server", Action: a.migratePrint},
			a.migrateExport(),
		},
		Action: unknownCommand,
	}
}

type migration struct {
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// schemaReport is the result of migrate up, down and status.
type schemaReport struct {
	Migrations []migration `json:"migrations"`
	Changed    []string    `json:"changed"` // names of the migrations that were applied or removed
	removed    bool
}

func (r schemaReport) print(p page) {
	table(p, []string{"VERSION", "NAME", "STATE"}, r.Migrations, func(m migration) []string {
		return []string{fmt.Sprint(m.Version), m.Name, map[bool]string{true: "applied", false: "pending"}[m.Applied]}
	})
	if len(r.Changed) > 0 {
		fmt.Fprintf(p.out, "\n%s\n", r.now())
	}
}

const forgotten = "This forgets every fence and the audit: stale holders can write again."

// ofNewest is the question before the newest migration is undone; "" if there is none.
func ofNewest(before []migrations.Migration) string {
	newest := ""
	for i, m := range before {
		switch {
		case m.Applied && i == 0:
			newest = fmt.Sprintf("Undo %s, the last one? %s", m.Name, forgotten)
		case m.Applied:
			newest = fmt.Sprintf("Undo %s? What it made is dropped, with what is recorded there.", m.Name)
		}
	}
	return newest
}

// ofAll is the question before all migrations are undone; "" if there is none.
func ofAll(before []migrations.Migration) string {
	if ofNewest(before) == "" {
		return ""
	}
	return forgotten + " Remove the schema fencedb?"
}

// askedAgain bounds the question what became of a change, because Postgres may hang.
const askedAgain = 5 * time.Second

// onSchema changes the schema and shows what came of it. It asks the question first, if there is
// one.
func (a *app) onSchema(
	question func(before []migrations.Migration) string, change func(context.Context, *sql.DB) error,
) cli.ActionFunc {
	return a.on(onPostgres, nil, func(ctx context.Context, s *servers) (report, error) {
		db := stdlib.OpenDBFromPool(s.pool)
		defer db.Close()
		asking, cancel := s.bounded(ctx)
		before, err := migrations.Status(asking, db)
		cancel()
		if err != nil || change == nil {
			return newSchemaReport(before, before), err
		}
		if question != nil && question(before) != "" {
			if err := s.confirm(ctx, question(before)); err != nil {
				return nil, err
			}
		}
		changing, cancel := s.bounded(ctx)
		err = change(changing, db)
		cancel()
		asking, cancel = context.WithTimeout(context.WithoutCancel(ctx), min(s.timeout, askedAgain)) // also after Ctrl-C
		defer cancel()
		after, unknown := migrations.Status(asking, db)
		switch done := newSchemaReport(before, after); {
		case err == nil:
			return done, unknown
		case unknown != nil:
			s.changed = "what was changed is not known; see fencedb migrate status"
		case len(done.Changed) > 0:
			s.changed = done.now()
		}
		return nil, err
	})
}

func newSchemaReport(before, after []migrations.Migration) schemaReport {
	r := schemaReport{Migrations: []migration{}, Changed: []string{}}
	for i, m := range after {
		r.Migrations = append(r.Migrations, migration(m))
		if m.Applied != before[i].Applied {
			r.Changed, r.removed = append(r.Changed, m.Name), !m.Applied
		}
	}
	return r
}

// now is what was changed.
func (r schemaReport) now() string {
	verb := map[bool]string{true: "removed", false: "applied"}[r.removed]
	return verb + " now: " + strings.Join(r.Changed, ", ")
}

func (a *app) migratePrint(_ context.Context, cmd *cli.Command) error {
	out := bufio.NewWriter(a.out) // keeps the first error
	fmt.Fprint(out, "-- The SQL that fencedb migrate up runs on an empty database. Both leave the same schema, so either can continue the other.\n\n")
	for _, m := range migrations.Scripts() {
		fmt.Fprintf(out, "-- %05d %s\nBEGIN;\n%s\nCOMMIT;\n\n", m.Version, m.Name, strings.TrimSpace(m.Up))
	}
	return out.Flush()
}
