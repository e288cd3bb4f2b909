package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// The control, without any fault. Whoever oversleeps between read and write has read what another then counted up from, and
// writes over it. Were that not seen, the other tests would show nothing.
func TestWithoutTheFenceUpdatesAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, clientsOf(t, testenv.OwnRedis(t).Addr()))
	w.exec(`SELECT fencedb.unprotect('counters'), fencedb.unprotect('history')`)
	w.write, w.forgetful = unfenced, true
	stop := w.start()
	defer stop()
	w.each("late writes", patience, func(_, now tally) bool { return now.written[whileWriting] > 0 })
	stop()
	for _, resource := range resources {
		require.Positive(t, w.count(lost, resource))
	}
}
