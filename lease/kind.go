package lease

import (
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease/internal/kind"
	"github.com/fencedb/fencedb/lease/internal/script"
)

// scripts are those of the life of a holder.
type scripts struct {
	acquire, extend, release, withdraw, verify script.Script
}

var ownScripts = scripts{acquireScript, extendScript, releaseScript, withdrawScript, verifyScript}

func scriptsOf(k *kind.Kind) scripts {
	if k == nil {
		return ownScripts
	}
	return scripts{
		acquire:  k.Acquire,
		extend:   k.Extend,
		release:  k.Release,
		withdraw: k.Withdraw,
		verify:   k.Verify,
	}
}

// NewKind is [New] for the packages beside this one, whose resources are held otherwise than by one holder at a time; a kind cannot
// be made outside of this module. What concerns a resource as a whole (revocation, healing, inspection) is that package's own.
func NewKind(client redis.UniversalClient, cfg Config, k *kind.Kind) (*Issuer, error) {
	cfg.kind = k
	return New(client, cfg)
}
