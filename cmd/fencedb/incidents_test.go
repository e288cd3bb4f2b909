package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	promclient "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
	"github.com/fencedb/fencedb/observe/prom"
)

// incident is something that goes wrong at night, on real servers: with tables, while seats only
// come near it.
type incident struct {
	alerts  []string // that fire for tables, and not for seats; none for what only doctor sees
	section string   // of the runbook
	stage   func(n *night)
	names   string                // what the first command of the section answers
	repair  func(n *night) string // the line that ends it, and what it has printed
}

var incidents = map[string]incident{
	"a holder hangs": {
		alerts: []string{"LeaseHolderStuck", "LeaseQueueNotMoving"}, section: "a-holder-is-stuck",
		stage: func(n *night) {
			_, err := n.issuer.TryAcquire(n.Context(), "table:12") // and it never ends
			require.NoError(n, err)
			n.fail = func() {
				_, err := n.issuer.TryAcquire(n.Context(), "table:12")
				require.ErrorIs(n, err, lease.ErrHeld)
			}
			n.miss = func() { // all want it, and each gets it
				l := n.acquire("seat:1")
				_, err := n.issuer.TryAcquire(n.Context(), "seat:1")
				require.ErrorIs(n, err, lease.ErrHeld)
				require.NoError(n, l.Release(n.Context()))
			}
			n.well = func() { require.NoError(n, n.acquire("table:12").Release(n.Context())) }
		},
		names:  `table:12 .*` + regexp.QuoteMeta(label),
		repair: func(n *night) string { return n.typed(n.command("fencedb revoke")) },
	},

	"leases run out": {
		alerts: []string{"LeasesLost"}, section: "leases-are-lost",
		stage: func(n *night) {
			short := n.lease(lease.Config{TTL: 100 * time.Millisecond})
			n.fail = func() { n.lose(short, "table:12") }
			n.miss = func() {
				if n.minute%6 == 0 {
					n.lose(short, "seat:1")
				}
				require.NoError(n, n.acquire("seat:1").Release(n.Context()))
			}
			n.well = func() { require.NoError(n, n.acquire("table:12").Release(n.Context())) }
		},
		names:  `table:12.*expired`,
		repair: func(*night) string { return "TTL" }, // above the longest pause
	},

	"Redis is flushed": {
		alerts: []string{"LeasesLostAtOnce"}, section: "redis-has-lost-its-data",
		stage: func(n *night) {
			var leases []*lease.Lease
			for i := range 8 {
				leases = append(leases, n.acquire(fmt.Sprint("table:", i)))
			}
			seats := []*lease.Lease{n.acquire("seat:1"), n.acquire("seat:2")}
			n.fail = func() {
				if n.minute == lasts-2 {
					require.NoError(n, n.redis.FlushDB(n.Context()).Err())
				}
				if n.minute >= lasts-2 {
					for _, l := range leases {
						_ = l.Extend(n.Context())
					}
					_ = seats[0].Extend(n.Context())
				}
			}
		},
		names:  `cmdstat_flushdb:calls=1,`,
		repair: func(*night) string { return "nothing" },
	},

	"work outlasts its lease": {
		alerts: []string{"LeaseNotOwned", "LeasesLost"}, section: "leases-are-not-owned",
		stage: func(n *night) {
			short := n.lease(lease.Config{TTL: 100 * time.Millisecond})
			late := func(resource string) {
				l := n.lose(short, resource)
				require.Error(n, l.Release(n.Context()))
			}
			n.fail = func() { late("table:12") }
			n.miss = func() {
				if n.minute%6 == 0 {
					late("seat:1")
				}
				require.NoError(n, n.acquire("seat:1").Release(n.Context()))
			}
			n.well = func() { require.NoError(n, n.acquire("table:12").Release(n.Context())) }
		},
		names:  `table:12.*expired`,
		repair: func(*night) string { return "TTL" },
	},

	"Redis refuses writes": {
		alerts: []string{"LeaseAcquireFailing", "LeaseRenewalsFailing"}, section: "redis-answers-and-refuses",
		stage: func(n *night) {
			held := n.acquire("table:11")
			n.own.Client().ConfigSet(n.Context(), "min-replicas-to-write", "1")
			n.fail = func() {
				_, err := n.issuer.TryAcquire(n.Context(), "table:12")
				require.ErrorIs(n, err, &lease.RefusedError{Code: "NOREPLICAS"})
				require.Error(n, held.Extend(n.Context()))
			}
			n.miss = func() { // one refusal among grants
				n.told("seat:1", lease.OpAcquire, &lease.RefusedError{Code: "NOREPLICAS"})
				n.told("seat:1", lease.OpAcquire, nil)
			}
			n.well = func() {
				require.NoError(n, n.acquire("table:12").Release(n.Context()))
				require.NoError(n, held.Extend(n.Context()))
			}
		},
		names: `redis_unfit\s.*it has too few replicas`,
		repair: func(n *night) string {
			n.own.Client().ConfigSet(n.Context(), "min-replicas-to-write", "0")
			return "CONFIG SET"
		},
	},

	"Redis is gone": {
		alerts: []string{"LeaseRedisUnreachable"}, section: "redis-is-unreachable",
		stage: func(n *night) {
			n.own.Kill()
			n.fail = func() {
				ctx, cancel := context.WithTimeout(n.Context(), 50*time.Millisecond)
				defer cancel()
				_, err := n.issuer.TryAcquire(ctx, "table:12")
				require.Error(n, err)
			}
			n.miss = func() { // of another Redis, which hangs now and then
				n.told("seat:1", lease.OpAcquire, lease.ErrUnreachable)
				n.told("seat:1", lease.OpAcquire, nil)
			}
			n.well = func() { require.NoError(n, n.acquire("table:12").Release(n.Context())) }
		},
		names: `connection refused`,
		repair: func(n *night) string {
			n.own.Restart()
			require.Eventually(n, func() bool {
				l, err := n.issuer.TryAcquire(n.Context(), "table:12")
				return err == nil && l.Release(n.Context()) == nil
			}, 30*time.Second, 20*time.Millisecond)
			return "start"
		},
	},

	"Redis went backwards": {
		alerts: []string{"LeasesHealing", "LateWritesRefused", "FencingRefusalsWithoutTakeOver"}, section: "redis-went-backwards",
		stage: func(n *night) {
			n.fail = func() { // again and again, by a second
				n.enter("table:12", n.ahead(time.Duration(n.minute+1)*time.Hour))
				n.well()
			}
			n.well = func() {
				_, err := guard.New(n.issuer, n.db).Exec(n.Context(), "table:12", `SELECT`)
				require.NoError(n, err)
			}
			n.miss = func() {
				if n.minute%6 == 0 {
					n.told("seat:"+strconv.Itoa(n.minute), lease.OpRaise, nil)
				}
			}
			n.ends = func() { n.enter("table:12", n.ahead(48*time.Hour)) } // and once more, while somebody looks
		},
		names:  `redis_behind`,
		repair: func(n *night) string { return n.typed(n.command("fencedb revoke")) },
	},

	"a program writes with an old token": {
		alerts: []string{"LateWritesRefused"}, section: "late-writes-are-refused",
		stage: func(n *night) {
			old := n.grant("table:12", 41)
			n.enter("table:12", 42)
			n.fail = func() { n.refused(n.write(old), fencedb.ErrStale) }
			n.miss = func() { // late, and then in time
				n.enter("seat:1", int64(2*n.minute+2))
				n.refused(n.write(n.grant("seat:1", int64(2*n.minute+1))), fencedb.ErrStale)
			}
			n.well = func() { n.enter("table:12", 43) }
		},
		names:  `LEDGER +token 42,`,
		repair: func(*night) string { return "acquire again" },
	},

	"the ledger is ahead": {
		alerts: []string{"FencingRefusalsWithoutTakeOver", "LateWritesRefused"}, section: "refusals-without-a-take-over",
		stage: func(n *night) {
			n.enter("table:12", n.ahead(time.Hour))
			n.fail = func() {
				l := n.acquire("table:12")
				n.refused(n.write(l), fencedb.ErrStale)
				require.NoError(n, l.Release(n.Context()))
			}
			n.miss = func() { // overtaken now and then
				n.enter("seat:1", int64(2*n.minute+2))
				n.refused(n.write(n.grant("seat:1", int64(2*n.minute+1))), fencedb.ErrStale)
			}
			n.well = func() {
				l := n.acquire("table:12")
				require.NoError(n, n.write(l))
				require.NoError(n, l.Release(n.Context()))
			}
		},
		names:  `Redis is behind the ledger`,
		repair: func(n *night) string { return n.typed(n.commandIn("redis-went-backwards", "fencedb revoke")) },
	},

	"a transaction stays open": {
		alerts: []string{"FencedWritesBlocked"}, section: "a-transaction-is-in-the-way",
		stage: func(n *night) {
			conn, err := pgx.Connect(n.Context(), n.pool.Config().ConnString()+"&application_name=lunch")
			require.NoError(n, err)
			n.Cleanup(func() { _ = conn.Close(context.Background()) })
			n.enter("table:12", 41)
			tx, err := conn.Begin(n.Context())
			require.NoError(n, err)
			_, err = fencedb.Enter(n.Context(), tx, n.grant("table:12", 41))
			require.NoError(n, err)
			n.fail = n.blocked
			n.miss = func() {
				n.wrote("seat:1", fencedb.ErrBusy)
				n.wrote("seat:1", nil)
			}
			n.well = func() { n.enter("table:12", 42) }
		},
		names:  `lunch +idle in transaction`,
		repair: func(n *night) string { return n.typed(n.command("psql .*pg_terminate_backend")) },
	},

	"connections break during COMMIT": {
		alerts: []string{"CommitOutcomeUnknown"}, section: "a-commit-has-an-unknown-outcome",
		stage: func(n *night) {
			proxy := faulty.NewPostgresProxy(n, n.pool.Config().ConnString())
			pool, err := pgxpool.New(n.Context(), proxy.URL())
			require.NoError(n, err)
			n.Cleanup(pool.Close)
			proxy.OnServer(func(m pgproto3.BackendMessage) faulty.Fate {
				if _, first := m.(*pgproto3.BindComplete); first {
					return faulty.Cut
				}
				return faulty.Pass
			})
			n.fail = func() {
				_, err := fencedb.Exec(n.Context(), fencedb.With(pool, fencedb.Trace(n.metrics)), n.grant("table:12", 42), `SELECT 1`)
				n.refused(err, fencedb.ErrCommitUnknown)
			}
			n.miss = func() {
				if n.minute == 8 {
					n.wrote("seat:1", fencedb.ErrCommitUnknown)
				}
			}
			n.well = func() { n.enter("table:12", 43) } // under a higher token nothing of the old one arrives any more
		},
		names:  `<nil>`, // it cannot be known
		repair: func(*night) string { return "acquire again" },
	},

	"a prepared transaction is forgotten": {
		alerts: []string{"FencedWritesBlocked"}, section: "a-transaction-is-in-the-way",
		stage: func(n *night) {
			gid := "forgotten-" + n.one(`current_database()`)
			n.enter("table:12", 41)
			n.exec(fmt.Sprintf(`BEGIN; SELECT fencedb.enter('table:12', 41, '%s'); PREPARE TRANSACTION '%s'`, n.grant("table:12", 41).LeaseID(), gid))
			n.Cleanup(func() { _, _ = n.pool.Exec(context.Background(), `ROLLBACK PREPARED '`+gid+`'`) })
			n.fail = n.blocked
			n.well = func() { n.enter("table:12", 42) }
		},
		names: `forgotten-.*prepared transaction`,
		repair: func(n *night) string {
			n.exec(`ROLLBACK PREPARED 'forgotten-` + n.one(`current_database()`) + `'`)
			return "ROLLBACK PREPARED"
		},
	},

	"a trigger is switched off": {
		section: "rows-that-came-past-the-guard",
		stage: func(n *night) {
			n.exec(`ALTER TABLE seats DISABLE TRIGGER "~fencedb_row"; ALTER TABLE seats DISABLE TRIGGER "~fencedb_statement"; INSERT INTO seats VALUES (1, 'late')`)
		},
		names: `trigger_disabled\s+a guard of protected table seats`,
		repair: func(n *night) string {
			n.exec(`SELECT fencedb.protect('seats', 'seat:{id}')`)
			require.NotContains(n, n.typed(n.first()), "trigger_disabled")
			return n.one(`SELECT string_agg(b.guest, ',') FROM seats b LEFT JOIN fencedb.fences f ON f.resource = 'seat:' || b.id
				WHERE b.last_fencing_token IS DISTINCT FROM f.last_fencing_token AND (f.resource IS NULL OR age(b.xmin) < age(f.xmin))`)
		},
	},

	"triggers do not fire for a database": {
		section: "rows-that-came-past-the-guard",
		stage: func(n *night) {
			n.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$`)
		},
		names: `replica_role\s+session_replication_role is replica`,
		repair: func(n *night) string {
			n.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET session_replication_role', current_database()); END $$`)
			require.NotContains(n, n.typed(n.first()), "replica_role")
			return "RESET"
		},
	},

	"a partition has no guard": {
		section: "rows-that-came-past-the-guard",
		stage:   func(n *night) { n.exec(latePartition) },
		names:   `unguarded_partition\s+partition rooms_1`,
		repair: func(n *night) string {
			n.exec(`SELECT fencedb.protect('rooms', 'room:{id}')`)
			require.NotContains(n, n.typed(n.first()), "unguarded_partition")
			return "protect"
		},
	},

	"Postgres takes no writes": {
		alerts: []string{"FencedWritesFailing"}, section: "postgres-fails-over",
		stage: func(n *night) {
			database := pgx.Identifier{n.one(`current_database()`)}.Sanitize()
			n.exec(`ALTER DATABASE ` + database + ` SET default_transaction_read_only = on`)
			n.pool.Reset()
			n.quiet = true // of this type: it is the same Postgres for all
			n.fail = func() { require.Error(n, n.write(n.grant("table:12", 42))) }
			n.miss = func() { // taken is an answer
				n.wrote("seat:1", context.Canceled)
				n.wrote("seat:1", nil)
			}
			n.well = func() { n.enter("table:12", 42) }
		},
		names: `postgres_read_only`,
		repair: func(n *night) string {
			n.exec(`BEGIN READ WRITE; ALTER DATABASE ` + pgx.Identifier{n.one(`current_database()`)}.Sanitize() + ` RESET default_transaction_read_only; COMMIT`)
			n.pool.Reset()
			return "ALTER DATABASE"
		},
	},

	"a program writes to rows of others": {
		alerts: []string{"WritesWithoutGrant"}, section: "a-write-had-no-grant-for-its-row",
		stage: func(n *night) {
			insert := func(g fencedb.Grant) error {
				_, err := fencedb.Exec(n.Context(), n.db, g, `INSERT INTO seats VALUES (7, 'Ann')`)
				return err
			}
			n.fail = func() { n.refused(insert(n.grant("table:12", 42)), fencedb.ErrWrongResource) }
			n.miss = func() {
				if n.minute == 8 {
					n.wrote("seat:1", fencedb.ErrNoToken)
				}
			}
			n.well = func() { require.NoError(n, insert(n.grant("seat:7", int64(n.minute)))) }
		},
		names:  `seats.*seat:\{id\}`,
		repair: func(*night) string { return "the right grant" },
	},
}

// The drill: the alert comes and names no near miss, although a hundred times as much goes well
// beside the incident; the first command of the runbook names the cause; what it says to do ends
// it, and the alert goes. The incident and its repair happen on real servers; what goes well beside
// it is only told to the metrics.
func TestEachIncidentIsSeenNamedAndRepaired(t *testing.T) {
	t.Parallel()
	for name, i := range incidents {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNight(t)
			n.section = i.section
			i.stage(n)
			n.pass(lasts, func() { n.fail(); n.miss() })

			if n.ends != nil {
				n.ends()
			}
			require.Regexp(t, i.names, n.typed(n.first()), n.first())
			require.NotEmpty(t, i.repair(n))
			n.pass(lasts, func() { n.well(); n.miss() })

			n.judge(i.alerts)
		})
	}
}

// In minutes: how long an incident lasts, and how long is waited for the alert to go.
const lasts = 26

// night is a world of which every step is a minute of metrics.
type night struct {
	*world
	section          string
	fail, miss, well func()
	ends             func() // what is true when somebody looks
	quiet            bool   // nothing of the type goes well beside the incident
	db               fencedb.DB
	metrics          *prom.Metrics
	registry         *promclient.Registry

	minute  int
	at      []time.Time         // when each minute was
	samples map[string][]string // by series
	gauges  map[string]gauge    // the latest, by series
}

// gauge is a time in seconds, as it was and as the night has it.
type gauge struct{ real, told float64 }

func newNight(t *testing.T) *night {
	t.Helper()
	n := &night{
		world: sound(t), metrics: prom.New(prom.Config{}), registry: promclient.NewRegistry(),
		samples: map[string][]string{}, gauges: map[string]gauge{},
	}
	n.registry.MustRegister(n.metrics)
	n.issuer = n.lease(lease.Config{TTL: time.Minute})
	n.db = fencedb.With(n.pool, fencedb.Trace(n.metrics))
	n.fail, n.miss, n.well = func() {}, func() {}, func() {}
	return n
}

func (n *night) lease(cfg lease.Config) *lease.Issuer {
	n.Helper()
	events := feed.New(n.redis, feed.Namespace(n.namespace), feed.Worker("worker-7"))
	n.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = events.Close(ctx)
	})
	cfg.Namespace, cfg.RenewEvery, cfg.Holder = n.namespace, lease.Never, label
	cfg.Tracers = []lease.Tracer{n.metrics, events}
	i, err := lease.New(n.redis, cfg)
	require.NoError(n, err)
	return i
}

// blocked writes while another transaction is in the way, with a deadline that is shorter than the
// lease, and with a later one if the write may not have begun to wait.
func (n *night) blocked() {
	n.Helper()
	var err error
	for within := 60 * time.Millisecond; within < 10*time.Second && !errors.Is(err, fencedb.ErrBusy); within *= 2 {
		ctx, cancel := context.WithTimeout(n.Context(), within)
		err = fencedb.Tx(ctx, n.db, n.grant("table:12", 42), func(pgx.Tx) error { return nil })
		cancel()
	}
	n.refused(err, fencedb.ErrBusy)
}

// lose holds a resource until its lease has run out, in Redis too, which is a little later. Redis
// may be too slow for so short a lease.
func (n *night) lose(short *lease.Issuer, resource string) *lease.Lease {
	n.Helper()
	l, err := short.Acquire(n.Context(), resource)
	for errors.Is(err, lease.ErrUnreachable) {
		l, err = short.Acquire(n.Context(), resource)
	}
	require.NoError(n, err)
	<-l.Context().Done()
	for n.redis.Exists(n.Context(), "lease:v1:{"+n.namespace+"/"+resource+"}:owner").Val() > 0 {
	}
	return l
}

func (n *night) grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, uuid.NewSHA1(uuid.Nil, []byte(resource)), fencedb.NoEnd)
}

// ahead is a token that Redis issues after that time.
func (n *night) ahead(d time.Duration) int64 { return time.Now().Add(d).UnixMicro() }

// enter writes with a token, which thereby is the newest.
func (n *night) enter(resource string, token int64) {
	n.Helper()
	require.NoError(n, n.write(n.grant(resource, token)))
}

func (n *night) write(g fencedb.Grant) error {
	_, err := fencedb.Exec(n.Context(), n.db, g, `SELECT`)
	return err
}

func (n *night) refused(err, want error) {
	n.Helper()
	require.ErrorIs(n, err, want)
}

// told and wrote tell the metrics what has not happened here.
func (n *night) told(resource string, op lease.Op, err error) {
	s := lease.TraceStart{Op: op, Kind: "lease", Namespace: n.namespace, Resource: resource}
	n.metrics.TraceLeaseEnd(n.metrics.TraceLeaseStart(context.Background(), s), lease.TraceEnd{TraceStart: s, Err: err})
}

func (n *night) wrote(resource string, err error) {
	s := fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{n.grant(resource, 7)}}
	n.metrics.TraceWriteEnd(n.metrics.TraceWriteStart(context.Background(), s), fencedb.TraceEnd{TraceStart: s, Err: err})
}

// pass lets minutes pass: in each, something happens once, and a hundred times as much goes well.
func (n *night) pass(minutes int, happens func()) {
	n.Helper()
	for range minutes {
		n.minute++
		happens()
		for k := range 100 {
			for _, kind := range []string{"table", "seat"} {
				resource := fmt.Sprint(kind, ":", 1000+k)
				n.told(resource, lease.OpAcquire, nil)
				n.told(resource, lease.OpHold, lease.ErrReleased)
				n.told(resource, lease.OpExtend, nil)
				n.told(resource, lease.OpRelease, nil)
				if kind == "seat" || !n.quiet {
					n.wrote(resource, nil)
				}
			}
		}
		n.sample()
	}
}

func (n *night) sample() {
	n.Helper()
	now := time.Now()
	n.at = append(n.at, now)
	families, err := n.registry.Gather()
	require.NoError(n, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if m.GetHistogram() != nil || m.GetSummary() != nil {
				continue
			}
			series := f.GetName() + `{job="shop"`
			for _, l := range m.GetLabel() {
				series += fmt.Sprintf(", %s=%q", l.GetName(), l.GetValue())
			}
			series += "}"
			if strings.HasSuffix(f.GetName(), "_seconds") && value > 0 {
				g := n.gauges[series]
				if g.real != value { // or it ended before this minute
					g = gauge{value, 60 * (float64(len(n.at)) - n.minuteOf(now.Add(-time.Duration(value*float64(time.Second)))))}
					n.gauges[series] = g
				}
				value = g.told
			}
			for len(n.samples[series]) < len(n.at)-1 {
				n.samples[series] = append(n.samples[series], "_")
			}
			n.samples[series] = append(n.samples[series], strconv.FormatFloat(value, 'f', -1, 64))
		}
	}
}

// minuteOf is when a time was, in minutes of the night: the gauges measure real time, and a minute
// is as long as what happens in it.
func (n *night) minuteOf(t time.Time) float64 {
	i, _ := slices.BinarySearchFunc(n.at, t, time.Time.Compare)
	if i == 0 {
		return 1
	}
	if i == len(n.at) {
		return float64(i)
	}
	return float64(i) + float64(t.Sub(n.at[i-1]))/float64(n.at[i].Sub(n.at[i-1]))
}

// judge asks the shipped rules what they make of the night.
func (n *night) judge(alerts []string) {
	n.Helper()
	rules, err := filepath.Abs("../../observe/dashboards/rules.yml")
	require.NoError(n, err)
	text := "rule_files: [" + rules + "]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"
	for series, values := range n.samples {
		text += fmt.Sprintf("      - {series: '%s', values: '%s'}\n", series, strings.Join(values, " "))
	}
	text += "    promql_expr_test:\n"
	asked := func(expr string, minute int, alerts ...string) {
		text += fmt.Sprintf("      - expr: %s\n        eval_time: %dm\n        exp_samples:\n", expr, minute)
		for _, name := range alerts {
			text += fmt.Sprintf("          - {labels: '{alertname=%q}', value: 1}\n", name)
		}
	}
	asked(`max by (alertname) (ALERTS{alertstate="firing", resource_type="table"})`, lasts-1, alerts...)
	asked(`max by (alertname) (ALERTS{alertstate="firing", resource_type="table"})`, 2*lasts-1)
	asked(`max by (alertname) (max_over_time(ALERTS{alertstate="firing", resource_type!="table"}[2h]))`, 2*lasts-1)
	file := filepath.Join(n.TempDir(), "night.yml")
	require.NoError(n, os.WriteFile(file, []byte(text), 0o600))
	said, err := exec.CommandContext(n.Context(), "promtool", "test", "rules", file).CombinedOutput()
	require.NoError(n, err, "%s", said)
}

// lines are the commands of a section of the runbook, in their order.
func (n *night) lines(section string) (commands []string) {
	n.Helper()
	for _, body := range strings.Split(runbook(n.T), "\n## ")[1:] {
		heading, body, _ := strings.Cut(body, "\n")
		if strings.ReplaceAll(regexp.MustCompile(`[^a-z -]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-") != section {
			continue
		}
		_, body, _ = strings.Cut(body, "**Look.**")
		for _, m := range regexp.MustCompile("(?m)^    ((?:fencedb|redis-cli|psql) .*?)(?: {2,}#.*)?$|```sql\n((?s:.*?))```").FindAllStringSubmatch(body, -1) {
			commands = append(commands, strings.TrimSpace(m[1]+m[2]))
		}
	}
	require.NotEmpty(n, commands, section)
	return commands
}

func (n *night) first() string { return n.lines(n.section)[0] }

func (n *night) command(pattern string) string { return n.commandIn(n.section, pattern) }

func (n *night) commandIn(section, pattern string) string {
	n.Helper()
	for _, line := range n.lines(section) {
		if regexp.MustCompile(`^` + pattern).MatchString(line) {
			return line
		}
	}
	require.Fail(n, "the runbook has no such line", pattern)
	return ""
}

// typed is what a line of the runbook prints. Where it is not for fencedb, the servers are asked as
// psql and redis-cli would.
func (n *night) typed(line string) string {
	n.Helper()
	words := []string{}
	for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(word, `'"`))
	}
	switch words[0] {
	case "fencedb":
		n.answer = "y\n"
		n.screen.width = 120
		if words[1] == "watch" {
			watching := n.start(append(words[1:], "--since", "1h")...)
			return watching.next(watching.out)
		}
		got := n.run(words[1:]...)
		return got.errOut + got.out
	case "redis-cli":
		var args []any
		for _, word := range words[3:] {
			args = append(args, word)
		}
		answer, err := n.redis.Do(n.Context(), args...).Result()
		return fmt.Sprintln(answer, err)
	case "psql":
		return n.queried(words[len(words)-1])
	}
	return n.queried(line)
}

func (n *night) queried(sql string) (out string) {
	n.Helper()
	pool, err := pgxpool.New(n.Context(), n.pool.Config().ConnString())
	require.NoError(n, err)
	defer pool.Close()
	rows, err := pool.Query(n.Context(), sql)
	require.NoError(n, err, sql)
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		require.NoError(n, err)
		out += fmt.Sprintln(values...)
	}
	require.NoError(n, rows.Err(), sql)
	return out
}
