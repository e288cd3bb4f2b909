package act

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/migrations"
)

// Migrate is the command migrate.
func Migrate(a *app.State) *cli.Command {
	return &cli.Command{
		Name:  "migrate",
		Usage: "install, show or remove the schema fencedb",
		Commands: []*cli.Command{
			{Name: "up", Usage: "apply missing migrations; safe to repeat and in parallel", Action: onSchema(a, nil, migrations.Up)},
			{Name: "down", Usage: "undo the newest migration; asks first", Flags: []cli.Flag{a.YesFlag()}, Action: onSchema(a, ofNewest, migrations.Down)},
			{Name: "reset", Usage: "remove the schema with all fences; asks first", Flags: []cli.Flag{a.YesFlag()}, Action: onSchema(a, ofAll, migrations.Reset)},
			{Name: "status", Usage: "list the migrations and whether they are applied", Action: onSchema(a, nil, nil)},
			{Name: "print", Usage: "print the SQL of all migrations, without a server", Action: func(context.Context, *cli.Command) error {
				return migratePrint(a)
			}},
			migrateExport(a),
		},
		Action: app.WithoutSubcommand,
	}
}

type migration struct {
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

// SchemaReport is the result of migrate up, down and status.
type SchemaReport struct {
	Migrations []migration `json:"migrations"`
	Changed    []string    `json:"changed"` // names of the migrations that were applied or removed
	removed    bool
}

// Print implements [term.Report].
func (r SchemaReport) Print(p term.Page) {
	term.Table(p, []string{"VERSION", "NAME", "STATE"}, r.Migrations, func(m migration) []string {
		return []string{fmt.Sprint(m.Version), m.Name, map[bool]string{true: "applied", false: "pending"}[m.Applied]}
	})
	if len(r.Changed) > 0 {
		fmt.Fprintf(p.Out, "\n%s\n", r.now())
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

// onSchema changes the schema and shows what came of it. It asks the question first, if there is
// one.
func onSchema(
	a *app.State, question func(before []migrations.Migration) string, change func(context.Context, *sql.DB) error,
) cli.ActionFunc {
	return conn.Action(a, conn.Postgres, nil, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
		db := stdlib.OpenDBFromPool(s.Pool)
		defer db.Close()
		asking, cancel := s.Bounded(ctx)
		before, err := migrations.Status(asking, db)
		cancel()
		if err != nil || change == nil {
			return newSchemaReport(before, before), err
		}
		if question != nil && question(before) != "" {
			if err := s.Confirm(ctx, question(before)); err != nil {
				return nil, err
			}
		}
		changing, cancel := s.Bounded(ctx)
		err = change(changing, db)
		cancel()
		asking, cancel = context.WithTimeout(context.WithoutCancel(ctx), min(s.Timeout, askedAgain)) // also after Ctrl-C
		defer cancel()
		after, unknown := migrations.Status(asking, db)
		switch done := newSchemaReport(before, after); {
		case err == nil:
			return done, unknown
		case unknown != nil:
			s.Changed = "what was changed is not known; see fencedb migrate status"
		case len(done.Changed) > 0:
			s.Changed = done.now()
		}
		return nil, err
	})
}

func newSchemaReport(before, after []migrations.Migration) SchemaReport {
	r := SchemaReport{Migrations: []migration{}, Changed: []string{}}
	for i, m := range after {
		r.Migrations = append(r.Migrations, migration(m))
		if m.Applied != before[i].Applied {
			r.Changed, r.removed = append(r.Changed, m.Name), !m.Applied
		}
	}
	return r
}

// now is what was changed.
func (r SchemaReport) now() string {
	verb := map[bool]string{true: "removed", false: "applied"}[r.removed]
	return verb + " now: " + strings.Join(r.Changed, ", ")
}

func migratePrint(a *app.State) error {
	out := bufio.NewWriter(a.Out) // keeps the first error
	fmt.Fprint(out, "-- The SQL that fencedb migrate up runs on an empty database. Both leave the same schema, so either can continue the other.\n\n")
	for _, m := range migrations.Scripts() {
		fmt.Fprintf(out, "-- %05d %s\nBEGIN;\n%s\nCOMMIT;\n\n", m.Version, m.Name, strings.TrimSpace(m.Up))
	}
	return out.Flush()
}
