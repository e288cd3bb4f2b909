package lease

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKeyNames(t *testing.T) {
	for _, test := range []struct{ namespace, resource, tag string }{
		{"", "table:12", "{table:12}"},
		{"tenant", "table:12", "{tenant/table:12}"},
		{"", "a/b", "{a%2Fb}"},
		{"a", "b", "{a/b}"},
		{"", "{x}", "{%7Bx%7D}"},
		{"", "%7Bx%7D", "{%257Bx%257D}"},
		{"", "läßt 🍽️", "{läßt 🍽️}"},
	} {
		k := newKeys(test.namespace, test.resource, false)
		require.Equal(t, "lease:v1:"+test.tag+":owner", k.owner)
		require.Equal(t, "lease:v1:"+test.tag+":fence", k.fence)
		require.Equal(t, "lease:v1:"+test.tag+":queue", k.queue)
		require.Equal(t, "lease:v1:"+test.tag+":wake", k.channel)
	}
}

func TestHashedKeysHideTheID(t *testing.T) {
	k := newKeys("tenant", "guest:ada@example.com", true)
	require.NotContains(t, k.owner, "ada")
	require.Contains(t, k.owner, "{tenant/sha256:")
	require.Equal(t, k, newKeys("tenant", "guest:ada@example.com", true))
	require.NotEqual(t, k, newKeys("tenant", "guest:bob@example.com", true))
}

// Two names never meet, and nothing in a name ends the hash tag early.
func TestKeysAreDistinctAndTagged(t *testing.T) {
	name := rapid.StringOfN(rapid.RuneFrom([]rune("ab{}%/27BDF:é")), 0, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		ns1, r1, ns2, r2 := name.Draw(t, "ns1"), name.Draw(t, "r1"), name.Draw(t, "ns2"), name.Draw(t, "r2")
		k1, k2 := newKeys(ns1, r1, false), newKeys(ns2, r2, false)
		require.Equal(t, ns1 == ns2 && r1 == r2, k1 == k2)
		require.Equal(t, 1, strings.Count(k1.owner, "{"))
		require.Equal(t, 1, strings.Count(k1.owner, "}"))
	})
}

func TestResourceIsChecked(t *testing.T) {
	for _, resource := range []string{"table:12", " ", "{}", strings.Repeat("x", 512), strings.Repeat("é", 256)} {
		require.NoError(t, checkResource(resource))
	}
	for _, resource := range []string{"", "a\x00b", "\xff", "a\xc3", strings.Repeat("x", 513), strings.Repeat("é", 257)} {
		require.ErrorIs(t, checkResource(resource), ErrInvalid, "%q", resource)
	}
	require.Equal(t, "table:12", Resource("table", 12))
	require.Equal(t, "user:ada", Resource("user", "ada"))
}
