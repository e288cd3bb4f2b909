package term

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimesAsPeopleTypeThem(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("there", 2*60*60)
	now := time.Date(2026, 11, 27, 20, 14, 30, 0, zone) // a Friday
	for text, want := range map[string]string{
		"Fri 20:14": "2026-11-27T20:14:00", "fri 20:15": "2026-11-20T20:15:00", "Friday 20:14:30": "2026-11-27T20:14:30", "FRI 20:14:31": "2026-11-20T20:14:31.999999999",
		"Thu 00:00": "2026-11-26T00:00:00", "saturday 23:59": "2026-11-21T23:59:00",
		"yesterday 20:14": "2026-11-26T20:14:00", "today 0:05": "2026-11-27T00:05:00", "20:14": "2026-11-27T20:14:00", "20:15": "2026-11-26T20:15:00",
		"Friday 8:14 PM": "2026-11-27T20:14:00", "fri 8:15pm": "2026-11-20T20:15:00", "8:14 PM": "2026-11-27T20:14:00", "12:05AM": "2026-11-27T00:05:00", "2026-11-20 8:14 PM": "2026-11-20T20:14:00", " 20:14:05.5 ": "2026-11-27T20:14:05.599999999", "20:14:05.123456789": "2026-11-27T20:14:05.123456789",
		"2026-11-20 20:14": "2026-11-20T20:14:00", "2026-11-20T20:14:05": "2026-11-20T20:14:05.999999999", "2026-11-20T18:14:05Z": "2026-11-20T20:14:05.999999999",
		// As the command prints them, in each place, and psql.
		"27 Nov 20:14:05.123": "2026-11-27T20:14:05.123999999", "28 Nov 20:14:05.123": "2025-11-28T20:14:05.123999999", "01 Jan 00:00:00": "2026-01-01T00:00:00.999999999",
		"Fri 2026-11-20 20:14:05": "2026-11-20T20:14:05.999999999", "Fri 2026-11-20 18:14:05 +00:00": "2026-11-20T20:14:05.999999999",
		"2026-11-20 18:14:05 UTC": "2026-11-20T20:14:05.999999999", "2026-11-20 18:14:05.123456+00": "2026-11-20T20:14:05.123456999", "2026-11-20 20:14:05.5+02:00": "2026-11-20T20:14:05.599999999",
		now.Format(time.RFC3339): "2026-11-27T20:14:30",
	} {
		at, err := ParseTime(text, now)
		require.NoError(t, err, text)
		require.Equal(t, want+"+02:00", at.Format(time.RFC3339Nano), text)
	}
	for _, text := range []string{"", "Fri", "25:00", "Fri 20", "some day 20:14", "2026-13-01 20:14", "Fri 20:14 UTC", "Fri 20:14 PM", "PM"} {
		_, err := ParseTime(text, now)
		require.ErrorContains(t, err, "as a time", text)
	}
	for _, text := range []string{"today 20:15", "2026-11-28 20:14", "2026-11-27T18:14:31Z"} {
		_, err := ParseTime(text, now)
		require.ErrorContains(t, err, "still to come", text)
	}
}
