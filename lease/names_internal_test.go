package lease

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
)

func TestTheLabelOfAProcessFits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a.b-", 30)
	for _, test := range []struct {
		program, host string
		want          string // "": it fits, and ends with the pid
	}{
		{"booking", "host-7", "booking@host-7:4711"},
		{"booking", "host-7.internal.example", "booking@host-7:4711"},
		{"booking", "booking-7d9f8b6c5d-x2x9z", "booking@booking-7d9f8b6c5d-x2x9z:4711"},
		{"a-program-with-a-name", "ip-10-0-1-123", ""},
		{"booking", strings.Repeat("h", 60) + "-x2x9z", ""},
		{long, long, ""}, {"", "", ""}, {"\x00", "\xff", ""},
	} {
		label := labelOf(test.program, test.host, 4711)
		require.LessOrEqual(t, len(protocol.EscapeLabel(label)), protocol.MostLabel)
		require.True(t, strings.HasSuffix(label, ":4711"), label)
		if test.want != "" {
			require.Equal(t, test.want, label)
		}
	}
	require.Contains(t, labelOf("booking", strings.Repeat("h", 60)+"-x2x9z", 4711), "-x2x9z:4711")
}
