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
	fallen   []string         // what processes did that should not have: ended, or did not end
	final    map[string]int64 // what the tables hold in the end: versions by resource, balances by balanceOf + resource
	epoch    int64            // of the time line

	all   []*Attempt // in their order
	found []Violation
}

const balanceOf = "balance of "

// gather reads the tables. Nobody may be at work any more.
func (e *evidence) gather(ctx context.Context, s *stage) error {
	rows, err := s.pool.Query(ctx, s.in(`
		SELECT attempt, resource, read, wrote, amount, token, lease_id FROM stage.effects`))
	if err == nil {
		e.effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Effect])
	}
	if err != nil {
		return err
	}
	return s.pool.QueryRow(ctx, s.in(`
		SELECT jsonb_object_agg(name, value) FROM (
			SELECT resource, value FROM stage.registers UNION ALL
			SELECT resource, version FROM stage.accounts UNION ALL
			SELECT $1 || resource, balance FROM stage.accounts UNION ALL
			SELECT resource, max(value) FROM stage.entries GROUP BY resource UNION ALL
			SELECT resource, 1 FROM stage.slots
		) AS stored (name, value)`), balanceOf).Scan(&e.final)
}

// judge finds what is wrong.
func (e *evidence) judge() []Violation {
	e.all = slices.SortedFunc(maps.Values(e.attempts), func(a, b *Attempt) int { return cmp.Compare(a.ID, b.ID) })
	attempts, effects := map[string][]*Attempt{}, map[string][]Effect{}
	for _, a := range e.all {
		attempts[a.Object] = append(attempts[a.Object], a)
	}
	for _, x := range e.effects {
		effects[x.Resource] = append(effects[x.Resource], x)
	}
	e.answers()
	for _, o := range e.copies() {
		for _, resource := range o.resources {
			e.chain(o, resource, effects[resource])
		}
		e.linearizable(o, attempts[o.name], effects)
		if o.kind == accounts {
			e.money(o, effects)
		}
	}
	if !e.lenient {
		e.issued()
	}
	if len(e.servers) == 0 { // which may have lost permits and results
		e.crowded()
		e.ordered()
	}
	for _, what := range e.fallen {
		e.found = append(e.found, Violation{Promise: alive, Text: what})
	}
	e.late()
	return e.found
}

// accuse notes a violation that an attempt shows. The text goes on where the name of the attempt
// ends.
func (e *evidence) accuse(id int64, promise, format string, args ...any) {
	v := Violation{Promise: promise, Text: e.describe(id) + " " + fmt.Sprintf(format, args...)}
	if a := e.attempts[id]; a != nil {
		v.Object, v.At = a.Object, Span(max(a.Call, a.Return)-e.epoch)
	}
	e.found = append(e.found, v)
}

// doubt notes a violation that shows in the end.
func (e *evidence) doubt(o object, promise, format string, args ...any) {
	e.found = append(e.found, Violation{Promise: promise, Object: o.name, Text: fmt.Sprintf(format, args...)})
}

// answers compares what was told with what is there.
func (e *evidence) answers() {
	there, times := map[int64]bool{}, map[Effect]int{} // by attempt and resource
	for _, x := range e.effects {
		if x.Token == 0 && e.Control.intruded() {
			e.accuse(x.Attempt, noWayRound, "has no token, and has committed")
		}
		there[x.Attempt] = true
		one := Effect{Attempt: x.Attempt, Resource: x.Resource}
		if times[one]++; times[one] == 2 {
			e.accuse(x.Attempt, nilIsTrue, "has committed more than once")
		}
	}
	for _, a := range e.all {
		if a.Broken != "" {
			e.accuse(a.ID, sums, "has found that %s", a.Broken)
		}
		switch {
		case a.Work == "look", a.Work == "permit", a.Work == "order":
		case a.Outcome == Committed && !there[a.ID]:
			e.accuse(a.ID, nilIsTrue, "is not there")
		case (a.Outcome == Refused || a.Outcome == Failed) && there[a.ID]:
			e.accuse(a.ID, noIsTrue, "has written all the same")
		}
	}
}

// chain follows one resource from version to version, as transactions have read and written it.
func (e *evidence) chain(o object, resource string, effects []Effect) {
	before, after := len(e.found), map[int64]Effect{}
	for _, x := range effects {
		if other, twice := after[x.Read]; twice && other.Attempt != x.Attempt {
			e.accuse(x.Attempt, noLost, "has read version %d of %s, and so has %s: one has written over the other", x.Read, resource, e.describe(other.Attempt))
			continue
		}
		after[x.Read] = x
	}
	version, last, walked := int64(0), Effect{}, 0
	for x, more := after[0]; more; x, more = after[version] {
		if x.Token < last.Token {
			e.accuse(x.Attempt, tokensRise, "has committed with token %d after %s with %d", x.Token, e.describe(last.Attempt), last.Token)
		} else if x.Token > 0 && x.Token == last.Token && x.Lease != last.Lease && e.Control != LockOnly {
			e.accuse(x.Attempt, tokensRise, "has committed with token %d, as %s has", x.Token, e.describe(last.Attempt))
		}
		version, last = x.Wrote, x
		if walked++; walked > len(effects) {
			break // a circle, which is a lost update, and found
		}
	}
	if o.kind == slot {
		version %= 2 // is the row there
	}
	if e.final[resource] != version && len(e.found) == before {
		e.doubt(o, sums, "%s is at version %d; its writes lead to %d", resource, e.final[resource], version)
	}
}

// change is what one operation does to an object: for each resource, the version that it finds and
// the one that it leaves. Resources that it does not touch have nil.
type change [3]*Effect

// linearizable asks porcupine whether the attempts of an object can be put in one order, each
// between its call and its return, in which all have read what the ones before have written.
func (e *evidence) linearizable(o object, attempts []*Attempt, effects map[string][]Effect) {
	changes := map[int64]change{}
	for part, resource := range o.resources {
		for _, x := range effects[resource] {
			c := changes[x.Attempt]
			c[part] = &x
			changes[x.Attempt] = c
		}
	}
	var history []porcupine.Operation
	for _, a := range attempts {
		c, wrote := changes[a.ID]
		switch {
		case a.Work == "look" && a.Outcome == Committed:
			c = change{{Read: a.Read, Wrote: a.Read}}
		case !wrote:
			continue
		}
		op := porcupine.Operation{ClientId: a.process(), Input: c, Call: a.Call, Return: a.Return}
		if a.Outcome != Committed {
			op.Return = math.MaxInt64 // nobody was told
		}
		history = append(history, op)
	}
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	switch porcupine.CheckOperationsTimeout(model, history, 30*time.Second) {
	case porcupine.Illegal:
		e.doubt(o, oneCopy, "no order of its %d operations explains what they have read", len(history))
	case porcupine.Unknown:
		e.doubt(o, oneCopy, "not decided in 30 s for %d operations", len(history))
	}
}

// model is an object of up to three resources, each with a version.
var model = porcupine.Model{
	Init: func() any { return [3]int64{} },
	Step: func(state, input, _ any) (bool, any) {
		versions := state.([3]int64)
		for i, x := range input.(change) {
			switch {
			case x == nil:
			case x.Read != versions[i]:
				return false, state
			default:
				versions[i] = x.Wrote
			}
		}
		return true, versions
	},
}

// money counts what transfers have moved.
func (e *evidence) money(o object, effects map[string][]Effect) {
	total := int64(0)
	for _, resource := range o.resources {
		has, want := e.final[balanceOf+resource], int64(balance)
		for _, x := range effects[resource] {
			want += x.Amount
		}
		total += has
		if has != want {
			e.doubt(o, sums, "%s has %d; its transfers lead to %d", resource, has, want)
		}
	}
	if want := int64(balance * len(o.resources)); total != want {
		e.doubt(o, sums, "all accounts have %d together, and had %d", total, want)
	}
}

// issued compares grants of which one was there before the other was asked for.
func (e *evidence) issued() {
	if e.Control == LockOnly {
		return // has no tokens
	}
	type grant struct {
		Grant
		attempt int64
	}
	by := map[string][]grant{}
	for _, a := range e.all {
		for _, g := range a.Grants {
			by[g.Resource] = append(by[g.Resource], grant{g, a.ID})
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(by)) {
		asked := by[resource]
		got := slices.Clone(asked)
		slices.SortFunc(asked, func(a, b grant) int { return cmp.Compare(a.Asked, b.Asked) })
		slices.SortFunc(got, func(a, b grant) int { return cmp.Compare(a.Got, b.Got) })
		var highest grant
		for _, g := range asked {
			for ; len(got) > 0 && got[0].Got < g.Asked; got = got[1:] {
				if got[0].Token > highest.Token {
					highest = got[0]
				}
			}
			if g.Token <= highest.Token && g.Lease != highest.Lease {
				e.accuse(g.attempt, issuedRise, "was granted %s with token %d after it had been granted with %d", resource, g.Token, highest.Token)
				break // the rest follows from it
			}
		}
	}
}

// slack is how much longer than its context a call may take: five seconds to ask about a COMMIT,
// and the rest for a machine that is busy.
const slack = 10 * time.Second

// late finds calls that took longer than their bound. The time in which their process was stopped
// does not count.
func (e *evidence) late() {
	for _, a := range e.all {
		took := time.Duration(a.Return - a.Call) // negative: it never has
		for _, p := range e.pauses {
			if p.Process == a.process() {
				took -= time.Duration(max(0, min(p.To, a.Return)-max(p.From, a.Call)))
			}
		}
		if took > e.patience()+slack {
			e.accuse(a.ID, inTime, "took %v; its context allowed %v", Span(took), e.patience())
		}
	}
}

// describe names an attempt so that a reader finds it in the history.
func (e *evidence) describe(id int64) string {
	work, outcome := "nobody told of it", Outcome("no answer")
	if a := e.attempts[id]; a != nil {
		work, outcome = a.Work, cmp.Or(a.Outcome, outcome)
	}
	return fmt.Sprintf("attempt %d-%d (%s, %s)", id>>32, id&math.MaxUint32, work, outcome)
}
