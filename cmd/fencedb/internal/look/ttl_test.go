package look

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnAdviceIsRoundedUp(t *testing.T) {
	t.Parallel()
	for from, to := range map[time.Duration]time.Duration{
		6 * time.Millisecond:    6 * time.Millisecond,
		101 * time.Millisecond:  110 * time.Millisecond,
		7288 * time.Millisecond: 7300 * time.Millisecond,
		12 * time.Second:        12 * time.Second,
		61 * time.Second:        61 * time.Second,
		125 * time.Second:       130 * time.Second,
	} {
		require.Equal(t, to, roundUp(from), from)
	}
}
