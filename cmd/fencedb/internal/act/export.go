package act

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/migrations"
)

// layout is how a migration tool wants its files.
type layout struct {
	digits int                                         // of a number, where the directory has none to go on from
	files  func(s migrations.Script) map[string]string // the text, by what follows the name
}

var layouts = map[string]layout{
	"goose": {5, func(s migrations.Script) map[string]string {
		return map[string]string{".sql": "-- +goose Up\n-- +goose StatementBegin\n" + s.Up + "-- +goose StatementEnd\n\n" +
			"-- +goose Down\n-- +goose StatementBegin\n" + s.Down + "-- +goose StatementEnd\n"}
	}},
	"golang-migrate": {6, func(s migrations.Script) map[string]string {
		return map[string]string{".up.sql": s.Up, ".down.sql": s.Down}
	}},
	"dbmate": {14, func(s migrations.Script) map[string]string {
		return map[string]string{".sql": "-- migrate:up\n" + s.Up + "\n-- migrate:down\n" + s.Down}
	}},
	"atlas": {14, func(s migrations.Script) map[string]string {
		return map[string]string{".sql": s.Up}
	}},
}

func migrateExport(a *app.State) *cli.Command {
	tools := strings.Join(slices.Sorted(maps.Keys(layouts)), ", ")
	return &cli.Command{
		Name:      "export",
		Usage:     "write them as files of another migration tool",
		ArgsUsage: "DIR",
		Description: `Writes what the tool runs as it is, into its directory of migrations,
with numbers that go on from the highest there. It needs no server. A
migration that was exported before is left alone, so after an upgrade only
the new ones come; one that was edited since is an error, and nothing is
written. For atlas, run atlas migrate hash afterwards; its files have no
down migration.`,
		Flags: []cli.Flag{&cli.StringFlag{Name: "for", Usage: "the `TOOL`: " + tools, Required: true}},
		Action: func(_ context.Context, cmd *cli.Command) error {
			to, known := layouts[cmd.String("for")]
			if !known {
				return app.UsageError("--for is %q; it is one of %s", cmd.String("for"), tools)
			}
			return export(a, to, a.Argument)
		},
	}
}

// exported is a directory of migrations.
type exported struct {
	number int64             // the highest
	digits int               // of it
	names  map[string]string // of its files, by what follows their numbers
}

var numbered = regexp.MustCompile(`^(\d{1,18})_(.*)$`)

func readExported(dir string, digits int) (exported, error) {
	files, err := os.ReadDir(dir)
	there := exported{digits: digits, names: map[string]string{}}
	for _, file := range files {
		parts := numbered.FindStringSubmatch(file.Name())
		if parts == nil {
			continue
		}
		if n, _ := strconv.ParseInt(parts[1], 10, 64); n > there.number { // of at most 18 digits
			there.number, there.digits = n, len(parts[1])
		}
		there.names[parts[2]] = file.Name()
	}
	return there, err
}

// export writes the files that dir lacks, and tells their names.
func export(a *app.State, to layout, dir string) error {
	there, err := readExported(dir, to.digits)
	if err != nil {
		return app.UsageError("%w", err)
	}
	missing := map[string]string{} // texts, by path
	for _, s := range migrations.Scripts() {
		next := there.number
		for suffix, text := range to.files(s) {
			name, known := there.names["fencedb_"+s.Name+suffix]
			if !known {
				next = there.number + 1
				missing[filepath.Join(dir, fmt.Sprintf("%0*d_fencedb_%s%s", there.digits, next, s.Name, suffix))] = text
			} else if old, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(old) != text {
				return errors.Join(fmt.Errorf("%s is not what this command exports; nothing was written. "+
					"A migration that may have run is not edited: put back what was exported", filepath.Join(dir, name)), err)
			}
		}
		there.number = next
	}
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		if err := create(path, missing[path]); err != nil {
			return err
		}
		fmt.Fprintln(a.Out, path)
	}
	return nil
}

// create writes a file that is not there yet.
func create(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(0o644))
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}
