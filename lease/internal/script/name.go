package script

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxNamespace is the greatest length of a namespace in bytes.
const MaxNamespace = 128

// escaper keeps the tag whole and names apart: a brace would end or begin the tag, a slash would blur where the namespace
// ends, and the escape character itself has to be escaped for two different ids never to meet.
var escaper = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "/", "%2F")

// Tag is the hash tag of a name: all keys with one tag share a Cluster slot.
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

// CheckName refuses what cannot be part of a key, with [ErrInvalid]. limit is in bytes.
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
