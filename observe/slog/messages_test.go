package slog

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheDocumentationListsEveryMessage(t *testing.T) {
	t.Parallel()
	logged := map[string]bool{}
	add := func(l line) { logged[strings.ToLower(l.level.String())+" "+l.message] = true }
	add(waiting)
	add(entered)
	add(sealed)
	add(debug(notSealed))
	add(warn(notSealed, ""))
	for _, lines := range leaseLines {
		for _, l := range lines {
			add(l)
		}
	}
	for _, l := range writeLines {
		add(l)
	}

	page, err := os.ReadFile("../../docs/observing.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^\| (debug|info|warn|error) \| (.+?) \|`).FindAllStringSubmatch(string(page), -1) {
		documented[match[1]+" "+match[2]] = true
	}
	require.Equal(t, logged, documented)
}

// A word of each line that may need attention leads to a section by grep.
func TestEachWarningLeadsToASectionOfTheRunbook(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	check := func(outcome string, l line) {
		if l.level >= slog.LevelWarn {
			require.NotEmpty(t, l.section, "%s: %s", l.message, outcome)
			require.Contains(t, string(page), "#"+l.section+")", "%s: %s", l.message, outcome)
		}
	}
	for _, lines := range leaseLines {
		for outcome, l := range lines {
			check(outcome, l)
		}
	}
	for outcome, l := range writeLines {
		check(outcome, l)
	}
	check(notSealed, warn(notSealed, notToBeSealed))
}
