package faulty

import (
	"crypto/sha1"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Call is one call of a script, in the words of its request.
type Call struct {
	Script string // the name of its file, such as "acquire"; "" for one that was never seen in full

	words []string // its keys and arguments, those that are text
}

// Is reports whether it is a call of that script about that resource. An empty name stands for any.
// A lease, a permit, a result and a counter have the resource in their keys; the key of other
// scripts is itself the resource.
func (c Call) Is(script, resource string) bool {
	return (script == "" || c.Script == script) && (resource == "" || slices.ContainsFunc(c.words, func(word string) bool {
		key, ok := protocol.ParseKey(word)
		return word == resource || ok && key.Resource == resource
	}))
}

// callOf reads a command, if that calls a script.
func callOf(words []any) (c Call, ok bool) {
	if len(words) < 3 {
		return c, false
	}
	verb, _ := words[0].(string)
	body, _ := words[1].(string)
	switch strings.ToLower(verb) {
	case "eval":
		c.Script = learn(body)
	case "evalsha":
		if s, known := scripts.Load(body); known {
			c.Script = s.(source).name
		}
	default:
		return c, false
	}
	for _, word := range words[2:] {
		if text, isText := word.(string); isText {
			c.words = append(c.words, text)
		}
	}
	return c, true
}

// source is a script that was seen in full.
type source struct{ name, text string }

var scripts sync.Map // of source, by digest

// A server can know these without having heard of them from here.
func init() {
	others := []protocol.Script{
		protocol.Revoke, protocol.Raise, protocol.SemaphoreRevoke,
		protocol.OnceLook, protocol.OnceRecord, protocol.OnceForget, protocol.AdmissionFixed, protocol.AdmissionSliding,
	}
	for _, s := range slices.Concat(others, ofHolding(protocol.LeaseHolding), ofHolding(protocol.SemaphoreHolding)) {
		learn(s.Source)
	}
}

func ofHolding(h protocol.Holding) []protocol.Script {
	return []protocol.Script{h.Acquire, h.Extend, h.Release, h.Withdraw, h.Inspect}
}

var header = regexp.MustCompile(`(?m)^-- (\w+)\.lua:`)

// helpers are the files that other scripts have in them, before their own text or after its
// beginning.
var helpers = []string{"common", "holder", "holders"}

// learn remembers the text of a script and returns its name, which is in the last header that is
// not of a helper.
func learn(text string) (name string) {
	sum := sha1.Sum([]byte(text))
	digest := hex.EncodeToString(sum[:])
	if known, ok := scripts.Load(digest); ok {
		return known.(source).name
	}
	for _, h := range header.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(helpers, h[1]) {
			name = h[1]
		}
	}
	scripts.Store(digest, source{name, text})
	return name
}
