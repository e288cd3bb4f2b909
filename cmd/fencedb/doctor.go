package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

func (a *app) doctor() *cli.Command {
	var long time.Duration
	return &cli.Command{
		Name:  "doctor",
		Usage: "check both servers for what makes leases or fences unsafe",
		Description: `Says what it found, why that matters and what to do, errors first. It prints
nothing if there is nothing to say. The exit code is 0 without errors,
otherwise 1. If one server does not answer, that is a finding, and the other
is examined.

   fencedb doctor || page somebody`,
		Flags:  []cli.Flag{&cli.DurationFlag{Name: "long", Destination: &long, Usage: "report fenced transactions open for this `TIME`", Value: time.Minute}},
		Action: func(ctx context.Context, _ *cli.Command) error { return a.examine(ctx, long) },
	}
}

type severity string

// The severities, in the order in which they are shown.
const (
	failure severity = "error"   // writes or leases are unsafe now, or do not work
	warning severity = "warning" // something to look at
)

var styles = map[severity]string{failure: red, warning: yellow}

// finding is one fault of the set-up. Its code is for programs and does not change.
type finding struct {
	Severity severity `json:"severity"`
	Code     string   `json:"code"`
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Do       string   `json:"do"`
}

type diagnosis struct {
	Findings []finding `json:"findings"`
}

func (d *diagnosis) print(p page) {
	for i, f := range d.Findings {
		if i > 0 {
			fmt.Fprintln(p.out)
		}
		fmt.Fprintln(p.out, p.styled(string(f.Severity), styles[f.Severity])+" "+f.Code)
		for _, text := range []string{f.What, "Why: " + f.Why, "Do: " + f.Do} {
			p.paragraph("  ", text)
		}
	}
}

var errFindings = errors.New("errors were found")

func (a *app) examine(ctx context.Context, long time.Duration) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	s, err := a.open(ctx, onBoth) // to connect is a part of the examination
	if err != nil {
		return err
	}
	defer s.close()
	e := &examination{servers: s, findings: []finding{}, long: long}
	if err := e.run(ctx); err != nil {
		return err
	}
	// Errors first, otherwise in the order of the examination.
	slices.SortStableFunc(e.findings, func(a, b finding) int { return cmp.Compare(a.Severity, b.Severity) })
	if err := a.show(&diagnosis{e.findings}); err != nil {
		return err
	}
	if len(e.findings) > 0 && e.findings[0].Severity == failure {
		return errFindings
	}
	return nil
}

// examination is a run of doctor.
type examination struct {
	*servers
	findings []finding
	long     time.Duration

	redis []lease.ServerHealth // that answered with their clock
}

func (e *examination) add(severity severity, code, what, why, do string) {
	e.findings = append(e.findings, finding{severity, code, what, why, do})
}

// run returns an error if there is no diagnosis. Redis has half of the time, so that one that hangs leaves
// some for Postgres.
func (e *examination) run(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	e.examineRedis(half)
	err := e.pool.Ping(ctx)
	away := err != nil
	if err == nil {
		err = e.examinePostgres(ctx)
	}
	refused := new(pgconn.PgError)
	switch {
	case err == nil || err == errNoMore:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return err
	case away || ctx.Err() != nil:
		e.add(failure, "postgres_unreachable", fmt.Sprintf("Postgres cannot be reached: %v", err),
			"nothing fenced can be written, and the ledger and the tables were not examined",
			"see that it runs and that the URL is right, and run doctor again")
		return nil
	case errors.As(err, &refused) && refused.Code == insufficientPrivilege:
		e.add(failure, "missing_rights", fmt.Sprintf("permission denied for role %s: %s", e.pool.Config().ConnConfig.User, refused.Message),
			"the ledger and the tables were not examined, or not all",
			"let the owner of the schema fencedb run SELECT fencedb.allow_operator('role')")
		return nil
	}
	return explained(err)
}

var errNoMore = errors.New("what was found lets nothing more be examined")

// examinePostgres stops when nothing more can be examined.
func (e *examination) examinePostgres(ctx context.Context) error {
	for _, ask := range []func(context.Context) error{e.askVersion, e.askSchema, e.askClock, e.askQuestions, e.askCounters} {
		if err := ask(ctx); err != nil {
			return err
		}
	}
	return nil
}

const leastPostgres = 15

// askVersion reads the version that the server reports when a client connects.
func (e *examination) askVersion(ctx context.Context) error {
	var version string
	err := e.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		version = conn.Conn().PgConn().ParameterStatus("server_version")
		return nil
	})
	var major int
	if _, noNumber := fmt.Sscanf(version, "%d", &major); err == nil && noNumber == nil && major < leastPostgres {
		e.add(failure, "postgres_version", "Postgres is version "+version,
			fmt.Sprintf("fencedb needs %d or newer, and is tested from there on", leastPostgres), "upgrade Postgres")
		return errNoMore
	}
	return err
}

func (e *examination) askSchema(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(e.pool)
	defer db.Close()
	steps, err := migrations.Status(ctx, db)
	for _, m := range steps {
		if !m.Applied {
			e.add(failure, "schema_pending", fmt.Sprintf("the database lacks %s, and perhaps later migrations", m.Name),
				"what programs and this command call may not be there", "run fencedb migrate up")
			return errNoMore
		}
	}
	return err
}

//go:embed doctor.sql
var doctorSQL string

// questions are the parts of doctor.sql: severity, code, what, why, what to do, and the query.
var questions = regexp.MustCompile(`(?m)^-- (error|warning) (\w+): (.+)\n-- Why: (.+)\n-- Do: (.+)\n((?:.+\n)+)`).FindAllStringSubmatch(doctorSQL, -1)

func (e *examination) askQuestions(ctx context.Context) error {
	for _, q := range questions {
		rows, _ := e.pool.Query(ctx, q[6], pgx.NamedArgs{"long": e.long.Seconds()})
		subjects, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, subject := range subjects {
			e.add(severity(q[1]), q[2], strings.Replace(q[3], "%s", visible(subject), 1), q[4], q[5])
		}
	}
	return nil
}
