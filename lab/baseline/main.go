// Command baseline prints what a change of the house must not change, one fact in a line: what each
// published package exports, the digest of each script, every object of the schema, every text of
// two words and more, and the names of guards and tests. Run it at the root of the repository
// before the change and after it:
//
//	go run ./lab/baseline >before
//	go run ./lab/baseline | diff before -
//
// What it does not print is asserted by tests: round trips, statements and allocations, and the
// functions from a call to the wire.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var all facts
	err := errors.Join(all.ofTree("."), all.ofSchema(ctx))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
	fmt.Println(all)
}

type facts []string

func (f *facts) add(kind string, words ...string) {
	*f = append(*f, kind+" "+strings.Join(strings.Fields(strings.Join(words, " ")), " "))
}

var (
	// unpublished is where no user sees exports and texts.
	unpublished = regexp.MustCompile(`^(examples|lab|internal/(faulty|leasetest|testenv|tools|worker))/`)

	tests  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	guards = regexp.MustCompile(`(?m)^\t\t\{("[SL][1-8]", ".*?)",`)
	quoted = regexp.MustCompile(`'(?:[^'\n]|'')* (?:[^'\n]|'')*'`)
)

func (f facts) String() string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(f))), "\n")
}

// ofTree adds what the files of a checkout say.
func (f *facts) ofTree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, "_test.go") || !unpublished.MatchString(name) {
			return f.ofFile(name, path)
		}
		return nil
	})
}

// ofFile adds what one file says.
func (f *facts) ofFile(name, path string) error {
	extension := filepath.Ext(name)
	if extension != ".go" && extension != ".lua" && extension != ".sql" {
		return nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // a file of this repository
	if err != nil {
		return err
	}
	switch {
	case strings.HasSuffix(name, "_test.go"):
		for _, m := range tests.FindAllSubmatch(text, -1) {
			f.add("test", filepath.Dir(name), string(m[1]))
		}
		for _, m := range guards.FindAllSubmatch(text, -1) {
			f.add("guard", string(m[1]))
		}
	case extension == ".go":
		return f.ofCode(name, text)
	case extension == ".lua":
		f.add("script", fmt.Sprintf("%s %x", name, sha256.Sum256(text)))
		fallthrough
	default:
		for _, literal := range quoted.FindAll(text, -1) {
			f.add("text", filepath.Dir(name), string(literal))
		}
	}
	return nil
}

// ofCode adds the texts of a Go file, and what it exports.
func (f *facts) ofCode(name string, text []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			return n.Tag == nil
		case *ast.BasicLit:
			if n.Kind == token.STRING && strings.Contains(n.Value, " ") {
				f.add("text", filepath.Dir(name), n.Value)
			}
		}
		return true
	})
	if file.Name.Name == "main" || strings.Contains(name, "internal/") || !ast.FileExports(file) {
		return nil
	}
	for _, decl := range file.Decls {
		if fn, is := decl.(*ast.FuncDecl); is {
			if fn.Recv != nil && !ast.IsExported(strings.TrimLeft(types.ExprString(fn.Recv.List[0].Type), "*")) {
				continue
			}
			fn.Body = nil
		}
		var out bytes.Buffer
		if err := format.Node(&out, files, decl); err != nil {
			return err
		}
		f.add("export", filepath.Dir(name), out.String())
	}
	return nil
}

// ofSchema adds the objects of the schema, as the migrations make them in a new database, each with
// the digest of its definition; comments in the body of a function do not count.
func (f *facts) ofSchema(ctx context.Context) (err error) {
	env, err := testenv.Start(ctx, testenv.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	config, err := pgx.ParseConfig(env.PostgresURL)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	rows, err := db.QueryContext(ctx, `
		SELECT 'function ' || p.oid::regprocedure || ' ' || md5(regexp_replace(concat(pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid)), '\s(--[^\n]*)?', '', 'g'))
		FROM pg_proc p WHERE p.pronamespace = 'fencedb'::regnamespace
		UNION ALL
		SELECT concat(CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'i' THEN 'index ' WHEN 'S' THEN 'sequence ' ELSE 'table ' END,
			c.oid::regclass, ' ', md5(concat(c.relpersistence, c.relacl, c.reloptions, obj_description(c.oid), pg_get_viewdef(c.oid),
				(SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
					pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)), ',' ORDER BY a.attnum)
				 FROM pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
				 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))))
		FROM pg_class c WHERE c.relnamespace = 'fencedb'::regnamespace
		UNION ALL
		SELECT concat_ws(' ', 'constraint', n.conrelid::regclass, n.conname, pg_get_constraintdef(n.oid))
		FROM pg_constraint n WHERE n.connamespace = 'fencedb'::regnamespace AND n.conrelid <> 0
		UNION ALL
		SELECT concat_ws(' ', 'trigger', md5(pg_get_triggerdef(t.oid)), t.tgrelid::regclass, t.tgname)
		FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'fencedb'::regnamespace AND NOT t.tgisinternal`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var object string
		if err := rows.Scan(&object); err != nil {
			return err
		}
		f.add("schema", object)
	}
	return rows.Err()
}
