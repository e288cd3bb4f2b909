package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// MostLabel is the greatest length of a stored label in bytes. The scripts check it too.
const MostLabel = 64

// EscapeLabel writes the label of a holder as it is stored in the key owner. It is for people: the
// scripts do not read it. A byte other than a letter, digit or dash, and Z itself, becomes Z and
// two hexadecimal digits: booking@host-7:4711 becomes "bookingZ40host-7Z3a4711".
func EscapeLabel(holder string) string {
	var b strings.Builder
	for i := range len(holder) {
		c := holder[i]
		if c == '-' || c != 'Z' && (c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z') {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "Z%02x", c)
		}
	}
	return b.String()
}

// ReadLabel reads what EscapeLabel writes.
func ReadLabel(stored string) string {
	var b strings.Builder
	for ; stored != ""; stored = stored[1:] {
		if stored[0] == 'Z' && len(stored) > 2 {
			if c, err := strconv.ParseUint(stored[1:3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				stored = stored[2:]
				continue
			}
		}
		b.WriteByte(stored[0])
	}
	return b.String()
}
