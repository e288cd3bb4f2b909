package grant_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/fencedbtest"
	"github.com/fencedb/fencedb/grant"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// world is two services. A holds the leases. B books seats for it, in a database that is protected.
type world struct {
	*testing.T
	pool   *pgxpool.Pool
	a      *fencedbtest.Issuer
	client *http.Client // of A

	working chan struct{} // B tells that it has accepted a grant, if that is not nil
	goOn    chan struct{} // and waits
}

func newWorld(t *testing.T, cfg lease.Config) *world {
	t.Helper()
	w := &world{T: t, pool: testenv.Postgres(t), a: fencedbtest.IssuerOn(t, testenv.Redis(t), cfg)}
	w.client = &http.Client{Transport: grant.Transport(&http.Transport{DisableKeepAlives: true})}
	for _, sql := range []string{
		`CREATE TABLE seats (table_id int NOT NULL, guest text)`,
		`SELECT fencedb.protect('seats', resource => 'table:{table_id}')`,
	} {
		_, err := w.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return w
}

// b starts service B with what it believes.
func (w *world) b(trust grant.Trust) (url string) {
	server := httptest.NewServer(grant.Handler(http.HandlerFunc(w.seat), trust))
	w.Cleanup(server.Close)
	return server.URL
}

// seat books under the grant of the caller.
func (w *world) seat(rw http.ResponseWriter, r *http.Request) {
	g, _ := grant.FromContext(r.Context())
	if w.working != nil {
		w.working <- struct{}{}
		<-w.goOn
	}
	err := fencedb.Tx(r.Context(), w.pool, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), `INSERT INTO seats VALUES (12, 'ann')`)
		return err
	})
	switch {
	case lease.IsLost(err):
		http.Error(rw, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(rw, err.Error(), http.StatusInternalServerError)
	}
}

// call is A's request to B.
func (w *world) call(ctx context.Context, url string) (status int, body string) {
	w.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	require.NoError(w, err)
	answer := send(w.client, r)
	require.NoError(w, answer.err)
	return answer.status, answer.body
}

type reply struct {
	status int
	body   string
	err    error
}

func send(client *http.Client, r *http.Request) reply {
	answer, err := client.Do(r)
	if err != nil {
		return reply{err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return reply{answer.StatusCode, string(text), err}
}

func (w *world) hold() *lease.Lease {
	w.Helper()
	l, err := w.a.Acquire(w.Context(), "table:12")
	require.NoError(w, err)
	return l
}

func (w *world) seats() (n int) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), `SELECT count(*) FROM seats`).Scan(&n))
	return n
}

// What becomes of A while B works for it, or before B has begun.
func TestAnotherServiceWritesUnderTheLeaseOfItsCallerAsLongAsThatMayItself(t *testing.T) {
	t.Parallel()
	overtake := func(w *world, _ *lease.Lease) { fencedbtest.Overtake(w, w.a, w.pool, "table:12") }
	for name, tc := range map[string]struct {
		fate               func(*world, *lease.Lease)
		before, meanwhile  int // status, if it happens before B verifies and after that
		trustedBefore      int // before B begins, if B believes all
		trustedBeforeWrote int
		wrote              int // meanwhile
	}{
		"goes on": {func(*world, *lease.Lease) {}, 200, 200, 200, 1, 1},
		"renews":  {func(w *world, l *lease.Lease) { require.NoError(w, l.Extend(w.Context())) }, 200, 200, 200, 1, 1},
		// Nobody has come, so a late write can hurt nobody.
		"releases":                     {func(w *world, l *lease.Lease) { require.NoError(w, l.Release(w.Context())) }, 409, 200, 200, 1, 1},
		"was stopped, nobody has come": {func(w *world, _ *lease.Lease) { fencedbtest.Expire(w, w.a, "table:12") }, 409, 200, 200, 1, 1},
		"was stopped and overtaken": {func(w *world, l *lease.Lease) {
			fencedbtest.Expire(w, w.a, "table:12")
			next, err := w.a.Acquire(w.Context(), "table:12")
			require.NoError(w, err)
			require.NoError(w, fencedb.Seal(w.Context(), w.pool, next))
		}, 409, 409, 409, 0, 0},
		"is revoked, which is sealed": {overtake, 409, 409, 409, 0, 0},
	} {
		for _, verified := range []bool{true, false} {
			for _, meanwhile := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/verified=%v/meanwhile=%v", name, verified, meanwhile), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, lease.Config{TTL: time.Minute})
					l := w.hold()
					trust, want, wrote := grant.Trusted(time.Minute), tc.trustedBefore, tc.trustedBeforeWrote
					if verified {
						trust, want, wrote = grant.Verified(w.a.Issuer), tc.before, 0
						if want == http.StatusOK {
							wrote = 1
						}
					}
					line, err := grant.Encode(l) // A has sent it before its fate
					require.NoError(t, err)
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.b(trust), nil)
					require.NoError(t, err)
					r.Header.Set(grant.Header, line)
					answered := make(chan reply, 1)
					if meanwhile {
						want, wrote = tc.meanwhile, tc.wrote
						w.working, w.goOn = make(chan struct{}), make(chan struct{})
						go func() { answered <- send(http.DefaultClient, r) }()
						<-w.working
						tc.fate(w, l)
						close(w.goOn)
					} else {
						tc.fate(w, l)
						answered <- send(http.DefaultClient, r)
					}

					answer := <-answered

					require.NoError(t, answer.err)
					require.Equal(t, want, answer.status, answer.body)
					require.Equal(t, wrote, w.seats())
					require.NotContains(t, answer.body, l.LeaseID().String())
				})
			}
		}
	}
}

// docs/patterns.md shows it.
func TestTheTokenOfTheCallerIsInTheRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lease.Config{TTL: time.Minute})
	desk, url, ctx := guard.New(w.a.Issuer, w.pool), w.b(grant.Verified(w.a.Issuer)), t.Context()

	client := &http.Client{Transport: grant.Transport(nil)}
	err := desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
		r, err := http.NewRequestWithContext(grant.NewContext(ctx, h.Grant()), http.MethodPost, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		return grant.Check(response) // a 409 is no error of http.Client
	})

	require.NoError(t, err)
	var token, sealed int64
	require.NoError(t, w.pool.QueryRow(ctx, `SELECT last_fencing_token, fencedb.last_token('table:12') FROM seats`).Scan(&token, &sealed))
	require.Equal(t, sealed, token)
}

func TestALineThatWasMadeUpShutsNobodyOutWhoIsVerified(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lease.Config{TTL: time.Minute})
	l := w.hold()
	url := w.b(grant.Verified(w.a.Issuer))
	for name, g := range map[string]fencedb.Grant{
		"a token that is ahead":     fencedb.NewGrant("table:12", time.Now().Add(time.Hour).UnixMicro(), uuid.New(), fencedb.NoEnd),
		"that of the right lease":   fencedb.NewGrant("table:12", l.Token()+1, l.LeaseID(), fencedb.NoEnd),
		"a lease id of one's own":   fencedb.NewGrant("table:12", l.Token(), uuid.New(), fencedb.NoEnd),
		"a resource without holder": fencedb.NewGrant("table:13", l.Token(), l.LeaseID(), fencedb.NoEnd),
		"beside a right one":        fencedb.All[fencedb.Grant](l, fencedb.NewGrant("table:13", 1, uuid.New(), fencedb.NoEnd)),
	} {
		status, body := w.call(grant.NewContext(t.Context(), g), url)
		require.Equal(t, http.StatusConflict, status, "%s: %s", name, body)
	}
	require.Zero(t, w.seats())

	status, body := w.call(grant.NewContext(t.Context(), l), url)
	require.Equal(t, http.StatusOK, status, body)
}

// The end of the grant that B gets, as seen in B.
func (w *world) endIn(ctx context.Context, trust grant.Trust) (end time.Time, all []fencedb.Grant) {
	w.Helper()
	server := httptest.NewServer(grant.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		end, _ = r.Context().Deadline()
		g, _ := grant.FromContext(r.Context())
		if set, ok := g.(interface{ Grants() []fencedb.Grant }); ok {
			all = set.Grants()
		}
	}), trust))
	defer server.Close()
	status, body := w.call(ctx, server.URL)
	require.Equal(w, http.StatusOK, status, body)
	return end, all
}

func TestWhatIsBelievedIsNoLongerThanRedisSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	l := w.hold()
	forged := grant.NewContext(t.Context(), fencedb.NewGrant("table:12", l.Token(), l.LeaseID(), fencedb.NoEnd))

	end, _ := w.endIn(forged, grant.Verified(w.a.Issuer))
	require.WithinDuration(t, time.Now().Add(time.Minute), end, 30*time.Second)

	end, _ = w.endIn(forged, grant.Trusted(20*time.Second))
	require.False(t, end.After(time.Now().Add(20*time.Second)))
}

func TestSeveralGrantsEndWithTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lease.Config{TTL: time.Minute})
	both, err := w.a.AcquireAll(t.Context(), []string{"table:12", "table:13"})
	require.NoError(t, err)
	end, all := w.endIn(grant.NewContext(t.Context(), fencedb.All(both...)), grant.Verified(w.a.Issuer))
	require.Len(t, all, 2)
	require.False(t, end.After(time.Now().Add(time.Minute)))

	soon := time.Now().Add(10 * time.Second)
	end, _ = w.endIn(grant.NewContext(t.Context(), fencedb.All(
		until(time.Now().Add(time.Hour)), fencedb.NewGrant("table:13", 1, uuid.New(), soon))), grant.Trusted(time.Hour))
	require.False(t, end.After(soon))
}

func TestTheContextOfTheReceiverEndsWithTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line, err := grant.Encode(until(time.Now().Add(200 * time.Millisecond)))
		require.NoError(t, err)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header.Set(grant.Header, line)
		var over error

		grant.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			over = context.Cause(r.Context())
		}), grant.Trusted(time.Hour)).ServeHTTP(httptest.NewRecorder(), r)

		require.ErrorIs(t, over, fencedb.ErrLeaseOver)
		require.ErrorContains(t, over, "has run out; its lease stands if it was renewed: send the call again, with a new line")
	})
}

func TestTheContextOfTheReceiverEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	ctx, goAway := context.WithCancel(t.Context())
	defer goAway()
	ended := make(chan error, 1)
	server := httptest.NewServer(grant.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		goAway()
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}), grant.Trusted(time.Hour)))
	defer server.Close()
	client := &http.Client{Transport: grant.Transport(nil)}
	ctx = grant.NewContext(ctx, until(time.Now().Add(time.Minute)))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	require.NoError(t, err)

	if answer, err := client.Do(r); err == nil {
		require.NoError(t, answer.Body.Close())
	}

	require.ErrorIs(t, <-ended, context.Canceled)
}

// A sealed lease has entered before: both transactions share its fence. Without that, B waits for
// the transaction in which A waits for B.
func TestBothHaveATransactionOpen(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string]bool{"sealed": true, "not sealed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, lease.Config{TTL: time.Minute})
			l, trusted := w.hold(), 300*time.Millisecond // that B waits in vain
			if sealed {
				trusted = time.Minute
				require.NoError(t, fencedb.Seal(t.Context(), w.pool, l))
			}
			url := w.b(grant.Trusted(trusted))
			var status int
			var body string

			err := fencedb.Tx(t.Context(), w.pool, l, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `INSERT INTO seats VALUES (12, 'bob')`)
				status, body = w.call(grant.NewContext(t.Context(), l), url)
				return err
			})

			require.NoError(t, err, "A commits")
			want, seats := http.StatusConflict, 1
			if sealed {
				want, seats = http.StatusOK, 2
			}
			require.Equal(t, want, status, body)
			require.Equal(t, seats, w.seats())
		})
	}
}

// sender is a RoundTripper that keeps what it was to send.
type sender struct {
	lines []string
	err   error
}

func (s *sender) RoundTrip(r *http.Request) (*http.Response, error) {
	s.lines = append(s.lines, r.Header.Get(grant.Header))
	return httptest.NewRecorder().Result(), s.err
}

// renewed is a lease whose end moves.
type renewed struct {
	fencedb.Grant
	end *time.Time
}

func (r renewed) ValidUntil() time.Time { return *r.end }

func TestEachAttemptHasALineOfItsOwn(t *testing.T) {
	t.Parallel()
	wire := &sender{err: errors.New("no answer")}
	transport := grant.Transport(wire)
	end := time.Now().Add(time.Minute)
	r, err := http.NewRequestWithContext(grant.NewContext(t.Context(), renewed{until(end), &end}), http.MethodGet, "http://b", nil)
	require.NoError(t, err)

	for range 2 {
		_, err := transport.RoundTrip(r) //nolint:bodyclose // there is none
		require.ErrorIs(t, err, wire.err)
		end = end.Add(time.Hour)
	}

	require.Len(t, wire.lines, 2)
	first, err := grant.Decode(wire.lines[0], 24*time.Hour)
	require.NoError(t, err)
	second, err := grant.Decode(wire.lines[1], 24*time.Hour)
	require.NoError(t, err)
	require.Greater(t, validUntil(t, second), validUntil(t, first).Add(30*time.Minute))
	require.Empty(t, r.Header, "the request of the caller is as it was")
}

// closing is a body that tells whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

func TestARequestWhoseGrantIsOverIsNotSent(t *testing.T) {
	t.Parallel()
	wire, body := &sender{}, &closing{Reader: strings.NewReader("a guest")}
	r, err := http.NewRequestWithContext(grant.NewContext(t.Context(), until(time.Now())), http.MethodPost, "http://b", body)
	require.NoError(t, err)

	_, err = grant.Transport(wire).RoundTrip(r) //nolint:bodyclose // there is none

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
	require.Empty(t, wire.lines)
	require.True(t, body.closed)
}

func TestARedirectElsewhereGetsNoGrant(t *testing.T) {
	t.Parallel()
	var got []string
	keep := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get(grant.Header))
	})
	elsewhere := httptest.NewServer(keep)
	defer elsewhere.Close()
	mux := http.NewServeMux()
	mux.Handle("/here", keep)
	mux.Handle("/to/here", http.RedirectHandler("/here", http.StatusTemporaryRedirect))
	mux.Handle("/to/elsewhere", http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	mux.Handle("/to/to/elsewhere", http.RedirectHandler("/to/elsewhere", http.StatusTemporaryRedirect))
	server := httptest.NewServer(mux)
	defer server.Close()
	client := &http.Client{Transport: grant.Transport(nil)}
	ctx := grant.NewContext(t.Context(), until(time.Now().Add(time.Minute)))
	for path, arrives := range map[string]bool{"/here": true, "/to/here": true, "/to/elsewhere": false, "/to/to/elsewhere": false} {
		got = nil
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		answer, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Len(t, got, 1, path)
		require.Equal(t, arrives, got[0] != "", path)
	}
}

// withoutRequest is a RoundTripper that answers all as a server that sends everybody elsewhere, and
// does not say to what.
type withoutRequest struct{ sender }

func (w *withoutRequest) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = w.sender.RoundTrip(r)
	answer := httptest.NewRecorder()
	if r.URL.Host == "b" {
		http.Redirect(answer, r, "http://elsewhere/", http.StatusTemporaryRedirect)
	}
	return answer.Result(), nil
}

func TestARedirectFromNobodyKnowsWhereGetsNoGrant(t *testing.T) {
	t.Parallel()
	wire := new(withoutRequest)
	r, err := http.NewRequestWithContext(grant.NewContext(t.Context(), until(time.Now().Add(time.Minute))), http.MethodGet, "http://b/", nil)
	require.NoError(t, err)

	require.NoError(t, send(&http.Client{Transport: grant.Transport(wire)}, r).err)

	require.Len(t, wire.lines, 2)
	require.NotEmpty(t, wire.lines[0])
	require.Empty(t, wire.lines[1])
}

// late is a hook that keeps every answer of Redis back.
type late time.Duration

func (late) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer time.Sleep(time.Duration(l))
		return next(ctx, cmd)
	}
}

func (l late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer time.Sleep(time.Duration(l))
		return next(ctx, cmds)
	}
}

// Redis answers when nothing of the grant is left.
func TestAGrantThatEndsWhileRedisIsAskedIsOver(t *testing.T) {
	t.Parallel()
	options := *testenv.Redis(t).Options()
	slow := redis.NewClient(&options)
	t.Cleanup(func() { _ = slow.Close() })
	slow.AddHook(late(300 * time.Millisecond))
	sender := fencedbtest.IssuerOn(t, testenv.Redis(t), lease.Config{})
	issuer, err := lease.New(slow, sender.Config)
	require.NoError(t, err)
	l, err := sender.Acquire(t.Context(), "table:12")
	require.NoError(t, err)
	line, err := grant.Encode(fencedb.NewGrant("table:12", l.Token(), l.LeaseID(), time.Now().Add(200*time.Millisecond)))
	require.NoError(t, err)

	_, _, err = grant.Verified(issuer).Accept(t.Context(), line)

	require.ErrorIs(t, err, fencedb.ErrLeaseOver)
}

func TestWhatAHandlerDoesWithALine(t *testing.T) {
	t.Parallel()
	nowhere, err := lease.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), lease.Config{TTL: time.Minute})
	require.NoError(t, err)
	good := line(time.Minute, 0)
	for name, tc := range map[string]struct {
		trust  grant.Trust
		lines  []string
		status int
	}{
		"believed":              {grant.Trusted(time.Hour), []string{good}, http.StatusOK},
		"several header fields": {grant.Trusted(time.Hour), []string{good, strings.Replace(good, ":12", ":13", 1)}, http.StatusOK},
		"none":                  {grant.Trusted(time.Hour), nil, http.StatusOK},
		"none, and no trust":    {grant.Trust{}, nil, http.StatusOK},
		"malformed":             {grant.Trusted(time.Hour), []string{"secret " + good}, http.StatusBadRequest},
		"over":                  {grant.Trusted(time.Hour), []string{line(time.Minute, time.Hour)}, http.StatusConflict},
		"no trust":              {grant.Trust{}, []string{good}, http.StatusInternalServerError},
		"trust in nobody":       {grant.Verified(nil), []string{good}, http.StatusInternalServerError},
		"trust for no time":     {grant.Trusted(0), []string{good}, http.StatusInternalServerError},
		"trust for less":        {grant.Trusted(-time.Minute), []string{good}, http.StatusInternalServerError},
		"Redis is away":         {grant.Verified(nowhere), []string{good}, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			for _, line := range tc.lines {
				r.Header.Add(grant.Header, line)
			}
			reached := false
			w := httptest.NewRecorder()
			grant.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				reached = true
				g, ok := grant.FromContext(r.Context())
				require.Equal(t, len(tc.lines) > 0, ok)
				require.Equal(t, ok, g != nil)
				require.Empty(t, r.Header.Get(grant.Header), "nobody can log it")
			}), tc.trust).ServeHTTP(w, r)

			require.Equal(t, tc.status, w.Code, w.Body)
			require.Equal(t, tc.status == http.StatusOK, reached)
			for _, detail := range []string{leaseID.String()[:8], "secret", "table", "127.0.0.1", "refused", "version", "word"} {
				require.NotContains(t, w.Body.String(), detail)
			}
			require.Equal(t, !reached, w.Body.Len() > 0)
			require.Len(t, r.Header.Values(grant.Header), len(tc.lines), "the request of the server is as it was")
		})
	}
}

// Net/http removes the files of its own request only, and a handler gets another.
func TestTheFilesOfAnUploadAreRemoved(t *testing.T) {
	parse := func(next http.Handler, panics bool) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := r.ParseMultipartForm(1); err != nil {
				t.Error(err)
			}
			if panics {
				panic(http.ErrAbortHandler)
			}
			if next != nil {
				next.ServeHTTP(w, r)
			}
			if f, err := r.MultipartForm.File["plan"][0].Open(); err != nil { // until its reader returns
				t.Error(err)
			} else if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, h := range map[string]http.Handler{
		"behind":     grant.Handler(parse(nil, false), grant.Trusted(time.Minute)),
		"in front":   parse(grant.Handler(nothing, grant.Trusted(time.Minute)), false),
		"both":       parse(grant.Handler(parse(nil, false), grant.Trusted(time.Minute)), false),
		"in a panic": grant.Handler(parse(nil, true), grant.Trusted(time.Minute)),
	} {
		for _, lines := range [][]string{{line(time.Minute, 0)}, nil} {
			if name == "in a panic" && lines == nil {
				continue // net/http leaves them
			}
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			server := httptest.NewServer(h)
			var upload bytes.Buffer
			form := multipart.NewWriter(&upload)
			f, err := form.CreateFormFile("plan", "plan.png")
			require.NoError(t, err)
			_, err = f.Write(make([]byte, 11<<20)) // 10 MiB stay in memory
			require.NoError(t, err)
			require.NoError(t, form.Close())
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, &upload)
			require.NoError(t, err)
			r.Header.Set("Content-Type", form.FormDataContentType())
			r.Header[grant.Header] = lines

			answer := send(server.Client(), r)
			server.Close() // when the server has done what it does after the handler

			require.Equal(t, name != "in a panic", answer.err == nil, "%s: %v", name, answer.err)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left, "%s, with a grant: %v", name, lines != nil)
		}
	}
}

// B's own caller sends again, because the answer of B was lost. The key commits with the data.
func TestARetryOfTheCallerIsReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lease.Config{TTL: time.Minute})
	l := w.hold()
	server := httptest.NewServer(grant.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		g, _ := grant.FromContext(r.Context())
		err := fencedb.Tx(r.Context(), w.pool, g, func(tx pgx.Tx) error {
			answer, _, err := fencedb.Once(r.Context(), tx, "seat:1", nil, func() ([]byte, error) {
				_, err := tx.Exec(r.Context(), `INSERT INTO seats VALUES (12, 'ann')`)
				return []byte("seated"), err
			})
			_, _ = rw.Write(answer)
			return err
		})
		require.NoError(t, err)
	}), grant.Verified(w.a.Issuer)))
	defer server.Close()

	for range 2 {
		_, body := w.call(grant.NewContext(t.Context(), l), server.URL)
		require.Equal(t, "seated", body)
	}

	require.Equal(t, 1, w.seats())
}

// silent is a RoundTripper that does not say whether it had a connection.
type silent struct{}

func (silent) RoundTrip(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// The receiver may have committed before the answer is lost.
func TestALostAnswerIsNoOutage(t *testing.T) {
	t.Parallel()
	end := func(cause error) func(context.CancelCauseFunc, http.ResponseWriter, *http.Request) {
		return func(cancel context.CancelCauseFunc, _ http.ResponseWriter, r *http.Request) {
			cancel(cause)
			<-r.Context().Done()
		}
	}
	abort := func(context.CancelCauseFunc, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for name, tc := range map[string]struct {
		answer  func(context.CancelCauseFunc, http.ResponseWriter, *http.Request) // nil: it is not reached
		dial    func(context.CancelCauseFunc, context.Context) error
		base    http.RoundTripper
		over    bool
		timeout time.Duration
		want    guard.Outcome
		is      error
	}{
		"the receiver goes away":          {answer: abort, want: guard.Unknown, is: io.EOF},
		"the caller's deadline passes":    {answer: end(context.DeadlineExceeded), want: guard.Unknown, is: context.DeadlineExceeded},
		"the caller is cancelled":         {answer: end(context.Canceled), want: guard.Unknown, is: context.Canceled},
		"the lease of the caller is lost": {answer: end(lease.ErrLost), want: guard.Unknown, is: lease.ErrLost},
		"the client's own time-out": {answer: func(_ context.CancelCauseFunc, _ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}, timeout: 5 * time.Second, want: guard.Unknown, is: context.DeadlineExceeded},
		"the client's own time-out, within the body": {answer: func(_ context.CancelCauseFunc, w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "seated")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, timeout: 5 * time.Second, want: guard.Unknown, is: context.DeadlineExceeded},
		"the body is cut": {answer: func(_ context.CancelCauseFunc, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "seated")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, want: guard.Unknown, is: io.ErrUnexpectedEOF},
		"a transport that tells nothing": {base: silent{}, want: guard.Unknown, is: io.ErrUnexpectedEOF},

		"a whole answer": {answer: func(_ context.CancelCauseFunc, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "seated")
		}, want: guard.Done},
		"a context that is over": {over: true, want: guard.Unavailable, is: context.Canceled},
		"nobody listens": {dial: func(context.CancelCauseFunc, context.Context) error { return syscall.ECONNREFUSED },
			want: guard.Unavailable, is: syscall.ECONNREFUSED},
		"the context ends before there is a connection": {dial: func(cancel context.CancelCauseFunc, ctx context.Context) error {
			cancel(context.DeadlineExceeded)
			<-ctx.Done()
			return ctx.Err()
		}, want: guard.Unavailable, is: context.DeadlineExceeded},
	} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, HTTP/%d", name, version), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancelCause(grant.NewContext(t.Context(), until(time.Now().Add(time.Minute))))
				defer cancel(nil)
				var reached atomic.Int32
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					reached.Add(1)
					tc.answer(cancel, w, r)
				}))
				server.EnableHTTP2 = version == 2
				server.StartTLS()
				defer server.Close()
				base := server.Client().Transport.(*http.Transport)
				if tc.dial != nil {
					base.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
						return nil, &net.OpError{Op: "dial", Err: tc.dial(cancel, ctx)}
					}
				}
				client := &http.Client{Transport: grant.Transport(base), Timeout: tc.timeout}
				if tc.base != nil {
					client.Transport = grant.Transport(tc.base)
				}
				if tc.over {
					cancel(context.Canceled)
				}
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
				require.NoError(t, err)

				err = send(client, r).err

				require.Equal(t, tc.want, guard.Answer(err), "%v", err)
				if tc.want == guard.Unknown {
					require.Zero(t, guard.RetryAfter(err))
					require.Equal(t, guard.Unknown, guard.Answer(errors.Join(lease.ErrInvalid, err)), "beside a mistake")
				}
				if tc.is != nil && version == 1 { // HTTP/2 has errors of its own
					require.ErrorIs(t, err, tc.is)
				}
				if tc.timeout == 0 {
					require.Equal(t, tc.answer != nil, reached.Load() > 0)
				}
			})
		}
	}
}

// closes is a RoundTripper that remembers the body of its last answer.
type closes struct {
	http.RoundTripper
	body *closing
}

func (c *closes) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		c.body = &closing{Reader: answer.Body}
		answer.Body = c.body
	}
	return answer, err
}

// The receiver may have carried out the request whose connection broke. Net/http sends it again,
// and the answer speaks of the second one.
func TestAnAnswerToARequestSentTwiceSaysNothingOfTheFirst(t *testing.T) {
	t.Parallel()
	post := func(header string) func(*http.Request) {
		return func(r *http.Request) { r.Method = http.MethodPost; r.Header[header] = []string{"0b6f"} }
	}
	for name, change := range map[string]func(*http.Request){
		"a key": post("Idempotency-Key"), "another key": post("X-Idempotency-Key"),
		"an idempotent method": func(r *http.Request) { r.Method = http.MethodGet },
	} {
		for _, breaks := range []bool{true, false} {
			for _, answer := range []guard.Outcome{guard.Done, guard.Busy, guard.Unavailable, guard.Unknown} {
				t.Run(fmt.Sprint(name, " ", breaks, " ", answer), func(t *testing.T) {
					t.Parallel()
					var calls atomic.Int32
					server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get(grant.Header) == "" {
							return // opens the connection
						}
						if calls.Add(1) == 1 && breaks {
							panic(http.ErrAbortHandler)
						}
						w.WriteHeader(answer.HTTPStatus())
					}))
					defer server.Close()
					base := &closes{RoundTripper: server.Client().Transport}
					client := &http.Client{Transport: grant.Transport(base)}
					opened, err := server.Client().Get(server.URL)
					require.NoError(t, err)
					require.NoError(t, opened.Body.Close())
					ctx := grant.NewContext(t.Context(), until(time.Now().Add(time.Minute)))
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
					require.NoError(t, err)
					change(r)

					response, err := client.Do(r)
					if err == nil {
						err = grant.Check(response)
						require.NoError(t, response.Body.Close())
					}

					want, sent := answer, int32(1)
					if breaks {
						sent = 2
						if answer != guard.Done {
							want = guard.Unknown
						}
					}
					require.Equal(t, sent, calls.Load())
					require.Equal(t, want, guard.Answer(err), "%v", err)
					require.True(t, base.body.closed)
				})
			}
		}
	}
}

// A sender has one error for each answer of a receiver, and asks guard about it as about its own.
func TestTheAnswerOfAReceiverIsOneError(t *testing.T) {
	t.Parallel()
	for _, outcome := range []guard.Outcome{guard.Done, guard.Busy, guard.Unavailable, guard.Unknown, guard.Refused} {
		status := outcome.HTTPStatus()
		err := grant.Check(&http.Response{StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status))})
		require.Equal(t, outcome, guard.Answer(err), "%d: %v", status, err)
		require.Equal(t, outcome == guard.Done, err == nil)
		if err != nil {
			require.ErrorContains(t, err, http.StatusText(status))
		}
	}
	for status, outcome := range map[int]guard.Outcome{
		204: guard.Done, 302: guard.Done, 400: guard.Refused, 404: guard.Refused, 502: guard.Unknown,
	} {
		require.Equal(t, outcome, guard.Answer(grant.Check(&http.Response{StatusCode: status})), status)
	}
}
