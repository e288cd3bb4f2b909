package chaos

import (
	"cmp"
	_ "embed" // the reports
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	plain "text/template"
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

// Broken are the violations of each promise.
func (v *Verdict) Broken() map[string][]Violation {
	by := map[string][]Violation{}
	for _, x := range v.Violations {
		by[x.Promise] = append(by[x.Promise], x)
	}
	return by
}

// First says when a violation was there to be seen, where that is known.
func (v *Verdict) First() string {
	var seen []Span
	for _, x := range v.Violations {
		if x.At > 0 {
			seen = append(seen, x.At)
		}
	}
	if len(seen) == 0 {
		return ""
	}
	return fmt.Sprintf(", the first after %v", slices.Min(seen))
}

var (
	//go:embed report.html
	html string
	//go:embed report.txt
	text string

	page  = template.Must(template.New("html").Parse(html))
	sheet = plain.Must(plain.New("text").Parse(text))
)

// HTML writes the verdict as one page that needs nothing else.
func (v *Verdict) HTML(out io.Writer) error { return page.Execute(out, v) }

// Text writes the verdict for people.
func (v *Verdict) Text(out io.Writer) error { return sheet.Execute(out, v) }

// X is where a time is on a time line of 1000. Half a unit is as fine as can be seen.
func (v *Verdict) X(at Span) float64 { return math.Floor(2000*float64(at)/float64(max(v.Took, 1))) / 2 }

// Wide is how wide a fault is.
func (v *Verdict) Wide(h Happened) float64 { return max(1, v.X(h.Over-h.At)) }

// Lanes are the names of the objects.
func (v *Verdict) Lanes() []string { return task{Config: Config{Width: v.Width}}.names() }

// Marks are those of an object, those that look the same only once.
func (v *Verdict) Marks(object string) []mark {
	marks := slices.Clone(v.marks[object])
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.Outcome, b.Outcome) })
	return slices.CompactFunc(marks, func(a, b mark) bool { return a.Outcome == b.Outcome && v.X(a.At) == v.X(b.At) })
}

// Height is that of all lanes.
func (v *Verdict) Height() int { return 40 + 36*len(v.Lanes()) }
