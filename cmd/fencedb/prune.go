package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"
)

const (
	flagOlderThan = "older-than"
	flagMaxHold   = "max-hold"
	flagRetention = "retention"
	flagAuditAge  = "audit-older-than"
	flagApply     = "apply"

	day       = 24 * time.Hour
	leastAge  = day // the least that fencedb.forget_fences accepts
	batchSize = 1000

	leastAuditAge  = 90 * day // the least that fencedb.forget_audit accepts
	auditBatchSize = 10_000
)

func (a *app) prune() *cli.Command {
	return &cli.Command{
		Name:  "prune",
		Usage: "remove old fences and records; only counts without --apply",
		Description: `A resource without a fence accepts any token. So a fence may be removed only
when no holder with an older token can be left: after the longest time that a
lease is held plus the time that a token is remembered. --older-than must be
at least the sum of the two, as the programs set them in lease.Config, and
should be longer than a process can be paused. The fences of resources that
are held now are kept.

The records in fencedb.audit are kept for ever, unless --audit-older-than
gives a time of 90 days or more. Who protected a table is kept for as long as
it is protected.

   fencedb prune                               count
   fencedb prune --apply --reason 'monthly'    ask, remove, record
   fencedb prune --apply --reason 'monthly' --audit-older-than 9000h`,
		Flags: append(auditFlags(), yesFlag(),
			&cli.DurationFlag{Name: flagOlderThan, Usage: "`TIME` since the last token", Value: 30 * day},
			&cli.DurationFlag{Name: flagMaxHold, Usage: "largest `TIME` in MaxHold", Value: time.Hour},
			&cli.DurationFlag{Name: flagRetention, Usage: "largest `TIME` in FenceRetention", Value: day},
			&cli.DurationFlag{Name: flagAuditAge, Usage: "remove records this `TIME` old too"},
			&cli.BoolFlag{Name: flagApply, Usage: "remove them, after asking"},
		),
		Action: a.pruneFences,
	}
}

type pruning struct {
	OlderThanMS int64 `json:"older_than_ms"`
	Found       int64 `json:"found"` // removable
	Held        int64 `json:"held"`  // old enough but held now
	Forgotten   int64 `json:"forgotten"`
	Applied     bool  `json:"applied"`

	Audit *auditPruning `json:"audit"` // nil: records are kept
}

type auditPruning struct {
	OlderThanMS int64 `json:"older_than_ms"`
	Found       int64 `json:"found"`
	Forgotten   int64 `json:"forgotten"`
}

func (r *auditPruning) age() time.Duration { return time.Duration(r.OlderThanMS) * time.Millisecond }

func (r *pruning) print(p page) {
	older, audit := millis(r.OlderThanMS), r.Audit
	if r.Applied {
		p.say("Forgot %d fences older than %s, kept %d that are held.", r.Forgotten, older, r.Held)
	} else {
		p.say("%d fences are older than %s and may go, %d more are held. Nothing was changed; see --%s.", r.Found, older, r.Held, flagApply)
	}
	switch {
	case audit == nil:
	case r.Applied:
		p.say("Forgot %d records older than %s.", audit.Forgotten, span(audit.age()))
	default:
		p.say("%d records are older than %s and may go.", audit.Found, span(audit.age()))
	}
}

// sweeper reads the ledger in the order of resources.
type sweeper struct {
	*servers
	older time.Duration
	limit func() (context.Context, context.CancelFunc) // for one batch
}

func (a *app) pruneFences(ctx context.Context, cmd *cli.Command) error {
	older, err := pruneAge(cmd)
	if err != nil {
		return err
	}
	var e event
	if cmd.Bool(flagApply) {
		if e, err = newEvent("prune", nil, cmd); err != nil {
			return err
		}
	}
	return a.onServers(ctx, cmd, func(both *servers) error {
		if both.replica && cmd.Bool(flagApply) {
			return errReplica
		}
		s := &sweeper{both, older, func() (context.Context, context.CancelFunc) { return bounded(ctx, cmd) }}
		r := &pruning{OlderThanMS: older.Milliseconds(), Applied: cmd.Bool(flagApply)}
		err := s.sweep(func(_ context.Context, free []string, held int) error {
			r.Found += int64(len(free))
			r.Held += int64(held)
			return nil
		})
		if age := cmd.Duration(flagAuditAge); err == nil && age > 0 {
			r.Audit = &auditPruning{OlderThanMS: age.Milliseconds()}
			err = s.countRecords(r.Audit)
		}
		if err == nil && r.Applied && (r.Found > 0 || r.Audit != nil && r.Audit.Found > 0) {
			err = a.applyPruning(ctx, cmd, s, e, r)
		}
		if err != nil {
			return err
		}
		return a.show(cmd, r)
	})
}

func (a *app) applyPruning(ctx context.Context, cmd *cli.Command, s *sweeper, e event, r *pruning) error {
	question := fmt.Sprintf("Forget %d fences older than %s? Any token will be accepted for them again.", r.Found, span(s.older))
	if r.Audit != nil {
		question = fmt.Sprintf("Forget %d records, and %d fences older than %s? Any token will be accepted for them again.", r.Audit.Found, r.Found, span(s.older))
	}
	if err := a.confirm(ctx, cmd, question); err != nil {
		return err
	}
	err := s.sweep(func(ctx context.Context, free []string, _ int) error {
		forgotten, err := s.forget(ctx, e, free)
		r.Forgotten += forgotten
		return err
	})
	for more := r.Audit != nil; more && err == nil; {
		more, err = s.forgetRecords(e, r.Audit)
	}
	return err
}

func pruneAge(cmd *cli.Command) (time.Duration, error) {
	older, hold, retention := cmd.Duration(flagOlderThan), cmd.Duration(flagMaxHold), cmd.Duration(flagRetention)
	switch {
	case hold <= 0 || retention <= 0:
		return 0, usage("--%s and --%s must be positive, got %v and %v", flagMaxHold, flagRetention, hold, retention)
	case older < hold+retention:
		return 0, usage("--%s (%v) must be at least --%s + --%s (%v): younger fences may still be needed", flagOlderThan, older, flagMaxHold, flagRetention, hold+retention)
	case older < leastAge:
		return 0, usage("--%s must be at least %v, got %v", flagOlderThan, leastAge, older)
	case cmd.IsSet(flagAuditAge) && cmd.Duration(flagAuditAge) < leastAuditAge:
		return 0, usage("--%s must be at least %v, got %v: what was recorded stays that long", flagAuditAge, leastAuditAge, cmd.Duration(flagAuditAge))
	}
	return older, nil
}

// sweep calls batch with the old resources that are free and the number of those that are held.
func (s *sweeper) sweep(batch func(ctx context.Context, free []string, held int) error) error {
	for after, more := "", true; more; {
		ctx, cancel := s.limit()
		var err error
		after, more, err = s.next(ctx, after, batch)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sweeper) next(ctx context.Context, after string, batch func(context.Context, []string, int) error) (last string, more bool, err error) {
	rows, _ := s.pool.Query(ctx, `SELECT resource FROM fencedb.fences
		WHERE resource > $1 AND advanced_at < clock_timestamp() - make_interval(secs => $2) ORDER BY resource LIMIT $3`,
		after, s.older.Seconds(), batchSize)
	old, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(old) == 0 {
		return "", false, explained(err)
	}
	free := make([]string, 0, len(old))
	for _, resource := range old {
		known, err := s.issuer.Inspect(ctx, resource)
		if err != nil {
			return "", false, err
		}
		if known.Token == 0 {
			free = append(free, resource)
		}
	}
	return old[len(old)-1], len(old) == batchSize, batch(ctx, free, len(old)-len(free))
}

// forget keeps fences that have advanced since they were found. A holder that acquired meanwhile
// has a newer token, and has entered already or will be the first to enter again.
func (s *sweeper) forget(ctx context.Context, e event, free []string) (forgotten int64, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT fencedb.forget_fences($1, make_interval(secs => $2))`, free, s.older.Seconds()).Scan(&forgotten)
		if err != nil || forgotten == 0 {
			return err
		}
		_, err = e.record(ctx, tx, map[string]any{"fences": forgotten, "older_than": s.older.String()})
		return err
	})
	return forgotten, explained(err)
}

func (s *sweeper) countRecords(r *auditPruning) error {
	ctx, cancel := s.limit()
	defer cancel()
	return explained(s.pool.QueryRow(ctx, `SELECT count(*) FROM fencedb.old_audit(make_interval(secs => $1))`, r.age().Seconds()).Scan(&r.Found))
}

// forgetRecords forgets one batch and reports whether there may be more.
func (s *sweeper) forgetRecords(e event, r *auditPruning) (more bool, err error) {
	ctx, cancel := s.limit()
	defer cancel()
	var forgotten int64
	err = s.pool.QueryRow(ctx, `SELECT fencedb.forget_audit(make_interval(secs => $1), $2, $3, $4)`,
		r.age().Seconds(), e.operator, e.reason, auditBatchSize).Scan(&forgotten)
	r.Forgotten += forgotten
	return forgotten == auditBatchSize, explained(err)
}
