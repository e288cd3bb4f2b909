// Package leases asks every call what becomes of it under every fault, and judges the answer by what the servers have
// afterwards.
package leases

import (
	"os"
	"testing"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// full is set by make matrix-leases. Without it, a sample is taken that is always the same.
var full = os.Getenv("FENCEDB_MATRIX") == "full"
