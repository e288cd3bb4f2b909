package look

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/migrations"
)

// Version is the command version.
func Version(a *app.State) *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the release and commit of this command",
		Description: `Prints the version of the module, the commit that it was built from, that of
Go, and the newest migration that it brings. It asks no server: fencedb
migrate status prints which migrations a database has.

   fencedb version --json`,
		Action: func(context.Context, *cli.Command) error { return a.Show(BuiltFrom()) },
	}
}

// Origin is the result of version.
type Origin struct {
	Version  string `json:"version"`  // of the module
	Revision string `json:"revision"` // of the checkout; "": it was built from a module, not from a checkout
	Modified bool   `json:"modified"` // the checkout had changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Schema   string `json:"schema"` // the newest migration
}

// BuiltFrom is what this command was built from.
func BuiltFrom() *Origin {
	scripts := migrations.Scripts()
	newest := scripts[len(scripts)-1]
	o := &Origin{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Schema: fmt.Sprintf("%05d_%s", newest.Version, newest.Name)}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return o
	}
	o.Version = info.Main.Version
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			o.Revision = setting.Value
		case "vcs.modified":
			o.Modified = setting.Value == "true"
		}
	}
	return o
}

// Print implements [term.Report].
func (o *Origin) Print(p term.Page) {
	commit := o.Revision
	switch {
	case commit == "":
		commit = "not known"
	case o.Modified:
		commit += ", with changes"
	}
	p.Facts([2]string{"VERSION", o.Version}, [2]string{"COMMIT", commit}, [2]string{"GO", o.Go + " " + o.Platform},
		[2]string{"SCHEMA", o.Schema})
}
