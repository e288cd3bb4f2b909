package term

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Span formats a duration with at most two units.
func Span(d time.Duration) string {
	units := [][2]time.Duration{{Day, time.Hour}, {time.Hour, time.Minute}, {time.Minute, time.Second}}
	for n, unit := range units {
		if large, small := unit[0], unit[1]; d >= large {
			text := fmt.Sprintf("%d%c", d/large, "dhm"[n])
			if rest := d % large / small; rest > 0 { // otherwise it is left out
				text += fmt.Sprintf("%d%c", rest, "hms"[n])
			}
			return text
		}
	}
	if d >= time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// Millis is Span of milliseconds.
func Millis(ms int64) string { return Span(time.Duration(ms) * time.Millisecond) }

// Ago formats a time since.
func Ago(since time.Duration) string {
	if since < -Rounding {
		return Span(-since) + " ahead of the clock, which was set back"
	}
	return Span(max(0, since)) + " ago"
}

// Shorten leaves out the middle of a text that is wider.
func Shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	tail := (width - 1) / 2
	return string(runes[:width-1-tail]) + "…" + string(runes[len(runes)-tail:])
}

// Words are names, with commas between.
func Words[S ~string](names []S) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = string(name)
	}
	return strings.Join(all, ", ")
}

// Visible quotes a name that has unprintable characters, so that it cannot control the terminal.
func Visible(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return strconv.Quote(text)
	}
	return text
}

// Day has no name in package time.
const Day = 24 * time.Hour

// TokenText is a token, or empty where there is none.
func TokenText(token int64) string {
	if token == 0 {
		return ""
	}
	return strconv.FormatInt(token, 10)
}

// Prefixed puts text between two others, and is empty if there is none.
func Prefixed(before, text, after string) string {
	if text == "" {
		return ""
	}
	return before + text + after
}
