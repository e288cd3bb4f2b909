package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/observe/feed"
)

// What is shown of each side of --at, and without it.
const aroundAt, mostEvents = 10, 200

// History is the command history.
func History(a *app.State) *cli.Command {
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

Times are ` + strings.Replace(term.TimeForms, ` "2026`, "\n"+`"2026`, 1) + `,
in your time zone. A seal enters too, so an entry may have written nothing.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "at", Destination: &at, Usage: "show what happened around this `TIME`"},
			&cli.DurationFlag{Name: "since", Destination: &since, Usage: "show what happened in the last `TIME`", Value: term.Day, Validator: app.Positive},
		},
		Action: conn.TimedAction(a, conn.Both|conn.Halves, func(cmd *cli.Command) error {
			if err := protocol.CheckRequired("resource", a.Argument, "table:12", protocol.MaxResource); err != nil {
				return app.UsageError("%w", err)
			}
			if cmd.IsSet("at") && cmd.IsSet("since") {
				return app.UsageError("--at tells what was around a time and --since what came since: give one of them")
			}
			if _, err := term.ParseTime(at, time.Now()); at != "" && err != nil && !errors.Is(err, term.ErrToCome) { // by this clock
				return app.UsageError("--at: %w", err)
			}
			return nil
		}, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
			now := time.Now().Add(s.Ahead.Postgres)
			r := &Timeline{Resource: a.Argument, namespace: a.Names.Namespace, ahead: s.Ahead, since: now.Add(-since),
				labels: map[string]string{}, renewals: map[int64]renewal{},
				Events: []Happening{}, Tables: []noting{}, Missing: []Missing{}}
			w := window{since: r.since, at: now, before: mostEvents, after: mostEvents} // a clock may be ahead
			if at != "" {
				then, err := term.ParseTime(at, now)
				if err != nil {
					return nil, app.UsageError("--at: %w", err)
				}
				w, r.At = window{at: then, before: aroundAt, after: aroundAt}, &then
			}
			return readHistory(ctx, s, r, w)
		}),
	}
}

// readHistory returns what both servers know.
func readHistory(ctx context.Context, s *conn.Servers, r *Timeline, w window) (term.Report, error) {
	if s.RedisAway == nil {
		s.RedisAway = readRedis(ctx, s, r, w)
	}
	if s.PostgresAway == nil {
		s.PostgresAway = readPast(ctx, s, r, w)
	}
	r.arrange(w)
	if s.RedisAway != nil {
		r.Missing = append(r.Missing, Missing{"redis", app.InWords(s.RedisAway)})
	}
	if s.PostgresAway != nil {
		r.Missing = append(r.Missing, Missing{"postgres", app.InWords(s.PostgresAway)})
	}
	r.Notes = r.conclude()
	if err := s.Away(); err != nil {
		return nil, errors.Join(s.Show(r), fmt.Errorf("this is only what the other server knows: %w", err))
	}
	return r, nil
}

// Lacks reports whether a server has not told its half.
func (r *Timeline) Lacks(server string) bool {
	return slices.ContainsFunc(r.Missing, func(m Missing) bool { return m.Server == server })
}

// Print implements [term.Report].
func (r *Timeline) Print(p term.Page) {
	facts := [][2]string{{"RESOURCE", term.Visible(r.Resource)}}
	if r.At != nil {
		facts = append(facts, [2]string{"AT", r.At.Format(term.TimeLayout + " -07:00")}, [2]string{"HOLDER", r.holder()}, [2]string{"FENCE", r.fence(p.Ahead)})
	} else {
		facts = append(facts, [2]string{"SINCE", r.since.Local().Format(term.TimeLayout + " -07:00")})
	}
	p.Facts(facts...)
	header, issued := []string{"WHEN", "WHAT", "TOKEN", "BY"}, p.Width <= 0 || p.Width >= roomForIssued
	if issued {
		header = slices.Insert(header, 3, "ISSUED")
	}
	term.List(p, header, r.Events, func(h Happening) []string {
		cells := []string{h.At.Local().Format("02 Jan " + clock), h.What(), term.TokenText(h.Token), h.By()}
		if issued {
			cells = slices.Insert(cells, 3, h.issued(p.Ahead))
		}
		return cells
	})
	if r.More {
		fmt.Fprintln(p.Out, "\nThere are earlier ones; see --at.")
	}
	fmt.Fprintln(p.Out)
	for _, n := range r.Notes {
		p.Point("%s", n.Text)
	}
}

// roomForIssued is the width of a screen that has room for the times at which tokens were issued.
const roomForIssued = 110

// issued says when the token was issued, with the date if that was on another day.
func (h Happening) issued(ahead term.Clocks) string {
	at := ahead.IssuedAt(h.Token)
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
func (r *Timeline) holder() string {
	g := r.Granted
	switch {
	case r.Lacks("redis"), g == nil:
		return "not known"
	case r.Ended != nil && r.Ended.Source != SourceFeed:
		return fmt.Sprintf("nobody that is known: the lease of %s with token %d was overtaken by token %d, which entered at %s", term.Visible(g.Label), g.Token, r.Ended.Token, r.Ended.At.Local().Format(term.TimeLayout))
	case r.Ended != nil:
		return fmt.Sprintf("nobody that is known: the lease of %s with token %d had ended at %s", term.Visible(g.Label), g.Token, r.Ended.At.Local().Format(term.TimeLayout))
	}
	last := app.Value(r.Renewed)
	if ttl := time.Duration(last.TTLMS) * time.Millisecond; ttl > 0 && last.At.Add(ttl).Before(*r.At) {
		how := "was renewed last"
		if last.First {
			how = "was granted, and not renewed,"
		}
		return fmt.Sprintf("nobody that is known: the lease of %s with token %d\n%s at %s, for %s", term.Visible(g.Label), g.Token, how, last.At.Local().Format(term.TimeLayout), term.Millis(last.TTLMS))
	}
	return fmt.Sprintf("%s with token %d, granted %s", term.Visible(g.Label), g.Token, g.At.Local().Format(term.TimeLayout))
}

// fence says which token had entered last, so that no lower one could write.
func (r *Timeline) fence(ahead term.Clocks) string {
	last := r.Last
	switch {
	case r.UnbrokenSince == nil, r.At.Before(*r.UnbrokenSince):
		return "not known: see below"
	case r.gap():
		return fmt.Sprintf("not known: token %d had entered at %s, and what came between that and\ntoken %d, which entered at %s, is missing",
			last.Token, last.At.Local().Format(term.TimeLayout), r.Next.Token, r.Next.At.Local().Format(term.TimeLayout))
	case last == nil && r.kept() && r.Next != nil && r.Next.Former > 0:
		return fmt.Sprintf("token %d%s\n%s", r.Next.Former, issuedText(ahead, r.Next.Former), r.until())
	case last == nil && r.kept():
		return "no token had entered"
	case last == nil:
		return "not known"
	case last.Kind == KindReset:
		return fmt.Sprintf("set back to token %d at %s\n%s", last.Token, last.At.Local().Format(term.TimeLayout), r.until())
	case last.Text == sealText:
		return fmt.Sprintf("token %d, of a revocation %s\n%s", last.Token, last.At.Local().Format(term.TimeLayout), r.until())
	}
	return fmt.Sprintf("token %d%s\nentered %s%s\n%s", last.Token, issuedText(ahead, last.Token), last.At.Local().Format(term.TimeLayout), term.Prefixed(" by ", last.By(), ""), r.until())
}

// kept reports whether entries of that time are kept.
func (r *Timeline) kept() bool { return r.KeptSince != nil && !r.At.Before(*r.KeptSince) }

// gap reports whether entries are missing between the last one and the next, which has another
// before it.
func (r *Timeline) gap() bool {
	return r.Last != nil && r.Next != nil && r.Next.Former != r.Last.Token
}

func (r *Timeline) until() string {
	if r.Next == nil {
		return "no other has entered since"
	}
	return fmt.Sprintf("until token %d entered %s", r.Next.Token, r.Next.At.Local().Format(term.TimeLayout))
}

// issuedText says when a lease was acquired, by its token.
func issuedText(ahead term.Clocks, token int64) string {
	if at := ahead.IssuedAt(token); at != nil {
		return ", issued " + at.Local().Format(term.TimeLayout)
	}
	return ""
}

// By names who it was, as far as that is known: the holder, or the application, and whom the
// database knows.
func (h Happening) By() string {
	text := term.Visible(cmp.Or(h.Label, h.Application))
	if h.Source == SourceAudit || h.Role == "" {
		return text
	}
	return strings.TrimSpace(text + " (" + term.Visible(h.Role) + term.Prefixed("@", h.Client, "") + ")")
}

// What describes the event in a few words.
func (h Happening) What() string {
	text := h.Kind
	switch {
	case h.Source == SourceAudit:
		if h.Table != "" {
			return h.Kind + " " + term.Visible(h.Table) + term.Prefixed(": ", term.Visible(h.Text), "")
		}
		return h.Kind + term.Prefixed(" ", term.Visible(h.Text), "")
	case h.Rows > 0:
		text = fmt.Sprintf("%s %d rows of %s", h.Kind, h.Rows, term.Visible(h.Table))
		if h.Rows == 1 {
			text = fmt.Sprintf("%s 1 row of %s", h.Kind, term.Visible(h.Table))
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
	return text + term.Prefixed(": ", term.Visible(h.Text), "") + formerText(h)
}

func formerText(h Happening) string {
	if h.Former == 0 || h.Source == SourceFeed {
		return ""
	}
	return fmt.Sprintf(", after %d", h.Former)
}

// conclude says how far back all that is known, and what is not.
func (r *Timeline) conclude() []Note {
	notes := []Note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, Note{code, fmt.Sprintf(format, args...)})
	}
	r.reachOfPostgres(add)
	switch {
	case r.Lacks("redis"):
		add("redis_away", "Redis has not told its events, so leases, refusals and the names of holders are not known.")
	case r.feedDenied:
		add("feed_denied", "Leases and refusals are not known: Redis does not let this user read the feed of events.")
	case r.feedReplaced:
		add("feed_unreadable", "Leases and refusals are not known: "+feedReplaced, app.InNamespace(r.namespace))
	case r.FeedSince == nil:
		add("feed_none", "Leases and refusals are not known: Redis has no events %s. Either no program publishes any there (with the namespace in feed.Namespace, too), or Redis did not take or has lost them.", app.InNamespace(r.namespace))
	default:
		add("feed_since", "Leases, refusals and the names of holders are known since %s, by the feed %s and the clocks of its programs.", r.FeedSince.Local().Format(term.TimeLayout), app.InNamespace(r.namespace))
	}
	if len(r.Elsewhere) > 0 {
		add("known_elsewhere", "Redis knows it elsewhere too: %s. For those events give that --namespace and --hash-resources.", Describe(r.Elsewhere))
	}
	if r.unsearched != nil {
		add("not_searched", "Whether it is in another namespace too was not found out: %s.", app.InWords(r.unsearched))
	}
	if apart := r.ahead.Apart(); apart > 0 {
		add("clock_difference", "The clocks of Redis and Postgres are %s apart, so what one tells may have come before or after what the other tells.", term.Span(apart))
	}
	return notes
}

// gaps names entries that are missing between those that are shown.
func (r *Timeline) gaps(add adding) {
	var before *Happening
	for _, h := range r.Events {
		if h.Source == SourceFeed || h.Kind != KindEnter && h.Kind != KindReset {
			continue
		}
		if before != nil && h.Former != before.Token {
			add("gap", "Between the entries of token %d and token %d others are missing: they were pruned, or not kept.", before.Token, h.Token)
		}
		before = &h
	}
}

// table is one to which it may belong.
func (r *Timeline) table() string {
	if len(r.Tables) == 0 {
		return "TABLE"
	}
	return term.Visible(r.Tables[0].Table)
}

func (r *Timeline) reachOfPostgres(add adding) {
	switch {
	case r.Lacks("postgres"):
		add("postgres_away", "Postgres has not told its entries, writes and records, so they are not known.")
		return
	case r.UnbrokenSince == nil:
		add("unbroken_unknown", "Postgres has started, or is a standby, and nothing has entered since: whether it has lost what was committed before is not known, and nothing is stated of that time.")
	case r.At != nil && r.At.Before(*r.UnbrokenSince),
		r.At == nil && r.KeptSince != nil && r.UnbrokenSince.After(*r.KeptSince) && r.UnbrokenSince.After(r.since):
		add("unbroken_since", "What was committed before %s may not be here: Postgres crashed, failed over, or was restored or copied then, or the schema was made. Nothing is stated of the time before.", r.UnbrokenSince.Local().Format(term.TimeLayout))
	}
	r.gaps(add)
	switch {
	case r.KeptSince == nil:
		add("history_off", "History is not kept, so of entries only the last one is known, by the ledger, and of writes only what the feed has. When the lease of a row's last write was issued, its token tells: SELECT to_timestamp(last_fencing_token / 1e6) FROM %s WHERE ... SELECT fencedb.keep_history('30 days') keeps history from then on.", r.table())
		return
	}
	add("history_since", "Entries are known since %s. History is kept for %s.", r.KeptSince.Local().Format(term.TimeLayout), r.Period)
	for _, t := range r.Tables {
		if t.Since == nil {
			add("writes_not_kept", "Writes to %s are not known: it is not protected with history => true.", term.Visible(t.Table))
		} else {
			add("writes_since", "Writes to %s are known since %s.", term.Visible(t.Table), t.Since.Local().Format(term.TimeLayout))
		}
	}
	if len(r.Tables) == 0 {
		add("no_table", "No table is protected to which it could belong, so its writes are not known.")
	}
}
