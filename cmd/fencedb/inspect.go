package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

func (a *app) inspect() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show the holder, fence and open transactions of a resource",
		ArgsUsage: "RESOURCE",
		Description: `Reads Redis and Postgres and changes nothing. The notes at the end say who
can write now, and whether Redis has lost data. It shows the last refusals
if programs publish events (see watch), the permits of a semaphore of that
name, and the result of a once: key.

   fencedb inspect table:12
   fencedb inspect once:order-7`,
		Action: a.inspectResource,
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
	Fence           *fence        `json:"fence"` // in Postgres
	Transactions    []transaction `json:"transactions"`
	Refusals        []refused     `json:"refusals"`  // newest first; nil: no program publishes events
	Semaphore       *places       `json:"semaphore"` // nil: no holder and no waiter
	Once            *recorded     `json:"once"`      // nil: no result
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

func (a *app) inspectResource(ctx context.Context, cmd *cli.Command) error {
	return a.onResource(ctx, cmd, func(ctx context.Context, o *operation) error {
		ctx, cancel, err := bounded(ctx, cmd)
		if err != nil {
			return err
		}
		defer cancel()
		found, err := o.look(ctx)
		if err != nil {
			return err
		}
		if err := o.lookAround(ctx, found); err != nil {
			return err
		}
		return a.show(cmd, found)
	})
}

// operation is the work on one resource in both servers.
type operation struct {
	resource string
	*servers
}

// onResource connects both servers for a command that takes one resource.
func (a *app) onResource(ctx context.Context, cmd *cli.Command, fn func(context.Context, *operation) error) error {
	if cmd.Args().Len() != 1 || cmd.Args().First() == "" {
		return usage("%s takes one resource, such as table:12, got %q", cmd.FullName(), cmd.Args().Slice())
	}
	return a.onServers(ctx, cmd, func(s *servers) error {
		return fn(ctx, &operation{cmd.Args().First(), s})
	})
}

// look reads Redis first, so that the fence is never older than the lease it is compared with.
func (o *operation) look(ctx context.Context) (*inspection, error) {
	known, err := o.issuer.Inspect(ctx, o.resource)
	if err != nil {
		return nil, err
	}
	found := newInspection(known)
	if found.Fence, err = readFence(ctx, o.pool, o.resource); err != nil {
		return nil, err
	}
	if found.Transactions, err = readTransactions(ctx, o.pool, o.resource); err != nil {
		return nil, err
	}
	found.Notes = found.conclude()
	return found, nil
}

func newInspection(known lease.Inspection) *inspection {
	found := &inspection{Resource: known.Resource, Waiters: known.Waiters}
	if known.Token > 0 {
		found.Holder = &holder{known.Holder, known.Token, issuedAt(known.Token), known.ExpiresIn.Milliseconds(), known.Label}
	}
	if known.LastToken > 0 {
		found.LastToken = &known.LastToken
	}
	if ms := known.RememberedFor.Milliseconds(); ms >= 0 {
		found.RememberedForMS = &ms
	}
	if known.Revoked != uuid.Nil {
		found.Revoked = &known.Revoked
	}
	found.revokedTo = known.RevokedTo
	return found
}

func (r *inspection) print(p page) {
	facts := [][2]string{
		{"RESOURCE", visible(r.Resource)},
		{"HOLDER", r.Holder.String()},
		{"WAITING", strconv.Itoa(r.Waiters)},
		{"REDIS", r.counter()},
		{"LEDGER", r.Fence.String()},
	}
	if r.Semaphore != nil {
		facts = append(facts, [2]string{"SEMAPHORE", r.Semaphore.String()})
	}
	if r.Once != nil {
		facts = append(facts, [2]string{"ONCE", r.Once.String()})
	}
	p.facts(facts...)
	printTransactions(p, r.Transactions)
	printPlaces(p, r.Semaphore)
	printRefusals(p, r.Refusals)
	printNotes(p, r.Notes)
}

func (h *holder) String() string {
	if h == nil {
		return "nobody"
	}
	left := time.Duration(h.ExpiresInMS) * time.Millisecond
	text := fmt.Sprintf("token %d%s, ends in %s unless renewed\n%s", h.Token, age(h.IssuedAt), span(left), "lease "+h.LeaseID.String())
	if h.Label != "" {
		text = visible(h.Label) + "\n" + text
	}
	return text
}

func age(at *time.Time) string {
	if at == nil {
		return ""
	}
	return ", for " + span(max(0, time.Since(*at)))
}

func (r *inspection) counter() string {
	if r.LastToken == nil {
		return "knows no token"
	}
	text := "last token " + strconv.FormatInt(*r.LastToken, 10)
	if r.RememberedForMS != nil {
		text += ", remembered for " + span(time.Duration(*r.RememberedForMS)*time.Millisecond)
	}
	return text
}

func (f *fence) String() string {
	if f == nil {
		return "no token has entered"
	}
	return fmt.Sprintf("token %d, entered %s ago\nlease %s", f.Token, span(max(0, time.Since(f.EnteredAt))), f.LeaseID)
}

func printTransactions(p page, open []transaction) {
	if len(open) == 0 {
		return
	}
	rows := make([][]string, len(open))
	for i, t := range open {
		rows[i] = []string{strconv.Itoa(t.PID), visible(t.Application), t.State, span(t.open())}
	}
	fmt.Fprintln(p.out)
	p.table([]string{"PID", "APPLICATION", "STATE", "OPEN FOR"}, rows)
}

// note is a conclusion from the inspection. Its code is for programs and does not change.
type note struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func printNotes(p page, notes []note) {
	if len(notes) > 0 {
		fmt.Fprintln(p.out)
	}
	for _, n := range notes {
		p.paragraph("* ", n.Text, "  ")
	}
}

// conclude compares the holder with the fence and says who can write now.
func (r *inspection) conclude() []note {
	notes := []note{}
	add := func(code, format string, args ...any) {
		notes = append(notes, note{code, fmt.Sprintf(format, args...)})
	}
	switch {
	case r.Holder == nil && r.Fence == nil:
	case r.Fence != nil && r.Fence.tooHigh:
		add("fence_too_high", "Nobody can write to protected tables: the fence is at the highest token that there is, or above, so no lease gets past it. fencedb reset sets it back.")
		return notes
	case r.Holder == nil && r.Fence.reset:
		add("fence_reset", "Nobody holds it, and its fence was set back: any former holder with a token above %d could still write to protected tables; fencedb revoke rules that out.", r.Fence.Token)
	case r.Holder == nil && r.Fence.revoked:
		add("revoked_and_sealed", "Nobody holds it, and the last one was revoked: no former holder can write to protected tables.")
	case r.Holder == nil:
		add("old_holder_may_write", "Nobody holds it. A former holder with token %d could still write to protected tables; fencedb revoke rules that out.", r.Fence.Token)
	case r.Fence == nil:
		add("not_entered", "No transaction has entered with a token yet: an earlier holder could still write to protected tables, until this one writes or is sealed.")
	case r.Holder.Token < r.Fence.Token:
		add("stale_holder", "The holder is stale: token %d has entered since, so every write of the holder to protected tables is refused.", r.Fence.Token)
	case r.Holder.Token == r.Fence.Token && r.Holder.LeaseID != r.Fence.LeaseID:
		add("stale_holder", "The holder is stale: another lease entered with the same token, so every write of the holder to protected tables is refused.")
	case r.Holder.Token > r.Fence.Token:
		add("not_entered", "The holder has not entered yet: the one with token %d could still write to protected tables, until the holder writes or is sealed.", r.Fence.Token)
	default:
		add("current", "The holder is current: nobody else can write to protected tables.")
	}
	if r.LastToken != nil && r.Fence != nil && *r.LastToken < r.Fence.Token {
		add("redis_behind", "Redis is behind the ledger: it has lost data or its clock went back. New tokens may be refused until its counter is above %d; package guard raises it by itself, and so does fencedb revoke.", r.Fence.Token)
	}
	if r.Fence == nil && len(r.Transactions) > 0 {
		add("transactions_uncertain", "There is no fence to look at, so the transactions are all that are changing the ledger, for this resource or another.")
	}
	if r.Revoked != nil && (r.Holder == nil || r.Holder.LeaseID != *r.Revoked) {
		add("revoked", "An earlier lease, %s, was revoked in the last minute or so.", *r.Revoked)
	}
	return notes
}
