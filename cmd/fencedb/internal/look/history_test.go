package look

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// The clocks of the two servers are compared, since the time line mixes them.
func TestHistoryNamesClocksThatAreApart(t *testing.T) {
	t.Parallel()
	const fast = time.Millisecond
	for _, test := range []struct {
		redis, postgres             time.Duration
		redisWithin, postgresWithin time.Duration
		apart                       bool
	}{
		{-3 * time.Second, 0, fast, fast, true},
		{time.Minute, time.Minute + 3*time.Second, fast, fast, true},
		{time.Second / 2, 0, fast, fast, false},
		{3 * time.Second, 0, time.Second, 2 * time.Second, false}, // the answers were that slow
		{3 * time.Second, 0, 0, fast, false},                      // Redis did not tell its time
		{0, 3 * time.Second, fast, 0, false},
	} {
		read := term.Clocks{Redis: test.redis, Postgres: test.postgres,
			RedisWithin: test.redisWithin, PostgresWithin: test.postgresWithin}
		found := slices.ContainsFunc((&Timeline{ahead: read}).conclude(), func(n Note) bool { return n.Code == "clock_difference" })
		require.Equal(t, test.apart, found, "%+v", test)
	}
}
