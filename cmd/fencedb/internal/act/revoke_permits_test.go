package act

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
)

func TestOnePermitIsRevokedOrAll(t *testing.T) {
	t.Parallel()
	a, b := uuid.MustParse("43a7e30e-0000-4000-8000-00000000000a"), uuid.MustParse("43a7e30e-0000-4000-8000-00000000000b")
	held := &look.Permits{Permits: []look.Holder{{LeaseID: a}, {LeaseID: b}}}
	all, err := choose(held, "all")
	require.NoError(t, err)
	require.Equal(t, held.Permits, all)
	one, err := choose(held, b.String())
	require.NoError(t, err)
	require.Equal(t, []look.Holder{{LeaseID: b}}, one)
	_, err = choose(held, "43a7e30e")
	require.EqualError(t, err, "the lease ids of 2 permits begin with 43a7e30e; see fencedb inspect")
}
