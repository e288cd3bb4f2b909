package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is a user other than ourselves for a server to run as; nil means ourselves.
type account struct {
	name     string
	uid, gid int
}

// postgresAccount returns the account to run Postgres under: ourselves, unless we are root, which
// initdb and postgres refuse to be. The account needs an entry in the user database, because initdb
// looks its own name up.
func postgresAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(found.Uid)
		gid, gidErr := strconv.Atoi(found.Gid)
		if uidErr == nil && gidErr == nil {
			return &account{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New("Postgres refuses to run as root, and there is neither a user postgres nor a user nobody to run it as")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// tempDir makes a directory that the account owns, can reach and can remove.
func (a *account) tempDir() (string, error) {
	bases := tempBases()
	for _, base := range bases {
		if a != nil && !openToAll(base) {
			continue
		}
		dir, err := os.MkdirTemp(base, "fencedb-testenv-")
		if err != nil {
			return "", err
		}
		if a != nil {
			if err := os.Chown(dir, a.uid, a.gid); err != nil {
				return "", errors.Join(err, os.Remove(dir))
			}
		}
		return dir, nil
	}
	return "", fmt.Errorf("we are root, so Postgres is to run as %s, who can make a directory in none of %q; "+
		"point TMPDIR at one that everybody can write to", a.name, bases)
}

// memoryDir is where Linux keeps files in memory. A database is some 300 files, and to copy and drop
// one for each test is ten times as fast there as on many a disk.
const memoryDir = "/dev/shm"

// enoughMemory, in bytes free, for the servers of several test binaries at once. Containers that get
// memoryDir at its usual 64 MiB stay with the disk.
const enoughMemory = 4 << 30

// tempBases returns where to make directories, best first. TMPDIR is somebody's decision and comes
// before what we would choose.
func tempBases() []string {
	bases := []string{os.TempDir(), "/tmp", "/var/tmp"}
	if os.Getenv("TMPDIR") == "" && openToAll(memoryDir) && freeIn(memoryDir) >= enoughMemory {
		bases = append([]string{memoryDir}, bases...)
	}
	return bases
}

// freeIn returns the bytes free in the file system of a directory, or 0.
func freeIn(dir string) uint64 {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize)
}

// openToAll reports whether everybody may create files in dir, and pass through all that is above it.
func openToAll(dir string) bool {
	const pass, write = 0o001, 0o002
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&write == 0 {
		return false
	}
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&pass == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}
