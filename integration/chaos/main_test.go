// Package chaos proves that both halves of fencedb hold together when Redis misbehaves.
//
// Workers take leases from a Redis and count in Postgres behind the fence, each increment a read and a write; some of them
// oversleep on purpose and write when others have long taken over. Meanwhile Redis is killed, set back, flushed, starved or
// replaced. Afterwards SQL judges what was committed, and asks no worker:
//
//   - in the order of commits, tokens of a resource never go down, and one token belongs to one lease;
//   - counters went 1, 2, 3, ... without a gap or a repetition, so that no update was lost;
//   - there are as many commits as workers were told of.
//
// Beside that, whoever was overtaken must have been refused, and after each fault every resource must be worked on again within
// a bound and without help. TestWithoutTheFenceUpdatesAreLost is the control: the same harness without the fence
// has to find lost updates.
//
// Each test injects its fault once. FENCEDB_CHAOS_ROUNDS repeats that, for longer runs:
//
//	FENCEDB_CHAOS_ROUNDS=50 go test -race -timeout 1h ./integration/chaos
package chaos

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(stoppedVar); settings != "" {
		if err := oversleepInAProcess(strings.Fields(settings)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}

// rounds is how often each test injects its fault.
func rounds(t *testing.T) int {
	t.Helper()
	dial := os.Getenv("FENCEDB_CHAOS_ROUNDS")
	if dial == "" {
		return 1
	}
	n, err := strconv.Atoi(dial)
	require.NoError(t, err, "FENCEDB_CHAOS_ROUNDS must be a whole number")
	require.Positive(t, n, "FENCEDB_CHAOS_ROUNDS")
	return n
}
