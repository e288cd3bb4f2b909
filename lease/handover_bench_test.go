package lease_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// The time from the call of a release to the return of the next acquisition, with so many waiting in four
// processes. A round trip is given to compare with.
func BenchmarkHandOver(b *testing.B) {
	for _, waiters := range []int{5, 50, 500} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			client, namespace := testenv.Redis(b), testenv.Namespace(b)
			grants := make(chan *lease.Lease)
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			var issuers [4]*lease.Issuer // each a process as far as Redis can tell
			for n := range issuers {
				var err error
				issuers[n], err = lease.New(client, lease.Config{TTL: 30 * time.Second, Namespace: namespace})
				require.NoError(b, err)
			}
			for n := range waiters {
				i := issuers[n%len(issuers)]
				go func() {
					for {
						l, err := i.Acquire(ctx, "a")
						if err != nil {
							return
						}
						grants <- l
						<-l.Context().Done()
					}
				}()
			}
			holder := <-grants
			var took []time.Duration
			for b.Loop() {
				<-time.After(time.Millisecond) // the work
				start := time.Now()
				require.NoError(b, holder.Release(b.Context()))
				holder = <-grants
				took = append(took, time.Since(start))
			}
			start := time.Now()
			for range 100 {
				client.Ping(b.Context())
			}
			roundTrip := time.Since(start) / 100
			stop()
			require.NoError(b, holder.Release(context.Background()))
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "longest-µs")
			b.ReportMetric(float64(roundTrip.Microseconds()), "round-trip-µs")
		})
	}
}
