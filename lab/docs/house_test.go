package docs

import (
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// tracked are the files of the repository, as paths from its root.
func tracked(t *testing.T) []string {
	t.Helper()
	list, err := exec.Command("git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	require.NoError(t, err)
	var files []string
	for _, file := range strings.Fields(string(list)) {
		if _, err := os.Stat("../" + file); err == nil { // not deleted since the last commit
			files = append(files, file)
		}
	}
	require.NotEmpty(t, files)
	return files
}

// section returns the text of CONTRIBUTING.md below a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("../CONTRIBUTING.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found, heading)
	body, _, _ := strings.Cut(rest, "\n## ")
	return body
}

// The first two levels.
func TestTheLayoutNamesEveryDirectory(t *testing.T) {
	t.Parallel()
	var named, parents []string
	line := regexp.MustCompile(`(?m)^    ( *)([\w./-]+)/ +\S`)
	for _, match := range line.FindAllStringSubmatch(section(t, "Layout"), -1) {
		depth := len(match[1]) / 2
		require.LessOrEqual(t, depth, len(parents), match[0])
		parents = append(parents[:depth:depth], match[2])
		named = append(named, path.Join(parents...))
	}
	for _, file := range tracked(t) {
		for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
			if strings.Count(dir, "/") > 1 {
				continue // go doc says what it is for
			}
			known := slices.ContainsFunc(named, func(name string) bool { return name == dir || strings.HasPrefix(name, dir+"/") })
			require.True(t, known, "CONTRIBUTING.md does not say what %s/ is for", dir)
		}
	}
}

func TestContributingNamesEveryTargetOfCI(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../.ci/run")
	require.NoError(t, err)
	calls := regexp.MustCompile(`(?m)^(?:nice .*)?make [^>\n]*`).FindAllString(string(script), -1)
	require.NotEmpty(t, calls)
	for _, call := range calls {
		_, call, _ = strings.Cut(call, "make")
		for _, target := range regexp.MustCompile(` [a-z][a-z-]*`).FindAllString(strings.ReplaceAll(call, " --", "--"), -1) {
			require.Contains(t, section(t, "Run it"), "| `make"+target+"` |")
		}
	}
}

// A tab is one column. A line with a text on it, or with a part of one, may be longer.
func TestLinesOfGoAreShort(t *testing.T) {
	t.Parallel()
	const columns = 120
	for _, file := range tracked(t) {
		if path.Ext(file) != ".go" || strings.HasPrefix(file, "lab/compat/sqlc/") { // generated
			continue
		}
		source, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		texts := linesOfTexts(source)
		for n, line := range strings.Split(string(source), "\n") {
			if length := utf8.RuneCountInString(line); length > columns && !texts[n+1] {
				t.Errorf("%s:%d has %d columns and no text; break it", file, n+1, length)
			}
		}
	}
}

// What cannot be broken may be longer: tables, code, pictures, links and spans of code.
func TestLinesOfProseAreShort(t *testing.T) {
	t.Parallel()
	const columns = 100
	free := regexp.MustCompile("^(\\||#|    |!|<)|`|\\]\\(")
	for _, file := range tracked(t) {
		mark := map[string]string{".go": "// ", ".sql": "-- ", ".md": ""}
		begin, prose := mark[path.Ext(file)]
		if !prose || strings.HasPrefix(file, "lab/compat/sqlc/") || path.Base(file) == "doctor.sql" { // generated; texts
			continue
		}
		content, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		code, texts := false, map[int]bool{}
		if path.Ext(file) == ".go" {
			texts = linesOfTexts(content)
		}
		for n, line := range strings.Split(string(content), "\n") {
			if begin == "" && strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if utf8.RuneCountInString(line) <= columns || code || texts[n+1] || begin == "" && free.MatchString(line) {
				continue
			}
			if strings.HasPrefix(strings.TrimSpace(line), begin) {
				t.Errorf("%s:%d has %d columns of prose; break it", file, n+1, utf8.RuneCountInString(line))
			}
		}
	}
}

// linesOfTexts are the numbers of the lines that a string literal touches, or the output of an
// example.
func linesOfTexts(source []byte) map[int]bool {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(source))
	s.Init(file, source, nil, scanner.ScanComments)
	lines := map[int]bool{}
	for output := false; ; {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return lines
		}
		output = kind == token.COMMENT && (output || strings.HasPrefix(literal, "// Output:"))
		if kind == token.STRING || output {
			for n := range strings.Count(literal, "\n") + 1 {
				lines[file.Line(at)+n] = true
			}
		}
	}
}

func TestTextsAreKnownByTheirLines(t *testing.T) {
	t.Parallel()
	source := `package p

// "no text"
var a, b = "one", 1 // two
var c = 'c'
var d = ~three
four~
func Example() {
	// five
	d()
	// Output:
	// six
}
`
	found := linesOfTexts([]byte(strings.ReplaceAll(source, "~", "`")))
	require.Equal(t, map[int]bool{4: true, 6: true, 7: true, 11: true, 12: true}, found)
}
