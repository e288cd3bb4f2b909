package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATypingErrorGetsWhatWasMeant(t *testing.T) {
	t.Parallel()
	for says, calls := range map[string][][]string{
		"did you mean migrate?":      {{"mirgate"}, {"migrat"}, {"help", "mirgate"}, {"mirgate", "up"}},
		"did you mean inspect?":      {{"inspekt", "seat:1"}},
		"did you mean status?":       {{"migrate", "stauts"}, {"migrate", "help", "stauts"}},
		"did you mean --older-than?": {{"leases", "--olderthan", "1m"}, {"leases", "--oldr-than=1m"}},
		"did you mean --reason?":     {{"revoke", "seat:1", "--reson", "it hangs"}},
		"did you mean --postgres?":   {{"--postgress", "x", "leases"}, {"leases", "--postgre", "x"}},
		"did you mean --yes?":        {{"migrate", "down", "--yse"}},
	} {
		for _, args := range calls {
			got := newConsole(t).run(args...)
			require.Equal(t, exitUsage, got.code, args)
			require.Contains(t, got.errOut, says, args)
		}
	}
}

func TestWhatIsNearNothingIsNotGuessed(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"frobnicate"}, {"help", "frobnicate"}, {"migrate", "sideways"}, {"leases", "--frobnicate"}} {
		got := newConsole(t).run(args...)
		require.Equal(t, exitUsage, got.code, args)
		require.Contains(t, got.errOut, "there is no ", args)
		require.NotContains(t, got.errOut, "did you mean", args)
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"", "abc"}: 3, {"abc", ""}: 3, {"abc", "abc"}: 0, {"abc", "acb"}: 1, {"abc", "ab"}: 1, {"abc", "abcd"}: 1,
		{"abc", "xbc"}: 1, {"mirgate", "migrate"}: 1, {"abc", "xyz"}: 3, {"ab", "bca"}: 3,
	} {
		require.Equal(t, want, distance(pair[0], pair[1]), pair)
	}
}
