package admission

import (
	"time"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Policy is what becomes of a request that Redis has not judged.
type Policy int

const (
	// FailOpen admits it.
	FailOpen Policy = iota + 1
	// FailClosed refuses it.
	FailClosed
)

// Config is what a [Limiter] goes by. [New] checks it. Programs that share keys should agree on it; where they do not, each
// judges by its own limit and window.
type Config struct {
	// Limit is how many requests of one key are admitted in a window. At least 1; at most [MaxSlidingLimit] if the window
	// slides, [MaxLimit] if not. Required.
	Limit int

	// Window is how long a window lasts. Whole milliseconds, at least one; a fraction is cut off. At most [MaxWindow]. Required.
	Window time.Duration

	// Sliding counts in the window before each request instead of in fixed windows. Defaults to false.
	Sliding bool

	// WhenUnjudged says whether requests are admitted while Redis does not answer. Required: [FailOpen] or [FailClosed].
	WhenUnjudged Policy

	// Timeout is how long to wait for Redis's judgement. Positive. Defaults to 250ms.
	Timeout time.Duration

	// Namespace keeps the keys of several limiters, tenants or environments apart in one Redis. At most 128 bytes of
	// UTF-8. Defaults to none.
	Namespace string

	// HashKeys stores a SHA-256 instead of the key in Redis, for keys that are personal data, such as addresses. Defaults to false.
	HashKeys bool
}

// Limits on limits.
const (
	MaxLimit        = 1_000_000_000
	MaxSlidingLimit = 10_000
	MaxWindow       = 366 * 24 * time.Hour

	// MaxKey is the greatest length of a key in bytes.
	MaxKey = 512
)

func (c Config) withDefaults() Config {
	c.Window = c.Window.Truncate(time.Millisecond)
	if c.Timeout == 0 {
		c.Timeout = 250 * time.Millisecond
	}
	return c
}

func (c Config) check() error {
	most := MaxLimit
	if c.Sliding {
		most = MaxSlidingLimit
	}
	switch {
	case c.Limit < 1 || c.Limit > most:
		return protocol.Invalid("Limit must be from 1 to %d; it is %d", most, c.Limit)
	case c.Window < time.Millisecond || c.Window > MaxWindow:
		return protocol.Invalid("Window must be from 1ms, the unit in which Redis counts, to %v; it is %v", MaxWindow, c.Window)
	case c.WhenUnjudged != FailOpen && c.WhenUnjudged != FailClosed:
		return protocol.Invalid("WhenUnjudged must be FailOpen or FailClosed: say whether requests are admitted while Redis does not answer")
	case c.Timeout < 0:
		return protocol.Invalid("Timeout (%v) must be positive", c.Timeout)
	}
	return protocol.CheckName("namespace", c.Namespace, protocol.MaxNamespace)
}

func checkKey(key string) error {
	if key == "" {
		return protocol.Invalid("key is empty; name who is limited, such as %q", "tenant:7")
	}
	return protocol.CheckName("key", key, MaxKey)
}

// name is the one key in Redis. The two kinds keep different types, so they do not share it.
func (c Config) name(key string) string {
	kind := "fixed"
	if c.Sliding {
		kind = "sliding"
	}
	return protocol.KeyOf(protocol.AdmissionKind, c.Namespace, key, c.HashKeys).For(kind)
}
