package page

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/observe/feed"
)

func TestOnlyThePageItselfPressesButtons(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method, host string
		header       map[string]string
		want         int
	}{
		"the page":            {http.MethodPost, "127.0.0.1:80", map[string]string{"Origin": "http://127.0.0.1:80", "Sec-Fetch-Site": "same-origin"}, http.StatusNoContent},
		"by its name":         {http.MethodPost, "localhost:80", nil, http.StatusNoContent},
		"IPv6":                {http.MethodPost, "[::1]:80", nil, http.StatusNoContent},
		"without a port":      {http.MethodPost, "[::1]", nil, http.StatusNoContent},
		"no name":             {http.MethodPost, "", nil, http.StatusMisdirectedRequest},
		"another site":        {http.MethodPost, "127.0.0.1:80", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"another port":        {http.MethodPost, "127.0.0.1:80", map[string]string{"Origin": "http://127.0.0.1:81"}, http.StatusForbidden},
		"a name that rebinds": {http.MethodPost, "evil.example:80", map[string]string{"Origin": "http://evil.example:80", "Sec-Fetch-Site": "same-origin"}, http.StatusMisdirectedRequest},
		"a look":              {http.MethodGet, "127.0.0.1:80", nil, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pressed := false
			h := Handler(NewJournal(), func(_ context.Context, action, with string) error {
				pressed = action == "kill" && with == "A"
				return nil
			})
			r := httptest.NewRequest(tc.method, "/do/kill?with=A", nil)
			r.Host = tc.host
			for key, value := range tc.header {
				r.Header.Set(key, value)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, tc.want, w.Code, w.Body)
			require.Equal(t, tc.want == http.StatusNoContent, pressed)
		})
	}
}

func TestAButtonTellsWhyNot(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{
		http.StatusConflict:            Refusal("not now"),
		http.StatusInternalServerError: errors.New("no Postgres"),
	} {
		h := Handler(NewJournal(), func(context.Context, string, string) error { return err })
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/do/kill", nil)
		r.Host = "localhost"
		h.ServeHTTP(w, r)
		require.Equal(t, want, w.Code)
		require.JSONEq(t, `{"error": "`+err.Error()+`"}`, w.Body.String())
	}
}

func TestFilesComeWithAStrictPolicy(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/style.css", "/timeline.css", "/app.js", "/icon.svg"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "localhost"
		Handler(NewJournal(), nil).ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, path)
		policy := w.Header().Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'; script-src 'self';")
		require.NotContains(t, policy, "unsafe")
		require.NotContains(t, w.Body.String(), "style=\"", "inline styles are forbidden by the policy")
		require.NotContains(t, w.Body.String(), "https://", "everything is served from here")
	}
}

func TestAReaderComesBackToWhereItWas(t *testing.T) {
	t.Parallel()
	j := NewJournal()
	for _, worker := range []string{"A", "B", "C"} {
		j.Add(Record{Kind: Started, Worker: worker})
	}
	server := httptest.NewServer(Handler(j, nil))
	t.Cleanup(server.Close)

	require.Equal(t, []string{"event: hello", "id: " + j.ID + "-1", "id: " + j.ID + "-2", "id: " + j.ID + "-3"}, read(t, server, ""))
	require.Equal(t, []string{"id: " + j.ID + "-3"}, read(t, server, j.ID+"-2"))
	require.Equal(t, []string{"event: hello", "id: " + j.ID + "-1", "id: " + j.ID + "-2", "id: " + j.ID + "-3"}, read(t, server, "of-2"), "another run of the program")
	require.Len(t, read(t, server, j.ID+"-x"), 4)
}

// read returns the ids and hellos of the stream until it has caught up.
func read(t *testing.T, server *httptest.Server, lastEventID string) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events", nil)
	require.NoError(t, err)
	r.Header.Set("Last-Event-ID", lastEventID)
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	for scan := bufio.NewScanner(answer.Body); scan.Scan(); {
		line := scan.Text()
		switch {
		case line == "event: caught-up":
			return lines
		case line == "event: hello", strings.HasPrefix(line, "id: "):
			lines = append(lines, line)
		}
	}
	require.Fail(t, "the stream ended")
	return nil
}

// The word of its release may be late.
func TestALeaseThatIsGoneHasRunOutOrWasForgotten(t *testing.T) {
	t.Parallel()
	for token, test := range map[int64]struct {
		left     time.Duration
		released bool
		want     []Kind
	}{
		41: {time.Hour, false, []Kind{feed.Granted, Forgotten}},
		42: {time.Hour, true, []Kind{feed.Granted, feed.Released}},
		43: {0, false, []Kind{feed.Granted, Expired}},
		44: {0, true, []Kind{feed.Granted, feed.Released}},
	} {
		j := NewJournal()
		s := &Stage{journal: j, life: t.Context()}
		j.Add(Record{Kind: feed.Granted, Worker: "A", Token: token})

		s.noteGone(Redis{Up: true, Token: token, Ends: time.Now().Add(test.left).UnixMilli()}, Redis{Up: true})
		if test.released {
			j.Add(Record{Kind: feed.Released, Worker: "A", Token: token})
		}
		s.work.Wait()

		require.Equal(t, test.want, kinds(j.After(0).Records), test.left)
	}
}

func TestItEndsWithItsContextBeforeAnythingIsStarted(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := taken.Addr().(*net.TCPAddr).Port
	require.ErrorContains(t, Run(t.Context(), &testenv.Env{}, port, io.Discard), "-port")
	require.NoError(t, taken.Close())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	env := &testenv.Env{PostgresURL: testenv.PostgresURL(t), RedisURL: "redis://" + testenv.Redis(t).Options().Addr}
	require.ErrorIs(t, Run(ctx, env, port, io.Discard), context.Canceled)
	_, err = net.Dial("tcp", taken.Addr().String())
	require.Error(t, err)
}
