package chaos

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// book makes evidence by hand: two holders count to 2, one after the other.
type book struct{ evidence }

func newBook() *book {
	e := evidence{task: task{Run: "r"}, attempts: map[int64]*Attempt{}, final: map[string]int64{}}
	for _, name := range objects[accounts].resources {
		e.final[balanceOf+e.resource(name)] = balance
	}
	b := &book{e}
	b.count(1, 41, ann, 0, 10)
	b.count(2, 42, ben, 1, 20)
	b.final["r-counter:1"] = 2
	return b
}

var ann, ben = uuid.UUID{1}, uuid.UUID{2}

// count adds an attempt that began at a time, took 5, and has committed.
func (b *book) count(id, token int64, lease uuid.UUID, read, at int64) {
	const resource = "r-counter:1"
	b.attempts[id] = &Attempt{
		ID: id, Work: "count", Object: "counter 1", Call: at, Return: at + 5, Outcome: Committed,
		Grants: []Grant{{resource, token, lease, at, at + 1}},
	}
	b.effects = append(b.effects, Effect{id, resource, read, read + 1, 0, token, lease})
}

// permits adds holders of permits, each from a time until a time.
func (b *book) permits(times ...int64) {
	for i := 0; i < len(times); i += 2 {
		id := int64(10 + i)
		b.attempts[id] = &Attempt{ID: id, Work: "permit", Object: permits, Call: 1, Return: 40, Outcome: Committed, From: times[i], Until: times[i+1]}
	}
}

// order adds an attempt that was given the result of another one, or has run itself.
func (b *book) order(id, call, from, until, back, result int64) {
	b.TTL = 50
	b.attempts[id] = &Attempt{
		ID: id, Work: "order", Object: orders, Call: call, Return: back, Outcome: Committed, From: from, Until: until, Read: result,
	}
}

func TestTheJudgeSeesEachViolation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tamper func(*book)
		want   []string
	}{
		"nothing":              {func(*book) {}, nil},
		"told, and not there":  {func(b *book) { b.effects, b.final["r-counter:1"] = b.effects[:1], 1 }, []string{nilIsTrue}},
		"refused, and there":   {func(b *book) { b.attempts[2].Outcome = Refused }, []string{noIsTrue}},
		"failed, and there":    {func(b *book) { b.attempts[2].Outcome = Failed }, []string{noIsTrue}},
		"no answer, and there": {func(b *book) { b.attempts[2].Outcome, b.attempts[2].Return = Open, 0 }, nil},
		"unknown, and there":   {func(b *book) { b.attempts[2].Outcome = Unknown }, nil},
		"unknown, and not there": {func(b *book) {
			b.attempts[2].Outcome = Unknown
			b.effects, b.final["r-counter:1"] = b.effects[:1], 1
		}, nil},
		"twice":                           {func(b *book) { b.effects = append(b.effects, b.effects[1]) }, []string{nilIsTrue}},
		"a lost update":                   {func(b *book) { b.effects[1].Read, b.effects[1].Wrote = 0, 1 }, []string{noLost, oneCopy}},
		"tokens that went down":           {func(b *book) { b.effects[1].Token = 40 }, []string{tokensRise}},
		"one token of two leases":         {func(b *book) { b.effects[1].Token = 41 }, []string{tokensRise}},
		"a write without a token":         {func(b *book) { b.effects[0].Token, b.attempts[1].Grants = 0, nil }, []string{noWayRound}},
		"two writes under one lease":      {func(b *book) { b.effects[1].Token, b.effects[1].Lease = 41, ann }, nil},
		"a row that nobody wrote":         {func(b *book) { b.final["r-counter:1"] = 3 }, []string{sums}},
		"a row that came back":            {func(b *book) { b.final["r-slot:1"] = 1 }, []string{sums}},
		"a row that was gone":             {func(b *book) { b.attempts[2].Broken = errSlot.Error() }, []string{sums}},
		"money from nowhere":              {func(b *book) { b.final[balanceOf+"r-account:1"]++ }, []string{sums, sums}},
		"a token issued again":            {func(b *book) { b.attempts[2].Grants[0].Token = 41 }, []string{issuedRise}},
		"the same lease again":            {func(b *book) { b.attempts[2].Grants[0] = Grant{"r-counter:1", 41, ann, 20, 21} }, nil},
		"a read from the past":            {func(b *book) { b.attempts[2].Call, b.attempts[2].Return = 1, 5 }, []string{oneCopy}},
		"as many permits as there are":    {func(b *book) { b.permits(10, 20, 10, 20, 20, 30) }, nil},
		"a permit too many":               {func(b *book) { b.permits(10, 20, 10, 20, 19, 30) }, []string{atMost}},
		"a permit over before it was had": {func(b *book) { b.permits(10, 20, 10, 20, 15, 12) }, nil},
		"a permit that a server forgot": {func(b *book) {
			b.permits(10, 20, 10, 20, 19, 30)
			b.servers = make([]kind, 1)
		}, nil},
		"a result that is replayed, then forgotten": {func(b *book) {
			b.order(20, 1, 2, 10, 12, 20)
			b.order(21, 14, 0, 0, 15, 20)
			b.order(22, 99, 101, 102, 103, 22)
		}, nil},
		"a run while a result stood": {func(b *book) {
			b.order(20, 1, 2, 10, 12, 20)
			b.order(21, 14, 50, 55, 56, 21)
		}, []string{runOnce}},
		"a result while another stood": {func(b *book) {
			b.order(20, 1, 2, 10, 12, 20)
			b.order(21, 14, 0, 0, 15, 19)
		}, []string{runOnce}},
		"a run that was not recorded": {func(b *book) {
			b.order(20, 1, 2, 10, 12, 20)
			b.order(21, 1, 3, 30, 31, 0)
			b.attempts[21].Outcome = Failed
		}, nil},
		"a run that began as its claim ended, and was recorded": {func(b *book) {
			b.order(20, 1, 0, 10, 12, 20)
			b.order(21, 14, 50, 55, 56, 21)
		}, []string{runOnce}},
		"a process that fell":     {func(b *book) { b.fallen = []string{"process 2 ended"} }, []string{alive}},
		"a call beyond its bound": {func(b *book) { b.attempts[2].Return += int64(slack + b.patience()) }, []string{inTime}},
		"a call that was stopped": {func(b *book) {
			b.attempts[2].Return += int64(slack + b.patience())
			b.pauses = []Pause{{0, 22, 22 + int64(time.Second)}}
		}, nil},
		"a call while another paused": {func(b *book) {
			b.attempts[2].Return += int64(slack + b.patience())
			b.pauses = []Pause{{1, 22, 22 + int64(time.Second)}}
		}, []string{inTime}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook()
			tc.tamper(b)
			var broken []string
			for _, x := range b.judge() {
				broken = append(broken, x.Promise)
			}
			require.Equal(t, tc.want, broken)
		})
	}
}

// A look sees the state at some time between its call and its return.
func TestALookIsJudged(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		at, read int64
		fine     bool
	}{{1, 0, true}, {9, 0, true}, {9, 7, true}, {9, 8, false}, {26, 8, true}, {26, 7, false}} {
		b := newBook()
		b.effects = append(b.effects, Effect{3, "r-register:1", 0, 7, 0, 41, ann}, Effect{4, "r-register:1", 7, 8, 0, 42, ben})
		b.attempts[3] = &Attempt{ID: 3, Work: "set", Object: "register", Call: 10, Return: 15, Outcome: Committed}
		b.attempts[4] = &Attempt{ID: 4, Work: "set", Object: "register", Call: 20, Return: 25, Outcome: Committed}
		b.final["r-register:1"] = 8
		b.attempts[5] = &Attempt{ID: 5, Work: "look", Object: "register", Call: tc.at, Return: tc.at + 2, Outcome: Committed, Read: tc.read}
		require.Equal(t, tc.fine, len(b.judge()) == 0, "%+v", tc)
	}
}
