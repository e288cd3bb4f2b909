package act

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

const (
	leastAge       = term.Day      // the least that fencedb.prune accepts of fences
	leastAuditAge  = 90 * term.Day // and of the audit
	auditBatchSize = 10_000
)

// Prune is the command prune.
func Prune(a *app.State) *cli.Command {
	p := pruner{event: event{kind: "prune"}}
	return &cli.Command{
		Name:  "prune",
		Usage: "remove old fences and records; only counts without --apply",
		Description: `A resource without a fence accepts any token. So a fence may be removed only
when no holder with an older token can be left: after the longest time that a
lease is held plus the time that a token is remembered. --older-than must be
at least the sum of the two, as the programs set them in lease.Config, and
should be longer than a process can be paused. A fence counts as old if both
its token, by the clock of Redis, and its entry, by that of Postgres, are; if
the two clocks are a day apart, nothing is removed.

These fences are always kept: those of resources that are held now, those
that were set back, those of other issuers (fencedb.foreign_issuers), and
those of resources that Redis knows by another --namespace or
--hash-resources, for which it reads all keys of Redis.

The records in fencedb.audit are kept for ever, unless --audit-older-than
gives a time of 90 days or more. The record of who protected a table is kept
for as long as the table is protected.

   fencedb prune                               count
   fencedb prune --apply --reason 'monthly'    ask, remove, record
   fencedb prune --apply --reason 'monthly' --audit-older-than 9000h`,
		Flags: p.flags(a.YesFlag(),
			&cli.DurationFlag{Name: "older-than", Destination: &p.older, Usage: "`TIME` since the last token", Value: 30 * term.Day},
			&cli.DurationFlag{Name: "max-hold", Destination: &p.hold, Usage: "largest `TIME` in MaxHold", Value: time.Hour, Validator: app.Positive},
			&cli.DurationFlag{Name: "retention", Destination: &p.retention, Usage: "largest `TIME` in FenceRetention", Value: term.Day, Validator: app.Positive},
			&cli.DurationFlag{Name: "audit-older-than", Destination: &p.auditOlder, Usage: "remove records this `TIME` old too", Validator: app.AtLeast(leastAuditAge)},
			&cli.BoolFlag{Name: "apply", Destination: &p.apply, Usage: "remove them, after asking"},
		),
		Action: conn.Action(a, conn.Both, p.check, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
			p.Servers = s
			return p.run(ctx)
		}),
	}
}

// Pruning is the result of prune.
type Pruning struct {
	OlderThanMS int64 `json:"older_than_ms"`
	Found       int64 `json:"found"`     // removable
	Held        int64 `json:"held"`      // old enough but held now
	Elsewhere   int64 `json:"elsewhere"` // likewise, but known to Redis in another namespace or form, so kept
	Forgotten   int64 `json:"forgotten"`
	Applied     bool  `json:"applied"`

	Audit *AuditPruning `json:"audit"` // nil: records are kept

	namespace, example string // of Elsewhere
}

// AuditPruning is what prune does with records.
type AuditPruning struct {
	OlderThanMS int64 `json:"older_than_ms"`
	Found       int64 `json:"found"`
	Forgotten   int64 `json:"forgotten"`
}

// Print implements [term.Report].
func (r *Pruning) Print(p term.Page) {
	older, audit := term.Millis(r.OlderThanMS), r.Audit
	if r.Applied {
		p.Say("Forgot %d fences older than %s, kept %d that are held.", r.Forgotten, older, r.Held)
	} else {
		p.Say("%d fences are older than %s and may go, %d more are held. Nothing was changed; see --apply.", r.Found, older, r.Held)
	}
	switch {
	case audit == nil:
	case r.Applied:
		p.Say("Forgot %d records older than %s.", audit.Forgotten, term.Millis(audit.OlderThanMS))
	default:
		p.Say("%d records are older than %s and may go.", audit.Found, term.Millis(audit.OlderThanMS))
	}
	if r.Elsewhere > 0 {
		p.Say("Kept: %d that Redis does not know %s, but %s. See that both flags are those of the programs that write to this database.",
			r.Elsewhere, app.InNamespace(r.namespace), r.example)
	}
}

// pruner holds the arguments of prune.
type pruner struct {
	event
	older, hold, retention time.Duration
	auditOlder             time.Duration // 0: records are kept
	apply                  bool
	*conn.Servers
	issued    time.Time            // the clock of Redis: a fence is old by this one too, and by its token
	elsewhere map[string]lease.Key // what Redis knows by other flags, by digest
}

func (p *pruner) check(*cli.Command) error {
	switch {
	case p.older < leastAge:
		return app.UsageError("--older-than must be at least %v, got %v", leastAge, p.older)
	case p.older-p.hold < p.retention: // their sum may be more than a duration can be
		return app.UsageError("--older-than (%v) must be at least --max-hold (%v) + --retention (%v): younger fences may still be needed", p.older, p.hold, p.retention)
	case p.apply:
		return p.complete()
	}
	return nil
}

func (p *pruner) run(ctx context.Context) (*Pruning, error) {
	if p.Replica && p.apply {
		return nil, conn.ErrReplica
	}
	r := &Pruning{OlderThanMS: p.older.Milliseconds(), Applied: p.apply, namespace: p.Names.Namespace}
	err := p.readClock(ctx)
	if err == nil {
		err = p.sweep(ctx, r, false)
	}
	question := fmt.Sprintf("%d fences older than %s", r.Found, term.Span(p.older))
	if err == nil && p.auditOlder > 0 {
		r.Audit = &AuditPruning{OlderThanMS: p.auditOlder.Milliseconds()}
		r.Audit.Found, err = p.countAudit(ctx)
		question = fmt.Sprintf("%d records older than %s, and %s", r.Audit.Found, term.Span(p.auditOlder), question)
	}
	if err != nil || !p.apply || r.Found == 0 && (r.Audit == nil || r.Audit.Found == 0) {
		return r, err
	}
	if err := p.Confirm(ctx, "Forget "+question+"? A resource without its fence accepts any token again."); err != nil {
		return nil, err
	}
	err = p.sweep(ctx, r, true)
	for more := r.Audit != nil; more && err == nil; {
		var forgotten int64
		p.Changed = fmt.Sprintf("%d fences and %d records were forgotten, and perhaps %d records more", r.Forgotten, r.Audit.Forgotten, auditBatchSize)
		forgotten, err = p.forgetAudit(ctx)
		r.Audit.Forgotten += forgotten
		more = forgotten == auditBatchSize
	}
	return r, err
}

// sweep reads the old fences in the order of resources. It counts all, or forgets the free ones.
func (p *pruner) sweep(ctx context.Context, r *Pruning, forget bool) error {
	defer p.Waits(func() string { return "the old fences, to be compared with Redis" })()
	r.Elsewhere, r.Held = 0, 0
	err := p.findElsewhere(ctx)
	for after, more := "", true; more && err == nil; {
		after, more, err = p.next(ctx, after, r, forget)
	}
	return err
}

func (p *pruner) next(ctx context.Context, after string, r *Pruning, forget bool) (last string, more bool, err error) {
	ctx, cancel := p.Bounded(ctx)
	defer cancel()
	rows, _ := p.Pool.Query(ctx, `SELECT f.resource FROM fencedb.fences f
		WHERE f.resource > $1 AND f.advanced_at < clock_timestamp() - make_interval(secs => $2) AND f.last_fencing_token < $4 AND f.reset_from IS NULL AND NOT `+look.Foreign+`
		ORDER BY f.resource LIMIT $3`,
		after, p.older.Seconds(), look.BatchSize, p.issued.Add(-p.older).UnixMicro())
	old, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", false, conn.Explained(err)
	}
	if len(old) == 0 {
		return "", false, conn.MaySee(ctx, p.Pool)
	}
	free, err := p.free(ctx, old, r)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", false, fmt.Errorf("redis: %d resources were not looked up in time (--timeout %v): %w", len(old), p.Timeout, ctx.Err())
	case err != nil:
		return "", false, err
	}
	if forget {
		err = p.forget(ctx, free, r)
	} else {
		r.Found += int64(len(free))
	}
	return old[len(old)-1], len(old) == look.BatchSize, err
}

// free returns those that nobody holds, and that Redis does not know by other flags: whoever forgot
// a flag would be told that nobody holds anything. It counts the others.
func (p *pruner) free(ctx context.Context, resources []string, r *Pruning) ([]string, error) {
	held := make([]bool, len(resources))
	asking, asked := errgroup.WithContext(ctx)
	asking.SetLimit(16)
	for n, resource := range resources {
		asking.Go(func() error {
			known, err := p.Issuer.Inspect(asked, resource)
			held[n] = known.Token != 0
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	var free []string
	for n, resource := range resources {
		switch k, known := p.elsewhere[protocol.Digest(resource)]; {
		case held[n]:
			r.Held++
		case known:
			r.Elsewhere++
			r.example = look.Location{Namespace: k.Namespace, Kind: k.Kind, Hashed: look.IsHashed(k)}.String()
		default:
			free = append(free, resource)
		}
	}
	return free, nil
}

// findElsewhere finds what other namespaces have, and the other form of names.
func (p *pruner) findElsewhere(ctx context.Context) error {
	ctx, cancel := p.Bounded(ctx)
	defer cancel()
	keys, err := look.Survey(ctx, p.Servers, func(k lease.Key) bool {
		here := k.Kind == protocol.LeaseKind && k.Namespace == p.Names.Namespace && look.IsHashed(k) == p.Names.Hashed
		return k.Field == "fence" && !here
	})
	p.elsewhere = map[string]lease.Key{}
	for _, k := range keys {
		p.elsewhere[look.Digest(k)] = k
	}
	return err
}

// forget keeps fences that have advanced since they were found. A holder that acquired meanwhile
// has a newer token, and has entered already or will be the first to enter again.
func (p *pruner) forget(ctx context.Context, free []string, r *Pruning) error {
	var forgotten int64
	p.Changed = fmt.Sprintf("%d fences were forgotten and recorded, and perhaps %d more", r.Forgotten, len(free))
	err := p.Pool.QueryRow(ctx, `SELECT fencedb.prune('fences', make_interval(secs => $1), $2, $3, $4, $5)`,
		p.older.Seconds(), p.operator, p.reason, p.issued, free).Scan(&forgotten)
	if err != nil {
		return conn.Explained(err)
	}
	r.Forgotten += forgotten
	return nil
}

func (p *pruner) readClock(ctx context.Context) (err error) {
	ctx, cancel := p.Bounded(ctx)
	defer cancel()
	if p.issued, err = p.Client.Time(ctx).Result(); err != nil {
		return fmt.Errorf("redis: time: %w", err)
	}
	return nil
}

// countAudit counts what forgetAudit may forget: who protected a table stays while it is protected.
func (p *pruner) countAudit(ctx context.Context) (n int64, err error) {
	ctx, cancel := p.Bounded(ctx)
	defer cancel()
	err = p.Pool.QueryRow(ctx, `SELECT count(*) FROM fencedb.audit a WHERE a.at < clock_timestamp() - make_interval(secs => $1)
		AND NOT (a.event IN ('protect', 'observe') AND coalesce(a.details ->> 'oid' IN (SELECT t.table_name::oid::text FROM fencedb.protected_tables t)
			OR a.details ->> 'table' IN (SELECT t.table_name::text FROM fencedb.protected_tables t), false))`, p.auditOlder.Seconds()).Scan(&n)
	return n, conn.Explained(err)
}

func (p *pruner) forgetAudit(ctx context.Context) (n int64, err error) {
	ctx, cancel := p.Bounded(ctx)
	defer cancel()
	err = p.Pool.QueryRow(ctx, `SELECT fencedb.prune('audit', make_interval(secs => $1), $2, $3, $4, at_most => $5)`,
		p.auditOlder.Seconds(), p.operator, p.reason, p.issued, auditBatchSize).Scan(&n)
	return n, conn.Explained(err)
}
