package conn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAURLForPsqlHasNothingThatPsqlRefuses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p@h/d?sslmode=disable":             "postgres://u:p@h/d?sslmode=disable",
		"host=h pool_max_conns=3":                        "host=h pool_max_conns=3",
		"postgres://h/d?pool_max_conns=3":                "postgres://h/d",
		"postgres://h/d?options=-c%20a%3Db&timezone=UTC": "postgres://h/d?options=-c%20a%3Db%20-c%20timezone%3DUTC",
	} {
		require.Equal(t, want, ForPsql(address))
	}
}
