package term

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// TimeForms are the forms of a time that people type, but for the word before it.
const TimeForms = `"Fri 20:14", "Fri 8:14 PM", "yesterday 20:14", "20:14", "2026-11-20 20:14" or RFC 3339`

// ErrToCome is the error of a time that is not in the past.
var ErrToCome = errors.New("is still to come")

// dates are the forms of a time with its date: those that people type, and those that this command
// and psql print.
var dates = []string{
	time.RFC3339Nano, "2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02 3:04PM", "2006-01-02 3:04 PM", "2006-01-02T15:04", "2006-01-02T15:04:05",
	TimeLayout, TimeLayout + " -07:00", "2006-01-02 15:04:05 MST", "2006-01-02 15:04:05-07", "2006-01-02 15:04:05-07:00",
}

// seconds are the digits behind the last colon of a clock, and those of a fraction.
var seconds = regexp.MustCompile(`:\d\d:\d\d(?:\.(\d+))?`)

// ParseTime reads a time of the past, in the zone of now. What leaves out the date is the last such
// time before now. A time with seconds is the end of that second, or of its last decimal: what was
// printed with this time had happened then.
func ParseTime(text string, now time.Time) (time.Time, error) {
	at, err := beginning(strings.TrimSpace(text), now)
	if found := seconds.FindStringSubmatch(text); err == nil && found != nil {
		unit := time.Second
		for range found[1] {
			unit /= 10
		}
		if end := at.Add(max(unit, 1) - 1); !end.After(now) {
			at = end
		}
	}
	return at, err
}

func beginning(text string, now time.Time) (time.Time, error) {
	for _, layout := range dates {
		if at, err := time.ParseInLocation(layout, strings.ToUpper(text), now.Location()); err == nil {
			return notToCome(text, at, now)
		}
	}
	if at, err := time.ParseInLocation("02 Jan 15:04:05", text, now.Location()); err == nil { // of a time line
		at = at.AddDate(now.Year(), 0, 0)
		if at.After(now) {
			at = at.AddDate(-1, 0, 0)
		}
		return at, nil
	}
	word, clock, _ := strings.Cut(text, " ")
	for _, layout := range []string{"15:04", "15:04:05", "3:04PM", "3:04 PM"} {
		if of, err := time.Parse(layout, strings.ToUpper(text)); err == nil {
			return lately(text, "", of, now)
		}
		if of, err := time.Parse(layout, strings.ToUpper(strings.TrimSpace(clock))); err == nil {
			return lately(text, strings.ToLower(word), of, now)
		}
	}
	return time.Time{}, noTime(text)
}

func noTime(text string) error {
	return fmt.Errorf("cannot read %q as a time; for example %s", text, TimeForms)
}

// lately is the last time of day of before now, on a day that is called word.
func lately(text, word string, of, now time.Time) (time.Time, error) {
	at := func(daysAgo int) time.Time {
		date := now.AddDate(0, 0, -daysAgo)
		return time.Date(date.Year(), date.Month(), date.Day(),
			of.Hour(), of.Minute(), of.Second(), of.Nanosecond(), now.Location())
	}
	switch word {
	case "today":
		return notToCome(text, at(0), now)
	case "yesterday":
		return at(1), nil
	}
	for daysAgo := range 8 {
		then := at(daysAgo)
		named := strings.ToLower(then.Weekday().String())
		if (word == "" || word == named || word == named[:3]) && !then.After(now) {
			return then, nil
		}
	}
	return time.Time{}, noTime(text)
}

func notToCome(text string, at, now time.Time) (time.Time, error) {
	if at.After(now) {
		return time.Time{}, fmt.Errorf("%q %w: it is %s now", text, ErrToCome, now.Format(time.RFC3339))
	}
	return at.In(now.Location()), nil
}

// TimeLayout is the form of a time of the past; the zone is in the second line, AT or SINCE.
const TimeLayout = "Mon 2006-01-02 15:04:05"
