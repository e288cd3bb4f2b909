package prom_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/observe/prom"
)

// declared are the names of all metrics, from their descriptions, in order.
func declared() []string {
	descs := make(chan *prometheus.Desc, 100)
	prom.New(prom.Config{}).Describe(descs)
	close(descs)
	var names []string
	for d := range descs {
		names = append(names, regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1])
	}
	slices.Sort(names)
	return names
}

func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"fencedb_commit_duration_seconds",
		"fencedb_write_duration_seconds",
		"fencedb_writes_total",
		"redis_lease_acquire_duration_seconds",
		"redis_lease_acquire_total",
		"redis_lease_contention_total",
		"redis_lease_extend_total",
		"redis_lease_fencing_rejected_total",
		"redis_lease_healed_total",
		"redis_lease_held",
		"redis_lease_hold_duration_seconds",
		"redis_lease_lost_total",
		"redis_lease_not_owned_total",
		"redis_lease_oldest_held_seconds",
		"redis_lease_release_total",
		"redis_lease_revoked_total",
		"redis_lease_stale_release_total",
		"redis_lease_wait_duration_seconds",
		"redis_lease_waiters",
	}, declared())
}

// named are the metrics that a file speaks of. Recorded rules have a colon in front.
func named(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var names []string
	for _, match := range regexp.MustCompile(`(^|[^:\w])((?:redis_lease|fencedb)_[a-z_]+[a-z])`).FindAllStringSubmatch(string(text), -1) {
		name := match[2]
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, part)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestTheDashboardShowsEveryMetricAndNoOther(t *testing.T) {
	t.Parallel()
	require.Equal(t, declared(), named(t, "../grafana/dashboards/fencedb.json"))
}

func TestTheRulesKnowTheirMetrics(t *testing.T) {
	t.Parallel()
	require.Subset(t, declared(), named(t, "../prometheus/rules.yml"))
}
