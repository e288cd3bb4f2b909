package fencedb

import (
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Template tells the resource of a row by its columns, as fencedb.protect does: literal text,
// {column} for the text of a column, {{ and }} for braces. Two columns never touch: {a}{b} would
// say 12 for 1 and 2 as for 12 and nothing.
//
//	var skus = fencedb.MustTemplate("sku:{sku}")
//
//	resource, err := skus.Format(4711) // sku:4711
//	lease, err := issuer.Acquire(ctx, resource)
//
// A column is named as Postgres has it, without quotes: any text but braces. A row that belongs to
// several resources has a template for each.
type Template struct {
	text    string
	parts   []part
	columns []string
}

// part is literal text, or a column.
type part struct {
	text   string
	column bool
}

// ParseTemplate reads a template. Its error says what is wrong, and at which character.
func ParseTemplate(text string) (*Template, error) {
	t := &Template{text: text}
	wrong := func(at int, what string) error {
		return fmt.Errorf("fencedb: the template %q is wrong at character %d: %s", text, utf8.RuneCountInString(text[:at])+1, what)
	}
	if text == "" || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, wrong(0, "it must be UTF-8 without NUL, and not empty")
	}
	var literal strings.Builder
	for i := 0; i < len(text); {
		pair, open := text[i:min(i+2, len(text))], text[i] == '{'
		switch {
		case pair == "{{", pair == "}}":
			literal.WriteByte(text[i])
			i += 2
		case open:
			name, _, closed := strings.Cut(text[i+1:], "}")
			switch {
			case !closed:
				return nil, wrong(i, "this { is not closed; write {{ for a brace")
			case strings.Contains(name, "{"):
				return nil, wrong(i+1+strings.Index(name, "{"), "a column's name has no {")
			case name == "":
				return nil, wrong(i, "{} names no column")
			case i > 0 && literal.Len() == 0:
				return nil, wrong(i, "it touches the column before; put text between them, so that they can be told apart")
			}
			if literal.Len() > 0 {
				t.parts = append(t.parts, part{text: literal.String()})
				literal.Reset()
			}
			t.parts = append(t.parts, part{name, true})
			if !slices.Contains(t.columns, name) {
				t.columns = append(t.columns, name)
			}
			i += len(name) + 2
		case text[i] == '}':
			return nil, wrong(i, "this } closes nothing; write }} for a brace")
		default:
			literal.WriteByte(text[i])
			i++
		}
	}
	if literal.Len() > 0 {
		t.parts = append(t.parts, part{text: literal.String()})
	}
	return t, nil
}

// MustTemplate is ParseTemplate for a constant: it panics where that fails.
func MustTemplate(text string) *Template {
	t, err := ParseTemplate(text)
	if err != nil {
		panic(err)
	}
	return t
}

// String is the text that the template was read from.
func (t *Template) String() string { return t.text }

// Columns are the columns in the order in which they come first.
func (t *Template) Columns() []string { return slices.Clone(t.columns) }

// Format returns the resource for values, one for each of Columns. Their text is that of Postgres:
//
//   - whole numbers of any size, *big.Int and pgtype.Numeric without decimals: their digits
//   - bool: true or false
//   - strings, also of types of your own, such as an enum: as they are; strip the padding of a
//     char(n)
//   - uuid.UUID, other types that are [16]byte, pgtype.UUID: in lower case, with hyphens
//   - time.Time at midnight, pgtype.Date: YYYY-MM-DD, of the years 1 to 9999
//
// nil, NULL and every other type is refused, and so is a resource that would be empty or longer
// than 512 bytes: protect refuses rows like that.
func (t *Template) Format(values ...any) (string, error) {
	if len(values) != len(t.columns) {
		return "", fmt.Errorf("fencedb: the template %q needs values for %q, it got %d", t.text, t.columns, len(values))
	}
	row := make(map[string]any, len(values))
	for i, column := range t.columns {
		row[column] = values[i]
	}
	return t.FormatRow(row)
}

// FormatRow is Format for a row, such as pgx.RowToMap returns. It may have other columns too.
func (t *Template) FormatRow(row map[string]any) (string, error) {
	var resource strings.Builder
	for _, p := range t.parts {
		text := p.text
		if p.column {
			value, given := row[p.text]
			if !given {
				return "", fmt.Errorf("fencedb: the template %q needs a value for %q, which is not in the row", t.text, p.text)
			}
			var err error
			if text, err = textOf(value); err != nil {
				return "", fmt.Errorf("fencedb: the template %q: column %q: %w", t.text, p.text, err)
			}
		}
		resource.WriteString(text)
	}
	if n := resource.Len(); n == 0 || n > maxResource {
		return "", fmt.Errorf("fencedb: the template %q: the resource must be 1 to %d bytes, it has %d", t.text, maxResource, n)
	}
	return resource.String(), nil
}

// textOf is the text of a column in a resource.
func textOf(value any) (string, error) {
	switch v := value.(type) {
	case pgtype.UUID:
		if v.Valid {
			return uuid.UUID(v.Bytes).String(), nil
		}
	case time.Time:
		return dateText(v)
	case pgtype.Date:
		if v.Valid && v.InfinityModifier == pgtype.Finite {
			return dateText(v.Time)
		}
	case *big.Int:
		if v != nil {
			return v.String(), nil
		}
	case pgtype.Numeric:
		if v.Valid && v.Int != nil && v.Exp >= 0 { // neither NaN nor infinite, and no decimals
			scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(v.Exp)), nil)
			return scale.Mul(scale, v.Int).String(), nil
		}
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10), nil
	case reflect.Array:
		if id := reflect.TypeFor[uuid.UUID](); v.CanConvert(id) {
			return v.Convert(id).Interface().(uuid.UUID).String(), nil
		}
	case reflect.Bool:
		return strconv.FormatBool(v.Bool()), nil
	case reflect.String:
		if !utf8.ValidString(v.String()) || strings.ContainsRune(v.String(), 0) {
			return "", fmt.Errorf("the text %q must be UTF-8 without NUL", v.String())
		}
		return v.String(), nil
	}
	return "", fmt.Errorf("a %T with the value %v has no text that is always the same; see Format", value, value)
}

func dateText(t time.Time) (string, error) {
	h, m, s := t.Clock()
	switch {
	case t.Year() < 1 || t.Year() > 9999:
		return "", fmt.Errorf("the date %v is not of the years 1 to 9999", t.Format("2006-01-02"))
	case h+m+s+t.Nanosecond() > 0:
		return "", fmt.Errorf("%v has a time of day, and a date has none", t)
	}
	return t.Format("2006-01-02"), nil
}

// Parse returns the text of each column in a resource. It is an error if the template does not make
// such a resource, or makes it in more than one way, as "{a}-{b}" makes 1-2-3: the error names two.
func (t *Template) Parse(resource string) (map[string]string, error) {
	var readings []map[string]string
	t.read(resource, t.parts, map[string]string{}, map[[2]int]bool{}, &readings)
	switch len(readings) {
	case 0:
		return nil, fmt.Errorf("fencedb: the template %q does not make the resource %q", t.text, resource)
	case 1:
		return readings[0], nil
	}
	return nil, fmt.Errorf("fencedb: the template %q makes %q in more than one way, of %q and of %q", t.text, resource, readings[0], readings[1])
}

// read collects the first two readings of rest. Where a part cannot begin is tried once: failed
// has how many parts and bytes were left. It says nothing of a column that comes twice, whose
// second text is not free.
func (t *Template) read(rest string, parts []part, so map[string]string, failed map[[2]int]bool,
	readings *[]map[string]string) {
	place := [2]int{len(parts), len(rest)}
	known := len(*readings)
	switch {
	case known == 2 || failed[place]:
		return
	case len(parts) == 0:
		if rest == "" {
			*readings = append(*readings, maps.Clone(so))
		}
		return
	}
	text, bound := parts[0].text, true
	if parts[0].column {
		text, bound = so[parts[0].text]
	}
	if bound {
		if after, ok := strings.CutPrefix(rest, text); ok {
			t.read(after, parts[1:], so, failed, readings)
		}
	} else {
		column := parts[0].text
		for end := 0; end <= len(rest); end++ {
			if end == len(rest) || utf8.RuneStart(rest[end]) {
				so[column] = rest[:end]
				t.read(rest[end:], parts[1:], so, failed, readings)
			}
		}
		delete(so, column)
	}
	failed[place] = len(*readings) == known && !t.repeats()
}

// repeats reports whether a column comes twice.
func (t *Template) repeats() bool {
	columns := 0
	for _, p := range t.parts {
		if p.column {
			columns++
		}
	}
	return columns > len(t.columns)
}
