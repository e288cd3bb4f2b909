package writes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// results counts answers: by entry point, fault and answer.
type results map[string]map[string]map[answer]int

func (r results) add(entry, fault string, a answer, n int) {
	if r[entry] == nil {
		r[entry] = map[string]map[answer]int{}
	}
	if r[entry][fault] == nil {
		r[entry][fault] = map[answer]int{}
	}
	r[entry][fault][a] += n
}

// tally is of this run.
var tally = struct {
	sync.Mutex
	results
	wrong bool
}{results: results{}}

func record(s setup, f *fault, o outcome, wrong bool) {
	tally.Lock()
	defer tally.Unlock()
	tally.add(s.name, f.name, o.answer, 1)
	tally.wrong = tally.wrong || wrong
}

// The page shows the last complete run on each major version of Postgres, which is kept beside it.
const (
	page = "README.md"
	kept = "results.json"
)

func serverVersion(t *testing.T) (major string) {
	conn, err := pgx.Connect(t.Context(), testenv.OwnPostgres(t).URL())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	major, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), ".")
	return major
}

// complete is whether every entry point has met every fault.
func complete(r results) bool {
	for _, f := range allFaults() {
		for _, e := range entries {
			if len(r[e.name][f.name]) == 0 && (f.unless == nil || !f.unless(setup{entry: &e})) {
				return false
			}
		}
	}
	return true
}

func allFaults() []fault { return slices.Concat(faults, disasterFaults, bouncerFaults) }

// letters are short for answers in the table.
var letters = []struct {
	answer
	letter, means string
}{
	{committed, "C", "nil: committed, and the result is right"},
	{resultLost, "L", "`ErrCommitted`: committed, the result is lost"},
	{unknown, "U", "`ErrCommitUnknown`"},
	{nothing, "N", "any other error: nothing was written"},
	{noClaim, "S", "`Seal` failed: seal again, nothing else was written"},
}

// perTable is how many faults stand side by side on the page.
const perTable = 6

const tablesBegin, tablesEnd = "<!-- tables: written by make matrix -->\n", "<!-- end of tables -->\n"

func withTables(page string, byVersion map[string]results) string {
	before, rest, _ := strings.Cut(page, tablesBegin)
	_, after, _ := strings.Cut(rest, tablesEnd)
	return before + tablesBegin + tables(byVersion) + tablesEnd + after
}

func tables(byVersion map[string]results) string {
	var (
		b   strings.Builder
		sum = results{}
	)
	for _, version := range slices.Sorted(maps.Keys(byVersion)) {
		cases := 0
		for entry, faults := range byVersion[version] {
			for fault, answers := range faults {
				for a, n := range answers {
					sum.add(entry, fault, a, n)
					cases += n
				}
			}
		}
		fmt.Fprintf(&b, "Postgres %s: %d cases.\n", version, cases)
	}
	b.WriteString("\n| answer | means |\n| --- | --- |\n")
	for _, l := range letters {
		fmt.Fprintf(&b, "| %s | %s |\n", l.letter, l.means)
	}
	b.WriteString("\n| fault | what happens | answers allowed to one statement or batch | to `Tx` |\n| --- | --- | --- | --- |\n")
	for _, f := range allFaults() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.name, f.means,
			lettersOf(f.allowed(setup{entry: named("Exec"), handle: pooled})), lettersOf(f.allowed(setup{entry: named("Tx Exec"), handle: pooled})))
	}
	for group := range slices.Chunk(allFaults(), perTable) {
		b.WriteString("\n| entry point |")
		for _, f := range group {
			fmt.Fprintf(&b, " %s |", f.name)
		}
		b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(group)) + "\n")
		for _, e := range entries {
			fmt.Fprintf(&b, "| %s |", e.name)
			for _, f := range group {
				for _, l := range letters {
					if n := sum[e.name][f.name][l.answer]; n > 0 {
						fmt.Fprintf(&b, " %s%d", l.letter, n)
					}
				}
				b.WriteString(" |")
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func lettersOf(answers []answer) string {
	var own []string
	for _, l := range letters {
		if slices.Contains(answers, l.answer) {
			own = append(own, l.letter)
		}
	}
	return strings.Join(own, " ")
}

func named(name string) *entry {
	return &entries[slices.IndexFunc(entries, func(e entry) bool { return e.name == name })]
}
