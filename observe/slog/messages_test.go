package slog

import (
	"bytes"
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

// A word of each line of what did not come about leads to a section by grep, at every level.
func TestEachLineOfAFailureLeadsToASectionOfTheRunbook(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	check := func(outcome string, l line) {
		switch outcome {
		case "granted", "extended", "released", "done", "committed", "cancelled":
			require.Empty(t, l.section, "%s: %s", l.message, outcome)
			return
		}
		require.NotEmpty(t, l.section, "%s: %s", l.message, outcome)
		require.Contains(t, string(page), "#"+l.section+")", "%s: %s", l.message, outcome)
		var text bytes.Buffer
		logs := New(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})), Config{})
		logs.log(t.Context(), l, nil, outcome, os.ErrInvalid)
		require.Regexp(t, `see=`+l.section+`\n$`, text.String())
	}
	for _, lines := range leaseLines {
		for outcome, l := range lines {
			check(outcome, l)
		}
	}
	for outcome, l := range writeLines {
		if outcome != "error" { // the caller's own, or in sections
			check(outcome, l)
		}
	}
	for code, section := range sections {
		check(code, debug("write failed").see(section))
	}
	check(notSealed, warn(notSealed, notToBeSealed))
}
