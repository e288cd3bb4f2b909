package with

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// family is a command with all processes that it and its descendants start, in whatever group or
// session they are.
type family struct {
	command *os.Process
	group   int          // of the command; 0: that of this process
	before  map[int]bool // children of this process that are not of the family
}

// newFamily makes this process the parent of descendants whose own parent ends. So none of them
// gets out of sight, and there are none if this process has no child.
func newFamily() *family {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // otherwise their parent is process 1, or another reaper
	f := &family{before: map[int]bool{}}
	for _, child := range processes()[os.Getpid()] {
		f.before[child.pid] = true
	}
	return f
}

type process struct {
	pid   int
	ended bool // and not waited for
}

// processes are those of this machine, by their parents.
func processes() map[int][]process {
	all := map[int][]process{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // empty if it has ended since
		name := strings.LastIndex(string(text), ")")
		fields := strings.Fields(string(text[name+1:])) // state, parent
		if len(fields) < 2 {
			continue
		}
		pid, err1 := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, err2 := strconv.Atoi(fields[1])
		if cmp.Or(err1, err2) == nil {
			all[parent] = append(all[parent], process{pid, fields[0] == "Z"})
		}
	}
	return all
}

// members are those that have not ended.
func (f *family) members() (pids []int) {
	all := processes()
	for parents := []int{os.Getpid()}; len(parents) > 0; parents = parents[1:] {
		for _, child := range all[parents[0]] {
			if f.before[child.pid] && parents[0] == os.Getpid() {
				continue
			}
			parents = append(parents, child.pid)
			if !child.ended {
				pids = append(pids, child.pid)
			}
		}
	}
	return pids
}

// signal sends one to all members, or to the group where /proc is not there to name them, and
// returns those that are another user's, which this one may not signal.
func (f *family) signal(s syscall.Signal) (denied []int) {
	pids := f.members()
	if len(pids) == 0 && f.group != 0 {
		pids = []int{-f.group}
	}
	for _, pid := range pids {
		if syscall.Kill(pid, s) == syscall.EPERM {
			denied = append(denied, pid)
		}
	}
	return denied
}

// gone is closed when there are no members any more. Somebody else has waited for the command. What
// a child leaves behind belongs to this process before the end of the child is known, so no member
// is left where no child is.
func (f *family) gone() <-chan struct{} {
	none := make(chan struct{})
	go func() {
		defer close(none)
		for {
			waited := false
			for _, child := range processes()[os.Getpid()] {
				if !f.before[child.pid] {
					_, _ = syscall.Wait4(child.pid, nil, 0, nil)
					waited = true
				}
			}
			if !waited {
				return
			}
		}
	}()
	return none
}
