package lease

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Unlimited, as [Config.MaxHold], lets a lease be renewed for as long as its process lives. It is
// not valid as [Config.RenewEvery].
const Unlimited = time.Duration(-1)

// Never, as [Config.RenewEvery], leaves renewal to the caller, who calls [Lease.Extend]. It is not
// valid as [Config.MaxHold].
const Never = time.Duration(-2)

// Grant is a lease as the data store sees it. It is the same type as fencedb.Grant.
type Grant = interface {
	Resource() string
	Token() int64
	LeaseID() uuid.UUID
}

// Config holds the settings of all leases of an [Issuer]. [New] checks it.
type Config struct {
	// TTL is how long a lease lasts without renewal, and so how long a resource stays blocked after
	// its holder has died. Whole milliseconds, at least one; a fraction is cut off. Required.
	TTL time.Duration

	// RenewEvery is the time between two renewals. Each is up to a fifth earlier, at random, so
	// that renewals spread. A failed renewal is tried again after a quarter of RenewEvery. [Never]
	// turns renewal off. Defaults to TTL/3.
	RenewEvery time.Duration

	// RenewTimeout bounds one renewal. RenewEvery + RenewTimeout must be less than TTL - Margin, so
	// that a renewal ends before the lease does. The defaults leave time for more attempts after
	// one without an answer. Defaults to TTL/6.
	RenewTimeout time.Duration

	// Margin is how much earlier a lease ends for its holder than in Redis. It allows for clocks
	// that run at different speeds. Defaults to TTL/100 + 1ms, but at most TTL/4.
	Margin time.Duration

	// WarnBefore is how long before the end of its trust window a lease that was not renewed sends
	// a warning to [Lease.Expiring]. Less than TTL - Margin. Defaults to (TTL - Margin)/3.
	WarnBefore time.Duration

	// MaxHold is how long a lease can be held in all: no renewal extends it further. So a holder
	// that is stuck, or never releases, cannot keep the resource for ever. [Unlimited] lifts the
	// limit. Defaults to one hour, or TTL if that is longer.
	MaxHold time.Duration

	// Namespace keeps the resources of several tenants or environments apart in one Redis. At most
	// 128 bytes of UTF-8. Defaults to none.
	Namespace string

	// Holder is a label that shows people who holds a lease: other programs find it in [HeldError]
	// and [Inspection], and the command fencedb prints it. Redis stores it in clear text with each
	// lease. At most 64 bytes; any byte other than a letter, digit or dash counts as three.
	// Defaults to program@host:pid, such as "booking@host-7:4711", shortened to fit.
	Holder string

	// HashResources stores a SHA-256 in Redis instead of the resource's id, for ids that are
	// personal data. All programs that share resources must agree on it. Defaults to false.
	HashResources bool

	// FenceRetention is how long Redis remembers the last token of a resource after the latest
	// grant or renewal. After that, Redis's clock alone keeps tokens rising. At least TTL. Defaults
	// to 24 hours, or TTL if that is longer.
	FenceRetention time.Duration

	// Replicas is how many replicas must confirm a new lease within ReplicaTimeout (Redis's WAIT).
	// If fewer do, the lease is released and the error is [ErrRefused]. So a fail-over is unlikely
	// to lose a lease. If it does, only fencing makes that harmless. On a Cluster, a resource
	// cannot be acquired while its slot is being moved. Defaults to none.
	Replicas int

	// ReplicaTimeout bounds the wait for Replicas. Choose less than the client's read timeout.
	// Whole milliseconds, less than TTL - Margin. Defaults to TTL/6, at most one second.
	ReplicaTimeout time.Duration

	// Seal is called with the new leases of an acquisition before their holder gets them; each
	// grant is a [*Lease]. Its context is derived from that of the acquisition, and ends one TTL
	// after the leases were asked for: a lease is not renewed while it is sealed. If Seal fails,
	// the leases are released and the acquisition fails with the error of Seal.
	//
	// There are two exceptions. If the error has a method FencePassed() (resource string, last
	// int64) and the leases are not over, Redis has lost tokens. The last token in Redis is then
	// raised to last, as by [Issuer.Raise], and the acquisition begins again, once for each
	// resource. And if the error is a loss ([IsLost]), such as fencedb.ErrBusy, an acquisition that
	// waits joins the queue again; it returns the error of the latest Seal when its time ends.
	//
	// fencedb.Sealer(pool) seals in Postgres. Then no earlier holder can write once the new holder
	// has its lease, and what the new holder reads outside of its transactions stays as it was
	// until it writes. Without a seal, both hold only from its first fenced transaction on. A seal
	// costs a round trip to Postgres for each acquisition. A desk of package guard seals by itself,
	// after this Seal; so its issuer needs none. Not for a [Semaphore]. Defaults to none.
	Seal func(ctx context.Context, grants ...Grant) error

	// Tracers are called for every event of the leases. Free when unused. Defaults to none.
	Tracers []Tracer

	permits int // for a semaphore: how many may hold a resource at once; 0: for leases
}

// withDefaults fills in the fields that were left zero. It accepts any values: check refuses them.
func (c Config) withDefaults() Config {
	if whole := c.TTL.Truncate(time.Millisecond); whole > 0 {
		c.TTL = whole
	}
	c.RenewEvery = cmp.Or(c.RenewEvery, c.TTL/3)
	c.RenewTimeout = cmp.Or(c.RenewTimeout, c.TTL/6)
	c.Margin = cmp.Or(c.Margin, min(c.TTL/100+time.Millisecond, c.TTL/4))
	c.WarnBefore = cmp.Or(c.WarnBefore, (c.TTL-c.Margin)/3)
	c.ReplicaTimeout = cmp.Or(c.ReplicaTimeout, max(min(c.TTL/6, time.Second), time.Millisecond))
	c.MaxHold = cmp.Or(c.MaxHold, max(time.Hour, c.TTL))
	c.Holder = cmp.Or(c.Holder, thisProcess())
	c.FenceRetention = cmp.Or(c.FenceRetention, max(protocol.FenceRetention, c.TTL))
	return c
}

func (c Config) check() error {
	longest := c.TTL - c.Margin
	switch n := len(protocol.EscapeLabel(c.Holder)); {
	case c.TTL < time.Millisecond:
		return protocol.Invalid("TTL must be at least 1ms, the unit in which Redis counts; it is %v", c.TTL)
	case c.Margin < 0 || c.Margin >= c.TTL:
		return protocol.Invalid("Margin (%v) must be from 0 to less than TTL (%v)", c.Margin, c.TTL)
	case c.WarnBefore < 0 || c.WarnBefore >= longest:
		return protocol.Invalid("WarnBefore (%v) must be from 0 to less than TTL - Margin (%v)", c.WarnBefore, longest)
	case c.MaxHold != Unlimited && c.MaxHold < c.TTL:
		return protocol.Invalid("MaxHold (%v) must be at least TTL (%v), or Unlimited", c.MaxHold, c.TTL)
	case c.FenceRetention < c.TTL:
		return protocol.Invalid("FenceRetention (%v) must be at least TTL (%v): the last token must outlive the lease", c.FenceRetention, c.TTL)
	case c.Seal != nil && c.permits > 0:
		return protocol.Invalid("Seal is for leases; a semaphore has several holders, and sealing one permit would refuse the writes of earlier holders")
	case c.RenewTimeout <= 0:
		return protocol.Invalid("RenewTimeout (%v) must be positive", c.RenewTimeout)
	case c.RenewEvery <= 0 && c.RenewEvery != Never:
		return protocol.Invalid("RenewEvery (%v) must be positive, or Never", c.RenewEvery)
	case c.RenewEvery != Never && c.RenewEvery >= longest-c.RenewTimeout: // the sum may be too large for a Duration
		return protocol.Invalid("RenewEvery (%v) + RenewTimeout (%v) must be less than TTL - Margin (%v): a renewal must end before the lease does",
			c.RenewEvery, c.RenewTimeout, longest)
	case c.Replicas < 0:
		return protocol.Invalid("Replicas is %d; it cannot be negative", c.Replicas)
	case c.Replicas > 0 && (c.ReplicaTimeout < time.Millisecond || c.ReplicaTimeout >= longest):
		// To Redis, a timeout of zero means: wait for ever.
		return protocol.Invalid("ReplicaTimeout (%v) must be from 1ms to less than TTL - Margin (%v)", c.ReplicaTimeout, longest)
	case n > protocol.MostLabel:
		return protocol.Invalid("Holder (%q) takes %d bytes when it is stored, more than %d; any byte but letters, digits and dashes takes three",
			c.Holder, n, protocol.MostLabel)
	}
	return protocol.CheckName("namespace", c.Namespace, protocol.MaxNamespace)
}

func (c Config) kind() string {
	if c.permits > 0 {
		return protocol.SemaphoreKind
	}
	return protocol.LeaseKind
}

// Option changes one acquisition.
type Option func(*options)

// NoWait makes an acquisition try once: if another holds the resource, the call returns [ErrHeld]
// at once, and runs nothing.
func NoWait() Option { return func(o *options) { o.noWait = true } }

// WaitAtMost bounds the waiting of an acquisition. When d is over, the error is [ErrHeld] and
// [context.DeadlineExceeded]. d must be positive; [NoWait] tries once. A call refuses both
// together.
//
// However short d is, Redis is asked once, unless other callers of this process are already in
// line. So the call may take 250 ms, or the TTL if that is less. A free resource is granted, and
// [ErrUnreachable] means that Redis did not answer.
func WaitAtMost(d time.Duration) Option { return func(o *options) { o.patience = &d } }

type options struct {
	noWait   bool
	patience *time.Duration // from WaitAtMost; nil: as long as the context allows
	lead     bool           // for [Issuer.Lead]
}

func (o *options) check() error {
	switch {
	case o.patience != nil && *o.patience <= 0:
		return protocol.Invalid("WaitAtMost(%v) must be positive; NoWait() tries once", *o.patience)
	case o.patience != nil && o.noWait:
		return protocol.Invalid("WaitAtMost(%v) is for a call that waits, and NoWait() is for one that does not", *o.patience)
	}
	return nil
}
