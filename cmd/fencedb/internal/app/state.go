// Package app has what every command needs: flags, input and output, questions, errors and exit
// codes.
package app

import (
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	xterm "golang.org/x/term"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
)

// State is the command with its input and output, and the flags that every command has.
type State struct {
	In          io.Reader
	Out, ErrOut io.Writer
	Screen      term.Screen
	Watched     bool   // ErrOut is a terminal
	checked     bool   // the call is no usage error of the parser
	noHelp      error  // there is none for what was asked for, and the library has no way back for that error
	Argument    string // the first one of the command, or ""
	Changed     string // what may have been changed if the command fails now; "": nothing
	waiting     bool   // for a server, of which a person is told

	PostgresURL, RedisURL string
	Names                 Names
	JSON, yes             bool
	Timeout               time.Duration

	Ahead term.Clocks
}

// New is the state of a process with these streams.
func New(in, out, errOut *os.File) *State {
	watched := xterm.IsTerminal(int(errOut.Fd()))
	return &State{In: in, Out: out, ErrOut: errOut, Screen: term.ScreenOf(out), Watched: watched}
}

// Heeded are SIGTERM and those of the signals that the caller has not switched off, as nohup does.
func Heeded(signals ...os.Signal) []os.Signal {
	return append(slices.DeleteFunc(slices.Clone(signals), signal.Ignored), syscall.SIGTERM)
}
