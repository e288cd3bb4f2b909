package migrations_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
)

// Random transactions of several sessions, with every kind of statement, at every level, with
// savepoints, exception blocks, old grants, settings of the session and of functions, and settings
// written by hand. Roles that may not enter, and own nothing, try what they can, also by code of
// theirs that others run. Whatever commits is judged against what its transaction has entered:
// triggers of the test's own record each row change, and each session records each entry, in the
// transaction itself, so that the two are rolled back together.

var (
	randomTransactions = flag.Int("random.transactions", 1500, "how many committed transactions that wrote the random test is to judge")
	randomSeed         = flag.Uint64("random.seed", 0, "the seed of the random test; 0: a new one")
)

const randomTables = `
CREATE TABLE changes (n bigint GENERATED ALWAYS AS IDENTITY, xid xid8, of_table text, op text, resources text[], first text, stamp bigint);
CREATE TABLE entries (xid xid8, resource text, token bigint, lease uuid, hidden boolean DEFAULT false); -- by a function that has its own list

CREATE TABLE stock (id int PRIMARY KEY, room text NOT NULL, n int);
CREATE TABLE parts (id int NOT NULL, room text NOT NULL, n int) PARTITION BY LIST (room);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN ('0');
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN ('1');
CREATE TABLE two (id int NOT NULL, room text NOT NULL, shop text NOT NULL, n int);
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE lines (id int NOT NULL, order_id int REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, room text NOT NULL, n int);
CREATE TABLE plain (id int NOT NULL, room text NOT NULL, n int);
SELECT fencedb.protect('stock', resource => 'room:{room}'), fencedb.protect('parts', resource => 'room:{room}'),
	fencedb.protect('two', resource => ARRAY['room:{room}', 'room:{shop}']), fencedb.protect('lines', resource => 'room:{room}');
CREATE TABLE parts_rest PARTITION OF parts DEFAULT; -- it has no guard of statements
CREATE TABLE heir () INHERITS (plain); -- only the child is guarded
SELECT fencedb.protect('heir', resource => 'room:{room}');
CREATE TABLE days (id int NOT NULL, day date NOT NULL, n int);
SELECT fencedb.protect('days', resource => 'day:{day}');

-- The day of a room: texts that settings read in another order.
CREATE FUNCTION day_of(room text) RETURNS date LANGUAGE sql IMMUTABLE RETURN CASE room WHEN '0' THEN make_date(2025, 12, 10) WHEN '1' THEN make_date(2025, 10, 12) WHEN '2' THEN make_date(2012, 10, 25) WHEN '3' THEN make_date(44, 3, 15) ELSE make_date(9999, 12, 31) END;
CREATE FUNCTION under_settings(a text, b text) RETURNS void LANGUAGE plpgsql SET "DateStyle" = 'German, MDY' SET search_path = pg_temp SET standard_conforming_strings = off AS $$
BEGIN
	UPDATE public.stock SET n = n + 1 WHERE room = a;
	INSERT INTO public.days VALUES (1, public.day_of(b), 0);
END $$;
CREATE FUNCTION enter_under(resource text, token bigint, lease uuid) RETURNS void LANGUAGE plpgsql SET "fencedb.entered" = '' SET "DateStyle" = 'SQL, DMY' AS $$
BEGIN
	PERFORM fencedb.enter(resource, token, lease, 20000, 60);
	INSERT INTO public.entries VALUES (pg_current_xact_id(), resource, token, lease, true);
	UPDATE public.stock SET n = n + 1 WHERE 'room:' || room = resource;
END $$;

CREATE TABLE ticks (room text, id int);
CREATE FUNCTION tick() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$ BEGIN UPDATE stock SET n = n + 1 WHERE room = NEW.room; INSERT INTO parts VALUES (NEW.id, NEW.room, 0); RETURN NEW; END $$;
CREATE TRIGGER tick AFTER INSERT ON ticks FOR EACH ROW EXECUTE FUNCTION tick();

CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
	old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
	new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
BEGIN
	INSERT INTO changes (xid, of_table, op, resources, first, stamp)
	VALUES (pg_current_xact_id(), TG_TABLE_NAME, TG_OP, ARRAY(SELECT DISTINCT r FROM unnest(ARRAY['room:' || (old_row ->> 'room'), 'room:' || (old_row ->> 'shop'), 'room:' || (new_row ->> 'room'), 'room:' || (new_row ->> 'shop'), 'day:' || (old_row ->> 'day'), 'day:' || (new_row ->> 'day')]) r WHERE r IS NOT NULL),
		coalesce('room:' || (new_row ->> 'room'), 'day:' || (new_row ->> 'day')), (new_row ->> 'last_fencing_token')::bigint);
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON stock FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON parts FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON two FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON lines FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON heir FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON days FOR EACH ROW EXECUTE FUNCTION note();`

// sessionSettings are what a session may say of how texts are read and written, and what else it
// likes.
var sessionSettings = []string{
	`"DateStyle" = 'German, MDY'`, `"DateStyle" = 'SQL, DMY'`, `"DateStyle" = 'Postgres, YMD'`, `"DateStyle" = 'ISO, MDY'`,
	`"IntervalStyle" = sql_standard`, `"TimeZone" = 'Pacific/Kiritimati'`, `"TimeZone" = '<-24>+24'`, `extra_float_digits = -15`, `bytea_output = escape`,
	`standard_conforming_strings = off`, `array_nulls = off`, `quote_all_identifiers = on`, `client_encoding = 'LATIN1'`, `lc_numeric = 'C'`,
	`search_path = public, pg_catalog`, `search_path = pg_temp, public`, `plan_cache_mode = force_generic_plan`, `enable_indexscan = off`,
	`transform_null_equals = on`, `xmloption = document`, `row_security = off`, `backslash_quote = off`, `escape_string_warning = off`,
}

// judgements each list what must not be, as text, or nothing.
var judgements = map[string]string{
	"a change of a resource that was not entered": `SELECT c::text FROM changes c, unnest(c.resources) r WHERE NOT EXISTS (SELECT FROM entries e WHERE e.xid = c.xid AND e.resource = r)`,
	"a stamp that is not the token":               `SELECT c::text FROM changes c WHERE NOT EXISTS (SELECT FROM entries e WHERE e.xid = c.xid AND e.resource = c.first AND e.token = c.stamp) AND c.op <> 'DELETE'`,
	// A newer token waits for the transactions of the older one, so its changes come later.
	"a token that goes down": `SELECT s::text FROM (SELECT c.n, r, e.token, max(e.token) OVER (PARTITION BY r ORDER BY c.n) AS highest
		FROM changes c, unnest(c.resources) r JOIN LATERAL (SELECT min(token) AS token FROM entries e WHERE e.xid = c.xid AND e.resource = r) e ON true) s WHERE token < highest`,
	"a token of two leases":   `SELECT concat(resource, ' ', token) FROM entries GROUP BY resource, token HAVING count(DISTINCT lease) > 1`,
	"a token above its fence": `SELECT e::text FROM entries e JOIN fencedb.fences f USING (resource) WHERE e.token > f.last_fencing_token`,
	// Where a function has its own list, the transaction may have another grant; both were its
	// client's.
	"two grants for one resource": `SELECT concat(xid, ' ', resource) FROM entries WHERE NOT hidden GROUP BY xid, resource HAVING count(DISTINCT (token, lease)) > 1`,
}

// roomGrant is one of a lease of a room.
type roomGrant struct {
	room  string
	token int64
	lease uuid.UUID
}

// randomWorld is what the sessions have in common: the grants that were issued so far.
type randomWorld struct {
	mu        sync.Mutex
	issued    int64
	grants    []roomGrant
	committed atomic.Int64
	passed    map[string]int // by the kind of statement
	refused   map[string]int // by SQLSTATE
}

const randomRooms = 5

// acquire issues a new lease of one to three rooms.
func (w *randomWorld) acquire(r *rand.Rand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lease := uuid.New()
	for _, room := range r.Perm(randomRooms)[:1+r.IntN(3)] {
		w.issued++
		w.grants = append(w.grants, roomGrant{fmt.Sprint(room), w.issued, lease})
	}
}

// grant is mostly a recent one.
func (w *randomWorld) grant(r *rand.Rand) roomGrant {
	w.mu.Lock()
	defer w.mu.Unlock()
	back := min(len(w.grants), 6)
	if r.IntN(20) == 0 {
		back = min(len(w.grants), 30)
	}
	return w.grants[len(w.grants)-1-r.IntN(back)]
}

func (w *randomWorld) count(in map[string]int, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in[what]++
}

// randomSession is one connection that does random things.
type randomSession struct {
	*randomWorld
	conn    *pgx.Conn
	r       *rand.Rand
	stolen  string   // the open list of a transaction that has ended
	login   string   // a role that may enter, and act as forger; "": the superuser
	forger  string   // a role that may write rows, and not enter
	entered []string // rooms, as far as the session knows
}

func (s *randomSession) exec(ctx context.Context, sql string) error {
	_, err := s.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// statements are the kinds of writes; ID, A and B stand for an id and two rooms.
var statements = map[string]string{
	"INSERT":                  `INSERT INTO stock VALUES (ID, 'A', 0)`,
	"INSERT of two rooms":     `INSERT INTO stock VALUES (ID, 'A', 0), (ID + 1000, 'B', 0)`,
	"UPDATE":                  `UPDATE stock SET n = n + 1 WHERE room = 'A'`,
	"UPDATE of the stamp":     `UPDATE stock SET n = n + 1, last_fencing_token = 0 WHERE room = 'A'`,
	"UPDATE that moves":       `UPDATE stock SET room = 'B' WHERE room = 'A' AND id % 3 = 0`,
	"UPDATE of all":           `UPDATE stock SET n = 0 WHERE id % 7 = 0`,
	"DELETE":                  `DELETE FROM stock WHERE room = 'A' AND id % 5 = 0`,
	"ON CONFLICT":             `INSERT INTO stock VALUES (ID, 'A', 0) ON CONFLICT (id) DO UPDATE SET n = stock.n + 1`,
	"ON CONFLICT that moves":  `INSERT INTO stock VALUES (ID, 'A', 0) ON CONFLICT (id) DO UPDATE SET room = EXCLUDED.room`,
	"MERGE":                   `MERGE INTO stock USING (VALUES (ID)) v(id) ON stock.id = v.id WHEN MATCHED AND n > 3 THEN DELETE WHEN MATCHED THEN UPDATE SET n = n + 1 WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'A', 0)`,
	"CTE":                     `WITH d AS (DELETE FROM stock WHERE id = ID RETURNING id) INSERT INTO two SELECT id, 'A', 'B' FROM d`,
	"parts INSERT":            `INSERT INTO parts VALUES (ID, 'A', 0), (ID, 'A', 1)`,
	"parts UPDATE":            `UPDATE parts SET n = n + 1 WHERE room = 'A'`,
	"parts UPDATE that moves": `UPDATE parts SET room = 'B' WHERE room = 'A' AND id % 2 = 0`,
	"parts DELETE":            `DELETE FROM parts WHERE room = 'A' AND id % 4 <> 0`,
	"two DELETE":              `DELETE FROM two WHERE room = 'A' AND id % 4 <> 0`,
	"heir DELETE":             `DELETE FROM heir WHERE room = 'A' AND id % 4 <> 0`,
	"a partition by name":     `DELETE FROM parts_rest WHERE id % 3 = 0 AND room = 'A'`,
	"a young partition":       `INSERT INTO parts_rest VALUES (ID, 'A', 0)`,
	"two INSERT":              `INSERT INTO two VALUES (ID, 'A', 'B', 0)`,
	"two UPDATE":              `UPDATE two SET n = n + 1 WHERE room = 'A'`,
	"two UPDATE that moves":   `UPDATE two SET shop = 'A' WHERE shop = 'B'`,
	"lines INSERT":            `INSERT INTO orders VALUES (ID) ON CONFLICT DO NOTHING; INSERT INTO lines VALUES (1, ID, 'A', 0)`,
	"cascade DELETE":          `DELETE FROM orders WHERE id = ID`,
	"cascade UPDATE":          `UPDATE orders SET id = id + 100000 WHERE id = ID`,
	"a trigger":               `INSERT INTO ticks VALUES ('A', ID)`,
	"an unguarded parent":     `UPDATE plain SET n = n + 1 WHERE room = 'A'`,
	"heir INSERT":             `INSERT INTO heir VALUES (ID, 'A', 0)`,
	"a function":              `DO $$ BEGIN UPDATE stock SET n = n + 1 WHERE room = 'A'; UPDATE parts SET n = n + 1 WHERE room = 'B'; EXCEPTION WHEN SQLSTATE 'FN003' THEN END $$`,
	"COPY":                    ``,
	"TRUNCATE":                `TRUNCATE parts_0`,
	"days INSERT":             `INSERT INTO days VALUES (ID, day_of('A'), 0)`,
	"days UPDATE":             `UPDATE days SET n = n + 1 WHERE day = day_of('A')`,
	"days UPDATE that moves":  `UPDATE days SET day = day_of('B') WHERE day = day_of('A') AND id % 3 = 0`,
	"days DELETE":             `DELETE FROM days WHERE day = day_of('A') AND id % 4 <> 0`,
	"settings of a function":  `SELECT under_settings('A', 'B')`,
	"another role":            `SET LOCAL ROLE FORGER; UPDATE stock SET n = n + 1 WHERE room = 'A'; INSERT INTO days VALUES (ID, day_of('B'), 0); RESET ROLE`,
	"code of others":          `SELECT theirs.usurp(sql) FROM theirs.usurpations OFFSET ID % (SELECT count(*) FROM theirs.usurpations) LIMIT 1`,
	"ANALYZE of others":       `ANALYZE theirs.usurpations`,
	"an exception block":      `DO $$ BEGIN BEGIN UPDATE stock SET n = 9 WHERE room = 'A'; INSERT INTO parts VALUES (ID, 'B', 0); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END; UPDATE stock SET n = n + 1 WHERE room = 'B'; END $$`,
}

// forge writes the open list by hand, in a WHERE or for the session, or before the statement.
func (s *randomSession) forge(room string, sql string) string {
	resource := "room:" + room
	list := forged(resource, "100000000")
	switch s.r.IntN(6) {
	case 0:
		return fmt.Sprintf(`UPDATE stock SET n = 666 WHERE set_config('fencedb.entered', %s, true) IS NOT NULL AND room = '%s'`, list, room)
	case 1:
		return fmt.Sprintf(`SET fencedb.entered = '%s'; %s`, resource, sql)
	case 2:
		return fmt.Sprintf(`SELECT set_config('fencedb.entered', E'%s', false); %s`, s.stolen, sql)
	case 3:
		return fmt.Sprintf(`SELECT set_config('fencedb.entered', %s, true); %s`, list, sql)
	case 4: // what was entered in an earlier transaction, for each room that it can have been about
		return fmt.Sprintf(`DO $$ BEGIN FOR room IN 0 .. 4 LOOP
			BEGIN
				PERFORM set_config('fencedb.entered', E'%s', true);
				UPDATE stock SET n = 666 WHERE stock.room = room::text;
			EXCEPTION WHEN OTHERS THEN
			END;
		END LOOP; END $$`, s.stolen)
	default:
		return fmt.Sprintf(`UPDATE parts SET n = 666 WHERE room = '%s' AND set_config('fencedb.entered', %s, true) IS NOT NULL`, room, list)
	}
}

// days are the resources of the days of rooms.
var days = map[string]string{"0": "day:2025-12-10", "1": "day:2025-10-12", "2": "day:2012-10-25", "3": "day:0044-03-15", "4": "day:9999-12-31"}

// enters is what a session says to enter a grant, or more, and records it: the room, its day as
// well, in one of several ways.
func (s *randomSession) enters(grants ...roomGrant) string {
	var resources, tokens, leases, records []string
	add := func(resource string, g roomGrant) {
		resources = append(resources, resource)
		tokens, leases = append(tokens, fmt.Sprint(g.token)), append(leases, g.lease.String())
		records = append(records, fmt.Sprintf(`(pg_current_xact_id(), '%s', %d, '%v')`, resource, g.token, g.lease))
	}
	for _, g := range grants {
		add("room:"+g.room, g)
		if s.r.IntN(3) == 0 {
			add(days[g.room], g)
		}
	}
	enter := fmt.Sprintf(`fencedb.enter_all('{%s}', '{%s}', '{%s}', 20000, 60)`, strings.Join(resources, ","), strings.Join(tokens, ","), strings.Join(leases, ","))
	if len(resources) == 1 {
		enter = fmt.Sprintf(`fencedb.enter('%s', %s, '%s', 20000, 60)`, resources[0], tokens[0], leases[0])
	}
	record := `INSERT INTO entries VALUES ` + strings.Join(records, ", ")
	switch s.r.IntN(12) {
	case 0: // taken back, and done again
		return fmt.Sprintf(`DO $$ BEGIN BEGIN PERFORM %s; %s; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END; PERFORM %[1]s; %[2]s; END $$`, enter, record)
	case 1: // in a subtransaction that stays
		return fmt.Sprintf(`DO $$ BEGIN BEGIN PERFORM %s; %s; EXCEPTION WHEN division_by_zero THEN END; END $$`, enter, record)
	case 2: // taken back, and not done again
		return fmt.Sprintf(`DO $$ BEGIN PERFORM %s; %s; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END $$`, enter, record)
	case 3: // for the time of a function
		return fmt.Sprintf(`SELECT enter_under('%s', %s, '%s')`, resources[0], tokens[0], leases[0])
	}
	return `SELECT ` + enter + `; ` + record
}

// transaction runs one, and counts it if it committed and wrote.
func (s *randomSession) transaction(ctx context.Context) error {
	if s.r.IntN(12) == 0 {
		return s.forging(ctx)
	}
	if s.r.IntN(4) == 0 {
		s.acquire(s.r)
	}
	grants := []roomGrant{s.grant(s.r)}
	if s.r.IntN(2) == 0 {
		grants = append(grants, s.grant(s.r))
	}
	level := levels[s.r.IntN(len(levels))]
	if level != "READ COMMITTED" && s.r.IntN(10) > 0 { // sealed
		for _, g := range grants {
			_ = s.exec(ctx, s.enters(g))
		}
	}
	if s.login != "" {
		if err := s.exec(ctx, `SET SESSION AUTHORIZATION `+s.login); err != nil {
			return err
		}
	}
	s.entered = nil
	wrote, saved := false, 0
	do := func(kind, sql string) (bool, error) {
		err := s.exec(ctx, sql)
		if err == nil {
			return true, nil
		}
		code := sqlstate(err)
		if code == "" {
			return false, err
		}
		s.count(s.refused, code)
		return false, nil
	}
	if s.r.IntN(3) == 0 {
		if err := s.exec(ctx, `SET `+sessionSettings[s.r.IntN(len(sessionSettings))]); err != nil {
			return err
		}
	}
	if ok, err := do("BEGIN", `BEGIN ISOLATION LEVEL `+level); !ok {
		return err
	}
	steps := 2 + s.r.IntN(7)
	for i := range steps {
		ok, err := true, error(nil)
		kind := ""
		switch dice := s.r.IntN(20); {
		case i == 0 && dice < 17 || dice == 0:
			if ok, err = do("enter", s.enters(grants...)); ok {
				for _, g := range grants {
					s.entered = append(s.entered, g.room)
				}
			}
		case dice == 1:
			ok, err = do("enter", s.enters(s.grant(s.r)))
		case dice < 5:
			saved++
			ok, err = do("SAVEPOINT", fmt.Sprintf(`SAVEPOINT s%d`, saved))
		case dice == 5 && saved > 0:
			ok, err = do("ROLLBACK TO", fmt.Sprintf(`ROLLBACK TO s%d`, saved))
		case dice == 6 && saved > 0:
			ok, err = do("RELEASE", fmt.Sprintf(`RELEASE s%d`, saved))
			saved--
		default:
			a, b := fmt.Sprint(s.r.IntN(randomRooms)), fmt.Sprint(s.r.IntN(randomRooms))
			if len(s.entered) > 0 && s.r.IntN(8) > 0 {
				a, b = s.entered[s.r.IntN(len(s.entered))], s.entered[s.r.IntN(len(s.entered))]
			}
			kinds := randomKinds
			kind = kinds[s.r.IntN(len(kinds))]
			id := s.r.IntN(200)
			if kind == "COPY" {
				_, err = s.conn.PgConn().CopyFrom(ctx, strings.NewReader(fmt.Sprintf("%d\t%s\t0\n%[1]d\t%[3]s\t0\n", id, a, b)), `COPY parts (id, room, n) FROM STDIN`)
				if ok = err == nil; sqlstate(err) != "" {
					s.count(s.refused, sqlstate(err))
					err = nil
				}
				break
			}
			sql := strings.NewReplacer("ID", fmt.Sprint(id), "'A'", "'"+a+"'", "'B'", "'"+b+"'", "FORGER", s.forger).Replace(statements[kind])
			if s.r.IntN(10) == 0 {
				sql = `SET LOCAL ` + sessionSettings[s.r.IntN(len(sessionSettings))] + `; ` + sql
			}
			ok, err = do(kind, sql)
		}
		if err != nil {
			return err
		}
		if ok && kind != "" {
			wrote = true
			s.count(s.passed, kind)
		}
		if !ok {
			if saved == 0 {
				break
			}
			if ok, err = do("ROLLBACK TO", fmt.Sprintf(`ROLLBACK TO s%d`, saved)); !ok {
				return errors.Join(err, errors.New("cannot roll back to a savepoint"))
			}
		}
	}
	if s.r.IntN(3) == 0 && s.conn.PgConn().TxStatus() == 'T' {
		if err := s.conn.QueryRow(ctx, `SELECT coalesce(current_setting('fencedb.entered', true), '')`).Scan(&s.stolen); err != nil {
			return err
		}
	}
	if s.conn.PgConn().TxStatus() == 'T' {
		if ok, err := do("COMMIT", `COMMIT`); ok && wrote {
			s.committed.Add(1)
		} else if err != nil {
			return err
		}
	}
	return s.exec(ctx, `ROLLBACK`)
}

// forging is a transaction of somebody who may write rows and may not enter: the login, or a role
// that a superuser acts as. Each of its statements comes with an open list that it has written.
func (s *randomSession) forging(ctx context.Context) error {
	begin := `RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION ` + s.forger + `; BEGIN`
	if s.r.IntN(2) == 0 {
		begin = `RESET SESSION AUTHORIZATION; BEGIN; SET LOCAL ROLE ` + s.forger
	}
	if err := s.exec(ctx, begin); err != nil {
		return err
	}
	for range 1 + s.r.IntN(4) {
		room := fmt.Sprint(s.r.IntN(randomRooms))
		sql := strings.NewReplacer("ID", fmt.Sprint(s.r.IntN(200)), "'A'", "'"+room+"'", "'B'", "'"+fmt.Sprint(s.r.IntN(randomRooms))+"'", "FORGER", s.forger).Replace(statements[randomKinds[s.r.IntN(len(randomKinds))]])
		switch s.r.IntN(4) {
		case 0: // any setting of ours, or of Postgres
			name := []string{"fencedb.busy", "fencedb.forgets", "fencedb.callers_path", "fencedb.seen_" + fmt.Sprint(s.r.IntN(99999)) + "_INSERT", "search_path", "session_replication_role", "check_function_bodies"}[s.r.IntN(7)]
			sql = fmt.Sprintf(`SELECT set_config('%s', '%s', %t); %s`, name, []string{"on", "none", "x", "replica", "postgres"}[s.r.IntN(5)], s.r.IntN(2) == 0, sql)
		case 1: // what only the owner of a table may do
			sql = usurpations[s.r.IntN(len(usurpations))] + `; ` + sql
		}
		if strings.Contains(sql, "RESET ROLE") { // it would be the superuser again
			continue
		}
		err := s.exec(ctx, `SAVEPOINT forged; `+s.forge(room, sql))
		if err == nil {
			continue // it may have met no row
		}
		if sqlstate(err) == "" {
			return err
		}
		s.count(s.refused, "forged "+sqlstate(err))
		if err := s.exec(ctx, `ROLLBACK TO forged`); err != nil {
			return err
		}
	}
	return s.exec(ctx, `COMMIT; RESET SESSION AUTHORIZATION; RESET fencedb.entered; RESET search_path; RESET check_function_bodies`)
}

// usurpations are for owners of tables, or for functions of ours alone. Whoever may not do it and
// may call them changes nothing by it.
var usurpations = []string{
	`SELECT fencedb.unprotect('stock')`, `SELECT fencedb.enforce('parts', true)`, `SELECT fencedb.protect('two', resource => 'room:1')`, `SELECT fencedb.protect('stock', 'room:{room}', mode => 'observe')`,
	`SELECT fencedb.write_guard('stock')`, `SELECT fencedb.order_guard('stock', '{"observes": true}')`, `SELECT fencedb.take_over_as('stock', current_user::regrole, now() + interval '1 hour')`,
	`SELECT fencedb.let_overtake('stock')`, `SELECT fencedb.end_overtaking('stock')`, `SELECT fencedb.drop_guard('fencedb.guard_stock()')`, `SELECT fencedb.record_protection('stock', true)`,
	`SELECT fencedb.set_history('stock', true)`, `SELECT fencedb.overtake('stock'::regclass, '{room:1}', NULL, NULL, false)`, `SELECT fencedb.let_pass('stock'::regclass, 'INSERT', 'FN002', true, NULL)`,
	`SELECT fencedb.allow(current_user::regrole)`, `SELECT fencedb.create_triggers('stock', 'fencedb.guard_parts()', 'fencedb.guard_stock()', '{}')`,
	`COMMENT ON TRIGGER "~fencedb_row" ON stock IS 'fencedb: {"observes": true}'`, `ALTER TABLE stock DISABLE TRIGGER ALL`, `DROP TRIGGER "~fencedb_row" ON stock`,
	`INSERT INTO fencedb.take_overs (target, role, until) VALUES ('stock'::regclass, current_user::regrole, 'infinity')`, `UPDATE fencedb.fences SET last_fencing_token = 0`,
	`ALTER FUNCTION fencedb.guard_stock() RENAME TO gone`,
}

// codeOfOthers tries the same with the rights of the one who owns it, in the session of the login
// or the superuser: in a function, and in an index, which ANALYZE computes.
const codeOfOthers = `
CREATE FUNCTION theirs.usurp(sql text) RETURNS int IMMUTABLE SECURITY DEFINER SET search_path = public LANGUAGE plpgsql AS $$ BEGIN EXECUTE sql; RETURN 1; EXCEPTION WHEN OTHERS THEN RETURN 0; END $$;
CREATE TABLE theirs.usurpations (sql text);
CREATE INDEX ON theirs.usurpations (theirs.usurp(sql))`

var randomKinds = func() (kinds []string) {
	for kind := range maps.Keys(statements) {
		kinds = append(kinds, kind)
	}
	return kinds
}()

const protectedNow = `SELECT concat((SELECT string_agg(concat_ws(' ', p.table_name, p.resource, p.guard, p.enabled, p.observed, p.history_since, md5(pg_get_functiondef(p.guard))), E'\n' ORDER BY p.table_name::text) FROM fencedb.protected_tables p),
	(SELECT count(*) FROM fencedb.take_overs), (SELECT count(*) FROM fencedb.audit))`

func TestRandomTransactionsWriteWhatTheyEntered(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	s.exec(randomTables)
	forger := s.withWriter("stock, parts, parts_0, parts_1, parts_rest, two, orders, lines, plain, heir, ticks, days")
	login := s.withRole("writer")
	s.exec(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + login + `; GRANT ` + forger + ` TO ` + login)
	s.exec(`CREATE SCHEMA theirs AUTHORIZATION ` + forger + `; GRANT USAGE ON SCHEMA theirs TO ` + login + `; SET SESSION AUTHORIZATION ` + forger + `; ` + codeOfOthers + `; GRANT SELECT ON theirs.usurpations TO ` + login)
	for _, sql := range usurpations {
		_, err := s.conn.Exec(t.Context(), `INSERT INTO theirs.usurpations VALUES ($1)`, sql)
		require.NoError(t, err)
	}
	s.exec(`RESET SESSION AUTHORIZATION`)
	protected := s.one(protectedNow)
	seed := *randomSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (-random.seed)", seed)
	w := &randomWorld{passed: map[string]int{}, refused: map[string]int{}}
	w.acquire(rand.New(rand.NewPCG(seed, 0)))
	wanted := int64(*randomTransactions)
	if testenv.Small() {
		wanted = min(wanted, 100)
	}
	const sessions = 6
	var running errgroup.Group
	for i := range sessions {
		conn := s.beside()
		conn.exec(`SET lock_timeout = '200ms'; SET statement_timeout = '1min'`)
		one := &randomSession{randomWorld: w, login: []string{"", login}[i%2], forger: forger, conn: conn.conn, r: rand.New(rand.NewPCG(seed, uint64(i+1)))}
		running.Go(func() error {
			for w.committed.Load() < wanted {
				if err := one.transaction(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, running.Wait())

	require.Equal(t, protected, s.one(protectedNow), "a guard has changed")
	t.Logf("%d committed transactions, %s rows changed; passed %v; refused %v", w.committed.Load(), s.one(`SELECT count(*) FROM changes`), w.passed, w.refused)
	s.exec(`CREATE INDEX ON entries (xid); ANALYZE entries, changes`)
	for what, query := range judgements {
		require.Empty(t, s.one(`SELECT string_agg(wrong, E'\n') FROM (`+query+` LIMIT 5) q(wrong)`), what)
	}
	for kind := range statements {
		if !testenv.Small() && kind != "TRUNCATE" && kind != "UPDATE of all" { // one names no rows, the other those of all rooms
			require.NotZero(t, w.passed[kind], "never passed: %s", kind)
		}
	}
	require.Zero(t, w.passed["TRUNCATE"])
	require.Zero(t, w.refused["forged FN003"], "a list that was forged has been believed")
	for _, code := range []string{"FN001", "FN002", "FN003", "22023", "55P03", "40001", "forged FN002"} {
		if testenv.Small() { // too few to meet all
			break
		}
		require.NotZero(t, w.refused[code], "never refused: %s", code)
	}
}
