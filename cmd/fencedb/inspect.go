package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

func (a *app) inspect() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show the holder, fence and open transactions of a resource",
		ArgsUsage: "RESOURCE",
		Description: `Reads Redis and Postgres and changes nothing. The notes at the end say who
can write now, and whether Redis has lost data. It shows the last refusals
if programs publish events (see watch). Of a semaphore, fencedb leases shows
who has its permits.

   fencedb inspect table:12`,
		Action: a.read(onBoth, nil, func(ctx context.Context, s *servers) (report, error) {
			found, err := s.look(ctx, a.argument)
			if err == nil {
				err = s.lookAround(ctx, found)
			}
			return found, err
		}),
	}
}

// inspection is the state of one resource in both servers.
type inspection struct {
	Resource        string        `json:"resource"`
	Holder          *holder       `json:"holder"`
	Waiters         int           `json:"waiters"`
	LastToken       *int64        `json:"last_token"`        // in Redis
	RememberedForMS *int64        `json:"remembered_for_ms"` // by Redis, for how much longer
	Revoked         *uuid.UUID    `json:"revoked_lease_id"`  // in the last minute or so
	revokedTo       int64         // by that revocation
	floor           int64         // of new tokens, if the last one is below the fence
	Fence           *fence        `json:"fence"` // in Postgres
	Transactions    []transaction `json:"transactions"`
	Refusals        []refused     `json:"refusals"` // newest first; nil: no program publishes events
	Notes           []note        `json:"notes"`
}

// holder is a lease in Redis.
type holder struct {
	LeaseID     uuid.UUID  `json:"lease_id"`
	Token       int64      `json:"token"`
	IssuedAt    *time.Time `json:"issued_at"`
	ExpiresInMS int64      `json:"expires_in_ms"`
	Label       string     `json:"label"` // who holds, for people: lease.Config.Holder; "": not known
}

// look reads Redis first, so that the fence is never older than the lease it is compared with.
func (s *servers) look(ctx context.Context, resource string) (*inspection, error) {
	known, err := s.issuer.Inspect(ctx, resource)
	if errors.Is(err, lease.ErrInvalid) {
		return nil, usage("%w", err)
	}
	if err != nil {
		return nil, err
	}
	found := newInspection(known)
	if found.Fence, err = readFence(ctx, s.pool, resource); err != nil {
		return nil, err
	}
	if value(found.LastToken) < value(found.Fence).Token {
		health, _ := s.issuer.Check(ctx) // a server that is unfit has a clock too
		found.floor = floor(health.Servers)
	}
	rows, _ := s.pool.Query(ctx, `SELECT pid, application, state, open_ms
		FROM fencedb.blockers(ARRAY[$1::text]) ORDER BY open_ms DESC NULLS LAST`, resource)
	if found.Transactions, err = pgx.AppendRows([]transaction{}, rows, pgx.RowToStructByPos[transaction]); err != nil {
		return nil, explained(err)
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

func newInspection(known lease.Inspection) *inspection {
	remembered := known.RememberedFor.Milliseconds()
	found := &inspection{
		Resource: known.Resource, Waiters: known.Waiters,
		LastToken:       optional(known.LastToken, known.LastToken > 0),
		RememberedForMS: optional(remembered, remembered >= 0),
		Revoked:         optional(known.Revoked, known.Revoked != uuid.Nil),
		revokedTo:       known.RevokedTo,
	}
	if known.Token > 0 {
		found.Holder = &holder{known.Holder, known.Token, issuedAt(known.Token), known.ExpiresIn.Milliseconds(), known.Label}
	}
	return found
}

// optional is nil unless there is a value.
func optional[T any](value T, there bool) *T {
	if !there {
		return nil
	}
	return &value
}

// value is what is there, or zero.
func value[T any](there *T) (v T) {
	if there != nil {
		v = *there
	}
	return v
}

func (r *inspection) print(p page) {
	p.facts(
		[2]string{"RESOURCE", visible(r.Resource)},
		[2]string{"HOLDER", r.Holder.text(p)},
		[2]string{"WAITING", fmt.Sprint(r.Waiters)},
		[2]string{"REDIS", r.counter()},
		[2]string{"LEDGER", r.Fence.text(p)},
	)
	list(p, []string{"PID", "APPLICATION", "STATE", "OPEN FOR"}, r.Transactions, func(t transaction) []string {
		return []string{fmt.Sprint(t.PID), visible(t.Application), visible(t.State), t.openFor()}
	})
	list(p, []string{"REFUSED", "WORKER", "CARRIED", "STORED"}, r.Refusals, func(w refused) []string {
		return []string{p.since(w.At) + " ago", visible(w.Worker), fmt.Sprint(w.Token), fmt.Sprint(w.Stored)}
	})
	if len(r.Notes) > 0 {
		fmt.Fprintln(p.out)
	}
	for _, n := range r.Notes {
		p.point("%s", n.Text)
	}
}

func (h *holder) text(p page) string {
	if h == nil {
		return "nobody"
	}
	text := fmt.Sprintf("token %d", h.Token)
	if h.Label != "" {
		text = visible(h.Label) + "\n" + text
	}
	if h.IssuedAt != nil {
		text += ", for " + p.since(*h.IssuedAt)
	}
	return fmt.Sprintf("%s, ends in %s unless renewed\nlease %s", text, millis(h.ExpiresInMS), h.LeaseID)
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

func (f *fence) text(p page) string {
	if f == nil {
		return "no token has entered"
	}
	return fmt.Sprintf("token %d, entered %s ago\nlease %s", f.Token, p.since(f.EnteredAt), f.LeaseID)
}

// note is a conclusion from the inspection. Its code is for programs and does not change.
type note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// conclude compares the holder with the fence and says who can write now.
func (r *inspection) conclude() []note {
	notes := []note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, note{code, fmt.Sprintf(format, args...)})
	}
	former := fmt.Sprintf("token %d or a higher one", value(r.Fence).Token)
	if value(r.Fence).revoked || value(r.Fence).reset { // then the token itself is nobody's
		former = fmt.Sprintf("a token above %d", r.Fence.Token)
	}
	switch {
	case r.Holder == nil && r.Fence == nil && r.LastToken == nil:
	case r.Holder == nil && r.Fence == nil:
		add("old_holder_may_write", "Nobody holds it, and no token has entered. A former holder could still write to protected tables; fencedb revoke rules that out.")
	case value(r.Fence).tooHigh:
		add("fence_too_high", "Nobody can write to protected tables: the fence is at the highest token that there is, or above, so no lease gets past it. fencedb reset sets it back.")
		return notes
	case r.Holder == nil && r.Fence.reset:
		add("fence_reset", "Nobody holds it, and its fence was set back: any former holder with %s could still write to protected tables; fencedb revoke rules that out.", former)
	case r.Holder == nil && r.Fence.revoked && r.LastToken != nil && *r.LastToken <= r.Fence.Token:
		add("revoked_and_sealed", "Nobody holds it, and the last one was revoked: no former holder can write to protected tables.")
	case r.Holder == nil:
		add("old_holder_may_write", "Nobody holds it. A former holder with %s could still write to protected tables; fencedb revoke rules that out.", former)
	case r.Fence == nil:
		add("not_entered", "No transaction has entered with a token yet: an earlier holder could still write to protected tables, until this one writes or is sealed.")
	case r.Holder.Token < r.Fence.Token:
		add("stale_holder", "The holder is stale: token %d has entered since, so every write of the holder to protected tables is refused.", r.Fence.Token)
	case r.Holder.Token == r.Fence.Token && r.Holder.LeaseID != r.Fence.LeaseID:
		add("stale_holder", "The holder is stale: another lease entered with the same token, so every write of the holder to protected tables is refused.")
	case r.Holder.Token > r.Fence.Token:
		add("not_entered", "The holder has not entered yet: an earlier one with %s could still write to protected tables, until the holder writes or is sealed.", former)
	default:
		add("current", "The holder is current: nobody else can write to protected tables.")
	}
	switch fence := value(r.Fence); {
	case fence.foreign:
	case fence.Token > max(value(r.LastToken), r.floor):
		add("redis_behind", "Redis is behind the ledger: it has lost data or its clock went back. New tokens are refused until its counter is above %d; package guard raises it by itself, and so does fencedb revoke.", fence.Token)
	case r.known():
	case r.Fence == nil:
		add("unknown_to_redis", "Neither server knows it: see that its name is right, and --namespace.")
	default:
		add("unknown_to_redis", "Redis does not know it: nobody has acquired it for long, or --namespace is not that of the programs.")
	}
	if r.Fence == nil && len(r.Transactions) > 0 {
		add("transactions_uncertain", "There is no fence to look at, so the transactions are all that are changing the ledger, for this resource or another.")
	}
	if r.Revoked != nil && value(r.Holder).LeaseID != *r.Revoked {
		add("revoked", "An earlier lease, %s, was revoked in the last minute or so.", *r.Revoked)
	}
	return notes
}

// fence is a row of the ledger in Postgres.
type fence struct {
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`
	EnteredAt time.Time `json:"entered_at"`

	revoked bool // by a revocation, so no earlier holder is left
	reset   bool // by a reset, which lets holders above it in again
	tooHigh bool // no lease can pass it
	foreign bool // of another issuer
}

// SQL conditions on a fence f. No token of a foreign issuer is too high, because Redis does not
// issue it.
const (
	foreign = `EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(f.resource, ':', 1))`
	tooHigh = `(f.last_fencing_token >= 9007199254740991 AND NOT ` + foreign + `)`
)

// readFence returns nil if no token has entered yet.
func readFence(ctx context.Context, pool *pgxpool.Pool, resource string) (*fence, error) {
	var f fence
	err := pool.QueryRow(ctx, `
		SELECT f.last_fencing_token, f.lease_id::text, f.advanced_at, coalesce(a.event = 'revoke', false), coalesce(a.event = 'reset', false), `+tooHigh+`, `+foreign+`
		FROM fencedb.fences f LEFT JOIN fencedb.audit a
		  ON a.resource = f.resource AND a.event IN ('revoke', 'reset') AND a.details ->> 'lease_id' = f.lease_id::text
		WHERE f.resource = $1`, resource).
		Scan(&f.Token, &f.LeaseID, &f.EnteredAt, &f.revoked, &f.reset, &f.tooHigh, &f.foreign)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, explained(err)
	}
	f.EnteredAt = f.EnteredAt.UTC()
	return &f, nil
}

// transaction is an open transaction that holds a fence.
type transaction struct {
	PID         int    `json:"pid"`
	Application string `json:"application"`
	State       string `json:"state"`
	OpenMS      *int64 `json:"open_ms"` // nil: not visible; then State says to whom, and what to grant
}

func (t transaction) openFor() string {
	if t.OpenMS == nil {
		return "not visible"
	}
	return millis(*t.OpenMS)
}

// lookAround adds the refusals, which do not matter for who can write. It refuses a resource that
// nobody seems to hold because a flag is wrong, or because it is a semaphore.
func (s *servers) lookAround(ctx context.Context, found *inspection) (err error) {
	if found.Refusals, err = s.readRefusals(ctx, found.Resource); err != nil {
		return fmt.Errorf("redis: the feed: %w", err)
	}
	if found.known() {
		return nil
	}
	search, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	err = s.notElsewhere(search, found.Resource)
	if redis.IsPermissionError(err) || search.Err() != nil && ctx.Err() == nil {
		found.Notes = append(found.Notes, note{"not_searched", fmt.Sprintf(
			"Redis does not know this resource here. That it is in no other namespace was not found out: %v.", cmp.Or(search.Err(), err))})
		return nil
	}
	return err
}

// searchTime bounds a search in Redis that reads all keys.
const searchTime = 5 * time.Second

// known reports whether Redis knows the resource as one of leases.
func (r *inspection) known() bool { return r.Holder != nil || r.LastToken != nil || r.Revoked != nil }

// refused is a write with a stale token.
type refused struct {
	At     time.Time `json:"at"`
	Worker string    `json:"worker"`
	Token  int64     `json:"token"`
	Stored int64     `json:"stored"`
}

const mostRefusals = 5

// readRefusals reads the feed. It returns nil if no program publishes, or if permission to read was
// denied.
func (s *servers) readRefusals(ctx context.Context, resource string) ([]refused, error) {
	var found []refused
	digits := feed.Hashed(resource)
	err := feed.Replay(ctx, s.client, "0", func(e feed.Event) error {
		if found == nil {
			found = []refused{}
		}
		if e.Kind == feed.Refused && (e.Resource == resource || e.Resource == digits) {
			found = append(found, refused{e.At.UTC(), e.Worker, e.Token, e.Stored})
			found = found[max(0, len(found)-mostRefusals):]
		}
		return nil
	}, feed.Namespace(s.names.namespace))
	if redis.IsPermissionError(err) {
		return nil, nil
	}
	slices.Reverse(found)
	return found, err
}
