package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/fencedb/fencedb/observe/feed"
)

// sentences has a template for each kind. It makes a line with the tone and the promise, a line with
// the title, and the reason; what is known of the moment before are facts.
//
//go:embed sentences.txt
var sentencesText string

var sentences = template.Must(template.New("").Funcs(template.FuncMap{
	"seconds": func(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) },
}).Parse(sentencesText))

// narrator knows what came before, which is what a reason needs.
type narrator struct {
	actors map[string]*actor
	terms  map[int64]*term  // by token; a few per visit, so none is ever dropped
	newest *term            // the last that was granted
	told   map[int][]string // evening: the guests who were told that it is theirs
	fence  bool
}

// actor is a worker and what it is at.
type actor struct {
	guest   string
	evening int
	token   int64 // of its lease
	paused  int64 // when; zero unless it stands still
	woken   bool  // in this reservation
}

// term is one lease.
type term struct {
	Worker  string
	token   int64
	Ended   Kind // "" while nobody has heard that it ended
	noticed bool // by its holder
	renewed int  // times
}

// facts are what a sentence may mention besides its record.
type facts struct {
	*Record
	Newest  *term  // the last lease that was granted before
	Holder  *term  // the same, if nobody has heard of its end
	Handed  bool   // the holder before gave its lease back to the first who waited
	Asleep  bool   // the worker that the record is about, or the one that had the newest lease, stands still
	Woken   bool   // the worker was stopped in this reservation
	Stood   int64  // for how many milliseconds
	Noticed bool   // the worker knows that its lease is gone
	Ended   Kind   // how the lease did
	Renewed int    // how often the lease was
	Other   string // a guest who was told that the evening is theirs, and is not this one
	Fence   bool
}

func newNarrator() narrator {
	return narrator{actors: map[string]*actor{}, terms: map[int64]*term{}, told: map[int][]string{}, fence: true}
}

func (n *narrator) actor(name string) *actor {
	a, ok := n.actors[name]
	if !ok {
		a = &actor{}
		n.actors[name] = a
	}
	return a
}

// missed is the end of the lease before, if r shows that there is a new one and nothing was heard
// of that end: then it ran out.
func (n *narrator) missed(r Record) (Record, bool) {
	fresh := (r.Kind == feed.Granted || r.Kind == feed.Committed) && n.terms[r.Token] == nil
	if h := n.holder(); fresh && h != nil {
		return Record{Kind: Expired, Token: h.token, At: r.At}, true
	}
	return Record{}, false
}

// tell fills in what the reader is told, and remembers what later sentences need.
func (n *narrator) tell(r Record) Record {
	n.complete(&r)
	var text strings.Builder
	if err := sentences.ExecuteTemplate(&text, string(r.Kind), n.facts(&r)); err != nil {
		panic("bug: a sentence: " + err.Error())
	}
	head, rest, _ := strings.Cut(text.String(), "\n")
	tone, promise, _ := strings.Cut(head, " ")
	title, why, _ := strings.Cut(rest, "\n")
	r.Tone, r.Promise, r.Title, r.Why = Tone(tone), promise, title, strings.Join(strings.Fields(why), " ")
	n.note(r)
	return r
}

// complete adds what the record does not say itself.
func (n *narrator) complete(r *Record) {
	a, h := n.actor(r.Worker), n.holder()
	switch r.Kind {
	case feed.Committed:
		if n.terms[r.Token] == nil {
			r.Kind = Sealed // written before the holder learned of its lease
		}
	case Expired, Forgotten:
		if t := n.terms[r.Token]; t != nil {
			r.Worker = t.Worker
		}
	case Killed:
		if h != nil && h.Worker == r.Worker {
			r.Token = h.token
		}
	case Flushed, RedisUp: // nothing is kept on disk
		if h != nil {
			r.Worker, r.Token = h.Worker, h.token
		}
	}
	if r.Kind != Started {
		r.Guest, r.Evening = cmp.Or(r.Guest, a.guest), cmp.Or(r.Evening, a.evening)
	}
}

func (n *narrator) facts(r *Record) facts {
	a := n.actor(r.Worker)
	f := facts{
		Record: r, Newest: n.newest, Holder: n.holder(), Fence: n.fence,
		Asleep: a.paused != 0, Woken: a.woken, Stood: r.At - a.paused, Other: n.otherTold(r.Evening, r.Guest),
	}
	if n.newest != nil {
		f.Handed = r.Took > 0 && n.newest.Ended == feed.Released
		f.Asleep = f.Asleep || r.Kind == feed.Granted && n.actor(n.newest.Worker).paused != 0
	}
	if t := n.terms[cmp.Or(r.Token, a.token)]; t != nil {
		f.Noticed, f.Ended, f.Renewed = t.noticed, t.Ended, t.renewed
	}
	return f
}

// note remembers a record.
func (n *narrator) note(r Record) {
	a, t := n.actor(r.Worker), n.terms[r.Token]
	switch r.Kind {
	case Started, Killed:
		*a = actor{}
	case Asked:
		*a = actor{guest: r.Guest, evening: r.Evening}
	case Told:
		*a = actor{paused: a.paused}
		if r.Cause == "booked" && !slices.Contains(n.told[r.Evening], r.Guest) {
			n.told[r.Evening] = append(n.told[r.Evening], r.Guest)
		}
	case Paused:
		a.paused = r.At
	case Woken:
		a.paused, a.woken = 0, true
	case Protected, Unprotected:
		n.fence = r.Kind == Protected
	case feed.Granted, feed.Healed:
		if r.Kind == feed.Granted {
			a.token = r.Token
		}
		n.newest = &term{Worker: r.Worker, token: r.Token}
		n.terms[r.Token] = n.newest
	case Flushed, RedisUp:
		if n.newest != nil {
			n.newest.Ended = Flushed
		}
	}
	if t != nil {
		t.note(r.Kind)
	}
}

// note remembers how a lease ended; what was heard first counts.
func (t *term) note(kind Kind) {
	switch kind {
	case feed.Extended:
		t.renewed++
	case feed.Released, feed.Lost, Expired, Forgotten:
		t.Ended = cmp.Or(t.Ended, kind)
		t.noticed = t.noticed || kind == feed.Lost
	}
}

// holder is the last lease that was granted, if nobody has heard of its end.
func (n *narrator) holder() *term {
	if n.newest == nil || n.newest.Ended != "" {
		return nil
	}
	return n.newest
}

// believes is the token of a worker at work whose lease is gone from Redis and who has not noticed.
func (n *narrator) believes(worker string) int64 {
	a := n.actor(worker)
	t := n.terms[a.token]
	if a.guest != "" && t != nil && !t.noticed && slices.Contains([]Kind{Expired, Flushed, Forgotten}, t.Ended) {
		return t.token
	}
	return 0
}

// otherTold is a guest who was told that the evening is theirs, and is not this one.
func (n *narrator) otherTold(evening int, guest string) string {
	i := slices.IndexFunc(n.told[evening], func(g string) bool { return g != guest })
	if i < 0 {
		return ""
	}
	return n.told[evening][i]
}
