package lease

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
)

// When its context is over, Close looks at a hundred of what it leaves, however much that is, and
// waits for no lease: one may be busy with a tracer.
func TestCloseLooksAtFewWhenItsContextIsOver(t *testing.T) {
	for name, leave := range map[string]func(c *core, n int){
		"leases that it has not come to": func(c *core, n int) {
			l := &Lease{core: c, resource: strconv.Itoa(n)}
			c.registry.hold(l)
			l.mu.Lock() // for good
		},
		"releases under way": func(c *core, n int) { c.registry.add(new(pending), strconv.Itoa(n)) },
		"releases that were refused": func(c *core, n int) {
			c.registry.close()
			c.registry.add(new(pending), strconv.Itoa(n)).finish(&RefusedError{Code: protocol.Denied})
		},
	} {
		t.Run(name, func(t *testing.T) {
			work := func(many int) float64 {
				i, err := New(redis.NewClient(&redis.Options{}), Config{TTL: time.Minute})
				require.NoError(t, err)
				for n := range many {
					leave(i.core, n)
				}
				i.registry.close()
				var left *NotGivenBackError
				allocs := testing.AllocsPerRun(1, func() {
					require.ErrorAs(t, i.registry.left(context.DeadlineExceeded), &left)
				})
				require.Len(t, left.Blocked, mostBlocked)
				require.Equal(t, many-mostBlocked, left.More)
				require.ErrorContains(t, left, ", and "+strconv.Itoa(many-10)+" more: ")
				return allocs
			}
			require.InDelta(t, work(200), work(20_000), 20)
		})
	}
}
