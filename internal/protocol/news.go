package protocol

import (
	"strconv"
	"strings"
	"time"
)

// News is a message to a waiter, as common.lua publishes it.
type News struct {
	ID   string        // the lease id of the waiter; "" if the message has no meaning
	Look time.Duration // ask after this time; 0: now
}

// ReadNews reads "free <id>" or "look <id> <ms>". Any other message of a word and an id means: ask
// now.
func ReadNews(message string) News {
	words := strings.Fields(message)
	if len(words) < 2 {
		return News{}
	}
	n := News{ID: words[1]}
	if words[0] == "look" && len(words) == 3 {
		if ms, err := strconv.ParseInt(words[2], 10, 64); err == nil && ms > 0 {
			n.Look = time.Duration(ms) * time.Millisecond
		}
	}
	return n
}
