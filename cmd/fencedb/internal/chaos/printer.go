package chaos

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

const (
	width  = 80
	indent = 9 // of the steps and states of a story, behind the time
)

// How a terminal is told to show a piece of text; "" is as usual.
const (
	bold  = "1"
	dim   = "2"
	red   = "1;31"
	green = "1;32"
)

func (p *printer) paint(style, text string) string {
	if !p.colour || style == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (p *printer) line(text string) { fmt.Fprintln(p.out, strings.TrimRight(text, " ")) }

// paragraph wraps text; the first line follows lead, the others are indented as far.
func (p *printer) paragraph(lead, style, text string) {
	for _, line := range wrap(text, width-len(lead)) {
		p.line(lead + p.paint(style, line))
		lead = strings.Repeat(" ", len(lead))
	}
}

func (p *printer) opening(c Config) {
	p.line(p.paint(bold, "A booking desk, two clerks, one table at a time"))
	p.line("")
	for _, note := range []string{
		fmt.Sprintf("Two processes, A and B, for each story. A lease lasts %v.", c.TTL),
		"Under each step: what both servers hold at that moment. A token is a number that " +
			"only rises; Redis takes it from its clock, in microseconds.",
	} {
		p.paragraph("  ", "", note)
	}
	if ways[c.Control].open {
		p.paragraph("  ", red, "The fence has been taken away, as asked: the story of the zombie must end badly.")
	}
}

func (p *printer) intro(number int, st story) {
	p.line("\n\n" + p.paint(bold, fmt.Sprintf("%d  %s", number, st.title)))
	p.paragraph("   ", "", st.intro)
	p.line("")
	servers := row{"Redis", "", "", "Postgres"}
	p.state(servers, servers)
	head := row{"owner", "TTL", "last token", "fence", "booked for"}
	p.state(head, head)
	p.line(strings.Repeat(" ", indent) + p.paint(dim, strings.Repeat("-", width-indent)))
}

// row is a state as it is shown: the owner, its TTL, the last token, the fence, and who has booked.
type row [5]string

// widths of the columns of a state, with the space behind them. The last one takes the rest.
var widths = [5]int{7, 8, 19, 19}

// step prints an event and the state after it. What the event has changed stands out on a terminal.
func (p *printer) step(at time.Duration, text string, before, after row) {
	p.paragraph(fmt.Sprintf("%*s  ", indent-2, seconds(at)), "", text)
	before[1] = after[1] // the TTL changes by itself
	p.state(before, after)
}

func (p *printer) state(before, after row) {
	line := strings.Repeat(" ", indent)
	for i, cell := range after {
		s := dim
		if cell != before[i] {
			s = bold
		}
		line += p.paint(s, cell) + strings.Repeat(" ", max(0, widths[i]-len(cell)))
	}
	p.line(line)
}

// ending is the word for how a story ended.
func (p *printer) ending(s Story) string {
	if len(s.Broken) == 0 {
		return p.paint(green, kept)
	}
	return p.paint(red, broken)
}

const (
	kept   = "AS PROMISED"
	broken = "NOT AS PROMISED"
)

func (p *printer) verdict(s Story) {
	p.line("")
	p.paragraph("   promised  ", "", s.Promise)
	p.paragraph("   seen      ", "", s.Seen)
	for _, problem := range s.Broken {
		p.paragraph("   but       ", red, problem)
	}
	p.line("   " + p.ending(s))
}

// summary says how all stories ended.
func (p *printer) summary(told []Story, took time.Duration) {
	p.line("\n")
	good := 0
	for i, s := range told {
		p.line(fmt.Sprintf("%d  %-42s%s", i+1, s.Title, p.ending(s)))
		if len(s.Broken) == 0 {
			good++
		}
	}
	p.line("")
	p.line(fmt.Sprintf("%d of %d stories ended as promised, in %s.", good, len(told), seconds(took)))
}

// wrap breaks text at spaces into lines of at most so many columns; a longer word gets a line of
// its own.
func wrap(text string, columns int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > columns {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
