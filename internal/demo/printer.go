package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// printer sets the stories in 80 columns. Errors of the writer are ignored: the verdicts do not
// depend on it.
type printer struct {
	out    io.Writer
	colour bool
}

func newPrinter(out io.Writer, colour bool) *printer { return &printer{out, colour} }

const (
	width  = 80
	indent = 9 // of the steps and states of a story, behind the time
)

// style is how a terminal is told to show a piece of text.
type style string

const (
	plain style = ""
	bold  style = "1"
	dim   style = "2"
	red   style = "1;31"
	green style = "1;32"
)

func (p *printer) paint(s style, text string) string {
	if !p.colour || s == plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

func (p *printer) line(parts ...string) {
	fmt.Fprintln(p.out, strings.TrimRight(strings.Join(parts, ""), " "))
}

// paragraph wraps text; the first line follows lead, the others are indented as far.
func (p *printer) paragraph(lead string, s style, text string) {
	margin := len(lead)
	for i, line := range wrap(text, width-margin) {
		if i > 0 {
			lead = strings.Repeat(" ", margin)
		}
		p.line(lead, p.paint(s, line))
	}
}

func (p *printer) opening(cfg config, pidA, pidB int) {
	p.line(p.paint(bold, "A booking desk, two workers, one table at a time"))
	p.line()
	for _, note := range cfg.Notes {
		p.paragraph("  ", plain, note)
	}
	p.paragraph("  ", plain, fmt.Sprintf("Two worker processes: A is pid %d, B is pid %d. A lease lasts %v.", pidA, pidB, cfg.TTL))
	p.paragraph("  ", plain, "Under each step: what both servers hold at that moment. A token is a number that "+
		"only rises; Redis takes it from its clock, in microseconds.")
	if cfg.Unprotected {
		p.paragraph("  ", red, "The fence has been taken away, as asked: story 4 must end badly.")
	}
}

func (p *printer) intro(number int, st story) {
	p.line()
	p.line()
	p.line(p.paint(bold, fmt.Sprintf("%d  %s", number, st.title)))
	p.paragraph("   ", plain, st.intro)
	p.line()
	gap := strings.Repeat(" ", indent)
	p.line(gap, p.paint(dim, fmt.Sprintf("%-*s%s", ownerWidth+ttlWidth+tokenWidth, "Redis", "Postgres")))
	head := row{"owner", "TTL", "last token", "fence", "booked for"}
	p.state(head, head)
	p.line(gap, p.paint(dim, strings.Repeat("-", width-indent)))
}

// Widths of the columns of a state, with the space behind them. The last one takes the rest.
const (
	ownerWidth = 7
	ttlWidth   = 8
	tokenWidth = 19
	fenceWidth = 19
)

// row is a state as it is shown.
type row struct {
	owner, ttl, token, fence, booking string
}

// step prints an event and the state after it. What the event has changed stands out on a terminal.
func (p *printer) step(at time.Duration, text string, before, after row) {
	p.paragraph(fmt.Sprintf("%*s  ", indent-2, seconds(at)), plain, text)
	p.state(before, after)
}

func (p *printer) state(before, after row) {
	p.line(strings.Repeat(" ", indent),
		p.cell(ownerWidth, before.owner, after.owner),
		p.cell(ttlWidth, after.ttl, after.ttl), // changes by itself
		p.cell(tokenWidth, before.token, after.token),
		p.cell(fenceWidth, before.fence, after.fence),
		p.cell(0, before.booking, after.booking))
}

func (p *printer) cell(width int, before, after string) string {
	s := dim
	if before != after {
		s = bold
	}
	return p.paint(s, after) + strings.Repeat(" ", max(0, width-len(after)))
}

// The two words of a verdict.
const (
	kept   = "AS PROMISED"
	broken = "NOT AS PROMISED"
)

func (p *printer) verdict(st story, v verdict) {
	p.line()
	p.paragraph("   promised  ", plain, st.promise)
	p.paragraph("   seen      ", plain, v.seen)
	if v.kept() {
		p.line("   ", p.paint(green, kept))
		return
	}
	for _, problem := range v.broken {
		p.paragraph("   but       ", red, problem)
	}
	p.line("   ", p.paint(red, broken))
}

func (p *printer) summary(stories []story, verdicts []verdict, took time.Duration) {
	p.line()
	p.line()
	good := 0
	for i, v := range verdicts {
		word := p.paint(red, broken)
		if v.kept() {
			word = p.paint(green, kept)
			good++
		}
		p.line(fmt.Sprintf("%d  %-42s", i+1, stories[i].title), word)
	}
	p.line()
	p.line(fmt.Sprintf("%d of %d stories ended as promised, in %s.", good, len(verdicts), seconds(took)))
}

// wrap breaks text at spaces into lines of at most so many columns; a longer word gets a line of
// its own.
func wrap(text string, columns int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= columns:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
