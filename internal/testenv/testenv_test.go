package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestPostgresIsMigratedAndEachTestHasItsOwn(t *testing.T) {
	t.Parallel()
	one, other := testenv.Postgres(t), testenv.Postgres(t)
	_, err := one.Exec(t.Context(), `INSERT INTO fencedb.fences (resource, last_fencing_token, lease_id) VALUES ('table:12', 41, gen_random_uuid())`)
	require.NoError(t, err)
	var fences int
	require.NoError(t, other.QueryRow(t.Context(), `SELECT count(*) FROM fencedb.fences`).Scan(&fences))
	require.Zero(t, fences)
}
func TestRedis(t *testing.T) {
	t.Parallel()
	c := testenv.Redis(t)
	ns := testenv.Namespace(t)
	require.NoError(t, c.Set(t.Context(), ns+":x", "1", 0).Err())
}
