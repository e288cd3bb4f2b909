package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func onScreen(s screen, draw func(page)) string {
	var out bytes.Buffer
	draw((&app{screen: s}).page(&out))
	return out.String()
}

func longTable(p page) {
	table(p, []string{"RESOURCE", "TOKEN"}, []string{"table:" + strings.Repeat("x", 120) + ":end", "table:12"},
		func(resource string) []string { return []string{resource, "1763600000000000"} })
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Whoever reads the file would take what is not in it for what is not held.
func TestAnAnswerThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"leases"}, {"leases", "--json"}, {"migrate", "print"}, {"completion", "bash"}, {"completion", "fish"}, {"version"}} {
		var errOut bytes.Buffer
		a := &app{out: full{}, errOut: &errOut}
		code := a.run(t.Context(), append([]string{"fencedb", "--redis", redisURL(testenv.Redis(t))}, args...))

		require.Equal(t, exitFailed, code, args)
		require.Contains(t, errOut.String(), syscall.ENOSPC.Error())
	}
}

func TestATableFitsTheScreen(t *testing.T) {
	t.Parallel()
	for _, width := range []int{40, 80, 120} {
		shown := onScreen(screen{width: width}, longTable)
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width)
		}
		require.Contains(t, shown, ":end ", "ids differ at their ends")
		require.Contains(t, shown, "1763600000000000")
	}
	for _, width := range []int{0, 200} {
		require.NotContains(t, onScreen(screen{width: width}, longTable), "…")
	}
}

func TestAParagraphFitsTheScreen(t *testing.T) {
	t.Parallel()
	shown := onScreen(screen{width: 40}, func(p page) { p.point("%s", strings.Repeat("words and ", 30)) })

	for line := range strings.Lines(shown) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 41)
		require.NotContains(t, line, "wordsand")
	}
	require.Equal(t, 60, strings.Count(shown, "words")+strings.Count(shown, "and"))
}

func TestColorIsForTerminalsOnly(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	t.Setenv("COLUMNS", "80")

	s := screenOf(file)

	require.Equal(t, screen{width: 80}, s)
	require.NotContains(t, onScreen(s, longTable), "\x1b")
	require.Contains(t, onScreen(screen{color: true}, longTable), bold)
}

func TestNoColorOnATerminalThatIsToldSo(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	colored := func(kind, noColor string) bool {
		t.Setenv("TERM", kind)
		t.Setenv("NO_COLOR", noColor)
		return screenOf(terminal).color
	}

	require.True(t, colored("xterm", ""), "empty is as good as not set: no-color.org")
	require.False(t, colored("xterm", "1"))
	require.False(t, colored("dumb", ""))
}

func TestNamesCannotDriveTheTerminal(t *testing.T) {
	t.Parallel()
	require.Equal(t, "tisch:zwölf", visible("tisch:zwölf"))
	require.Equal(t, `"a\x1b[2Jb\n"`, visible("a\x1b[2Jb\n"))
	require.Equal(t, `"\xff"`, visible("\xff"))
}

func TestASpanHasTwoUnitsAtMost(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"12ms":   12*time.Millisecond + time.Microsecond,
		"9.8s":   9780 * time.Millisecond,
		"3m":     3*time.Minute + 900*time.Millisecond,
		"2m40s":  160 * time.Second,
		"1h":     time.Hour + time.Second,
		"23h59m": 24*time.Hour - time.Second,
		"30d":    30 * 24 * time.Hour,
		"29d23h": 30*24*time.Hour - time.Second,
	} {
		require.Equal(t, want, span(d))
	}
}
