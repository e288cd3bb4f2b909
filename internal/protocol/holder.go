package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// A call is named "<16 hexadecimal digits>-<label>", where the label is for people: who holds, or
// waits. The name is in the key owner already, so the label costs no command, and scripts compare
// it without knowing what it says. In a label Z and two hexadecimal digits stand for a byte that is
// no letter, digit or dash, and for Z itself: "bookingZ40host-7Z3a4711" is booking@host-7:4711.
const (
	callDigits = 16
	mostName   = 64 // of the name of a call; the scripts check it too

	// MostLabel is the greatest length of an escaped label, in bytes.
	MostLabel = mostName - callDigits - len("-")
)

// NewCall names a new call of the program with that escaped label.
func NewCall(label string) string {
	name := make([]byte, 0, mostName)
	name = strconv.AppendUint(name, Chance()|1<<63, 16) // with the top bit there are callDigits
	return string(append(append(name, '-'), label...))
}

// EscapeLabel writes who holds as it is stored.
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

// HolderOf reads the label in the latest of the calls of a holder, "<call>,<call>"; "" if there is
// none.
func HolderOf(calls string) string {
	latest := calls[strings.LastIndexByte(calls, ',')+1:]
	if len(latest) <= callDigits || latest[callDigits] != '-' {
		return ""
	}
	var b strings.Builder
	for label := latest[callDigits+1:]; label != ""; label = label[1:] {
		if label[0] == 'Z' && len(label) > 2 {
			if c, err := strconv.ParseUint(label[1:3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				label = label[2:]
				continue
			}
		}
		b.WriteByte(label[0])
	}
	return b.String()
}
