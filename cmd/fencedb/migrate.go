package main

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/migrations"
)

func (a *app) migrate() *cli.Command {
	return &cli.Command{
		Name:  "migrate",
		Usage: "install, show or remove the schema fencedb",
		Commands: []*cli.Command{
			{Name: "up", Usage: "apply missing migrations; safe to repeat and in parallel", Action: a.onSchema(migrations.Up)},
			{Name: "down", Usage: "remove the schema with all fences; asks first", Flags: []cli.Flag{a.yesFlag()}, Action: a.migrateDown},
			{Name: "status", Usage: "list the migrations and whether they are applied", Action: a.onSchema(func(context.Context, *sql.DB) error { return nil })},
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
		verb := map[bool]string{true: "removed", false: "applied"}[r.removed]
		fmt.Fprintf(p.out, "\n%s now: %s\n", verb, strings.Join(r.Changed, ", "))
	}
}

func (a *app) migrateDown(ctx context.Context, cmd *cli.Command) error {
	if a.postgresURL != "" { // otherwise the missing URL is the error to report
		err := a.confirm(ctx, "This forgets every fence and the audit: stale holders can write again. Remove the schema fencedb?")
		if err != nil {
			return err
		}
	}
	return a.onSchema(migrations.Down)(ctx, cmd)
}

// onSchema changes the schema and shows what came of it.
func (a *app) onSchema(change func(context.Context, *sql.DB) error) cli.ActionFunc {
	return a.read(onPostgres, nil, func(ctx context.Context, s *servers) (report, error) {
		db := stdlib.OpenDBFromPool(s.pool)
		defer db.Close()
		before, err := migrations.Status(ctx, db)
		if err == nil {
			err = change(ctx, db)
		}
		if err != nil {
			return nil, err
		}
		after, err := migrations.Status(ctx, db)
		r := schemaReport{Migrations: []migration{}, Changed: []string{}}
		for i, m := range after {
			r.Migrations = append(r.Migrations, migration(m))
			if m.Applied != before[i].Applied {
				r.Changed, r.removed = append(r.Changed, m.Name), !m.Applied
			}
		}
		return r, err
	})
}

func (a *app) migratePrint(_ context.Context, cmd *cli.Command) error {
	out := bufio.NewWriter(a.out) // keeps the first error
	fmt.Fprint(out, "-- The SQL that fencedb migrate up runs on an empty database. Both leave the same schema, so either can continue the other.\n\n")
	for _, m := range migrations.Scripts() {
		fmt.Fprintf(out, "-- %05d %s\nBEGIN;\n%s\nCOMMIT;\n\n", m.Version, m.Name, strings.TrimSpace(m.Up))
	}
	return out.Flush()
}
