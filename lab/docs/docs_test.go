// Package docs checks that the documentation is still true of the code.
package docs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// The pages are read from where they lie.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../docs"); err != nil {
		panic(err)
	}
	testenv.Main(m)
}

// pages are the documents of the repository, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "..":
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		pages[path] = string(text)
		return err
	})
	require.NoError(t, err)
	require.Contains(t, pages, "../README.md")
	require.Contains(t, pages, "../docs/runbook.md")
	return pages
}

// Every test that a page names as the proof of what it says.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	declared := declaredTests(t)
	for page, text := range pages(t) {
		for _, match := range regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(text, -1) {
			require.True(t, declared[match[1]], "%s names %s", page, match[1])
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

// Each row of the table of features has a page and a test.
func TestEveryFeatureHasAPageAndATest(t *testing.T) {
	t.Parallel()
	rows := 0
	for line := range strings.Lines(pages(t)["../lab/docs/features.md"]) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "feature" {
			continue
		}
		rows++
		require.Regexp(t, `^ \[.*\]\(.*\) $`, cells[2], line)
		require.Regexp(t, "^ `Test.*` $", cells[3], line)
	}
	require.Greater(t, rows, 50)
}

// Each promise says in the same form how it can be checked: with tests, by what is broken on
// purpose, and with a command that finds a test.
func TestEveryPromiseHasItsEvidence(t *testing.T) {
	t.Parallel()
	page := pages(t)["../docs/promises.md"]
	named := regexp.MustCompile(`(?m)^\| \[([SL]\d)\]\(docs/promises\.md#`).FindAllStringSubmatch(pages(t)["../README.md"], -1)
	require.Len(t, named, 16)
	for _, promise := range named {
		_, section, found := strings.Cut(page, "\n### "+promise[1]+" ")
		require.True(t, found, promise[1])
		section, _, _ = strings.Cut(section, "\n##")
		require.Regexp(t, "(?s)\n- \\*\\*Shown by\\*\\* `Test.*\n- \\*\\*Broken on purpose\\*\\* .*\n- \\*\\*In the model\\*\\* .*\n- \\*\\*Run\\*\\* `go test", section)
	}
	for _, command := range regexp.MustCompile("`go test \\./(\\S+) -run (Test\\w+)").FindAllStringSubmatch(page, -1) {
		text := sources(t, "../"+command[1])
		require.Contains(t, text, "\nfunc "+command[2], command[0])
	}
	broken := sources(t, "../lab/model") + sources(t, "../lease") + sources(t, "../cmd/fencedb/internal/chaos")
	mutants := regexp.MustCompile(`[ ;]\*([^*]+)\*(?:[;,:.\n]| and)`).FindAllStringSubmatch(page, -1)
	require.Greater(t, len(mutants), 20)
	for _, mutant := range mutants {
		require.Contains(t, broken, strings.Join(strings.Fields(mutant[1]), " "))
	}
}

// make test is short, and leaves out no promise and no example.
func TestMakeTestHasATestOfEachPromiseAndExample(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	variable := func(name string) string {
		value := regexp.MustCompile(`(?m)^` + name + ` = ((?:.*\\\n)*.*)`).FindSubmatch(makefile)
		require.NotNil(t, value, name)
		return string(value[1])
	}
	var run string
	for dir := range strings.FieldsSeq(variable("PACKAGES")) {
		dir, below := strings.CutSuffix(dir, "/...")
		root := filepath.Join("..", dir)
		require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && (below || path == root) {
				run += sources(t, path)
			}
			return err
		}))
	}
	promises := regexp.MustCompile(`(?s)\n### ([SL]\d) .*?\*\*Shown by\*\* (.*?)\n- `).FindAllStringSubmatch(pages(t)["../docs/promises.md"], -1)
	require.Len(t, promises, 16)
	for _, promise := range promises {
		shown := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(promise[2], -1)
		require.True(t, slices.ContainsFunc(shown, func(test []string) bool { return strings.Contains(run, "\nfunc "+test[1]+"(") }), promise[1])
	}

	names := strings.FieldsFunc(variable("EXAMPLES_RUN"), func(r rune) bool { return strings.ContainsRune("|$\\\n\t ", r) })
	var named []string
	for dir := range strings.FieldsSeq(strings.ReplaceAll(variable("EXAMPLES"), "\\", "")) {
		named = append(named, strings.Split(dir, "/")[2])
		text := sources(t, "../"+dir)
		require.True(t, slices.ContainsFunc(names, func(name string) bool { return strings.Contains(text, "\nfunc "+name) }), dir)
	}
	examples, err := os.ReadDir("../examples")
	require.NoError(t, err)
	for _, example := range examples {
		if example.IsDir() {
			require.Contains(t, named, example.Name())
		}
	}
}

// sources are the Go files of a directory.
func sources(t *testing.T, dir string) (all string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all += "\n" + string(text)
	}
	return all
}

// Links to files and directories, and to headings.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	pages := pages(t)
	for page, text := range pages {
		for _, match := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			file, heading, named := strings.Cut(match[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", page, match[1])
			if named {
				require.Contains(t, headings(pages[target]), heading, page)
			}
		}
	}
}

// headings are the anchors of a page.
func headings(text string) (anchors []string) {
	for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchors = append(anchors, anchor(match[1]))
	}
	return anchors
}

// anchor is the name that a heading gets where Markdown is shown.
func anchor(heading string) string {
	kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(kept, " ", "-")
}

// Page by page, in order, on a server of its own, because roles are made.
func TestTheSQLInTheDocumentationRuns(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?ms)^ *```sql\n(.*?)^ *```|^    psql [^\n#]+$")
	commands := regexp.MustCompile(`-c (?:"([^"]+)"|'([^']+)')`)
	for page, text := range pages(t) {
		var found [][]string
		for _, block := range blocks.FindAllStringSubmatch(text, -1) {
			if block[1] != "" {
				found = append(found, block)
				continue
			}
			if strings.HasPrefix(page, "../examples/") {
				continue // its database is one in which the example has run
			}
			for _, c := range commands.FindAllStringSubmatch(block[0], -1) {
				found = append(found, []string{c[0], c[1] + c[2]})
			}
		}
		if found == nil {
			continue
		}
		conn, err := pgx.Connect(t.Context(), testenv.OwnPostgres(t).Pool().Config().ConnString())
		require.NoError(t, err)
		for _, block := range found {
			_, err := conn.PgConn().Exec(t.Context(), block[1]).ReadAll()
			if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == "FN001" {
				continue // it is for a ledger that was lost, and here it was not
			}
			require.NoError(t, err, "%s:\n%s", page, block[1])
		}
		require.NoError(t, conn.Close(t.Context()))
	}
}

// The versions that the page says are tested are those that the tools run.
func TestTheVersionsAreThoseThatAreTested(t *testing.T) {
	t.Parallel()
	page := pages(t)["../docs/versions.md"]
	row := func(name string) (tested []string) {
		match := regexp.MustCompile(`(?m)^\| ` + name + ` \|[^|]*\| ([\d., ]+) \|`).FindStringSubmatch(page)
		require.NotNil(t, match, name)
		return strings.Split(match[1], ", ")
	}
	pinned := func(file, pattern string) (versions []string) {
		text, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			versions = append(versions, match[1])
		}
		return versions
	}
	require.Equal(t, pinned("go.mod", `(?m)^go (\d+\.\d+)`), row("Go"))
	require.Equal(t, pinned("internal/tools/package.json", `"postgres-(\d+)"`), row("Postgres"))
	others := pinned("Makefile", `(?m)^REDIS_VERSIONS = (.*)$`)[0]
	for name, in := range map[string]string{"Redis": "redis", "Valkey": "valkey"} {
		for _, version := range row(name) {
			if in+version != "redis7.0" { // the distribution's
				require.Contains(t, others, in+"-"+version)
			}
		}
	}
}

// A page of which one reads what one needs, and finds it.
func TestEveryPageIsShort(t *testing.T) {
	t.Parallel()
	for page, text := range pages(t) {
		if strings.HasPrefix(page, "../docs/") {
			require.Less(t, strings.Count(text, "\n"), 600, page)
		}
	}
}

func TestTheMapNamesEveryPage(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for page := range all {
		if name, found := strings.CutPrefix(page, "../docs/"); found && name != "README.md" {
			require.Contains(t, all["../docs/README.md"], "("+name+")")
		}
	}
}

// Tests of the packages that run under the race detector, and are smaller there, are those which
// make test-all runs in full size.
func TestTestsThatAreSmallerUnderRaceRunInFullSizeToo(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	list := regexp.MustCompile(`(?s)\nSIZED = (.*?)\n\n`).FindSubmatch(makefile)
	require.NotNil(t, list)
	listed := regexp.MustCompile("^(" + regexp.MustCompile(`\$\\\n\s*`).ReplaceAllString(string(list[1]), "") + ")")
	var sized []string
	for _, pkg := range []string{"fencedb", "lease"} {
		files, err := filepath.Glob("../" + pkg + "/*_test.go")
		require.NoError(t, err)
		bodies := map[string]string{} // by the function's name
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, function := range strings.Split(string(text), "\nfunc ")[1:] {
				name, body, _ := strings.Cut(function, "(")
				bodies[name] = body
			}
		}
		for name, body := range bodies {
			if !strings.Contains(body, "testenv.Small()") {
				continue
			}
			if strings.HasPrefix(name, "Test") {
				sized = append(sized, name)
				continue
			}
			for caller, body := range bodies { // a helper of tests
				if strings.HasPrefix(caller, "Test") && strings.Contains(body, name+"(") {
					sized = append(sized, caller)
				}
			}
		}
	}
	require.NotEmpty(t, sized)
	for _, name := range sized {
		require.Regexp(t, listed, name, "it is smaller under the race detector: name it in SIZED of the Makefile")
	}
}
