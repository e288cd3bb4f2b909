package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func leaseKeys(namespace, resource string, hashed bool) Keys {
	return *KeysOf(LeaseKind, namespace, resource, hashed)
}

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
		k := leaseKeys(test.namespace, test.resource, false)
		require.Equal(t, "lease:v1:"+test.tag+":owner", k.Owner)
		require.Equal(t, "lease:v1:"+test.tag+":fence", k.Fence)
		require.Equal(t, "lease:v1:"+test.tag+":queue", k.Queue)
		require.Equal(t, "lease:v1:"+test.tag+":wake", k.Channel)
	}
}

func TestHashedKeysHideTheID(t *testing.T) {
	k := leaseKeys("tenant", "guest:ada@example.com", true)
	require.NotContains(t, k.Owner, "ada")
	require.Contains(t, k.Owner, "{tenant/sha256:")
	require.Equal(t, k, leaseKeys("tenant", "guest:ada@example.com", true))
	require.NotEqual(t, k, leaseKeys("tenant", "guest:bob@example.com", true))
}

// Two names never meet, and nothing in a name ends the hash tag early.
func TestKeysAreDistinctAndTagged(t *testing.T) {
	name := rapid.StringOfN(rapid.RuneFrom([]rune("ab{}%/27BDF:é")), 0, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		ns1, r1, ns2, r2 := name.Draw(t, "ns1"), name.Draw(t, "r1"), name.Draw(t, "ns2"), name.Draw(t, "r2")
		k1, k2 := leaseKeys(ns1, r1, false), leaseKeys(ns2, r2, false)
		require.Equal(t, ns1 == ns2 && r1 == r2, k1 == k2)
		for _, want := range []Key{{LeaseKind, ns1, r1, "owner"}, {SemaphoreKind, ns2, r2, "alive"}} {
			got, ok := ParseKey(want.String())
			require.True(t, ok, "%q", want)
			require.Equal(t, want, got)
		}
		require.Equal(t, 1, strings.Count(k1.Owner.(string), "{"))
		require.Equal(t, 1, strings.Count(k1.Owner.(string), "}"))
	})
}

func TestResourceIsChecked(t *testing.T) {
	for _, resource := range []string{"table:12", " ", "{}", strings.Repeat("x", 512), strings.Repeat("é", 256)} {
		require.NoError(t, CheckRequired("resource", resource, "table:12", MaxResource))
	}
	for _, resource := range []string{"", "a\x00b", "\xff", "a\xc3", strings.Repeat("x", 513), strings.Repeat("é", 257)} {
		require.ErrorIs(t, CheckRequired("resource", resource, "table:12", MaxResource), ErrInvalid, "%q", resource)
	}
}

func TestOtherNamesAreNotParsed(t *testing.T) {
	for _, name := range []string{"", "x", "lease:v1:{a", "lease:v2:{a}:owner", "lease:v1:{a/b/c}:owner", "lease:v1:{a%7b}:owner", "lease:v1:{/a}:owner"} {
		_, ok := ParseKey(name)
		require.False(t, ok, name)
	}
}

func TestAPatternMatchesWhatBeginsAlike(t *testing.T) {
	require.Equal(t, `semaphore:v1:{a%2Fb/tenant:\\\*\[*}:owner`, Key{SemaphoreKind, "a/b", `tenant:\*[`, "owner"}.Pattern())
	require.Equal(t, `lease:v1:{*}:fence`, Key{Field: "fence"}.Pattern())
}

func TestLabelsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"", "a", "booking@host-7:4711", "Zeus", "Z5a", "ZZ", "Zq1", "\u00fc,:!\x00 \n", "-", "--"} {
		stored := EscapeLabel(label)
		require.Regexp(t, `^[A-Za-z0-9-]*$`, stored)
		require.Equal(t, label, ReadLabel(stored), stored)
	}
	for stored, label := range map[string]string{"meZ": "meZ", "meZ4": "meZ4", "Zxx": "Zxx"} {
		require.Equal(t, label, ReadLabel(stored), stored)
	}
}
