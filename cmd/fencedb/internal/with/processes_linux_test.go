package with

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
)

// With sudo, or a program that is setuid, the command is another user's.
func TestACommandOfAnotherUserIsSaidToGoOn(t *testing.T) {
	t.Parallel()
	text := &strings.Builder{}
	w := &wrapping{Servers: &conn.Servers{State: &app.State{ErrOut: text}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // which ends with this goroutine, as nobody
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534)
		w.mayNot((&family{command: &os.Process{Pid: 1}}).passOn(0, false)) // asks for the right, and sends nothing
	}()
	<-done
	require.Contains(t, text.String(), "no right to signal [1], of another user, as with sudo: it goes on, and fencedb waits for its end")
}
