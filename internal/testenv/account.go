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
	var refused []string
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if a != nil && !openToAll(base) {
			refused = append(refused, base)
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
	return "", fmt.Errorf("the user %s, whom Postgres is to run as because we are root, can make no directory in any of %q; point TMPDIR at one that everybody can write to", a.name, refused)
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
