// Package browser tests the page in a real browser: every button is pressed, and what the page
// shows is compared with what Redis and Postgres answer.
package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/page"
	"github.com/fencedb/fencedb/lab/demo/service"
)

// patience bounds everything that a test waits for.
const patience = 40 * time.Second

// tab is the page of a program of its own, in a browser.
type tab struct {
	*testing.T
	ctx   context.Context // chromedp's
	url   string
	db    *pgxpool.Pool
	redis *redis.Client
	stop  func() // ends the program

	mu         sync.Mutex
	complaints []string // of the browser; guarded by mu
}

// open starts the program and opens its page, at the fast speed unless told otherwise.
func open(t *testing.T, speed string) *tab {
	t.Helper()
	w := &tab{T: t}
	w.start(0)
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	w.ctx = ctx
	go w.hear(chromedp.Console(ctx))
	w.do(chromedp.Navigate(w.url))
	w.until(`document.body.dataset.ready === "true"`)
	w.click(`#speed input[value=` + speed + `]`)
	w.until(`document.body.dataset.speed === "` + speed + `"`)
	t.Cleanup(w.requireNoComplaints)
	return w
}

// start runs the program until the end of the test.
func (w *tab) start(port int) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	env, err := testenv.Start(ctx, testenv.Options{PrivateRedis: true})
	require.NoError(w, err)
	reader, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := errors.Join(page.Run(ctx, env, port, out), env.Close())
		_ = out.CloseWithError(fmt.Errorf("the program has ended: %w", err))
		ended <- err
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w, <-ended)
	})
	w.Cleanup(w.stop)
	w.readAddresses(reader)
	go func() { _, _ = io.Copy(io.Discard, reader) }()
}

// restart ends the program and runs it again, at the same address and on new servers.
func (w *tab) restart() {
	w.Helper()
	w.stop()
	_, port, _ := strings.Cut(w.url, "127.0.0.1:")
	n, err := strconv.Atoi(port)
	require.NoError(w, err)
	w.start(n)
}

var addresses = regexp.MustCompile(`(?s)(http://\S+).*psql '([^']+)'.*redis-cli -u (\S+)`)

func (w *tab) readAddresses(out io.Reader) {
	w.Helper()
	var said strings.Builder
	for buf := make([]byte, 1024); !addresses.MatchString(said.String()); {
		n, err := out.Read(buf)
		require.NoError(w, err)
		said.Write(buf[:n])
	}
	found := addresses.FindStringSubmatch(said.String())
	w.url = found[1]
	var err error
	w.db, err = pgxpool.New(w.Context(), found[2])
	require.NoError(w, err)
	w.Cleanup(w.db.Close)
	options, err := redis.ParseURL(found[3])
	require.NoError(w, err)
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	w.redis = redis.NewClient(options)
	w.Cleanup(func() { _ = w.redis.Close() })
}

// hear collects what the browser complains about: errors of scripts, and of what they load.
func (w *tab) hear(console iter.Seq2[chromedp.ConsoleMessage, error]) {
	for message, err := range console {
		if err != nil {
			return // the end of the tab
		}
		if message.IsException() || message.Type == chromedp.ConsoleError || message.Type == chromedp.ConsoleWarning {
			w.mu.Lock()
			w.complaints = append(w.complaints, message.String())
			w.mu.Unlock()
		}
	}
}

// forgive takes complaints back that a test has provoked.
func (w *tab) forgive(texts ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complaints = slices.DeleteFunc(w.complaints, func(complaint string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(complaint, text) })
	})
}

func (w *tab) requireNoComplaints() {
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(w, w.complaints)
}

func (w *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	require.NoError(w, chromedp.Do(ctx, actions...))
}

// click presses what a selector finds, as a script does: also what is off screen.
func (w *tab) click(selector string) {
	w.Helper()
	w.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector(%q).click()`, selector)))
}

// until waits until an expression is true.
func (w *tab) until(expression string) {
	w.Helper()
	_, err := chromedp.Run(w.ctx, chromedp.Poll[chromedp.Void](expression,
		chromedp.WithPollingTimeout(patience), chromedp.WithPollingInterval(30*time.Millisecond)))
	if err != nil {
		require.Fail(w, "never true", "%s\n%v\n%s", expression, err, ask[string](w, `document.getElementById("log").innerText`))
	}
}

// ask evaluates an expression on a page.
func ask[T any](w *tab, expression string) T {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(w, err)
	return value
}

// browser is chromedp's context of the one browser; tabs are made of it.
var browser context.Context

func TestMain(m *testing.M) {
	worker.Become(service.Kinds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	options := chromedp.DefaultExecAllocatorOptions[:]
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work for root
	}
	allocator, end := chromedp.NewExecAllocator(ctx, options...)
	browser, _ = chromedp.NewContext(allocator)
	be(chromedp.Do(browser))
	code := m.Run()
	_ = chromedp.Cancel(browser) // waits until it has gone
	end()
	stop()
	os.Exit(code)
}

func be(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// requireAgreement waits until the page shows what Postgres and Redis hold now. While workers are
// idle that does not change.
func (w *tab) requireAgreement() {
	w.Helper()
	w.until(`[...document.querySelectorAll("#bookings tr[data-evening]")].map((e) => [e.dataset.evening, e.dataset.guest, e.dataset.token].join()).join(" ") === "` +
		strings.Join(w.rows(), " ") + `"`)
	w.until(`document.getElementById("ledger").dataset.token === "` + w.ledger() + `"`)
	w.until(`document.getElementById("redis").dataset.fence === "` + w.get("fence") + `"`)
	w.until(`document.getElementById("redis").dataset.token === "` + w.owner() + `"`)
}

// rows are the bookings, as "evening,guest,token", newest first.
func (w *tab) rows() []string {
	w.Helper()
	rows, err := w.db.Query(w.Context(), `
		SELECT concat_ws(',', (slot AT TIME ZONE 'UTC')::date - '2030-05-31', guest, last_fencing_token) FROM bookings ORDER BY slot DESC`)
	require.NoError(w, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w, err)
	return found
}

// ledger is the token that Postgres has stored, or "".
func (w *tab) ledger() (token string) {
	w.Helper()
	err := w.db.QueryRow(w.Context(), `SELECT coalesce(fencedb.last_token('table:12')::text, '')`).Scan(&token)
	require.NoError(w, err)
	return token
}

func (w *tab) requireProtected(want bool) {
	w.Helper()
	var protected bool
	err := w.db.QueryRow(w.Context(), `SELECT exists(SELECT FROM fencedb.protected_tables WHERE table_name = 'bookings'::regclass)`).Scan(&protected)
	require.NoError(w, err)
	require.Equal(w, want, protected)
}

// owner is the token of the lease in Redis, or "".
func (w *tab) owner() string {
	w.Helper()
	_, rest, _ := strings.Cut(w.get("owner"), ":")
	token, _, _ := strings.Cut(rest, ":")
	return token
}

// get reads one of the keys of the lease, as an onlooker with redis-cli would.
func (w *tab) get(key string) string {
	w.Helper()
	value, err := w.redis.Get(w.Context(), "lease:v1:{table:12}:"+key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(w, err)
	}
	return value
}

func (w *tab) ttl() time.Duration {
	w.Helper()
	ttl, err := w.redis.PTTL(w.Context(), "lease:v1:{table:12}:owner").Result()
	require.NoError(w, err)
	return ttl
}

// state is that of a process as ps tells it: T is stopped.
func state(t *testing.T, pid string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ps", "-o", "stat=", "-p", pid).Output()
	require.NoError(t, err, fmt.Sprintf("no process %q", pid))
	return string(out[:1])
}
