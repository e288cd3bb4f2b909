package migrations

import (
	"embed"
	"io/fs"
)

//go:embed sql/*.sql
var files embed.FS

// Files returns the migrations as SQL files with goose's annotations, for programs that apply or print them themselves.
func Files() fs.FS {
	sub, err := fs.Sub(files, "sql")
	if err != nil {
		panic("bug: " + err.Error()) // only for an invalid name
	}
	return sub
}
