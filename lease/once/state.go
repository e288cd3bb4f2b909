package once

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Phase is the phase of a key.
type Phase int

// A key is absent at first, in flight while a claim on it is held, and done while its result is
// recorded.
const (
	Absent Phase = iota
	InFlight
	Done
)

var phases = map[Phase]string{Absent: "absent", InFlight: "in flight", Done: "done"}

func (p Phase) String() string { return cmp.Or(phases[p], fmt.Sprintf("Phase(%d)", int(p))) }

// State is what Redis knows about a key. It may be out of date when it arrives.
type State struct {
	Phase  Phase
	Claim  uuid.UUID // in flight: the lease id of the claim
	Token  int64     // in flight: its fencing token
	Holder string    // in flight: the label of its holder, as [lease.Inspection.Label]; "" if it is not known
	// ExpiresIn is the time until the claim expires, without renewal, of a key in flight; and the
	// time until the result expires, negative for never, of a key that is done.
	ExpiresIn time.Duration
	Result    []byte // done: the recorded result

	fingerprint string
}

// State returns the state of a key. It changes nothing. The error is one of package lease, such as
// [lease.ErrUnreachable], [lease.ErrCorrupt] or [lease.ErrRefused].
func (o *Once) State(ctx context.Context, key string) (State, error) {
	if err := o.check(key); err != nil {
		return State{}, err
	}
	s, err := o.look(ctx, key)
	if err != nil {
		return State{}, fmt.Errorf("once: state of %q: %w", key, err)
	}
	return s, nil
}

// Forget removes the recorded result of a key, so that the next caller runs. A run in flight goes
// on, and records its result. After [lease.ErrUnreachable] or [lease.ErrProtocol] the result may or
// may not be there; forgetting it again does no harm. After any other error it is still there.
func (o *Once) Forget(ctx context.Context, key string) error {
	if err := o.check(key); err != nil {
		return err
	}
	_, record := o.names(key)
	_, err := protocol.Ask(ctx, o.redis, protocol.Patience, protocol.OnceForget.Call(1, record), protocol.Only("forgotten"))
	o.flights.forget(key)
	if err != nil {
		return fmt.Errorf("once: forget %q: %w", key, err)
	}
	return nil
}

func (o *Once) look(ctx context.Context, key string) (State, error) {
	owner, record := o.names(key)
	return protocol.Ask(ctx, o.redis, protocol.Patience, protocol.OnceLook.Call(2, owner, record), decodeLook)
}

func (o *Once) record(ctx context.Context, c *call, claim *lease.Lease, result []byte, keep time.Duration) error {
	owner, record := o.names(c.key)
	recorded, err := protocol.Ask(ctx, o.redis, protocol.Patience, protocol.OnceRecord.Call(2, owner, record,
		claim.LeaseID().String(), claim.Token(), keep.Milliseconds(), c.fingerprint, result), decodeRecord)
	if err == nil && !recorded {
		err = lease.ErrLost
	}
	return err
}

func decodeLook(r protocol.Reply) (State, error) {
	switch {
	case r.Is("absent", 0):
		return State{}, nil
	case r.Is("running", 4):
		return State{Phase: InFlight, Claim: r.ID(0), Token: r.Number(1, 1),
			ExpiresIn: r.Milliseconds(2, 0), Holder: protocol.ReadLabel(r.Args[3])}, r.Err()
	case r.Is("done", 3):
		return State{Phase: Done, Result: []byte(r.Args[1]),
			ExpiresIn: r.Milliseconds(2, -1), fingerprint: r.Args[0]}, r.Err()
	}
	return State{}, r.Unknown()
}

var decodeRecord = protocol.OneOf(map[string]bool{"recorded": true, "lost": false})

// resource is the resource of the claim on a key. The prefix keeps claims apart from other leases,
// in Redis and in the ledger of fences.
func resource(key string) string { return "once:" + key }

// names are the names of a key in Redis. owner is that of the claim, which package lease writes.
// record is a hash of by (lease id and token), fingerprint and result, and expires after
// Config.Done. Both are in one Cluster slot.
func (o *Once) names(key string) (owner, record string) {
	of := func(kind, field string) string {
		return protocol.KeyOf(kind, o.cfg.Namespace, resource(key), o.cfg.HashKeys).For(field)
	}
	return of(protocol.LeaseKind, "owner"), of(protocol.OnceKind, "record")
}
