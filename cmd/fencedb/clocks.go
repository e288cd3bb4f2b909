package main

import "time"

// clocks say how far those of the servers are ahead of this machine's, once they were asked. The
// machine of a person may be minutes off, and so may the servers be from each other: how long ago
// something was is by the clock of the server that wrote it.
type clocks struct {
	redis, postgres             time.Duration
	redisWithin, postgresWithin time.Duration // give or take; 0: the clock was not read
}

// offset is how far the clock that said at is ahead of this machine's, give or take within: it was
// read on the way of a request that was sent then.
func offset(sent, at time.Time) (ahead, within time.Duration) {
	within = max(1, time.Since(sent)/2)
	return at.Sub(sent.Add(within)), within
}

// apart is how far the clocks of the servers are apart, or 0 where that may be less than a second
// or where one of them was not read.
func (c clocks) apart() time.Duration {
	apart := (c.redis - c.postgres).Abs()
	if c.redisWithin == 0 || c.postgresWithin == 0 || apart <= rounding+c.redisWithin+c.postgresWithin {
		return 0
	}
	return apart
}

// sinceRedis is the time since then, of which Redis's clock was read; sincePostgres is that for
// Postgres. It is negative where that clock was set back.
func (c clocks) sinceRedis(then time.Time) time.Duration { return time.Since(then.Add(-c.redis)) }

func (c clocks) sincePostgres(then time.Time) time.Duration { return time.Since(then.Add(-c.postgres)) }

// rounding is what the clock of a server is known to: the way of its answer is not.
const rounding = time.Second

// issuedAt returns when a token was issued, or nil. A token is the clock of Redis in microseconds,
// or follows a higher token: one that was no time, or one from before that clock was set back.
func (c clocks) issuedAt(token int64) *time.Time {
	at := time.UnixMicro(token).UTC()
	return optional(at, at.Year() >= 2020 && c.sinceRedis(at) > -rounding)
}
