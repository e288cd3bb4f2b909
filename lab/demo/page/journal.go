package page

import (
	"cmp"
	"crypto/rand"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fencedb/fencedb/observe/feed"
)

// Kind says what happened: what workers publish, and what the stage adds.
type Kind = feed.Kind

// What the stage adds: it sees the processes and the servers from outside.
const (
	Started     Kind = "started"     // a worker process
	Asked       Kind = "asked"       // a guest asks a worker for an evening
	Card        Kind = "card"        // a [worker.Point]: the worker asks the guest's bank
	Writing     Kind = "writing"     // a [worker.Point]: the worker has looked at its lease for the last time
	Wrote       Kind = "wrote"       // a write without a token, while the fence is off
	Told        Kind = "told"        // what the guest was told: Cause is the outcome
	Paused      Kind = "paused"      // SIGSTOP
	Woken       Kind = "woken"       // SIGCONT
	Killed      Kind = "killed"      // SIGKILL
	Expired     Kind = "expired"     // Redis dropped the owner, and nobody had given it back
	Forgotten   Kind = "forgotten"   // Redis does not have the owner any more, before its time and without a word of its holder
	Flushed     Kind = "flushed"     // FLUSHALL
	RedisDown   Kind = "redis_down"  // about to be restarted
	RedisUp     Kind = "redis_up"    // answers again, empty
	Unprotected Kind = "unprotected" // the fence was taken away
	Protected   Kind = "protected"   // and put back
	Speed       Kind = "speed"       // Cause is its name, TTL how long leases last from now on
	Scene       Kind = "scene"       // somebody pressed the button of a scene
)

// Record is one line of the journal. Fields that do not belong to its Kind are zero. Title and Why
// mention tokens as {token} and {stored}; the page puts the numbers of those fields there.
type Record struct {
	Seq     int    `json:"seq"` // 1, 2, 3...
	At      int64  `json:"at"`  // in milliseconds since 1970
	Kind    Kind   `json:"kind"`
	Worker  string `json:"worker,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Token   int64  `json:"token,string,omitempty"` // as text: other readers may count in floating point
	Stored  int64  `json:"stored,string,omitempty"`
	TTL     int64  `json:"ttl_ms,omitempty"`
	Took    int64  `json:"took_ms,omitempty"`
	Cause   string `json:"cause,omitempty"`
	Guest   string `json:"guest,omitempty"`
	Evening int    `json:"evening,omitempty"`

	Tone    string `json:"tone,omitempty"` // plain, good: a promise at work, stop: rightly refused, bad: harm was done
	Title   string `json:"title"`
	Why     string `json:"why"`
	Promise string `json:"promise,omitempty"` // of the README, such as S2
}

// State is what the servers hold and the workers do. It is out of date when it is read.
type State struct {
	Redis    Redis    `json:"redis"`
	Postgres Postgres `json:"postgres"`
	Workers  []Worker `json:"workers"`
	Speed    string   `json:"speed"`
	Scene    string   `json:"scene,omitempty"` // the one that is playing
}

// Redis is what it holds about the table.
type Redis struct {
	Up      bool   `json:"up"`
	Owner   string `json:"owner,omitempty"` // the worker, or "" if nobody holds
	Label   string `json:"label,omitempty"` // what the lease itself says of its holder: program@host:pid
	Token   int64  `json:"token,string,omitempty"`
	Ends    int64  `json:"ends,omitempty"` // without renewal, in milliseconds since 1970
	TTL     int64  `json:"ttl_ms,omitempty"`
	Fence   int64  `json:"fence,string,omitempty"` // the last token issued
	Waiters int    `json:"waiters"`
}

// Postgres is what it holds about the table.
type Postgres struct {
	Up        bool      `json:"up"`
	Protected bool      `json:"protected"`
	Fence     int64     `json:"fence,string,omitempty"` // of the ledger
	Bookings  []Booking `json:"bookings"`               // the last few, newest first
}

// Booking is a row, and who was told that it is theirs.
type Booking struct {
	Evening int      `json:"evening"`
	Guest   string   `json:"guest"`
	Token   int64    `json:"token,string,omitempty"` // of the last fenced write to the row
	Told    []string `json:"told,omitempty"`
}

// Worker is one process.
type Worker struct {
	Name    string `json:"name"`
	PID     int    `json:"pid,omitempty"`
	Status  Status `json:"status"`
	Guest   string `json:"guest,omitempty"`
	Evening int    `json:"evening,omitempty"`

	// Believes is the token of a lease that is gone from Redis while the worker does not know it.
	Believes int64 `json:"believes,string,omitempty"`
}

// Status is what a worker does.
type Status string

// The states of a worker.
const (
	Idle   Status = "idle"
	Busy   Status = "busy"
	Asleep Status = "paused"
	Dead   Status = "dead"
)

// Journal keeps what happened, each record with a sentence that says why, and the latest state of
// the servers, for as many readers as like. It is kept here and not read from Redis again, because
// the page lets people empty and restart that Redis. It is safe for concurrent use.
type Journal struct {
	ID string // another one after a restart of this program: sequence numbers begin anew

	mu       sync.Mutex
	changed  chan struct{} // closed when there is something new
	records  []Record      // all of them; a few a minute, by those who press buttons
	state    State
	version  int64 // of state
	narrator narrator
}

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	n := narrator{map[string]actor{}, map[int64]*term{}, &term{}, map[int][]string{}, true}
	return &Journal{ID: rand.Text(), changed: make(chan struct{}), narrator: n}
}

// Add gives the record its number and its sentence. A time that is not set is now.
func (j *Journal) Add(r Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.At = cmp.Or(r.At, time.Now().UnixMilli())
	if missed, ok := j.narrator.missed(r); ok {
		j.append(missed)
	}
	j.append(r)
	j.announce()
}

// Gone notes that Redis does not have the lease any more, if nothing was heard of its end: Expired
// or Forgotten.
func (j *Journal) Gone(token int64, kind Kind, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t := j.narrator.terms[token]; t != nil && t.Ended == "" {
		j.append(Record{Kind: kind, Worker: t.Worker, Token: token, At: at.UnixMilli()})
		j.announce()
	}
}

// append numbers the record. The caller holds mu.
func (j *Journal) append(r Record) {
	r.Seq = len(j.records) + 1
	j.records = append(j.records, j.narrator.tell(r))
}

// SetState replaces the state, if it is another one, and adds what only the journal knows: who
// holds the lease, who only believes so, and who was told what.
func (j *Journal) SetState(s State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t := j.narrator.terms[s.Redis.Token]; t != nil {
		s.Redis.Owner = t.Worker
	}
	for i, w := range s.Workers {
		s.Workers[i].Believes = j.narrator.believes(w.Name)
	}
	for i, b := range s.Postgres.Bookings {
		s.Postgres.Bookings[i].Told = slices.Clone(j.narrator.told[b.Evening])
	}
	if reflect.DeepEqual(s, j.state) {
		return
	}
	j.state = s
	j.version++
	j.announce()
}

// announce wakes all readers. The caller holds mu.
func (j *Journal) announce() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// News is what a reader does not know yet.
type News struct {
	Records []Record
	State   State
	Version int64           // of State
	More    <-chan struct{} // closed when there is more
}

// After returns the records that follow seq, and the state.
func (j *Journal) After(seq int) News {
	j.mu.Lock()
	defer j.mu.Unlock()
	from := min(max(seq, 0), len(j.records))
	return News{j.records[from:], j.state, j.version, j.changed}
}
