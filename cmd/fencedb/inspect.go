package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

func (a *app) inspect() *cli.Command {
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
		Action: a.read(onBoth|halves, nil, func(ctx context.Context, s *servers) (report, error) {
			var events fromFeed
			if s.redisAway == nil { // first, so that the ledger has what it says
				if events, s.redisAway = s.readFeed(ctx, a.argument); s.redisAway != nil {
					s.redisAway = fmt.Errorf("redis: the feed: %w", s.redisAway)
				}
			}
			found, err := s.look(ctx, a.argument)
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
			if err := s.away(); err != nil {
				return nil, errors.Join(s.show(found), fmt.Errorf("this is only what the other server knows: %w", err))
			}
			return found, nil
		}),
	}
}

// inspection is the state of one resource in both servers.
type inspection struct {
	Resource        string        `json:"resource"`
	Holder          *holder       `json:"holder"`
	Renewal         *renewal      `json:"renewal"` // nil: no program publishes it, and it cannot be worked out
	Waiters         int           `json:"waiters"`
	Semaphore       *permits      `json:"semaphore"`         // of the same name; nil: Redis knows none
	LastToken       *int64        `json:"last_token"`        // in Redis
	RememberedForMS *int64        `json:"remembered_for_ms"` // by Redis, for how much longer
	Revoked         *uuid.UUID    `json:"revoked_lease_id"`  // in the last minute or so
	revokedTo       int64         // by that revocation
	proven          int64         // the highest token that is known to have entered, or to be a revocation's
	floor           int64         // of new tokens, if the last one is below the fence
	readAt          time.Time     // when Redis told, by its clock and at the latest
	within          time.Duration // give or take: it is how long the answer took, and how well its clock is known
	heldFor         time.Duration // by the holder until readAt; 0: its token does not tell
	Fence           *fence        `json:"fence"` // in Postgres
	Transactions    []transaction `json:"transactions"`
	Refusals        []refused     `json:"refusals"` // newest first; nil: no program publishes events
	feedReplaced    bool
	standby         bool       // Postgres is one
	Elsewhere       []location `json:"elsewhere"` // nil: not found out, for the reason unsearched
	unsearched      error
	namespace       string
	Missing         []missing `json:"missing"` // servers that have not told their half
	Notes           []note    `json:"notes"`
}

// missing is a server that has not told its half, and why.
type missing struct {
	Server string `json:"server"`
	Error  string `json:"error"`
}

// lacks returns why the server has not told its half, or "".
func (r *inspection) lacks(server string) string {
	for _, m := range r.Missing {
		if m.Server == server {
			return m.Error
		}
	}
	return ""
}

// look reads Redis first, so that the fence is never older than the lease it is compared with. What
// a server does not tell is missing, for a reason that the servers have then; the error is one of
// usage.
func (s *servers) look(ctx context.Context, resource string) (*inspection, error) {
	if err := protocol.CheckRequired("resource", resource, "table:12", protocol.MaxResource); err != nil {
		return nil, usage("%w", err)
	}
	found := &inspection{Resource: resource, namespace: s.names.namespace, standby: s.standby,
		Transactions: []transaction{}, Missing: []missing{}}
	if s.redisAway == nil {
		asked := time.Now()
		var known lease.Inspection
		if known, s.redisAway = s.issuer.Inspect(ctx, resource); s.redisAway == nil {
			found.within = time.Since(asked) + s.ahead.redisWithin
			s.add(found, known)
			found.Semaphore, s.redisAway = s.ahead.readPermits(ctx, s.semaphore, resource)
		}
	}
	if s.postgresAway == nil {
		if found.Fence, s.postgresAway = readFence(ctx, s.pool, resource); s.postgresAway == nil {
			found.Transactions, s.postgresAway = readTransactions(ctx, s.pool, resource)
		}
	}
	if s.redisAway == nil {
		if value(found.LastToken) < value(found.Fence).Token {
			health, _ := s.issuer.Check(ctx) // a server that is unfit has a clock too
			found.floor = floor(health.Servers)
		}
		var locations map[string][]location
		if locations, found.unsearched = s.search(ctx, resource); found.unsearched == nil {
			found.Elsewhere = append([]location{}, locations[resource]...)
		}
		// Nobody may hold a semaphore now; then it is known by the counter that the search has found.
		idle := location{Namespace: s.names.namespace, Kind: protocol.SemaphoreKind, Hashed: s.names.hashed}
		if n := slices.Index(found.Elsewhere, idle); n >= 0 {
			found.Elsewhere = slices.Delete(found.Elsewhere, n, n+1)
		} else if found.Semaphore != nil && len(found.Semaphore.Permits)+found.Semaphore.Waiters == 0 {
			found.Semaphore = nil
		}
	}
	if s.redisAway != nil {
		found.Missing = append(found.Missing, missing{"redis", inWords(s.redisAway)})
	}
	if s.postgresAway != nil {
		found.Missing = append(found.Missing, missing{"postgres", inWords(s.postgresAway)})
	}
	found.Notes = found.conclude()
	return found, nil
}

// floor is what a new token is at least: the clock of Redis, of several servers the slowest one's.
// It is 0 if none has told it.
func floor(servers []lease.ServerHealth) (least int64) {
	for _, s := range servers {
		if at := time.Now().Add(s.Clock).UnixMicro(); s.RoundTrip > 0 && (least == 0 || at < least) {
			least = at
		}
	}
	return least
}

// add adds what Redis knows.
func (s *servers) add(r *inspection, known lease.Inspection) {
	remembered := known.RememberedFor.Milliseconds()
	r.Waiters = known.Waiters
	r.LastToken = optional(known.LastToken, known.LastToken > 0)
	r.RememberedForMS = optional(remembered, remembered >= 0)
	r.Revoked = optional(known.Revoked, known.Revoked != uuid.Nil)
	r.revokedTo, r.proven = known.RevokedTo, known.RevokedTo
	r.readAt = time.Now().Add(s.ahead.redis).UTC()
	if r.Holder = s.ahead.holder(known); r.Holder != nil && r.Holder.IssuedAt != nil {
		r.heldFor = max(0, r.readAt.Sub(*r.Holder.IssuedAt))
	}
}

// dated is the last renewal, of which the events tell the TTL, dated by when the lease ends in
// Redis: the last events may have been dropped.
func (r *inspection) dated(last renewal) *renewal {
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
func (r *inspection) workOutRenewal() *renewal {
	if r.heldFor == 0 || value(r.LastToken) != r.Holder.Token || r.RememberedForMS == nil {
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

func (r *inspection) print(p page) {
	facts := [][2]string{
		{"RESOURCE", visible(r.Resource)},
		{"HOLDER", r.holds(p)},
		{"WAITING", r.known("redis", fmt.Sprint(r.Waiters))},
		{"REDIS", r.known("redis", r.counter())},
		{"LEDGER", r.known("postgres", r.Fence.text(p))},
	}
	if r.isSemaphore() {
		facts = facts[:1]
	}
	if r.Semaphore != nil {
		facts = append(facts, [2]string{"SEMAPHORE", r.Semaphore.text()})
	}
	p.facts(facts...)
	value(r.Semaphore).print(p)
	list(p, []string{"PID", "APPLICATION", "STATE", "OPEN FOR", "USER", "CLIENT", "WAITS FOR"}, r.Transactions, func(t transaction) []string {
		return []string{fmt.Sprint(t.PID), visible(t.Application), visible(t.State), t.openFor(),
			visible(t.User), t.Client, t.WaitsFor}
	})
	list(p, []string{"ALSO IN NAMESPACE", "KIND", "HASHED", "LAST TOKEN", "HOLDER"}, r.Elsewhere, func(e location) []string {
		who := "nobody"
		if e.Kind != protocol.LeaseKind {
			who = "see --namespace"
		} else if e.Holder != nil {
			who = e.Holder.name()
		}
		return []string{cmp.Or(visible(e.Namespace), "(none)"), e.Kind, fmt.Sprint(e.Hashed), tokenText(value(e.LastToken)), who}
	})
	list(p, []string{"REFUSED", "WORKER", "CARRIED", "STORED"}, r.Refusals, func(w refused) []string {
		return []string{ago(time.Since(w.At)), visible(w.Worker), fmt.Sprint(w.Token), fmt.Sprint(w.Stored)}
	})
	if len(r.Notes) > 0 {
		fmt.Fprintln(p.out)
	}
	for _, n := range r.Notes {
		p.point("%s", n.Text)
	}
}

// known is a text, if the server has told what is in it.
func (r *inspection) known(server, text string) string {
	if r.lacks(server) != "" {
		return "not known"
	}
	return text
}

func (r *inspection) holds(p page) string {
	h := r.Holder
	switch {
	case r.lacks("redis") != "":
		return "not known"
	case h == nil && len(r.Elsewhere) > 0:
		return "nobody " + inNamespace(r.namespace)
	case h == nil:
		return "nobody"
	}
	text := fmt.Sprintf("token %d", h.Token)
	if h.Label != "" {
		text = visible(h.Label) + "\n" + text
	}
	if h.IssuedAt != nil {
		text += ", for " + h.age(p)
	}
	text += fmt.Sprintf(", ends in %s unless renewed", millis(h.ExpiresInMS))
	if r.Renewal != nil {
		text += "\n" + r.Renewal.text(p)
	}
	return text + "\nlease " + h.LeaseID.String()
}

func (r *inspection) counter() string {
	if r.LastToken == nil {
		return "knows no token"
	}
	text := fmt.Sprintf("last token %d", *r.LastToken)
	if r.RememberedForMS != nil {
		text += ", remembered for " + millis(*r.RememberedForMS)
	}
	return text
}

// note is a conclusion from the inspection. Its code is for programs and does not change.
type note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// conclude says who can write now, and what else follows.
func (r *inspection) conclude() []note {
	notes := []note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, note{code, fmt.Sprintf(format, args...)})
	}
	if r.Semaphore != nil {
		add("semaphore", "A permit of the semaphore does not fence: nothing keeps its holder from writing but its own look at its context. fencedb revoke --permit ends one.")
	}
	if !r.isSemaphore() && r.whoCanWrite(add) {
		r.whatRedisKnows(add)
	}
	if r.feedReplaced {
		add("feed_unreadable", "Renewals and refusals are not known: "+feedReplaced, inNamespace(r.namespace))
	}
	return notes
}

// adding adds a note.
type adding = func(code, format string, args ...any)

// whoCanWrite compares the holder with the fence. It answers false where there is nothing more to
// say.
func (r *inspection) whoCanWrite(add adding) bool {
	others := rivals(r.Elsewhere)
	here, nobodyElse := "", "nobody else can write to protected tables"
	if len(others) > 0 {
		here, nobodyElse = " "+inNamespace(r.namespace), "it can write to protected tables"
	}
	former := fmt.Sprintf("token %d or a higher one", value(r.Fence).Token)
	if value(r.Fence).revoked || value(r.Fence).reset { // then the token itself is nobody's
		former = fmt.Sprintf("a token above %d", r.Fence.Token)
	}
	if r.Fence == nil {
		former = "any token"
	}
	since := ""
	if r.heldFor > 0 {
		since = ", in the " + span(r.heldFor) + " that the holder has held"
	}
	switch {
	case r.lacks("redis") != "" && !value(r.Fence).tooHigh:
		add("redis_away", "Redis has not told who holds it. Whoever has a lease with %s can write to protected tables; fencedb revoke --seal-only shuts those out whose token is not ahead of Postgres's clock.", former)
		return false
	case r.lacks("postgres") != "":
		add("postgres_away", "Postgres has not told its fence. Whether the holder is current, and whether an earlier one can write, is not known.")
		return false
	case r.Holder == nil && r.Fence == nil && r.LastToken == nil:
	case r.Holder == nil && r.Fence == nil:
		add("old_holder_may_write", "Nobody holds it%s, and no token has entered. As after every lease, a former holder could still write to protected tables until the next holder enters; fencedb revoke rules that out.", here)
	case value(r.Fence).tooHigh:
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
func issued(token int64) func(location) bool {
	return func(p location) bool { return value(p.LastToken) >= token }
}

// whatRedisKnows adds what its namespaces and its last token tell about the fence.
func (r *inspection) whatRedisKnows(add adding) {
	others := rivals(r.Elsewhere)
	for _, other := range others {
		proof := "If its programs write to this database, two hold at once"
		if r.Fence != nil && r.Fence.Token == other.Holder.Token && r.Fence.LeaseID == other.Holder.LeaseID {
			proof = "The fence is its own, so its programs write to this database, and two hold at once where somebody holds it here"
		}
		add("held_elsewhere", "%s holds it %s, with token %d. %s: each shuts the other out when it enters. See docs/runbook/writes.md, two namespaces overtake each other.",
			other.Holder.name(), inNamespace(other.Namespace), other.Holder.Token, proof)
	}
	switch fence := value(r.Fence); {
	case fence.foreign:
	case fence.Token > max(value(r.LastToken), r.floor) && slices.ContainsFunc(r.Elsewhere, issued(fence.Token)):
		add("redis_behind", "The counter of this namespace is behind the ledger, and that of another is not: the fence may be from there. New tokens from here are refused until they are above %d.", fence.Token)
	case fence.Token > max(value(r.LastToken), r.floor):
		add("redis_behind", "Redis is behind the ledger: it has lost data or its clock went back. New tokens are refused until its counter is above %d; a sealed acquisition and package guard raise it by themselves, and so does fencedb revoke.", fence.Token)
	case r.isKnown() || len(others) > 0:
	case len(r.Elsewhere) > 0:
		add("known_elsewhere", "Redis does not know it here, but %s: check both flags.", described(r.Elsewhere))
	case r.unsearched != nil:
		add("unknown_to_redis", "Redis does not know it here.")
	case r.Fence == nil:
		add("unknown_to_redis", "Neither server knows it, and Redis has it in no other namespace: see that its name is right.")
	default:
		add("unknown_to_redis", "Redis does not know it, in no namespace: it forgets a token that is not renewed for lease.Config.FenceRetention, it has lost its data, or the token came from elsewhere.")
	}
	if r.unsearched != nil {
		add("not_searched", "Whether it is in another namespace too was not found out: %s.", inWords(r.unsearched))
	}
	if fence := value(r.Fence); r.proven > fence.Token && !fence.foreign && !fence.setBack {
		if r.standby {
			add("standby_behind", "Token %d of it has entered or was revoked, and this standby does not have that: not yet, or Postgres has lost it. Ask the primary.", r.proven)
		} else {
			add("seal_missing", "Token %d of it has entered or was revoked, and the ledger does not have that: Postgres has lost it, in a fail-over or when it was restored, or the revocation was not sealed. fencedb revoke --behind shuts former holders out.", r.proven)
		}
	}
	if len(r.Transactions) > 0 && r.Fence != nil && r.Holder == nil && len(others) == 0 {
		add("kept_without_lease", "Nobody holds a lease, and the fence is kept by %s: whoever acquires waits for that. If it is ended, nothing of it is written.", r.Transactions[0].name())
	}
	if r.Fence == nil && len(r.Transactions) > 0 {
		add("transactions_uncertain", "There is no fence to look at, so the transactions are all that are changing the ledger, for this resource or another.")
	}
	if r.Revoked != nil && value(r.Holder).LeaseID != *r.Revoked {
		add("revoked", "An earlier lease, %s, was revoked in the last minute or so.", *r.Revoked)
	}
}

// isSemaphore reports whether Redis knows the resource as a semaphore, and nothing knows a lease.
func (r *inspection) isSemaphore() bool {
	return r.Semaphore != nil && !r.isKnown() && r.Fence == nil
}

// isKnown reports whether Redis knows the resource as one of leases.
func (r *inspection) isKnown() bool { return r.Holder != nil || r.LastToken != nil || r.Revoked != nil }
