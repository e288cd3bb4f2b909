package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

// report is the result of a command. schema.json describes its JSON.
type report interface {
	print(p page)
}

func (a *app) show(r report) error {
	if !a.json {
		out := bufio.NewWriter(a.out) // keeps the first error
		r.print(a.page(out))
		return out.Flush()
	}
	encoder := json.NewEncoder(a.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// confirm shows what the question is about and asks, on stderr so that --json stays clean. It
// returns errDeclined unless the answer is yes. Ctrl-C is an answer too; what is read later is
// dropped.
func (a *app) confirm(ctx context.Context, question string, about ...report) error {
	if a.yes {
		return nil
	}
	for _, r := range about {
		r.print(a.page(a.errOut))
		fmt.Fprintln(a.errOut)
	}
	fmt.Fprintf(a.errOut, "%s [y/N] ", question)
	var answer string
	var err error
	typed := make(chan struct{})
	go func() {
		defer close(typed)
		answer, err = bufio.NewReader(a.in).ReadString('\n')
	}()
	select {
	case <-typed:
	case <-ctx.Done():
		fmt.Fprintln(a.errOut)
		return fmt.Errorf("%w: %w", errDeclined, context.Cause(ctx))
	}
	switch {
	case errors.Is(err, io.EOF):
		fmt.Fprintln(a.errOut) // the input ended without a newline
	case err != nil:
		return fmt.Errorf("%w: %w", errDeclined, err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

func (a *app) yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Destination: &a.yes, Usage: "do not ask"}
}

// span formats a duration with at most two units.
func span(d time.Duration) string {
	units := [][2]time.Duration{{day, time.Hour}, {time.Hour, time.Minute}, {time.Minute, time.Second}}
	for n, unit := range units {
		if large, small := unit[0], unit[1]; d >= large {
			text := fmt.Sprintf("%d%c", d/large, "dhm"[n])
			if rest := d % large / small; rest > 0 { // otherwise it is left out
				text += fmt.Sprintf("%d%c", rest, "hms"[n])
			}
			return text
		}
	}
	if d >= time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func millis(ms int64) string { return span(time.Duration(ms) * time.Millisecond) }

// page prints text for a person.
type page struct {
	out io.Writer
	screen
	ahead clocks
}

func (a *app) page(out io.Writer) page { return page{out, a.screen, a.ahead} }

// ago formats a time since.
func ago(since time.Duration) string {
	if since < -rounding {
		return span(-since) + " ahead of the clock, which was set back"
	}
	return span(max(0, since)) + " ago"
}

const (
	gap       = "  " // between columns
	leastCell = 8    // columns are not made narrower than this
	readable  = 100  // columns of running text
	bold      = "\x1b[1m"
	red       = "\x1b[31m"
	yellow    = "\x1b[33m"
	plain     = "\x1b[0m"
)

// table prints a row for each of all under a header. If they are wider than the screen, it shortens
// the widest cells in the middle, because ids differ at their ends.
func table[T any](p page, header []string, all []T, row func(T) []string) {
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
		fmt.Fprintln(p.out, p.styled(strings.TrimRight(columns(row, widths), " "), style))
		style = ""
	}
}

// list prints a table behind an empty line, and nothing if it has no rows.
func list[T any](p page, header []string, all []T, row func(T) []string) {
	if len(all) > 0 {
		fmt.Fprintln(p.out)
		table(p, header, all, row)
	}
}

func (p page) fit(widths []int) {
	if p.width <= 0 {
		return
	}
	for {
		total, widest := -len(gap), 0
		for i, w := range widths {
			total += w + len(gap)
			if w > widths[widest] {
				widest = i
			}
		}
		if total <= p.width || widths[widest] <= leastCell {
			return
		}
		widths[widest]--
	}
}

// columns puts cells side by side.
func columns(cells []string, widths []int) (line string) {
	for i, cell := range cells {
		line += fmt.Sprintf("%-*s", widths[i], shorten(cell, widths[i])) + gap
	}
	return line
}

func (p page) styled(text, style string) string {
	if !p.color || style == "" {
		return text
	}
	return style + text + plain
}

// facts prints names and values, one pair below the other. It never shortens values.
func (p page) facts(pairs ...[2]string) {
	widest := 0
	for _, pair := range pairs {
		widest = max(widest, len(pair[0]))
	}
	for _, pair := range pairs {
		name, indent := fmt.Sprintf("%-*s", widest, pair[0]), strings.Repeat(" ", widest)+gap
		fmt.Fprintln(p.out, p.styled(name, bold)+gap+strings.ReplaceAll(pair[1], "\n", "\n"+indent))
	}
}

// say prints a paragraph, and point an item of a list.
func (p page) say(format string, args ...any)   { p.paragraph("", fmt.Sprintf(format, args...)) }
func (p page) point(format string, args ...any) { p.paragraph("* ", fmt.Sprintf(format, args...)) }

// paragraph prints text, broken at spaces to the width of the screen or to a readable width. The
// first line follows mark, the others are indented as far.
func (p page) paragraph(mark, text string) {
	room := readable
	if p.width > 0 {
		room = min(room, p.width)
	}
	line, space := mark, ""
	for word := range strings.FieldsSeq(text) {
		if space != "" && utf8.RuneCountInString(line+space+word) > room {
			fmt.Fprintln(p.out, line)
			line, space = strings.Repeat(" ", len(mark)), ""
		}
		line, space = line+space+word, " "
	}
	fmt.Fprintln(p.out, line)
}

func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	tail := (width - 1) / 2
	return string(runes[:width-1-tail]) + "…" + string(runes[len(runes)-tail:])
}

// words are names, with commas between.
func words[S ~string](names []S) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = string(name)
	}
	return strings.Join(all, ", ")
}

// visible quotes a name that has unprintable characters, so that it cannot control the terminal.
func visible(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return strconv.Quote(text)
	}
	return text
}

const day = 24 * time.Hour

func tokenText(token int64) string {
	if token == 0 {
		return ""
	}
	return strconv.FormatInt(token, 10)
}

func prefixed(before, text, after string) string {
	if text == "" {
		return ""
	}
	return before + text + after
}
