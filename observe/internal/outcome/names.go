package outcome

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/google/uuid"
)

// Hashed is what stands for a resource where its name must not: the first 12 hexadecimal digits of its SHA-256. Enough to find
// one again among those of a day, and the same in logs, spans and events.
func Hashed(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:6])
}

// Short is the first 8 characters of a lease id, and empty for the nil id.
func Short(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()[:8]
}
