package docs

// What is compared with the code: the bill of materials, and what go doc says of settings.

import (
	"encoding/json"
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
	Dir           string // where its source is
}

// published are the packages that others import or install, as go list takes them.
var published = []string{"lease", "fencedb", "migrations", "guard", "grant", "fencedbtest", "observe", "cmd/fencedb"}

func dependencies(t *testing.T) (all []dependency) {
	t.Helper()
	found := map[string]dependency{}
	for _, name := range published {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}`, "../"+name+"/...")
		list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0") // the same answer everywhere
		said, err := list.Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(said)) {
			words := strings.Fields(line)
			if len(words) == 3 {
				found[words[0]] = dependency{Path: words[0], Version: words[1], Dir: words[2]}
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[path])
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

// The SBOM is what go list says. FENCEDB_DEPENDENCIES=write writes it.
func TestDependenciesAndTheirLicences(t *testing.T) {
	t.Parallel()
	var components []any
	for _, d := range dependencies(t) {
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
		require.NoError(t, os.WriteFile("../sbom.cdx.json", append(wanted, '\n'), 0o600))
		return
	}
	require.JSONEq(t, string(wanted), string(sbom), "FENCEDB_DEPENDENCIES=write go test ./lab/docs -run Dependencies writes it anew")
}

// configured are the packages with a Config, by directory.
var configured = []string{"lease", "lease/once", "lease/admission", "observe/prom", "observe/slog", "observe/otel", "observe/ready"}

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

// Each field says at its end what it is when nothing was set, as go doc shows it.
func TestEverySettingSaysItsDefault(t *testing.T) {
	t.Parallel()
	for _, dir := range configured {
		fields := 0
		for _, file := range parsed(t, dir) {
			ast.Inspect(file, func(node ast.Node) bool {
				spec, is := node.(*ast.TypeSpec)
				if !is || spec.Name.Name != "Config" {
					return true
				}
				for _, field := range spec.Type.(*ast.StructType).Fields.List {
					for _, name := range field.Names {
						if name.IsExported() {
							fields++
							doc := strings.Join(strings.Fields(field.Doc.Text()), " ")
							require.Regexp(t, `\b(Required\b|Defaults to ).*$`, doc, "%s.Config.%s", dir, name.Name)
						}
					}
				}
				return false
			})
		}
		require.NotZero(t, fields, dir)
	}
}
