package look

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

func TestVersionSaysWhetherTheCommitHadChanges(t *testing.T) {
	t.Parallel()
	require.Contains(t, onPage(term.Screen{}, (&Origin{Revision: "abc", Modified: true}).Print), "abc, with changes")
	require.Contains(t, onPage(term.Screen{}, (&Origin{}).Print), "not known")
}
