package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}

func TestSettingsThatMakeNoSenseAreNamed(t *testing.T) {
	for name, value := range map[string]string{ttlVar: "5", postgresVar: "", redisVar: "", addrVar: "nowhere"} {
		t.Run(name, func(t *testing.T) {
			setServers(t)
			t.Setenv(name, value)
			require.ErrorContains(t, serve(t.Context(), slog.New(slog.DiscardHandler)), name)
		})
	}
}

// The lines that the README prints, sent to the service.
func TestTheLinesOfTheREADMEWork(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^    (.*curl .*)$`).FindAllSubmatch(readme, -1)
	require.Len(t, lines, 5)
	url, stop := startService(t)
	defer stop()

	script := "set -eu\n"
	for _, line := range lines {
		script += strings.ReplaceAll(string(line[1]), "localhost:8090", url) + "\n"
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)

	require.Contains(t, string(said), `"sku":"poster","start":3,"remaining":3`)
	require.Contains(t, string(said), `"buyer":"ann","state":"RESERVED"`)
	require.Equal(t, 2, strings.Count(string(said), `"buyer":"bob","state":"SOLD"`), "%s", said)
	require.Equal(t, []int{http.StatusNoContent, http.StatusOK}, []int{statusOf("http://" + url + "/healthz"), statusOf("http://" + url + "/metrics")})
}

func TestARequestUnderWayIsFinishedWhenTheServiceEnds(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	entered, goOn := make(chan struct{}), make(chan struct{})
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-goOn
		w.WriteHeader(http.StatusTeapot)
	})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- sell(ctx, listener, slow, slog.New(slog.DiscardHandler)) }()
	status := make(chan int, 1)
	go func() { status <- statusOf("http://" + listener.Addr().String()) }()

	<-entered
	end()
	require.Eventually(t, func() bool { return statusOf("http://"+listener.Addr().String()) == 0 }, time.Minute, 10*time.Millisecond, "nobody else is let in")
	close(goOn)

	require.Equal(t, http.StatusTeapot, <-status)
	require.NoError(t, <-ended)
}

// statusOf returns the status of the answer, and 0 if there is none.
func statusOf(url string) int {
	response, err := http.Get(url)
	if err != nil {
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}

// startService serves on servers of the tests until stop is called.
func startService(t *testing.T) (addr string, stop func()) {
	t.Helper()
	setServers(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = listener.Addr().String()
	require.NoError(t, listener.Close())
	t.Setenv(addrVar, addr)

	ctx, cancel := context.WithCancel(t.Context())
	var log bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, slog.New(slog.NewTextHandler(&log, nil))) }()
	require.Eventually(t, func() bool { return statusOf("http://"+addr+"/readyz") == http.StatusOK }, time.Minute, 20*time.Millisecond)
	return addr, func() {
		cancel()
		require.NoError(t, <-ended, "%s", &log)
	}
}

func setServers(t *testing.T) {
	t.Helper()
	t.Setenv(postgresVar, testenv.PostgresURL(t))
	t.Setenv(redisVar, "redis://"+testenv.Redis(t).Options().Addr+"/0")
	t.Setenv(spaceVar, testenv.Namespace(t))
}
