package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

var (
	redisAway = finding{failure, "redis_unreachable", "Redis cannot be reached: %v",
		"nobody can acquire or keep a lease; what fences protect stays safe", "see that it runs and that the URL is right, and run doctor again"}

	redisReplica = finding{failure, "redis_replica", "%s is a replica",
		"it accepts no writes, so it grants nothing, and its leases may be old", "give the address of the primary, or redis-sentinel:// to follow fail-overs"}

	redisEvicts = finding{failure, "redis_evicts", "%s has a maxmemory, and maxmemory-policy is %s",
		"short of memory it throws away leases that are held, and two hold at once; fences stand", "CONFIG SET maxmemory-policy noeviction, and write it into the configuration"}

	redisUnfit = finding{failure, "redis_unfit", "%v",
		"leases cannot be acquired, or can be lost while they are held; what fences protect stays safe", "change what is named and run doctor again"}
)

// warnings are the findings for warnings of package lease, whose text is their What.
var warnings = map[lease.WarningCode]finding{
	lease.WarnUnlogged: {warning, "redis_unlogged", "%s",
		"two then hold at once until the older lease has run out, and tokens rise only by the clock; fences stand", "CONFIG SET appendonly yes, and write it into the configuration"},
	lease.WarnEviction: {warning, "redis_may_evict", "%s",
		"if a maxmemory is set some day, Redis evicts leases", "CONFIG SET maxmemory-policy noeviction, and write it into the configuration"},
	lease.WarnReplicas: {warning, "redis_replicas", "%s",
		"after the fail-over two hold at once until the older lease has run out; fences stand", "set min-replicas-to-write 1 and min-replicas-max-lag 10"},
	lease.WarnVersion: {warning, "redis_version", "%s",
		"it may lack what leases need", "upgrade Redis, or use a server that behaves like a newer one"},
	lease.WarnHidden: {warning, "redis_hidden", "%s",
		"it may be a replica, evict leases, or lose them in a crash, without a warning", "let the user run INFO: ACL SETUSER ... +info; or ask the provider"},
}

// otherWarning is for warnings of package lease that this command does not know.
var otherWarning = finding{warning, "redis_warning", "%s",
	"leases are granted, but are less safe or less useful than they could be", "change the setting, or decide that you can live with it: fencing does not depend on it"}

func (e *examination) examineRedis(ctx context.Context) {
	health, problem := e.issuer.Check(ctx)
	e.add(problems(health, problem)...)
	for _, s := range health.Servers {
		for _, w := range s.Warnings {
			if w.Code == lease.WarnClock {
				continue // the clock of this machine does not matter; see askClock
			}
			f, known := warnings[w.Code]
			if !known {
				f = otherWarning
			}
			e.add(f.about(s.Addr + ": " + w.Text))
		}
		if s.RoundTrip > 0 {
			e.redis = append(e.redis, s)
		}
	}
	if problem == nil {
		e.examineLeases(ctx)
	}
}

// What is long for a lease: without renewal, and held.
const (
	longTTL  = time.Hour
	longHold = day
)

var (
	leaseLong = finding{warning, "lease_ttl", "%s is held by %s for another %s without renewal",
		"if its holder dies, it stays blocked for that long", "give the program's leases a TTL of seconds; renewal makes them as long as the work, and MaxHold bounds it"}

	redisCorrupt = finding{failure, "redis_corrupt", "%s",
		"nobody can acquire, renew or see that lease; what fences protect stays safe", "find who wrote to the key, and follow docs/runbook/redis.md, a key is not what it should be"}

	leasesHidden = finding{warning, "leases_hidden", "the leases in Redis were not examined: %v",
		"some may never end, or be corrupt", "let the user run SCAN: ACL SETUSER ... +scan; if Redis is slow or holds much else, use fencedb leases --timeout"}

	leaseUnbounded = finding{warning, "lease_unbounded", "%s has been held by %s for %s",
		"nothing bounds it: a holder that is stuck keeps it for ever", "leave it if it is a role that one process has for as long as it lives; otherwise set lease.Config.MaxHold, and see who it is"}
)

// examineLeases looks for leases that end late or never, or cannot be read. It gives up after a few seconds: a Redis
// may hold more than leases.
func (e *examination) examineLeases(ctx context.Context) {
	const most, patience = 10, 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := findLeases(ctx, e.client, selection{namespace: e.names.namespace, limit: 1000})
	if err != nil {
		e.add(leasesHidden.about(err))
		return
	}
	for _, problem := range found.Problems[:min(most, len(found.Problems))] {
		e.add(redisCorrupt.about(visible(problem)))
	}
	named := 0
	for _, h := range found.Leases {
		left, who := time.Duration(h.ExpiresInMS)*time.Millisecond, cmp.Or(visible(h.Label), "lease "+h.LeaseID.String()[:8])
		switch {
		case named == most:
			return
		case left > longTTL:
			e.add(leaseLong.about(visible(h.Resource), who, span(left)))
		case h.IssuedAt != nil && time.Since(*h.IssuedAt) > longHold:
			e.add(leaseUnbounded.about(visible(h.Resource), who, span(time.Since(*h.IssuedAt))))
		default:
			continue
		}
		named++
	}
}

// problems finds the server that the error of Check is about, if possible.
func problems(health lease.Health, problem error) (found []finding) {
	if problem == nil {
		return nil
	}
	for _, s := range health.Servers {
		switch {
		case s.Role != "" && s.Role != "master":
			found = append(found, redisReplica.about(s.Addr))
		case s.Limited && s.Eviction != "" && s.Eviction != "noeviction":
			found = append(found, redisEvicts.about(s.Addr, s.Eviction))
		}
	}
	switch {
	case len(found) > 0:
		return found
	case errors.Is(problem, lease.ErrUnreachable), errors.Is(problem, context.DeadlineExceeded):
		return []finding{redisAway.about(problem)}
	}
	return []finding{redisUnfit.about(problem)}
}

// maxClockDifference is more than NTP allows. Tokens only need a clock that does not go back.
const maxClockDifference = time.Second

var clockDifference = finding{warning, "clock_difference", "the clock of %s is %v %s Postgres's",
	"tokens carry Redis's time; if a clock that is ahead is put right and Redis then forgets a token, the next ones are refused until its clock has caught up",
	"run NTP on both machines; let the clock be slewed, not stepped"}

// askClock compares both clocks with this process's, not as [lease.Issuer.Check] would with
// Postgres's for a Config.Clock: a Postgres that hangs must not keep Redis from being examined, and
// floor needs Redis's clock by this process's.
func (e *examination) askClock(ctx context.Context) error {
	sent := time.Now()
	now, err := fencedb.Clock(e.pool)(ctx)
	if err != nil {
		return err
	}
	took := time.Since(sent)
	e.postgres = now.Sub(sent.Add(took / 2))
	for _, s := range e.redis {
		ahead := s.Clock - e.postgres
		if ahead.Abs() <= maxClockDifference+s.RoundTrip+took {
			continue
		}
		way := "ahead of"
		if ahead < 0 {
			way = "behind"
		}
		e.add(clockDifference.about(s.Addr, ahead.Abs().Round(time.Second), way))
	}
	return nil
}

var redisBehind = finding{failure, "redis_behind", "the ledger has token %d for %s, Redis knows %s",
	"Redis has lost data and its clock is behind, so new holders are refused",
	"run fencedb revoke for the resource, which takes Redis above the ledger; package guard does it by itself"}

// askCounters looks for fences that new tokens cannot pass: those ahead of the clock of Redis,
// which is the floor of new tokens, and of the last token in Redis.
func (e *examination) askCounters(ctx context.Context) error {
	if len(e.redis) == 0 {
		return nil
	}
	const most = 100 // that are named; one is enough to act
	rows, _ := e.pool.Query(ctx, `SELECT f.resource, f.last_fencing_token FROM fencedb.fences f
		WHERE f.last_fencing_token > $1 AND NOT `+foreign+` AND NOT `+tooHigh+` ORDER BY f.resource LIMIT $2`, e.floor().UnixMicro(), most)
	type ahead struct {
		Resource string
		Token    int64
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ahead])
	if err != nil {
		return err
	}
	for _, f := range all {
		known, err := e.issuer.Inspect(ctx, f.Resource)
		if err != nil {
			return err
		}
		if known.LastToken < f.Token {
			e.add(redisBehind.about(f.Token, visible(f.Resource), cmp.Or(tokenText(known.LastToken), "none")))
		}
	}
	return nil
}

// floor is the current time of the slowest clock from which tokens come.
func (e *examination) floor() time.Time {
	slowest := e.redis[0].Clock
	for _, s := range e.redis {
		slowest = min(slowest, s.Clock)
	}
	return time.Now().Add(slowest)
}
