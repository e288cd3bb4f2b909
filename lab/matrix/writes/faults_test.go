package writes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
)

// sent is a message that has passed the proxy.
type sent struct {
	client bool // who sent it
	nth    int  // of the messages of that side
	at     int  // of the bytes of that side, its first
	len    int
	name   string // its type, with the SQL or the tag that it carries
}

// point is a place in the conversation of a call: before a message, or before a byte of an answer.
// A rehearsal without fault has recorded where they are.
type point struct {
	name string
	sent
	within int // bytes of the message that still arrive
}

// of is one side of a conversation.
func of(client bool, all []sent) []sent {
	return slices.DeleteFunc(slices.Clone(all), func(s sent) bool { return s.client != client })
}

// chosen are the places where it matters what has arrived.
func chosen(rehearsal []sent) []point {
	request, reply := of(true, rehearsal), of(false, rehearsal)
	commit, done := sent{}, reply[len(reply)-1] // of a batch that is the transaction
	for _, s := range request {
		if s.name == "Bind" || strings.HasPrefix(s.name, "Query") {
			commit = s // the last one, or what it travels in
		}
	}
	for _, s := range reply {
		if s.name == "CommandComplete COMMIT" {
			done = s
		}
	}
	return []point{
		{"request lost", request[0], 0},
		{"answer lost", reply[0], 0},
		{"COMMIT lost", commit, 0},
		{"answer to COMMIT lost", done, 0},
		{"end of the answer lost", reply[len(reply)-1], 0},
	}
}

func commitLost(rehearsal []sent) []point { return chosen(rehearsal)[2:3] }

// everyByte is before each byte of the answers.
func everyByte(rehearsal []sent) (points []point) {
	for _, s := range of(false, rehearsal) {
		for i := range s.len {
			points = append(points, point{fmt.Sprintf("byte %d of the answers, %d of %s", s.at+i, i, s.name), s, i})
		}
	}
	return points
}

// everyMessage is within each message, and before each answer.
func everyMessage(rehearsal []sent) (points []point) {
	for _, s := range rehearsal {
		points = append(points, point{fmt.Sprintf("within %s at %d", s.name, s.at), s, s.len / 2})
		if !s.client {
			points = append(points, point{fmt.Sprintf("before %s at %d", s.name, s.at), s, 0})
		}
	}
	return points
}

func once([]sent) []point { return []point{{name: "once", sent: sent{nth: never}}} }

const never = -1

// fault is something that goes wrong.
type fault struct {
	name     string
	means    string
	points   func(rehearsal []sent) []point
	verdict  faulty.Fate                                 // on what comes at the point
	do       func(context.Context, *world, *call) func() // at the point, before what comes there goes on
	before   func(context.Context, *world, *call) (after func(), err error)
	prefix   string            // of the resource
	runtime  map[string]string // settings of the application's connections
	validity time.Duration     // of the grant; none means whole
	bound    time.Duration     // of the call; none means that it must end at once
	unread   bool              // what has arrived may be lost before it is read
	slow     bool              // it is waited for
	unasked  bool              // the server cannot be asked afterwards
	dead     bool              // the sessions have ended, whether the pool knows it or not
	allowed  func(setup) []answer
	unless   func(setup) bool // the fault cannot be had
	outcome  error            // what every error must be
}

// mostly is what a lost connection may be answered with. unknown is judged by how far the answers
// came; see mayBeUnknown.
func mostly(s setup) []answer {
	allowed := []answer{committed, resultLost, nothing}
	if s.oneShot || s.handle != pooled {
		allowed = append(allowed, unknown)
	}
	if s.name == "Seal" {
		allowed = append(allowed, noClaim)
	}
	return allowed
}

func only(answers ...answer) func(setup) []answer {
	return func(s setup) []answer {
		if s.name == "Seal" && !slices.Contains(answers, committed) {
			return append(answers, noClaim)
		}
		return answers
	}
}

const (
	whole           = 15 * time.Second       // the validity of a grant that is not to end
	silenceValidity = 500 * time.Millisecond // of one that is waited for
	busyValidity    = 2 * time.Second        // of one within which the fence has to be asked for
	answering       = asking / 2             // how long an answer is waited for beyond the validity
	asking          = 5 * time.Second        // how long the server is asked beyond it
)

var faults = []fault{
	{name: "none", means: "nothing goes wrong",
		points: once, allowed: only(committed)},
	{name: "cut at a byte", means: "the connection is closed before every single byte of the answers",
		points: everyByte, verdict: faulty.Cut, allowed: mostly},
	{name: "cut at a message", means: "the connection is closed before and within every message, of either side",
		points: everyMessage, verdict: faulty.Cut, allowed: mostly},
	{name: "reset", means: "the connection is reset: the request lost, the answer, COMMIT, its answer, the end",
		points: chosen, verdict: faulty.Reset, unread: true, allowed: mostly},
	{name: "silence", means: "at the same places the connection falls silent, and neither side is told",
		points: chosen, verdict: faulty.Silence, allowed: mostly, validity: silenceValidity,
		bound: silenceValidity + answering, slow: true},
	{name: "network silent", means: "the answer to COMMIT is lost in silence, and new connections are silent too",
		points: lastAnswer, verdict: faulty.Silence, do: partitioned, unasked: true, validity: silenceValidity,
		bound: silenceValidity + asking, allowed: anything},
	{name: "context cancelled", means: "the context ends at the same places",
		points: chosen, do: cancelled, unread: true, allowed: mostly},
	{name: "killed", means: "the session is ended (`pg_terminate_backend`) at the same places",
		points: chosen, do: killed, unread: true, dead: true, allowed: mostly},
	{name: "killed in COMMIT", means: "the session is ended while COMMIT runs",
		points: commitLost, do: killedInCommit, dead: true, before: stalled, prefix: "stalled", allowed: mostly,
		unless: func(s setup) bool { return s.rows == 0 }},
	{name: "killed while COMMIT waits for a standby", means: "the session is ended when COMMIT has been carried out here and waits for a synchronous standby",
		points: commitLost, do: killedWaiting, dead: true, runtime: map[string]string{"synchronous_commit": "on"},
		unasked: true, validity: silenceValidity, bound: silenceValidity + asking, // the questions wait for it as well
		allowed: only(unknown), unless: func(s setup) bool { return s.warm || s.level.isolation() != pgx.ReadCommitted }},
	{name: "stale", means: "a newer holder has entered",
		points: once, before: overtaken, allowed: only(nothing), outcome: fencedb.ErrStale,
		unless: func(s setup) bool { return strings.HasPrefix(s.name, "guard.") }}, // whose token is newer
	{name: "busy", means: "another transaction keeps the fence",
		points: once, before: held, validity: busyValidity, bound: busyValidity, allowed: only(nothing),
		outcome: fencedb.ErrBusy},
}

func lastAnswer(rehearsal []sent) []point { return chosen(rehearsal)[3:4] }

// anything that is true.
func anything(s setup) []answer { return append(mostly(s), unknown) }

// partitioned silences new connections too.
func partitioned(_ context.Context, w *world, _ *call) func() {
	return func() { w.proxy.Hang(true) }
}

func cancelled(_ context.Context, _ *world, c *call) func() {
	ctx, cancel := context.WithCancel(c.Context)
	c.Context = ctx
	return cancel
}

// sessions are those of the application.
const sessions = ` FROM pg_stat_activity WHERE usename = 'matrix' AND datname = current_database() `

// killed ends the session and waits until it is gone; then what was held back goes its way.
func killed(ctx context.Context, w *world, _ *call) func() {
	return func() { _, _ = w.direct.Exec(ctx, `SELECT pg_terminate_backend(pid, 10000)`+sessions) }
}

// stalled makes the COMMIT of the call wait.
func stalled(ctx context.Context, w *world, _ *call) (func(), error) {
	conn, err := w.direct.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, `SELECT pg_advisory_lock(1)`)
	return func() {
		_, _ = conn.Exec(ctx, `SELECT pg_advisory_unlock(1)`)
		conn.Release()
	}, err
}

func killedInCommit(ctx context.Context, w *world, _ *call) func() {
	return killedWhen(ctx, w, "advisory")
}

func killedWaiting(ctx context.Context, w *world, _ *call) func() {
	return killedWhen(ctx, w, "SyncRep")
}

// killedWhen kills the session behind our back once it waits for the event.
func killedWhen(ctx context.Context, w *world, event string) func() {
	return func() {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			var done bool
			for err := error(nil); err == nil && !done; {
				err = w.direct.QueryRow(ctx, `SELECT coalesce(bool_or(pg_terminate_backend(pid)), false)`+sessions+`AND wait_event = $1`, event).Scan(&done)
			}
		}()
	}
}

// overtaken lets another holder come first.
func overtaken(ctx context.Context, w *world, c *call) (func(), error) {
	_, err := w.direct.Exec(ctx, `SELECT fencedb.enter($1::text, 99::bigint, $2::uuid)`, c.resource, uuid.New())
	return func() {}, err
}

// held lets another transaction keep the fence until the call has ended.
func held(ctx context.Context, w *world, c *call) (func(), error) {
	tx, err := w.direct.Begin(ctx)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `SELECT FROM fencedb.fences WHERE resource = $1 FOR UPDATE`, c.resource)
	if err == nil {
		_, err = tx.Exec(ctx, `INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES ($1, 40, $2) ON CONFLICT DO NOTHING`,
			c.resource, uuid.New())
	}
	return func() { _ = tx.Rollback(ctx) }, err
}

// mayBeUnknown is S6: a one-shot call that was cut before its first answer. A round trip that only
// prepares statements leaves no doubt, except at its very end, where pgx does not say that it was
// still preparing. A single connection that is lost leaves nobody to ask.
func (f *fault) mayBeUnknown(s setup, p point, all, rehearsal []sent) bool {
	switch {
	case s.handle != pooled, f.unasked:
		return true
	case f.unread, !s.oneShot:
		return s.oneShot
	}
	ended, answered := 0, false
	for _, m := range of(false, all) {
		switch {
		case !p.client && (m.nth >= p.nth || p.within > 0 && m.at+m.len > p.at+p.within): // it did not arrive
		case m.name == "ReadyForQuery":
			ended, answered = ended+1, false
		case m.name == "DataRow", m.name == "ErrorResponse":
			answered = true
		}
	}
	return !answered && (runs(rehearsal, ended) || p.sent.name == "ReadyForQuery")
}

// runs is whether a round trip does more than prepare.
func runs(rehearsal []sent, nth int) bool {
	trip := 0
	for _, m := range rehearsal {
		switch {
		case m.name == "ReadyForQuery":
			trip++
		case trip == nth && m.client && (m.name == "Bind" || strings.HasPrefix(m.name, "Query")):
			return true
		}
	}
	return false
}

var errCouldKnow = errors.New("says unknown, and could know")
