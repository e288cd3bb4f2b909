package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// asProgram makes the test binary be the program under test.
const asProgram = "INVENTORY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testenv.Main(m)
}

// The lines that the README prints, up to those that stop a process.
func TestTheLinesOfTheREADMEWork(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, lines, _ := strings.Cut(string(readme), "In another terminal:\n\n")
	lines, _, found := strings.Cut(lines, "\n\n")
	require.True(t, found)
	setServers(t)
	self, err := os.Executable()
	require.NoError(t, err)

	cmd := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(lines, "/tmp/shop", self))
	cmd.Env = append(os.Environ(), asProgram+"=1")
	said, err := cmd.Output()
	require.NoError(t, err, "%s", said)

	for _, comment := range regexp.MustCompile(`# (\d+ of \d+ \S+)`).FindAllStringSubmatch(lines, -1) {
		require.Contains(t, string(said), comment[1]+"\n")
	}
	require.Equal(t, 3, strings.Count(string(said), " of "), "%s", said)
}

func TestWhatMakesNoSenseIsNamed(t *testing.T) {
	setServers(t)
	for says, args := range map[string][]string{
		"usage":           {"sell"},
		"usage: ":         {"reserve", "ann"},
		"no sku shoe":     {"reserve", "ann", "shoe=1"},
		"invalid request": {"reserve", "ann", "sneaker"},
		"no such cart":    {"pay", "00000000-0000-0000-0000-000000000001"},
		"pay CART":        {"pay", "12"},
	} {
		err := run(t.Context(), t.Output(), args)
		require.ErrorContains(t, err, says, args)
		require.NotContains(t, err.Error(), "\n", "one thing is wrong")
	}
	for _, name := range []string{"FENCEDB_POSTGRES_URL", "FENCEDB_REDIS_URL"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "")
			require.ErrorContains(t, run(t.Context(), t.Output(), []string{"stock"}), name)
		})
	}
}

func TestItSweepsUntilItIsInterrupted(t *testing.T) {
	client := setServers(t)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, t.Output(), nil) }()
	require.Eventually(t, func() bool { // it has swept
		return client.Exists(t.Context(), "lease:v1:{inventory/sweeper}:fence").Val() == 1
	}, time.Minute, 20*time.Millisecond)

	interrupt()

	require.NoError(t, <-ended)
}

func setServers(t *testing.T) *redis.Client {
	t.Helper()
	server := testenv.OwnRedis(t)
	t.Setenv("FENCEDB_POSTGRES_URL", testenv.PostgresURL(t))
	t.Setenv("FENCEDB_REDIS_URL", "redis://"+server.Addr())
	return server.Client()
}
