package migrations_test

import (
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

// What a server says of a transaction that another run of it has ended, another server, or a copy.
// It may say that it does not know; what it says otherwise is true.

// ended is what enter has returned in a transaction that has ended.
type ended struct {
	xid   string
	epoch int64
}

// end enters, and ends the transaction in a way: COMMIT or ROLLBACK.
func (s *session) end(way string) (e ended) {
	s.Helper()
	s.exec(`BEGIN`)
	require.NoError(s, s.conn.QueryRow(s.Context(), `SELECT xid::text, epoch FROM fencedb.enter($1, 1, gen_random_uuid())`, "room:"+s.one(`SELECT gen_random_uuid()`)).Scan(&e.xid, &e.epoch))
	s.exec(way)
	return e
}

// ask is what the server says became of a transaction, empty if it does not know.
func (s *session) ask(e ended) string {
	s.Helper()
	return s.one(`fencedb.outcome($1::text::xid8, $2)`, e.xid, e.epoch)
}

func on(t *testing.T, server *testenv.PostgresServer) *session {
	t.Helper()
	server.Pool() // migrates
	return connect(t, server.URL())
}

func TestACleanRestartKeepsOutcomes(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	s := on(t, server)
	committed, aborted := s.end("COMMIT"), s.end("ROLLBACK")
	s.exec(`SELECT fencedb.enter('room:1', 1, gen_random_uuid())`)

	server.Restart()
	s = on(t, server)
	var first ended // in the run of the server, of a fence that is there
	require.NoError(t, s.conn.QueryRow(t.Context(), `SELECT xid::text, epoch FROM fencedb.enter('room:1', 2, gen_random_uuid())`).Scan(&first.xid, &first.epoch))
	require.Equal(t, "committed", s.ask(first))
	require.Equal(t, "committed", s.ask(committed))
	require.Equal(t, "aborted", s.ask(aborted))
	later := s.end("COMMIT")
	require.NotEqual(t, committed.epoch, later.epoch)
	require.Equal(t, "committed", s.ask(later))
	require.Equal(t, "aborted", s.ask(aborted), "also when the new epoch is drawn")
	require.Empty(t, s.ask(ended{later.xid, committed.epoch}), "the run before did not give this id")

	server.Restart()
	s = on(t, server)
	require.Equal(t, "committed", s.ask(later))
	require.Empty(t, s.ask(committed), "one run before is remembered")
	require.Empty(t, s.ask(aborted))
}

func TestACrashMakesOutcomesUnknown(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	s := on(t, server)
	before := s.end("COMMIT")
	server.Kill()
	server.Restart()

	s = on(t, server)
	require.Empty(t, s.ask(before))
	later := s.end("COMMIT")
	require.Empty(t, s.ask(before))
	require.Equal(t, "committed", s.ask(later))

	server.Restart()
	s = on(t, server)
	require.Empty(t, s.ask(before))
	require.Equal(t, "committed", s.ask(later))
}

func number(t *testing.T, xid string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(xid, 10, 64)
	require.NoError(t, err)
	return n
}

// The ids from before the copy are the same transactions on both; those that came later are not.
func TestACopyAndItsOriginalKnowNothingOfEachOther(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	s := on(t, server)
	committed, aborted := s.end("COMMIT"), s.end("ROLLBACK")
	twin := server.Copy()
	twin.Restart()
	sides := []*session{on(t, server), on(t, twin)}

	for round, ways := range [][2]string{{"COMMIT", "ROLLBACK"}, {"ROLLBACK", "COMMIT"}} {
		later := []ended{sides[0].end(ways[0]), sides[1].end(ways[1])}
		for later[0].xid != later[1].xid { // a server has taken one for itself, as autovacuum does
			behind := 0
			if number(t, later[1].xid) < number(t, later[0].xid) {
				behind = 1
			}
			later[behind] = sides[behind].end(ways[behind])
		}
		for i, side := range sides {
			require.Equal(t, map[string]string{"COMMIT": "committed", "ROLLBACK": "aborted"}[ways[i]], side.ask(later[i]))
			require.Empty(t, side.ask(later[1-i]), "round %d", round)
			require.Equal(t, "committed", side.ask(committed))
			require.Equal(t, "aborted", side.ask(aborted))
		}
	}

	first := []ended{sides[0].end("COMMIT"), sides[1].end("ROLLBACK")}
	server.Restart()
	twin.Restart()
	for i, side := range []*session{on(t, server), on(t, twin)} {
		require.Empty(t, side.ask(first[1-i]), "after another restart")
		require.NotEmpty(t, side.ask(first[i]))
	}
}

func TestAStandbyThatIsPromotedKnowsNoOutcome(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	before := on(t, server).end("COMMIT")
	standby := server.Standby()
	standby.Restart()
	s := connect(t, standby.URL())
	require.Empty(t, s.ask(before), "a standby is not asked, but must not lie")
	s.exec(`SELECT pg_promote()`)

	require.Empty(t, s.ask(before))
	require.Equal(t, "committed", s.ask(s.end("COMMIT")))
	require.Empty(t, s.ask(before))
}

// A dump takes the sequences along. Where it comes from the same run of the same server, what they
// say is true; anywhere else it is not, whether or not the connection may write.
func TestARestoredDumpAnswersNothingFalse(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	s := on(t, server)
	former := s.end("COMMIT")
	server.Restart()
	s = on(t, server)
	last := s.end("COMMIT")
	require.Equal(t, "committed", s.ask(former), "so it is noted")
	const sequences = `SELECT string_agg(format('SELECT setval(%L, %s, true)', 'fencedb.' || s, pg_sequence_last_value(format('fencedb.%I', s)::regclass)), '; ') FROM unnest(ARRAY['server_epoch', 'former_epoch', 'former_end', 'unbroken_since']) s`
	dump := s.one(sequences) // as pg_dump has them
	restore := func(url string) *session {
		require.NoError(t, migrations.Up(t.Context(), open(t, url)))
		copied := connect(t, url)
		copied.exec(dump)
		return copied
	}

	far := restore(testenv.PostgresURL(t)) // the shared server, which has another system identifier
	for _, readOnly := range []string{"on", "off"} {
		far.exec(`SET default_transaction_read_only = ` + readOnly)
		for _, e := range []ended{former, last} {
			require.Empty(t, far.ask(e), "read only: %s", readOnly)
		}
	}
	require.Equal(t, "committed", far.ask(far.end("COMMIT")))
	require.Empty(t, far.ask(former))

	urls := map[string]string{}
	for _, database := range []string{"copy", "later"} { // both now, because this makes a checkpoint
		s.exec(`CREATE DATABASE ` + database + ` TEMPLATE template0`)
		u, err := url.Parse(server.URL())
		require.NoError(t, err)
		u.Path = "/" + database
		urls[database] = u.String()
	}
	near := restore(urls["copy"])
	require.Equal(t, "committed", near.ask(last), "the same server in the same run")

	server.Kill() // what was lost then may have been given again
	server.Restart()
	require.Empty(t, on(t, server).ask(last))
	server.Restart()
	near = restore(urls["later"])
	for _, readOnly := range []string{"on", "off"} {
		near.exec(`SET default_transaction_read_only = ` + readOnly)
		for _, e := range []ended{former, last} {
			require.Empty(t, near.ask(e), "read only: %s", readOnly)
		}
	}
}

// The first transactions after a start, all at once: were there two epochs, the outcome of those
// with the one that was overwritten could not be asked for.
func TestFirstTransactionsAtOnceDrawOneEpoch(t *testing.T) {
	t.Parallel()
	s := newSession(t)
	others := make([]*session, 8)
	for n := range others {
		others[n] = s.beside()
	}
	for range 20 {
		s.exec(`SELECT setval('fencedb.server_epoch', 1, false)`) // as a crash leaves it
		epochs := make([]int64, len(others))
		var entering errgroup.Group
		for n, other := range others {
			entering.Go(func() error {
				return other.conn.QueryRow(t.Context(), `SELECT epoch FROM fencedb.enter($1, 1, gen_random_uuid())`, uuid.NewString()).Scan(&epochs[n])
			})
		}
		require.NoError(t, entering.Wait())
		require.Len(t, slices.Compact(epochs), 1)
	}
	require.Equal(t, "0", s.one(`(SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.locktype = 'advisory')`))
}

// History states nothing of the time before: what was committed then may be lost.
func TestWhatIsHereIsUnbrokenUntilAServerMayHaveLostCommits(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t)
	s := on(t, server)
	since := func(s *session) string {
		s.end("COMMIT")
		return s.one(`SELECT pg_sequence_last_value('fencedb.unbroken_since')`)
	}
	first := since(s)
	require.Equal(t, first, since(s))

	server.Restart()
	require.Equal(t, first, since(on(t, server)), "it was stopped cleanly")
	server.Restart()
	require.Equal(t, first, since(on(t, server)), "and again")

	standby := server.Standby()
	standby.Restart()
	promoted := connect(t, standby.URL())
	promoted.exec(`SELECT pg_promote()`)
	require.Greater(t, since(promoted), first, "what had not arrived is lost")

	server.Kill()
	server.Restart()
	crashed := since(on(t, server))
	require.Greater(t, crashed, first)
	server.Restart()
	require.Equal(t, crashed, since(on(t, server)))
}
