package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

const runbook, repairs = "../docs/runbook.md", "../docs/runbook/repairs.md"

// index is what the tables of the runbook say: the page and the heading that each alert and each
// error is sent to.
func index(t *testing.T) map[string]string {
	t.Helper()
	index := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\x60[^|]*\x60) \|.*\((runbook/.*?#.*?)\)`).FindAllStringSubmatch(pages(t)[runbook], -1) {
		for _, name := range regexp.MustCompile("`(.*?)`").FindAllStringSubmatch(row[1], -1) {
			require.NotContains(t, index, name[1], "named twice")
			index[name[1]] = row[2]
		}
	}
	return index
}

// sections are the texts under the headings of the runbook, by page and anchor as the index has
// them.
func sections(t *testing.T) map[string]string {
	t.Helper()
	sections := map[string]string{}
	for page, text := range pages(t) {
		name, found := strings.CutPrefix(page, "../docs/")
		if !found || !strings.HasPrefix(name, "runbook") {
			continue
		}
		for _, text := range strings.Split(text, "\n## ")[1:] {
			heading, body, _ := strings.Cut(text, "\n")
			sections[name+"#"+anchor(heading)] = body
		}
	}
	return sections
}

// alerts are the runbook_urls of the alert rules, by the name of the alert.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	rules, err := os.ReadFile("../observe/dashboards/rules.yml")
	require.NoError(t, err)
	alerts := map[string]string{}
	for _, rule := range strings.Split(string(rules), "- alert: ")[1:] {
		name, body, _ := strings.Cut(rule, "\n")
		url := regexp.MustCompile(`runbook_url: (\S+)`).FindStringSubmatch(body)
		require.NotNil(t, url, name)
		alerts[name] = url[1]
	}
	require.NotEmpty(t, alerts)
	return alerts
}

// sentinels are the exported errors of both halves, by their qualified names, each with its
// comment.
func sentinels(t *testing.T) map[string]string {
	t.Helper()
	sentinels := map[string]string{}
	for _, half := range []string{"../lease", "../fencedb", "../guard"} {
		require.NoError(t, filepath.WalkDir(half, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() == "internal" {
				return fs.SkipDir // users cannot name what is there
			}
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			for name, comment := range variables(file) {
				if strings.HasPrefix(name, "Err") {
					sentinels[file.Name.Name+"."+name] = comment
				}
			}
			return nil
		}))
	}
	require.NotEmpty(t, sentinels)
	return sentinels
}

// variables are those that file declares outside of functions, each with its comment.
func variables(file *ast.File) map[string]string {
	variables := map[string]string{}
	for _, declaration := range file.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			for _, name := range value.Names {
				variables[name.Name] = value.Doc.Text()
			}
		}
	}
	return variables
}

func TestEveryAlertAndEveryErrorHasASection(t *testing.T) {
	t.Parallel()
	index, sections := index(t), sections(t)
	known := map[string]bool{}
	for name := range alerts(t) {
		known[name] = true
	}
	for name := range sentinels(t) {
		known[name] = true
	}
	for name := range known {
		require.Contains(t, index, name, "the runbook lacks it")
		require.Contains(t, sections[index[name]], "`"+name+"`", "its section does not name it")
	}
	for name := range index {
		require.Contains(t, known, name, "the runbook names what there is not")
	}
}

func TestAlertsLinkToTheirSections(t *testing.T) {
	t.Parallel()
	index := index(t)
	for name, url := range alerts(t) {
		require.Equal(t, "https://github.com/fencedb/fencedb/blob/main/docs/"+index[name], url, name)
	}
}

func TestTheDashboardLinksToSections(t *testing.T) {
	t.Parallel()
	dashboard, err := os.ReadFile("../observe/dashboards/fencedb.json")
	require.NoError(t, err)
	links := regexp.MustCompile(`runbook[a-z/]*\.md#[a-z-]+`).FindAllStringSubmatch(string(dashboard), -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		require.Contains(t, sections(t), link[0])
	}
}

func TestTheRunbookKnowsTheCodeOfEachError(t *testing.T) {
	t.Parallel()
	for name, comment := range sentinels(t) {
		code := regexp.MustCompile(`SQLSTATE (FN\d+)`).FindStringSubmatch(comment)
		if code != nil {
			require.Contains(t, pages(t)[runbook], "| `"+name+"` | "+code[1]+" |")
		}
	}
}

// At night nobody reads prose: each section answers the same questions in the same order.
func TestEverySectionOfTheRunbookHasTheSameForm(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`(?s)\*\*Means\.\*\* .*\*\*Safe\.\*\* .*\*\*Look\.\*\*.*\*\*Do\.\*\*.*\*\*Never\*\* `)
	sections := sections(t)
	for name, anchor := range index(t) {
		require.Regexp(t, form, sections[anchor], name)
	}
}

// The rows that were written while the guard was off, as far as the rows themselves tell.
func TestTheRunbookListsRowsThatCamePastTheGuard(t *testing.T) {
	t.Parallel()
	query := regexp.MustCompile(`(?s)    (SELECT b\.\*.*?);`).FindStringSubmatch(pages(t)[repairs])
	require.NotNil(t, query)
	pool := testenv.Postgres(t)
	for _, sql := range []string{
		`CREATE TABLE bookings (id int PRIMARY KEY, table_id int NOT NULL, guest text)`,
		`INSERT INTO bookings SELECT i, i % 10, 'before' FROM generate_series(1, 9) i`,
		`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`,
		`BEGIN; SELECT fencedb.enter_all(array_agg('table:' || i), array_agg(41), array_agg('6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid)) FROM generate_series(1, 9) i; UPDATE bookings SET guest = 'fenced' WHERE id < 8; COMMIT`,
		`BEGIN; SELECT fencedb.enter('table:2', 42, gen_random_uuid()); UPDATE bookings SET guest = 'fenced' WHERE id = 2; COMMIT`,
		`BEGIN; SELECT fencedb.enter('table:3', 42, gen_random_uuid()); COMMIT`, // it has written nothing
		`ALTER TABLE bookings DISABLE TRIGGER "~fencedb_row"; ALTER TABLE bookings DISABLE TRIGGER "~fencedb_statement"`,
		`INSERT INTO bookings VALUES (11, 1, 'late'), (20, 20, 'late')`, // the second has no fence
		`UPDATE bookings SET guest = 'late' WHERE id IN (3, 8)`,
		`UPDATE bookings SET guest = 'late' WHERE id = 4`, // it has the current token, so this is missed
		`SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`,
		`BEGIN; SELECT fencedb.enter('table:5', 43, gen_random_uuid()); UPDATE bookings SET guest = 'fenced' WHERE id = 5; COMMIT`,
	} {
		_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, sql)
	}

	rows, err := pool.Query(t.Context(), `SELECT id FROM (`+query[1]+`) AS late ORDER BY id`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])

	require.NoError(t, err)
	require.Equal(t, []int{3, 8, 11, 20}, found)
}
