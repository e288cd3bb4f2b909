package prom_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/observe/prom"
)

// Names with their labels, and the words that labels can have.
func TestTheDocumentationListsEveryMetric(t *testing.T) {
	t.Parallel()
	m := prom.New(prom.Config{})
	everything(m, "table:12")

	documented := map[string]string{}
	words := map[string]string{}
	page, err := os.ReadFile("../../docs/observing.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| `((?:redis_lease|fencedb)_\\w+)` \\| (.*?) \\| (.*) \\|$")
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		documented[match[1]] = strings.ReplaceAll(match[2], "`", "")
		words[match[1]] = match[3]
	}
	require.Equal(t, labelled(m), documented)

	for _, f := range gather(t, m) {
		if f.GetName() == "fencedb_write_duration_seconds" { // as those of fencedb_writes_total
			continue
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "outcome" || l.GetName() == "cause" {
					require.Regexp(t, `\b`+l.GetValue()+`\b`, words[f.GetName()], f.GetName())
				}
			}
		}
	}
}

// labelled are the names of all metrics with those of their labels.
func labelled(m *prom.Metrics) map[string]string {
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	close(descs)
	all := map[string]string{}
	for d := range descs {
		match := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(d.String())
		labels := strings.Split(match[2], ",")
		// In the order of a scrape.
		if len(labels) == 2 && labels[0] > labels[1] {
			labels[0], labels[1] = labels[1], labels[0]
		}
		all[match[1]] = strings.Join(labels, " ")
	}
	return all
}
