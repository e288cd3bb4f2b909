package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// question is one query whose every row is a finding; its single column says about what.
type question struct {
	finding
	sql string
}

func (e *examination) ask(ctx context.Context, q question, args ...any) error {
	rows, _ := e.pool.Query(ctx, q.sql, args...)
	subjects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, subject := range subjects {
		e.add(q.about(visible(subject)))
	}
	return err
}

func (e *examination) askTables(ctx context.Context) error {
	for _, q := range aboutTables {
		if err := e.ask(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

var aboutTables = []question{
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
		`SELECT m.member::text FROM fencedb.protected_tables p, fencedb.members(p.table_name) m
		WHERE m.is_partition AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_truncate') ORDER BY 1`},

	{finding{warning, "unprotected_table", "table %s has a column last_fencing_token but is not protected",
		"it looks fenced, and any client can write to it without a token", "run SELECT fencedb.protect(...), or drop the column; if every write compares the column itself, leave it"},
		`SELECT c.oid::regclass::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE a.attname = 'last_fencing_token' AND a.attislocal AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
		  AND c.relnamespace <> 'fencedb'::regnamespace AND c.relpersistence <> 't'
		  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = '~fencedb_row')
		  AND c.oid NOT IN (SELECT p.table_name FROM fencedb.protected_tables p)
		ORDER BY 1`},

	{finding{warning, "superuser_writer", "sessions of superuser %s are connected, and there are protected tables",
		"a superuser can switch triggers off, so its writes are fenced only while it does not", "let applications log in as a role without SUPERUSER that fencedb.allow has let in"},
		`SELECT DISTINCT r.rolname::text FROM pg_stat_activity s JOIN pg_roles r ON r.oid = s.usesysid
		WHERE r.rolsuper AND s.datname = current_database() AND s.application_name IS DISTINCT FROM current_setting('application_name')
		  AND (s.backend_type = 'client backend' OR s.backend_type IS NULL)
		  AND EXISTS (SELECT FROM fencedb.protected_tables) ORDER BY 1`},
}

// longTransaction takes the limit in seconds.
var longTransaction = question{finding{warning, "long_transaction", "a fenced transaction has been open for long: %s",
	"whoever takes over waits for it", "look at what its client does; SELECT pg_terminate_backend(pid) ends it, and it has written nothing then"},
	`SELECT DISTINCT format('pid %s (%s, %s)', s.pid, s.application_name, s.state) FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
	WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.granted
	  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND s.xact_start < clock_timestamp() - make_interval(secs => $1) ORDER BY 1`}

var fenceTooHigh = question{finding{failure, "fence_too_high", "the fence of %s is at the highest token that there is, or above",
	"no lease gets past it, so nobody can write to its rows", "stop what entered it, and run fencedb reset for the resource; if another issuer makes such tokens, call fencedb.declare_foreign"},
	`SELECT f.resource FROM fencedb.fences f WHERE ` + tooHigh + ` ORDER BY 1 LIMIT 100`}

func (e *examination) askSessions(ctx context.Context) error {
	var role string
	var sees bool
	err := e.pool.QueryRow(ctx, `SELECT current_user::text, pg_has_role('pg_read_all_stats', 'USAGE')`).Scan(&role, &sees)
	if err != nil {
		return err
	}
	if !sees {
		e.add(hiddenSessions.about(role))
	}
	return e.ask(ctx, longTransaction, e.long.Seconds())
}
