package chaos

import (
	"cmp"
	"context"
	"fmt"
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
	lenient  bool // tokens may fall where they are issued: Redis's clock was set back
}

// stored is what the tables hold in the end, by resource.
type stored struct {
	values   map[string]int64 // of counters and registers; of accounts the version
	balances map[string]int64
}

// gather reads the tables. Nobody may be at work any more.
func (s *stage) gather(ctx context.Context) (effects []Effect, final stored, err error) {
	final = stored{map[string]int64{}, map[string]int64{}}
	rows, err := s.pool.Query(ctx, `SELECT attempt, resource, read, wrote, amount, token, lease_id FROM effects`)
	if err == nil {
		effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Effect])
	}
	if err != nil {
		return nil, final, err
	}
	rows, err = s.pool.Query(ctx, `
		SELECT resource, value, NULL FROM registers UNION ALL
		SELECT resource, version, balance FROM accounts UNION ALL
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

// judge finds what is wrong. The order of the result is that of the promises.
func (e *evidence) judge() (found []Violation) {
	found = append(found, e.answers()...)
	for _, o := range objects {
		for _, name := range o.resources {
			found = append(found, e.chain(o.name, e.resource(name))...)
		}
		found = append(found, e.linearizable(o)...)
	}
	found = append(found, e.money()...)
	if !e.lenient {
		found = append(found, e.issued()...)
	}
	for _, what := range e.fallen {
		found = append(found, Violation{alive, "", what})
	}
	return append(found, e.late()...)
}

// answers compares what was told with what is there.
func (e *evidence) answers() (found []Violation) {
	effects := map[int64]map[string]int{}
	for _, x := range e.effects {
		if x.Token == 0 && e.Control.intruded() {
			found = append(found, Violation{noWayRound, e.objectOf(x), e.describe(x.Attempt) + " has no token, and has committed"})
		}
		if effects[x.Attempt] == nil {
			effects[x.Attempt] = map[string]int{}
		}
		effects[x.Attempt][x.Resource]++
		if effects[x.Attempt][x.Resource] == 2 {
			found = append(found, Violation{nilIsTrue, e.objectOf(x), fmt.Sprintf("%s has committed more than once", e.describe(x.Attempt))})
		}
	}
	for _, id := range sortedKeys(e.attempts) {
		a := e.attempts[id]
		if a.Broken != "" {
			found = append(found, Violation{sums, a.Object, e.describe(id) + " has found that " + a.Broken})
		}
		switch there := len(effects[id]) > 0; {
		case a.Work == "look":
		case a.Outcome == Committed && !there:
			found = append(found, Violation{nilIsTrue, a.Object, e.describe(id) + " is not there"})
		case (a.Outcome == Refused || a.Outcome == Failed) && there:
			found = append(found, Violation{noIsTrue, a.Object, e.describe(id) + " has written all the same"})
		}
	}
	return found
}

// chain follows one resource from version to version, as transactions have read and written it.
func (e *evidence) chain(object, resource string) (found []Violation) {
	after := map[int64]Effect{}
	count := 0
	for _, x := range e.effects {
		if x.Resource != resource {
			continue
		}
		count++
		if other, twice := after[x.Read]; twice && other.Attempt != x.Attempt {
			found = append(found, Violation{noLost, object, fmt.Sprintf("%s and %s have both read version %d of %s: one has written over the other",
				e.describeEffect(other), e.describeEffect(x), x.Read, resource)})
			continue
		}
		after[x.Read] = x
	}
	version, last, walked := int64(0), Effect{}, 0
	for x, more := after[0]; more; x, more = after[version] {
		if x.Token < last.Token {
			found = append(found, Violation{tokensRise, object, fmt.Sprintf("%s has committed after %s", e.describeEffect(x), e.describeEffect(last))})
		} else if x.Token > 0 && x.Token == last.Token && x.Lease != last.Lease && e.Control != LockOnly {
			found = append(found, Violation{tokensRise, object, fmt.Sprintf("%s and %s have committed with one token", e.describeEffect(x), e.describeEffect(last))})
		}
		version, last = x.Wrote, x
		if walked++; walked > count {
			break // a circle, which is a lost update, and found
		}
	}
	if object == objects[slot].name {
		version %= 2 // is the row there
	}
	if e.final.values[resource] != version && len(found) == 0 {
		found = append(found, Violation{sums, object, fmt.Sprintf("%s is at version %d; its writes lead to %d", resource, e.final.values[resource], version)})
	}
	return found
}

// change is what one operation does to an object: it finds the versions read, and leaves those
// written. Resources that it does not touch have -1.
type change struct{ read, wrote [3]int64 }

var untouched = [3]int64{-1, -1, -1}

// linearizable asks porcupine whether the attempts of an object can be put in one order, each
// between its call and its return, in which all have read what the ones before have written.
func (e *evidence) linearizable(o object) []Violation {
	changes := map[int64]change{}
	for _, x := range e.effects {
		if a := e.attempts[x.Attempt]; a == nil || a.Object != o.name {
			continue
		}
		c, ok := changes[x.Attempt]
		if !ok {
			c = change{untouched, untouched}
		}
		_, part := e.owner(x.Resource)
		c.read[part], c.wrote[part] = x.Read, x.Wrote
		changes[x.Attempt] = c
	}
	var history []porcupine.Operation
	for id, a := range e.attempts {
		c, wrote := changes[id]
		switch {
		case a.Object != o.name:
			continue
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
		return []Violation{{oneCopy, o.name, fmt.Sprintf("not decided in 30 s for %d operations", len(history))}}
	}
	return []Violation{{oneCopy, o.name, fmt.Sprintf("no order of its %d operations explains what they have read", len(history))}}
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
func (e *evidence) money() (found []Violation) {
	o := objects[accounts]
	moved, total := map[string]int64{}, int64(0)
	for _, x := range e.effects {
		moved[x.Resource] += x.Amount
	}
	for _, name := range o.resources {
		resource := e.resource(name)
		has := e.final.balances[resource]
		total += has
		if want := balance + moved[resource]; has != want {
			found = append(found, Violation{sums, o.name, fmt.Sprintf("%s has %d; its transfers lead to %d", resource, has, want)})
		}
	}
	if want := int64(balance * len(o.resources)); total != want {
		found = append(found, Violation{sums, o.name, fmt.Sprintf("all accounts have %d together, and had %d", total, want)})
	}
	return found
}

// issued compares grants of which one was there before the other was asked for.
func (e *evidence) issued() (found []Violation) {
	if e.Control == LockOnly {
		return nil // has no tokens
	}
	by := map[string][]Grant{}
	for _, id := range sortedKeys(e.attempts) {
		for _, g := range e.attempts[id].Grants {
			by[g.Resource] = append(by[g.Resource], g)
		}
	}
	for _, resource := range sortedKeys(by) {
		asked := by[resource]
		got := slices.Clone(asked)
		slices.SortFunc(asked, func(a, b Grant) int { return cmp.Compare(a.Asked, b.Asked) })
		slices.SortFunc(got, func(a, b Grant) int { return cmp.Compare(a.Got, b.Got) })
		var highest Grant
		for _, g := range asked {
			for len(got) > 0 && got[0].Got < g.Asked {
				if got[0].Token > highest.Token {
					highest = got[0]
				}
				got = got[1:]
			}
			if g.Token <= highest.Token && g.Lease != highest.Lease {
				o, _ := e.owner(resource)
				found = append(found, Violation{issuedRise, objects[o].name, fmt.Sprintf("%s was granted with token %d after it had been granted with %d",
					resource, g.Token, highest.Token)})
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
	for _, id := range sortedKeys(e.attempts) {
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
			found = append(found, Violation{inTime, a.Object, fmt.Sprintf("%s took %v; its context allowed %v", e.describe(id),
				time.Duration(took).Round(time.Millisecond), time.Duration(a.Limit))})
		}
	}
	return found
}

func (e *evidence) objectOf(x Effect) string {
	o, _ := e.owner(x.Resource)
	return objects[o].name
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

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
