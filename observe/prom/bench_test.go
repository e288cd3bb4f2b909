package prom_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/prom"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// What metrics add to an acquisition with its release, and to a write in one round trip, on real
// servers:
//
//	go test -run '^$' -bench Overhead -benchtime 300x ./observe/prom
//
// A round is a hundred of each, without and with, one after the other in turn; the result is the
// median of the rounds' ratios, so that what else the machine does falls on both. off/off is the
// same with nothing to find: what the measurement is worth.
func BenchmarkOverheadOfAcquiring(b *testing.B) {
	client, namespace := testenv.Redis(b), testenv.Namespace(b)
	acquiring := func(tracers ...lease.Tracer) func() {
		issuer, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: namespace, Tracers: tracers})
		require.NoError(b, err)
		return func() {
			l, err := issuer.Acquire(b.Context(), "table:12", lease.NoWait())
			require.NoError(b, err)
			require.NoError(b, l.Release(b.Context()))
		}
	}
	compare(b, acquiring(), acquiring(), acquiring(prom.New(prom.Config{})))
}

func BenchmarkOverheadOfWriting(b *testing.B) {
	pool := testenv.Postgres(b)
	_, err := pool.Exec(b.Context(), `CREATE TABLE bookings (table_id int PRIMARY KEY, guest int NOT NULL);
		SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	require.NoError(b, err)
	g := fencedb.NewGrant("table:12", 7, id, fencedb.NoEnd)
	writing := func(db fencedb.DB) func() {
		return func() {
			_, err := fencedb.Exec(context.Background(), db, g,
				`INSERT INTO bookings VALUES (12, 1) ON CONFLICT (table_id) DO UPDATE SET guest = bookings.guest + 1`)
			require.NoError(b, err)
		}
	}
	compare(b, writing(pool), writing(pool), writing(fencedb.With(pool, fencedb.Trace(prom.New(prom.Config{})))))
}

func compare(b *testing.B, off, offAgain, on func()) {
	all := []func(){off, offAgain, on}
	took := make([]time.Duration, len(all))
	var same, more []float64
	for n := 0; b.Loop(); n++ {
		for k := range all { // another is first each time
			which := (n + k) % len(all)
			began := time.Now()
			for range 100 {
				all[which]()
			}
			took[which] = time.Since(began)
		}
		same = append(same, took[1].Seconds()/took[0].Seconds())
		more = append(more, took[2].Seconds()/took[0].Seconds())
	}
	b.ReportMetric(median(same), "off/off")
	b.ReportMetric(median(more), "on/off")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// What metrics cost by themselves, without servers.
func BenchmarkMetrics(b *testing.B) {
	m := prom.New(prom.Config{})
	b.Run("lease", func(b *testing.B) {
		acquire := lease.TraceStart{Op: lease.OpAcquire, Kind: "lease", Resource: "table:12"}
		hold := lease.TraceStart{Op: lease.OpHold, Kind: "lease", Resource: "table:12"}
		release := lease.TraceStart{Op: lease.OpRelease, Kind: "lease", Resource: "table:12"}
		b.ReportAllocs()
		for b.Loop() {
			acquiring := m.TraceLeaseStart(b.Context(), acquire)
			holding := m.TraceLeaseStart(acquiring, hold)
			m.TraceLeaseEnd(acquiring, lease.TraceEnd{TraceStart: acquire, Took: time.Millisecond})
			m.TraceLeaseEnd(holding, lease.TraceEnd{TraceStart: hold, Took: time.Millisecond, Err: lease.ErrReleased})
			m.TraceLeaseEnd(m.TraceLeaseStart(b.Context(), release), lease.TraceEnd{TraceStart: release, Took: time.Millisecond})
		}
	})
	b.Run("write", func(b *testing.B) {
		s := fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{fencedb.NewGrant("table:12", 7, id, fencedb.NoEnd)}}
		b.ReportAllocs()
		for b.Loop() {
			m.TraceWriteEnd(m.TraceWriteStart(b.Context(), s), fencedb.TraceEnd{TraceStart: s, Took: time.Millisecond})
		}
	})
}
