package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/observe/feed"
)

// lines writes one event after the other, as they come.
type lines interface {
	write(feed.Event) error
}

func (a *app) newLines(cmd *cli.Command) lines {
	if cmd.Bool(flagJSON) {
		return jsonLines{json.NewEncoder(a.out)}
	}
	return a.newTextLines()
}

func (a *app) newTextLines() *textLines {
	return &textLines{page{a.out, a.screen}, []int{len(clock), 8, len(feed.Committed), 8, 16}}
}

type jsonLines struct{ *json.Encoder }

func (l jsonLines) write(e feed.Event) error { return l.Encode(e) }

// textLines are columns that grow with what comes. What has been written stays as it is.
type textLines struct {
	page
	widths []int
}

const clock = "15:04:05.000"

func (l *textLines) write(e feed.Event) error {
	var b strings.Builder
	for i, cell := range []string{e.At.Local().Format(clock), l.name(e.Worker), string(e.Kind), l.name(e.Resource), tokenText(e.Token)} {
		l.widths[i] = max(l.widths[i], utf8.RuneCountInString(cell))
		b.WriteString(cell + strings.Repeat(" ", l.widths[i]-utf8.RuneCountInString(cell)) + gap)
	}
	line, more := b.String(), happened(e)
	if l.width > 0 && utf8.RuneCountInString(line+more) > l.width {
		line = strings.TrimRight(line, " ") + "\n" + strings.Repeat(" ", len(clock)) + gap
	}
	_, err := io.WriteString(l.out, l.styled(strings.TrimRight(line+more, " "), colors[e.Kind])+"\n")
	return err
}

// name leaves room for the other columns.
func (l *textLines) name(text string) string {
	most := 40
	if l.width > 0 {
		most = min(most, max(leastCell, l.width/5))
	}
	return shorten(visible(text), most)
}

// colors are for what somebody may have to look at.
var colors = map[feed.Kind]string{feed.Lost: yellow, feed.Revoked: yellow, feed.Healed: yellow, feed.Refused: red, feed.Failed: red}

func tokenText(token int64) string {
	if token == 0 {
		return ""
	}
	return strconv.FormatInt(token, 10)
}

// happened says in a few words what a person would ask next.
func happened(e feed.Event) string {
	switch e.Kind {
	case feed.Waiting:
		return "it is taken"
	case feed.Granted:
		return "for " + span(e.TTL) + unlessZero(", waited ", e.Took)
	case feed.Held:
		return "another holds it" + unlessZero(", waited ", e.Took)
	case feed.Extended:
		return "for " + span(e.TTL)
	case feed.Released:
		return "held for " + span(e.Took)
	case feed.Lost:
		return strings.TrimSpace(e.Cause + unlessZero(" after ", e.Took))
	case feed.Revoked:
		return "older leases have ended; their writes are refused once this token has entered"
	case feed.Healed:
		return "a new token, Redis had gone backwards"
	case feed.Committed:
		return strings.TrimSpace(unlessZero("in ", e.Took))
	case feed.Refused:
		return refusal(e.Token, e.Stored)
	}
	return e.Cause
}

func refusal(token, stored int64) string {
	if token == stored {
		return "another lease entered with the same token"
	}
	return fmt.Sprintf("stale, %d is stored", stored)
}

func unlessZero(before string, d time.Duration) string {
	if d < time.Millisecond {
		return ""
	}
	return before + span(d)
}
