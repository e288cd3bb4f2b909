package fencedb

import (
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Template computes the resource of a row from its columns, as fencedb.protect does: literal text,
// {column} for the text of a column, {{ and }} for braces. There must be text between two columns:
// {a}{b} would give 12 both for 1 and 2 and for 12 and "".
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

// templateWord matches a double brace, a column or literal text.
var templateWord = regexp.MustCompile(`^(\{\{|\}\}|\{[^{}]+\}|[^{}]+)`)

// ParseTemplate reads a template. An error says what is wrong, and at which character.
func ParseTemplate(text string) (*Template, error) {
	t := &Template{text: text}
	wrong := func(at int, what string) error {
		return fmt.Errorf("fencedb: the template %q is wrong at character %d: %s", text, utf8.RuneCountInString(text[:at])+1, what)
	}
	if text == "" || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, wrong(0, "it must be UTF-8 without NUL, and not empty")
	}
	last := part{}
	for at := 0; at < len(text); {
		found := templateWord.FindString(text[at:])
		switch {
		case found == "":
			return nil, wrong(at, "this brace belongs to no {column}; write {{ or }} for a brace")
		case found == "{{" || found == "}}":
			last = part{text: found[:1]}
		case found[0] == '{' && last.column:
			return nil, wrong(at, "it touches the column before; put text between them, so that they can be told apart")
		case found[0] == '{':
			last = part{found[1 : len(found)-1], true}
			if !slices.Contains(t.columns, last.text) {
				t.columns = append(t.columns, last.text)
			}
		default:
			last = part{text: found}
		}
		t.parts = append(t.parts, last)
		at += len(found)
	}
	return t, nil
}

// MustTemplate is [ParseTemplate] for a constant: it panics on an error.
func MustTemplate(text string) *Template {
	t, err := ParseTemplate(text)
	if err != nil {
		panic(err)
	}
	return t
}

// String returns the text from which the template was parsed.
func (t *Template) String() string { return t.text }

// Columns returns each column once, in the order of first appearance.
func (t *Template) Columns() []string { return slices.Clone(t.columns) }

// Format returns the resource for values, one for each of Columns. Their text is that of Postgres:
//
//   - whole numbers of any size, *big.Int and pgtype.Numeric without decimals: their digits
//   - bool: true or false
//   - strings, also of types of your own, such as an enum: as they are; strip the padding of a
//     char(n)
//   - uuid.UUID, other types that are [16]byte, pgtype.UUID: in lower case, with hyphens
//   - time.Time at midnight, pgtype.Date: YYYY-MM-DD, in the years 1 to 9999
//
// nil, NULL and every other type are refused, and so is a resource that would be empty or longer
// than 512 bytes, as protect refuses such rows.
func (t *Template) Format(values ...any) (string, error) {
	if len(values) != len(t.columns) {
		return "", fmt.Errorf("fencedb: the template %q needs values for %q, it got %d", t.text, t.columns, len(values))
	}
	var resource strings.Builder
	for _, p := range t.parts {
		text := p.text
		if p.column {
			var err error
			if text, err = textOf(values[slices.Index(t.columns, p.text)]); err != nil {
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

// textOf returns the text of a column's value in a resource.
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
		if v.Valid && v.Int != nil && v.Exp >= 0 { // finite, without decimals
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
		return "", fmt.Errorf("the date %v is not in the years 1 to 9999", t.Format("2006-01-02"))
	case h+m+s+t.Nanosecond() > 0:
		return "", fmt.Errorf("%v has a time of day, and a date has none", t)
	}
	return t.Format("2006-01-02"), nil
}

// Parse returns the text of each column in a resource. It fails if the template cannot make this
// resource, or can make it in more than one way, as "{a}-{b}" makes 1-2-3; then the error names
// two. It also fails if the template names a column twice.
func (t *Template) Parse(resource string) (map[string]string, error) {
	// If a resource can be read in several ways, the shortest and the longest texts from the left
	// differ.
	first, err := t.read(resource, "(.*?)")
	if err != nil {
		return nil, err
	}
	last, err := t.read(resource, "(.*)")
	if err == nil && !maps.Equal(first, last) {
		err = fmt.Errorf("fencedb: the template %q makes %q in more than one way, from %q and from %q", t.text, resource, first, last)
	}
	if err != nil {
		return nil, err
	}
	return first, nil
}

// read matches the resource, each column with pattern.
func (t *Template) read(resource, pattern string) (map[string]string, error) {
	expression := `(?s)\A`
	groups := 0
	for _, p := range t.parts {
		if p.column {
			expression += pattern
			groups++
		} else {
			expression += regexp.QuoteMeta(p.text)
		}
	}
	if groups > len(t.columns) {
		return nil, fmt.Errorf("fencedb: the template %q names a column twice, and Parse does not read that", t.text)
	}
	found := regexp.MustCompile(expression + `\z`).FindStringSubmatch(resource)
	if found == nil {
		return nil, fmt.Errorf("fencedb: the template %q does not make the resource %q", t.text, resource)
	}
	texts := make(map[string]string, groups)
	for i, column := range t.columns {
		texts[column] = found[i+1]
	}
	return texts, nil
}
