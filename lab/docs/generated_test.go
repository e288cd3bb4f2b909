package docs

// Pages that are generated from the code, and compared with it.

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dependency is a module that a user downloads.
type dependency struct {
	Path, Version string
	Dir           string   // where its source is
	neededBy      []string // of what we publish
}

// published are the packages that others import or install, as go list takes them.
var published = []string{"lease", "fencedb", "migrations", "guard", "grant", "fencedbtest", "observe", "cmd/fencedb"}

func dependencies(t *testing.T) (all []dependency) {
	t.Helper()
	found := map[string]*dependency{}
	for _, name := range published {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}`, "../"+name+"/...")
		list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0") // the same answer everywhere
		said, err := list.Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(said)) {
			words := strings.Fields(line)
			if len(words) != 3 {
				continue
			}
			d := found[words[0]]
			if d == nil {
				d = &dependency{Path: words[0], Version: words[1], Dir: words[2]}
				found[words[0]] = d
			}
			if !slices.Contains(d.neededBy, name) {
				d.neededBy = append(d.neededBy, name)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[path])
	}
	require.NotEmpty(t, all)
	return all
}

// licences are those that may be in what we publish, by a phrase of their text.
var licences = []struct {
	id, phrase string
	but        string // that is not in it
}{
	{"Apache-2.0", `Apache License,? Version 2\.0`, ""},
	{"BSD-2-Clause", `Redistribution and use in source and binary forms`, `(?i)neither the names?`},
	{"BSD-3-Clause", `(?i)neither the names? .* may be used to endorse`, ""},
	{"MIT", `Permission is hereby granted, free of charge`, ""},
}

// licence is what the text in the module's root says: one, or several with AND.
func licence(t *testing.T, d dependency) string {
	t.Helper()
	var ids []string
	files, err := filepath.Glob(filepath.Join(d.Dir, "LICEN[CS]E*"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		words := strings.Join(strings.Fields(string(text)), " ")
		for _, l := range licences {
			if regexp.MustCompile(l.phrase).MatchString(words) && (l.but == "" || !regexp.MustCompile(l.but).MatchString(words)) && !slices.Contains(ids, l.id) {
				ids = append(ids, l.id)
			}
		}
	}
	slices.Sort(ids)
	require.NotEmpty(t, ids, "%s has no licence that this test knows; read it before you add its phrase", d.Path)
	return strings.Join(ids, " AND ")
}

// The page and the SBOM are what go list says. FENCEDB_DEPENDENCIES=write writes them.
func TestDependenciesAndTheirLicences(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	page.WriteString("# Dependencies\n\n" +
		"The modules that come with what fencedb publishes, and their licences. Who imports only a package of\n" +
		"fencedb pays for those that it needs. The list is generated\n" +
		"(`FENCEDB_DEPENDENCIES=write go test ./lab/docs -run Dependencies`), and a test compares it with what Go\n" +
		"builds (`TestDependenciesAndTheirLicences`); it admits no other licence than these.\n" +
		"[sbom.cdx.json](../sbom.cdx.json) is the same as a bill of materials (CycloneDX), in which\n" +
		"`make release` sets the version. Of tools, tests and benchmarks, see their `go.mod`.\n\n" +
		"| module | version | licence | needed by |\n| --- | --- | --- | --- |\n")
	var components []any
	for _, d := range dependencies(t) {
		fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", d.Path, d.Version, licence(t, d), strings.Join(d.neededBy, ", "))
		components = append(components, map[string]any{
			"type": "library", "name": d.Path, "version": d.Version, "purl": "pkg:golang/" + d.Path + "@" + d.Version,
			"licenses": []any{map[string]string{"expression": licence(t, d)}},
		})
	}
	sbom, err := os.ReadFile("../sbom.cdx.json")
	if err != nil {
		sbom = []byte(`{"metadata": {"component": {"version": "unreleased"}}}`)
	}
	var before struct {
		Metadata struct{ Component struct{ Version string } }
	}
	require.NoError(t, json.Unmarshal(sbom, &before))
	const module = "github.com/fencedb/fencedb"
	wanted, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata": map[string]any{"component": map[string]any{
			"type": "library", "name": module, "version": before.Metadata.Component.Version,
			"licenses": []any{map[string]string{"expression": "MIT"}},
		}},
		"components": components,
	}, "", "  ")
	require.NoError(t, err)
	if os.Getenv("FENCEDB_DEPENDENCIES") == "write" {
		require.NoError(t, os.WriteFile("dependencies.md", []byte(page.String()), 0o600))
		require.NoError(t, os.WriteFile("../sbom.cdx.json", append(wanted, '\n'), 0o600))
		return
	}
	shown, err := os.ReadFile("dependencies.md")
	require.NoError(t, err)
	const repair = "FENCEDB_DEPENDENCIES=write go test ./lab/docs -run Dependencies writes both anew"
	require.Equal(t, page.String(), string(shown), repair)
	require.JSONEq(t, string(wanted), string(sbom), repair)
}

// configured are the packages with a Config, by directory.
var configured = []string{"lease", "lease/once", "lease/admission", "observe/prom", "observe/slog", "observe/otel", "observe/ready"}

// optioned are those whose functions return an Option.
var optioned = []string{"lease", "fencedb", "observe/feed"}

// parsed are the files of a package, by name.
func parsed(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob("../" + dir + "/*.go")
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			require.NoError(t, err)
			files = append(files, file)
		}
	}
	return files
}

// prose is a comment as it is shown in a table: without code and what introduces it, and links to
// names are set as code.
func prose(comment string) string {
	comment = regexp.MustCompile(`[^.]*:\n\n(?:\t.*\n)+`).ReplaceAllString(comment, "\n")
	text := strings.TrimSuffix(strings.Join(strings.Fields(comment), " "), ":")
	text = regexp.MustCompile(`\[(\*?[A-Za-z]+(?:\.[A-Za-z]+)*)\]`).ReplaceAllString(text, "`$1`")
	return strings.ReplaceAll(text, "|", `\|`)
}

// ending is where a field says what it is when nothing was set.
var ending = regexp.MustCompile(`^(.*?)\s*\b(Required\b.*|Defaults to .*)$`)

func configuration(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	page.WriteString("# Configuration\n\n" +
		"Every setting of the packages, from the comments on the code. The page is generated, and a test\n" +
		"compares it with the code (`TestTheConfigurationIsThatOfTheCode`;\n" +
		"`FENCEDB_CONFIGURATION=write go test ./lab/docs -run Configuration` writes it). The flags and variables\n" +
		"of the command are in [command.md](command.md), the numbers to begin with in [ttl.md](ttl.md) and\n" +
		"[production.md](production.md).\n")
	for _, dir := range configured {
		for _, file := range parsed(t, dir) {
			ast.Inspect(file, func(node ast.Node) bool {
				spec, is := node.(*ast.TypeSpec)
				if !is || spec.Name.Name != "Config" {
					return true
				}
				fmt.Fprintf(&page, "\n## %s.Config\n\n| field | what it is | if it is not set |\n| --- | --- | --- |\n", dir)
				for _, field := range spec.Type.(*ast.StructType).Fields.List {
					for _, name := range field.Names {
						if !name.IsExported() {
							continue
						}
						text := prose(field.Doc.Text())
						parts := ending.FindStringSubmatch(text)
						if parts == nil {
							t.Errorf("%s.Config.%s does not say \"Required\" or \"Defaults to ...\" at its end: %s", dir, name.Name, text)
							continue
						}
						fmt.Fprintf(&page, "| `%s` | %s | %s |\n", name.Name, parts[1], parts[2])
					}
				}
				return false
			})
		}
	}
	for _, dir := range optioned {
		var rows strings.Builder
		for _, file := range parsed(t, dir) {
			for _, decl := range file.Decls {
				f, is := decl.(*ast.FuncDecl)
				if !is || f.Recv != nil || !f.Name.IsExported() || f.Type.Results == nil || len(f.Type.Results.List) != 1 {
					continue
				}
				if result, is := f.Type.Results.List[0].Type.(*ast.Ident); is && result.Name == "Option" {
					paragraph, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
					fmt.Fprintf(&rows, "| `%s` | %s |\n", f.Name.Name, prose(paragraph))
				}
			}
		}
		require.NotEmpty(t, rows.String(), dir)
		fmt.Fprintf(&page, "\n## Options of %s\n\n| option | what it does |\n| --- | --- |\n%s", dir, rows.String())
	}
	return page.String()
}

func TestTheConfigurationIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	page := configuration(t)
	if os.Getenv("FENCEDB_CONFIGURATION") == "write" {
		require.NoError(t, os.WriteFile("configuration.md", []byte(page), 0o600))
		return
	}
	shown, err := os.ReadFile("configuration.md")
	require.NoError(t, err)
	require.Equal(t, page, string(shown), "FENCEDB_CONFIGURATION=write go test ./lab/docs -run Configuration writes it anew")
}
