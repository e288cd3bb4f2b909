package lease

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestTracingThatIsOffAllocatesNothing(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, untracedLease(t)))
}

// What an acquisition and a release pay for tracers that are not there. A round trip takes a
// thousand times as long.
func BenchmarkTracingThatIsOff(b *testing.B) {
	untraced := untracedLease(b)
	b.ReportAllocs()
	for b.Loop() {
		untraced()
	}
}

// untracedLease does all that is done for tracers in an acquisition and a release.
func untracedLease(t testing.TB) func() {
	client := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = client.Close() })
	issuer, err := New(client, Config{TTL: time.Minute})
	require.NoError(t, err)
	l := &Lease{core: issuer.core, resource: "table:12"}
	ctx := t.Context()
	return func() {
		acquire := issuer.trace(ctx, TraceStart{Op: OpAcquire, Resource: "table:12"})
		hold := issuer.trace(acquire.ctx, TraceStart{Op: OpHold, Resource: "table:12"})
		l.life = hold.kept()
		Leases{l}.endTracing(&acquire, nil)
		release := l.trace(ctx, OpRelease)
		release.end(0, nil)
	}
}
