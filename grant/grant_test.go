package grant_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/grant"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var leaseID = uuid.MustParse("0d3f7c3e-5c0b-4a0e-9d5e-0f6f7f0f3c11")

func until(end time.Time) fencedb.Grant { return fencedb.NewGrant("table:12", 41, leaseID, end) }

func validUntil(t *testing.T, g fencedb.Grant) time.Time {
	t.Helper()
	bounded, ok := g.(interface{ ValidUntil() time.Time })
	require.True(t, ok)
	return bounded.ValidUntil()
}

func TestALineHasAGrantOfEveryShape(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(time.Minute)
	for _, resource := range []string{"table:12", "a, b", "100 %", "{tag}/x", "größe:ü", "a\nb", "v1", strings.Repeat("ü", 256)} {
		line, err := grant.Encode(fencedb.NewGrant(resource, 1<<62, leaseID, end))
		require.NoError(t, err)
		require.Regexp(t, `^[!-~]+( [!-~]+){5}$`, line, "printable ASCII in six words")
		g, err := grant.Decode(line, time.Hour)
		require.NoError(t, err, line)
		require.Equal(t, []any{resource, int64(1 << 62), leaseID}, []any{g.Resource(), g.Token(), g.LeaseID()})
		require.False(t, validUntil(t, g).After(end))
		require.WithinDuration(t, end, validUntil(t, g), 30*time.Second)
	}
}

func TestALineHasAllGrantsOfASet(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(time.Minute)
	line, err := grant.Encode(fencedb.All(fencedb.NewGrant("sku:a,b", 7, uuid.New(), end), until(end)))
	require.NoError(t, err)

	for _, joined := range []string{line, strings.ReplaceAll(line, ", ", ","), strings.ReplaceAll(line, ", ", "\t,\t")} {
		g, err := grant.Decode(joined, time.Hour)
		require.NoError(t, err)
		set, ok := g.(interface{ Grants() []fencedb.Grant })
		require.True(t, ok)
		var found []string
		for _, one := range set.Grants() {
			found = append(found, fmt.Sprint(one.Resource(), " ", one.Token()))
		}
		require.Equal(t, []string{"sku:a,b 7", "table:12 41"}, found)
	}
}

// The line of a lease that has d left and was sent some time ago, or will be.
func line(left, ago time.Duration) string {
	return fmt.Sprintf("v1 41 %s %d %d table:12", leaseID, left.Milliseconds(), time.Now().Add(-ago).UnixMilli())
}

func TestWhatRemainsOnlyGetsShorter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		left, ago, atMost, want time.Duration
	}{
		"as it was sent":                   {time.Minute, 0, time.Hour, time.Minute},
		"it was under way":                 {time.Minute, 20 * time.Second, time.Hour, 40 * time.Second},
		"the clock of the sender is ahead": {time.Minute, -time.Hour, time.Hour, time.Minute},
		"by more than there are years":     {time.Minute, -1 << 62, time.Hour, time.Minute},
		"more than is believed":            {24 * time.Hour, 0, time.Minute, time.Minute},
		"that too was under way":           {24 * time.Hour, 20 * time.Second, time.Minute, time.Minute},
		"forged":                           {1<<63 - 1, -1 << 62, time.Minute, time.Minute},
	} {
		before := time.Now()
		g, err := grant.Decode(line(tc.left, tc.ago), tc.atMost)
		require.NoError(t, err, name)
		end := validUntil(t, g)
		require.False(t, end.After(time.Now().Add(tc.want)), name)
		require.False(t, end.Before(before.Add(tc.want-10*time.Second)), "%s: it lasts until %v", name, end)
	}
}

func TestAGrantOfWhichNothingRemainsIsOver(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"nothing was left":           line(0, 0),
		"it was under way too long":  line(time.Minute, time.Hour),
		"it is older than the clock": fmt.Sprintf("v1 41 %s 60000 0 table:12", leaseID),
		"one of several":             line(time.Minute, 0) + "," + line(time.Minute, time.Hour),
	} {
		_, err := grant.Decode(line, time.Hour)
		require.ErrorIs(t, err, fencedb.ErrLeaseOver, name)
	}
}

func TestWhatIsNoGrantIsRefusedWithoutBeingRepeated(t *testing.T) {
	t.Parallel()
	good := line(time.Minute, 0)
	words := func(at int, word string) string {
		all := strings.Split(good, " ")
		all[at] = word
		return strings.Join(all, " ")
	}
	for name, line := range map[string]string{
		"nothing": "", "a comma": ",", "an end that is missing": good + ",",
		"another version": words(0, "v2"), "none": words(0, ""), "one word less": strings.TrimSuffix(good, " table:12"),
		"one more": good + " table:13", "two spaces": strings.Replace(good, " ", "  ", 1),
		"a token of words": words(1, "41a"), "a sign": words(1, "+41"), "a negative one": words(1, "-41"), "no token": words(1, "0"),
		"one that is too great": words(1, "9223372036854775808"), "hexadecimal": words(1, "0x29"),
		"a lease id without dashes": words(2, strings.ReplaceAll(leaseID.String(), "-", "")), "the nil id": words(2, uuid.Nil.String()),
		"no lease id": words(2, "secret"), "a negative time": words(3, "-1"), "no time": words(3, "soon"), "no time of sending": words(4, "now"),
		"half a code": words(5, "table%2"), "no resource": words(5, ""), "a zero byte": words(5, "a%00"), "not UTF-8": words(5, "%ff"),
		"a resource that is too long": words(5, strings.Repeat("a", 513)), "a line that is too long": good + strings.Repeat(" ", 64<<10),
	} {
		_, err := grant.Decode(line, time.Hour)
		require.ErrorIs(t, err, grant.ErrMalformed, name)
		require.NotContains(t, err.Error(), leaseID.String()[:8], name)
		require.NotContains(t, err.Error(), "secret", name)
	}
	for _, atMost := range []time.Duration{0, -1} {
		_, err := grant.Decode(good, atMost)
		require.ErrorContains(t, err, "must be positive")
	}
}

// told is a grant with what a lease tells beside.
type told struct {
	fencedb.Grant
	end    time.Time
	over   error
	permit bool
}

func (g told) ValidUntil() time.Time { return g.end }
func (g told) Err() error            { return g.over }
func (g told) IsPermit() bool        { return g.permit }

func TestOnlyAGrantThatCanBeUsedIsEncoded(t *testing.T) {
	t.Parallel()
	later, revoked := time.Now().Add(time.Minute), errors.New("revoked")
	for name, tc := range map[string]struct {
		grant fencedb.Grant
		want  error
	}{
		"nil":                 {nil, fencedb.ErrInvalidGrant},
		"none of several":     {fencedb.All[fencedb.Grant](), fencedb.ErrInvalidGrant},
		"without an end":      {struct{ fencedb.Grant }{until(later)}, fencedb.ErrInvalidGrant},
		"with the zero time":  {until(time.Time{}), fencedb.ErrInvalidGrant},
		"a permit":            {told{until(later), later, nil, true}, fencedb.ErrInvalidGrant},
		"over by the clock":   {until(time.Now()), fencedb.ErrLeaseOver},
		"over, and says so":   {told{until(later), later, revoked, false}, fencedb.ErrLeaseOver},
		"over, and says why":  {told{until(later), later, revoked, false}, revoked},
		"one of several":      {fencedb.All(until(later), fencedb.NewGrant("table:13", 1, leaseID, time.Now())), fencedb.ErrLeaseOver},
		"without a token":     {fencedb.NewGrant("table:12", 0, leaseID, later), fencedb.ErrInvalidGrant},
		"with the nil id":     {fencedb.NewGrant("table:12", 41, uuid.Nil, later), fencedb.ErrInvalidGrant},
		"a name too long":     {fencedb.NewGrant(strings.Repeat("a", 513), 41, leaseID, later), fencedb.ErrInvalidGrant},
		"a thousand":          {fencedb.All(slices.Repeat([]fencedb.Grant{until(later)}, 1000)...), fencedb.ErrInvalidGrant},
		"a permit of several": {fencedb.All(until(later), fencedb.Grant(told{until(later), later, nil, true})), fencedb.ErrInvalidGrant},
	} {
		line, err := grant.Encode(tc.grant)
		require.ErrorIs(t, err, tc.want, name)
		require.Empty(t, line, name)
	}
	_, err := grant.Encode(until(fencedb.NoEnd))
	require.NoError(t, err, "the receiver says how long it believes that")
}

func TestALogOfAReceivedGrantHasNoLeaseID(t *testing.T) {
	t.Parallel()
	g, err := grant.Decode(line(time.Minute, 0), time.Hour)
	require.NoError(t, err)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.Equal(t, `grant for "table:12" with token 41`, fmt.Sprintf(format, g))
	}
}

// What is decoded lasts no longer than it may, and means the same when it is encoded again.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{line(time.Minute, 0), line(time.Hour, -time.Hour), "v1 1 " + leaseID.String() + " 1 1 %2C,v1", strings.Repeat(",", 9)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := grant.Decode(text, time.Minute)
		if err != nil {
			return
		}
		again, err := grant.Encode(g)
		if errors.Is(err, fencedb.ErrLeaseOver) {
			return
		}
		require.NoError(t, err)
		same, err := grant.Decode(again, time.Minute)
		if errors.Is(err, fencedb.ErrLeaseOver) {
			return
		}
		require.NoError(t, err)
		require.Equal(t, []any{g.Resource(), g.Token(), g.LeaseID()}, []any{same.Resource(), same.Token(), same.LeaseID()})
	})
}
