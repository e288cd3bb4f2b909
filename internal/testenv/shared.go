package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// The servers of this test binary, each started at its first use and once: a test that comes after a
// failed start gets the same error, at once.
var (
	sharedPostgres = sync.OnceValues(func() (*postgresServer, error) {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		server, err := obtainPostgres(ctx, thisHost())
		if err == nil {
			atEnd(server.stop)
		}
		return server, err
	})

	sharedTemplate = sync.OnceValues(func() (string, error) {
		server, err := sharedPostgres()
		if err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		return server.template(ctx)
	})

	sharedRedis = sync.OnceValues(func() (*redisServer, error) {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		server, err := obtainRedis(ctx, thisHost())
		if err == nil {
			atEnd(server.stop)
		}
		return server, err
	})
)

var ends struct {
	mu    sync.Mutex
	stops []func() error
}

func atEnd(stop func() error) {
	ends.mu.Lock()
	defer ends.mu.Unlock()
	ends.stops = append(ends.stops, stop)
}

// Main runs the tests, stops the servers they started and exits. Call it from TestMain:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// A test binary without it leaves nothing behind either; with it, the servers have ended before the
// test binary does, and it fails when one of them cannot be stopped.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func stopShared() error {
	ends.mu.Lock()
	defer ends.mu.Unlock()
	var failed error
	for _, stop := range ends.stops {
		failed = errors.Join(failed, stop())
	}
	ends.stops = nil
	return failed
}
