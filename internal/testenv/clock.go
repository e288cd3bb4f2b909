package testenv

import (
	_ "embed" // the library
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

//go:embed clock.c.txt
var clockCode []byte // not named .c, or go build would want cgo

// RedisWithClock is [OwnRedis] with a clock of its own, which setBack puts back by so much more, at
// once; the data stays. It needs a C compiler, and Linux.
func RedisWithClock(t testing.TB) (server *RedisServer, setBack func(time.Duration)) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("a server gets a clock of its own through LD_PRELOAD, which only Linux has")
	}
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, content, 0o700))
		return path
	}
	clock, behind := file("clock", make([]byte, 8)), time.Duration(0)
	library := filepath.Join(dir, "clock.so")
	_, err := output(t.Context(), "cc", "-shared", "-fPIC", "-o", library, file("clock.c", clockCode))
	check(t, err)
	// exec, so that the process is the server itself.
	program := file("redis-server", fmt.Appendf(nil, "#!/bin/sh\nCLOCK_BEHIND='%s' LD_PRELOAD='%s' exec '%s' \"$@\"\n", clock, library, redisProgram(t)))

	return ownRedis(t, program, ""), func(by time.Duration) {
		t.Helper()
		behind += by
		// The server has the file mapped: it is written to, not replaced.
		f, err := os.OpenFile(clock, os.O_WRONLY, 0)
		check(t, err)
		defer f.Close()
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(behind.Microseconds())), 0)
		check(t, err)
	}
}
