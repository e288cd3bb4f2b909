-- What fencedb doctor can find. Where a query follows, it is for Postgres, and each row of the answer is a finding. Its
-- one column says about what, and stands for %s. @long is the number of seconds in --long, @too_high a condition in
-- fence.go. The others, which come first, are found by doctor.go.

-- error postgres_unreachable: Postgres cannot be reached: %s
-- Why: nothing fenced can be written, and the ledger and the tables were not examined
-- Do: see that it runs and that the URL is right, and run doctor again

-- error postgres_unfinished: Postgres answers, but the examination did not finish: %s
-- Why: the ledger and the tables were not examined, or not all
-- Do: end the session that holds the lock, if it waited for one (pg_blocking_pids), or give it more time with --timeout, and run doctor again

-- error missing_rights: permission denied for role %s: %s
-- Why: the ledger and the tables were not examined, or not all
-- Do: let the owner of the schema fencedb run SELECT fencedb.allow('role', operator => true), and GRANT USAGE ON SCHEMA fencedb TO PUBLIC if that is missing

-- error postgres_version: Postgres is version %s
-- Why: fencedb needs 15 or newer, and is tested from there on
-- Do: upgrade Postgres

-- error schema_pending: the database lacks %s, and perhaps later migrations
-- Why: what programs and this command call may not be there
-- Do: run fencedb migrate up

-- warning redis_unlogged: %s: %s
-- Why: two then hold at once until the older lease has run out, and tokens rise only by the clock; fences stand
-- Do: CONFIG SET appendonly yes, and write it into the configuration

-- warning redis_may_evict: %s: %s
-- Why: if a maxmemory is set some day, Redis evicts leases
-- Do: CONFIG SET maxmemory-policy noeviction, and write it into the configuration

-- warning redis_replicas: %s: %s
-- Why: after the fail-over two hold at once until the older lease has run out; fences stand
-- Do: set min-replicas-to-write 1 and min-replicas-max-lag 10

-- warning redis_version: %s: %s
-- Why: it may lack what leases need
-- Do: upgrade Redis, or use a server that behaves like a newer one

-- warning redis_hidden: %s: %s
-- Why: it may be a replica, evict leases, or lose them in a crash, without a warning
-- Do: let the user run INFO: ACL SETUSER ... +info; or ask the provider

-- error redis_replica: %s is a replica
-- Why: it accepts no writes, so it grants nothing, and its leases may be old
-- Do: give the address of the primary, or redis-sentinel:// to follow fail-overs

-- error redis_evicts: %s has a maxmemory, and maxmemory-policy is %s
-- Why: short of memory it throws away leases that are held, and two hold at once; fences stand
-- Do: CONFIG SET maxmemory-policy noeviction, and write it into the configuration

-- error redis_unreachable: Redis cannot be reached: %s
-- Why: nobody can acquire or keep a lease; what fences protect stays safe
-- Do: see that it runs and that the URL is right, and run doctor again

-- error redis_unfit: %s
-- Why: leases cannot be acquired, or can be lost while they are held; what fences protect stays safe
-- Do: change what is named and run doctor again

-- warning leases_hidden: the leases in Redis were not examined: %s
-- Why: some may never end, or be corrupt; other namespaces, and seals that the ledger lacks, were not looked for
-- Do: let the user run SCAN: ACL SETUSER ... +scan; if Redis is slow or holds much else, use fencedb leases --timeout

-- error redis_corrupt: %s
-- Why: nobody can acquire, renew or see that lease; what fences protect stays safe
-- Do: find who wrote to the key, and follow docs/runbook/redis.md, a key is not what it should be

-- warning lease_ttl: %s is held by %s for another %s without renewal
-- Why: if its holder dies, it stays blocked for that long
-- Do: give the program's leases a TTL of seconds; renewal makes them as long as the work, and MaxHold bounds it

-- warning lease_unbounded: %s has been held by %s for %s
-- Why: nothing bounds it: a holder that is stuck keeps it for ever
-- Do: leave it if it is a role that one process has for as long as it lives; otherwise set lease.Config.MaxHold, and see who it is

-- warning namespaces: besides the resources %s, which are looked at, Redis knows %s
-- Why: programs that write to the same tables and are not in the same lease.Config.Namespace hold a resource at the same time
-- Do: leave it if those write to other databases, or hold other resources; otherwise docs/runbook/writes.md, two namespaces overtake each other

-- warning stale_holder: %s is held by %s with token %s, but another lease has entered since, with token %s
-- Why: Postgres refuses its writes to protected tables; while the lease is renewed, nobody else can acquire the resource
-- Do: end the lease with fencedb revoke; if Redis has come back with older data, follow docs/runbook/redis.md, Redis has lost its data

-- error namespaces_overtake: Redis has issued tokens for %s in more than one place within the hour, and its fence has reached all of them: %s
-- Why: two hold it at once, and each shuts the other out when it enters; what fences protect stays safe
-- Do: stop the programs with the wrong lease.Config.Namespace or HashResources, and deploy them with the right one: docs/runbook/writes.md, two namespaces overtake each other

-- warning clock_difference: the clock of %s is %s %s Postgres's
-- Why: tokens carry Redis's time; if a clock that is ahead is put right and Redis then forgets a token, the next ones are refused until its clock has caught up
-- Do: run NTP on both machines; let the clock be slewed, not stepped

-- error redis_behind: the ledger has token %s for %s, Redis knows %s, and its clock passes that at %s, in %s
-- Why: Redis has lost data and its clock is behind, so new holders are refused until then
-- Do: run fencedb revoke --behind, which raises all counters that are behind the ledger; package guard does it by itself

-- warning tokens_ahead: tokens are ahead of the clock of Redis, that of %s the furthest, until %s, for another %s
-- Why: its clock was set back, or was ahead once: until then tokens rise by one and tell no time, so leases and inspect do not know how long such leases are held; if Redis forgets them, new holders may be refused
-- Do: leave the clock as it is, and do not lose Redis's data until then: docs/runbook/redis.md, a clock has stepped

-- error seals_missing: token %s of %s has entered or was revoked, and the ledger has %s
-- Why: Postgres has lost it, in a fail-over or when it was restored, or the revocation was not sealed: a former holder can write
-- Do: run fencedb revoke --behind, which shuts former holders out and ends no lease; then follow docs/runbook/writes.md, postgres fails over

-- error postgres_replica: this Postgres is a standby
-- Why: it shows what the primary has sent so far, and nothing can be revoked or written here
-- Do: name the primary in --postgres
SELECT '' WHERE pg_is_in_recovery();

-- error postgres_read_only: default_transaction_read_only is on for %s
-- Why: no fenced write of such a session can commit, and nothing can be revoked in one
-- Do: find out who set it, and take it back: ALTER ROLE, DATABASE or SYSTEM ... RESET default_transaction_read_only
SELECT * FROM (
    SELECT concat_ws(' in ', coalesce('role ' || r.rolname, 'every role'), 'database ' || d.datname)
    FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
    WHERE CASE WHEN c ~* '^default_transaction_read_only=' THEN split_part(c, '=', 2)::bool END AND (s.setdatabase = 0 OR d.datname = current_database())
      AND (s.setrole = 0 OR r.rolname <> session_user AND has_table_privilege(r.oid, 'fencedb.once', 'SELECT')
           AND NOT has_table_privilege(r.oid, 'fencedb.events', 'SELECT')) -- not operators
    UNION ALL
    SELECT 'the whole server' FROM pg_settings
    WHERE name = 'default_transaction_read_only' AND reset_val = 'on' AND source NOT IN ('database', 'user', 'database user', 'client')
) AS set_for(whom) ORDER BY 1;

-- warning session_read_only: default_transaction_read_only is on for role %s, or by the URL
-- Why: with it nothing can be revoked, reset or pruned, and programs that log in as this role cannot commit a fenced write
-- Do: take it back, or name another role in --postgres for that
SELECT session_user::text FROM pg_settings
WHERE name = 'default_transaction_read_only' AND setting = 'on' AND source IN ('user', 'database user', 'client') AND NOT pg_is_in_recovery();

-- warning postgres_keepalives: this Postgres notices only after %s that a client has vanished
-- Why: a client whose machine or network goes away in the middle of a request holds its fences until then, because no time limit of Postgres counts in a COPY, nor before 17 in a batch
-- Do: set tcp_keepalives_idle = 20, tcp_keepalives_interval = 5 and tcp_keepalives_count = 3, which new connections have after a reload
SELECT make_interval(secs => k.seconds)::text
FROM (SELECT current_setting('tcp_keepalives_idle')::int + current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int AS seconds) k
WHERE k.seconds > 60;

-- error open_to_all: any client may call %s
-- Why: it can shut holders out, or set fences back and let others in; pg_restore --no-privileges leaves them like that
-- Do: restore with privileges, or follow docs/runbook/writes.md, rights are missing
SELECT string_agg('fencedb.' || p.proname, ', ' ORDER BY p.proname) FROM pg_proc p
WHERE p.pronamespace = 'fencedb'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')
  AND p.proname IN ('enter', 'enter_all', 'reset_fence', 'prune', 'record', 'keep_history')
HAVING count(*) > 0;

-- error schema_closed: PUBLIC has no USAGE on the schema fencedb
-- Why: guards call its functions as whoever writes, so writes fail with SQLSTATE 42501; pg_restore --no-privileges leaves it like that
-- Do: restore with privileges, or follow docs/runbook/writes.md, rights are missing
SELECT '' WHERE NOT has_schema_privilege('public', 'fencedb', 'USAGE');

-- error trigger_disabled: a guard of protected table %s is switched off, or left to replication
-- Why: clients can write to it, or truncate it, without a token
-- Do: call fencedb.protect for it once more, which switches its guards on; fencedb.audit may say who it was
SELECT p.table_name::text FROM fencedb.protected_tables p WHERE p.switched_off IS NOT NULL ORDER BY 1;

-- error unguarded_child: table %s inherits from a protected table and has no guard
-- Why: any client can write to it without a token, and its rows are rows of the protected table
-- Do: call fencedb.protect for the protected table once more
SELECT m.member::text FROM fencedb.protected_tables p, fencedb.members(p.table_name) m
WHERE p.resource IS NOT NULL AND NOT m.is_partition AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row') ORDER BY 1;

-- error guard_incomplete: table %s, and it is protected
-- Why: without ~fencedb_truncate any client can empty it without a token, and a column of its resource can be dropped; without ~fencedb_statement transactions outlast their leases
-- Do: call fencedb.protect for the protected table once more, which makes what is missing
SELECT format('%s lacks the trigger %s', m.member, string_agg(own.name, ' and ' ORDER BY own.name))
FROM fencedb.protected_tables p, fencedb.members(p.table_name) m JOIN pg_class c ON c.oid = m.member, (VALUES ('~fencedb_statement'), ('~fencedb_truncate')) own(name)
WHERE p.resource IS NOT NULL AND NOT m.is_partition AND c.relkind <> 'f'
  AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_row')
  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = own.name)
GROUP BY m.member ORDER BY 1;

-- error guard_replaced: somebody has put another trigger in the place of a guard: %s
-- Why: what the guard refused can pass, by any client; whoever has the TRIGGER privilege, which GRANT ALL contains, can do that with CREATE OR REPLACE TRIGGER
-- Do: DROP TRIGGER, call fencedb.protect for the table once more, REVOKE TRIGGER ON it from all but its owner, and look for the rows: docs/runbook/repairs.md, rows that came past the guard
SELECT format('%I on %s', t.tgname, t.tgrelid::regclass) FROM pg_trigger t
WHERE t.tgparentid = 0 AND t.tgname IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate')
  AND (t.tgqual IS NOT NULL OR NOT EXISTS (SELECT FROM pg_proc f WHERE f.oid = t.tgfoid AND f.pronamespace = 'fencedb'::regnamespace AND f.proname ^@ 'guard_')
       OR t.tgtype NOT IN (CASE t.tgname WHEN '~fencedb_row' THEN 31 WHEN '~fencedb_statement' THEN 30 ELSE 34 END, CASE t.tgname WHEN '~fencedb_truncate' THEN 50 ELSE 0 END)
       OR t.tgname <> '~fencedb_truncate' AND cardinality(t.tgattr::int2[]) > 0)
  AND (t.tgrelid IN (SELECT m.member FROM fencedb.protected_tables p, fencedb.members(p.table_name) m)) ORDER BY 1;

-- error late_trigger: trigger %s fires after the guard of a protected table
-- Why: it can change a row that was judged already, so that a row of another resource is written
-- Do: ALTER TRIGGER ... RENAME TO a name that begins with an ASCII letter: triggers fire in the byte order of their names
SELECT DISTINCT format('%I on %s', t.tgname, m.member) FROM fencedb.protected_tables p, fencedb.members(p.table_name) m, pg_trigger t
WHERE p.resource IS NOT NULL AND t.tgrelid = m.member AND t.tgparentid = 0 AND t.tgenabled <> 'D'
  AND t.tgname COLLATE "C" > '~fencedb_row' AND t.tgtype & 3 = 3 AND t.tgtype & 20 > 0 ORDER BY 1;

-- error guard_lost: table %s has guards of statements but none of rows, which DETACH PARTITION takes away
-- Why: a partition that was detached refuses every write, or none if it was only observed; any other table accepts the token of any resource
-- Do: call fencedb.protect for it to guard it again, or fencedb.unprotect to let any client write to it
SELECT p.table_name::text FROM fencedb.protected_tables p
WHERE p.resource IS NULL AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p.table_name AND (t.tgname = '~fencedb_row' OR t.tgfoid = p.guard AND t.tgtype & 3 = 3)) ORDER BY 1;

-- error protection_lost: table %s was protected, and has no guard any more
-- Why: any client can write to it without a token; fencedb.unprotect was not called, the triggers were dropped by hand or are not in a copy
-- Do: call fencedb.protect for it, and look for the rows: docs/runbook/repairs.md, rows that came past the guard; if it shall stay open, call protect and then unprotect
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN (
    SELECT DISTINCT ON (a.details ->> 'oid') (a.details ->> 'oid')::oid AS oid, a.event, a.details ->> 'table' AS name FROM fencedb.audit a
    WHERE a.event IN ('protect', 'observe', 'unprotect') ORDER BY a.details ->> 'oid', a.id DESC
) last ON last.oid = c.oid WHERE c.relkind IN ('r', 'p') AND last.event <> 'unprotect' AND last.name = format('%I.%I', n.nspname, c.relname) -- in a copy, another table may have its oid
  AND c.oid NOT IN (SELECT m.member FROM fencedb.protected_tables p, fencedb.members(p.table_name) m) ORDER BY 1;

-- error guard_broken: the guard of table %s, which was renamed or dropped
-- Why: every write to the table fails with SQLSTATE 42703
-- Do: call fencedb.protect once more, with the new name in its template; or take the old name back, or add the column again
SELECT DISTINCT format('%s reads column %s', p.table_name, quote_ident(read.name))
FROM fencedb.protected_tables p, LATERAL (
    SELECT m[1] FROM unnest(p.resource) t, regexp_matches(replace(replace(t, '{{', ''), '}}', ''), '\{([^{}]+)\}', 'g') m UNION ALL SELECT 'last_fencing_token'
) read(name)
WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p.table_name AND NOT a.attisdropped AND a.attname = read.name) ORDER BY 1;

-- warning guard_unknown: the guard of table %s has lost the comment that protect made
-- Why: it refuses, or observes, as before, but what it was made from is not known any more: protect and adopt fail for the table
-- Do: call fencedb.unprotect (with keep_column => true) and fencedb.protect for the table in one transaction, with the same resource, which fencedb.audit has
SELECT p.table_name::text FROM fencedb.protected_tables p WHERE coalesce(cardinality(p.resource), 0) = 0 AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = p.table_name AND t.tgname = '~fencedb_row' AND t.tgfoid = p.guard) ORDER BY 1;

-- warning guard_renamed: trigger %s is a guard under another name
-- Why: it refuses, or observes, as before, but nothing of fencedb knows it, and triggers that fire after it can change rows that it has judged
-- Do: ALTER TRIGGER ... RENAME TO the name that the table lacks: "~fencedb_row", "~fencedb_statement" or "~fencedb_truncate"
SELECT format('%I on %s', t.tgname, t.tgrelid::regclass) FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
WHERE t.tgparentid = 0 AND f.pronamespace = 'fencedb'::regnamespace AND f.proname ^@ 'guard_' AND t.tgname NOT IN ('~fencedb_row', '~fencedb_statement', '~fencedb_truncate') ORDER BY 1;

-- warning guard_left: the guard %s guards no table
-- Why: its table was dropped, or its triggers were, and then any client can write to that table
-- Do: look whether a table lacks its protection, then DROP FUNCTION
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = 'fencedb'::regnamespace AND p.proname ^@ 'guard_' AND p.prorettype = 'trigger'::regtype AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid) ORDER BY 1;

-- warning unguarded_partition: partition %s was added after its table was protected
-- Why: it can be emptied with TRUNCATE without a token; other writes to it are guarded
-- Do: call fencedb.protect for the protected table once more
SELECT m.member::text FROM fencedb.protected_tables p, fencedb.members(p.table_name) m JOIN pg_class c ON c.oid = m.member
WHERE m.is_partition AND c.relkind <> 'f' AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_truncate') ORDER BY 1;

-- warning history_incomplete: table %s, and its protected table keeps history
-- Why: what statements write that name this table is missing in the history
-- Do: call fencedb.protect for the protected table once more, which makes and switches on what is missing
SELECT format('%s lacks the trigger %s, or it is switched off', m.member, string_agg('~fencedb_note_' || k.kind, ' and ' ORDER BY k.kind))
FROM fencedb.protected_tables p, fencedb.members(p.table_name) m, (VALUES ('insert'), ('update'), ('delete')) k(kind)
WHERE EXISTS (SELECT FROM fencedb.members(p.table_name) o JOIN pg_trigger t ON t.tgrelid = o.member WHERE t.tgname ^@ '~fencedb_note_')
  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = '~fencedb_note_' || k.kind AND t.tgenabled IN ('O', 'A'))
GROUP BY m.member ORDER BY 1;

-- error unprotected_table: table %s has a column last_fencing_token but is not protected
-- Why: it looks fenced, and any client can write to it without a token
-- Do: run SELECT fencedb.protect(...), or drop the column; if every write compares the column itself, rename it
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE a.attname = 'last_fencing_token' AND a.attislocal AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
  AND c.relnamespace <> 'fencedb'::regnamespace AND c.relpersistence <> 't'
  AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = '~fencedb_row')
  AND c.oid NOT IN (SELECT p.table_name FROM fencedb.protected_tables p)
ORDER BY 1;

-- error replica_role: session_replication_role is replica for %s
-- Why: triggers do not fire in such sessions, so they write to protected tables without a token
-- Do: reset it (ALTER ROLE ... RESET session_replication_role, or likewise), end these sessions, and look for the rows: docs/runbook/repairs.md, rows that came past the guard
SELECT * FROM (
    SELECT concat_ws(' in ', coalesce('role ' || r.rolname, 'every role'), 'database ' || d.datname)
    FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
    WHERE c ~* '^session_replication_role=replica' AND (s.setdatabase = 0 OR d.datname = current_database())
    UNION ALL
    SELECT 'the whole server' FROM pg_settings
    WHERE name = 'session_replication_role' AND reset_val = 'replica' AND source NOT IN ('database', 'user', 'database user', 'client')
    UNION ALL
    SELECT 'function ' || p.oid::regprocedure FROM pg_proc p WHERE EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c ~* '^session_replication_role=replica')
) AS set_for(whom) WHERE EXISTS (SELECT FROM fencedb.protected_tables) ORDER BY 1;

-- warning observed_table: the guard of table %s only observes
-- Why: any client can write to it without a token, or with a stale one
-- Do: look at fencedb adopt, and call fencedb.enforce for the table when nothing would be refused any more
SELECT p.table_name::text FROM fencedb.protected_tables p WHERE p.observed ORDER BY 1;

-- warning take_over: a role may write without a token, as a holder that overtakes: %s
-- Why: whoever holds the lease is refused as stale after each of its writes
-- Do: let the service enter by itself, and call fencedb.take_over_as with until => NULL
SELECT format('%s on %s until %s', t.role::regrole, c.oid::regclass, to_char(t.until, 'YYYY-MM-DD HH24:MI')) FROM fencedb.take_overs t JOIN pg_class c ON c.oid = t.target
WHERE t.until > clock_timestamp() AND t.ledger = 'fencedb.fences'::regclass ORDER BY 1;

-- warning superuser_writer: sessions of %s are connected, and there are protected tables
-- Why: it can switch triggers off, so its writes are fenced only while it does not
-- Do: let applications log in as a role that fencedb.allow has let in, without SUPERUSER and without SET ON PARAMETER session_replication_role
SELECT DISTINCT CASE WHEN r.rolsuper THEN 'superuser ' || r.rolname ELSE r.rolname || ', which may set session_replication_role,' END
FROM pg_stat_activity s JOIN pg_roles r ON r.oid = s.usesysid
WHERE has_parameter_privilege(r.oid, 'session_replication_role', 'SET')
  AND s.datname = current_database() AND s.application_name IS DISTINCT FROM current_setting('application_name')
  AND (s.backend_type = 'client backend' OR s.backend_type IS NULL)
  AND EXISTS (SELECT FROM fencedb.protected_tables) ORDER BY 1;

-- warning sessions_hidden: role %s does not see what other sessions do
-- Why: transactions that are open for long were not looked for, and inspect does not say how long they are
-- Do: GRANT pg_read_all_stats to the role
SELECT current_user::text WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE');

-- warning blockers_hidden: role %s, which owns the schema fencedb, does not see what other sessions do
-- Why: whoever waits for a fence in vain learns which sessions have it, but not what they do, nor for how long
-- Do: GRANT pg_read_all_stats to the role
SELECT n.nspowner::regrole::text FROM pg_namespace n WHERE n.nspname = 'fencedb' AND NOT pg_has_role(n.nspowner, 'pg_read_all_stats', 'USAGE');

-- warning aurora: this Postgres is Aurora, where unlogged data survives a fail-over
-- Why: outcomes of lost COMMITs are believed by a number in unlogged sequences and by when the server was started; that this tells two runs apart there is by its documentation, and was not tried
-- Do: fail over once in staging, and see that fencedb.outcome says the truth, or NULL, of a transaction from before
SELECT '' WHERE to_regproc('aurora_version') IS NOT NULL;

-- warning long_transaction: a fenced transaction has been open for long: %s
-- Why: whoever takes over waits for it
-- Do: look at what its client does; SELECT pg_terminate_backend(pid) ends it, and it has written nothing then
WITH RECURSIVE fenced AS (
    SELECT DISTINCT l.pid FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
    WHERE l.relation = 'fencedb.fences'::regclass AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND s.xact_start < clock_timestamp() - make_interval(secs => @long)
), chain(pid) AS ( -- with whom those wait for, who may not be fenced
    SELECT pid FROM fenced UNION SELECT b.pid FROM chain c, unnest(pg_blocking_pids(c.pid)) b(pid)
)
SELECT format('pid %s (%s, %s)', s.pid, s.application_name, s.state) || CASE WHEN c.pid NOT IN (TABLE fenced) THEN ', which is not fenced, is in the way of one' ELSE '' END
FROM chain c JOIN pg_stat_activity s ON s.pid = c.pid
WHERE s.xact_start < clock_timestamp() - make_interval(secs => @long)
  AND NOT EXISTS (SELECT FROM pg_locks w WHERE w.pid = c.pid AND NOT w.granted) ORDER BY 1; -- who waits is no cause

-- warning prepared_transaction: a prepared transaction holds fences: %s
-- Why: no time limit ends it, and whoever takes over waits for it
-- Do: let its owner call COMMIT PREPARED or ROLLBACK PREPARED; if the program that prepared it is gone, nobody else will
SELECT format('%s of %s', p.gid, p.owner) FROM pg_prepared_xacts p JOIN fencedb.prepared_writers() w ON w.xid = p.transaction
WHERE p.prepared < clock_timestamp() - make_interval(secs => @long) ORDER BY 1;

-- warning multixacts_old: %s
-- Why: with 2^31 multixacts, or 2^32 members in them, Postgres refuses what would make another, as who shares a fence does, until old ones are removed
-- Do: let autovacuum keep up, VACUUM the tables with the greatest mxid_age(relminmxid), and let fewer transactions of a lease run at once: docs/postgres.md, sharing a fence
SELECT format('the oldest multixact is %s multixacts old, and the last ones have %s members each', oldest.age, round(last.members, 1))
FROM (SELECT mxid_age(d.datminmxid)::bigint AS age, d.datminmxid::text::bigint AS id FROM pg_database d ORDER BY mxid_age(d.datminmxid) DESC LIMIT 1) oldest,
LATERAL (
    SELECT coalesce(avg((SELECT count(*) FROM pg_get_multixact_members(m::text::xid))), 0) AS members
    FROM pg_control_checkpoint() c, generate_series(greatest(c.next_multixact_id::text::bigint - 100, oldest.id), c.next_multixact_id::text::bigint - 1) m
) last
WHERE oldest.age > current_setting('autovacuum_multixact_freeze_max_age')::bigint * 1.2 OR oldest.age * last.members > 1073741824;

-- error fence_too_high: the fence of %s is at the highest token that there is, or above
-- Why: no lease gets past it, so nobody can write to its rows
-- Do: stop what entered it, and run fencedb reset for the resource; if another issuer makes such tokens, insert the type into fencedb.foreign_issuers
SELECT f.resource FROM fencedb.fences f WHERE @too_high ORDER BY 1 LIMIT 100;
