package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each name that a user of the door, of a grant on its way, or of a repository can write has an
// Example.
func TestEachExportedNameHasAnExample(t *testing.T) {
	t.Parallel()
	for dir, only := range map[string]string{"guard": "", "grant": "", "grant/grpc": "", "fencedb": "Repository"} {
		names, examples := map[string]bool{}, map[string]bool{}
		for _, file := range examined(t, "../"+dir) {
			for _, decl := range file.Decls {
				for _, name := range exported(decl) {
					if example, is := strings.CutPrefix(name, "Example"); is {
						examples[example] = true
					} else if strings.Contains(name, only) && !strings.HasSuffix(file.Name.Name, "_test") {
						names[name] = true
					}
				}
			}
		}
		require.NotEmpty(t, names, dir)
		for name := range names {
			require.True(t, examples[name], "%s: there is no Example%s", dir, name)
		}
	}
}

func examined(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	require.NoError(t, err)
	for _, path := range paths {
		if name := filepath.Base(path); strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "example") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	return files
}

// exported are the names of a declaration, a method as T_M, without those of types that are not
// exported.
func exported(decl ast.Decl) (names []string) {
	add := func(name string) {
		if ast.IsExported(name) {
			names = append(names, name)
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name.Name)
		} else if of := receiver(d.Recv.List[0].Type); d.Name.IsExported() {
			add(of + "_" + d.Name.Name)
		}
	case *ast.GenDecl:
		if d.Tok == token.CONST && len(d.Specs) > 1 { // the values of a type, which has an example itself
			return nil
		}
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				add(s.Name.Name)
			case *ast.ValueSpec:
				for _, name := range s.Names {
					add(name.Name)
				}
			}
		}
	}
	return names
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr: // of a generic type
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
