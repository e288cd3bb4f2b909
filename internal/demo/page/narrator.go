package page

import (
	"cmp"
	"fmt"
	"slices"
	"time"
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
	fresh := (r.Kind == Granted || r.Kind == Committed) && n.terms[r.Token] == nil
	if h := n.holder(); fresh && h != nil {
		return Record{Kind: Expired, Token: h.token, At: r.At}, true
	}
	return Record{}, false
}

// tell fills in what the reader is told, and remembers what later sentences need.
func (n *narrator) tell(r Record) Record {
	a := n.actor(r.Worker)
	r.Guest, r.Evening = cmp.Or(r.Guest, a.guest), cmp.Or(r.Evening, a.evening)
	if r.Kind == Committed && n.terms[r.Token] == nil {
		r.Kind = Sealed // written before the holder learned of its lease
	}
	if tell, ok := telling[r.Kind]; ok {
		tell(n, a, &r)
	}
	return r
}

// telling is what there is to say about each kind. Each function says it and then notes it.
var telling = map[Kind]func(*narrator, *actor, *Record){
	Started: func(_ *narrator, a *actor, r *Record) {
		*a = actor{}
		r.Guest, r.Evening = "", 0
		r.say(Plain, "", fmt.Sprintf("%s starts", r.Worker), fmt.Sprintf("Worker %s is a process of its own, pid "+
			"%d, with its own connections to Redis and Postgres.", r.Worker, r.PID))
	},
	Asked: func(_ *narrator, a *actor, r *Record) {
		*a = actor{guest: r.Guest, evening: r.Evening}
		r.say(Plain, "", fmt.Sprintf("%s asks for evening %d", r.Guest, r.Evening),
			fmt.Sprintf("%s's request for table 12 goes to worker %s, which first needs the lease on it.", r.Guest, r.Worker))
	},
	Waiting:  (*narrator).waiting,
	Sealed:   (*narrator).sealed,
	Granted:  (*narrator).granted,
	Extended: (*narrator).extended,
	Card: func(_ *narrator, _ *actor, r *Record) {
		r.say(Plain, "", fmt.Sprintf("%s asks %s's bank", r.Worker, r.Guest),
			fmt.Sprintf("Evening %d is free. The card check takes longer than a transaction should stay open: "+
				"that is why there is a lease.", r.Evening))
	},
	Writing:   (*narrator).writing,
	Committed: (*narrator).committed,
	Wrote:     (*narrator).wrote,
	Refused:   (*narrator).refused,
	Failed:    (*narrator).failed,
	Held: func(_ *narrator, _ *actor, r *Record) {
		r.say(Stop, "L3", fmt.Sprintf("%s did not get the lease", r.Worker), "Another holder had it until the "+
			"patience of this request was over. Nothing was changed, and no token was used up.")
	},
	Released: (*narrator).released,
	Lost:     (*narrator).lost,
	Expired:  (*narrator).expired,
	Forgotten: func(n *narrator, _ *actor, r *Record) {
		if t := n.end(r.Token, Forgotten); t != nil {
			r.Worker = t.worker
		}
		r.say(Bad, "L1", "Redis does not know {token} any more", fmt.Sprintf("Somebody has ended it there, or deleted "+
			"the key. %s still believes that it holds, until a renewal tells it. Another may hold by then.", r.Worker))
	},
	Revoked: func(_ *narrator, _ *actor, r *Record) {
		r.say(Stop, "", "The lease was revoked", "An operator ended the lease, and moved the fence on to {token}.")
	},
	Healed: func(n *narrator, _ *actor, r *Record) {
		n.newest = &term{worker: r.Worker, token: r.Token}
		n.terms[r.Token] = n.newest
		r.say(Good, "L7", fmt.Sprintf("%s's lease was healed", r.Worker), "Redis had gone backwards. Its counter "+
			"was raised above what Postgres has stored, and the lease got token {token}.")
	},
	Told:        (*narrator).tellGuest,
	Paused:      (*narrator).paused,
	Woken:       (*narrator).woken,
	Killed:      (*narrator).killed,
	Flushed:     (*narrator).flushed,
	RedisDown:   (*narrator).redisDown,
	RedisUp:     (*narrator).redisUp,
	Protected:   (*narrator).protected,
	Unprotected: (*narrator).unprotected,
	Speed: func(_ *narrator, _ *actor, r *Record) {
		r.say(Plain, "", "Speed: "+r.Cause, fmt.Sprintf("From the next booking on, a lease lasts %s, and the "+
			"other steps take as much more or less. The picture keeps its scale.", seconds(r.TTL)))
	},
	Scene: (*narrator).scene,
	SceneFailed: func(_ *narrator, _ *actor, r *Record) {
		r.say(Bad, "", "The scene stopped", r.Cause)
	},
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
