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

	marks map[string][]mark // by object
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
	At      Span
	Outcome Outcome
}

// Passed reports whether nothing was violated.
func (v *Verdict) Passed() bool { return len(v.Violations) == 0 }

// count sums up what happened.
func (v *Verdict) count(e *evidence) {
	v.Attempts, v.Effects, v.Outcomes, v.marks = len(e.attempts), len(e.effects), map[Outcome]int{}, map[string][]mark{}
	reasons := map[string]int{}
	for _, a := range e.all {
		v.Outcomes[a.Outcome]++
		if a.Outcome == Failed {
			reasons[numbers.ReplaceAllString(strings.ReplaceAll(a.Error, v.Run, "run"), "#")]++
		}
		if a.Work != "look" && a.Return > e.epoch {
			v.marks[a.Object] = append(v.marks[a.Object], mark{Span(a.Return - e.epoch), a.Outcome})
		}
	}
	v.Reasons = []Reason{}
	for text, times := range reasons {
		v.Reasons = append(v.Reasons, Reason{text, times})
	}
	slices.SortFunc(v.Reasons, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Error, b.Error))
	})
	for _, name := range e.names() {
		slices.SortFunc(v.marks[name], func(a, b mark) int { return cmp.Compare(a.At, b.At) })
		for i := range v.Faults {
			h := &v.Faults[i]
			if idle := longestIdle(v.marks[name], h.At, h.Healed); idle > h.Idle {
				h.Idle, h.Object = idle, name
			}
		}
	}
}

// numbers are what differs from one attempt to the next, beside the name of the run.
var numbers = regexp.MustCompile(`[0-9a-f]*\d[0-9a-f-]*`)

// longestIdle is the longest time from one write to the next between from and to.
func longestIdle(marks []mark, from, to Span) (longest Span) {
	last := from
	for _, m := range marks {
		if m.Outcome == Committed && m.At >= from && m.At <= to {
			longest, last = max(longest, m.At-last), m.At
		}
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
func (v *Verdict) HTML(out io.Writer) error { return pageTemplate.Execute(out, drawing{v}) }

// drawing is a verdict on a page.
type drawing struct{ *Verdict }

// X is where a time is on a time line of 1000. Half a unit is as fine as can be seen.
func (d drawing) X(at Span) float64 { return math.Floor(2000*float64(at)/float64(max(d.Took, 1))) / 2 }

// Wide is how wide a fault is.
func (d drawing) Wide(h Happened) float64 { return max(1, d.X(h.Over-h.At)) }

// Lanes are the names of the objects.
func (d drawing) Lanes() []string { return task{Config: Config{Width: d.Width}}.names() }

// Marks are those of an object, those that look the same only once.
func (d drawing) Marks(object string) []mark {
	marks := slices.Clone(d.marks[object])
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.Outcome, b.Outcome) })
	return slices.CompactFunc(marks, func(a, b mark) bool { return a.Outcome == b.Outcome && d.X(a.At) == d.X(b.At) })
}

// Height is that of all lanes.
func (d drawing) Height() int { return 40 + 36*len(d.Lanes()) }
