package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestDrill(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.Redis(t), ordinaryRole(t)

	d, err := Drill(t.Context(), Config{PostgresURL: postgres, RedisURL: client.Options().Addr, Open: open, TTL: 2 * ttl, Log: t.Output()})

	require.NoError(t, err)
	require.True(t, d.Passed())
	require.Len(t, d.Steps, 7)
	require.Contains(t, d.Steps[6].Saw, "exclusion verified")
	require.Empty(t, d.Left)
	nothingIsLeft(t, postgres, client, d.Run)
}

// A drill that cannot fail shows nothing.
func TestADrillWithoutTheFenceFailsAtTheLateWrite(t *testing.T) {
	t.Parallel()
	client, postgres := testenv.Redis(t), ordinaryRole(t)

	d, err := Drill(t.Context(), Config{PostgresURL: postgres, RedisURL: client.Options().Addr, Open: open, TTL: ttl, Log: t.Output(), Control: NoFence})

	require.NoError(t, err)
	require.False(t, d.Passed())
	require.Len(t, d.Steps, 4, "the rest is not tried")
	require.Equal(t, "A writes late", d.Steps[3].Title)
}
