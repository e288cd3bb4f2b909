package lease

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestTracingThatIsOffAllocatesNothing(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	issuer, err := New(client, Config{TTL: time.Minute})
	require.NoError(t, err)
	l := &Lease{issuer: issuer}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		pair := issuer.trace(t.Context(), TraceStart{Op: OpAcquire, Resource: "table:12"})
		pair.granted(l).end(l, nil)
		pair.endWith(l)
	}))
}
