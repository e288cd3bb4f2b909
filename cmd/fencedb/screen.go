package main

import (
	"os"
	"strconv"

	"golang.org/x/term"
)

// screen is what the output is shown on.
type screen struct {
	width int // columns; 0: as wide as it likes, as for a file
	color bool
}

func screenOf(out *os.File, lookup func(string) (string, bool)) screen {
	terminal := term.IsTerminal(int(out.Fd()))
	var s screen
	if columns, _ := lookup("COLUMNS"); columns != "" {
		s.width, _ = strconv.Atoi(columns)
	} else if terminal {
		s.width, _, _ = term.GetSize(int(out.Fd()))
	}
	plain, _ := lookup("NO_COLOR")
	kind, _ := lookup("TERM")
	s.color = terminal && plain == "" && kind != "dumb"
	return s
}
