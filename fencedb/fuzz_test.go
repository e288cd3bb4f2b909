package fencedb_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

// Whatever stands in the DETAIL of a refusal, it stays that refusal, and can be printed.
func FuzzExplain(f *testing.F) {
	for _, detail := range []string{
		`{"resource": "table:12", "token": 41, "stored": 42}`, `{"resource": "table:12", "entered": ["a", "b"]}`,
		``, `null`, `{}`, `[]`, `{"token": "41"}`, `{"token": 1e400}`, `{"token": 9223372036854775808}`, `{"resource": 7}`, `{"entered": "a"}`, `{`, "\xff",
	} {
		for _, code := range []string{"FN001", "FN002", "FN003", "FN004", "FN005", "FN999", "23505", ""} {
			f.Add(code, detail)
		}
	}
	sentinels := map[string]error{
		"FN001": fencedb.ErrStale, "FN002": fencedb.ErrNoToken, "FN003": fencedb.ErrWrongResource,
		"FN004": fencedb.ErrLeaseOver, "FN005": fencedb.ErrKeyReused,
	}
	f.Fuzz(func(t *testing.T, code, detail string) {
		cause := fmt.Errorf("query: %w", &pgconn.PgError{Code: code, Detail: detail})

		err := fencedb.Explain(cause)

		require.ErrorIs(t, err, cause)
		require.NotEmpty(t, err.Error())
		for c, sentinel := range sentinels {
			require.Equal(t, c == code, errors.Is(err, sentinel), "%s is %v", code, sentinel)
		}
	})
}

// Whatever a resource is called: it has a fence of its own, or it is refused before anything is sent.
func FuzzResources(f *testing.F) {
	for _, seed := range []string{"a", "table:12", "", " ", "\x00", "\xff", "é", "{}", "🎉", "'", `"`, `\`, "%s", "\n", strings.Repeat("x", 512), strings.Repeat("x", 513)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, resource string) {
		w := newWorld(t)

		err := fencedb.Seal(t.Context(), w.pool, grant(resource, 2))

		if resource == "" || len(resource) > 512 || !utf8.ValidString(resource) || strings.ContainsRune(resource, 0) {
			require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
			return
		}
		require.NoError(t, err)
		require.EqualValues(t, 2, w.fence(resource))
		require.ErrorIs(t, fencedb.Seal(t.Context(), w.pool, grant(resource, 1)), fencedb.ErrStale)
		require.Equal(t, []int{1}, collect[int](w, `SELECT count(*) FROM fencedb.fences`))
	})
}
