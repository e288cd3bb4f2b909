// Package dashboards checks the dashboard as far as that goes without a Grafana. That its metrics
// are those of observe/prom, and that each panel has something to show, is tested there.
package dashboards

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

type dashboard struct {
	Templating struct {
		List []struct{ Name string }
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     area
	Datasource  struct{ UID string }
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
	Targets []struct{ RefID, Expr string }
}

type area struct{ X, Y, W, H int }

func (a area) overlaps(b area) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

func read(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("fencedb.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

func TestPanelsHaveAPlaceOfTheirOwn(t *testing.T) {
	t.Parallel()
	const columns = 24
	panels := read(t).Panels
	for i, p := range panels {
		require.Positive(t, p.GridPos.W*p.GridPos.H, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, columns, p.Title)
		for _, other := range panels[:i] {
			require.NotEqual(t, other.ID, p.ID, p.Title)
			require.NotEqual(t, other.Title, p.Title)
			require.False(t, p.GridPos.overlaps(other.GridPos), "%q lies over %q", p.Title, other.Title)
		}
	}
}

func TestPanelsSayWhatTheyShow(t *testing.T) {
	t.Parallel()
	for _, p := range read(t).Panels {
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		references := map[string]bool{}
		for _, target := range p.Targets {
			require.False(t, references[target.RefID], p.Title)
			references[target.RefID] = true
		}
	}
}

func TestVariablesAreDeclaredAndUsed(t *testing.T) {
	t.Parallel()
	d := read(t)
	used := map[string]bool{"datasource": true, "__rate_interval": true}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			for _, variable := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				used[variable[1]] = true
			}
		}
	}
	declared := map[string]bool{"__rate_interval": true} // by Grafana
	for _, variable := range d.Templating.List {
		declared[variable.Name] = true
	}
	require.Equal(t, declared, used)
}
