package leases

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// What the cells are judged by is what the documentation says.
func TestTheTablesOfLeasesAreThoseOfTheMatrix(t *testing.T) {
	t.Parallel()
	for page, table := range map[string]string{"../../../docs/leases.md": faultsInWords(), "README.md": callsInWords()} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		require.Contains(t, string(text), table, "%s should say:\n%s", page, table)
	}
}

// faultsInWords has one row for each error.
func faultsInWords() string {
	var rows [][2]string
	names := make(map[string][]string)
	for _, f := range leaseFaults {
		if f.want == nil {
			continue
		}
		again := "no"
		if f.passing {
			again = "yes"
		}
		row := [2]string{errorInWords(f.want), again}
		if f.stops || strings.HasPrefix(f.name, "hang") {
			row[1] = "while there is time"
		}
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
		name := strings.TrimSuffix(strings.TrimSuffix(f.name, " once"), " always")
		if key := strings.Join(row[:], "|"); !slices.Contains(names[key], name) {
			names[key] = append(names[key], name)
		}
	}
	var b strings.Builder
	b.WriteString("| fault | error | sent again |\n| --- | --- | --- |\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(names[strings.Join(row[:], "|")], ", "), row[0], row[1])
	}
	return b.String()
}

// faultClasses are what a call can tell apart.
var faultClasses = []struct {
	name string
	has  func(leaseFault) bool
}{
	{"no fault", func(f leaseFault) bool { return f.verdict.Fate == faulty.Pass && !f.stops }},
	{"passes, once", func(f leaseFault) bool { return f.passing && f.times > 0 }},
	{"passes, and lasts", func(f leaseFault) bool { return f.passing && f.times == 0 }},
	{"is not sent again", func(f leaseFault) bool {
		return f.want != nil && !f.passing && f.verdict.Fate != faulty.Silence && !f.stops
	}},
	{"no answer", func(f leaseFault) bool { return f.stops || f.verdict.Fate == faulty.Silence && f.times == 0 }},
}

// callsInWords has one row for all calls and scripts with the same answers.
func callsInWords() string {
	var rows []string
	names := make(map[string][]string)
	for _, call := range leaseCalls {
		for _, script := range call.scripts {
			if script == "withdraw" || script == "release" && call.waits {
				continue // behind the call, which has its answer
			}
			row := answersInWords(call, script)
			if !slices.Contains(rows, row) {
				rows = append(rows, row)
			}
			names[row] = append(names[row], call.name+": "+script)
		}
	}
	var b strings.Builder
	b.WriteString("| call: script |")
	for _, class := range faultClasses {
		fmt.Fprintf(&b, " %s |", class.name)
	}
	b.WriteString(" longest, without an end of the context |\n|" + strings.Repeat(" --- |", len(faultClasses)+2) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |%s\n", strings.Join(names[row], "; "), row)
	}
	return b.String()
}

func answersInWords(call leaseCall, script string) string {
	var b strings.Builder
	for _, class := range faultClasses {
		var answers []string
		for _, f := range leaseFaults {
			if !class.has(f) {
				continue
			}
			c := &leaseCell{leaseWorld: &leaseWorld{}, call: call, script: script, fault: f}
			if answer := answerInWords(c); !slices.Contains(answers, answer) {
				answers = append(answers, answer)
			}
		}
		fmt.Fprintf(&b, " %s |", strings.Join(answers, " or "))
	}
	fmt.Fprintf(&b, " %s |", boundInWords(call, script))
	return b.String()
}

func boundInWords(call leaseCall, script string) string {
	var terms []string
	switch {
	case script == "release" && call.detached:
		return "TTL, at most 5 s"
	case script == "release": // one attempt, and the others behind it
		return "TTL/4, from 0.1 to 3 s"
	case call.renews:
		return "until the lease is over"
	case call.ttls == 1:
		terms = append(terms, "TTL")
	case call.ttls > 1:
		terms = append(terms, fmt.Sprintf("%d TTL", call.ttls))
	}
	switch call.more {
	case ask:
		terms = append(terms, "5 s")
	case judgement:
		terms = append(terms, "`Config.Timeout`")
	}
	return strings.Join(terms, " + ")
}

func answerInWords(c *leaseCell) string {
	want := c.wanted()
	if c.call.want != nil {
		want = c.call.want(c)
	}
	switch {
	case want == nil:
		return "done"
	case c.fault.want != nil && errors.Is(want, c.fault.want):
		return "its error"
	}
	return errorInWords(want)
}

func errorInWords(err error) string {
	if refused, is := errors.AsType[*lease.RefusedError](err); is {
		return "`ErrRefused`, " + refused.Code
	}
	for name, known := range map[string]error{
		"ErrHeld": lease.ErrHeld, "ErrUnreachable": lease.ErrUnreachable, "ErrProtocol": lease.ErrProtocol,
		"once.ErrNotRecorded": once.ErrNotRecorded,
	} {
		if errors.Is(err, known) {
			return "`" + name + "`"
		}
	}
	if errors.Is(err, errWork) {
		return "that of the work"
	}
	return "one without a name"
}
