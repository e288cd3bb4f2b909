package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

func (a *app) revoke() *cli.Command {
	e := event{kind: "revoke"}
	return &cli.Command{
		Name:      "revoke",
		Usage:     "end the lease on a resource and shut former holders out",
		ArgsUsage: "RESOURCE",
		Description: `Shows the holder and asks. Then it ends the lease in Redis, seals the
resource in Postgres, and records both in fencedb.audit. The next waiter gets
the resource at once. If the holder has changed since it was shown, nothing
is revoked.

Sealing waits for an open transaction of the holder, for as long as
--timeout. If that is too short, the exit code is 4: the lease has ended, but
the open transaction can still commit.

   fencedb revoke table:12 --reason 'worker 7 hangs'
   fencedb revoke table:12 --reason 'host is gone' --yes --json`,
		Flags: e.flags(a.yesFlag()),
		Action: a.on(onBoth|onPrimary, e.of, func(ctx context.Context, s *servers) (report, error) {
			return s.confirmAndRevoke(ctx, e)
		}),
	}
}

// revocation is the result of revoke.
type revocation struct {
	Resource string    `json:"resource"`
	Former   *former   `json:"former"` // nil: it was free
	Token    int64     `json:"token"`  // older ones are refused from now on
	LeaseID  uuid.UUID `json:"lease_id"`
	AuditID  int64     `json:"audit_id"` // 0: nothing was changed, because all former holders were shut out already

	Unknown bool `json:"unknown"` // Redis knew nothing of it: its name or namespace may be wrong, and a holder elsewhere goes on
}

// former is the holder that was revoked.
type former struct {
	LeaseID uuid.UUID `json:"lease_id"`
	Token   int64     `json:"token"`
	Label   string    `json:"label,omitempty"` // who held, for people; "": not known
}

func (r *revocation) print(p page) {
	if r.AuditID == 0 {
		p.say("Nobody holds %s. Its last holder was revoked a moment ago and is shut out: its fence is at token %d. Nothing was changed.",
			visible(r.Resource), r.Token)
		return
	}
	switch {
	case r.Unknown:
		p.say("Redis knew no lease of %s: nobody has acquired it for long, or the name or --namespace is not that of the programs. In that case its holder goes on, and package guard takes it past this revocation. The fence is at token %d now.", visible(r.Resource), r.Token)
	case r.Former == nil:
		p.say("Nobody held %s. Its fence is at token %d now.", visible(r.Resource), r.Token)
	default:
		p.say("Revoked: lease %s with token %d%s held %s. Its fence is at token %d now.",
			r.Former.LeaseID, r.Former.Token, r.Former.of(), visible(r.Resource), r.Token)
	}
	fmt.Fprintln(p.out, "\nWhat a former holder can still do:")
	if r.Unknown {
		p.point("In protected tables: write, if there is one under another name or in another namespace.")
	} else {
		p.point("In protected tables: nothing. Whatever it had committed before stands.")
	}
	p.point("Elsewhere: go on until it learns of this at its next renewal, or when its lease would have ended. Tables that are not protected, mails, files and other services are not fenced.")
	fmt.Fprintf(p.out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
}

func (f *former) of() string {
	if f.Label == "" {
		return ""
	}
	return " of " + visible(f.Label)
}

func (s *servers) confirmAndRevoke(ctx context.Context, e event) (report, error) {
	found, err := s.prepare(ctx, *e.resource, false, "fencedb.record(text,text,text,text,jsonb)", "fencedb.enter(text,bigint,uuid,bigint,bigint,boolean,boolean)")
	if err != nil {
		return nil, err
	}
	if value(found.Fence).tooHigh {
		return nil, fmt.Errorf("%w: the fence of %s is at token %d, which no revocation gets past either; fencedb reset it first",
			errUnchanged, visible(found.Resource), found.Fence.Token)
	}
	// If the last holder was revoked and sealed a moment ago and the resource was free since, there
	// is nothing left to revoke or to record.
	last, fence := found.revokedTo, value(found.Fence)
	if found.Holder == nil && last > 0 && value(found.LastToken) == last && fence.Token >= last {
		return &revocation{Resource: found.Resource, Token: last, LeaseID: fence.LeaseID}, nil
	}
	question := "Nobody holds it. Shut former holders out?"
	if found.Holder != nil {
		question = fmt.Sprintf("Revoke it from the holder with token %d?", found.Holder.Token)
	}
	if err := s.confirm(ctx, question, found); err != nil {
		return nil, err
	}
	return s.revokeLease(ctx, e, found)
}

// prepare checks what has to be true before a resource is changed with these functions, and changes
// nothing. With force it may be one that Redis does not know here.
func (s *servers) prepare(ctx context.Context, resource string, force bool, functions ...string) (*inspection, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := mayCall(ctx, s.pool, functions...); err != nil {
		return nil, err
	}
	found, err := s.look(ctx, resource)
	if err == nil && !found.known() && !force {
		err = s.notElsewhere(ctx, resource)
	}
	return found, err
}

// notElsewhere refuses resources that Redis knows only as a semaphore, with the other
// --hash-resources or, if no namespace was given, in one: who forgot it would be told that nobody
// holds the resource, and would shut out whoever does. It reads all keys, once.
func (s *servers) notElsewhere(ctx context.Context, resources ...string) error {
	if len(resources) == 0 {
		return nil
	}
	keys, err := scanKeys(ctx, s.client, lease.Key{Field: "fence"})
	if err != nil {
		return err
	}
	for _, resource := range resources {
		if err := s.notAmong(keys, resource); err != nil {
			return err
		}
	}
	return nil
}

// notAmong is notElsewhere for one resource, with the fences that Redis has.
func (s *servers) notAmong(keys []lease.Key, resource string) error {
	digest := protocol.Digest(resource)
	here := lease.Key{Kind: protocol.LeaseKind, Namespace: s.names.namespace, Resource: resource, Field: "fence"} // acquired meanwhile
	if s.names.hashed {
		here.Resource = digest
	}
	var there []string
	for _, k := range keys {
		named := k.Resource == resource || k.Resource == digest
		if named && k != here && (s.names.namespace == "" || k.Namespace == s.names.namespace) {
			there = append(there, fmt.Sprintf("as a %s in namespace %q, with --hash-resources=%v", k.Kind, k.Namespace, k.Resource == digest))
		}
	}
	if there == nil {
		return nil // it was forgotten, or never known
	}
	slices.Sort(there)
	return fmt.Errorf("%w: Redis does not know %s here, but %s; check both flags, and that it is a lease; fencedb leases shows semaphores too",
		errUnchanged, visible(resource), strings.Join(there, ", and "))
}

func (s *servers) revokeLease(ctx context.Context, e event, found *inspection) (*revocation, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	announced, err := s.announce(ctx, e.operator)
	if err != nil {
		return nil, err
	}
	defer announced()
	ended, err := s.endLease(ctx, found)
	if errors.Is(err, lease.ErrStale) {
		return nil, fmt.Errorf("the holder has changed since it was shown, nobody was revoked; look again: %w", err)
	}
	if err != nil {
		return nil, err
	}
	done := &revocation{Resource: found.Resource, Token: ended.Token(), LeaseID: ended.LeaseID(), Unknown: !found.known()}
	if id, token, held := ended.Holder(); held {
		done.Former = &former{LeaseID: id, Token: token}
		if shown := value(found.Holder); shown.LeaseID == id {
			done.Former.Label = shown.Label
		}
	}
	return done, s.seal(ctx, e, done)
}

// endLease ends the lease of the holder that was found and of no other. It takes over from the
// highest token of both servers, because a Redis that has lost tokens would issue one that the
// ledger refuses.
func (s *servers) endLease(ctx context.Context, found *inspection) (*lease.Revocation, error) {
	last := max(value(found.LastToken), value(found.Holder).Token, value(found.Fence).Token)
	if last == 0 { // to take over from nobody takes a last token
		var err error
		if last, err = s.issuer.Raise(ctx, found.Resource, 1); err != nil {
			return nil, err
		}
		if last > 1 {
			return nil, lease.ErrStale
		}
	}
	return s.issuer.TakeOver(ctx, found.Resource, last)
}

// seal enters the fence and records the event in one transaction.
func (s *servers) seal(ctx context.Context, e event, done *revocation) error {
	deadline, _ := ctx.Deadline()
	const reserve = 10 // a tenth of the time is for recording a failure
	until := deadline.Add(-time.Until(deadline) / reserve)
	grant := fencedb.NewGrant(done.Resource, done.Token, done.LeaseID, until)
	err := fencedb.Tx(ctx, s.pool, grant, func(tx pgx.Tx) (err error) {
		done.AuditID, err = e.record(ctx, tx, done.details(true))
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*fencedb.StaleError)): // the next holder has entered, which shuts the former one out as well
		done.AuditID, err = e.record(ctx, s.pool, done.details(true))
		return err
	}
	recording, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline) // also after Ctrl-C
	defer cancel()
	_, unrecorded := e.record(recording, s.pool, done.details(false))
	return errors.Join(fmt.Errorf(
		"%w: the former holder can still write until a token from %d on has entered; see fencedb inspect, end the transaction in the way, and revoke again: %w",
		errHalf, done.Token, err), unrecorded)
}

func (r *revocation) details(sealed bool) map[string]any {
	held := r.Former != nil
	former := value(r.Former)
	return map[string]any{
		"token": r.Token, "lease_id": r.LeaseID, "sealed": sealed, "former_token": optional(former.Token, held),
		"former_lease_id": optional(former.LeaseID, held), "former_holder": optional(former.Label, held),
	}
}

var errPublished = errors.New("there are events")

// published returns errPublished if the stream has an event.
func published(ctx context.Context, client redis.UniversalClient, stream feed.Option) error {
	return feed.Replay(ctx, client, "0", func(feed.Event) error { return errPublished }, stream)
}

// announce publishes what the operator does, if programs publish already. done waits until it is
// published.
func (s *servers) announce(ctx context.Context, operator string) (done func(), err error) {
	stream := feed.Namespace(s.names.namespace)
	if published(ctx, s.client, stream) != errPublished {
		return func() {}, nil // the command works without it
	}
	options := []feed.Option{stream, feed.Worker(operator)}
	if s.names.hashed {
		options = append(options, feed.HashResources())
	}
	events := feed.New(s.client, options...)
	done = func() { _ = events.Close(ctx) }
	cfg := s.names.config()
	cfg.Tracers = []lease.Tracer{events}
	s.issuer, err = lease.New(s.client, cfg)
	return done, err
}

// event is a new row of fencedb.audit.
type event struct {
	kind     string
	resource *string // nil: many
	operator string
	reason   string
}

func (e *event) flags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "reason", Destination: &e.reason, Usage: "`WHY`, for the audit; required"},
		&cli.StringFlag{Name: "operator", Destination: &e.operator, Usage: "`WHO`; default: your user name", Sources: cli.EnvVars("FENCEDB_OPERATOR")},
	}, more...)
}

// of completes an event that is about one resource, the argument of the command.
func (e *event) of(cmd *cli.Command) error {
	e.resource = new(cmd.Args().First())
	return e.complete()
}

func (e *event) complete() error {
	if strings.TrimSpace(e.reason) == "" {
		return usage("--reason is required: it is written to the audit")
	}
	if e.operator == "" {
		var name string
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		host, _ := os.Hostname()
		e.operator = cmp.Or(name, "unknown") + "@" + cmp.Or(host, "unknown")
	}
	if !utf8.ValidString(e.reason + e.operator) { // Postgres would refuse it, after Redis has revoked
		return usage("--reason %q and --operator %q must be valid UTF-8", e.reason, e.operator)
	}
	return nil
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// record returns the id of the new row, which stays if the transaction of db commits.
func (e event) record(ctx context.Context, db querier, details any) (id int64, err error) {
	err = db.QueryRow(ctx, `SELECT fencedb.record($1, $2, $3, $4, $5)`, e.kind, e.resource, e.operator, e.reason, details).Scan(&id)
	return id, err
}

var errMayNot = errors.New("postgres: permission denied for this role; let the owner of the schema fencedb run SELECT fencedb.allow_operator('role')")

// mayCall checks, before anything is changed, that the server takes writes, and that the role may
// call functions that write.
func mayCall(ctx context.Context, pool *pgxpool.Pool, functions ...string) error {
	var standby, readOnly, may bool
	err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, bool_and(has_function_privilege(f, 'EXECUTE'))
		FROM unnest($1::text[]) f`, functions).Scan(&standby, &readOnly, &may)
	switch {
	case err != nil:
		return explained(err)
	case standby:
		return fmt.Errorf("%w: this Postgres is a standby; name the primary with --postgres", errUnchanged)
	case readOnly:
		return fmt.Errorf("%w: this Postgres takes no writes (default_transaction_read_only is on); end that first", errUnchanged)
	case !may:
		return errMayNot
	}
	return nil
}
