package lease

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheMissingVoteDecides(t *testing.T) {
	missing := vote[outcome]{err: errNoVote}
	said := func(o outcome) vote[outcome] { return vote[outcome]{answer: o} }
	for _, c := range []struct {
		votes []vote[outcome]
		want  outcome // "" if it is open
	}{
		{[]vote[outcome]{said(done), said(done), missing}, done},
		{[]vote[outcome]{said(done), said(gone), missing}, ""},
		{[]vote[outcome]{said(done), said(revoked), missing}, ""},
		{[]vote[outcome]{said(done), missing, missing}, ""},
		{[]vote[outcome]{missing, missing, missing}, ""},
		{[]vote[outcome]{said(gone), said(gone), missing}, gone},
		{[]vote[outcome]{said(gone), said(taken), missing}, taken},
		{[]vote[outcome]{said(done), said(gone), said(gone)}, gone},
		{[]vote[outcome]{said(done), said(done), said(gone)}, done},
	} {
		got, err := decide(&quorum{need: 2}, c.votes)
		require.Equal(t, c.want, got, "%v", c.votes)
		if c.want == "" {
			require.ErrorIs(t, err, ErrUnreachable, "%v", c.votes)
		} else {
			require.NoError(t, err)
		}
	}
}
