package page

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
	"github.com/fencedb/fencedb/observe/feed"
)

func TestMain(m *testing.M) {
	worker.Become(service.Kinds)
	testenv.Main(m)
}

func TestTheZombieIsRefusedBehindTheFence(t *testing.T) {
	t.Parallel()
	s := onStage(t)

	s.must("zombie", "")

	s.await(func() bool { return len(s.all(feed.Refused)) > 0 }) // the guest may have been told before the feed was heard
	refused := s.only(feed.Refused)
	granted := s.all(feed.Granted)
	require.Len(t, granted, 2)
	require.Equal(t, []int64{granted[0].Token, granted[1].Token}, []int64{refused.Token, refused.Stored})
	require.Equal(t, granted[0].Worker, refused.Worker)
	require.Equal(t, []row{{"Bob", granted[1].Token}}, s.bookings())
	require.Equal(t, []string{"booked", "stale"}, s.told())
	require.Equal(t, []Kind{Paused, Expired, Woken, feed.Refused},
		s.order(Paused, Expired, Woken, feed.Refused))
}

// The picture has its punch line at the speed at which the page begins, too.
func TestTheZombieIsRefusedAtEachSpeed(t *testing.T) {
	t.Parallel()
	for _, speed := range []string{"slow", "normal"} {
		t.Run(speed, func(t *testing.T) {
			t.Parallel()
			s := onStage(t)
			s.must("speed", speed)
			s.must("zombie", "")
			require.Equal(t, []string{"booked", "stale"}, s.told())
		})
	}
}

func TestAWorkerThatWasStoppedWhileIdleCanBeAZombieAllTheSame(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	for range 2 {
		s.must("pause", "A")
		s.must("wake", "A")
	}

	s.must("zombie", "")

	require.Equal(t, []string{"booked", "stale"}, s.told())
}

func TestTheUpdateIsLostWithoutTheFence(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	s.must("fence", "off")

	s.must("zombie", "")

	require.Equal(t, []row{{"Ann", 0}}, s.bookings(), "Bob was told that he has the table")
	require.Equal(t, []string{"booked", "booked"}, s.told())
	require.Equal(t, []string{"plain", "bad"}, tones(s.all(Wrote)))

	s.must("fence", "on")
	_, err := s.db.Exec(t.Context(), `UPDATE bookings SET guest = 'Eve'`)
	require.Error(t, err, "the table is protected again")
}

func TestTwoGuestsGetOneBooking(t *testing.T) {
	t.Parallel()
	s := onStage(t)

	s.must("race", "")

	require.Len(t, s.bookings(), 1)
	require.Equal(t, []string{"booked", "taken"}, s.told())
	require.NotEmpty(t, s.all(feed.Waiting))
}

func TestTheNextGetsTheLeaseOfOneThatWasKilled(t *testing.T) {
	t.Parallel()
	s := onStage(t)

	s.must("crash", "")

	require.Equal(t, s.only(Expired).Token, s.all(feed.Granted)[0].Token)
	require.Equal(t, []row{{"Bob", s.all(feed.Granted)[1].Token}}, s.bookings())
	killed := s.only(Killed)
	s.await(func() bool { return len(s.all(Started)) == 4 })
	again := s.all(Started)[3]
	require.Equal(t, killed.Worker, again.Worker)
	require.NotEqual(t, killed.PID, again.PID)
}

// It was killed in a terminal, or has crashed.
func TestNothingIsLeftOfAWorkerThatEndsByItself(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	s.await(func() bool { return len(s.all(Started)) == 3 })
	ended := s.all(Started)[0]

	require.NoError(t, syscall.Kill(ended.PID, syscall.SIGKILL))

	s.await(func() bool { return len(s.all(Started)) == 4 })
	require.Equal(t, ended.Worker, s.all(Started)[3].Worker)
	require.ErrorIs(t, syscall.Kill(ended.PID, 0), syscall.ESRCH)
}

func TestALeaseRunsOutAlsoWhereNobodyWaits(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	s.must("reserve", "A")
	s.await(func() bool { return len(s.all(feed.Granted)) == 1 })

	s.must("kill", "A")

	s.await(func() bool { return len(s.all(Expired)) == 1 })
	require.Equal(t, s.only(feed.Granted).Token, s.only(Expired).Token)
	require.Empty(t, s.bookings())
}

func TestTokensRiseAfterALoss(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	for i, loss := range []string{"", "flush", "restart"} {
		if loss != "" {
			s.must(loss, "")
		}
		s.must("reserve", "C")
		s.await(func() bool { return len(s.all(Told)) == i+1 })
	}

	var tokens []int64
	for _, r := range s.all(feed.Granted) {
		tokens = append(tokens, r.Token)
	}
	require.Len(t, tokens, 3)
	require.True(t, slices.IsSorted(tokens), "%v", tokens)
	require.Len(t, s.bookings(), 3)
}

func TestWhatCannotBeDoneIsRefused(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	for _, tc := range [][2]string{{"sing", ""}, {"kill", "Z"}, {"speed", "warp"}, {"wake", "A"}} {
		require.ErrorAs(t, s.Do(t.Context(), tc[0], tc[1]), new(Refusal), tc)
	}
	s.must("pause", "A")
	require.ErrorAs(t, s.Do(t.Context(), "pause", "A"), new(Refusal))
	require.ErrorAs(t, s.Do(t.Context(), "reserve", "A"), new(Refusal))
	s.must("reserve", "B")
	require.ErrorAs(t, s.Do(t.Context(), "zombie", ""), new(Refusal), "only C is idle")
	s.must("kill", "A")
	require.ErrorAs(t, s.Do(t.Context(), "kill", "A"), new(Refusal))
	require.ErrorAs(t, s.Do(t.Context(), "pause", "A"), new(Refusal))
	s.await(func() bool { return len(s.all(Told)) == 1 })
}

func TestTheFenceStaysWhereItIsWhileSomebodyWrites(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	tx, err := s.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE bookings IN ROW EXCLUSIVE MODE`)
	require.NoError(t, err)

	refused := s.Do(t.Context(), "fence", "off")
	require.NoError(t, tx.Rollback(t.Context()))

	require.ErrorAs(t, refused, new(Refusal))
	s.await(func() bool { return s.journal.After(0).State.Postgres.Protected })
	s.must("fence", "off")
	s.await(func() bool { return !s.journal.After(0).State.Postgres.Protected })
}

func TestASceneThatSomebodyHasStoppedSaysSo(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorAs(t, (&scene{Stage: s.Stage, ctx: ended}).until(func() bool { return false }), new(Refusal))
}

func TestAFenceThatIsOffIsTakenAwayOnce(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	s.must("fence", "off")
	s.must("fence", "off") // a double click, or another browser
	require.Len(t, s.all(Unprotected), 1)
}

func TestARedisThatIsDownIsNotEmptied(t *testing.T) {
	t.Parallel()
	s := onStage(t)
	restarted := make(chan error, 1)
	go func() { restarted <- s.Do(t.Context(), "restart", "") }()
	s.await(func() bool { return len(s.all(RedisDown)) == 1 })

	require.ErrorAs(t, s.Do(t.Context(), "flush", ""), new(Refusal))

	require.NoError(t, <-restarted)
	require.Empty(t, s.all(Flushed))
}

// playing is a stage under test.
type playing struct {
	*Stage
	t       *testing.T
	journal *Journal
	db      *pgxpool.Pool
}

func onStage(t *testing.T) *playing {
	t.Helper()
	url, redis, j := testenv.PostgresURL(t), testenv.OwnRedis(t), NewJournal()
	s, err := Open(t.Context(), Config{
		Servers:    service.Servers{PostgresURL: url, RedisURL: "redis://" + redis.Addr()},
		StopRedis:  func() error { redis.Kill(); return nil },
		StartRedis: func(context.Context) error { redis.Restart(); return nil },
	}, j)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	db, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	p := &playing{s, t, j, db}
	p.must("speed", "normal") // leases of three seconds
	return p
}

func (p *playing) must(action, with string) {
	p.t.Helper()
	require.NoError(p.t, p.Do(p.t.Context(), action, with), "%s %s", action, with)
}

// await waits until something is true, and asks whenever there is news.
func (p *playing) await(condition func() bool) {
	p.t.Helper()
	deadline := time.After(time.Minute)
	for {
		more := p.journal.After(0).More
		if condition() {
			return
		}
		select {
		case <-more:
		case <-deadline:
			require.Fail(p.t, "never true", "%+v", p.journal.After(0).Records)
		}
	}
}

func (p *playing) all(kinds ...Kind) (found []Record) {
	for _, r := range p.journal.After(0).Records {
		if slices.Contains(kinds, r.Kind) {
			found = append(found, r)
		}
	}
	return found
}

func (p *playing) only(kind Kind) Record {
	p.t.Helper()
	found := p.all(kind)
	require.Len(p.t, found, 1, kind)
	return found[0]
}

func (p *playing) order(of ...Kind) (kinds []Kind) {
	for _, r := range p.all(of...) {
		kinds = append(kinds, r.Kind)
	}
	return kinds
}

// told is what guests were told, sorted.
func (p *playing) told() (outcomes []string) {
	for _, r := range p.all(Told) {
		outcomes = append(outcomes, r.Cause)
	}
	slices.Sort(outcomes)
	return outcomes
}

func tones(records []Record) (tones []string) {
	for _, r := range records {
		tones = append(tones, r.Tone)
	}
	return tones
}

type row struct {
	Guest string
	Token int64
}

func (p *playing) bookings() []row {
	p.t.Helper()
	rows, err := p.db.Query(p.t.Context(), `SELECT guest, last_fencing_token FROM bookings ORDER BY slot`)
	require.NoError(p.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(p.t, err)
	return found
}
