package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/observe/feed"
)

// passing are times that go on between two calls.
var passing = regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h|d))+\b`)

// prints requires that a command prints to a person what its JSON has.
func (n *night) prints(command []string, json ...string) {
	n.Helper()
	n.screen.Width = 120
	printed := passing.ReplaceAllString(flowing(n.run(command...).out), "a time")
	for _, text := range json {
		require.Contains(n, printed, passing.ReplaceAllString(flowing(text), "a time"))
	}
}

// read requires that what inspect says of table 12 is true, as far as its servers answer it.
func (n *night) read() {
	n.Helper()
	var found look.Inspection
	n.decode("inspect", &found, n.run("--json", "inspect", "table:12").out)
	key := "lease:v1:{" + n.namespace + "/table:12}:"
	holder, last, fence := n.holds(), int64(0), int64(0)
	if found.Lacks("redis") == "" {
		last = number(n.redis.Get(n.Context(), key+"fence").Val())
		require.Equal(n, []int64{holder, last}, []int64{app.Value(found.Holder).Token, app.Value(found.LastToken)})
	}
	if found.Lacks("postgres") == "" {
		fence = number(n.one(`SELECT coalesce(max(last_fencing_token), 0) FROM fencedb.fences WHERE resource = 'table:12'`))
		require.Equal(n, fence, app.Value(found.Fence).Token)
		var keep string
		for _, t := range found.Transactions {
			keep += fmt.Sprintln(t.PID, t.Application)
		}
		require.Equal(n, n.queried(`SELECT pid, application FROM fencedb.blockers(ARRAY['table:12']) ORDER BY open_ms DESC`), keep)
	}
	now := n.redis.Time(n.Context()).Val().UnixMicro()
	texts := []string{"RESOURCE table:12"}
	if found.Fence != nil {
		texts = append(texts, fmt.Sprintf("LEDGER token %d,", fence))
	}
	if found.Holder != nil {
		texts = append(texts, fmt.Sprintf("token %d, ", holder), "lease "+found.Holder.LeaseID.String())
	}
	for _, said := range found.Notes {
		texts = append(texts, "* "+said.Text)
		so, known := map[string]bool{
			"redis_away":           found.Lacks("redis") != "" && (n.redis.Ping(n.Context()).Err() != nil || n.redis.Get(n.Context(), key+"owner").Val() == "by hand"),
			"current":              holder > 0 && holder == fence,
			"stale_holder":         holder > 0 && holder < fence,
			"not_entered":          holder > fence,
			"old_holder_may_write": holder == 0,
			"revoked_and_sealed":   holder == 0 && last == fence,
			"redis_behind":         max(last, now) < fence,
			"seal_missing":         last > fence,
			"unknown_to_redis":     last == 0,
			"kept_without_lease":   holder == 0 && len(found.Transactions) > 0,
			"held_elsewhere":       len(look.Rivals(found.Elsewhere)) > 0,
			"known_elsewhere":      len(found.Elsewhere) > 0 && last == 0,
			"revoked":              n.redis.Exists(n.Context(), key+"ended").Val() == 1,
			"feed_unreadable":      n.redis.Type(n.Context(), "fencedb:v1:"+n.namespace+":events").Val() != "stream",
		}[said.Code]
		require.True(n, known && so, "%s: %s", said.Code, said.Text)
	}
	n.prints([]string{"inspect", "table:12"}, texts...)
}

func number(text string) (token int64) {
	token, _ = strconv.ParseInt(text, 10, 64)
	return token
}

// holds is the token of who holds table 12, by Redis; 0: nobody, or it cannot be read.
func (n *night) holds() int64 {
	_, owner, _ := strings.Cut(n.redis.Get(n.Context(), "lease:v1:{"+n.namespace+"/table:12}:owner").Val(), ":")
	token, _, _ := strings.Cut(owner, ":")
	return number(token)
}

// examined are the codes of what doctor finds, but for the role of the drill itself.
func (n *night) examined() (codes []string) {
	n.Helper()
	var d look.Diagnosis
	n.decode("doctor", &d, n.run("--json", "doctor").out)
	var texts []string
	for _, f := range d.Findings {
		texts = append(texts, f.Severity+" "+f.Code+" "+f.What+" Why: "+f.Why+" Do: "+f.Do)
		if f.Code != "superuser_writer" {
			codes = append(codes, f.Code)
		}
	}
	n.prints([]string{"doctor"}, texts...)
	return codes
}

// published is what the feed has, and what of it is about table 12.
func (n *night) published() (all, ours []feed.Event) {
	n.Helper()
	_ = feed.Replay(n.Context(), n.redis, "0", func(e feed.Event) error {
		all = append(all, e)
		if e.Resource == "table:12" && !slices.Contains([]feed.Kind{feed.Held, feed.Extended, feed.Sealed}, e.Kind) {
			ours = append(ours, e)
		}
		return nil
	}, feed.Namespace(n.namespace)) // it may be away
	return all, ours
}

// recall requires that what history says of table 12 is true: each event in its order, up to where
// it reaches, who holds, and what has entered.
func (n *night) recall() {
	n.Helper()
	var told look.Timeline
	all, events := n.published()
	for settled := false; !settled; { // events come a moment later
		told = look.Timeline{}
		n.decode("history", &told, n.run("--json", "history", "table:12").out)
		before := len(all)
		all, events = n.published()
		settled = len(all) == before
	}
	has := map[string]string{
		look.SourceHistory: n.queried(`SELECT lower(event), coalesce(token, 0), coalesce(former_token, 0) FROM fencedb.history WHERE resource = 'table:12' ORDER BY at`),
		look.SourceAudit: n.queried(`SELECT event, coalesce((details ->> 'token')::bigint, 0), coalesce((details ->> 'former_token')::bigint, 0) FROM fencedb.audit
			WHERE resource = 'table:12' OR event = 'keep_history' OR details ->> 'resource' LIKE '%table:{%' ORDER BY at, id`),
	}
	granted := map[int64]bool{}
	for _, e := range events {
		has[look.SourceFeed] += fmt.Sprintln(e.Kind, e.Token, e.Stored)
		granted[e.Token] = granted[e.Token] || e.Kind == feed.Granted
	}
	for _, source := range []string{look.SourceHistory, look.SourceLedger, look.SourceAudit, look.SourceFeed} {
		shown := ""
		for _, h := range told.Events {
			if h.Source == source {
				shown += fmt.Sprintln(h.Kind, h.Token, h.Former)
			}
		}
		if !told.More {
			require.Equal(n, has[source], shown, source)
		}
		require.True(n, strings.HasSuffix(has[source], shown), "%s: %s", source, shown)
	}

	holder, fence := n.holds(), number(n.one(`SELECT coalesce(max(last_fencing_token), 0) FROM fencedb.fences WHERE resource = 'table:12'`))
	require.Equal(n, fence, app.Value(told.Last).Token)
	if !told.Lacks("redis") {
		renewed := app.Value(told.Renewed)
		over := renewed.At.Add(time.Duration(renewed.TTLMS) * time.Millisecond).Before(n.redis.Time(n.Context()).Val())
		require.Equal(n, granted[holder], told.Granted != nil && told.Ended == nil && !over, "who holds: %v, %v, %v", told.Granted, told.Ended, renewed)
		require.True(n, !granted[holder] || told.Granted.Token == holder)
	}
	n.recalled(told, all)
	text := n.run("history", "table:12", "--at", n.one(`SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)).out
	who, entered := `(nobody that is known|not known)`, `no token had entered`
	if granted[holder] && !told.Lacks("redis") {
		who = fmt.Sprintf(`\S+ with token %d,`, holder)
	}
	if fence > 0 {
		entered = fmt.Sprintf(`token %d\b`, fence)
	}
	require.Regexp(n, `(?m)^HOLDER +`+who, text)
	require.Regexp(n, `(?m)^FENCE +`+entered, text)
}

// recalled requires that the notes of a history are true.
func (n *night) recalled(told look.Timeline, all []feed.Event) {
	n.Helper()
	feedSince := time.Time{}
	if len(all) > 0 {
		feedSince = all[0].At
	}
	is := func(sql string) bool { return n.one("SELECT "+sql) == "true" }
	var texts []string
	kept := `SELECT FROM fencedb.protected_tables WHERE resource::text LIKE '%table:{%'`
	for _, said := range told.Notes {
		texts = append(texts, "* "+said.Text)
		so, known := map[string]bool{
			"history_since":    told.Period == "30 days" && is(fmt.Sprintf(`since = '%s' FROM fencedb.history_kept`, app.Value(told.KeptSince).Format(time.RFC3339Nano))),
			"gap":              strings.Contains(said.Text, "others are missing"),
			"unbroken_since":   is(fmt.Sprintf(`pg_sequence_last_value('fencedb.unbroken_since') = %d`, app.Value(told.UnbrokenSince).UnixMilli())),
			"unbroken_unknown": is(`pg_sequence_last_value('fencedb.server_epoch') & 16777215 IS DISTINCT FROM fencedb.started()`),
			"writes_not_kept":  is(`EXISTS (` + kept + ` AND history_since IS NULL)`),
			"no_table":         is(`NOT EXISTS (` + kept + `)`),
			"feed_since":       app.Value(told.FeedSince).Equal(feedSince),
			"feed_none":        len(all) == 0 && n.redis.Exists(n.Context(), "fencedb:v1:"+n.namespace+":events").Val() == 0,
			"feed_unreadable":  n.redis.Type(n.Context(), "fencedb:v1:"+n.namespace+":events").Val() != "stream",
			"known_elsewhere":  n.redis.Exists(n.Context(), "lease:v1:{shopp/table:12}:fence").Val() == 1,
			"clock_difference": n.apart,
			"redis_away":       n.redis.Ping(n.Context()).Err() != nil,
		}[said.Code]
		require.True(n, known && so, "%s: %s", said.Code, said.Text)
	}
	n.prints([]string{"history", "table:12"}, texts...)
}
