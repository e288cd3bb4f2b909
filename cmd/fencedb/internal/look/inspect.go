// Package look has the commands that change nothing, and what they and others read of both servers.
package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Inspect is the command inspect.
func Inspect(a *app.State) *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show the holder, fence and open transactions of a resource",
		ArgsUsage: "RESOURCE",
		Description: `Reads Redis and Postgres and changes nothing. The notes at the end say who
can write now, and whether Redis has lost data. It looks in every namespace
that Redis has, and names those that have the resource too. If one server
does not answer, it shows what the other knows; the exit code is 1 then. If
programs publish events (see watch), it shows the last renewal with its TTL,
and the last refusals. Otherwise the renewal is worked out: Redis remembers
a token for lease.Config.FenceRetention from then on, if that is its default.
For a semaphore it shows who holds the permits.

   fencedb inspect table:12`,
		Action: conn.TimedAction(a, conn.Both|conn.Halves, nil, inspect),
	}
}

func inspect(ctx context.Context, s *conn.Servers) (term.Report, error) {
	var events fromFeed
	if s.RedisAway == nil { // first, so that the ledger has what it says
		if events, s.RedisAway = readFeed(ctx, s, s.Argument); s.RedisAway != nil {
			s.RedisAway = fmt.Errorf("redis: the feed: %w", s.RedisAway)
		}
	}
	found, err := Read(ctx, s, s.Argument)
	if err != nil {
		return nil, err
	}
	found.Refusals, found.proven = events.refusals, max(found.proven, events.proven)
	found.feedReplaced = events.replaced
	if h := found.Holder; h != nil && events.renewal.token == h.Token {
		found.Renewal = found.dated(events.renewal)
	} else {
		found.Renewal = found.workOutRenewal()
	}
	found.Notes = found.conclude()
	if err := s.Away(); err != nil {
		return nil, errors.Join(s.Show(found), fmt.Errorf("this is only what the other server knows: %w", err))
	}
	return found, nil
}

// Inspection is the state of one resource in both servers.
type Inspection struct {
	Resource        string             `json:"resource"`
	Holder          *Holder            `json:"holder"`
	Renewal         *renewal           `json:"renewal"` // nil: no program publishes it, and it cannot be worked out
	Waiters         int                `json:"waiters"`
	Semaphore       *Permits           `json:"semaphore"`         // of the same name; nil: Redis knows none
	LastToken       *int64             `json:"last_token"`        // in Redis
	RememberedForMS *int64             `json:"remembered_for_ms"` // by Redis, for how much longer
	Revoked         *uuid.UUID         `json:"revoked_lease_id"`  // in the last minute or so
	RevokedTo       int64              `json:"-"`                 // by that revocation
	proven          int64              // the highest token that is known to have entered, or to be a revocation's
	floor           int64              // of new tokens, if the last one is below the fence
	readAt          time.Time          // when Redis told, by its clock and at the latest
	within          time.Duration      // give or take: it is how long the answer took, and how well its clock is known
	heldFor         time.Duration      // by the holder until readAt; 0: its token does not tell
	Fence           *fence             `json:"fence"` // in Postgres
	Transactions    []conn.Transaction `json:"transactions"`
	Refusals        []Refused          `json:"refusals"` // newest first; nil: no program publishes events
	feedReplaced    bool
	standby         bool       // Postgres is one
	Elsewhere       []Location `json:"elsewhere"` // nil: not found out, for the reason unsearched
	Unsearched      error      `json:"-"`
	Namespace       string     `json:"-"`
	Missing         []Missing  `json:"missing"` // servers that have not told their half
	Notes           []Note     `json:"notes"`
}

// Missing is a server that has not told its half, and why.
type Missing struct {
	Server string `json:"server"`
	Error  string `json:"error"`
}

// Lacks returns why the server has not told its half, or "".
func (r *Inspection) Lacks(server string) string {
	for _, m := range r.Missing {
		if m.Server == server {
			return m.Error
		}
	}
	return ""
}

// Read reads Redis first, so that the fence is never older than the lease it is compared with. What
// a server does not tell is missing, for a reason that the servers have then; the error is one of
// usage.
func Read(ctx context.Context, s *conn.Servers, resource string) (*Inspection, error) {
	if err := protocol.CheckRequired("resource", resource, "table:12", protocol.MaxResource); err != nil {
		return nil, app.UsageError("%w", err)
	}
	found := &Inspection{Resource: resource, Namespace: s.Names.Namespace, standby: s.Standby,
		Transactions: []conn.Transaction{}, Missing: []Missing{}}
	if s.RedisAway == nil {
		asked := time.Now()
		var known lease.Inspection
		if known, s.RedisAway = s.Issuer.Inspect(ctx, resource); s.RedisAway == nil {
			found.within = time.Since(asked) + s.Ahead.RedisWithin
			addRedis(s, found, known)
			found.Semaphore, s.RedisAway = readPermits(ctx, s.Ahead, s.Semaphore, resource)
		}
	}
	if s.PostgresAway == nil {
		if found.Fence, s.PostgresAway = readFence(ctx, s.Pool, resource); s.PostgresAway == nil {
			found.Transactions, s.PostgresAway = conn.Transactions(ctx, s.Pool, resource)
		}
	}
	if s.RedisAway == nil {
		if app.Value(found.LastToken) < app.Value(found.Fence).Token {
			health, _ := s.Issuer.Check(ctx) // a server that is unfit has a clock too
			found.floor = Floor(health.Servers)
		}
		var locations map[string][]Location
		if locations, found.Unsearched = Search(ctx, s, resource); found.Unsearched == nil {
			found.Elsewhere = append([]Location{}, locations[resource]...)
		}
		// Nobody may hold a semaphore now; then it is known by the counter that the search has found.
		idle := Location{Namespace: s.Names.Namespace, Kind: protocol.SemaphoreKind, Hashed: s.Names.Hashed}
		if n := slices.Index(found.Elsewhere, idle); n >= 0 {
			found.Elsewhere = slices.Delete(found.Elsewhere, n, n+1)
		} else if found.Semaphore != nil && len(found.Semaphore.Permits)+found.Semaphore.Waiters == 0 {
			found.Semaphore = nil
		}
	}
	if s.RedisAway != nil {
		found.Missing = append(found.Missing, Missing{"redis", app.InWords(s.RedisAway)})
	}
	if s.PostgresAway != nil {
		found.Missing = append(found.Missing, Missing{"postgres", app.InWords(s.PostgresAway)})
	}
	found.Notes = found.conclude()
	return found, nil
}

// Floor is what a new token is at least: the clock of Redis, of several servers the slowest one's.
// It is 0 if none has told it.
func Floor(servers []lease.ServerHealth) (least int64) {
	for _, s := range servers {
		if at := time.Now().Add(s.Clock).UnixMicro(); s.RoundTrip > 0 && (least == 0 || at < least) {
			least = at
		}
	}
	return least
}

// addRedis adds what Redis knows.
func addRedis(s *conn.Servers, r *Inspection, known lease.Inspection) {
	remembered := known.RememberedFor.Milliseconds()
	r.Waiters = known.Waiters
	r.LastToken = app.Optional(known.LastToken, known.LastToken > 0)
	r.RememberedForMS = app.Optional(remembered, remembered >= 0)
	r.Revoked = app.Optional(known.Revoked, known.Revoked != uuid.Nil)
	r.RevokedTo, r.proven = known.RevokedTo, known.RevokedTo
	r.readAt = time.Now().Add(s.Ahead.Redis).UTC()
	if r.Holder = holderOf(s.Ahead, known); r.Holder != nil && r.Holder.IssuedAt != nil {
		r.heldFor = max(0, r.readAt.Sub(*r.Holder.IssuedAt))
	}
}

// dated is the last renewal, of which the events tell the TTL, dated by when the lease ends in
// Redis: the last events may have been dropped.
func (r *Inspection) dated(last renewal) *renewal {
	ttl, left := time.Duration(last.TTLMS)*time.Millisecond, time.Duration(r.Holder.ExpiresInMS)*time.Millisecond
	since, held := max(0, ttl-left), r.heldFor
	if held == 0 { // the token does not tell
		held = time.Since(last.At)
	}
	// A renewal comes after a third of the TTL; the events' TTL is less than Redis's by a margin.
	const part = 5
	if last.First = last.First && since >= held-r.within-ttl/part; last.First {
		since = held
	}
	last.At = r.readAt.Add(-since)
	return &last
}

// workOutRenewal finds the last renewal by how long Redis still remembers the token: each grant and
// renewal sets that to FenceRetention. nil if it cannot be the default: that is longer ago than the
// grant, or has not been yet.
func (r *Inspection) workOutRenewal() *renewal {
	if r.heldFor == 0 || app.Value(r.LastToken) != r.Holder.Token || r.RememberedForMS == nil {
		return nil
	}
	since := protocol.FenceRetention - time.Duration(*r.RememberedForMS)*time.Millisecond
	const about = 100 * time.Millisecond
	if since < 0 || since > r.heldFor+r.within+about {
		return nil
	}
	return &renewal{At: r.readAt.Add(-since), TTLMS: since.Milliseconds() + r.Holder.ExpiresInMS,
		First: since > r.heldFor-r.within-about, Assumed: true}
}

// Print implements [term.Report].
func (r *Inspection) Print(p term.Page) {
	facts := [][2]string{
		{"RESOURCE", term.Visible(r.Resource)},
		{"HOLDER", r.holds(p)},
		{"WAITING", r.known("redis", fmt.Sprint(r.Waiters))},
		{"REDIS", r.known("redis", r.counter())},
		{"LEDGER", r.known("postgres", r.Fence.text(p))},
	}
	if r.IsSemaphore() {
		facts = facts[:1]
	}
	if r.Semaphore != nil {
		facts = append(facts, [2]string{"SEMAPHORE", r.Semaphore.text()})
	}
	p.Facts(facts...)
	app.Value(r.Semaphore).Print(p)
	term.List(p, []string{"PID", "APPLICATION", "STATE", "OPEN FOR", "USER", "CLIENT", "WAITS FOR"}, r.Transactions, func(t conn.Transaction) []string {
		return []string{fmt.Sprint(t.PID), term.Visible(t.Application), term.Visible(t.State), t.OpenFor(),
			term.Visible(t.User), t.Client, t.WaitsFor}
	})
	term.List(p, []string{"ALSO IN NAMESPACE", "KIND", "HASHED", "LAST TOKEN", "HOLDER"}, r.Elsewhere, func(e Location) []string {
		who := "nobody"
		if e.Kind != protocol.LeaseKind {
			who = "see --namespace"
		} else if e.Holder != nil {
			who = e.Holder.Name()
		}
		return []string{cmp.Or(term.Visible(e.Namespace), "(none)"), e.Kind, fmt.Sprint(e.Hashed), term.TokenText(app.Value(e.LastToken)), who}
	})
	term.List(p, []string{"REFUSED", "WORKER", "CARRIED", "STORED"}, r.Refusals, func(w Refused) []string {
		return []string{term.Ago(time.Since(w.At)), term.Visible(w.Worker), fmt.Sprint(w.Token), fmt.Sprint(w.Stored)}
	})
	if len(r.Notes) > 0 {
		fmt.Fprintln(p.Out)
	}
	for _, n := range r.Notes {
		p.Point("%s", n.Text)
	}
}

// known is a text, if the server has told what is in it.
func (r *Inspection) known(server, text string) string {
	if r.Lacks(server) != "" {
		return "not known"
	}
	return text
}

func (r *Inspection) holds(p term.Page) string {
	h := r.Holder
	switch {
	case r.Lacks("redis") != "":
		return "not known"
	case h == nil && len(r.Elsewhere) > 0:
		return "nobody " + app.InNamespace(r.Namespace)
	case h == nil:
		return "nobody"
	}
	text := fmt.Sprintf("token %d", h.Token)
	if h.Label != "" {
		text = term.Visible(h.Label) + "\n" + text
	}
	if h.IssuedAt != nil {
		text += ", for " + h.age(p)
	}
	text += fmt.Sprintf(", ends in %s unless renewed", term.Millis(h.ExpiresInMS))
	if r.Renewal != nil {
		text += "\n" + r.Renewal.text(p)
	}
	return text + "\nlease " + h.LeaseID.String()
}

func (r *Inspection) counter() string {
	if r.LastToken == nil {
		return "knows no token"
	}
	text := fmt.Sprintf("last token %d", *r.LastToken)
	if r.RememberedForMS != nil {
		text += ", remembered for " + term.Millis(*r.RememberedForMS)
	}
	return text
}

// Note is a conclusion from the inspection. Its code is for programs and does not change.
type Note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// conclude says who can write now, and what else follows.
func (r *Inspection) conclude() []Note {
	notes := []Note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, Note{code, fmt.Sprintf(format, args...)})
	}
	if r.Semaphore != nil {
		add("semaphore", "A permit of the semaphore does not fence: nothing keeps its holder from writing but its own look at its context. fencedb revoke --permit ends one.")
	}
	if !r.IsSemaphore() && r.whoCanWrite(add) {
		r.whatRedisKnows(add)
	}
	if r.feedReplaced {
		add("feed_unreadable", "Renewals and refusals are not known: "+feedReplaced, app.InNamespace(r.Namespace))
	}
	return notes
}

// adding adds a note.
type adding = func(code, format string, args ...any)

// whoCanWrite compares the holder with the fence. It answers false where there is nothing more to
// say.
func (r *Inspection) whoCanWrite(add adding) bool {
	others := Rivals(r.Elsewhere)
	here, nobodyElse := "", "nobody else can write to protected tables"
	if len(others) > 0 {
		here, nobodyElse = " "+app.InNamespace(r.Namespace), "it can write to protected tables"
	}
	former := fmt.Sprintf("token %d or a higher one", app.Value(r.Fence).Token)
	if app.Value(r.Fence).revoked || app.Value(r.Fence).reset { // then the token itself is nobody's
		former = fmt.Sprintf("a token above %d", r.Fence.Token)
	}
	if r.Fence == nil {
		former = "any token"
	}
	since := ""
	if r.heldFor > 0 {
		since = ", in the " + term.Span(r.heldFor) + " that the holder has held"
	}
	switch {
	case r.Lacks("redis") != "" && !app.Value(r.Fence).TooHigh:
		add("redis_away", "Redis has not told who holds it. Whoever has a lease with %s can write to protected tables; fencedb revoke --seal-only shuts those out whose token is not ahead of Postgres's clock.", former)
		return false
	case r.Lacks("postgres") != "":
		add("postgres_away", "Postgres has not told its fence. Whether the holder is current, and whether an earlier one can write, is not known.")
		return false
	case r.Holder == nil && r.Fence == nil && r.LastToken == nil:
	case r.Holder == nil && r.Fence == nil:
		add("old_holder_may_write", "Nobody holds it%s, and no token has entered. As after every lease, a former holder could still write to protected tables until the next holder enters; fencedb revoke rules that out.", here)
	case app.Value(r.Fence).TooHigh:
		add("fence_too_high", "Nobody can write to protected tables: the fence is at the highest token that there is, or above, so no lease gets past it. fencedb reset sets it back.")
		return false
	case r.Holder == nil && r.Fence.reset:
		add("fence_reset", "Nobody holds it%s, and its fence was set back: any former holder with %s could still write to protected tables; fencedb revoke rules that out.", here, former)
	case r.Holder == nil && r.Fence.revoked && r.LastToken != nil && *r.LastToken <= r.Fence.Token:
		add("revoked_and_sealed", "Nobody holds it%[1]s, and the last one was revoked: no former holder%[1]s can write to protected tables.", here)
	case r.Holder == nil:
		add("old_holder_may_write", "Nobody holds it%s. As after every lease, a former holder with %s could still write to protected tables until the next holder enters; fencedb revoke rules that out.", here, former)
	case r.Fence == nil:
		add("not_entered", "No transaction has entered with a token yet%s: an earlier holder could still write to protected tables, until this one writes or is sealed.", since)
	case r.Holder.Token < r.Fence.Token:
		add("stale_holder", "The holder is stale: token %d has entered since, so every write of the holder to protected tables is refused.", r.Fence.Token)
	case r.Holder.Token == r.Fence.Token && r.Holder.LeaseID != r.Fence.LeaseID:
		add("stale_holder", "The holder is stale: another lease entered with the same token, so every write of the holder to protected tables is refused.")
	case r.Holder.Token > r.Fence.Token:
		add("not_entered", "The holder has not entered yet%s: an earlier one with %s could still write to protected tables, until the holder writes or is sealed.", since, former)
	default:
		add("current", "The holder is current: %s.", nobodyElse)
	}
	return true
}

// issued tells whether a token came from a location, as far as that is known.
func issued(token int64) func(Location) bool {
	return func(p Location) bool { return app.Value(p.LastToken) >= token }
}

// whatRedisKnows adds what its namespaces and its last token tell about the fence.
func (r *Inspection) whatRedisKnows(add adding) {
	others := Rivals(r.Elsewhere)
	for _, other := range others {
		proof := "If its programs write to this database, two hold at once"
		if r.Fence != nil && r.Fence.Token == other.Holder.Token && r.Fence.LeaseID == other.Holder.LeaseID {
			proof = "The fence is its own, so its programs write to this database, and two hold at once where somebody holds it here"
		}
		add("held_elsewhere", "%s holds it %s, with token %d. %s: each shuts the other out when it enters. See docs/runbook/writes.md, two namespaces overtake each other.",
			other.Holder.Name(), app.InNamespace(other.Namespace), other.Holder.Token, proof)
	}
	switch fence := app.Value(r.Fence); {
	case fence.Foreign:
	case fence.Token > max(app.Value(r.LastToken), r.floor) && slices.ContainsFunc(r.Elsewhere, issued(fence.Token)):
		add("redis_behind", "The counter of this namespace is behind the ledger, and that of another is not: the fence may be from there. New tokens from here are refused until they are above %d.", fence.Token)
	case fence.Token > max(app.Value(r.LastToken), r.floor):
		add("redis_behind", "Redis is behind the ledger: it has lost data or its clock went back. New tokens are refused until its counter is above %d; a sealed acquisition and package guard raise it by themselves, and so does fencedb revoke.", fence.Token)
	case r.IsKnown() || len(others) > 0:
	case len(r.Elsewhere) > 0:
		add("known_elsewhere", "Redis does not know it here, but %s: check both flags.", Describe(r.Elsewhere))
	case r.Unsearched != nil:
		add("unknown_to_redis", "Redis does not know it here.")
	case r.Fence == nil:
		add("unknown_to_redis", "Neither server knows it, and Redis has it in no other namespace: see that its name is right.")
	default:
		add("unknown_to_redis", "Redis does not know it, in no namespace: it forgets a token that is not renewed for lease.Config.FenceRetention, it has lost its data, or the token came from elsewhere.")
	}
	if r.Unsearched != nil {
		add("not_searched", "Whether it is in another namespace too was not found out: %s.", app.InWords(r.Unsearched))
	}
	if fence := app.Value(r.Fence); r.proven > fence.Token && !fence.Foreign && !fence.setBack {
		if r.standby {
			add("standby_behind", "Token %d of it has entered or was revoked, and this standby does not have that: not yet, or Postgres has lost it. Ask the primary.", r.proven)
		} else {
			add("seal_missing", "Token %d of it has entered or was revoked, and the ledger does not have that: Postgres has lost it, in a fail-over or when it was restored, or the revocation was not sealed. fencedb revoke --behind shuts former holders out.", r.proven)
		}
	}
	if len(r.Transactions) > 0 && r.Fence != nil && r.Holder == nil && len(others) == 0 {
		add("kept_without_lease", "Nobody holds a lease, and the fence is kept by %s: whoever acquires waits for that. If it is ended, nothing of it is written.", r.Transactions[0].Name())
	}
	if r.Fence == nil && len(r.Transactions) > 0 {
		add("transactions_uncertain", "There is no fence to look at, so the transactions are all that are changing the ledger, for this resource or another.")
	}
	if r.Revoked != nil && app.Value(r.Holder).LeaseID != *r.Revoked {
		add("revoked", "An earlier lease, %s, was revoked in the last minute or so.", *r.Revoked)
	}
}

// IsSemaphore reports whether Redis knows the resource as a semaphore, and nothing knows a lease.
func (r *Inspection) IsSemaphore() bool {
	return r.Semaphore != nil && !r.IsKnown() && r.Fence == nil
}

// IsKnown reports whether Redis knows the resource as one of leases.
func (r *Inspection) IsKnown() bool { return r.Holder != nil || r.LastToken != nil || r.Revoked != nil }
