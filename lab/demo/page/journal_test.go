package page

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/observe/feed"
)

// told adds records and returns what became of them.
func told(records ...Record) []Record {
	j := NewJournal()
	for _, r := range records {
		j.Add(r)
	}
	return j.After(0).Records
}

func kinds(records []Record) (kinds []Kind) {
	for _, r := range records {
		kinds = append(kinds, r.Kind)
	}
	return kinds
}

func TestASealAndAWriteShowDifferentPromises(t *testing.T) {
	t.Parallel()
	got := told(
		Record{Kind: feed.Sealed, Worker: "A", Token: 41},
		Record{Kind: feed.Granted, Worker: "A", Token: 41},
		Record{Kind: feed.Committed, Worker: "A", Token: 41},
	)
	require.Equal(t, []Kind{feed.Sealed, feed.Granted, feed.Committed}, kinds(got))
	require.Equal(t, []string{"S8", "L1", "S1"}, []string{got[0].Promise, got[1].Promise, got[2].Promise})
}

func TestALeaseOfWhoseEndNothingWasHeardHasRunOut(t *testing.T) {
	t.Parallel()
	got := told(
		Record{Kind: feed.Granted, Worker: "A", Token: 41},
		Record{Kind: feed.Sealed, Worker: "B", Token: 42},
		Record{Kind: feed.Granted, Worker: "B", Token: 42},
	)
	require.Equal(t, []Kind{feed.Granted, Expired, feed.Sealed, feed.Granted}, kinds(got))
	require.EqualValues(t, 41, got[1].Token)
	require.Equal(t, "A", got[1].Worker)
}

func TestAWriteThatIsNotSentSaysHowItsWorkerKnew(t *testing.T) {
	t.Parallel()
	granted := Record{Kind: feed.Granted, Worker: "A", Token: 41}
	failed := Record{Kind: feed.Failed, Worker: "A", Token: 41, Cause: "lease_over"}
	require.Contains(t, told(granted, failed)[1].Why, "By its own clock")
	require.Contains(t, told(granted, Record{Kind: feed.Lost, Worker: "A", Token: 41, Cause: "lost"}, failed)[2].Why, "It knew")
}

func TestALeaseEndsOnce(t *testing.T) {
	t.Parallel()
	j := NewJournal()
	j.Add(Record{Kind: feed.Granted, Worker: "A", Token: 41})
	j.Add(Record{Kind: feed.Released, Worker: "A", Token: 41})
	j.Gone(41, Expired, time.Now())
	j.Gone(40, Expired, time.Now()) // never heard of
	j.Add(Record{Kind: feed.Granted, Worker: "B", Token: 42})
	j.Gone(42, Expired, time.Now())
	j.Gone(42, Forgotten, time.Now())
	require.Equal(t, []Kind{feed.Granted, feed.Released, feed.Granted, Expired}, kinds(j.After(0).Records))
}

// Redis can lose a lease in several ways. Until its holder hears of it, it only believes.
func TestAHolderThatRedisHasForgottenOnlyBelieves(t *testing.T) {
	t.Parallel()
	believes := func(j *Journal) int64 {
		j.SetState(State{Workers: []Worker{{Name: "A"}}})
		return j.After(0).State.Workers[0].Believes
	}
	for name, gone := range map[string]func(j *Journal){
		"run out":         func(j *Journal) { j.Gone(41, Expired, time.Now()) },
		"flushed":         func(j *Journal) { j.Add(Record{Kind: Flushed}) },
		"restarted":       func(j *Journal) { j.Add(Record{Kind: RedisDown}); j.Add(Record{Kind: RedisUp}) },
		"deleted by hand": func(j *Journal) { j.Gone(41, Forgotten, time.Now()) },
	} {
		for end, notice := range map[string]Record{
			"noticed": {Kind: feed.Lost, Worker: "A", Token: 41, Cause: "lost"},
			"killed":  {Kind: Killed, Worker: "A"},
			"told":    {Kind: Told, Worker: "A", Cause: "failed"},
		} {
			j := NewJournal()
			j.Add(Record{Kind: Asked, Worker: "A", Guest: "Ann", Evening: 1})
			j.Add(Record{Kind: feed.Granted, Worker: "A", Token: 41})
			require.Zero(t, believes(j), name)
			gone(j)
			require.EqualValues(t, 41, believes(j), name)
			last := j.After(0).Records[len(j.After(0).Records)-1]
			require.Equal(t, []any{"A", int64(41)}, []any{last.Worker, last.Token}, name)
			j.Add(notice)
			require.Zero(t, believes(j), "%s, then %s", name, end)
		}
	}
}

func TestTheSecondOfTwoGuestsWhoWereToldYesIsALostUpdate(t *testing.T) {
	t.Parallel()
	got := told(
		Record{Kind: Asked, Worker: "A", Guest: "Ann", Evening: 1},
		Record{Kind: Asked, Worker: "B", Guest: "Bob", Evening: 1},
		Record{Kind: Wrote, Worker: "B"},
		Record{Kind: Told, Worker: "B", Cause: "booked"},
		Record{Kind: Wrote, Worker: "A"},
		Record{Kind: Told, Worker: "A", Cause: "booked"},
	)
	require.Equal(t, []string{"plain", "good", "bad", "bad"}, []string{got[2].Tone, got[3].Tone, got[4].Tone, got[5].Tone})
	require.Equal(t, "Lost update: Bob is overwritten", got[4].Title)
	require.Equal(t, "Ann", got[4].Guest)
}

func TestTheStateNamesTheHolderAndWhoWasToldWhat(t *testing.T) {
	t.Parallel()
	j := NewJournal()
	j.Add(Record{Kind: Asked, Worker: "A", Guest: "Ann", Evening: 1})
	j.Add(Record{Kind: feed.Granted, Worker: "A", Token: 41})
	j.Add(Record{Kind: Told, Worker: "A", Cause: "booked"})
	state := func() State {
		return State{Redis: Redis{Token: 41}, Postgres: Postgres{Bookings: []Booking{{Evening: 1, Guest: "Ann"}}}}
	}
	j.SetState(state())
	first := j.After(0)
	require.Equal(t, "A", first.State.Redis.Owner)
	require.Equal(t, []string{"Ann"}, first.State.Postgres.Bookings[0].Told)

	j.SetState(state())
	require.Equal(t, first.Version, j.After(0).Version, "the same state is no news")
}

func TestAReaderGetsWhatFollowsAndIsWoken(t *testing.T) {
	t.Parallel()
	j := NewJournal()
	j.Add(Record{Kind: Started, Worker: "A"})
	j.Add(Record{Kind: Started, Worker: "B"})
	news := j.After(1)
	require.Len(t, news.Records, 1)
	require.EqualValues(t, 2, news.Records[0].Seq)

	news = j.After(2)
	require.Empty(t, news.Records)
	select {
	case <-news.More:
		require.Fail(t, "woken for nothing")
	default:
	}
	j.Add(Record{Kind: Started, Worker: "C"})
	<-news.More
	require.Len(t, j.After(99).Records, 0, "a number that is not there yet")
}

func TestEveryKindIsExplained(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{
		feed.Waiting, feed.Granted, feed.Held, feed.Extended, feed.Released, feed.Lost, feed.Revoked,
		feed.Sealed, feed.NotSealed, feed.Committed, feed.Refused, feed.Failed,
		Started, Asked, Card, Writing, Wrote, Told, Paused, Woken, Killed, Expired, Forgotten, Flushed,
		RedisDown, RedisUp, Unprotected, Protected, Speed, Scene,
	} {
		got := told(Record{Kind: kind, Worker: "A", Token: 41, Stored: 42, Cause: "expired", Guest: "Ann", Evening: 1})[0]
		require.NotEmpty(t, got.Title, kind)
		require.NotEmpty(t, got.Why, kind)
		require.NotContains(t, got.Title+got.Why, "%!", kind)
	}
	for _, name := range []string{"race", "zombie", "crash"} {
		require.NotEmpty(t, told(Record{Kind: Scene, Cause: name})[0].Title, name)
	}
}

func TestTokensAreTextInJSON(t *testing.T) {
	t.Parallel()
	const token = 1<<53 + 1 // would lose its last digit as a number of JavaScript
	text, err := json.Marshal(told(Record{Kind: feed.Granted, Worker: "A", Token: token, At: 7})[0])
	require.NoError(t, err)
	require.True(t, strings.Contains(string(text), `"token":"9007199254740993"`) && strings.Contains(string(text), `"at":7`), string(text))
}
