package look

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/observe/feed"
)

func TestWatchWritesWhatFitsOnOneLineAndTheRestOnAnother(t *testing.T) {
	t.Parallel()
	e := feed.Event{At: time.Date(2026, 5, 1, 12, 0, 0, 0, time.Local), Kind: feed.Refused, Worker: "kitchen-2", Resource: "table:12", Token: 1763640000000001, Stored: 1763640000000002}
	shown := func(width int) string {
		return onPage(term.Screen{Width: width, Color: true}, func(p term.Page) {
			a := &app.State{Out: p.Out, Screen: p.Screen}
			require.NoError(t, eventWriter(a)(e))
		})
	}
	require.Equal(t, term.Red+"12:00:00.000  kitchen-2  refused    table:12  1763640000000001  stale, 1763640000000002 is stored"+term.Plain+"\n", shown(200))
	require.Equal(t, term.Red+"12:00:00.000  kitchen-2  refused    table:12  1763640000000001\n              stale, 1763640000000002 is stored"+term.Plain+"\n", shown(80))
	e.Resource = "table:" + strings.Repeat("x", 100) + ":end"
	for line := range strings.Lines(shown(80)) {
		require.LessOrEqual(t, len([]rune(line)), 80+len(term.Red))
	}
	e.Worker = "a\x1b[2J"
	require.NotContains(t, shown(200), "\x1b[2J")
}

// Whoever may write to the stream chooses all of an event.
func TestNoWordOfAnEventControlsTheTerminal(t *testing.T) {
	t.Parallel()
	const odd = "a\x1b[2J\nb"
	for _, kind := range append(slices.Clone(kinds), odd) {
		shown := onPage(term.Screen{}, func(p term.Page) {
			a := &app.State{Out: p.Out}
			event := feed.Event{Kind: kind, Worker: odd, Resource: odd, LeaseID: odd, Holder: odd, Cause: odd}
			require.NoError(t, eventWriter(a)(event))
		})
		require.NotContains(t, shown, "\x1b", kind)
		require.Equal(t, 1, strings.Count(shown, "\n"), kind)
	}
}

// Each kind has words of its own, and its JSON fits the schema.
func TestEveryKindOfEventIsTold(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../schema.json#/$defs/event")
	require.NoError(t, err)
	for _, kind := range kinds {
		e := feed.Event{ID: "1-0", At: time.UnixMilli(1), Kind: kind, Worker: "w", Resource: "seat:1", Token: 41, LeaseID: "0f8fad5b",
			Stored: 42, TTL: time.Second, Took: time.Second, Cause: "expired"}
		require.NotEmpty(t, happened(e), kind)
		text, err := json.Marshal(e)
		require.NoError(t, err)
		document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(document), kind)
	}
	require.Equal(t, "another lease entered with the same token", happened(feed.Event{Kind: feed.Refused, Token: 41, Stored: 41}))
	require.Equal(t, "stale, 42 is stored", happened(feed.Event{Kind: feed.NotSealed, Cause: "stale", Token: 41, Stored: 42}))
	for _, cause := range fencedb.Outcomes() {
		if cause != "committed" && cause != "stale" {
			require.Contains(t, happened(feed.Event{Kind: feed.Failed, Cause: cause}), " ", "%s in words", cause)
		}
	}
}

// onPage is what is printed on such a screen.
func onPage(s term.Screen, draw func(term.Page)) string {
	var out bytes.Buffer
	draw(term.Page{Out: &out, Screen: s})
	return out.String()
}
