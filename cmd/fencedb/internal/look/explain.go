package look

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/docs"
)

// Explain is the command explain.
func Explain(a *app.State) *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "print the section of the runbook for a line of a log",
		ArgsUsage: "LINE",
		Description: `Prints what the line means, what is true of the data, where to look and what
to do. The line is one of a program, of Postgres or of this command, the name
of an alert, of an error, or an SQLSTATE. It asks no server. The exit code is
1 if the runbook does not have it.

   fencedb explain 'fencedb: stale fencing token'
   fencedb explain LeaseHolderStuck`,
		Action: func(_ context.Context, _ *cli.Command) error {
			found := explain(a.Argument)
			if found == nil {
				return fmt.Errorf("the runbook has nothing for this line: try a shorter part of it, or docs/runbook.md of the project")
			}
			return a.Show(found)
		},
	}
}

// Explanation is a section of the runbook.
type Explanation struct {
	Section string `json:"section"` // its heading
	Page    string `json:"page"`    // where it is, from docs/ on
	Because string `json:"because"` // what of the line has led there
	Also    string `json:"also"`    // what the table of the runbook adds
	Text    string `json:"text"`    // in Markdown
}

// Print implements [term.Report].
func (e *Explanation) Print(p term.Page) {
	p.Facts([2]string{"SECTION", e.Section}, [2]string{"PAGE", "docs/" + e.Page}, [2]string{"BECAUSE OF", e.Because})
	fmt.Fprintln(p.Out)
	if e.Also != "" {
		p.Say("%s", e.Also)
		fmt.Fprintln(p.Out)
	}
	fmt.Fprintln(p.Out, e.Text)
}

var (
	rowOfTable  = regexp.MustCompile(`(?m)^\| (.+) \|$`)
	termOfTable = regexp.MustCompile("`([^`]+)`|\"([^\"]+)\"|\\b([0-9A-Z]{5})\\b")
	sqlState    = regexp.MustCompile(`^[0-9A-Z]{5}$`)
	errorNames  = regexp.MustCompile(`[\w.]+`) // fencedb.ErrStale, or ErrStale
	link        = regexp.MustCompile(`\[([^\]]*)\]\((runbook/\w+\.md)#([\w-]+)\)`)
)

// explain finds the row of the tables of the runbook of which most is in the line: the words of its
// cells before the last one. The name of a section, as logs of observe/slog have it, is the best.
// Of several errors that the line names, it is the one whose row is first.
func explain(line string) (best *Explanation) {
	index, longest := readPage(docs.Runbook, "runbook.md"), 0
	var ofErrors *Explanation
	lengthOfErrors := 0
	for _, row := range rowOfTable.FindAllStringSubmatch(index, -1) {
		cells := strings.Split(row[1], " | ")
		to := link.FindStringSubmatch(cells[len(cells)-1])
		if to == nil {
			continue
		}
		words, length := inLine(line, cells[:len(cells)-1])
		found := &Explanation{Page: to[2] + "#" + to[3], Because: strings.Join(words, ", "), Also: also(cells[len(cells)-1])}
		switch named := slices.ContainsFunc(words, notSQLState); {
		case strings.Contains(line, to[3]):
			found.Because, length = to[3], len(line)
		case strings.Contains(cells[0], ".Err") && named:
			if ofErrors == nil {
				ofErrors = found
			}
			lengthOfErrors = max(lengthOfErrors, length)
			found, length = ofErrors, lengthOfErrors
		}
		if length > longest {
			longest, best = length, found
		}
	}
	if best != nil {
		page, name, _ := strings.Cut(best.Page, "#")
		best.Section, best.Text, _ = strings.Cut(section(readPage(docs.Runbook, page), name), "\n")
		best.Text = strings.TrimSpace(best.Text)
	}
	return best
}

func notSQLState(word string) bool { return !sqlState.MatchString(word) }

// inLine are the terms of cells that a line has, and how long they are in all. Terms that are
// joined by "with" count together only.
func inLine(line string, cells []string) (words []string, length int) {
	for _, cell := range cells {
		together := strings.Contains(cell, "\" with \"")
		var found []string
		terms := termOfTable.FindAllStringSubmatch(cell, -1)
		for _, t := range terms {
			word := t[1] + t[2] + t[3]
			name := word[strings.LastIndexByte(word, '.')+1:] // ErrStale of fencedb.ErrStale
			if strings.Contains(line, word) || strings.HasPrefix(name, "Err") && slices.Contains(errorNames.FindAllString(line, -1), name) {
				found = append(found, word)
			}
		}
		if together && len(found) < len(terms) {
			continue
		}
		words = append(words, found...)
	}
	for _, word := range words {
		length += len(word)
	}
	return words, length
}

// also is what a cell says besides its link.
func also(cell string) string {
	if link.ReplaceAllString(cell, "") == "" {
		return ""
	}
	return strings.NewReplacer("`", "").Replace(link.ReplaceAllString(cell, "$1"))
}

func readPage(from fs.FS, name string) string {
	text, err := fs.ReadFile(from, name)
	if err != nil {
		panic(fmt.Errorf("bug: the runbook lacks a page that it names: %w", err))
	}
	return string(text)
}

var notInLinks = regexp.MustCompile(`[^a-z0-9 -]`)

// anchor is how a link names a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(notInLinks.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// section is the part of a page under a heading, with it.
func section(text, name string) string {
	parts := strings.Split(text, "\n## ")
	i := slices.IndexFunc(parts, func(part string) bool {
		heading, _, _ := strings.Cut(part, "\n")
		return anchor(heading) == name
	})
	if i < 0 {
		panic("bug: the runbook lacks a section that it names: " + name)
	}
	return parts[i]
}
