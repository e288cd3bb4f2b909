package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/lease"
)

func redisFindings(health lease.Health, problem error) []finding {
	var found []finding
	if problem != nil {
		found = append(found, finding{failure, "redis_unfit", problem.Error(),
			"leases cannot be had, or can be lost while they are held",
			"change what is named and run doctor again; what fences protect is safe meanwhile"})
	}
	for _, text := range health.Warnings() {
		found = append(found, finding{warning, "redis_warning", text,
			"leases are granted, but are less safe or less useful than they could be",
			"change the setting, or decide that you can live with it: fencing does not depend on it"})
	}
	return found
}

// maxClockDifference leaves room for what NTP keeps; tokens need no more than a clock that does not go back.
const maxClockDifference = time.Second

func clockFindings(ahead, roundTrip time.Duration) []finding {
	if ahead.Abs() <= maxClockDifference+roundTrip {
		return nil
	}
	return []finding{{warning, "clock_difference", fmt.Sprintf("Redis's clock is %v ahead of Postgres's", ahead.Round(time.Millisecond)),
		"tokens carry Redis's time; once that clock is put right, tokens go on from the old one only as long as Redis remembers the last",
		"run NTP on both machines; let the clock be slewed, not stepped"}}
}

// examineCounters looks for fences that no new token would get past: ahead of Redis's clock, which is the floor of new
// tokens, and of what Redis remembers.
func examineCounters(ctx context.Context, d *diagnosis, i *lease.Issuer, pool *pgxpool.Pool) error {
	const most = 100 // named; one is enough to act
	rows, _ := pool.Query(ctx, `SELECT resource, last_fencing_token FROM fencedb.fences
		WHERE last_fencing_token > extract(epoch FROM clock_timestamp()) * 1000000 LIMIT $1`, most)
	type ahead struct {
		Resource string
		Token    int64
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ahead])
	if err != nil {
		return explained(err)
	}
	for _, f := range all {
		known, err := i.Inspect(ctx, f.Resource)
		if err != nil {
			return err
		}
		if known.LastToken < f.Token {
			d.add(finding{failure, "redis_behind", fmt.Sprintf("the ledger has token %d for %s, Redis knows %d", f.Token, visible(f.Resource), known.LastToken),
				"Redis has lost data and its clock is behind: new holders are refused",
				"package guard raises the counter by itself; otherwise run fencedb revoke " + visible(f.Resource) + ", which takes it above the ledger"})
		}
	}
	return nil
}
