package lease

import (
	"fmt"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Key is the name of a key in Redis, for tools that look at what is held: operators' commands, alerts, tests.
//
//	lease:v1:{tenant/table:12}:owner
type Key struct {
	Kind      string // "lease" or "semaphore", as in [TraceStart]; "" is "lease"
	Namespace string // [Config.Namespace]
	Resource  string // as it is in Redis: with [Config.HashResources] its digest, "sha256:..."
	Field     string // "owner", "fence", "queue", "alive" or "ended"; docs/runbook.md says what each holds
}

// String is the name.
func (k Key) String() string { return protocol.Key(k).String() }

// Pattern is a glob for Redis's SCAN that matches the names of all resources that begin with k.Resource. Without a namespace it also
// matches those of other namespaces; [ParseKey] tells them apart.
func (k Key) Pattern() string { return protocol.Key(k).Pattern() }

// ParseKey reads what [Key.String] writes. It answers false for any other name.
func ParseKey(name string) (Key, bool) {
	k, ok := protocol.ParseKey(name)
	return Key(k), ok
}

// Resource builds an id of the form type:id, such as "table:12".
func Resource(kind string, id any) string {
	return kind + ":" + fmt.Sprint(id)
}
