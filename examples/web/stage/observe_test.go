package stage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/web/journal"
)

// The word of its release may be late.
func TestALeaseThatIsGoneBeforeItsTimeIsNotSaidToHaveRunOut(t *testing.T) {
	t.Parallel()
	for token, test := range map[int64]struct {
		left    time.Duration
		expired bool
	}{
		41: {time.Hour, false},
		42: {0, true},
	} {
		j := journal.New()
		s := &Stage{journal: j, life: t.Context()}
		j.Add(journal.Record{Kind: journal.Granted, Worker: "A", Token: token})

		s.noteExpiry(journal.Redis{Up: true, Token: token, Ends: time.Now().Add(test.left).UnixMilli()}, journal.Redis{Up: true})
		s.work.Wait()

		last := j.After(1).Records
		require.Equal(t, test.expired, len(last) == 1 && last[0].Kind == journal.Expired, test.left)
	}
}
