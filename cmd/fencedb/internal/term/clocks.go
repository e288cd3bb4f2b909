package term

import "time"

// Clocks say how far those of the servers are ahead of this machine's, once they were asked. The
// machine of a person may be minutes off, and so may the servers be from each other: how long ago
// something was is by the clock of the server that wrote it.
type Clocks struct {
	Redis, Postgres             time.Duration
	RedisWithin, PostgresWithin time.Duration // give or take; 0: the clock was not read
}

// Apart is how far the clocks of the servers are apart, or 0 where that may be less than a second
// or where one of them was not read.
func (c Clocks) Apart() time.Duration {
	apart := (c.Redis - c.Postgres).Abs()
	if c.RedisWithin == 0 || c.PostgresWithin == 0 || apart <= Rounding+c.RedisWithin+c.PostgresWithin {
		return 0
	}
	return apart
}

// SinceRedis is the time since then, of which Redis's clock was read. It is negative where that
// clock was set back.
func (c Clocks) SinceRedis(then time.Time) time.Duration { return time.Since(then.Add(-c.Redis)) }

// SincePostgres is the time since then, of which Postgres's clock was read. It is negative where
// that clock was set back.
func (c Clocks) SincePostgres(then time.Time) time.Duration { return time.Since(then.Add(-c.Postgres)) }

// Rounding is what the clock of a server is known to: the way of its answer is not.
const Rounding = time.Second

// IssuedAt returns when a token was issued, or nil. A token is the clock of Redis in microseconds,
// or follows a higher token: one that was no time, or one from before that clock was set back.
func (c Clocks) IssuedAt(token int64) *time.Time {
	if at := time.UnixMicro(token).UTC(); at.Year() >= 2020 && c.SinceRedis(at) > -Rounding {
		return &at
	}
	return nil
}
