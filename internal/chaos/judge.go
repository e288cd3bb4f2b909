package chaos

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
)

// Violation is a promise that was broken, with what shows it.
type Violation struct {
	Promise string `json:"promise"`
	Object  string `json:"object,omitempty"`
	Text    string `json:"text"`
	At      Span   `json:"at_ms"` // when the attempt that shows it had ended; 0: it shows only in the end
}

// The promises that are judged.
const (
	oneCopy    = "linearizable: every object behaves as if attempts came one at a time"
	noLost     = "no update is lost"
	noWayRound = "nothing is written without a token"
	tokensRise = "committed tokens never go down, and one token belongs to one lease"
	issuedRise = "Redis issues rising tokens"
	nilIsTrue  = "what was told committed is there, once"
	noIsTrue   = "what was told refused or failed has no effect"
	sums       = "what is stored adds up"
	atMost     = "no more permits than the limit at once"
	runOnce    = "work runs once, and its result is replayed"
	inTime     = "no call takes longer than its bound"
	alive      = "every process ends when it is told to, and not before"
	healing    = "work goes on once a fault is over"
)

// evidence is all that the judge knows.
type evidence struct {
	task
	attempts map[int64]*Attempt
	effects  []Effect
	pauses   []Pause
	fallen   []string
	final    stored
	lenient  bool  // tokens may fall where they are issued: Redis's clock was set back
	servers  bool  // may have lost data, and with it permits and results
	epoch    int64 // of the time line
}

// stored is what the tables hold in the end, by resource.
type stored struct {
	values   map[string]int64 // of counters and registers; of accounts the version
	balances map[string]int64
}

// gather reads the tables. Nobody may be at work any more.
func (s *stage) gather(ctx context.Context) (effects []Effect, final stored, err error) {
	final = stored{map[string]int64{}, map[string]int64{}}
	rows, err := s.pool.Query(ctx, `
		SELECT attempt, resource, read, wrote, amount, token, lease_id FROM effects UNION ALL
		SELECT attempt, resource, read, wrote, amount, token, lease_id FROM job_effects`)
	if err == nil {
		effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Effect])
	}
	if err != nil {
		return nil, final, err
	}
	rows, err = s.pool.Query(ctx, `
		SELECT resource, value, NULL FROM registers UNION ALL
		SELECT resource, version, balance FROM accounts UNION ALL
		SELECT resource, version, NULL FROM jobs UNION ALL
		SELECT resource, max(value), NULL FROM entries GROUP BY resource UNION ALL
		SELECT resource, 1, NULL FROM slots`)
	if err != nil {
		return nil, final, err
	}
	var (
		resource string
		value    int64
		balance  *int64
	)
	_, err = pgx.ForEachRow(rows, []any{&resource, &value, &balance}, func() error {
		final.values[resource] = value
		if balance != nil {
			final.balances[resource] = *balance
		}
		return nil
	})
	return effects, final, err
}

// file is what is known of one object.
type file struct {
	object
	attempts []*Attempt
	effects  [][]Effect // by resource
}

// files sorts the evidence, so that an hour of it can be judged object by object.
func (e *evidence) files() []*file {
	type place struct {
		file *file
		part int
	}
	var all []*file
	named, owner := map[string]*file{}, map[string]place{}
	for _, o := range e.copies() {
		f := &file{object: o, effects: make([][]Effect, len(o.resources))}
		all, named[o.name] = append(all, f), f
		for part, resource := range o.resources {
			owner[resource] = place{f, part}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(e.attempts)) {
		if f := named[e.attempts[id].Object]; f != nil {
			f.attempts = append(f.attempts, e.attempts[id])
		}
	}
	for _, x := range e.effects {
		at := owner[x.Resource]
		at.file.effects[at.part] = append(at.file.effects[at.part], x)
	}
	return all
}

// judge finds what is wrong. The order of the result is that of the promises.
func (e *evidence) judge() (found []Violation) {
	found = append(found, e.answers()...)
	for _, f := range e.files() {
		for part := range f.resources {
			found = append(found, e.chain(f, part)...)
		}
		found = append(found, e.linearizable(f)...)
		if f.kind == accounts {
			found = append(found, e.money(f)...)
		}
	}
	if !e.lenient {
		found = append(found, e.issued()...)
	}
	if !e.servers {
		found = append(found, e.crowded()...)
		found = append(found, e.ordered()...)
	}
	for _, what := range e.fallen {
		found = append(found, Violation{Promise: alive, Text: what})
	}
	return append(found, e.late()...)
}

// shows is a violation that an attempt shows.
func (e *evidence) shows(id int64, promise, format string, args ...any) Violation {
	v := Violation{Promise: promise, Text: fmt.Sprintf(format, args...)}
	if a := e.attempts[id]; a != nil {
		v.Object, v.At = a.Object, Span(max(a.Call, a.Return)-e.epoch)
	}
	return v
}

// answers compares what was told with what is there.
func (e *evidence) answers() (found []Violation) {
	type change struct {
		attempt  int64
		resource string
	}
	there, times := map[int64]bool{}, map[change]int{}
	for _, x := range e.effects {
		if x.Token == 0 && e.Control.intruded() {
			found = append(found, e.shows(x.Attempt, noWayRound, "%s has no token, and has committed", e.describe(x.Attempt)))
		}
		there[x.Attempt] = true
		c := change{x.Attempt, x.Resource}
		if times[c]++; times[c] == 2 {
			found = append(found, e.shows(x.Attempt, nilIsTrue, "%s has committed more than once", e.describe(x.Attempt)))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(e.attempts)) {
		a := e.attempts[id]
		if a.Broken != "" {
			found = append(found, e.shows(id, sums, "%s has found that %s", e.describe(id), a.Broken))
		}
		switch {
		case a.Work == "look", a.Work == "permit", a.Work == "order":
		case a.Outcome == Committed && !there[id]:
			found = append(found, e.shows(id, nilIsTrue, "%s is not there", e.describe(id)))
		case (a.Outcome == Refused || a.Outcome == Failed) && there[id]:
			found = append(found, e.shows(id, noIsTrue, "%s has written all the same", e.describe(id)))
		}
	}
	return found
}

// chain follows one resource from version to version, as transactions have read and written it.
func (e *evidence) chain(f *file, part int) (found []Violation) {
	resource, effects := f.resources[part], f.effects[part]
	after := map[int64]Effect{}
	for _, x := range effects {
		if other, twice := after[x.Read]; twice && other.Attempt != x.Attempt {
			found = append(found, e.shows(x.Attempt, noLost, "%s and %s have both read version %d of %s: one has written over the other",
				e.describeEffect(other), e.describeEffect(x), x.Read, resource))
			continue
		}
		after[x.Read] = x
	}
	version, last, walked := int64(0), Effect{}, 0
	for x, more := after[0]; more; x, more = after[version] {
		if x.Token < last.Token {
			found = append(found, e.shows(x.Attempt, tokensRise, "%s has committed after %s", e.describeEffect(x), e.describeEffect(last)))
		} else if x.Token > 0 && x.Token == last.Token && x.Lease != last.Lease && e.Control != LockOnly {
			found = append(found, e.shows(x.Attempt, tokensRise, "%s and %s have committed with one token", e.describeEffect(x), e.describeEffect(last)))
		}
		version, last = x.Wrote, x
		if walked++; walked > len(effects) {
			break // a circle, which is a lost update, and found
		}
	}
	if f.kind == slot {
		version %= 2 // is the row there
	}
	if e.final.values[resource] != version && len(found) == 0 {
		found = append(found, f.violates(sums, "%s is at version %d; its writes lead to %d", resource, e.final.values[resource], version))
	}
	return found
}

// change is what one operation does to an object: it finds the versions read, and leaves those
// written. Resources that it does not touch have -1.
type change struct{ read, wrote [3]int64 }

var untouched = [3]int64{-1, -1, -1}

// violates is a violation that shows in the end.
func (f *file) violates(promise, format string, args ...any) Violation {
	return Violation{Promise: promise, Object: f.name, Text: fmt.Sprintf(format, args...)}
}

// linearizable asks porcupine whether the attempts of an object can be put in one order, each
// between its call and its return, in which all have read what the ones before have written.
func (e *evidence) linearizable(f *file) []Violation {
	changes := map[int64]change{}
	for part, effects := range f.effects {
		for _, x := range effects {
			c, ok := changes[x.Attempt]
			if !ok {
				c = change{untouched, untouched}
			}
			c.read[part], c.wrote[part] = x.Read, x.Wrote
			changes[x.Attempt] = c
		}
	}
	var history []porcupine.Operation
	for _, a := range f.attempts {
		c, wrote := changes[a.ID]
		switch {
		case a.Work == "look" && a.Outcome == Committed:
			c = change{[3]int64{a.Read, -1, -1}, untouched}
		case !wrote:
			continue
		}
		op := porcupine.Operation{ClientId: a.Process, Input: c, Call: a.Call, Return: a.Return}
		if a.Outcome != Committed {
			op.Return = math.MaxInt64 // nobody was told
		}
		history = append(history, op)
	}
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	switch porcupine.CheckOperationsTimeout(model, history, 30*time.Second) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return []Violation{f.violates(oneCopy, "not decided in 30 s for %d operations", len(history))}
	}
	return []Violation{f.violates(oneCopy, "no order of its %d operations explains what they have read", len(history))}
}

// model is an object of up to three resources, each with a version.
var model = porcupine.Model{
	Init: func() any { return [3]int64{} },
	Step: func(state, input, _ any) (bool, any) {
		versions, c := state.([3]int64), input.(change)
		for i := range versions {
			if c.read[i] >= 0 && c.read[i] != versions[i] {
				return false, state
			}
			if c.wrote[i] >= 0 {
				versions[i] = c.wrote[i]
			}
		}
		return true, versions
	},
}

// money counts what transfers have moved.
func (e *evidence) money(f *file) (found []Violation) {
	total := int64(0)
	for part, resource := range f.resources {
		want := int64(balance)
		for _, x := range f.effects[part] {
			want += x.Amount
		}
		has := e.final.balances[resource]
		total += has
		if has != want {
			found = append(found, f.violates(sums, "%s has %d; its transfers lead to %d", resource, has, want))
		}
	}
	if want := int64(balance * len(f.resources)); total != want {
		found = append(found, f.violates(sums, "all accounts have %d together, and had %d", total, want))
	}
	return found
}

// issued compares grants of which one was there before the other was asked for.
func (e *evidence) issued() (found []Violation) {
	if e.Control == LockOnly {
		return nil // has no tokens
	}
	type grant struct {
		Grant
		attempt int64
	}
	by := map[string][]grant{}
	for _, id := range slices.Sorted(maps.Keys(e.attempts)) {
		for _, g := range e.attempts[id].Grants {
			by[g.Resource] = append(by[g.Resource], grant{g, id})
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(by)) {
		asked := by[resource]
		got := slices.Clone(asked)
		slices.SortFunc(asked, func(a, b grant) int { return cmp.Compare(a.Asked, b.Asked) })
		slices.SortFunc(got, func(a, b grant) int { return cmp.Compare(a.Got, b.Got) })
		var highest grant
		for _, g := range asked {
			for len(got) > 0 && got[0].Got < g.Asked {
				if got[0].Token > highest.Token {
					highest = got[0]
				}
				got = got[1:]
			}
			if g.Token <= highest.Token && g.Lease != highest.Lease {
				found = append(found, e.shows(g.attempt, issuedRise, "%s was granted with token %d after it had been granted with %d",
					resource, g.Token, highest.Token))
				break // the rest follows from it
			}
		}
	}
	return found
}

// slack is how much longer than its context a call may take: five seconds to ask about a COMMIT,
// and the rest for a machine that is busy.
const slack = 10 * time.Second

// late finds calls that took longer than their bound. The time in which their process was stopped
// does not count.
func (e *evidence) late() (found []Violation) {
	for _, id := range slices.Sorted(maps.Keys(e.attempts)) {
		a := e.attempts[id]
		if a.Return == 0 {
			continue
		}
		took := a.Return - a.Call
		for _, p := range e.pauses {
			if p.Process == a.Process {
				took -= max(0, min(p.To, a.Return)-max(p.From, a.Call))
			}
		}
		if took > a.Limit+int64(slack) {
			found = append(found, e.shows(id, inTime, "%s took %v; its context allowed %v", e.describe(id),
				time.Duration(took).Round(time.Millisecond), time.Duration(a.Limit)))
		}
	}
	return found
}

// describe names an attempt so that a reader finds it in the history.
func (e *evidence) describe(id int64) string {
	a := e.attempts[id]
	if a == nil {
		return fmt.Sprintf("attempt %d-%d, which nobody told of,", id>>32, id&math.MaxUint32)
	}
	outcome := a.Outcome
	if outcome == Open {
		outcome = "no answer"
	}
	return fmt.Sprintf("attempt %d-%d (%s, %s)", id>>32, id&math.MaxUint32, a.Work, outcome)
}

func (e *evidence) describeEffect(x Effect) string {
	return fmt.Sprintf("%s with token %d", e.describe(x.Attempt), x.Token)
}
