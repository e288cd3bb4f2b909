package otel_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
)

func TestTheDocumentationListsEverySpan(t *testing.T) {
	t.Parallel()
	r := newRecorder(fenceotel.Config{})
	made := map[string]bool{}
	for _, op := range []lease.Op{lease.OpAcquire, lease.OpWait, lease.OpHold, lease.OpRelease, lease.OpRevoke, lease.OpRaise, lease.OpHeal} {
		made[r.lease(t, op, nil).Name()] = true
	}
	for _, op := range []fencedb.Op{fencedb.OpWrite, fencedb.OpCommit, fencedb.OpEnter} {
		made[r.wrote(t, op, nil, grant("table:12", 7)).Name()] = true
	}

	page, err := os.ReadFile("../../docs/observing.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `((?:lease|fenced|fence) \\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented[match[1]] = true
	}
	require.Equal(t, made, documented)
}
