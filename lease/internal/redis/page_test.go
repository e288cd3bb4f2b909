package protocol_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/protocol.md")
	require.NoError(t, err)
	return string(text)
}

func TestTheNamesOnThePage(t *testing.T) {
	t.Parallel()
	rows := regexp.MustCompile("(?m)^\\| (?:`(.*?)`)? ?\\| `(.*?)` \\| (yes|no) \\| `(.*?)` \\|$").FindAllStringSubmatch(page(t), -1)
	require.GreaterOrEqual(t, len(rows), 10)
	for _, row := range rows {
		require.Equal(t, row[4], protocol.KeyOf(protocol.LeaseKind, row[1], row[2], row[3] == "yes").For("owner"))
	}
}

func TestTheCallsOnThePage(t *testing.T) {
	t.Parallel()
	scripts := map[string]protocol.Script{}
	for _, s := range []protocol.Script{protocol.LeaseHolding.Acquire, protocol.LeaseHolding.Extend, protocol.LeaseHolding.Verify, protocol.LeaseHolding.Release} {
		scripts[s.Name] = s
	}
	client := testenv.OwnRedis(t).Client()
	token := ""
	calls := regexp.MustCompile(`(?m)^> (\w+) (.*) \| (.*)\n< (.*)$`).FindAllStringSubmatch(page(t), -1)
	require.GreaterOrEqual(t, len(calls), 7)
	for _, call := range calls {
		var args []any
		for arg := range strings.FieldsSeq(call[3]) {
			args = append(args, strings.ReplaceAll(arg, "TOKEN", token))
		}
		reply, err := client.Eval(t.Context(), scripts[call[1]].Source, strings.Fields(call[2]), args...).StringSlice()
		require.NoError(t, err, call[0])
		if token == "" {
			token = reply[1]
		}
		require.Equal(t, strings.ReplaceAll(call[4], "TOKEN", token), strings.Join(reply, " "), call[0])
	}
}
