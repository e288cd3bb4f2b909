package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
)

func (w *world) adopted(table string) *look.Adoption {
	w.Helper()
	var found look.Adoption
	w.json("adopt", &found, "adopt", table)
	return &found
}

func TestAdoptShowsWhoStillWritesWithoutAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`SELECT fencedb.enforce('seats', observing => true)`)

	quiet := w.adopted("seats")
	require.Equal(t, "observe", quiet.Mode)
	require.Empty(t, quiet.Writers)
	require.Equal(t, quiet.ObservedSince, quiet.QuietSince)
	const empty = "nothing would have been refused since observing began, or since the list was pruned"
	require.Contains(t, flowing(w.ok("adopt", "public.seats")), empty)

	require.NoError(t, w.book(w.acquire("seat:1")))
	w.exec(`SET application_name = 'cron'; INSERT INTO seats VALUES (2, 'Bob')`)
	found := w.adopted("seats")
	require.Len(t, found.Writers, 1, "who enters is none of them")
	last := found.Writers[0]
	require.Equal(t, []any{"cron", "INSERT", "FN002", int64(1), "seat:2"}, []any{last.Application, last.Statement, last.Reason, last.Times, *last.Resource})
	require.Equal(t, last.LastAt.Add(time.Minute), *found.QuietSince, "others like it are not recorded")
	require.True(t, found.QuietSince.After(*found.ObservedSince))
	says := w.ok("adopt", "seats")
	require.Regexp(t, `cron +INSERT +no token +\S+ ago +\S+ ago +1 +seat:2`, says)
	require.Contains(t, flowing(says), "One write of a line is recorded in a minute: there may have been more")

	w.exec(`SELECT fencedb.enforce('seats')`)
	enforced := w.adopted("seats")
	require.Equal(t, "enforce", enforced.Mode)
	require.Nil(t, enforced.QuietSince)
	require.Contains(t, w.ok("adopt", "seats"), "It refuses such writes now.")

	w.exec(`SELECT fencedb.enforce('seats', observing => true)`)
	again := w.adopted("seats")
	require.True(t, again.QuietSince.After(*again.ObservedSince), "the list is not empty")
	require.Contains(t, w.ok("adopt", "seats"), "less than a minute ago, so more may have come since")
	w.exec(`ALTER TABLE fencedb.events DISABLE TRIGGER keep; UPDATE fencedb.events SET at = at - interval '2 minutes'; ALTER TABLE fencedb.events ENABLE TRIGGER keep`)
	require.Contains(t, w.ok("adopt", "seats"), "Before that, the writes above would have been.")
	w.exec(`SELECT fencedb.prune('observed', '0', 'ann@host', 'what comes from now on', clock_timestamp())`)
	require.Contains(t, flowing(w.ok("adopt", "seats")), empty)
}

func TestAdoptDrawsNoConclusionFromAListThatIsIncomplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`SELECT fencedb.enforce('seats', observing => true); ALTER TABLE fencedb.events ADD CHECK (kind <> 'observed') NOT VALID; SET application_name = 'cron'; INSERT INTO seats VALUES (2, 'Bob')`)

	found := w.adopted("seats")
	require.Empty(t, found.Writers)
	require.True(t, found.UnrecordedAt.After(*found.ObservedSince))
	require.Equal(t, found.UnrecordedAt, found.QuietSince)
	says := w.ok("--postgres", w.login("owner", `ALTER TABLE seats OWNER TO %[2]s`), "adopt", "seats")
	require.Contains(t, says, "The list is incomplete")
	require.NotContains(t, says, "othing would have been refused")

	w.exec(`SELECT fencedb.enforce('seats'); SELECT fencedb.enforce('seats', observing => true)`)
	require.Nil(t, w.adopted("seats").UnrecordedAt, "it was before")
}

func TestAdoptSaysThatAGuardIsSwitchedOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, observing := range []string{"false", "true"} {
		w.exec(`SELECT fencedb.enforce('seats', ` + observing + `); ALTER TABLE seats DISABLE TRIGGER ALL`)

		found := w.adopted("seats")
		require.Equal(t, []string{"seats"}, found.SwitchedOff)
		require.Nil(t, found.QuietSince)
		says := w.ok("adopt", "seats")
		require.Contains(t, says, "The guard of seats is switched off")
		require.NotContains(t, says, "othing would have been refused")
		require.NotContains(t, says, "It refuses such writes now")

		w.exec(`ALTER TABLE seats ENABLE TRIGGER ALL`)
		require.Empty(t, w.adopted("seats").SwitchedOff)
	}
}

// For whoever may not see it, the list of writers is empty: nobody may take that for the end of the
// adoption.
func TestAdoptRefusesARoleThatSeesNoWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`SELECT fencedb.enforce('seats', observing => true); INSERT INTO seats VALUES (2, 'Bob')`)

	got := w.run("--postgres", w.login("app", `SELECT fencedb.allow(%[1]s)`), "adopt", "seats")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "operator => true")
	require.Empty(t, got.out)
	require.Contains(t, w.ok("--postgres", w.login("owner", `ALTER TABLE seats OWNER TO %[2]s`), "adopt", "seats"), "INSERT")
}

// Row security hides the ledger from it without an error.
func TestARoleThatReadsAllDataIsNotToldOfAnEmptyLedger(t *testing.T) {
	t.Parallel()
	w := aged(t)
	reader := w.login("reader", `SELECT fencedb.allow(%[1]s); GRANT pg_read_all_data TO %[2]s`)
	for _, args := range [][]string{{"prune"}, {"inspect", "a:1"}, {"history", "a:1"}, {"--redis", "redis://127.0.0.1:1", "leases"}} {
		got := w.run(append([]string{"--postgres", reader}, args...)...)
		require.NotZero(t, got.code, args)
		require.Contains(t, got.errOut, "operator => true", args)
		require.NotContains(t, got.out, "no token has entered")
	}
}

func TestAdoptNeedsNoRightsToTheSchemaOfTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE SCHEMA "Shop"; ALTER TABLE seats SET SCHEMA "Shop"; SELECT fencedb.enforce('"Shop".seats', observing => true); INSERT INTO "Shop".seats VALUES (2, 'Bob')`)

	oncall := w.login("oncall", `SELECT fencedb.allow(%[1]s, operator => true)`)

	require.Contains(t, w.ok("--postgres", oncall, "adopt", `"Shop".SEATS`), "INSERT")
}

func TestAdoptSaysWhatIsWrongWithATable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE rooms (id int); CREATE SCHEMA shop; CREATE TABLE shop.orders (id int NOT NULL); CREATE TABLE "Order Items" (id int NOT NULL);
		SELECT fencedb.protect(t, 'x:{id}') FROM unnest('{shop.orders,"\"Order Items\""}'::text[]::regclass[]) t`)
	for call, c := range map[string]struct {
		code int
		says string
	}{
		`rooms`:          {app.ExitFailed, `table rooms is not protected; its owner can observe it with SELECT fencedb.protect(`},
		`nowhere`:        {app.ExitFailed, `table nowhere does not exist, or is not in the search_path; write its name as in SQL`},
		`no.such`:        {app.ExitFailed, `table no.such does not exist`},
		`orders`:         {app.ExitFailed, `table orders does not exist; did you mean shop.orders?`},
		`"order items"`:  {app.ExitFailed, `table "order items" does not exist; did you mean "Order Items"?`},
		`Order Items`:    {app.ExitUsage, `Order Items is not the name of a table, as SQL writes it: in double quotes if it has spaces or signs, as in fencedb adopt '"Order Items"'`},
		`seats;`:         {app.ExitUsage, `seats; is not the name of a table`},
		"seats\xff":      {app.ExitUsage, `"seats\xff" is not valid UTF-8`},
		`"Order Items"`:  {app.ExitDone, ``},
		`shop . orders`:  {app.ExitDone, ``},
		` public.SEATS `: {app.ExitDone, ``},
	} {
		got := w.run("adopt", call)
		require.Equal(t, c.code, got.code, call)
		require.Contains(t, got.errOut, c.says)
		require.NotContains(t, got.errOut, "migrate up", "the schema is there")
		require.NotContains(t, got.errOut, "SQLSTATE")
	}
}

func TestAdoptWithoutATableListsAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE rooms (id int NOT NULL); CREATE TABLE "Order Items" (id int NOT NULL);
		SELECT fencedb.protect('rooms', 'room:{id}', mode => 'observe'), fencedb.protect('"Order Items"', 'item:{id}');
		ALTER TABLE "Order Items" DISABLE TRIGGER ALL;
		SET application_name = 'cron'; INSERT INTO rooms VALUES (1); INSERT INTO rooms VALUES (2)`)

	var found look.Adoptions
	w.json("adoptions", &found, "adopt")
	require.Len(t, found.Tables, 3)
	for _, one := range found.Tables {
		require.Equal(t, w.adopted(one.Table), one)
	}
	says := w.ok("adopt")
	require.Regexp(t, `"Order Items" +item:\{id\} +switched off +0\n`, says)
	require.Regexp(t, `rooms +room:\{id\} +observed for \S+ +[1-9]\d* +\S+ ago\n`, says)
	require.Regexp(t, `seats +seat:\{id\} +enforced +0\n`, says)

	w.exec(`SELECT fencedb.unprotect(t) FROM unnest('{rooms,seats,"\"Order Items\""}'::text[]::regclass[]) t`)
	require.Contains(t, w.ok("adopt"), "No table is protected")
}

// What Prometheus learns of a table in observe mode, from whoever scrapes Postgres.
func TestTheCollectorTellsWhenATableWasWrittenWithoutAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	query := newSQLExporter(w).Metrics[0].Query
	for _, c := range []struct{ sql, want string }{
		{`SELECT fencedb.enforce('seats', observing => true)`, ""},
		{`INSERT INTO seats VALUES (2, 'Bob')`, "seats true"},
		{`SELECT fencedb.enforce('seats')`, ""},
		{`SELECT fencedb.enforce('seats', observing => true)`, ""}, // of what came before, nothing is told
		{`SELECT setval('fencedb.unrecorded', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)`, "seats true"},
	} {
		w.exec(c.sql)
		require.Equal(t, c.want, w.one(`SELECT coalesce(string_agg(concat_ws(' ', table_name, CASE WHEN age_seconds BETWEEN 0 AND 600 THEN 'true' END), ','), '') FROM (`+query+`) q`), c.sql)
	}
	_, err := w.pool.Exec(t.Context(), `SET ROLE pg_monitor; `+query)
	require.ErrorContains(t, err, "permission denied", "which sees no record")
}
