package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	before = row{"A", "1.50s", "1795168076399263", "1795168076399263", "-"}
	after  = row{"-", "-", "1795168076399263", "1795168076399263", "Ann"}
)

func TestStepAlignsStatesUnderTheirHeads(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := &printer{&out, false}

	p.intro(1, story{title: "Title", intro: "Intro."})
	p.step(40*time.Millisecond, "A books the table.", before, after)

	require.Equal(t, `

1  Title
   Intro.

         Redis                             Postgres
         owner  TTL     last token         fence              booked for
         -----------------------------------------------------------------------
  0.04s  A books the table.
         -      -       1795168076399263   1795168076399263   Ann
`, out.String())
}

func TestStepMakesChangesStandOutInColour(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	(&printer{&out, true}).step(0, "A books the table.", before, after)

	require.Contains(t, out.String(), "\x1b[1mAnn\x1b[0m")
	require.Contains(t, out.String(), "\x1b[2m1795168076399263\x1b[0m")
}

func TestVerdictSaysWhatWasPromisedAndSeen(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		story Story
		want  string
	}{
		"kept": {Story{Promise: "one booking", Seen: "booked for Ann"}, `
   promised  one booking
   seen      booked for Ann
   AS PROMISED
`},
		"broken": {Story{Promise: "one booking", Seen: "booked for Ann, Bob", Broken: []string{"two bookings"}}, `
   promised  one booking
   seen      booked for Ann, Bob
   but       two bookings
   NOT AS PROMISED
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			(&printer{&out, false}).verdict(tc.story)
			require.Equal(t, tc.want, out.String())
		})
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"fits":          {"one two", []string{"one two"}},
		"breaks":        {"one two three", []string{"one two", "three"}},
		"spaces":        {" one\n\ttwo ", []string{"one two"}},
		"too long":      {"a verylongword b", []string{"a", "verylongword", "b"}},
		"nothing":       {"", []string{""}},
		"exactly seven": {"one two one two", []string{"one two", "one two"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, wrap(tc.text, 7))
		})
	}
}
