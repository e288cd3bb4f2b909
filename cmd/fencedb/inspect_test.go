package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/observe/feed"
)

func TestInspectFollowsALeaseThroughItsLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	found := w.inspected("seat:1")
	require.Equal(t, []string{"unknown_to_redis"}, codes(found.Notes))
	found.Notes = nil
	require.Equal(t, &look.Inspection{Resource: "seat:1", Transactions: []conn.Transaction{}, Elsewhere: []look.Location{}, Missing: []look.Missing{}}, found)

	l := w.acquire("seat:1")
	found = w.inspected("seat:1")
	require.Equal(t, l.LeaseID(), found.Holder.LeaseID)
	require.Equal(t, l.Token(), found.Holder.Token)
	require.Equal(t, l.Token(), *found.LastToken)
	require.WithinDuration(t, time.Now(), *found.Holder.IssuedAt, time.Minute)
	require.Positive(t, found.Holder.ExpiresInMS)
	require.Positive(t, *found.RememberedForMS)
	require.Equal(t, []string{"not_entered"}, codes(found.Notes))

	require.NoError(t, l.Release(t.Context()))
	require.Equal(t, []string{"old_holder_may_write"}, codes(w.inspected("seat:1").Notes), "nothing stands in its way")
	l = w.acquire("seat:1")
	require.NoError(t, w.book(l))
	found = w.inspected("seat:1")
	require.Equal(t, l.Token(), found.Fence.Token)
	require.Equal(t, l.LeaseID(), found.Fence.LeaseID)
	require.Equal(t, []string{"current"}, codes(found.Notes))

	require.NoError(t, l.Release(t.Context()))
	found = w.inspected("seat:1")
	require.Nil(t, found.Holder)
	require.Equal(t, []string{"old_holder_may_write"}, codes(found.Notes))
	require.Contains(t, found.Notes[0].Text, "As after every lease", "a release is no reason for alarm")

	w.revoked("seat:1")
	require.Contains(t, codes(w.inspected("seat:1").Notes), "revoked_and_sealed")

	require.NoError(t, w.redis.Del(t.Context(), "lease:v1:{"+w.namespace+"/seat:1}:fence").Err())
	require.Contains(t, codes(w.inspected("seat:1").Notes), "old_holder_may_write", "Redis has forgotten who came after the revocation")

	late := w.acquire("seat:1")
	require.NoError(t, late.Release(t.Context()))
	require.Contains(t, codes(w.inspected("seat:1").Notes), "old_holder_may_write", "one that came after the revocation and has not entered")
	require.NoError(t, w.book(late))

	w.acquire("seat:1")
	require.Equal(t, "not_entered", codes(w.inspected("seat:1").Notes)[0])
}

// The token of a revocation or of a reset is nobody's, and a holder may have come and gone since.
func TestInspectNamesTheTokensOfWhoCouldStillWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	said := func() string { w.Helper(); return w.inspected("seat:1").Notes[0].Text }
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	require.NoError(t, l.Release(t.Context()))

	since := fmt.Sprintf("token %d or a higher one", l.Token())
	require.Contains(t, said(), since)
	w.acquire("seat:1")
	require.Contains(t, said(), since)

	w.revoked("seat:1")
	w.acquire("seat:1")
	require.Contains(t, said(), fmt.Sprintf("a token above %d", w.inspected("seat:1").Fence.Token))

	w.json("reset", &act.SetBack{}, "reset", "seat:1", "--to", "41", "--reason", "x", "--yes", "--force")
	require.Contains(t, said(), "a token above 41")
}

func TestInspectNamesStaleHoldersAndARedisThatForgot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(fencedb.NewGrant("seat:1", l.Token(), uuid.New(), fencedb.NoEnd)))

	require.Equal(t, []string{"stale_holder"}, codes(w.inspected("seat:1").Notes), "another lease with its token")

	require.NoError(t, w.book(fencedb.NewGrant("seat:1", l.Token()+1, uuid.New(), fencedb.NoEnd)))
	require.Equal(t, []string{"stale_holder"}, codes(w.inspected("seat:1").Notes), "the next token is higher: Redis's clock is")

	ahead := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, w.book(fencedb.NewGrant("seat:1", ahead, uuid.New(), fencedb.NoEnd)))
	require.Equal(t, []string{"stale_holder", "redis_behind"}, codes(w.inspected("seat:1").Notes))
	w.exec(fmt.Sprintf(`SELECT fencedb.enter('seat:2', %[1]d, gen_random_uuid()); INSERT INTO fencedb.foreign_issuers VALUES ('zxid'); SELECT fencedb.enter('zxid:1', %[1]d, gen_random_uuid())`, ahead))
	require.Equal(t, []string{"old_holder_may_write", "redis_behind"}, codes(w.inspected("seat:2").Notes), "it knows no token")
	require.Equal(t, []string{"old_holder_may_write"}, codes(w.inspected("zxid:1").Notes), "which Redis never issues")

	_, err := w.issuer.Revoke(t.Context(), "seat:1")
	require.NoError(t, err)
	require.Equal(t, l.LeaseID(), *w.inspected("seat:1").Revoked)
}

// After each write of a role that takes over, the fence is above the last token and below the next.
func TestInspectTakesAWriteOfATakeOverForNoLoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.acquire("seat:1")
	w.exec(`SELECT fencedb.take_over_as('seats', current_user::regrole, now() + interval '1 hour')`)
	w.exec(`INSERT INTO seats VALUES (1, 'Ann')`)

	require.Equal(t, []string{"stale_holder"}, codes(w.inspected("seat:1").Notes))
}

func TestInspectNamesTheTransactionsThatHoldTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	holding, err := pgx.Connect(t.Context(), w.pool.Config().ConnString()+"&application_name=worker-7")
	require.NoError(t, err)
	t.Cleanup(func() { _ = holding.Close(context.Background()) })
	tx, err := holding.Begin(t.Context())
	require.NoError(t, err)
	_, err = fencedb.Enter(t.Context(), tx, l)
	require.NoError(t, err)

	found := w.inspected("seat:1")
	require.Len(t, found.Transactions, 1)
	require.Equal(t, int(holding.PgConn().PID()), found.Transactions[0].PID)
	require.Equal(t, "worker-7", found.Transactions[0].Application)
	require.Equal(t, "idle in transaction", found.Transactions[0].State)

	w.screen.Width = 80
	shown := w.ok("inspect", "seat:1")
	require.Contains(t, shown, l.LeaseID().String())
	require.Contains(t, shown, "worker-7")
	require.Contains(t, shown, "* The holder is current")
}

// Who to call, and what the session waits for itself.
func TestInspectSaysWhoseTransactionHoldsTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	require.NoError(t, l.Release(t.Context()))
	connect := func(name string) *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), w.pool.Config().ConnString()+"&application_name="+name)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	locks, waits := connect("locks"), connect("waits")
	_, err := locks.Exec(t.Context(), `BEGIN; LOCK TABLE seats`)
	require.NoError(t, err)
	_, err = waits.Exec(t.Context(), fmt.Sprintf(`BEGIN; SELECT fencedb.enter('seat:1', %d, '%s')`, l.Token(), l.LeaseID()))
	require.NoError(t, err)
	look := func() conn.Transaction { w.Helper(); return w.inspected("seat:1").Transactions[0] }
	require.Equal(t, "Client ClientRead", look().WaitsFor)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = waits.Exec(ctx, `SELECT FROM seats`) }()

	wanted := fmt.Sprintf("Lock relation, held by pid %d", locks.PgConn().PID())
	require.Eventually(t, func() bool { return look().WaitsFor == wanted }, time.Minute, 10*time.Millisecond)
	require.Equal(t, w.one(`SELECT current_user`), look().User)
	require.Equal(t, w.one(fmt.Sprintf(`SELECT coalesce(host(client_addr) || ':' || client_port, 'socket') FROM pg_stat_activity WHERE pid = %d`, waits.PgConn().PID())), look().Client)
	says := w.ok("inspect", "seat:1")
	require.Regexp(t, `PID +APPLICATION +STATE +OPEN FOR +USER +CLIENT +WAITS FOR\n\d+ +waits +active .*`+wanted, says)
	require.Contains(t, says, "* Nobody holds a lease, and the fence is kept by pid "+fmt.Sprint(waits.PgConn().PID())+" (waits)")
	w.acquire("seat:1")
	require.NotContains(t, codes(w.inspected("seat:1").Notes), "kept_without_lease", "it may be the holder's own")
}

func TestInspectSaysWhenTheHolderRenewedLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Nil(t, w.inspected("seat:1").Renewal)
	l := w.acquire("seat:1")
	require.True(t, w.inspected("seat:1").Renewal.Assumed, "nobody tells")
	told := func(kind string, token int64) {
		w.publish(fmt.Sprintf(`{"kind":%q,"resource":"seat:1","worker":"w","token":%d,"ttl_ms":59000}`, kind, token))
	}
	told("granted", l.Token())
	require.True(t, w.inspected("seat:1").Renewal.First)
	require.Regexp(t, `\n +not renewed since it was granted \S+ ago, for 59s\n`, w.ok("inspect", "seat:1"))
	told("extended", l.Token())
	told("extended", l.Token()-1) // of one that comes late
	require.Equal(t, []any{false, int64(59000)}, []any{w.inspected("seat:1").Renewal.First, w.inspected("seat:1").Renewal.TTLMS})
	require.Regexp(t, `\n +renewed \S+ ago, for 59s\n`, w.ok("inspect", "seat:1"))
	require.Regexp(t, `No transaction has entered with a token yet, in the [0-9.]+m?s that the\s+holder\s+has\s+held:`, w.ok("inspect", "seat:1"))

	require.NoError(t, l.Release(t.Context()))
	w.acquire("seat:1")
	require.True(t, w.inspected("seat:1").Renewal.Assumed, "the other was that of another lease")
}

// Redis knows when the lease ends, so it was renewed, whatever has become of the events.
func TestInspectDoesNotTakeDroppedEventsForALeaseThatIsNotRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, last := range []string{"granted", "extended"} {
		token := w.redis.Time(t.Context()).Val().Add(-time.Hour).UnixMicro()
		w.redis.Set(t.Context(), "lease:v1:{shop/seat:1}:owner", fmt.Sprintf("%s:%d:call", uuid.New(), token), 20*time.Minute)
		w.publish(fmt.Sprintf(`{"at":%q,"kind":%q,"resource":"seat:1","worker":"w","token":%d,"ttl_ms":1800000}`, time.UnixMicro(token).Format(time.RFC3339Nano), last, token))

		renewal := w.inspected("seat:1").Renewal

		require.False(t, renewal.First, last)
		require.WithinDuration(t, time.Now().Add(-10*time.Minute), renewal.At, 5*time.Minute, last)
	}
}

// Without events, each grant and renewal has set for how long Redis remembers the token.
func TestInspectWorksOutWhenTheHolderRenewedLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const day, persists = 24 * time.Hour, 0
	const held, left = time.Hour, 30 * time.Minute
	for name, tc := range map[string]struct {
		remembered time.Duration // by Redis
		newer      int64         // than the holder's token is the last one
		ago        time.Duration // 0: nothing is said
	}{
		"renewed":                  {day - 20*time.Minute, 0, 20 * time.Minute},
		"not renewed":              {day - held, 0, held},
		"kept for less":            {day / 2, 0, 0},
		"kept for more":            {2 * day, 0, 0},
		"kept for ever":            {persists, 0, 0},
		"somebody raised it since": {day - 20*time.Minute, 1, 0},
	} {
		resource := "seat:" + strings.ReplaceAll(name, " ", "-")
		now := w.redis.Time(t.Context()).Val()
		token := now.Add(-held).UnixMicro()
		keys := "lease:v1:{" + w.namespace + "/" + resource + "}:"
		// The keys expire at times that are counted from the token's, however late they are written.
		pipe := w.redis.Pipeline()
		pipe.Set(t.Context(), keys+"owner", fmt.Sprintf("%s:%d:call", uuid.New(), token), 0)
		pipe.PExpireAt(t.Context(), keys+"owner", now.Add(left))
		pipe.Set(t.Context(), keys+"fence", token+tc.newer, persists)
		if tc.remembered != persists {
			pipe.PExpireAt(t.Context(), keys+"fence", now.Add(tc.remembered))
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		renewal, says := w.inspected(resource).Renewal, w.ok("inspect", resource)
		if tc.ago == 0 {
			require.Nil(t, renewal, name)
			require.NotContains(t, says, "renewed ", name)
			continue
		}
		const slow = 5 * time.Minute // a machine so slow fails elsewhere
		require.WithinDuration(t, now.Add(-tc.ago), renewal.At, slow, name)
		require.InDelta(t, (tc.ago + left).Milliseconds(), renewal.TTLMS, float64(slow.Milliseconds()), name)
		require.Equal(t, tc.ago == held, renewal.First, name)
		require.True(t, renewal.Assumed, name)
		what := map[bool]string{false: "renewed", true: "not renewed since it was granted"}[renewal.First]
		require.Regexp(t, `\n +`+what+` \S+ ago, for \S+, if FenceRetention is 24 hours as by default\n`, says, name)
	}
}

// fencedb.blockers looks as the owner of the schema.
func TestInspectSaysWhatTheOwnerOfTheSchemaDoesNotSee(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.acquire("seat:1")
	require.NoError(t, w.book(l))
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	_, err = fencedb.Enter(t.Context(), tx, l)
	require.NoError(t, err)
	w.login("owner", `SELECT fencedb.allow(%[1]s, operator => true); ALTER FUNCTION fencedb.blockers OWNER TO %[2]s`)

	found := w.inspected("seat:1").Transactions
	require.Len(t, found, 1)
	require.Nil(t, found[0].OpenMS)
	require.Regexp(t, `not visible: grant pg_read_all_stats to owner_\w+ +not visible +`, w.ok("inspect", "seat:1"))
	require.Regexp(t, `in the way: pid \d+ \(.*, not visible: grant pg_read_all_stats to owner_\w+, open for not visible\)`,
		w.run("--timeout", "10s", "reset", "seat:1", "--to", "41", "--reason", "x", "--yes", "--force").errOut)
	w.exec(`ALTER FUNCTION fencedb.blockers OWNER TO CURRENT_USER`)
}

func TestInspectWithoutTheSchemaSaysWhatToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`SELECT fencedb.unprotect('seats')`)
	w.ok("migrate", "reset", "--yes")

	got := w.run("inspect", "seat:1")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "fencedb migrate up")
}

func TestInspectNamesTheLastRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Nil(t, w.inspected("seat:1").Refusals, "nobody publishes")
	stale, stored := w.refusedOnce()

	found := w.inspected("seat:1")
	require.Len(t, found.Refusals, 1)
	require.WithinDuration(t, time.Now(), found.Refusals[0].At, time.Minute)
	found.Refusals[0].At = time.Time{}
	require.Equal(t, look.Refused{Worker: "worker-7", Token: stale, Stored: stored}, found.Refusals[0])
	require.Contains(t, w.ok("inspect", "seat:1"), "REFUSED")
	require.Equal(t, []look.Refused{}, w.inspected("seat:2").Refusals, "somebody publishes, and it was not refused")

	for n := range 7 {
		w.publish(fmt.Sprintf(`{"kind":"refused","resource":"%s","worker":"w","token":%d,"stored":99}`, feed.Hashed("seat:1"), n))
	}
	require.Equal(t, []int64{6, 5, 4, 3, 2}, tokensOf(w.inspected("seat:1").Refusals), "the newest first, hashed or not")
}

func TestInspectNamesTheServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE fencedb.fences`)
	require.NoError(t, err)

	got := w.run("--timeout", "10s", "inspect", "seat:1")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "postgres: no answer in time")
	require.NoError(t, tx.Rollback(t.Context()))
}

func tokensOf(all []look.Refused) (tokens []int64) {
	for _, r := range all {
		tokens = append(tokens, r.Token)
	}
	return tokens
}

// Nobody may be told that a resource is free which is held.
func TestInspectInAWrongNamespaceSaysWhereItIsHeld(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"", "shopx"} {
		w := newWorld(t)
		l := w.acquire("seat:1")
		require.NoError(t, w.book(l))

		w.as("--namespace", wrong)

		found := w.inspected("seat:1")
		require.Equal(t, []string{"old_holder_may_write", "held_elsewhere"}, codes(found.Notes))
		require.Equal(t, []look.Location{{Namespace: "shop", Kind: "lease", LastToken: new(l.Token()), Holder: found.Elsewhere[0].Holder}}, found.Elsewhere)
		require.Equal(t, l.LeaseID(), found.Elsewhere[0].Holder.LeaseID)
		require.Contains(t, w.ok("inspect", "seat:1"), "nobody "+app.InNamespace(wrong))
		require.Contains(t, w.run("revoke", "seat:1", "--reason", "it hangs").errOut, `as a lease in namespace "shop"`)
	}
}
