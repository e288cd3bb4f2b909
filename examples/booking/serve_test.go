package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestOneOfFiftyGuestsGetsTheTable(t *testing.T) {
	t.Parallel()
	const guests = 50
	w := newWorld(t)
	w.settings.Wait = 10 * time.Second // in which each of them hears who holds, on a busy machine too
	card := newHeldCard()
	s := w.start(card.check)
	answers := make(chan answer, guests)
	for n := range guests {
		go func() { answers <- s.book(fmt.Sprintf("guest %d", n), "") }()
	}

	for range guests - 1 { // while one waits for the bank
		a := <-answers
		require.Equal(t, http.StatusConflict, a.status, a)
		require.Equal(t, "urn:problem-type:booking:busy", a.Type)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	}
	close(card.good)
	require.Equal(t, http.StatusCreated, (<-answers).status)

	again := s.book("another guest", "")
	require.Equal(t, http.StatusConflict, again.status)
	require.Equal(t, "urn:problem-type:booking:taken", again.Type)
	require.Empty(t, again.header.Get("Retry-After"))
	require.Len(t, w.guests(), 1)
}

func TestFiftyGuestsWhoCanWaitFindTheTableTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settings.Wait = time.Minute
	s := w.start(goodCard)

	kinds := map[string]int{}
	for _, a := range concurrently(50, func(n int) answer { return s.book(fmt.Sprintf("guest %d", n), "") }) {
		kinds[fmt.Sprint(a.status, a.Type)]++
	}

	require.Equal(t, map[string]int{"201": 1, "409urn:problem-type:booking:taken": 49}, kinds)
	require.Len(t, w.guests(), 1)
}

func TestARequestThatIsSentTwentyTimesIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.settings.Wait = time.Minute
	one, two := w.start(goodCard), w.start(goodCard)

	answers := concurrently(20, func(n int) answer { return []*service{one, two}[n%2].book("Ann", "0b6f") })

	for _, a := range answers {
		require.Equal(t, http.StatusCreated, a.status, a)
		require.Equal(t, answers[0].body, a.body)
		require.Equal(t, answers[0].header.Get("Location"), a.header.Get("Location"))
	}
	require.Equal(t, []string{"Ann"}, w.guests())

	another := one.book("Bob", "0b6f")
	require.Equal(t, http.StatusUnprocessableEntity, another.status)
	require.Equal(t, "urn:problem-type:booking:key-reused", another.Type)
	require.Equal(t, []string{"Ann"}, w.guests())
}

func TestWhatIsCancelledCanBeBookedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(goodCard)
	booked := s.book("Ann", "")
	require.Equal(t, http.StatusConflict, s.book("Bob", "").status)
	require.Equal(t, http.StatusOK, s.send(http.MethodGet, booked.header.Get("Location"), "", "").status)

	require.Equal(t, http.StatusNoContent, s.send(http.MethodDelete, booked.header.Get("Location"), "", "").status)

	require.Equal(t, http.StatusNotFound, s.send(http.MethodDelete, booked.header.Get("Location"), "", "").status)
	require.Equal(t, http.StatusCreated, s.book("Bob", "").status)
	require.Equal(t, []string{"Bob"}, w.guests())
}

func TestWhatIsNoTableAndNoIDIsRefused(t *testing.T) {
	t.Parallel()
	s := newWorld(t).start(goodCard)
	for _, table := range []string{"x", "0", "1000", "9999999999999999999999"} {
		require.Equal(t, http.StatusBadRequest, s.send(http.MethodPost, "/tables/"+table+"/bookings", "", body("Ann")).status, table)
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		require.Equal(t, http.StatusNotFound, s.send(method, "/bookings/12", "", "").status)
	}
}

func TestALateRequestOverwritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	card := newHeldCard()
	slow, quick := w.start(card.check), w.start(goodCard)
	late := make(chan answer, 1)
	go func() { late <- slow.book("Ann", "") }()
	<-card.asked
	w.redis().Del(t.Context(), w.ownerKey()) // its lease is over

	require.Equal(t, http.StatusCreated, quick.book("Bob", "").status)
	close(card.good)

	a := <-late
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, "urn:problem-type:booking:busy", a.Type)
	require.Equal(t, []string{"Bob"}, w.guests())
	require.Regexp(t, `msg="write refused".* request_id=`+a.header.Get("X-Request-Id")+`\n`, slow.log)
}

func TestMetricsCountLeasesAndWritesByOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(goodCard)
	require.Equal(t, http.StatusCreated, s.book("Ann", "").status)

	response, err := http.Get(s.url + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), `redis_lease_acquire_total{outcome="granted",resource_type="table"} 1`+"\n")
	require.Contains(t, string(text), `fencedb_writes_total{outcome="committed",resource_type="table"} 1`+"\n", "the seal of the lease is no write")
}

func TestReadinessFollowsRedis(t *testing.T) {
	t.Parallel()
	own := testenv.OwnRedis(t)
	w := newWorld(t)
	w.settings.Redis.Addr = own.Addr()
	s := w.start(goodCard)
	s.untilReady(http.StatusOK)
	bob := s.send(http.MethodPost, "/tables/13/bookings", "", body("Bob"))

	own.Kill()
	s.untilReady(http.StatusServiceUnavailable)
	refused := s.book("Ann", "")
	require.Equal(t, http.StatusServiceUnavailable, refused.status)
	require.Equal(t, "urn:problem-type:booking:unavailable", refused.Type)
	require.NotEmpty(t, refused.header.Get("Retry-After"))
	require.Equal(t, http.StatusNoContent, s.send(http.MethodGet, "/healthz", "", "").status, "alive all the same")
	require.Equal(t, http.StatusOK, s.send(http.MethodGet, bob.header.Get("Location"), "", "").status, "reading needs no lease")

	own.Restart()
	s.untilReady(http.StatusOK)
	require.Equal(t, http.StatusCreated, s.book("Ann", "").status)
}

func TestReadinessFollowsPostgres(t *testing.T) {
	t.Parallel()
	own := testenv.OwnPostgres(t, "synchronous_commit=on") // it is crashed
	w := newWorldOn(t, own.URL())
	s := w.start(goodCard)
	s.untilReady(http.StatusOK)

	own.Kill()
	s.untilReady(http.StatusServiceUnavailable)
	refused := s.book("Ann", "")
	require.Equal(t, http.StatusServiceUnavailable, refused.status)
	require.NotEmpty(t, refused.header.Get("Retry-After"))

	own.Restart()
	s.untilReady(http.StatusOK)
	require.Equal(t, http.StatusCreated, s.book("Ann", "").status)
}

func TestNotReadyUntilMigrated(t *testing.T) {
	t.Parallel()
	w := unmigrated(t, testenv.PostgresURL(t))
	s := w.start(goodCard)
	s.untilReady(http.StatusServiceUnavailable)

	w.migrate()

	s.untilReady(http.StatusOK)
}

func TestShutdownLetsRunningRequestsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	card := newHeldCard()
	s := w.start(card.check)
	running := make(chan answer, 1)
	go func() { running <- s.book("Ann", "") }()
	<-card.asked

	s.stop()
	s.untilClosed()
	close(card.good)

	require.Equal(t, http.StatusCreated, (<-running).status)
	require.NoError(t, <-s.ended)
	require.Zero(t, w.redis().Exists(t.Context(), w.ownerKey()).Val(), "the lease was given back")
	require.Equal(t, []string{"Ann"}, w.guests())
}

func TestAGuestWhoHangsUpGivesTheTableFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, hangUp := context.WithCancel(t.Context())
	s := w.start(func(ctx context.Context, _ string) error {
		hangUp()
		<-ctx.Done()
		return ctx.Err()
	})
	w.settings.Wait = time.Minute
	other := w.start(goodCard)

	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/tables/12/bookings", strings.NewReader(body("Ann")))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	_, err = http.DefaultClient.Do(request)
	require.ErrorIs(t, err, context.Canceled)

	require.Equal(t, http.StatusCreated, other.book("Bob", "").status)
}

func TestRunFailsWhereItCannotListen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	w.settings.Addr = taken.Addr().String()
	err = serve(t.Context(), w.settings, goodCard, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, addrVar)
}

func goodCard(context.Context, string) error { return nil }

// heldCard is a bank that takes its time, and does not look at its context, as many a client
// library does not.
type heldCard struct{ asked, good chan struct{} }

func newHeldCard() heldCard { return heldCard{make(chan struct{}), make(chan struct{})} }

func (c heldCard) check(context.Context, string) error {
	close(c.asked)
	<-c.good
	return nil
}

// world is a database and a namespace, for any number of services.
type world struct {
	*testing.T
	settings settings
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, testenv.PostgresURL(t))
}

func newWorldOn(t *testing.T, postgres string) *world {
	t.Helper()
	w := unmigrated(t, postgres)
	w.migrate()
	return w
}

func unmigrated(t *testing.T, postgres string) *world {
	t.Helper()
	environment := map[string]string{
		addrVar:      "127.0.0.1:0",
		postgresVar:  postgres,
		redisVar:     "redis://" + testenv.Redis(t).Options().Addr + "/0",
		namespaceVar: testenv.Namespace(t),
	}
	settings, err := settingsFrom(func(name string) string { return environment[name] })
	require.NoError(t, err)
	return &world{t, settings}
}

func (w *world) migrate() {
	w.Helper()
	db := stdlib.OpenDB(*w.settings.Postgres.ConnConfig)
	require.NoError(w, errors.Join(booking.Migrate(w.Context(), db), db.Close()))
}

func (w *world) ownerKey() string { return "lease:v1:{" + w.settings.Namespace + "/table:12}:owner" }

func (w *world) redis() *redis.Client {
	client := redis.NewClient(w.settings.Redis)
	w.Cleanup(func() { _ = client.Close() })
	return client
}

// guests are those who have table 12.
func (w *world) guests() (names []string) {
	w.Helper()
	pool, err := pgxpool.NewWithConfig(w.Context(), w.settings.Postgres.Copy())
	require.NoError(w, err)
	defer pool.Close()
	require.NoError(w, pool.QueryRow(w.Context(), `SELECT array_agg(guest) FROM bookings WHERE table_id = 12`).Scan(&names))
	return names
}

// service is one that runs.
type service struct {
	*testing.T
	url   string
	log   *logged
	stop  context.CancelFunc
	ended chan error
}

func (w *world) start(card booking.CardCheck) *service {
	w.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &service{w.T, "", &logged{}, stop, make(chan error, 1)}
	settings := w.settings
	settings.Postgres = settings.Postgres.Copy()
	go func() {
		s.ended <- serve(ctx, settings, card, slog.New(slog.NewTextHandler(s.log, nil)))
		close(s.ended)
	}()
	w.Cleanup(func() {
		stop()
		for range s.ended { // until it has let go of the database
		}
		if w.Failed() {
			w.Log(s.log)
		}
	})
	s.url = s.log.url(w.T)
	return s
}

// logged is a buffer for several goroutines.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// url is where the service listens, as it says.
func (l *logged) url(t *testing.T) string {
	t.Helper()
	said := regexp.MustCompile(`listening url=(\S+)`)
	require.Eventually(t, func() bool { return said.MatchString(l.String()) }, time.Minute, 10*time.Millisecond, l)
	return said.FindStringSubmatch(l.String())[1]
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	Type   string // of a problem
}

func body(guest string) string {
	return fmt.Sprintf(`{"slot":"2030-06-01T19:00:00Z","guest":%q,"party":4}`, guest)
}

func (s *service) book(guest, key string) answer {
	return s.send(http.MethodPost, "/tables/12/bookings", key, body(guest))
}

// send may be called from any goroutine: what goes wrong is in the answer, without a status.
func (s *service) send(method, path, key, body string) (a answer) {
	request, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer response.Body.Close()
	var text json.RawMessage
	_ = json.NewDecoder(response.Body).Decode(&text) // there may be none
	a = answer{status: response.StatusCode, header: response.Header, body: string(text)}
	_ = json.Unmarshal(text, &a) // it may be no problem
	return a
}

// untilReady waits until /readyz answers with a status.
func (s *service) untilReady(status int) {
	s.Helper()
	require.Eventually(s, func() bool { return s.send(http.MethodGet, "/readyz", "", "").status == status },
		time.Minute, 50*time.Millisecond)
}

// untilClosed waits until nobody listens any more.
func (s *service) untilClosed() {
	s.Helper()
	require.Eventually(s, func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, time.Minute, 10*time.Millisecond)
}

func concurrently(n int, f func(n int) answer) []answer {
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i] = f(i) })
	}
	all.Wait()
	return answers
}
