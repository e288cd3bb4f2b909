package testenv_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestAStopwatchCountsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := testenv.Stopwatch(t)
		time.Sleep(5 * time.Second)
		require.Equal(t, 5*time.Second, ran())
	})
}
