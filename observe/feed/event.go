package feed

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Kind says what happened.
type Kind string

// The kinds of events.
const (
	Waiting   Kind = "waiting"    // the resource is busy, and the caller waits
	Granted   Kind = "granted"    // Took is how long the caller waited; TTL remains
	Held      Kind = "held"       // an acquisition failed because another holds; Took is how long it tried
	Extended  Kind = "extended"   // TTL remains
	Released  Kind = "released"   // by the holder; Took is how long it was held
	Lost      Kind = "lost"       // the lease ended for another reason, see Cause; Took is how long it was held
	Revoked   Kind = "revoked"    // the worker revoked the lease; Token is the revocation's
	Sealed    Kind = "sealed"     // Postgres refuses every earlier token; nothing else was written
	NotSealed Kind = "not_sealed" // a seal failed or its answer was lost, see Cause; Stored is the newer token if it was stale
	Committed Kind = "committed"  // a fenced write
	Refused   Kind = "refused"    // a fenced write with a stale token; Stored is the newer one. Nothing was written
	Failed    Kind = "failed"     // a fenced write failed for another reason, see Cause
)

// Event is something that happened to one resource. Fields that do not belong to the Kind are zero.
type Event struct {
	ID       string        `json:"id,omitempty"` // of the entry in the stream, "<ms>-<n>": unique, and in order
	At       time.Time     `json:"at,omitzero"`  // by the clock of its process, in milliseconds; the time in ID if the entry has none
	Kind     Kind          `json:"kind"`
	Worker   string        `json:"worker,omitempty"` // the process that published it, see the option Worker
	Resource string        `json:"resource,omitempty"`
	Token    int64         `json:"token,omitempty"`
	LeaseID  string        `json:"lease_id,omitempty"` // its first 8 characters
	Holder   string        `json:"holder,omitempty"`   // of Held: the label of the holder, as in lease.HeldError
	Stored   int64         `json:"stored,omitempty"`   // of Refused and NotSealed: the token in Postgres; equal to Token if another lease entered with it
	TTL      time.Duration `json:"-"`                  // the remaining validity; "ttl_ms" in JSON
	Took     time.Duration `json:"-"`                  // "took_ms" in JSON, with a fraction

	// Cause, of Lost: expired, unreachable, lost, revoked. Of Failed: no_token,
	// wrong_resource, lease_over, too_long, tx_ended, unsealed, busy, commit_unknown, invalid_grant,
	// error. Of Refused: stale. Of NotSealed: these and stale.
	Cause string `json:"cause,omitempty"`
}

// plain is an Event without methods.
type plain Event

// wire is an Event in JSON, with milliseconds like the rest of the protocol.
type wire struct {
	plain
	TTL  int64   `json:"ttl_ms,omitempty"`
	Took float64 `json:"took_ms,omitempty"`
}

// MarshalJSON writes durations in milliseconds.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(wire{plain(e), e.TTL.Milliseconds(), float64(e.Took.Microseconds()) / 1000})
}

// UnmarshalJSON reads what [Event.MarshalJSON] writes.
func (e *Event) UnmarshalJSON(data []byte) error {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*e = Event(w.plain)
	e.TTL = time.Duration(w.TTL) * time.Millisecond
	e.Took = time.Duration(w.Took * float64(time.Millisecond))
	return nil
}

// position is that of an entry in the stream.
type position struct{ ms, n uint64 }

// parsePosition reads "<ms>-<n>", or "<ms>" as the first of that millisecond, as Redis does.
func parsePosition(id string) (p position, err error) {
	ms, n, both := strings.Cut(id, "-")
	if !both {
		n = "0"
	}
	if p.ms, err = strconv.ParseUint(ms, 10, 64); err == nil {
		p.n, err = strconv.ParseUint(n, 10, 64)
	}
	if err != nil {
		return position{}, fmt.Errorf("feed: %q is not a position in the stream; use \"0\", the ID of an event, or in Follow \"$\"", id)
	}
	return p, nil
}

func (p position) String() string {
	return strconv.FormatUint(p.ms, 10) + "-" + strconv.FormatUint(p.n, 10)
}

func (p position) before(q position) bool { return p.ms < q.ms || p.ms == q.ms && p.n < q.n }
