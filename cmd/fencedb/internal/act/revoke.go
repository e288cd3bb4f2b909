package act

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Revoke is the command revoke.
func Revoke(a *app.State) *cli.Command {
	e := event{kind: "revoke"}
	var force, behind, sealOnly bool
	var permit string
	return &cli.Command{
		Name:      "revoke",
		Usage:     "end the lease on a resource and shut former holders out",
		ArgsUsage: "[RESOURCE]",
		Description: `Shows the holder and asks. Then it ends the lease in Redis, seals the
resource in Postgres, and records both in fencedb.audit. The next waiter gets
the resource at once. If the holder has changed since it was shown, nothing
is revoked. A resource that somebody holds in another namespace of Redis,
that Redis knows only there, or that neither server knows, needs --force.

Sealing waits for an open transaction of the holder, for as long as
--timeout, and names it on stderr. If that is too short, the exit code is 4:
the lease has ended, but the open transaction can still commit.

With --behind it ends no lease, and compares all last tokens in Redis with
the ledger. It seals the resources of the namespace whose token in Redis is
above the one in the ledger: after a fail-over that lost commits, or after a
restore, former holders could write again until then. It raises the counters
of those whose fence is above what Redis would issue next, as when Redis has
lost its data and its clock is behind: new holders are refused until then.
Hashed names are known from the ledger alone: those that the ledger has lost
are counted, and so is what other namespaces have above the ledger. Then the
exit code is 1; for other namespaces only without --force. Claims of package
once that are not known to have entered are left out.

With --seal-only it does not ask Redis, which may be away or full, or may
refuse. It seals the resource in Postgres, with the time there as the token:
holders with a lower one are refused from then on, and the lease goes on in
Redis. A token may be higher if Redis's clock is, or was, ahead of that of
Postgres.

With --permit it ends the permit of a semaphore whose lease id begins so, or
all permits, and records each. Nothing is sealed: a permit does not fence.

   fencedb revoke table:12 --reason 'worker 7 hangs'
   fencedb revoke table:12 --seal-only --reason 'Redis is full'
   fencedb revoke --behind --reason 'fail-over lost commits'
   fencedb revoke render --permit 43a7e30e --reason 'worker 7 hangs'
   fencedb revoke table:12 --reason 'host is gone' --yes --json`,
		Flags: e.flags(a.YesFlag(), &cli.BoolFlag{Name: "force", Destination: &force, Usage: "revoke also what another namespace has, or no server knows"},
			&cli.BoolFlag{Name: "seal-only", Destination: &sealOnly, Usage: "shut holders out in Postgres, without Redis"},
			&cli.StringFlag{Name: "permit", Destination: &permit, Usage: "end the permit with this lease `ID`, or all", Validator: namesPermits},
			&cli.BoolFlag{Name: "behind", Destination: &behind, Usage: "seal or raise all that one server has and the other lacks"}),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if permit != "" && (force || sealOnly || behind) {
				return app.UsageError("--permit is about a semaphore; --force, --seal-only and --behind are about leases")
			}
			if sealOnly {
				do := func(ctx context.Context, s *conn.Servers) (term.Report, error) { return confirmAndSeal(ctx, s, e) }
				return conn.Action(a, conn.Postgres|conn.Primary, e.ofOne, do)(ctx, cmd)
			}
			return conn.Action(a, conn.Both|conn.Primary|conn.Halves, func(cmd *cli.Command) error {
				switch {
				case behind && a.Argument != "":
					return app.UsageError("--behind is for all resources, and takes none")
				case behind:
					return e.complete()
				}
				return e.ofOne(cmd)
			}, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
				if err := s.Away(); err != nil {
					return nil, fmt.Errorf("%w: %w%s", app.ErrUnchanged, err, withoutRedis(s))
				}
				switch {
				case behind:
					return nil, sealBehind(ctx, s, e, force)
				case permit != "":
					return confirmAndRevokePermits(ctx, s, e, permit)
				}
				return confirmAndRevoke(ctx, s, e, force)
			})(ctx, cmd)
		},
	}
}

// withoutRedis says what can be done while Redis is away.
func withoutRedis(s *conn.Servers) string {
	if s.PostgresAway != nil {
		return ""
	}
	return "; fencedb revoke --seal-only shuts the holder of one resource out in Postgres, without Redis"
}

var errHalf = app.ExitError{Code: app.ExitHalf, Err: errors.New("revoked in Redis, but not sealed in Postgres")}

// Revocation is the result of revoke.
type Revocation struct {
	Resource string    `json:"resource"`
	Former   *Former   `json:"former"` // nil: it was free
	Token    int64     `json:"token"`  // older ones are refused from now on
	LeaseID  uuid.UUID `json:"lease_id"`
	AuditID  int64     `json:"audit_id"` // 0: nothing was changed, because all former holders were shut out already

	Unknown   bool            `json:"unknown"`   // Redis knew nothing of it here: its name or namespace may be wrong, and a holder elsewhere goes on
	Elsewhere []look.Location `json:"elsewhere"` // that were left alone; nil: not found out
	SealOnly  bool            `json:"seal_only"` // Redis was not asked

	passed bool // a newer token had entered already
}

// Print implements [term.Report].
func (r *Revocation) Print(p term.Page) {
	if r.AuditID == 0 {
		p.Say("Nobody holds %s. Its last holder was revoked a moment ago and is shut out: its fence is at token %d. Nothing was changed.",
			term.Visible(r.Resource), r.Token)
		return
	}
	switch {
	case r.SealOnly:
		r.printSealed(p)
		return
	case r.Unknown:
		p.Say("Redis knew no lease of %s here. If its name or --namespace is not that of the programs, its holder goes on: it gets a newer token at its next acquisition, and can write again. The fence is at token %s.", term.Visible(r.Resource), r.fenceNow())
	case r.Former == nil:
		p.Say("Nobody held %s. Its fence is at token %s.", term.Visible(r.Resource), r.fenceNow())
	default:
		p.Say("Revoked: lease %s with token %d%s held %s. Its fence is at token %s.",
			r.Former.LeaseID, r.Former.Token, r.Former.of(), term.Visible(r.Resource), r.fenceNow())
	}
	fmt.Fprintln(p.Out, "\nWhat a former holder can still do:")
	if r.Unknown {
		p.Point("In protected tables: write, if there is one under another name or in another namespace.")
	} else {
		p.Point("In protected tables: nothing. Whatever it had committed before stands.")
	}
	for _, other := range look.Rivals(r.Elsewhere) {
		state := "is refused from now on, the next one from there is not"
		if other.Holder.Token > r.Token {
			state = "can still enter"
		}
		p.Point("%s, %s still holds it: token %d %s.", strings.ToUpper(app.InNamespace(other.Namespace)[:1])+app.InNamespace(other.Namespace)[1:], other.Holder.Name(), other.Holder.Token, state)
	}
	p.Point("Elsewhere: go on until it learns of this at its next renewal, or when its lease would have ended. Tables that are not protected, mails, files and other services are not fenced.")
	fmt.Fprintf(p.Out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
}

func (r *Revocation) fenceNow() string {
	if r.passed {
		return fmt.Sprintf("%d or above now", r.Token)
	}
	return fmt.Sprintf("%d now", r.Token)
}

func (r *Revocation) printSealed(p term.Page) {
	p.Say("Sealed: the fence of %s is at token %s. Redis was not asked.", term.Visible(r.Resource), r.fenceNow())
	fmt.Fprintln(p.Out, "\nWhat a former holder can still do:")
	p.Point("In protected tables: nothing, unless its token is above that, as when Redis's clock is, or once was, ahead of Postgres's. Whatever it had committed before stands.")
	p.Point("In Redis: keep its lease, for as long as it renews it. If it uses package guard and Redis answers, it gets a newer token and goes on. Revoke once more when Redis answers.")
	p.Point("Elsewhere: go on until its lease ends. Tables that are not protected, mails, files and other services are not fenced.")
	fmt.Fprintf(p.Out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
}

func confirmAndRevoke(ctx context.Context, s *conn.Servers, e event, force bool) (term.Report, error) {
	found, err := prepare(ctx, s, *e.resource, force, recorded, entered)
	if err != nil {
		return nil, err
	}
	if app.Value(found.Fence).TooHigh {
		return nil, fmt.Errorf("%w: the fence of %s is at token %d, above any that a revocation could issue; run fencedb reset first",
			app.ErrUnchanged, term.Visible(found.Resource), found.Fence.Token)
	}
	if !force && !found.IsKnown() && found.Fence == nil {
		return nil, fmt.Errorf("%w: neither server knows %s, so see that its name is right; with --force it is done all the same", app.ErrUnchanged, term.Visible(found.Resource))
	}
	// If the last holder was revoked and sealed a moment ago and the resource was free since, there
	// is nothing left to revoke or to record.
	last, fence := found.RevokedTo, app.Value(found.Fence)
	if found.Holder == nil && last > 0 && app.Value(found.LastToken) == last && fence.Token >= last {
		return &Revocation{Resource: found.Resource, Token: last, LeaseID: fence.LeaseID, Elsewhere: found.Elsewhere}, nil
	}
	question := "Nobody holds it. Shut former holders out?"
	if found.Holder != nil {
		question = fmt.Sprintf("Revoke it from the holder with token %d?", found.Holder.Token)
	}
	if err := s.Confirm(ctx, question, found); err != nil {
		return nil, err
	}
	return revokeLease(ctx, s, e, found)
}

// confirmAndSeal is confirmAndRevoke without Redis: the token is the time by the clock of Postgres,
// as those of Redis are, or the one after the fence.
func confirmAndSeal(ctx context.Context, s *conn.Servers, e event) (term.Report, error) {
	s.RedisAway = errors.New("redis: not asked")
	checking, cancel := s.Bounded(ctx)
	defer cancel()
	err := mayCall(checking, s.Pool, recorded, entered)
	if err != nil {
		return nil, err
	}
	found, err := look.Read(checking, s, *e.resource)
	switch fence := app.Value(app.Value(found).Fence); {
	case err != nil:
		return nil, err
	case s.PostgresAway != nil:
		return nil, fmt.Errorf("%w: %w", app.ErrUnchanged, s.PostgresAway)
	case fence.TooHigh:
		return nil, fmt.Errorf("%w: the fence of %s is at token %d, and no token is above that; fencedb reset it first", app.ErrUnchanged, term.Visible(found.Resource), fence.Token)
	case fence.Foreign:
		return nil, fmt.Errorf("%w: the tokens of %s are those of another issuer, and no time", app.ErrUnchanged, term.Visible(found.Resource))
	}
	cancel() // a person may take longer
	if err := s.Confirm(ctx, "Shut all its holders out in Postgres, without Redis?", found); err != nil {
		return nil, err
	}
	sealing, cancel := s.Bounded(ctx, found.Resource)
	defer cancel()
	done := &Revocation{Resource: found.Resource, LeaseID: uuid.New(), SealOnly: true}
	err = s.Pool.QueryRow(sealing, `SELECT greatest(coalesce(fencedb.last_token($1), 0) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)`,
		found.Resource).Scan(&done.Token)
	if err != nil {
		return nil, conn.Explained(err)
	}
	return done, seal(sealing, s, e, done)
}

func revokeLease(ctx context.Context, s *conn.Servers, e event, found *look.Inspection) (*Revocation, error) {
	ctx, cancel := s.Bounded(ctx, found.Resource)
	defer cancel()
	announced, err := announce(ctx, s, e.operator)
	if err != nil {
		return nil, err
	}
	defer announced()
	ended, err := endLease(ctx, s, found)
	switch {
	case errors.Is(err, lease.ErrStale):
		return nil, fmt.Errorf("the holder has changed since it was shown, nobody was revoked; look again: %w", err)
	case errors.Is(err, lease.ErrUnreachable), err != nil && ctx.Err() != nil:
		s.Changed = "the lease may have ended, and nothing was sealed; look again" + withoutRedis(s)
		_, unrecorded := recordHalf(ctx, s, e, &Revocation{Resource: found.Resource, Former: formerOf(found)})
		return nil, errors.Join(err, unrecorded)
	case err != nil:
		return nil, fmt.Errorf("%w, Redis refuses: %w%s", app.ErrUnchanged, err, withoutRedis(s))
	}
	done := &Revocation{Resource: found.Resource, Token: ended.Token(), LeaseID: ended.LeaseID(),
		Unknown: !found.IsKnown(), Elsewhere: found.Elsewhere}
	if id, token, held := ended.Holder(); held {
		done.Former = &Former{LeaseID: id, Token: token}
		if shown := app.Value(found.Holder); shown.LeaseID == id {
			done.Former.Label = shown.Label
		}
	}
	return done, seal(ctx, s, e, done)
}

// endLease ends the lease of the holder that was found and of no other. It takes over from the
// highest token of both servers, because a Redis that has lost tokens would issue one that the
// ledger refuses.
func endLease(ctx context.Context, s *conn.Servers, found *look.Inspection) (*lease.Revocation, error) {
	last := max(app.Value(found.LastToken), app.Value(found.Holder).Token, app.Value(found.Fence).Token)
	if last == 0 { // to take over from nobody takes a last token
		var err error
		if last, err = s.Issuer.Raise(ctx, found.Resource, 1); err != nil {
			return nil, err
		}
		if last > 1 {
			return nil, lease.ErrStale
		}
	}
	return s.Issuer.TakeOver(ctx, found.Resource, last)
}

// seal enters the fence and records the event in one transaction.
func seal(ctx context.Context, s *conn.Servers, e event, done *Revocation) error {
	until, _ := ctx.Deadline()
	grant := fencedb.NewGrant(done.Resource, done.Token, done.LeaseID, until)
	err := fencedb.Tx(ctx, s.Pool, grant, func(tx pgx.Tx) (err error) {
		done.AuditID, err = e.record(ctx, tx, done.details(true))
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*fencedb.StaleError)): // the next holder has entered, which shuts the former one out as well
		done.passed = true
		s.Changed = "its former holder is shut out, which may not be recorded in fencedb.audit"
		done.AuditID, err = e.record(ctx, s.Pool, done.details(true))
		return err
	}
	if done.SealOnly {
		s.Changed = fmt.Sprintf("it is not known to be sealed: the former holder can still write until a token from %d on has entered; see fencedb inspect, end the transaction in the way, and call it again", done.Token)
		return err
	}
	sealed, unrecorded := recordHalf(ctx, s, e, done)
	if sealed {
		return nil
	}
	return errors.Join(fmt.Errorf(
		"%w: the former holder can still write until a token from %d on has entered; see fencedb inspect, end the transaction in the way, and revoke again: %w",
		errHalf, done.Token, err), unrecorded)
}

// details are what is recorded. A revocation without a token is one that Redis has not answered.
func (r *Revocation) details(sealed bool) map[string]any {
	held, done := r.Former != nil, r.Token > 0
	former := app.Value(r.Former)
	return map[string]any{
		"token": app.Optional(r.Token, done), "lease_id": app.Optional(r.LeaseID, done), "sealed": sealed, "former_token": app.Optional(former.Token, held),
		"former_lease_id": app.Optional(former.LeaseID, held), "former_holder": app.Optional(former.Label, held),
	}
}

// announce publishes what the operator does, if programs publish already. done waits until it is
// published.
func announce(ctx context.Context, s *conn.Servers, operator string) (done func(), err error) {
	stream := feed.Namespace(s.Names.Namespace)
	if look.Published(ctx, s.Client, stream) != look.ErrPublished {
		return func() {}, nil // the command works without it
	}
	options := []feed.Option{stream, feed.Worker(operator)}
	if s.Names.Hashed {
		options = append(options, feed.HashResources())
	}
	events := feed.New(s.Client, options...)
	done = func() { _ = events.Close(ctx) }
	cfg := s.Names.Config()
	cfg.Tracers = []lease.Tracer{events}
	s.Issuer, err = lease.New(s.Client, cfg)
	return done, err
}

// recordHalf records that a revocation was not sealed, unless its seal was committed although that
// was not heard, and is recorded with it. It has its own time, also after Ctrl-C.
func recordHalf(ctx context.Context, s *conn.Servers, e event, done *Revocation) (sealed bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(s.Timeout, askedAgain))
	defer cancel()
	err = s.Pool.QueryRow(ctx, `SELECT id FROM fencedb.audit WHERE event = 'revoke' AND resource = $1 AND details ->> 'lease_id' = $2`,
		done.Resource, done.LeaseID.String()).Scan(&done.AuditID)
	if !errors.Is(err, pgx.ErrNoRows) {
		return err == nil, err
	}
	done.AuditID, err = e.record(ctx, s.Pool, done.details(false))
	return false, err
}
