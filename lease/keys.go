package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on names, in bytes.
const (
	maxResource  = 512
	maxNamespace = 128
)

// keys are the names of one resource in Redis. They share one hash tag, so one Cluster slot:
//
//	lease:v1:{tenant/table:12}:owner
type keys struct {
	owner   string // "<lease id>:<token>", expires with the lease
	fence   string // last token issued, expires with Config.FenceRetention
	queue   string // sorted set: waiters by arrival
	alive   string // sorted set: the same waiters by the time until which they are believed alive
	ended   string // "<lease id>:<token>" of a lease that was revoked, for its holder to find
	channel string // where waiters are woken; not a key
}

// escaper keeps the tag whole and names apart: a brace would end or begin the tag, a slash would blur where the namespace
// ends, and the escape character itself has to be escaped for two different ids never to meet.
var escaper = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "/", "%2F")

func newKeys(namespace, resource string, hashed bool) keys {
	return newKeysOf("lease", namespace, resource, hashed)
}

func newKeysOf(kind, namespace, resource string, hashed bool) keys {
	id := escaper.Replace(resource)
	if hashed {
		sum := sha256.Sum256([]byte(resource))
		id = "sha256:" + hex.EncodeToString(sum[:])
	}
	if namespace != "" {
		id = escaper.Replace(namespace) + "/" + id
	}
	prefix := kind + ":v1:{" + id + "}:"
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
		return invalid("resource is empty; name what the lease is for, such as %q", "table:12")
	}
	return checkName("resource", resource, maxResource)
}

func checkName(what, name string, limit int) error {
	switch {
	case len(name) > limit:
		return invalid("%s has %d bytes, more than %d; store a digest of long ids", what, len(name), limit)
	case !utf8.ValidString(name):
		return invalid("%s %q is not valid UTF-8", what, name)
	case strings.ContainsRune(name, 0):
		return invalid("%s %q contains a NUL byte", what, name)
	}
	return nil
}
