package script

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/fencedb/fencedb/lease"
)

// MaxNamespace is the greatest length of a namespace in bytes.
const MaxNamespace = 128

// escaper keeps the tag whole and names apart, as in the keys of leases.
var escaper = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "/", "%2F")

// Tag is the hash tag of a name, the same that package lease gives to a resource of that name. All keys with one tag share
// a Cluster slot.
func Tag(namespace, name string, hashed bool) string {
	id := escaper.Replace(name)
	if hashed {
		sum := sha256.Sum256([]byte(name))
		id = "sha256:" + hex.EncodeToString(sum[:])
	}
	if namespace != "" {
		id = escaper.Replace(namespace) + "/" + id
	}
	return "{" + id + "}"
}

// CheckName refuses what cannot be part of a key, with [lease.ErrInvalid]. limit is in bytes.
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

// Invalid is a [lease.ErrInvalid].
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{lease.ErrInvalid}, args...)...)
}
