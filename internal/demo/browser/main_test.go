// Package browser tests the page in a real browser: every button is pressed, and what the page
// shows is compared with what Redis and Postgres answer.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/fencedb/fencedb/internal/demo/worker"
)

// browser is chromedp's context of the one browser; tabs are made of it.
var browser context.Context

func TestMain(m *testing.M) {
	worker.Become(worker.Kinds)
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
