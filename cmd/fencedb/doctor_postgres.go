package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/migrations"
)

const leastPostgres = 15

// examineServer returns how far Postgres's clock is ahead of this process's, and whether there is a complete schema to look at.
func examineServer(ctx context.Context, d *diagnosis, pool *pgxpool.Pool) (clock time.Duration, migrated bool, err error) {
	var version int
	var now time.Time
	sent := time.Now()
	if err := pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, clock_timestamp()`).Scan(&version, &now); err != nil {
		return 0, false, fmt.Errorf("postgres: %w", err)
	}
	clock = now.Sub(sent.Add(time.Since(sent) / 2))
	d.add(versionFindings(version)...)

	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	steps, err := migrations.Status(ctx, db)
	if err != nil {
		return 0, false, err
	}
	for _, m := range steps {
		if !m.Applied {
			d.add(finding{failure, "schema_pending", "the database lacks " + m.Name + ", and perhaps later migrations",
				"what programs and this command call may not be there", "run fencedb migrate up"})
			return clock, false, nil
		}
	}
	return clock, true, nil
}

func versionFindings(version int) []finding {
	if version/10000 >= leastPostgres {
		return nil
	}
	return []finding{{failure, "postgres_version", fmt.Sprintf("Postgres is version %d", version/10000),
		fmt.Sprintf("fencedb is tested from %d on", leastPostgres), "upgrade Postgres"}}
}

// question is one query whose every row is a finding; its single column says about what.
type question struct {
	finding // What is a format
	sql     string
}

func (q question) ask(ctx context.Context, d *diagnosis, pool *pgxpool.Pool, args ...any) error {
	rows, _ := pool.Query(ctx, q.sql, args...)
	subjects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return explained(err)
	}
	for _, subject := range subjects {
		f := q.finding
		f.What = fmt.Sprintf(q.What, visible(subject))
		d.add(f)
	}
	return nil
}

var questions = []question{
	{finding{failure, "trigger_disabled", "the fence of protected table %s is switched off",
		"any client can write to it without a token", "run ALTER TABLE ... ENABLE TRIGGER ALL on it, and find out who switched it off"},
		`SELECT table_name::text FROM fencedb.protected_tables WHERE NOT enabled ORDER BY 1`},

	{finding{warning, "unprotected_table", "table %s has a column last_fencing_token but is not protected",
		"it looks fenced, and any client can write to it without a token", "run SELECT fencedb.protect(...), or drop the column"},
		`SELECT c.oid::regclass::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE a.attname = 'last_fencing_token' AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
		  AND c.relnamespace <> 'fencedb'::regnamespace AND c.relpersistence <> 't'
		  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = '~fencedb_row')
		ORDER BY 1`},

	{finding{warning, "superuser_writer", "sessions of superuser %s are connected, and there are protected tables",
		"a superuser can switch triggers off, so its writes are fenced only while it does not", "let applications log in as a role without SUPERUSER that fencedb.allow has let in"},
		`SELECT DISTINCT r.rolname::text FROM pg_stat_activity s JOIN pg_roles r ON r.oid = s.usesysid
		WHERE r.rolsuper AND s.datname = current_database() AND s.backend_type = 'client backend' AND s.application_name <> 'fencedb'
		  AND EXISTS (SELECT FROM fencedb.protected_tables) ORDER BY 1`},
}

// longTransaction takes the limit in seconds.
var longTransaction = question{finding{warning, "long_transaction", "a fenced transaction has been open for long: %s",
	"whoever takes over waits for it", "look at what its client does; SELECT pg_terminate_backend(pid) ends it, and it has written nothing then"},
	`SELECT DISTINCT format('pid %s (%s, %s)', s.pid, s.application_name, s.state) FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
	WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.granted
	  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND s.xact_start < clock_timestamp() - make_interval(secs => $1) ORDER BY 1`}
