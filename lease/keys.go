package lease

import (
	"fmt"

	"github.com/fencedb/fencedb/lease/internal/script"
)

// maxResource is in bytes.
const maxResource = 512

// keys are the names of one resource in Redis. They share one hash tag, so one Cluster slot:
//
//	lease:v1:{tenant/table:12}:owner
type keys struct {
	owner   string // "<lease id>:<token>:<calls>", expires with the lease
	fence   string // last token issued, expires with Config.FenceRetention
	queue   string // sorted set: calls that wait by arrival, and calls that are over (internal/script/queue.lua)
	alive   string // hash: for each call that waits until when it is believed alive, and what it asked for
	ended   string // "<lease id>:<token>:..." of a lease that was revoked, for its holder to find
	channel string // "<channel>:<listener>" is where one process hears of its turn; not a key
}

func newKeys(namespace, resource string, hashed bool) keys {
	return newKeysOf("lease", namespace, resource, hashed)
}

func newKeysOf(kind, namespace, resource string, hashed bool) keys {
	prefix := kind + ":v1:" + script.Tag(namespace, resource, hashed) + ":"
	return keys{
		owner:   prefix + "owner",
		fence:   prefix + "fence",
		queue:   prefix + "queue",
		alive:   prefix + "alive",
		ended:   prefix + "ended",
		channel: prefix + "wake",
	}
}

func (i *Issuer) keys(resource string) keys {
	if i.cfg.kind != nil {
		return newKeysOf(i.cfg.kind.Name, i.cfg.Namespace, resource, i.cfg.HashResources)
	}
	return newKeys(i.cfg.Namespace, resource, i.cfg.HashResources)
}

// Resource builds an id of the form type:id, such as "table:12".
func Resource(kind string, id any) string {
	return kind + ":" + fmt.Sprint(id)
}

func checkResource(resource string) error {
	if resource == "" {
		return script.Invalid("resource is empty; name what the lease is for, such as %q", "table:12")
	}
	return script.CheckName("resource", resource, maxResource)
}
