package once

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Key returns the key for a piece of work and its arguments, for [Once.Do] and for fencedb.Once:
//
//	key := once.Key("report", tenant, day) // ["report","acme","2026-11-26"]
//
// The key is the JSON of name and args, so two calls have the same key exactly when encoding/json
// writes the same for them: 7 and 7.0 give the same key, and "7" gives another. A key that would be
// longer than [MaxKey] is replaced by its SHA-256. If encoding/json cannot write an argument, such
// as a function, the key is "", which Do refuses.
func Key(name string, args ...any) string {
	text, err := json.Marshal(slices.Concat([]any{name}, args))
	if err != nil {
		return ""
	}
	if len(text) > MaxKey {
		sum := sha256.Sum256(text)
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return string(text)
}
