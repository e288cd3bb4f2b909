package docs

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainWords are phrases to avoid, riddles and coined words, with what to write instead.
var plainWords = []struct {
	avoid, write string
	notYet       []string // where it may still be found; delete a path when it is clean
}{
	{`\b(token|limit|lease|bucket) %[dsv] is none\b`, "invalid token %d", []string{"lease"}},
	{`\bthat is none\b`, "say what is invalid, or what is missing", []string{"docs", "fencedb", "internal/chaos", "migrations/sql"}},
	{`\bworth (asking|sending) again\b`, "retry after", []string{"lease"}},
	{`Others are at it`, "the resource is busy", nil},
	{`\bbeliev(e|ed|es) in\b`, "remaining validity", []string{"docs", "integration/matrix/leases", "lease", "migrations/sql", "observe/feed", "observe/slog"}},
	{`gives? the resource free`, "the lease expires", []string{"lease"}},
	{`None cost nothing`, "free when unused", nil},
	{`so many holders at once`, "up to N holders at once", []string{"CHANGELOG.md", "README.md"}},
	{`should have come out`, "All invariants hold.", nil},
	{`(?i)\bnothing but an acquisition`, "Only an acquisition ...", []string{"lease"}},
	{`(?i)unjudged`, "Err, OnError", []string{"integration/matrix/leases", "lease"}},
	{`\b(ear|ears|poke|pokes|poked)\b`, "subscription, wake", []string{"lease"}},
	{`(?i)straggl(e|er|ers|es|ing)\b`, "quorumGrace", []string{"lease"}},
	{`turnAway`, "forget", []string{"lease"}},
	{`\brides\b`, "canPipeline", []string{"fencedb"}},
	{`WhyNoRow\b`, "ExplainNoRows", nil},
	{`\bwho has that\b`, "name the noun: the waiter that ...", nil},
	{`\bwrong call\b`, "usage error", nil},
	{`\bmay not do this\b`, "permission denied", nil},
}

func TestPlainWords(t *testing.T) {
	t.Parallel()
	prose := []string{".go", ".md", ".sql", ".lua", ".sh", ".yml", ".html", ".js", ".css"}
	for _, file := range tracked(t) {
		if !slices.Contains(prose, path.Ext(file)) || file == "docs/words_test.go" {
			continue
		}
		text, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		for _, phrase := range plainWords {
			allowed := slices.ContainsFunc(phrase.notYet, func(where string) bool { return file == where || strings.HasPrefix(file, where+"/") })
			if found := regexp.MustCompile(phrase.avoid).FindString(string(text)); found != "" && !allowed {
				t.Errorf("%s has %q; write instead: %s", file, found, phrase.write)
			}
		}
	}
}
