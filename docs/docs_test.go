// Package docs checks that the documentation is still true of the code.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// pages are the documents of this directory, by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	pages := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		pages[name] = string(text)
	}
	return pages
}

// Every test that a page names as the proof of what it says.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	declared := declaredTests(t)
	for page, text := range pages(t) {
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(text, -1) {
			require.Contains(t, declared, name, page)
		}
	}
}

func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	tests := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range declaration.FindAllStringSubmatch(string(text), -1) {
			tests[match[1]] = true
		}
		return err
	})
	require.NoError(t, err)
	return tests
}

// Links to files, and to headings of the same page.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for page, text := range pages(t) {
		headings := map[string]bool{}
		for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
			headings["#"+anchor(match[1])] = true
		}
		for _, match := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			link := match[1]
			switch {
			case strings.Contains(link, "://"):
			case strings.HasPrefix(link, "#"):
				require.Contains(t, headings, link, page)
			default:
				file, _, _ := strings.Cut(link, "#")
				require.FileExists(t, file, page)
			}
		}
	}
}

// anchor is the name that a heading gets where Markdown is shown.
func anchor(heading string) string {
	kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(kept, " ", "-")
}

// Page by page, in order, on a server of its own, because roles are made.
func TestTheSQLInTheDocumentationRuns(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?ms)^ *```sql\n(.*?)^ *```")
	for page, text := range pages(t) {
		found := blocks.FindAllStringSubmatch(text, -1)
		if found == nil {
			continue
		}
		conn, err := pgx.Connect(t.Context(), testenv.OwnPostgres(t).Pool().Config().ConnString())
		require.NoError(t, err)
		for _, block := range found {
			_, err := conn.PgConn().Exec(t.Context(), block[1]).ReadAll()
			require.NoError(t, err, "%s:\n%s", page, block[1])
		}
		require.NoError(t, conn.Close(t.Context()))
	}
}
