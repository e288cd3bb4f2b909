package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// Kinds of keys.
const (
	LeaseKind     = "lease"
	SemaphoreKind = "semaphore"
	OnceKind      = "once"
	AdmissionKind = "admission"
)

// Key is the name of one key in Redis. All keys of a resource share one hash tag, so one Cluster
// slot:
//
//	lease:v1:{tenant/table:12}:owner
//
// Only this file knows this grammar.
type Key struct {
	Kind      string // "" is LeaseKind
	Namespace string // "" for none
	Resource  string // or its Digest
	Field     string // such as "owner"
}

const (
	version = ":v1:{"
	end     = "}:"
)

// escaper keeps names from breaking the grammar: a brace would begin or end the tag, and a slash
// would end the namespace. It also escapes the escape character, so different names have different
// keys.
var (
	escaper   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "/", "%2F")
	unescaper = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}", "%2F", "/")
	globber   = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

func (k Key) String() string { return k.head() + end + k.Field }

// Pattern is a glob for SCAN. It matches the keys of all resources that begin with k.Resource. If
// k.Namespace is "", it also matches keys of other namespaces: check with ParseKey.
func (k Key) Pattern() string { return globber.Replace(k.head()) + "*" + end + k.Field }

func (k Key) head() string {
	if k.Kind == "" {
		k.Kind = LeaseKind
	}
	if k.Namespace == "" {
		return k.Kind + version + escaper.Replace(k.Resource)
	}
	return k.Kind + version + escaper.Replace(k.Namespace) + "/" + escaper.Replace(k.Resource)
}

// ParseKey reads what String writes. It returns false for any other name.
func ParseKey(name string) (k Key, ok bool) {
	kind, rest, isOurs := strings.Cut(name, version)
	tag, field, whole := strings.Cut(rest, end)
	namespace, resource, has := strings.Cut(tag, "/")
	if !has {
		namespace, resource = "", tag
	}
	k = Key{kind, unescaper.Replace(namespace), unescaper.Replace(resource), field}
	return k, isOurs && whole && k.String() == name
}

// Digest replaces, in keys, the name of a resource that Redis must not see.
func Digest(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// KeyOf is a key of the resource, without its field; with the resource's digest if hashed.
func KeyOf(kind, namespace, resource string, hashed bool) Key {
	if hashed {
		resource = Digest(resource)
	}
	return Key{Kind: kind, Namespace: namespace, Resource: resource}
}

// For is the key of another field of the same resource.
func (k Key) For(field string) string {
	k.Field = field
	return k.String()
}

// Keys are the names of one resource in Redis: strings, as the values that commands take.
type Keys struct {
	Owner   any // "<lease id>:<token>:<label>", expires with the lease; of a semaphore a sorted set of these
	Fence   any // the last token issued; expires after Config.FenceRetention
	Queue   any // sorted set: the lease ids of the waiters, by arrival
	Alive   any // hash: the state of each waiter (common.lua)
	Ended   any // sorted set: "<lease id>:<token>:..." of the leases revoked lately, for their former holders
	Channel any // not a key: on "<channel>:<listener>" one process learns that it is its turn
}

// Trial begins the names of the resources of Issuer.Check, which last for seconds and protect
// nothing.
const Trial = "fencedb.check:"

// KeysOf are the names of a resource of a lease or a semaphore.
func KeysOf(kind, namespace, resource string, hashed bool) *Keys {
	head := KeyOf(kind, namespace, resource, hashed).head() + end
	var all strings.Builder // one piece of memory for all names
	all.Grow(6 * (len(head) + len("owner")))
	name := func(field string) any {
		from := all.Len()
		all.WriteString(head)
		all.WriteString(field)
		return all.String()[from:]
	}
	return &Keys{name("owner"), name("fence"), name("queue"), name("alive"), name("ended"), name("wake")}
}

// Tag is the hash tag of all names of the resource: keys with this tag are in one Cluster slot.
func (k Keys) Tag() string {
	owner := k.Owner.(string)
	return owner[strings.Index(owner, "{") : strings.Index(owner, end)+1]
}

// Limits on names, in bytes.
const (
	MaxNamespace = 128
	MaxResource  = 512
)

// CheckRequired is [CheckName] for a name that must not be empty. example is a valid name, for the
// error.
func CheckRequired(what, name, example string, limit int) error {
	if name == "" {
		return Invalid("%s is empty; give one such as %q", what, example)
	}
	return CheckName(what, name, limit)
}

// CheckName refuses, with [ErrInvalid], a name that cannot be part of a key. limit is in bytes.
func CheckName(what, name string, limit int) error {
	switch {
	case len(name) > limit:
		return Invalid("%s has %d bytes, more than %d; use a digest of long ids", what, len(name), limit)
	case !utf8.ValidString(name):
		return Invalid("%s %q is not valid UTF-8", what, name)
	case strings.ContainsRune(name, 0):
		return Invalid("%s %q contains a NUL byte", what, name)
	}
	return nil
}
