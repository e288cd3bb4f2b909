package testenv

import (
	"testing"
	"time"
)

// Stopwatch starts, and returns how long this process has run since. A time in which the machine
// stood still, or had something else to do, counts as 50 ms. So a bound tells what waits from what
// is slow.
func Stopwatch(t testing.TB) (ran func() time.Duration) {
	t.Helper()
	const tick, most = 10 * time.Millisecond, 50 * time.Millisecond
	ask, end := make(chan chan time.Duration), make(chan struct{})
	t.Cleanup(func() { close(end) })
	go func() {
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		var total time.Duration
		last := time.Now()
		count := func() { now := time.Now(); total += min(now.Sub(last), most); last = now }
		for {
			select {
			case <-ticks.C:
				count()
			case answer := <-ask:
				count()
				answer <- total
			case <-end:
				return
			}
		}
	}()
	return func() time.Duration {
		answer := make(chan time.Duration)
		ask <- answer
		return <-answer
	}
}
