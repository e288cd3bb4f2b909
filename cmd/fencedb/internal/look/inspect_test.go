package look

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/internal/protocol"
)

// A slow answer tells the time of Redis less well, and the renewal is as long ago as the grant.
func TestInspectKnowsTheClockAsWellAsTheAnswerWasFast(t *testing.T) {
	t.Parallel()
	for within, known := range map[time.Duration]bool{0: false, 400 * time.Millisecond: true} {
		token, left := int64(42), protocol.FenceRetention-time.Hour-300*time.Millisecond
		remembered := left.Milliseconds()
		r := Inspection{heldFor: time.Hour, within: within}
		r.LastToken, r.RememberedForMS, r.Holder = &token, &remembered, &Holder{Token: token}

		renewal := r.workOutRenewal()

		require.Equal(t, known, renewal != nil, within)
		require.Equal(t, known, app.Value(renewal).First, within)
	}
}
