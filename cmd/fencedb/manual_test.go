package main

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unroff is the text of a manual page, as man shows it but for the widths of lines.
func unroff(t *testing.T, page string) string {
	t.Helper()
	var text strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		line := lines.Text()
		if macro, rest, _ := strings.Cut(line, " "); strings.HasPrefix(line, ".") {
			require.Contains(t, []string{".TH", ".SH", ".SS", ".PP", ".nf", ".fi", ".TP", ".B"}, macro)
			line = rest
		}
		require.NotContains(t, line, "'", "it would be a macro at the beginning of a line")
		line = strings.NewReplacer(`\e`, `\`, `\-`, "-", `\(aq`, "'", `\(ga`, "`", `\&`, "").Replace(line)
		text.WriteString(line + "\n")
	}
	return text.String()
}

func spaced(text string) string { return strings.Join(strings.Fields(text), " ") }

// The manual page is the help, word for word: of each command all that --help says.
func TestTheManualIsTheHelp(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	manual := spaced(unroff(t, c.ok("man")))
	commands := [][]string{{}, {"completion"}, {"completion", "bash"}}
	for _, command := range (&app{}).root().Commands {
		commands = append(commands, []string{command.Name})
		for _, sub := range command.Commands {
			commands = append(commands, []string{command.Name, sub.Name})
		}
	}
	for _, command := range commands {
		help := c.ok(append(command, "--help")...)
		require.Contains(t, manual, spaced("fencedb "+strings.Join(command, " ")))
		_, description, _ := strings.Cut(help, "\nDESCRIPTION:\n")
		description, _, _ = strings.Cut(description, "\n\nOPTIONS:\n")
		description, _, _ = strings.Cut(description, "\n\nCOMMANDS:\n")
		require.Contains(t, manual, spaced(description), command)
		_, options, _ := strings.Cut(help, "OPTIONS:\n")
		for line := range strings.Lines(options) {
			if strings.HasPrefix(line, "   --") && !strings.HasPrefix(line, "   --help") {
				require.Contains(t, manual, spaced(line), command)
			}
		}
	}
}

// Who shows the help to somebody else does not show passwords.
func TestHelpShowsNothingOfTheEnvironment(t *testing.T) {
	t.Setenv("FENCEDB_POSTGRES_URL", "postgres://ann:hunter2@db/app")
	t.Setenv("FENCEDB_REDIS_URL", "redis://ann:hunter2@cache")
	c := newConsole(t)
	for _, args := range [][]string{{"--help"}, {"inspect", "--help"}, {"help", "inspect"}, {"man"}, {"migrate", "up", "--help"}} {
		require.NotContains(t, c.ok(args...), "hunter2", args)
	}
}

func TestWhatManWouldTakeForItsOwnIsEscaped(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`.bin/fencedb`: `\&.bin/fencedb`, `'quoted'`: `\(aqquoted\(aq`, `--yes`: `\-\-yes`, `\set x`: `\eset x`, "plain.": "plain.",
	} {
		require.Equal(t, want, roff(line))
	}
}

func TestVersionSaysWhatItIsOf(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	var o origin
	c.json("version", &o, "version")
	require.Equal(t, builtFrom(), &o)
	require.Regexp(t, `^0000\d_\w+$`, o.Schema)
	text := c.ok("version")
	for _, fact := range []string{o.Version, o.Go, o.Platform, o.Schema} {
		require.Contains(t, text, fact)
	}
	require.Contains(t, onScreen(screen{}, (&origin{Revision: "abc", Modified: true}).print), "abc, with changes")
	require.Contains(t, onScreen(screen{}, (&origin{}).print), "not known")
}
