package app

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Names say how the programs name keys in Redis.
type Names struct {
	Namespace string
	Hashed    bool
}

// FenceRetention is how long Redis remembers a token that revoke has issued. A shorter time than
// the programs' own setting would shorten theirs; a longer one does no harm.
const FenceRetention = 30 * 24 * time.Hour

// Config is for looking on: its TTL is not used.
func (n Names) Config() lease.Config {
	return lease.Config{TTL: time.Minute, Namespace: n.Namespace, HashResources: n.Hashed, FenceRetention: FenceRetention}
}

// Semaphore reads and revokes permits.
func (n Names) Semaphore(client redis.UniversalClient) (*lease.Semaphore, error) {
	return lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: lease.MaxLimit, Lease: n.Config()})
}

// Key is that of the last token of a resource.
func (n Names) Key(resource string) lease.Key {
	k := lease.Key(protocol.KeyOf(protocol.LeaseKind, n.Namespace, resource, n.Hashed))
	k.Field = "fence"
	return k
}

// InNamespace names a namespace in words.
func InNamespace(name string) string {
	if name == "" {
		return "without a namespace"
	}
	return fmt.Sprintf("in namespace %q", name)
}
