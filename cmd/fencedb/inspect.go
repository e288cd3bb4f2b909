package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

func (a *app) inspect() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show who holds a resource, what its fence is, and which open transactions hold that",
		ArgsUsage: "RESOURCE",
		Description: `Asks Redis and Postgres, changes nothing. The notes at the end say what follows from what was found: who can write
now, and whether Redis has forgotten something.

   fencedb inspect table:12`,
		Action: a.inspectResource,
	}
}

// inspection is what both servers know about one resource.
type inspection struct {
	Resource        string        `json:"resource"`
	Holder          *holder       `json:"holder"`
	Waiters         int           `json:"waiters"`
	LastToken       *int64        `json:"last_token"`        // in Redis
	RememberedForMS *int64        `json:"remembered_for_ms"` // how long Redis will know it
	Revoked         *uuid.UUID    `json:"revoked_lease_id"`  // lately
	Fence           *fence        `json:"fence"`             // in Postgres
	Transactions    []transaction `json:"transactions"`
	Notes           []note        `json:"notes"`
}

// holder is a lease as Redis knows it.
type holder struct {
	LeaseID     uuid.UUID  `json:"lease_id"`
	Token       int64      `json:"token"`
	IssuedAt    *time.Time `json:"issued_at"`
	ExpiresInMS int64      `json:"expires_in_ms"`
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
		return a.show(cmd, found)
	})
}

// operation is work on one resource, in both servers.
type operation struct {
	resource string
	issuer   *lease.Issuer
	pool     *pgxpool.Pool
}

// onResource connects both servers for a command that takes one resource.
func (a *app) onResource(ctx context.Context, cmd *cli.Command, fn func(context.Context, *operation) error) error {
	if cmd.Args().Len() != 1 || cmd.Args().First() == "" {
		return usage("%s takes one resource, such as table:12, got %q", cmd.FullName(), cmd.Args().Slice())
	}
	return a.onServers(ctx, cmd, func(i *lease.Issuer, pool *pgxpool.Pool) error {
		return fn(ctx, &operation{cmd.Args().First(), i, pool})
	})
}

func (a *app) onServers(ctx context.Context, cmd *cli.Command, fn func(*lease.Issuer, *pgxpool.Pool) error) error {
	connecting, cancel, err := bounded(ctx, cmd)
	if err != nil {
		return err
	}
	defer cancel()
	client, err := redisClient(connecting, cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	pool, err := postgres(connecting, cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	i, err := issuer(client, cmd)
	if err != nil {
		return usage("%w", err)
	}
	return fn(i, pool)
}

// look asks Redis first: a fence read later is never older than the lease it is compared with.
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
		found.Holder = &holder{known.Holder, known.Token, issuedAt(known.Token), known.ExpiresIn.Milliseconds()}
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
	return found
}

func (r *inspection) print(p page) {
	p.facts(
		[2]string{"RESOURCE", visible(r.Resource)},
		[2]string{"HOLDER", r.Holder.String()},
		[2]string{"WAITING", strconv.Itoa(r.Waiters)},
		[2]string{"REDIS", r.counter()},
		[2]string{"LEDGER", r.Fence.String()},
	)
	if len(r.Transactions) > 0 {
		fmt.Fprintln(p.out)
		printTransactions(p, r.Transactions)
	}
	printNotes(p, r.Notes)
}

func (h *holder) String() string {
	if h == nil {
		return "nobody"
	}
	left := time.Duration(h.ExpiresInMS) * time.Millisecond
	return fmt.Sprintf("token %d%s, ends in %s unless renewed\n%s", h.Token, age(h.IssuedAt), span(left), "lease "+h.LeaseID.String())
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
	rows := make([][]string, len(open))
	for i, t := range open {
		rows[i] = []string{strconv.Itoa(t.PID), visible(t.Application), t.State, span(t.open())}
	}
	p.table([]string{"PID", "APPLICATION", "STATE", "OPEN FOR"}, rows)
}
