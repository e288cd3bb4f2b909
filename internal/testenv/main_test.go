package testenv

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"testing"
)

// endVar makes the test binary a program that starts both servers and ends in the given way, for the
// tests of what it leaves behind.
const endVar = "FENCEDB_TESTENV_TEST_END"

func TestMain(m *testing.M) {
	if way := os.Getenv(endVar); way != "" {
		startServersAndEnd(way)
		return
	}
	Main(m)
}

// startServersAndEnd says "started" on stdout once the servers run. It never calls Close.
func startServersAndEnd(way string) {
	env, err := Start(context.Background(), Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("started", env.PostgresURL, env.RedisURL)
	switch way {
	case "return":
	case "panic":
		panic("on purpose")
	case "log.Fatal":
		log.Fatal("on purpose")
	case "signal":
		_, _ = io.Copy(io.Discard, os.Stdin) // until one comes
	}
}
