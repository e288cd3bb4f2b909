package chaos

import (
	"cmp"
	_ "embed" // the page
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Verdict is what a run has shown.
type Verdict struct {
	Run      string    `json:"run"`
	Seed     uint64    `json:"seed"`
	Control  Control   `json:"control,omitempty"`
	Postgres string    `json:"postgres"` // its version
	Workers  int       `json:"workers"`
	Clients  int       `json:"clients"`
	Width    int       `json:"width"`
	TTL      Span      `json:"ttl_ms"`
	Began    time.Time `json:"began"`
	Took     Span      `json:"took_ms"`

	Attempts   int             `json:"attempts"`
	Outcomes   map[Outcome]int `json:"outcomes"` // "" is no answer: the process was killed
	Reasons    []Reason        `json:"reasons"`  // of attempts that failed, the most frequent first
	Effects    int             `json:"effects"`  // writes of one resource that have committed
	Faults     []Happened      `json:"faults"`
	Violations []Violation     `json:"violations"`
	Left       []string        `json:"left"` // on the servers, because the role may not remove it

	marks []mark
}

// Span is a time that JSON has in whole milliseconds.
type Span time.Duration

// MarshalJSON implements [json.Marshaler].
func (s Span) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Milliseconds()) }

// String rounds to milliseconds.
func (s Span) String() string { return time.Duration(s).Round(time.Millisecond).String() }

// Happened is a fault that was carried out. Times count from the beginning of the time line.
type Happened struct {
	Fault
	At      Span   `json:"at_ms"`
	Over    Span   `json:"over_ms"`
	Healed  Span   `json:"healed_ms"`         // when every object had been written by who began after it
	Idle    Span   `json:"idle_ms"`           // the longest time without a write to an object, from At to Healed
	Object  string `json:"object,omitempty"`  // which was idle for so long
	Skipped string `json:"skipped,omitempty"` // why it was not possible here
}

// Reason is an error that attempts failed with.
type Reason struct {
	Error string `json:"error"` // with # for each number
	Times int    `json:"times"`
}

// mark is an answer on the time line.
type mark struct {
	at      Span
	object  string
	outcome Outcome
}

// Passed reports whether nothing was violated.
func (v *Verdict) Passed() bool { return len(v.Violations) == 0 }

// count sums up what happened.
func (v *Verdict) count(e *evidence) {
	v.Attempts, v.Effects, v.Outcomes = len(e.attempts), len(e.effects), map[Outcome]int{}
	written, reasons := map[string][]Span{}, map[string]int{}
	for _, id := range slices.Sorted(maps.Keys(e.attempts)) {
		a := e.attempts[id]
		v.Outcomes[a.Outcome]++
		if a.Outcome == Failed {
			reasons[numbers.ReplaceAllString(strings.ReplaceAll(a.Error, v.Run, "run"), "#")]++
		}
		if a.Work == "look" {
			continue
		}
		at := Span(a.Return - e.epoch)
		v.marks = append(v.marks, mark{at, a.Object, a.Outcome})
		if a.Outcome == Committed {
			written[a.Object] = append(written[a.Object], at)
		}
	}
	v.Reasons = []Reason{}
	for _, text := range slices.Sorted(maps.Keys(reasons)) {
		v.Reasons = append(v.Reasons, Reason{text, reasons[text]})
	}
	slices.SortStableFunc(v.Reasons, func(a, b Reason) int { return cmp.Compare(b.Times, a.Times) })
	for i := range v.Faults {
		h := &v.Faults[i]
		for _, name := range e.names() {
			if idle := longestIdle(written[name], h.At, h.Healed); idle > h.Idle {
				h.Idle, h.Object = idle, name
			}
		}
	}
}

// numbers are what differs from one attempt to the next, beside the name of the run.
var numbers = regexp.MustCompile(`[0-9a-f]*\d[0-9a-f-]*`)

// longestIdle is the longest time from one write to the next between from and to.
func longestIdle(written []Span, from, to Span) (longest Span) {
	slices.Sort(written)
	last := from
	begin, _ := slices.BinarySearch(written, from)
	for _, at := range written[begin:] {
		if at > to {
			break
		}
		longest, last = max(longest, at-last), at
	}
	return max(longest, to-last)
}

// Worst are the kinds of faults that happened, each as often as it did, with the longest time
// without a write.
func (v *Verdict) Worst() []Worst {
	by := map[string]Worst{}
	for _, h := range v.Faults {
		w := by[h.Kind]
		if h.Skipped == "" {
			w.Times, w.Idle, w.Heal = w.Times+1, max(w.Idle, h.Idle), max(w.Heal, h.Healed-h.Over)
		}
		w.Kind, w.Skipped = h.Kind, cmp.Or(h.Skipped, w.Skipped)
		by[h.Kind] = w
	}
	return slices.SortedFunc(maps.Values(by), func(a, b Worst) int { return cmp.Compare(a.Kind, b.Kind) })
}

// Worst is the worst of one kind of fault.
type Worst struct {
	Kind    string
	Times   int
	Idle    Span
	Heal    Span // from the end of the fault until everything was written again
	Skipped string
}

// Text writes the verdict for people.
func (v *Verdict) Text(out io.Writer) {
	fmt.Fprintf(out, "\nPostgres %s, leases of %v, %d processes of %d clients, %v\n", v.Postgres, v.TTL, v.Workers, v.Clients, v.Took)
	fmt.Fprintf(out, "%d writes in %d attempts: %d committed, %d refused as late, %d failed, %d unknown, %d without an answer\n\n", v.Effects,
		v.Attempts, v.Outcomes[Committed], v.Outcomes[Refused], v.Outcomes[Failed], v.Outcomes[Unknown], v.Outcomes[Open])
	fmt.Fprintf(out, "%-28s %5s  %-12s %s\n", "FAULT", "TIMES", "NO WRITE FOR", "BACK AFTER")
	for _, w := range v.Worst() {
		if w.Times == 0 {
			fmt.Fprintf(out, "%-28s %5s  %s\n", w.Kind, "-", w.Skipped)
			continue
		}
		fmt.Fprintf(out, "%-28s %5d  %-12v %v\n", w.Kind, w.Times, w.Idle, w.Heal)
	}
	fmt.Fprintln(out)
	if !v.Passed() { // faults make attempts fail; that matters only where something else is wrong
		for _, r := range v.Reasons[:min(len(v.Reasons), 5)] {
			fmt.Fprintf(out, "%6d failed: %s\n", r.Times, r.Error)
		}
	}
	const shown = 5 // of each promise
	times := map[string]int{}
	for _, x := range v.Violations {
		if times[x.Promise]++; times[x.Promise] <= shown {
			fmt.Fprintf(out, "VIOLATED  %s\n          %s: %s\n", x.Promise, cmp.Or(x.Object, "all"), x.Text)
		}
	}
	for _, promise := range slices.Sorted(maps.Keys(times)) {
		if more := times[promise] - shown; more > 0 {
			fmt.Fprintf(out, "and %d times more: %s\n", more, promise)
		}
	}
	for _, left := range v.Left {
		fmt.Fprintf(out, "left %s\n", left)
	}
	if v.Passed() {
		fmt.Fprintf(out, "PASSED    no promise was broken; repeat with --seed %d\n", v.Seed)
	} else {
		fmt.Fprintf(out, "FAILED    %d violations%s; repeat with --seed %d\n", len(v.Violations), v.first(), v.Seed)
	}
}

// first says when a violation was there to be seen, where that is known.
func (v *Verdict) first() string {
	first := Span(math.MaxInt64)
	for _, x := range v.Violations {
		if x.At > 0 {
			first = min(first, x.At)
		}
	}
	if first == math.MaxInt64 {
		return ""
	}
	return fmt.Sprintf(", the first after %v", first)
}

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Parse(page))

// HTML writes the verdict as one page that needs nothing else.
func (v *Verdict) HTML(out io.Writer) error {
	const width = 1000
	scale := func(at Span) float64 { return float64(at) / float64(max(v.Took, 1)) * width }
	type bar struct {
		X, Width float64
		Title    string
	}
	type tick struct {
		X     float64
		Class string
	}
	type lane struct {
		Name  string
		Ticks []tick
	}
	data := struct {
		*Verdict
		Bars   []bar
		Lanes  []lane
		Height int
	}{Verdict: v}
	for _, h := range v.Faults {
		data.Bars = append(data.Bars, bar{scale(h.At), max(1, scale(h.Over-h.At)),
			fmt.Sprintf("%s, from %v to %v, healed at %v", h.Kind, h.At, h.Over, h.Healed)})
	}
	for _, name := range (task{Width: v.Width}).names() {
		l := lane{Name: name}
		drawn := map[tick]bool{}
		for _, m := range v.marks {
			if m.object != name {
				continue
			}
			// Half a pixel is as fine as can be seen.
			t := tick{float64(int(2*scale(m.at))) / 2, string(m.outcome)}
			if m.at > 0 && !drawn[t] {
				drawn[t] = true
				l.Ticks = append(l.Ticks, t)
			}
		}
		data.Lanes = append(data.Lanes, l)
	}
	data.Height = 40 + 36*len(data.Lanes)
	return pageTemplate.Execute(out, data)
}
