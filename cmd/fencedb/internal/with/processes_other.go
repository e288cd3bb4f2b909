//go:build unix && !linux

package with

import (
	"os"
	"syscall"
	"time"
)

// family is a command with the processes of its group. Without a group of its own it is the command
// alone: those that it has started cannot be told from others.
type family struct {
	command *os.Process
	group   int // of the command; 0: that of this process
}

func newFamily() *family { return &family{} }

// signal sends one to all members, and returns the command if it is another user's, which this one
// may not signal.
func (f *family) signal(s syscall.Signal) (denied []int) {
	pid := -f.group
	if pid == 0 {
		pid = f.command.Pid
	}
	if syscall.Kill(pid, s) == syscall.EPERM {
		return []int{f.command.Pid}
	}
	return nil
}

// gone is closed when there are no members any more. Somebody else has waited for the command.
// Nothing tells when the last one of a group ends, so it asks.
func (f *family) gone() <-chan struct{} {
	none := make(chan struct{})
	go func() {
		defer close(none)
		for f.group != 0 && syscall.Kill(-f.group, 0) != syscall.ESRCH {
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return none
}
