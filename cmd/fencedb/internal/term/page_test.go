package term

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func onScreen(s Screen, draw func(Page)) string {
	var out bytes.Buffer
	draw(Page{Out: &out, Screen: s})
	return out.String()
}

func longTable(p Page) {
	Table(p, []string{"RESOURCE", "TOKEN"}, []string{"table:" + strings.Repeat("x", 120) + ":end", "table:12"},
		func(resource string) []string { return []string{resource, "1763600000000000"} })
}

func TestATableFitsTheScreen(t *testing.T) {
	t.Parallel()
	for _, width := range []int{40, 80, 120} {
		shown := onScreen(Screen{Width: width}, longTable)
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width)
		}
		require.Contains(t, shown, ":end ", "ids differ at their ends")
		require.Contains(t, shown, "1763600000000000")
	}
	for _, width := range []int{0, 200} {
		require.NotContains(t, onScreen(Screen{Width: width}, longTable), "…")
	}
}

func TestAParagraphFitsTheScreen(t *testing.T) {
	t.Parallel()
	shown := onScreen(Screen{Width: 40}, func(p Page) { p.Point("%s", strings.Repeat("words and ", 30)) })

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

	s := ScreenOf(file)

	require.Equal(t, Screen{Width: 80}, s)
	require.NotContains(t, onScreen(s, longTable), "\x1b")
	require.Contains(t, onScreen(Screen{Color: true}, longTable), bold)
}

func TestNoColorOnATerminalThatIsToldSo(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	colored := func(kind, noColor string) bool {
		t.Setenv("TERM", kind)
		t.Setenv("NO_COLOR", noColor)
		return ScreenOf(terminal).Color
	}

	require.True(t, colored("xterm", ""), "empty is as good as not set: no-color.org")
	require.False(t, colored("xterm", "1"))
	require.False(t, colored("dumb", ""))
}

func TestNamesCannotDriveTheTerminal(t *testing.T) {
	t.Parallel()
	require.Equal(t, "tisch:zwölf", Visible("tisch:zwölf"))
	require.Equal(t, `"a\x1b[2Jb\n"`, Visible("a\x1b[2Jb\n"))
	require.Equal(t, `"\xff"`, Visible("\xff"))
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
		require.Equal(t, want, Span(d))
	}
}
