package page

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fencedb/fencedb/observe/feed"
)

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
	token   int64     // of its lease
	paused  time.Time // zero unless it stands still
	woken   time.Time // when it last woke in this reservation
}

// term is one lease.
type term struct {
	worker  string
	token   int64
	ended   Kind // "" while nobody has heard that it ended
	noticed bool // by its holder
	renewed int  // times
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
	a := n.actor(r.Worker)
	r.Guest, r.Evening = cmp.Or(r.Guest, a.guest), cmp.Or(r.Evening, a.evening)
	if r.Kind == feed.Committed && n.terms[r.Token] == nil {
		r.Kind = Sealed // written before the holder learned of its lease
	}
	if tell, ok := telling[r.Kind]; ok {
		tell(n, a, &r)
	}
	return r
}

func (r *Record) say(tone Tone, promise, title, why string) {
	r.Tone, r.Promise, r.Title, r.Why = tone, promise, title, why
}

// holder is the last lease that was granted, if nobody has heard of its end.
func (n *narrator) holder() *term {
	if n.newest == nil || n.newest.ended != "" {
		return nil
	}
	return n.newest
}

// end notes how a lease ended; what was heard first counts.
func (n *narrator) end(token int64, kind Kind) *term {
	t := n.terms[token]
	if t != nil && t.ended == "" {
		t.ended = kind
	}
	return t
}

// believes is the token of a worker at work whose lease is gone from Redis and who has not noticed.
func (n *narrator) believes(worker string) int64 {
	a := n.actor(worker)
	t := n.terms[a.token]
	if a.guest == "" || t == nil || t.noticed {
		return 0
	}
	switch t.ended {
	case Expired, Flushed, Forgotten:
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

func seconds(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) }
