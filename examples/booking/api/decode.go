package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

const (
	maxBody = 4 << 10 // bytes
	maxKey  = 255     // bytes of an Idempotency-Key
)

var (
	errMediaType = errors.New("api: not application/json")
	errMalformed = errors.New("api: not one JSON object")
)

func decodeReservation(w http.ResponseWriter, r *http.Request) (key string, b booking.Booking, err error) {
	if b.Table, err = decodeTable(r); err != nil {
		return "", b, err
	}
	if key, err = decodeKey(r); err != nil {
		return "", b, err
	}
	fields, err := decodeObject(w, r)
	if err != nil {
		return "", b, err
	}
	return key, b, assign(fields, map[string]any{"slot": &b.Slot, "guest": &b.Guest, "party": &b.Party})
}

// decodeObject reads the body, which must be one JSON object and no more.
func decodeObject(w http.ResponseWriter, r *http.Request) (map[string]json.RawMessage, error) {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return nil, errMediaType
	}
	var fields map[string]json.RawMessage
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := body.Decode(&fields); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if _, err := body.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errMalformed, err)
	}
	return fields, nil
}

// assign is json.Unmarshal, except that its errors are for the field's sender: a field that is unknown or of another type is
// named.
func assign(fields map[string]json.RawMessage, known map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		target, ok := known[name]
		if !ok {
			names := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			return &booking.InvalidError{Field: name, Problem: "unknown; there are " + names}
		}
		if err := json.Unmarshal(fields[name], target); err != nil {
			return &booking.InvalidError{Field: name, Problem: "must be " + typeName(target)}
		}
	}
	return nil
}

func typeName(target any) string {
	switch target.(type) {
	case *time.Time:
		return "a time such as 2030-06-01T19:00:00Z"
	case *int:
		return "a whole number"
	}
	return "a text"
}

func decodeTable(r *http.Request) (int, error) {
	table, err := strconv.Atoi(r.PathValue("table"))
	if err != nil {
		return 0, &booking.InvalidError{Field: "table", Problem: "must be a whole number"}
	}
	return table, nil
}

func decodeKey(r *http.Request) (string, error) {
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey || strings.ContainsFunc(key, notVisible) {
		return "", &booking.InvalidError{Field: "Idempotency-Key", Problem: fmt.Sprintf("at most %d visible ASCII characters", maxKey)}
	}
	return key, nil
}

func notVisible(r rune) bool { return r <= ' ' || r > '~' }

func decodeList(r *http.Request) (table int, from time.Time, err error) {
	if table, err = decodeTable(r); err != nil {
		return 0, from, err
	}
	if text := r.URL.Query().Get("from"); text != "" {
		if from, err = time.Parse(time.RFC3339, text); err != nil {
			err = &booking.InvalidError{Field: "from", Problem: "must be " + typeName(&from)}
		}
	}
	return table, from, err
}
