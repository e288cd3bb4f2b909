package page

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		j := NewJournal()
		s := &Stage{journal: j, life: t.Context()}
		j.Add(Record{Kind: Granted, Worker: "A", Token: token})

		s.noteExpiry(Redis{Up: true, Token: token, Ends: time.Now().Add(test.left).UnixMilli()}, Redis{Up: true})
		s.work.Wait()

		last := j.After(1).Records
		require.Equal(t, test.expired, len(last) == 1 && last[0].Kind == Expired, test.left)
	}
}
