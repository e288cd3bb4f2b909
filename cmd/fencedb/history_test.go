package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// told is what the command tells of a resource.
func (w *world) told(args ...string) *look.Timeline {
	w.Helper()
	var found look.Timeline
	w.json("history", &found, append([]string{"history"}, args...)...)
	return &found
}

// said are the events of a history in words.
func said(r *look.Timeline) (all []string) {
	for _, h := range r.Events {
		all = append(all, h.What())
	}
	return all
}

const noteSeats = `SELECT fencedb.keep_history('30 days'), fencedb.protect('seats', 'seat:{id}', history => true)`

// An evening: worker-7 loses seat 1, another takes over and writes, the first is refused, somebody
// revokes, and somebody sets the fence back.
func TestHistoryTellsTheWholeStory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(noteSeats)
	issuer, write, flush := w.publishing()
	first, err := issuer.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // an event is of the time when it is published
		return w.redis.XLen(t.Context(), "fencedb:v1:shop:events").Val() > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, write(first))
	wrote := time.Now().UnixMilli()
	require.Eventually(t, func() bool { // an event has the time of its millisecond
		return time.Now().UnixMilli() > wrote
	}, time.Minute, time.Millisecond)
	require.NoError(t, w.redis.Del(t.Context(), "lease:v1:{shop/seat:1}:owner").Err())
	second, err := issuer.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, write(second))
	require.ErrorIs(t, write(first), fencedb.ErrStale)
	flush()
	sealed := w.revoked("seat:1")
	w.ok("reset", "seat:1", "--to", fmt.Sprint(second.Token()), "--reason", "a mistake", "--yes", "--force")

	r := w.told("seat:1")

	ofPostgres, ofRedis := []string{}, []string{}
	for _, h := range r.Events {
		if h.Source == look.SourceFeed {
			ofRedis = append(ofRedis, h.Kind)
		} else {
			ofPostgres = append(ofPostgres, h.What())
		}
	}
	require.Equal(t, []string{"keep_history for 30 days"}, slices.DeleteFunc(slices.Clone(ofPostgres), func(s string) bool { return !strings.HasPrefix(s, "keep") }))
	ofPostgres = slices.DeleteFunc(ofPostgres, func(s string) bool { return strings.HasPrefix(s, "keep") || strings.HasPrefix(s, "protect") })
	slices.Sort(ofPostgres[3:]) // the record of a revocation and its seal
	require.Equal(t, []string{"enter", "insert 1 row of public.seats", fmt.Sprint("enter, after ", first.Token())}, ofPostgres[:3])
	require.Contains(t, ofPostgres, fmt.Sprint("enter: the seal of a revocation, after ", second.Token()))
	require.Len(t, slices.DeleteFunc(slices.Clone(ofPostgres), func(s string) bool { return !strings.HasPrefix(s, "reset") }), 1, "once")
	require.Equal(t, []string{"granted", "granted", "refused", "revoked"}, ofRedis, "what is committed, the history tells better")
	for _, h := range r.Events {
		if h.Rows > 0 || h.Kind == look.KindEnter && h.Token == second.Token() {
			require.Equal(t, "worker-7", h.Label, "by the feed")
			require.Equal(t, h.Kind == look.KindEnter, strings.Contains(h.By(), "worker-7 ("), "the role and the address of an entry")
		}
	}
	require.Equal(t, "feed_since history_since writes_since", strings.Join(slices.Sorted(slices.Values(codes(r.Notes))), " "))
	require.Equal(t, look.KindReset, r.Last.Kind)
	require.Greater(t, sealed.Token, second.Token())

	at := w.one(`SELECT to_char((SELECT at FROM fencedb.history WHERE event = 'INSERT' ORDER BY at LIMIT 1) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)
	r = w.told("seat:1", "--at", at)
	require.Equal(t, first.Token(), r.Last.Token)
	require.Equal(t, second.Token(), r.Next.Token)
	require.Equal(t, first.Token(), r.Granted.Token)
	text := w.ok("history", "seat:1", "--at", at)
	require.Contains(t, text, fmt.Sprintf("until token %d entered", second.Token()))
	require.Contains(t, text, fmt.Sprintf("HOLDER    worker-7 with token %d", first.Token()))
	issued := time.UnixMicro(first.Token()).Local()
	require.Regexp(t, fmt.Sprintf(`(?m)insert 1 row of public.seats +%d +(\d\d [A-Z][a-z]{2} )?%s +worker-7`, first.Token(), issued.Format("15:04:05")), text)
	text = w.ok("history", "seat:1")
	require.Regexp(t, `^RESOURCE  seat:1\nSINCE     [A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d\n`, text)
	w.screen.Width = 100
	require.NotContains(t, w.ok("history", "seat:1"), "ISSUED", "there is no room")
}

// A lease that is not renewed ends without an event when its process has gone.
func TestHistoryCountsALeaseAsOverWhenItsLastRenewalHasRunOut(t *testing.T) {
	t.Parallel()
	granted := time.Now().Add(-time.Hour)
	for _, test := range []struct {
		renewed []time.Duration // since the grant
		at      time.Duration
		holds   bool
		says    string
	}{
		{nil, 9 * time.Second, true, "worker-7 with token 41, granted "},
		{nil, 11 * time.Second, false, "nobody that is known: the lease of worker-7 with token 41 was granted, and not renewed, at "},
		{[]time.Duration{4 * time.Second}, 13 * time.Second, true, "worker-7 with token 41, granted "},
		{[]time.Duration{4 * time.Second}, 15 * time.Second, false, "nobody that is known: the lease of worker-7 with token 41 was renewed last at "},
		{[]time.Duration{20 * time.Second}, 15 * time.Second, true, "worker-7 with token 41, granted "}, // what was published between is lost
	} {
		w := newWorld(t)
		publish := func(after time.Duration, kind string) {
			require.NoError(t, w.redis.XAdd(t.Context(), &redis.XAddArgs{
				Stream: "fencedb:v1:shop:events", ID: fmt.Sprint(granted.Add(after).UnixMilli()),
				Values: []string{"event", fmt.Sprintf(`{"kind":%q,"resource":"seat:1","worker":"worker-7","token":41,"lease_id":"0f8fad5b","ttl_ms":10000}`, kind)},
			}).Err())
		}
		publish(0, "granted")
		for _, after := range test.renewed {
			publish(after, "extended")
		}
		at := granted.Add(test.at).UTC().Format(time.RFC3339Nano)

		require.Contains(t, flowing(w.ok("history", "seat:1", "--at", at)), "HOLDER "+test.says, "%+v", test)
		r := w.told("seat:1", "--at", at)
		require.Equal(t, int64(10000), r.Renewed.TTLMS)
		require.Equal(t, test.renewed == nil, r.Renewed.First)
		require.Equal(t, test.holds, r.Renewed.At.Add(10*time.Second).After(*r.At))
	}
}

// Its holder gives it back before a renewal tells it.
func TestHistoryTellsOfARevokedLeaseThatItHadEndedBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	issuer, _, flush := w.publishing()
	l, err := issuer.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // an event is of the time when it is published
		return w.redis.XLen(t.Context(), "fencedb:v1:shop:events").Val() == 1
	}, time.Minute, time.Millisecond)
	w.revoked("seat:1")
	require.ErrorIs(t, l.Release(t.Context()), lease.ErrRevoked)
	flush()

	r := w.told("seat:1")

	require.Equal(t, string(feed.Revoked), r.Ended.Kind)
	require.Contains(t, said(r), "lease released: it had been revoked before")
}

// A seal is no write, and a refused one has words.
func TestHistoryDoesNotTakeASealForAWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := feed.New(w.redis, feed.Namespace(w.namespace))
	desk := guard.New(newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, Tracers: []lease.Tracer{events}}),
		fencedb.With(w.pool, fencedb.Trace(events)))
	require.NoError(t, desk.Do(t.Context(), "seat:1", func(context.Context, *guard.Holder) error { return nil }))
	err := desk.Do(t.Context(), "seat:1", func(ctx context.Context, h *guard.Holder) error {
		_, err := h.Exec(ctx, `INSERT INTO seats VALUES (2)`)
		return err
	})
	require.ErrorIs(t, err, fencedb.ErrWrongResource)
	require.NoError(t, events.Close(t.Context()))

	text := w.ok("history", "seat:1")

	require.NotContains(t, text, "committed")
	require.Contains(t, text, "failed: a row belongs to another resource")
}

// Who calls protect again is not who has switched the guard off.
func TestHistoryDoesNotBlameWhoFoundAGuardSwitchedOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`ALTER TABLE seats DISABLE TRIGGER USER`)
	w.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)

	require.Equal(t, []string{
		"protect public.seats", "unprotect public.seats: found, changed by hand or restored", "protect public.seats",
	}, said(w.told("seat:1")))
}

// Where programs do not publish, the application stands for the holder's label.
func TestHistoryNamesTheHolderByItsApplication(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(noteSeats)
	config := w.pool.Config()
	config.ConnConfig.RuntimeParams["application_name"] = "worker-9"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	l := w.acquire("seat:1")
	_, err = fencedb.Exec(t.Context(), pool, l, `INSERT INTO seats VALUES (1, 'Ann')`)
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))

	require.Regexp(t, `insert 1 row of public.seats +\d+ .*\d\d:\d\d:\d\d +worker-9`, w.ok("history", "seat:1"))
}

// A statement has the lease of its token also where there are many, and none without a token.
func TestHistoryOfABusyResource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(noteSeats + `; WITH entered AS (SELECT now() - interval '1 hour' AS at, gen_random_uuid() AS lease)
		INSERT INTO fencedb.events (kind, at, resource, event, token, lease_id, row_count) SELECT 'history', at, 'seat:1', 'enter', 41, lease, NULL::bigint FROM entered
		UNION ALL SELECT 'history', at + i * interval '1 ms', 'seat:1', 'UPDATE', 41, NULL, 1 FROM entered, generate_series(1, 30000) i
		UNION ALL SELECT 'history', at + interval '40 s', 'seat:1', 'reset', 0, gen_random_uuid(), NULL FROM entered
		UNION ALL SELECT 'history', at + interval '41 s', 'seat:1', 'UPDATE', NULL, NULL, 1 FROM entered`)
	r := w.told("seat:1", "--timeout", "10s")
	require.Len(t, r.Events, 200, "the last")
	require.True(t, r.More)
	for i, h := range r.Events {
		want := ""
		switch {
		case h.Source != look.SourceHistory || h.Kind == look.KindReset:
			continue
		case h.Token == 41:
			want = w.one(`SELECT lease_id::text FROM fencedb.history WHERE event = 'enter'`)
		}
		require.Equal(t, want, h.Lease, "event %d: %s", i, h.What())
	}
}

// Each half, and what is not there, is said.
func TestHistorySaysWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	r := w.told("seat:1")
	require.Equal(t, []string{"enter: by the ledger"}, slices.DeleteFunc(said(r), func(s string) bool { return strings.HasPrefix(s, "protect") }))
	require.Equal(t, label, r.Last.Label, "who holds now, Redis knows")
	require.Equal(t, []string{"history_off", "feed_none"}, codes(r.Notes))
	require.Contains(t, r.Notes[0].Text, "SELECT to_timestamp(last_fencing_token / 1e6) FROM seats WHERE ...")
	w.exec(`SELECT to_timestamp(last_fencing_token / 1e6) FROM seats WHERE id = 1`)
	require.Contains(t, w.ok("history", "seat:1", "--at", "2020-01-01 00:00"), "FENCE     not known")

	w.exec(`SELECT fencedb.keep_history('30 days')`)
	require.Equal(t, []string{"history_since", "writes_not_kept", "feed_none"}, codes(w.told("seat:1").Notes))
	require.Equal(t, []string{"history_since", "no_table", "feed_none"}, codes(w.told("order:1").Notes))
	w.exec(noteSeats)
	require.Equal(t, []string{"history_since", "writes_since", "feed_none"}, codes(w.told("seat:1").Notes))
	other := newIssuer(t, w.redis, lease.Config{Namespace: "shop-2"})
	_, err := other.Acquire(t.Context(), "seat:1", lease.NoWait())
	require.NoError(t, err)
	r = w.told("seat:1")
	require.Contains(t, codes(r.Notes), "known_elsewhere")
	require.Len(t, r.Elsewhere, 1)
	require.Contains(t, flowing(w.ok("history", "seat:1")), `in namespace "shop-2"`)
	require.Contains(t, flowing(w.ok("history", "seat:1")), "give that --namespace and --hash-resources.")

	for flag, server := range map[string]string{"--redis": "redis", "--postgres": "postgres"} {
		got := w.run("--json", flag, map[string]string{"redis": noRedis, "postgres": noPostgres}[server], "history", "seat:1")
		require.Equal(t, app.ExitFailed, got.code)
		require.Contains(t, got.errOut, "this is only what the other server knows: "+server)
		var half look.Timeline
		w.decode("history", &half, got.out)
		require.Equal(t, server, half.Missing[0].Server)
		require.Contains(t, codes(half.Notes), server+"_away")
		require.Equal(t, server == "redis", half.Last != nil)
		text := w.run(flag, map[string]string{"redis": noRedis, "postgres": noPostgres}[server], "history", "seat:1", "--at", "20:14").out
		require.Contains(t, text, "not known")
		require.NotContains(t, text, "no token had entered")
	}
	require.NoError(t, w.redis.Do(t.Context(), "ACL", "SETUSER", "shy", "on", ">x", "~lease:*", "+@all").Err())
	shy := strings.Replace(redisURL(w.redis), "redis://", "redis://shy:x@", 1)
	require.Contains(t, codes(w.as("--redis", shy).told("seat:1").Notes), "feed_denied")
}

// It shows what is around a time, not all that ever was, and says that there is more.
func TestHistoryIsOneScreen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(noteSeats + `; INSERT INTO fencedb.events (kind, at, resource, event, token, lease_id, former_token) SELECT 'history', date_trunc('hour', now()) - i * interval '1 day', 'seat:1', 'enter', 1000 - i, gen_random_uuid(), 999 - i FROM generate_series(29, 1, -1) i`)
	at := w.one(`SELECT to_char((date_trunc('hour', now()) - interval '15 days 1 minute') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')`)

	r := w.told("seat:1", "--at", at)

	require.Equal(t, []int64{984, 985}, []int64{r.Last.Token, r.Next.Token})
	require.True(t, r.More)
	require.Len(t, r.Events, 20)
	require.Equal(t, []int64{975, 994}, []int64{r.Events[0].Token, r.Events[19].Token})
	require.Less(t, strings.Count(w.ok("history", "seat:1", "--at", at), "\n"), 40)
	require.Len(t, slices.DeleteFunc(w.told("seat:1", "--since", "73h").Events, func(h look.Happening) bool { return h.Token == 0 }), 3)
	require.Empty(t, slices.DeleteFunc(w.told("seat:1", "--since", "1h").Events, func(h look.Happening) bool { return h.Token == 0 }))
	require.False(t, w.told("seat:1", "--since", "73h").More)
}

// The time that history spends on reading is no difference between the two clocks.
func TestHistoryDoesNotTakeItsOwnTimeForADifferenceOfClocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE fencedb.history_kept`)
	require.NoError(t, err)
	blocked := time.AfterFunc(term.Rounding+time.Second, func() { _ = tx.Rollback(context.Background()) })
	defer blocked.Stop()

	require.NotContains(t, codes(w.told("seat:1").Notes), "clock_difference")
}

// hourAgo is a time so many seconds after one that was an hour before the tests began.
func hourAgo(seconds float64) time.Time {
	return began.Add(-time.Hour + time.Duration(seconds*float64(time.Second)))
}

var began = time.Now().Truncate(time.Second)

// entered puts an entry into the history, as note_entry does.
func (w *world) entered(at time.Time, token, former int64) {
	w.Helper()
	w.exec(fmt.Sprintf(`INSERT INTO fencedb.events (kind, at, resource, event, token, lease_id, former_token) VALUES ('history', '%s', 'seat:1', 'enter', %d, gen_random_uuid(), nullif(%d, 0))`,
		at.Format(time.RFC3339Nano), token, former))
}

// knownFor has the history reach back so far, and the server as well.
func (w *world) knownFor(back time.Duration) {
	w.Helper()
	w.exec(fmt.Sprintf(`SELECT fencedb.keep_history('30 days'); UPDATE fencedb.history_kept SET since = now() - interval '%[1]f s'; SELECT setval('fencedb.unbroken_since', (extract(epoch FROM now() - interval '%[1]f s') * 1000)::bigint)`, back.Seconds()))
}

// eventAt publishes an event as a program does that runs at that time.
func (w *world) eventAt(at time.Time, kind string, token int64) {
	w.Helper()
	w.publish(fmt.Sprintf(`{"at":%q,"kind":%q,"resource":"seat:1","worker":"worker-7","token":%d,"lease_id":"0f8fad5b","ttl_ms":3600000}`, at.Format(time.RFC3339Nano), kind, token))
}

func (w *world) toldAt(at time.Time) string {
	w.Helper()
	return flowing(w.ok("history", "seat:1", "--at", at.Format(time.RFC3339Nano)))
}

// Of a time of which entries may be missing, nothing is stated: before they were kept, or where
// the server may have lost them, whether history is kept or not and programs publish or not.
func TestHistoryStatesNothingOfATimeThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, sql string
		at        float64
		known     bool
	}{
		{"known", "", 15, true},
		{"not kept yet", `UPDATE fencedb.history_kept SET since = now()`, 5, false},
		{"kept later, and the chain is whole", `UPDATE fencedb.history_kept SET since = now()`, 15, true},
		{"the server has lost commits since", `SELECT setval('fencedb.unbroken_since', (extract(epoch FROM now()) * 1000)::bigint)`, 15, false},
		{"the same, and history is off", `SELECT fencedb.keep_history(NULL); SELECT setval('fencedb.unbroken_since', (extract(epoch FROM now()) * 1000)::bigint)`, 25, false},
		{"nothing has entered since the server began", `SELECT setval('fencedb.server_epoch', pg_sequence_last_value('fencedb.server_epoch') # 1)`, 15, false},
		{"it crashed, and nothing has entered since", `SELECT setval('fencedb.server_epoch', 1, false), setval('fencedb.unbroken_since', 1, false)`, 15, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`SELECT fencedb.enter('seat:2', 41, gen_random_uuid())`)
			w.knownFor(2 * time.Hour)
			w.entered(hourAgo(10), 42, 41)
			w.entered(hourAgo(20), 43, 42)
			w.exec(test.sql)

			says := w.toldAt(hourAgo(test.at))

			if test.known {
				require.Contains(t, says, "FENCE token 42")
				return
			}
			require.Contains(t, says, "FENCE not known")
			require.NotContains(t, says, "no other has entered since")
			require.NotContains(t, says, "no token had entered")
		})
	}
}

func TestHistoryTakesAMissingEntryForAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.knownFor(2 * time.Hour)
	w.entered(hourAgo(10), 41, 0)
	w.entered(hourAgo(20), 42, 41) // and 43 was pruned
	w.entered(hourAgo(40), 44, 43)

	require.Contains(t, w.toldAt(hourAgo(15)), "FENCE token 41")
	require.Contains(t, w.toldAt(hourAgo(30)), "FENCE not known: token 42 had entered at")
	require.Contains(t, w.toldAt(hourAgo(30)), "Between the entries of token 42 and token 44 others are missing")
	require.Contains(t, codes(w.told("seat:1").Notes), "gap")
	require.Contains(t, w.toldAt(hourAgo(50)), "FENCE token 44")
}

// Redis's clock was ahead for a while, so what was published meanwhile has a later place.
func TestHistoryDatesAnEventByItsOwnClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.eventAt(hourAgo(0), "granted", 41)
	w.eventAt(hourAgo(10), "released", 41)

	require.Contains(t, w.toldAt(hourAgo(5)), "HOLDER worker-7 with token 41")
	require.Contains(t, w.toldAt(hourAgo(15)), "HOLDER nobody that is known")
	require.True(t, hourAgo(0).Equal(w.told("seat:1").Events[0].At))
}

func TestHistoryTakesNobodyForTheHolderWhoseTokenIsBelowTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.knownFor(2 * time.Hour)
	w.eventAt(hourAgo(0), "granted", 41)
	w.entered(hourAgo(1), 41, 0)
	w.entered(hourAgo(20), 42, 41) // of one that does not publish

	require.Contains(t, w.toldAt(hourAgo(15)), "HOLDER worker-7 with token 41")
	require.Contains(t, w.toldAt(hourAgo(25)), "HOLDER nobody that is known: the lease of worker-7 with token 41 was overtaken by token 42")
}

func TestHistoryDatesAGrantByTheEntryOfItsToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.knownFor(2 * time.Hour)
	w.eventAt(hourAgo(0), "granted", 41)
	w.entered(hourAgo(1), 41, 0)
	w.entered(hourAgo(20), 42, 41)
	w.eventAt(hourAgo(30), "granted", 42) // by a clock that is ahead, or late

	require.Contains(t, w.toldAt(hourAgo(25)), "HOLDER worker-7 with token 42, granted "+hourAgo(20).Local().Format(term.TimeLayout))
}

// A date of the next day is one for this clock, which may be behind the servers'.
func TestHistoryComparesATimeWithTheClockThatIsRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	got := w.run("history", "seat:1", "--at", time.Now().Add(time.Hour).Format(time.RFC3339))

	require.Equal(t, app.ExitUsage, got.code)
	require.Regexp(t, `is still to come: it is `+time.Now().Format("2006-01-02")+`|`+time.Now().Add(-time.Minute).Format("2006-01-02"), got.errOut)
	w.shiftPostgres(2 * time.Hour)
	w.ok("history", "seat:1", "--at", time.Now().Add(time.Hour).Format(time.RFC3339))
}

// evening is what the guide tells of: web-1 stops in the middle of a reservation of table 7, past
// the end of its lease; web-2 books the table, and web-1 comes too late. It moves all that to the
// last Friday at 20:14.
func (r *restaurant) evening() {
	r.Helper()
	r.exec(`SELECT fencedb.unprotect('bookings'); DROP TABLE bookings; -- of another page
		CREATE TABLE bookings (table_id int PRIMARY KEY, guest text NOT NULL);
		SELECT fencedb.keep_history('30 days'), fencedb.protect('bookings', 'table:{table_id}', history => true)`)
	friday, err := term.ParseTime("Fri 20:14", time.Now())
	require.NoError(r, err)
	reserve := func(name, guest string, check func()) error {
		config := r.pool.Config()
		config.ConnConfig.RuntimeParams["application_name"] = name
		pool, err := pgxpool.NewWithConfig(r.Context(), config)
		require.NoError(r, err)
		defer pool.Close()
		issuer, err := lease.New(r.redis, lease.Config{
			TTL: time.Minute, RenewEvery: lease.Never, Namespace: r.namespace, Holder: name,
		})
		require.NoError(r, err)
		return guard.New(issuer, pool).Do(r.Context(), "table:7", func(_ context.Context, h *guard.Holder) error {
			check()
			_, err := h.Exec(r.Context(), `INSERT INTO bookings VALUES (7, $1)`, guest)
			return err
		})
	}
	err = reserve("web-1", "Ann", func() {
		require.NoError(r, r.redis.Del(r.Context(), "lease:v1:{shop/table:7}:owner").Err())
		require.NoError(r, reserve("web-2", "Ben", func() {}))
	})
	require.ErrorIs(r, err, fencedb.ErrStale)
	r.move(friday)
}

func (r *restaurant) move(friday time.Time) {
	r.Helper()
	began := friday.Add(-9 * term.Day)
	_, err := r.pool.Exec(r.Context(), fmt.Sprintf(`
		ALTER TABLE fencedb.events DISABLE TRIGGER keep;
		UPDATE fencedb.events h SET role = CASE event WHEN 'enter' THEN 'shop' END, client = CASE event WHEN 'enter' THEN '10.0.0.3'::inet END, at = '%[1]s'::timestamptz + t.after
		FROM (SELECT ctid, ('{-2.1 s,20.5 s,20.6 s}'::interval[])[row_number() OVER (ORDER BY at)] AS after FROM fencedb.events WHERE kind = 'history') t WHERE t.ctid = h.ctid;
		UPDATE fencedb.fences f SET advanced_at = h.at FROM fencedb.history h WHERE h.event = 'enter' AND h.resource = f.resource AND h.token = f.last_fencing_token;
		UPDATE fencedb.history_kept SET since = '%[2]s'; SELECT setval('fencedb.unbroken_since', (extract(epoch FROM '%[2]s'::timestamptz) * 1000)::bigint);
		DELETE FROM fencedb.events WHERE id < (SELECT id FROM fencedb.audit WHERE event = 'keep_history');
		UPDATE fencedb.events SET operator = 'ann@desk', at = '%[2]s'::timestamptz + interval '1 min' * id WHERE kind = 'audit';
		ALTER TABLE fencedb.events ENABLE TRIGGER keep;
		DO $$ BEGIN EXECUTE format('COMMENT ON FUNCTION fencedb.noted_bookings() IS %%L', '{"since": "%[2]s"}'); END $$`,
		friday.Format(time.RFC3339), began.Format(time.RFC3339)), pgx.QueryExecModeSimpleProtocol)
	require.NoError(r, err)
	rows, _ := r.pool.Query(r.Context(), `SELECT token, lease_id::text FROM fencedb.history WHERE event = 'enter' ORDER BY at`)
	type grant struct {
		Token int64
		Lease string
	}
	grants, err := pgx.CollectRows(rows, pgx.RowToStructByPos[grant])
	require.NoError(r, err)
	stream := "fencedb:v1:" + r.namespace + ":events"
	later, err := r.redis.XRange(r.Context(), stream, "-", "+").Result()
	require.NoError(r, err)
	require.NoError(r, r.redis.Del(r.Context(), stream).Err())
	add := func(id, event string) {
		require.NoError(r, r.redis.XAdd(r.Context(), &redis.XAddArgs{Stream: stream, ID: id, Values: []string{"event", event}}).Err())
	}
	for _, e := range []struct {
		after time.Duration
		kind  string
		of    int
		more  string
	}{
		{-2 * time.Second, "granted", 0, `"ttl_ms":9800`}, {7800 * time.Millisecond, "lost", 0, `"took_ms":9800,"cause":"expired"`}, {20510 * time.Millisecond, "granted", 1, `"ttl_ms":9800`},
		{20700 * time.Millisecond, "released", 1, `"took_ms":190`}, {31 * time.Second, "refused", 0, fmt.Sprintf(`"stored":%d`, grants[1].Token)},
	} {
		add(fmt.Sprint(friday.Add(e.after).UnixMilli()), fmt.Sprintf(`{"kind":%q,"resource":"table:7","worker":"web-%d","token":%d,"lease_id":%q,%s}`, e.kind, e.of+1, grants[e.of].Token, grants[e.of].Lease[:8], e.more))
	}
	for _, e := range later {
		add(e.ID, e.Values["event"].(string))
	}
}
