// Package term prints for people: tables, paragraphs, names and times.
package term

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Report is the result of a command. schema.json describes its JSON.
type Report interface {
	Print(p Page)
}

// Page prints text for a person.
type Page struct {
	Out io.Writer
	Screen
	Ahead Clocks
}

// Measures of a page.
const (
	Gap       = "  " // between columns
	LeastCell = 8    // columns are not made narrower than this
	readable  = 100  // columns of running text
)

// Styles, and what ends them.
const (
	bold   = "\x1b[1m"
	Red    = "\x1b[31m"
	Yellow = "\x1b[33m"
	Plain  = "\x1b[0m"
)

// Table prints a row for each of all under a header. If they are wider than the screen, it shortens
// the widest cells in the middle, because ids differ at their ends.
func Table[T any](p Page, header []string, all []T, row func(T) []string) {
	rows := [][]string{header}
	for _, one := range all {
		rows = append(rows, row(one))
	}
	widths := make([]int, len(header))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	p.fit(widths)
	style := bold
	for _, row := range rows {
		fmt.Fprintln(p.Out, p.Styled(strings.TrimRight(Columns(row, widths), " "), style))
		style = ""
	}
}

// List prints a table behind an empty line, and nothing if it has no rows.
func List[T any](p Page, header []string, all []T, row func(T) []string) {
	if len(all) > 0 {
		fmt.Fprintln(p.Out)
		Table(p, header, all, row)
	}
}

func (p Page) fit(widths []int) {
	if p.Width <= 0 {
		return
	}
	for {
		total, widest := -len(Gap), 0
		for i, w := range widths {
			total += w + len(Gap)
			if w > widths[widest] {
				widest = i
			}
		}
		if total <= p.Width || widths[widest] <= LeastCell {
			return
		}
		widths[widest]--
	}
}

// Columns puts cells side by side.
func Columns(cells []string, widths []int) (line string) {
	for i, cell := range cells {
		line += fmt.Sprintf("%-*s", widths[i], Shorten(cell, widths[i])) + Gap
	}
	return line
}

// Styled is text in a style, where the screen has colours.
func (p Page) Styled(text, style string) string {
	if !p.Color || style == "" {
		return text
	}
	return style + text + Plain
}

// Facts prints names and values, one pair below the other. It never shortens values.
func (p Page) Facts(pairs ...[2]string) {
	widest := 0
	for _, pair := range pairs {
		widest = max(widest, len(pair[0]))
	}
	for _, pair := range pairs {
		name, indent := fmt.Sprintf("%-*s", widest, pair[0]), strings.Repeat(" ", widest)+Gap
		fmt.Fprintln(p.Out, p.Styled(name, bold)+Gap+strings.ReplaceAll(pair[1], "\n", "\n"+indent))
	}
}

// Say prints a paragraph.
func (p Page) Say(format string, args ...any) { p.Paragraph("", fmt.Sprintf(format, args...)) }

// Point prints an item of a list.
func (p Page) Point(format string, args ...any) { p.Paragraph("* ", fmt.Sprintf(format, args...)) }

// Paragraph prints text, broken at spaces to the width of the screen or to a readable width. The
// first line follows mark, the others are indented as far.
func (p Page) Paragraph(mark, text string) {
	room := readable
	if p.Width > 0 {
		room = min(room, p.Width)
	}
	line, space := mark, ""
	for word := range strings.FieldsSeq(text) {
		if space != "" && utf8.RuneCountInString(line+space+word) > room {
			fmt.Fprintln(p.Out, line)
			line, space = strings.Repeat(" ", len(mark)), ""
		}
		line, space = line+space+word, " "
	}
	fmt.Fprintln(p.Out, line)
}
