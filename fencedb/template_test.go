package fencedb_test

import (
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func TestTemplatesThatAreWrongSayWhatAndWhere(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":               "character 1: it must be UTF-8 without NUL, and not empty",
		"a\x00b":         "without NUL",
		"a\xff":          "UTF-8",
		"sku:{sku":       "character 5: this brace belongs to no {column}",
		"ü:{sku":         "character 3: this brace belongs to no {column}",
		"{":              "character 1: this brace belongs to no {column}",
		"{{{":            "character 3: this brace belongs to no {column}",
		"sku:{}":         "character 5: this brace belongs to no {column}",
		"sku:{a{b}":      "character 5: this brace belongs to no {column}",
		"sku:}":          "character 5: this brace belongs to no {column}",
		"sku:{sku}}":     "character 10: this brace belongs to no {column}",
		"{a}{b}":         "character 4: it touches the column before",
		"x{a}{a}":        "character 5: it touches the column before",
		"sku:{sku}}}{{{": "character 14: this brace belongs to no {column}",
	} {
		_, err := fencedb.ParseTemplate(text)
		require.ErrorContains(t, err, says, "%q", text)
		require.PanicsWithError(t, err.Error(), func() { fencedb.MustTemplate(text) })
	}
}

type status string

type foreignUUID [16]byte

func TestATemplateFormatsWhatPostgresWould(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0B6F8F64-0000-4000-8000-00000000000A")
	digits, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	for _, c := range []struct {
		template string
		values   []any
		want     string
	}{
		{"config:global", nil, "config:global"},
		{"{{{a}}}", []any{1}, "{1}"},
		{"{{a}}:{a}", []any{1}, "{a}:1"},
		{"{a}:{b}:{a}", []any{1, 2}, "1:2:1"},
		{"{any name, even -- this}!", []any{1}, "1!"},
		{"sku:{sku}", []any{int64(math.MinInt64)}, "sku:-9223372036854775808"},
		{"sku:{sku}", []any{uint64(math.MaxUint64)}, "sku:18446744073709551615"},
		{"sku:{sku}", []any{int16(7)}, "sku:7"},
		{"sku:{sku}", []any{"A-7 {x} ü"}, "sku:A-7 {x} ü"},
		{"sku:{sku}", []any{""}, "sku:"},
		{"is:{paid}", []any{true}, "is:true"},
		{"is:{paid}", []any{false}, "is:false"},
		{"job:{state}", []any{status("NEW")}, "job:NEW"},
		{"id:{id}", []any{id}, "id:0b6f8f64-0000-4000-8000-00000000000a"},
		{"id:{id}", []any{[16]byte(id)}, "id:0b6f8f64-0000-4000-8000-00000000000a"},
		{"id:{id}", []any{foreignUUID(id)}, "id:0b6f8f64-0000-4000-8000-00000000000a"},
		{"id:{id}", []any{pgtype.UUID{Bytes: id, Valid: true}}, "id:0b6f8f64-0000-4000-8000-00000000000a"},
		{"on:{day}", []any{time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)}, "on:0001-01-01"},
		{"on:{day}", []any{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}, "on:9999-12-31"},
		{"on:{day}", []any{pgtype.Date{Time: time.Date(2026, 2, 3, 0, 0, 0, 0, time.UTC), Valid: true}}, "on:2026-02-03"},
		{"n:{n}", []any{digits}, "n:123456789012345678901234567890"},
		{"n:{n}", []any{pgtype.Numeric{Int: big.NewInt(-12), Exp: 3, Valid: true}}, "n:-12000"},
		{"x:{x}", []any{strings.Repeat("x", 510)}, "x:" + strings.Repeat("x", 510)},
	} {
		template, err := fencedb.ParseTemplate(c.template)
		require.NoError(t, err, c.template)
		require.Equal(t, c.template, template.String())

		got, err := template.Format(c.values...)

		require.NoError(t, err, c.template)
		require.Equal(t, c.want, got)
		if c.template == "{a}:{b}:{a}" {
			continue // Parse does not read that
		}
		values, err := template.Parse(got)
		require.NoError(t, err)
		require.Len(t, values, len(c.values))
	}
}

func TestATemplateRefusesWhatHasNoStableText(t *testing.T) {
	t.Parallel()
	sku := fencedb.MustTemplate("sku:{sku}")
	for _, c := range []struct {
		value any
		says  string
	}{
		{nil, `column "sku": a <nil>`},
		{1.5, "a float64 with the value 1.5"},
		{[]byte("raw"), "a []uint8"},
		{[3]byte{}, "a [3]uint8"},
		{(*big.Int)(nil), "a *big.Int"},
		{pgtype.UUID{}, "a pgtype.UUID"},
		{pgtype.Date{}, "a pgtype.Date"},
		{pgtype.Date{InfinityModifier: pgtype.Infinity, Valid: true}, "a pgtype.Date"},
		{pgtype.Numeric{}, "a pgtype.Numeric"},
		{pgtype.Numeric{NaN: true, Valid: true}, "a pgtype.Numeric"},
		{pgtype.Numeric{Int: big.NewInt(15), Exp: -1, Valid: true}, "a pgtype.Numeric"},
		{time.Date(2026, 1, 1, 0, 0, 0, 1, time.UTC), "has a time of day"},
		{time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC), "not in the years 1 to 9999"},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "not in the years 1 to 9999"},
		{"a\x00", "without NUL"},
		{"a\xff", "UTF-8"},
		{strings.Repeat("x", 509), "1 to 512 bytes, it has 513"},
	} {
		_, err := sku.Format(c.value)
		require.ErrorContains(t, err, c.says)
	}
	_, err := sku.Format()
	require.ErrorContains(t, err, `needs values for ["sku"], it got 0`)
	_, err = fencedb.MustTemplate("{sku}").Format("")
	require.ErrorContains(t, err, "1 to 512 bytes, it has 0")
}

func TestATemplateReadsAResource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, resource string
		want               map[string]string // nil: it does not make that
	}{
		{"config:global", "config:global", map[string]string{}},
		{"config:global", "config:local", nil},
		{"sku:{sku}", "sku:12", map[string]string{"sku": "12"}},
		{"sku:{sku}", "sku:", map[string]string{"sku": ""}},
		{"sku:{sku}", "SKU:12", nil},
		{"sku:{sku}", "", nil},
		{"{{{sku}}}", "{12}", map[string]string{"sku": "12"}},
		{"{a}/{b}", "1/2", map[string]string{"a": "1", "b": "2"}},
		{"{a}/{b}", "ü/é", map[string]string{"a": "ü", "b": "é"}},
		{"{a}/{b}", "\n/\xff", map[string]string{"a": "\n", "b": "\xff"}},
		{"{a}x{b}x{c}x{d}x{e}x{f}x{g}x{h}y", strings.Repeat("x", 500), nil}, // and soon
	} {
		got, err := fencedb.MustTemplate(c.template).Parse(c.resource)
		if c.want == nil {
			require.ErrorContains(t, err, "does not make the resource")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := fencedb.MustTemplate("{a}-{b}").Parse("1-2-3")
	require.ErrorContains(t, err, "in more than one way")
	require.ErrorContains(t, err, `map["a":"1" "b":"2-3"]`)
	require.ErrorContains(t, err, `map["a":"1-2" "b":"3"]`)
	_, err = fencedb.MustTemplate("{a}/{a}").Parse("1/1")
	require.ErrorContains(t, err, "names a column twice")
}

// What is formatted is read again as it was, or it is said that there is another reading.
func FuzzATemplateReadsWhatItFormats(f *testing.F) {
	f.Add("sku:{a}-{b}", "1", "2-3")
	f.Add("{a}{{}}{b}{{}}", "{}", "")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		template, err := fencedb.ParseTemplate(text)
		if err != nil || len(template.Columns()) != 2 {
			return
		}
		resource, err := template.Format(a, b)
		if err != nil {
			return
		}
		got, err := template.Parse(resource)
		if err != nil {
			require.Regexp(t, "in more than one way|names a column twice", err)
			return
		}
		columns := template.Columns()
		require.Equal(t, map[string]string{columns[0]: a, columns[1]: b}, got)
	})
}

// protect reads the same templates, and its resources are the same text.
func TestATemplateSaysWhatPostgresSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TYPE state AS ENUM ('NEW', 'it''s "done"')`)
	w.exec(`CREATE DOMAIN sku AS text CHECK (value <> 'none')`)
	w.exec(`CREATE TABLE everything (s smallint NOT NULL, i int NOT NULL, b bigint NOT NULL, n numeric(38,0) NOT NULL, ok boolean NOT NULL,
		t text NOT NULL, v varchar(20) NOT NULL, c char(5) NOT NULL, u uuid NOT NULL, d date NOT NULL, e state NOT NULL, k sku NOT NULL,
		"any name, even -- ""this"" %s" int NOT NULL)`)
	w.exec(`INSERT INTO everything VALUES
		(0, 0, 0, 0, true, '', '', '', '00000000-0000-0000-0000-000000000000', '0001-01-01', 'NEW', '', 0),
		(-32768, -2147483648, -9223372036854775808, -99999999999999999999999999999999999999, false, 'ü {x} %s \', ' a ', ' a ',
			'FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF', '9999-12-31', 'it''s "done"', '12', -1),
		(32767, 2147483647, 9223372036854775807, 10000000000000000000000, true, E'a\nb', 'x', 'abcde', gen_random_uuid(), '2024-02-29', 'NEW', 'A', 7)`)
	texts := []string{"config:global", "{{{s}}}:%", "i:{i}", "b:{b}", "n:{n}", "ok:{ok}", "t:{t}", "v:{v}", "c:{c}", "u:{u}", "d:{d}", "e:{e}", "k:{k}",
		`x:{any name, even -- "this" %s}`, "{s}-{i}/{s}"}
	w.exec(`SELECT fencedb.protect('everything', resource => $1::text[])`, texts)
	var resources string
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT string_agg(format(r.expression, 'r'), ', ' ORDER BY i)
		FROM unnest($1::text[]) WITH ORDINALITY u(t, i), fencedb.read_template('everything', t) r`, texts).Scan(&resources))

	settings := []string{`datestyle = default`, `timezone = 'Asia/Tokyo'`, `extra_float_digits = -12`, `bytea_output = 'escape'`, `intervalstyle = 'iso_8601'`, `standard_conforming_strings = off`,
		`quote_all_identifiers = on`, `array_nulls = off`, `transform_null_equals = on`, `search_path = pg_temp, public`, `lc_time = 'C'`, `lc_numeric = 'C'`, `lc_monetary = 'C'`, `lc_messages = 'C'`}
	for _, style := range []string{"ISO", "SQL", "Postgres", "German"} {
		for _, order := range []string{"MDY", "DMY", "YMD"} {
			settings = append(settings, `datestyle = '`+style+`, `+order+`'`)
		}
	}
	for _, mode := range queryModes {
		conn, err := w.poolIn(mode).Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for _, setting := range settings {
			_, err := conn.Exec(t.Context(), `RESET ALL; SET `+setting, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			rows, err := conn.Query(t.Context(), `SELECT r.*, ARRAY[`+resources+`] AS resources FROM everything r`)
			var all []map[string]any
			if err == nil {
				all, err = pgx.CollectRows(rows, pgx.RowToMap)
			}
			if err != nil { // pgx reads no text of another style, and so makes no other date of it
				require.Regexp(t, "datestyle = '(SQL|Postgres|German)|standard_conforming_strings", setting)
				require.Regexp(t, "invalid PostgreSQL date/time value|standard_conforming_strings", err.Error())
				continue
			}
			require.Len(t, all, 3)
			for _, row := range all {
				row["c"] = strings.TrimRight(row["c"].(string), " ")
				for i, text := range texts {
					template := fencedb.MustTemplate(text)
					var values []any
					for _, column := range template.Columns() {
						values = append(values, row[column])
					}
					got, err := template.Format(values...)
					require.NoError(t, err, "%v, %s: %s", mode, setting, text)
					require.Equal(t, row["resources"].([]any)[i], got, "%v, %s: %s", mode, setting, text)
				}
			}
		}
	}
	for _, text := range []string{"", "i:{i", "i:{}", "i:{a{b}", "i:}", "i:{i}}", "{s}{i}", "{{{"} {
		_, err := fencedb.ParseTemplate(text)
		require.Error(t, err, text)
		_, err = w.pool.Exec(t.Context(), `SELECT fencedb.protect('everything', resource => $1::text)`, text)
		require.ErrorContains(t, err, "fencedb.protect", text)
	}
}
