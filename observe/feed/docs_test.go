package feed_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The kinds are the constants that event.go declares.
func TestTheDocumentationListsEveryKind(t *testing.T) {
	t.Parallel()
	read := func(file, from, pattern string) (names []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, section, found := strings.Cut(string(text), from)
		require.True(t, found)
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(section, -1) {
			names = append(names, match[1])
		}
		return names
	}
	declared := read("event.go", "type Kind string", `Kind = "(\w+)"`)
	require.NotEmpty(t, declared)
	require.Equal(t, declared, read("../../docs/observing.md", "\n## Events\n", "(?m)^\\| `(\\w+)` \\|"))
}
