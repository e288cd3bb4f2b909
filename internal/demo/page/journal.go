package page

import (
	"cmp"
	"crypto/rand"
	"reflect"
	"slices"
	"sync"
	"time"
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
