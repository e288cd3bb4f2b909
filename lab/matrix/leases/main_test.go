// Package leases asks every call what becomes of it under every fault, and judges the answer by
// what the servers have afterwards.
package leases

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	logging.Disable() // the clients complain of the faults
	testenv.Main(m)
}

// full is set by make matrix MATRIX=leases. Without it, a sample is taken that is always the same.
var full = os.Getenv("FENCEDB_MATRIX") == "full"
