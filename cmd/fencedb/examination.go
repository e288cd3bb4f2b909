package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// examination is one run of doctor.
type examination struct {
	diagnosis
	issuer *lease.Issuer
	pool   *pgxpool.Pool
	long   time.Duration

	redis    []lease.ServerHealth // that told the time
	postgres time.Duration        // how far its clock is ahead of this process's
}

// newExamination does not connect: that a server is away is for the examination to find out.
func newExamination(ctx context.Context, cmd *cli.Command) (*examination, func(), error) {
	client, err := openRedis(cmd)
	if err != nil {
		return nil, nil, err
	}
	pool, err := openPostgres(ctx, cmd)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	closeBoth := func() {
		pool.Close()
		_ = client.Close()
	}
	i, err := issuer(client, namesOf(cmd))
	if err != nil {
		closeBoth()
		return nil, nil, usage("%w", err)
	}
	e := &examination{diagnosis: diagnosis{Findings: []finding{}}, issuer: i, pool: pool, long: cmd.Duration(flagLong)}
	return e, closeBoth, nil
}

// run returns an error if it could not come to a diagnosis.
func (e *examination) run(ctx context.Context) error {
	e.examineRedis(ctx)
	err := e.examinePostgres(ctx)
	refused := new(pgconn.PgError)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &refused) && refused.Code == insufficientPrivilege:
		e.add(missingRights.about(e.pool.Config().ConnConfig.User, refused.Message))
		return nil
	}
	return explained(err)
}

var (
	postgresAway = finding{failure, "postgres_unreachable", "Postgres cannot be reached: %v",
		"nothing fenced can be written, and the ledger and the tables were not examined", "see that it runs and that the URL is right, and run doctor again"}

	missingRights = finding{failure, "missing_rights", "role %s may not see what there is to examine: %s",
		"the ledger and the tables were not examined, or not all", "let the owner of the schema fencedb run SELECT fencedb.allow_operator('role')"}

	oldPostgres = finding{failure, "postgres_version", "Postgres is version %s",
		fmt.Sprintf("fencedb needs %d or newer, and is tested from there on", leastPostgres), "upgrade Postgres"}

	pendingSchema = finding{failure, "schema_pending", "the database lacks %s, and perhaps later migrations",
		"what programs and this command call may not be there", "run fencedb migrate up"}

	hiddenSessions = finding{warning, "sessions_hidden", "role %s does not see what other sessions do",
		"transactions that are open for long were not looked for, and inspect does not say how long they are", "GRANT pg_read_all_stats to the role"}
)

// examinePostgres stops where there is nothing more to look at.
func (e *examination) examinePostgres(ctx context.Context) error {
	if err := e.pool.Ping(ctx); err != nil {
		e.add(postgresAway.about(err))
		return ctx.Err()
	}
	for _, ask := range []func(context.Context) (goOn bool, err error){e.askVersion, e.askSchema} {
		if goOn, err := ask(ctx); err != nil || !goOn {
			return err
		}
	}
	for _, ask := range []func(context.Context) error{e.askClock, e.askTables, e.askSessions, e.askCounters} {
		if err := ask(ctx); err != nil {
			return err
		}
	}
	return nil
}

const leastPostgres = 15

// askVersion believes what the server says of itself when a client connects.
func (e *examination) askVersion(ctx context.Context) (bool, error) {
	var version string
	err := e.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		version = conn.Conn().PgConn().ParameterStatus("server_version")
		return nil
	})
	var major int
	if _, noNumber := fmt.Sscanf(version, "%d", &major); err == nil && noNumber == nil && major < leastPostgres {
		e.add(oldPostgres.about(version))
		return false, nil
	}
	return true, err
}

func (e *examination) askSchema(ctx context.Context) (bool, error) {
	db := stdlib.OpenDBFromPool(e.pool)
	defer db.Close()
	steps, err := migrations.Status(ctx, db)
	for _, m := range steps {
		if !m.Applied {
			e.add(pendingSchema.about(m.Name))
			return false, nil
		}
	}
	return true, err
}
