package once_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

func TestAKeyIsThatOfItsNameAndArguments(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, time.November, 26, 0, 0, 0, 0, time.UTC)
	require.Equal(t, once.Key("report", map[string]int{"a": 1, "b": 2}, &day), once.Key("report", map[string]int{"b": 2, "a": 1}, day))

	long := strings.Repeat("a", 600)
	keys := map[string]string{}
	for name, key := range map[string]string{
		"no argument": once.Key("report"), "another name": once.Key("reports"), "a number": once.Key("report", 7), "a text": once.Key("report", "7"),
		"two": once.Key("report", "a", "b"), "one of both": once.Key("report", "a,b"), "a list": once.Key("report", []string{"a", "b"}),
		"quotes": once.Key("report", `a","b`), "in the name": once.Key(`report","a`, "b"), "nothing": once.Key("report", nil), "no name": once.Key(""),
		"long": once.Key("report", long), "longer": once.Key("report", long+"a"), "a long name": once.Key(long),
	} {
		require.LessOrEqual(t, len(key), once.MaxKey, name)
		require.NotEmpty(t, key, name)
		require.Empty(t, keys[key], "the same as that of %s", name)
		keys[key] = name
	}
}

func TestAKeyOfWhatIsNoJSONIsRefused(t *testing.T) {
	t.Parallel()
	client, disconnect := connect()
	defer disconnect()
	keys, err := once.New(client, once.Config{})
	require.NoError(t, err)

	_, _, err = keys.Do(t.Context(), once.Key("report", func() {}), nil, forbidden(t))

	require.ErrorIs(t, err, lease.ErrInvalid)
}
