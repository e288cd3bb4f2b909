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

// sentences has a template for each kind. It makes a line with the tone and the promise, a line
// with the title, and the reason; what is known of the moment before are facts.
//
//go:embed sentences.txt
var sentencesText string

var sentences = template.Must(template.New("").Funcs(template.FuncMap{
	"seconds": func(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) },
}).Parse(sentencesText))

// narrator knows what came before, which is what a reason needs.
type narrator struct {
	actors map[string]actor
	terms  map[int64]*term  // by token; a few per visit, so none is ever dropped
	newest *term            // the last that was granted, or an empty one
	told   map[int][]string // evening: the guests who were told that it is theirs
	fence  bool
}

// actor is a worker and what it is at.
type actor struct {
	guest   string
	evening int
	token   int64 // of its lease
	Paused  int64 // when; zero unless it stands still
	Woken   bool  // in this reservation
}

// term is one lease.
type term struct {
	Worker  string
	token   int64
	Ended   Kind // "" while nobody has heard that it ended
	Noticed bool // by its holder
	Renewed int  // times
}

// Holds is true as long as nobody has heard that it ended.
func (t *term) Holds() bool { return t.Worker != "" && t.Ended == "" }

// facts are what a sentence may mention besides its record.
type facts struct {
	*Record
	Actor  actor  // the worker
	Lease  *term  // that the record is about, or that the worker has
	Before *term  // the last lease that was granted before
	Asleep bool   // its holder stands still
	Other  string // a guest who was told that the evening is theirs, and is not this one
	Fence  bool
}

// Stood is for how many milliseconds the worker has stood still.
func (f facts) Stood() int64 { return f.At - f.Actor.Paused }

// missed is the end of the lease before, if r shows that there is a new one and nothing was heard
// of that end: then it ran out.
func (n *narrator) missed(r Record) (Record, bool) {
	fresh := (r.Kind == feed.Granted || r.Kind == feed.Sealed) && n.terms[r.Token] == nil
	return Record{Kind: Expired, Worker: n.newest.Worker, Token: n.newest.token, At: r.At}, fresh && n.newest.Holds()
}

// tell fills in what the reader is told, and remembers what later sentences need.
func (n *narrator) tell(r Record) Record {
	n.complete(&r)
	a := n.actors[r.Worker]
	f := facts{
		Record: &r, Actor: a, Lease: cmp.Or(n.terms[cmp.Or(r.Token, a.token)], &term{}),
		Before: n.newest, Asleep: n.actors[n.newest.Worker].Paused != 0, Fence: n.fence,
	}
	told := n.told[r.Evening]
	if i := slices.IndexFunc(told, func(guest string) bool { return guest != r.Guest }); i >= 0 {
		f.Other = told[i]
	}
	var text strings.Builder
	if err := sentences.ExecuteTemplate(&text, string(r.Kind), f); err != nil {
		panic("bug: a sentence: " + err.Error())
	}
	head, rest, _ := strings.Cut(text.String(), "\n")
	tone, promise, _ := strings.Cut(head, " ")
	title, why, _ := strings.Cut(rest, "\n")
	r.Tone, r.Promise, r.Title, r.Why = tone, promise, title, strings.Join(strings.Fields(why), " ")
	n.note(r)
	return r
}

// complete adds what the record does not say itself.
func (n *narrator) complete(r *Record) {
	a, h := n.actors[r.Worker], n.newest
	switch r.Kind {
	case Killed:
		if h.Holds() && h.Worker == r.Worker {
			r.Token = h.token
		}
	case Flushed, RedisUp: // nothing is kept on disk
		if h.Holds() {
			r.Worker, r.Token = h.Worker, h.token
		}
	}
	if r.Kind != Started {
		r.Guest, r.Evening = cmp.Or(r.Guest, a.guest), cmp.Or(r.Evening, a.evening)
	}
}

// note remembers a record. Of the end of a lease, what was heard first counts.
func (n *narrator) note(r Record) {
	a, t := n.actors[r.Worker], cmp.Or(n.terms[r.Token], &term{})
	switch r.Kind {
	case Started, Killed:
		a = actor{}
	case Asked:
		a = actor{guest: r.Guest, evening: r.Evening}
	case Told:
		a = actor{Paused: a.Paused}
		if r.Cause == "booked" && !slices.Contains(n.told[r.Evening], r.Guest) {
			n.told[r.Evening] = append(n.told[r.Evening], r.Guest)
		}
	case Paused:
		a.Paused = r.At
	case Woken:
		a.Paused, a.Woken = 0, true
	case Protected, Unprotected:
		n.fence = r.Kind == Protected
	case feed.Granted:
		a.token = r.Token
		n.newest = &term{Worker: r.Worker, token: r.Token}
		n.terms[r.Token] = n.newest
	case Flushed, RedisUp:
		n.newest.Ended = Flushed
	case feed.Extended:
		t.Renewed++
	case feed.Released, feed.Lost, Expired, Forgotten:
		t.Ended = cmp.Or(t.Ended, r.Kind)
		t.Noticed = t.Noticed || r.Kind == feed.Lost
	}
	n.actors[r.Worker] = a
}

// believes is the token of a worker at work whose lease is gone from Redis and who has not noticed.
func (n *narrator) believes(worker string) int64 {
	a := n.actors[worker]
	t := n.terms[a.token]
	if a.guest != "" && t != nil && !t.Noticed && slices.Contains([]Kind{Expired, Flushed, Forgotten}, t.Ended) {
		return t.token
	}
	return 0
}
