package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
		style := yellow
		if f.Severity == failure {
			style = red
		}
		fmt.Fprintln(p.out, p.styled(string(f.Severity), style)+" "+f.Code)
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

	redis    []lease.ServerHealth // that answered with their clock
	postgres time.Duration        // how far its clock is ahead of the clock of this process
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

// question is one query whose every row is a finding; its single column says about what.
type question struct {
	finding
	sql string
}

func (e *examination) askQuestions(ctx context.Context) error {
	for _, q := range questions {
		rows, _ := e.pool.Query(ctx, q.sql, pgx.NamedArgs{"long": e.long.Seconds()})
		subjects, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, subject := range subjects {
			e.add(q.Severity, q.Code, strings.Replace(q.What, "%s", visible(subject), 1), q.Why, q.Do)
		}
	}
	return nil
}

var questions = []question{
	{finding{failure, "postgres_replica", "this Postgres is a standby",
		"it shows what the primary has sent so far, and nothing can be revoked or written here", "name the primary in --postgres"},
		`SELECT '' WHERE pg_is_in_recovery()`},

	{finding{failure, "postgres_read_only", "Postgres takes no writes (default_transaction_read_only is on)",
		"no fenced write can commit, and nothing can be revoked", "find out who set it for the server, the database or the role, and take it back"},
		`SELECT '' WHERE NOT pg_is_in_recovery() AND current_setting('transaction_read_only')::bool`},

	{finding{failure, "trigger_disabled", "a guard of protected table %s is switched off, or left to replication",
		"clients can write to it, or truncate it, without a token", "call fencedb.protect (or protect_row) for it once more, which switches its guards on; fencedb.audit may say who it was"},
		`SELECT DISTINCT p.table_name::text FROM fencedb.protected_tables p, fencedb.members(p.table_name) m, pg_trigger t
		WHERE t.tgrelid = m.member AND t.tgname ~ '^~fencedb_' AND t.tgenabled NOT IN ('O', 'A') ORDER BY 1`},

	{finding{failure, "unguarded_child", "table %s inherits from a protected table and has no guard",
		"any client can write to it without a token, and its rows are rows of the protected table", "call fencedb.protect for the protected table once more"},
		`SELECT m.member::text FROM fencedb.protected_tables p, fencedb.members(p.table_name) m
		WHERE p.mode IS NOT NULL AND NOT m.is_partition AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row') ORDER BY 1`},

	{finding{failure, "guard_lost", "table %s has guards of statements but none of rows, which DETACH PARTITION takes away",
		"a detached partition refuses every write; any other table accepts the token of any resource", "call fencedb.protect for it to guard it again, or fencedb.unprotect to let any client write to it"},
		`SELECT p.table_name::text FROM fencedb.protected_tables p
		WHERE p.mode IS NULL AND p.table_name NOT IN (SELECT m.member FROM fencedb.protected_tables q, fencedb.members(q.table_name) m WHERE q.mode IS NOT NULL) ORDER BY 1`},

	{finding{warning, "guard_left", "the guard %s guards no table",
		"its table was dropped, or its trigger was, and then any client can write to that table", "look whether a table lacks its protection, then DROP FUNCTION"},
		`SELECT p.oid::regprocedure::text FROM pg_proc p, fencedb.guard_facts(p.oid) AS facts
		WHERE p.prorettype = 'trigger'::regtype AND p.proname ~ '^fencedb_guard_' AND facts.mode IS NOT NULL
		  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid) ORDER BY 1`},

	{finding{warning, "unguarded_partition", "partition %s was added after its table was protected",
		"it can be emptied with TRUNCATE without a token; other writes to it are guarded", "call fencedb.protect for the protected table once more"},
		`SELECT m.member::text FROM fencedb.protected_tables p, fencedb.members(p.table_name) m JOIN pg_class c ON c.oid = m.member
		WHERE m.is_partition AND c.relkind <> 'f' AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_truncate') ORDER BY 1`},

	{finding{warning, "unprotected_table", "table %s has a column last_fencing_token but is not protected",
		"it looks fenced, and any client can write to it without a token", "run SELECT fencedb.protect(...), or drop the column; if every write compares the column itself, leave it"},
		`SELECT c.oid::regclass::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE a.attname = 'last_fencing_token' AND a.attislocal AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
		  AND c.relnamespace <> 'fencedb'::regnamespace AND c.relpersistence <> 't'
		  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = '~fencedb_row')
		  AND c.oid NOT IN (SELECT p.table_name FROM fencedb.protected_tables p)
		ORDER BY 1`},

	{finding{failure, "replica_role", "session_replication_role is replica for %s",
		"triggers do not fire in such sessions, so they write to protected tables without a token", "reset it (ALTER ROLE ... RESET session_replication_role, or likewise), end these sessions, and look for the rows: docs/runbook/repairs.md, rows that came past the guard"},
		`SELECT * FROM (
			SELECT concat_ws(' in ', coalesce('role ' || r.rolname, 'every role'), 'database ' || d.datname)
			FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
			WHERE c ~* '^session_replication_role=replica' AND (s.setdatabase = 0 OR d.datname = current_database())
			UNION ALL
			SELECT 'the whole server' FROM pg_settings
			WHERE name = 'session_replication_role' AND reset_val = 'replica' AND source NOT IN ('database', 'user', 'database user', 'client')
			UNION ALL
			SELECT 'function ' || p.oid::regprocedure FROM pg_proc p WHERE EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c ~* '^session_replication_role=replica')
		) AS set_for(whom) WHERE EXISTS (SELECT FROM fencedb.protected_tables) ORDER BY 1`},

	{finding{warning, "observed_table", "the guard of table %s only observes",
		"any client can write to it without a token, or with a stale one", "look at fencedb adopt, and call fencedb.enforce for the table when nothing would be refused any more"},
		`SELECT p.table_name::text FROM fencedb.protected_tables p WHERE p.observed ORDER BY 1`},

	{finding{warning, "take_over", "a role may write without a token, as a holder that overtakes: %s",
		"whoever holds the lease is refused as stale after each of its writes", "let the service enter by itself, and call fencedb.end_take_over"},
		`SELECT format('%s on %s until %s', t.role, c.oid::regclass, to_char(t.until, 'YYYY-MM-DD HH24:MI')) FROM fencedb.take_overs t JOIN pg_class c ON c.oid = t.target
		WHERE t.until > clock_timestamp() AND t.ledger = 'fencedb.fences'::regclass ORDER BY 1`},

	{finding{warning, "superuser_writer", "sessions of superuser %s are connected, and there are protected tables",
		"a superuser can switch triggers off, so its writes are fenced only while it does not", "let applications log in as a role without SUPERUSER that fencedb.allow has let in"},
		`SELECT DISTINCT r.rolname::text FROM pg_stat_activity s JOIN pg_roles r ON r.oid = s.usesysid
		WHERE r.rolsuper AND s.datname = current_database() AND s.application_name IS DISTINCT FROM current_setting('application_name')
		  AND (s.backend_type = 'client backend' OR s.backend_type IS NULL)
		  AND EXISTS (SELECT FROM fencedb.protected_tables) ORDER BY 1`},

	{finding{warning, "sessions_hidden", "role %s does not see what other sessions do",
		"transactions that are open for long were not looked for, and inspect does not say how long they are", "GRANT pg_read_all_stats to the role"},
		`SELECT current_user::text WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')`},

	{finding{warning, "long_transaction", "a fenced transaction has been open for long: %s",
		"whoever takes over waits for it", "look at what its client does; SELECT pg_terminate_backend(pid) ends it, and it has written nothing then"},
		`SELECT DISTINCT format('pid %s (%s, %s)', s.pid, s.application_name, s.state) FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
		WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.granted
		  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND s.xact_start < clock_timestamp() - make_interval(secs => @long) ORDER BY 1`},

	{finding{warning, "prepared_transaction", "a prepared transaction holds fences: %s",
		"no time limit ends it, and whoever takes over waits for it", "let its owner call COMMIT PREPARED or ROLLBACK PREPARED; if the program that prepared it is gone, nobody else will"},
		`SELECT format('%s of %s', p.gid, p.owner) FROM pg_prepared_xacts p JOIN fencedb.prepared_writers() w ON w.xid = p.transaction
		WHERE p.prepared < clock_timestamp() - make_interval(secs => @long) ORDER BY 1`},

	{finding{failure, "fence_too_high", "the fence of %s is at the highest token that there is, or above",
		"no lease gets past it, so nobody can write to its rows", "stop what entered it, and run fencedb reset for the resource; if another issuer makes such tokens, call fencedb.declare_foreign"},
		`SELECT f.resource FROM fencedb.fences f WHERE ` + tooHigh + ` ORDER BY 1 LIMIT 100`},
}
