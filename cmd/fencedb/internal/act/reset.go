package act

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
)

// Reset is the command reset.
func Reset(a *app.State) *cli.Command {
	asked := resetting{event: event{kind: "reset"}}
	return &cli.Command{
		Name:      "reset",
		Usage:     "set back a fence that is too high for any lease",
		ArgsUsage: "RESOURCE",
		Description: `Shows the resource and asks. Then it sets the fence in Postgres back to the
token --to and records that in fencedb.audit. If Redis remembers a lower
token, it is raised to --to. Rows keep their stamped tokens until the next
write, but these tokens no longer count.

From then on, every holder with a token above --to can write to protected
tables, even one that was shut out. So first stop the program that entered
the token. The best --to is the last token that Redis has issued: it admits
later holders only; a lower one needs --force, as does a resource that is
held. To shut out all holders, revoke the resource afterwards.

Reset waits for open transactions on the resource, for as long as --timeout.
If that is too short, it names them.

A row that carries a newer token than its fence, as after the ledger was
lost, refuses tokens that the ledger accepts. Enter with that token first:
SELECT fencedb.enter(RESOURCE, TOKEN, gen_random_uuid()).

   fencedb reset table:12 --to 1795178573132056 --reason 'ticket 4713'`,
		Flags: asked.flags(a.YesFlag(),
			&cli.Int64Flag{Name: "to", Destination: &asked.to, Usage: "the new `TOKEN` of the fence; required"},
			&cli.BoolFlag{Name: "force", Destination: &asked.force, Usage: "reset even while it is held, or to below the last token"},
		),
		Action: conn.Action(a, conn.Both|conn.Primary, asked.complete, asked.run),
	}
}

// SetBack is the result of reset.
type SetBack struct {
	Resource  string    `json:"resource"`
	Former    *Former   `json:"former"` // nil: the ledger had no fence
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`   // of no holder
	LastToken *int64    `json:"last_token"` // in Redis
	AuditID   int64     `json:"audit_id"`
}

// Print implements [term.Report].
func (r *SetBack) Print(p term.Page) {
	if r.Former == nil {
		p.Say("The ledger had no fence of %s; it is at token %d now.", term.Visible(r.Resource), r.Token)
	} else {
		p.Say("The fence of %s was at token %d, of lease %s, and is at token %d now.",
			term.Visible(r.Resource), r.Former.Token, r.Former.LeaseID, r.Token)
	}
	fmt.Fprintln(p.Out, "\nWhat is true now:")
	p.Point("Every holder with a token above %d can write to protected tables, also one that was shut out before, until a later one has written or is sealed. fencedb revoke shuts all of them out.", r.Token)
	p.Point("Rows keep the tokens that they were stamped with until the next write. Those do not count any more, but for programs that compare last_fencing_token themselves.")
	fmt.Fprintf(p.Out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
}

// resetting holds the arguments of reset.
type resetting struct {
	event
	to    int64
	force bool
}

func (r *resetting) complete(cmd *cli.Command) error {
	switch {
	case !cmd.IsSet("to"):
		return app.UsageError("--to is required: say which token the fence is set back to; see %s --help", cmd.FullName())
	case r.to < 0 || r.to > protocol.MaxNumber:
		return app.UsageError("--to must be 0 to %d (2^53 - 1), got %d", int64(protocol.MaxNumber), r.to)
	}
	return r.of(cmd)
}

func (r *resetting) run(ctx context.Context, s *conn.Servers) (term.Report, error) {
	found, err := prepareReset(ctx, s, *r)
	if err != nil {
		return nil, err
	}
	if err := s.Confirm(ctx, r.question(found), found); err != nil {
		return nil, err
	}
	return resetFence(ctx, s, *r, found)
}

// prepareReset makes all checks and changes nothing.
func prepareReset(ctx context.Context, s *conn.Servers, asked resetting) (*look.Inspection, error) {
	found, err := prepare(ctx, s, *asked.resource, asked.force, "fencedb.reset_fence(text,bigint,text,text,bigint)")
	if err != nil {
		return nil, err
	}
	name := term.Visible(found.Resource)
	switch {
	case found.Holder != nil && !asked.force:
		return nil, fmt.Errorf("%w: %s is held under token %d; wait for its end or revoke it, or reset with --force", app.ErrUnchanged, name, found.Holder.Token)
	case app.Value(found.LastToken) >= protocol.MaxNumber && !asked.force:
		key := s.Names.Key(found.Resource).String()
		return nil, fmt.Errorf("%w: Redis remembers %d for %s, the highest token that there is, so nobody gets one; --to the time of now, %d, with --force, "+
			"and then RENAME '%s' 'exhausted:%[5]s' in Redis: see docs/runbook/repairs.md, a fence is too high",
			app.ErrUnchanged, *found.LastToken, name, time.Now().Add(s.Ahead.Redis).UnixMicro(), key)
	case app.Value(found.LastToken) > asked.to && !asked.force:
		return nil, fmt.Errorf("%w: Redis has issued tokens of %s up to %d, and whoever has one above --to could write again; --to %[3]d lets nobody in again, and with --force it is done all the same",
			app.ErrUnchanged, name, *found.LastToken)
	case found.Fence == nil:
		return nil, fmt.Errorf("%w: %s has no fence; if a row of it refuses tokens, enter with the highest token of its rows first: SELECT fencedb.enter(RESOURCE, max(last_fencing_token), gen_random_uuid()) FROM TABLE WHERE CONDITION", app.ErrUnchanged, name)
	case found.Fence.Token <= asked.to:
		return nil, fmt.Errorf("%w: the fence of %s is at token %d, which is not above --to", app.ErrUnchanged, name, found.Fence.Token)
	}
	return found, nil
}

func (r resetting) question(found *look.Inspection) string {
	issued := ""
	if app.Value(found.LastToken) > r.to {
		issued = fmt.Sprintf("; Redis has issued tokens up to %d", *found.LastToken)
	}
	return fmt.Sprintf("Set its fence back to token %d? Every holder with a higher one can write again%s.", r.to, issued)
}

// resetFence raises the last token in Redis first, because one that is too high does no harm.
func resetFence(ctx context.Context, s *conn.Servers, asked resetting, found *look.Inspection) (*SetBack, error) {
	ctx, cancel := s.Bounded(ctx, found.Resource)
	defer cancel()
	done := &SetBack{Resource: found.Resource, Token: asked.to, LastToken: found.LastToken}
	if app.Value(found.LastToken) < asked.to {
		s.Changed = "the fence was not set back, but Redis may remember --to as the last token now"
		last, err := s.Issuer.Raise(ctx, found.Resource, asked.to)
		if err != nil {
			return nil, err
		}
		done.LastToken = &last
	}

	s.Changed = "whether the fence was set back is not known; see fencedb inspect"
	deadline, _ := ctx.Deadline()
	const reserve = 10 // a tenth of the time is for the answer
	wait := time.Until(deadline) * (reserve - 1) / reserve
	var token *int64
	var lease *uuid.UUID
	err := s.Pool.QueryRow(ctx, `SELECT former_token, former_lease_id, lease_id, audit_id FROM fencedb.reset_fence($1, $2, $3, $4, $5)`,
		asked.resource, asked.to, asked.operator, asked.reason,
		wait.Milliseconds()).
		Scan(&token, &lease, &done.LeaseID, &done.AuditID)
	if err == nil || errors.As(err, new(*pgconn.PgError)) {
		s.Changed = "" // it is done, or was refused
	}
	if token != nil && lease != nil {
		done.Former = &Former{LeaseID: *lease, Token: *token}
	}
	return done, busy(conn.Explained(err))
}

// busy adds to the error of a fence that could not be had whose transactions hold it.
func busy(err error) error {
	refused, is := errors.AsType[*pgconn.PgError](err)
	if !is || refused.Code != app.LockNotAvailable {
		return err
	}
	var detail struct {
		Blockers []conn.Transaction `json:"blockers"`
	}
	_ = json.Unmarshal([]byte(refused.Detail), &detail)
	return fmt.Errorf("the fence was not changed: open transactions are in the way: %s: %w", conn.Describe(detail.Blockers), err)
}
