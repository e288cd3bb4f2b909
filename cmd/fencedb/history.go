package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/observe/feed"
)

// What is shown of each side of --at, and without it.
const aroundAt, mostEvents = 10, 200

func (a *app) history() *cli.Command {
	var at string
	var since time.Duration
	return &cli.Command{
		Name:      "history",
		Usage:     "show what happened to a resource",
		ArgsUsage: "RESOURCE",
		Description: `Shows in one time line who entered the resource, what was written, what was
refused, and what was done by hand, and says how far back that is known.
Entries and writes are known while fencedb.keep_history is on, writes to
tables that are protected with history => true; leases and refusals for as
long as the feed reaches back, if programs publish (see watch). If one server
does not answer, it shows what the other knows; the exit code is 1 then.

   fencedb history table:7                     what happened in the last day
   fencedb history table:7 --since 2h
   fencedb history table:7 --at "Fri 20:14"    what happened around that time

Times are ` + strings.Replace(moments, ` "2026`, "\n"+`"2026`, 1) + `,
in your time zone. A seal enters too, so an entry may have written nothing.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "at", Destination: &at, Usage: "show what happened around this `TIME`"},
			&cli.DurationFlag{Name: "since", Destination: &since, Usage: "show what happened in the last `TIME`", Value: day, Validator: positive},
		},
		Action: a.read(onBoth|halves, func(cmd *cli.Command) error {
			if err := protocol.CheckRequired("resource", a.argument, "table:12", protocol.MaxResource); err != nil {
				return usage("%w", err)
			}
			if cmd.IsSet("at") && cmd.IsSet("since") {
				return usage("--at tells what was around a time and --since what came since: give one of them")
			}
			if _, err := moment(at, time.Now()); at != "" && err != nil && !errors.Is(err, errToCome) { // by this clock
				return usage("--at: %w", err)
			}
			return nil
		}, func(ctx context.Context, s *servers) (report, error) {
			now := time.Now().Add(s.ahead.postgres)
			r := &history{Resource: a.argument, namespace: a.names.namespace, ahead: s.ahead, since: now.Add(-since),
				labels: map[string]string{}, renewals: map[int64]renewal{},
				Events: []happening{}, Tables: []noting{}, Missing: []missing{}}
			w := window{since: r.since, at: now, before: mostEvents, after: mostEvents} // a clock may be ahead
			if at != "" {
				then, err := moment(at, now)
				if err != nil {
					return nil, usage("--at: %w", err)
				}
				w, r.At = window{at: then, before: aroundAt, after: aroundAt}, &then
			}
			return s.past(ctx, r, w)
		}),
	}
}

// past returns what both servers know.
func (s *servers) past(ctx context.Context, r *history, w window) (report, error) {
	if s.redisAway == nil {
		s.redisAway = s.readRedis(ctx, r, w)
	}
	if s.postgresAway == nil {
		s.postgresAway = s.readPast(ctx, r, w)
	}
	r.arrange(w)
	if s.redisAway != nil {
		r.Missing = append(r.Missing, missing{"redis", inWords(s.redisAway)})
	}
	if s.postgresAway != nil {
		r.Missing = append(r.Missing, missing{"postgres", inWords(s.postgresAway)})
	}
	r.Notes = r.conclude()
	if err := s.away(); err != nil {
		return nil, errors.Join(s.show(r), fmt.Errorf("this is only what the other server knows: %w", err))
	}
	return r, nil
}

// lacks reports whether a server has not told its half.
func (r *history) lacks(server string) bool {
	return slices.ContainsFunc(r.Missing, func(m missing) bool { return m.Server == server })
}

func (r *history) print(p page) {
	facts := [][2]string{{"RESOURCE", visible(r.Resource)}}
	if r.At != nil {
		facts = append(facts, [2]string{"AT", r.At.Format(whenLayout + " -07:00")}, [2]string{"HOLDER", r.holder()}, [2]string{"FENCE", r.fence(p.ahead)})
	} else {
		facts = append(facts, [2]string{"SINCE", r.since.Local().Format(whenLayout + " -07:00")})
	}
	p.facts(facts...)
	header, issued := []string{"WHEN", "WHAT", "TOKEN", "BY"}, p.width <= 0 || p.width >= roomForIssued
	if issued {
		header = slices.Insert(header, 3, "ISSUED")
	}
	list(p, header, r.Events, func(h happening) []string {
		cells := []string{h.At.Local().Format("02 Jan " + clock), h.what(), tokenText(h.Token), h.by()}
		if issued {
			cells = slices.Insert(cells, 3, h.issued(p.ahead))
		}
		return cells
	})
	if r.More {
		fmt.Fprintln(p.out, "\nThere are earlier ones; see --at.")
	}
	fmt.Fprintln(p.out)
	for _, n := range r.Notes {
		p.point("%s", n.Text)
	}
}

// roomForIssued is the width of a screen that has room for the times at which tokens were issued.
const roomForIssued = 110

// issued says when the token was issued, with the date if that was on another day.
func (h happening) issued(ahead clocks) string {
	at := ahead.issuedAt(h.Token)
	if at == nil {
		return ""
	}
	const day, second = "02 Jan ", "15:04:05"
	if at.Local().Format(day) == h.At.Local().Format(day) {
		return at.Local().Format(second)
	}
	return at.Local().Format(day + second)
}

// holder says who held the lease, by the feed.
func (r *history) holder() string {
	g := r.Granted
	switch {
	case r.lacks("redis"), g == nil:
		return "not known"
	case r.Ended != nil && r.Ended.Source != ofFeed:
		return fmt.Sprintf("nobody that is known: the lease of %s with token %d was overtaken by token %d, which entered at %s", visible(g.Label), g.Token, r.Ended.Token, r.Ended.At.Local().Format(whenLayout))
	case r.Ended != nil:
		return fmt.Sprintf("nobody that is known: the lease of %s with token %d had ended at %s", visible(g.Label), g.Token, r.Ended.At.Local().Format(whenLayout))
	}
	if last := value(r.Renewed); last.TTLMS > 0 && last.At.Add(time.Duration(last.TTLMS)*time.Millisecond).Before(*r.At) {
		how := "was renewed last"
		if last.First {
			how = "was granted, and not renewed,"
		}
		return fmt.Sprintf("nobody that is known: the lease of %s with token %d\n%s at %s, for %s", visible(g.Label), g.Token, how, last.At.Local().Format(whenLayout), millis(last.TTLMS))
	}
	return fmt.Sprintf("%s with token %d, granted %s", visible(g.Label), g.Token, g.At.Local().Format(whenLayout))
}

// fence says which token had entered last, so that no lower one could write.
func (r *history) fence(ahead clocks) string {
	last := r.Last
	switch {
	case r.UnbrokenSince == nil, r.At.Before(*r.UnbrokenSince):
		return "not known: see below"
	case r.gap():
		return fmt.Sprintf("not known: token %d had entered at %s, and what came between that and\ntoken %d, which entered at %s, is missing",
			last.Token, last.At.Local().Format(whenLayout), r.Next.Token, r.Next.At.Local().Format(whenLayout))
	case last == nil && r.kept() && r.Next != nil && r.Next.Former > 0:
		return fmt.Sprintf("token %d%s\n%s", r.Next.Former, issuedText(ahead, r.Next.Former), r.until())
	case last == nil && r.kept():
		return "no token had entered"
	case last == nil:
		return "not known"
	case last.Kind == kindReset:
		return fmt.Sprintf("set back to token %d at %s\n%s", last.Token, last.At.Local().Format(whenLayout), r.until())
	case last.Text == sealText:
		return fmt.Sprintf("token %d, of a revocation %s\n%s", last.Token, last.At.Local().Format(whenLayout), r.until())
	}
	return fmt.Sprintf("token %d%s\nentered %s%s\n%s", last.Token, issuedText(ahead, last.Token), last.At.Local().Format(whenLayout), prefixed(" by ", last.by(), ""), r.until())
}

// kept reports whether entries of that time are kept.
func (r *history) kept() bool { return r.KeptSince != nil && !r.At.Before(*r.KeptSince) }

// gap reports whether entries are missing between the last one and the next, which has another
// before it.
func (r *history) gap() bool {
	return r.Last != nil && r.Next != nil && r.Next.Former != r.Last.Token
}

func (r *history) until() string {
	if r.Next == nil {
		return "no other has entered since"
	}
	return fmt.Sprintf("until token %d entered %s", r.Next.Token, r.Next.At.Local().Format(whenLayout))
}

// issuedText says when a lease was acquired, by its token.
func issuedText(ahead clocks, token int64) string {
	if at := ahead.issuedAt(token); at != nil {
		return ", issued " + at.Local().Format(whenLayout)
	}
	return ""
}

// by names who it was, as far as that is known: the holder, or the application, and whom the
// database knows.
func (h happening) by() string {
	text := visible(cmp.Or(h.Label, h.Application))
	if h.Source == ofAudit || h.Role == "" {
		return text
	}
	return strings.TrimSpace(text + " (" + visible(h.Role) + prefixed("@", h.Client, "") + ")")
}

func (h happening) what() string {
	text := h.Kind
	switch {
	case h.Source == ofAudit:
		if h.Table != "" {
			return h.Kind + " " + visible(h.Table) + prefixed(": ", visible(h.Text), "")
		}
		return h.Kind + prefixed(" ", visible(h.Text), "")
	case h.Rows > 0:
		text = fmt.Sprintf("%s %d rows of %s", h.Kind, h.Rows, visible(h.Table))
		if h.Rows == 1 {
			text = fmt.Sprintf("%s 1 row of %s", h.Kind, visible(h.Table))
		}
		if h.Token == 0 {
			text += ", without a lease"
		}
		return text
	case h.Kind == string(feed.Refused) && h.Former != h.Token:
		return fmt.Sprintf("refused: %d is stored", h.Former)
	case h.Kind == string(feed.Granted):
		text = "lease granted"
	case h.Kind == string(feed.Released), h.Kind == string(feed.Lost):
		text = "lease " + h.Kind
	case h.Kind == string(feed.NotSealed):
		text = "lease not sealed"
	}
	return text + prefixed(": ", visible(h.Text), "") + formerText(h)
}

func formerText(h happening) string {
	if h.Former == 0 || h.Source == ofFeed {
		return ""
	}
	return fmt.Sprintf(", after %d", h.Former)
}

// conclude says how far back all that is known, and what is not.
func (r *history) conclude() []note {
	notes := []note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, note{code, fmt.Sprintf(format, args...)})
	}
	r.reachOfPostgres(add)
	switch {
	case r.lacks("redis"):
		add("redis_away", "Redis has not told its events, so leases, refusals and the names of holders are not known.")
	case r.feedDenied:
		add("feed_denied", "Leases and refusals are not known: Redis does not let this user read the feed of events.")
	case r.feedReplaced:
		add("feed_unreadable", "Leases and refusals are not known: "+feedReplaced, inNamespace(r.namespace))
	case r.FeedSince == nil:
		add("feed_none", "Leases and refusals are not known: Redis has no events %s. Either no program publishes any (see fencedb watch), or Redis did not take or has lost them.", inNamespace(r.namespace))
	default:
		add("feed_since", "Leases, refusals and the names of holders are known since %s, by the feed %s and the clocks of its programs.", r.FeedSince.Local().Format(whenLayout), inNamespace(r.namespace))
	}
	if len(r.Elsewhere) > 0 {
		add("known_elsewhere", "Redis knows it elsewhere too: %s. For those events give that --namespace and --hash-resources.", described(r.Elsewhere))
	}
	if r.unsearched != nil {
		add("not_searched", "Whether it is in another namespace too was not found out: %s.", inWords(r.unsearched))
	}
	if apart := r.ahead.apart(); apart > 0 {
		add("clock_difference", "The clocks of Redis and Postgres are %s apart, so what one tells may have come before or after what the other tells.", span(apart))
	}
	return notes
}

// gaps names entries that are missing between those that are shown.
func (r *history) gaps(add adding) {
	var before *happening
	for _, h := range r.Events {
		if h.Source == ofFeed || h.Kind != kindEnter && h.Kind != kindReset {
			continue
		}
		if before != nil && h.Former != before.Token {
			add("gap", "Between the entries of token %d and token %d others are missing: they were pruned, or not kept.", before.Token, h.Token)
		}
		before = &h
	}
}

// table is one to which it may belong.
func (r *history) table() string {
	if len(r.Tables) == 0 {
		return "TABLE"
	}
	return visible(r.Tables[0].Table)
}

func (r *history) reachOfPostgres(add adding) {
	switch {
	case r.lacks("postgres"):
		add("postgres_away", "Postgres has not told its entries, writes and records, so they are not known.")
		return
	case r.UnbrokenSince == nil:
		add("unbroken_unknown", "Postgres has started, or is a standby, and nothing has entered since: whether it has lost what was committed before is not known, and nothing is stated of that time.")
	case r.At != nil && r.At.Before(*r.UnbrokenSince),
		r.At == nil && r.KeptSince != nil && r.UnbrokenSince.After(*r.KeptSince) && r.UnbrokenSince.After(r.since):
		add("unbroken_since", "What was committed before %s may not be here: Postgres crashed, failed over, or was restored or copied then, or the schema was made. Nothing is stated of the time before.", r.UnbrokenSince.Local().Format(whenLayout))
	}
	r.gaps(add)
	switch {
	case r.KeptSince == nil:
		add("history_off", "History is not kept, so of entries only the last one is known, by the ledger, and of writes only what the feed has. When the lease of a row's last write was issued, its token tells: SELECT to_timestamp(last_fencing_token / 1e6) FROM %s WHERE ... SELECT fencedb.keep_history('30 days') keeps history from then on.", r.table())
		return
	}
	add("history_since", "Entries are known since %s. History is kept for %s.", r.KeptSince.Local().Format(whenLayout), r.Period)
	for _, t := range r.Tables {
		if t.Since == nil {
			add("writes_not_kept", "Writes to %s are not known: it is not protected with history => true.", visible(t.Table))
		} else {
			add("writes_since", "Writes to %s are known since %s.", visible(t.Table), t.Since.Local().Format(whenLayout))
		}
	}
	if len(r.Tables) == 0 {
		add("no_table", "No table is protected to which it could belong, so its writes are not known.")
	}
}
