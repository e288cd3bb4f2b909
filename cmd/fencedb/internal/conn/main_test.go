package conn

import (
	"testing"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
