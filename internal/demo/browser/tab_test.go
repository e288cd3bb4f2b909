package browser

import (
	"context"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/demo/page"
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
	w.start()
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
func (w *tab) start(args ...string) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reader, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := page.Run(ctx, args, out)
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
	w.start("-addr", strings.TrimPrefix(w.url, "http://"))
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
