package term

import (
	"os"
	"strconv"

	"golang.org/x/term"
)

// Screen describes the terminal.
type Screen struct {
	Width int // columns; 0: unlimited, as for a file
	Color bool
}

// ScreenOf describes where out leads to, and heeds COLUMNS, NO_COLOR and TERM.
func ScreenOf(out *os.File) Screen {
	terminal := term.IsTerminal(int(out.Fd()))
	var s Screen
	if columns := os.Getenv("COLUMNS"); columns != "" {
		s.Width, _ = strconv.Atoi(columns)
	} else if terminal {
		s.Width, _, _ = term.GetSize(int(out.Fd()))
	}
	s.Color = terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return s
}
