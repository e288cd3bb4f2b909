package once

import (
	"time"

	"github.com/fencedb/fencedb/lease"
	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Config is what all keys of a [Once] have in common. [New] checks it.
type Config struct {
	// InFlight is how long a claim lasts without renewal, and so how long a key stays blocked after its runner died. A
	// runner that lives renews it. At least 1ms. Defaults to 10 seconds.
	InFlight time.Duration

	// MaxRun bounds a run: its claim is not renewed beyond. At least InFlight, or [lease.Unlimited]. Defaults to one hour, or
	// InFlight if that is longer.
	MaxRun time.Duration

	// Done is how long a result is replayed. Afterwards the key is absent, and the next caller runs. At least 1ms.
	// Defaults to 24 hours.
	Done time.Duration

	// Namespace keeps the keys of several tenants or environments apart in one Redis. At most 128 bytes of UTF-8. Defaults
	// to none.
	Namespace string

	// HashKeys stores a SHA-256 instead of the key in Redis, for keys that are personal data. All programs that share
	// keys must agree on it. Defaults to false.
	HashKeys bool
}

func (c Config) withDefaults() Config {
	if c.InFlight == 0 {
		c.InFlight = 10 * time.Second
	}
	if c.Done == 0 {
		c.Done = 24 * time.Hour
	}
	return c
}

// check leaves to package lease what has the same name there.
func (c Config) check() error {
	if c.InFlight < time.Millisecond {
		return protocol.Invalid("InFlight must be at least 1ms; it is %v", c.InFlight)
	}
	if c.Done < time.Millisecond {
		return protocol.Invalid("Done must be at least 1ms; it is %v", c.Done)
	}
	if c.MaxRun != 0 && c.MaxRun != lease.Unlimited && c.MaxRun < c.InFlight {
		return protocol.Invalid("MaxRun (%v) must be at least InFlight (%v), or lease.Unlimited", c.MaxRun, c.InFlight)
	}
	return nil
}

func (c Config) lease() lease.Config {
	return lease.Config{TTL: c.InFlight, MaxHold: c.MaxRun, Namespace: c.Namespace, HashResources: c.HashKeys}
}

// Limits, in bytes.
const (
	// MaxKey is the greatest length of a key.
	MaxKey = 500
	// MaxResult is the greatest length of a result: 1 MiB, as in fencedb.Once.
	MaxResult = 1 << 20
)

func (o *Once) check(key string) error {
	switch {
	case o == nil || o.client == nil:
		return protocol.Invalid("the Once was not made by once.New")
	case key == "":
		return protocol.Invalid("key is empty; name what is to be done once, such as %q", "order:7")
	}
	return protocol.CheckName("key", key, MaxKey)
}

// resource is what the claim on a key is a lease for. The prefix keeps it apart from leases that are only locks, here
// and in the ledger of fences.
func resource(key string) string { return "once:" + key }

// names are the keys of one key in Redis. They share a Cluster slot.
type names struct {
	owner  string // of the lease on the key; written by package lease
	record string // hash: by (lease id and token), fingerprint, result; expires after Config.Done
}

func (c Config) names(key string) names {
	return names{
		owner:  protocol.KeysOf(protocol.LeaseKind, c.Namespace, resource(key), c.HashKeys).Owner,
		record: protocol.KeyOf(protocol.OnceKind, c.Namespace, resource(key), c.HashKeys).For("record"),
	}
}
