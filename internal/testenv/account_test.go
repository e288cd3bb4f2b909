package testenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestServersRunAsOurselvesUnlessWeAreRoot(t *testing.T) {
	account, err := postgresAccount()
	require.NoError(t, err)
	if os.Geteuid() == 0 {
		require.NotZero(t, account.uid)
	} else {
		require.Nil(t, account)
		require.Nil(t, account.credential())
	}
}

func TestADirectoryIsOpenToAllOnlyIfAllAboveItAre(t *testing.T) {
	base := sharedTempDir(t)
	inside := filepath.Join(base, "inside")
	require.NoError(t, os.Mkdir(inside, 0o700))
	require.NoError(t, os.Chmod(inside, 0o777)) // whatever the umask says
	require.True(t, openToAll(inside))
	require.NoError(t, os.Chmod(inside, 0o755))
	require.False(t, openToAll(inside), "nobody else may write")
	require.NoError(t, os.Chmod(inside, 0o777))
	require.NoError(t, os.Chmod(base, 0o700))
	require.False(t, openToAll(inside), "nobody else can get there")
	require.False(t, openToAll(filepath.Join(base, "missing")))
}

// Root's TMPDIR may be root's alone.
func TestTheOtherAccountGetsADirectoryElsewhere(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var ourselves *account
	dir, err := ourselves.tempDir()
	require.NoError(t, err)
	require.Equal(t, os.Getenv("TMPDIR"), filepath.Dir(dir))

	other := &account{name: "ourselves, for once", uid: os.Geteuid(), gid: os.Getegid()}
	dir, err = other.tempDir()
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NotEqual(t, os.Getenv("TMPDIR"), filepath.Dir(dir))
}
