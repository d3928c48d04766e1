package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"hutch.dev/hutch"
)

// Bounds of request bodies.
const (
	maxBody     = 1 << 20 // of every JSON body but exec's
	maxExecBody = 8 << 20 // exec carries stdin; more than this goes to the stdin endpoint
)

// readBody reads a whole body of at most limit bytes, under the deadline that ServeHTTP set.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, hutch.Errorf(hutch.CodeTooLarge, "the body is over %d bytes, which is the most this call takes", tooLarge.Limit)
	case err != nil:
		return nil, hutch.Wrap(hutch.CodeBadRequest, err, "the body ended early or came too slowly")
	}
	// Lifted, or the server would take its passing for the caller having left. After a
	// failure it stays, because net/http reads what is left of the body on its own.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	infoOf(r).unread.Store(false)
	return b, nil
}

// decode reads one JSON object into the struct that dst points to. Every name must be
// that of a field, exactly and once; null leaves a field as it is; nothing may follow.
func decode(body []byte, dst any) error {
	if !utf8.Valid(body) {
		return hutch.Errorf(hutch.CodeBadRequest, "the body is not UTF-8: send bytes in a base64 field")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return hutch.Errorf(hutch.CodeBadRequest, "the body must be a JSON object")
	}
	var (
		fields = fieldsOf(reflect.TypeOf(dst).Elem())
		value  = reflect.ValueOf(dst).Elem()
		seen   = make(map[string]bool)
	)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return malformed(err)
		}
		name, _ := t.(string)
		index, known := fields[name]
		if !known {
			return unknownName("field", name, keys(fields))
		}
		if seen[name] {
			return hutch.FieldErrorf(name, "is given twice")
		}
		seen[name] = true
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return malformed(err)
		}
		if string(raw) == "null" {
			continue
		}
		field := value.FieldByIndex(index)
		if t := field.Type(); t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct {
			field.Set(reflect.New(t.Elem()))
			if err := decodeWithin(name, raw, field.Interface()); err != nil {
				return err
			}
			continue
		}
		if err := decodeStrict(raw, field.Addr().Interface()); err != nil {
			return hutch.FieldErrorf(name, "must be %s", expected(field.Type()))
		}
	}
	if _, err := dec.Token(); err != nil {
		return malformed(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return hutch.Errorf(hutch.CodeBadRequest, "the body goes on after the JSON object")
	}
	return nil
}

// decodeWithin reads an object that is the value of a field, as strictly as the body.
func decodeWithin(name string, raw []byte, dst any) error {
	if raw[0] != '{' {
		return hutch.FieldErrorf(name, "must be an object")
	}
	err := decode(raw, dst)
	var e *hutch.Error
	if errors.As(err, &e) && e.Field != "" {
		within := *e
		within.Field = name + "." + e.Field
		return &within
	}
	return err
}

func decodeStrict(raw []byte, dst any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(dst)
}

func malformed(err error) error {
	return hutch.Wrap(hutch.CodeBadRequest, err, "the body is not valid JSON")
}

// expected says what a field of type t takes.
func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return expected(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Map:
		return "an object whose values are strings"
	case reflect.Slice:
		switch t.Elem().Kind() {
		case reflect.Uint8:
			return "a base64 string"
		case reflect.String:
			return "a list of strings"
		default:
			return "a list of objects"
		}
	default:
		return "something else"
	}
}

var fieldCache sync.Map // reflect.Type → map[string][]int

// fieldsOf maps the JSON names of a struct's fields to their indexes.
func fieldsOf(t reflect.Type) map[string][]int {
	if m, ok := fieldCache.Load(t); ok {
		return m.(map[string][]int)
	}
	m := make(map[string][]int)
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !f.Anonymous {
			m[name] = f.Index
		}
	}
	fieldCache.Store(t, m)
	return m
}

func keys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// unknownName refuses a name of some kind ("field", "query parameter") and suggests the
// known one it was probably meant to be.
func unknownName(kind, name string, known []string) error {
	shown := name
	if len(shown) > 64 {
		shown = strings.ToValidUTF8(shown[:64], "") + "…"
	}
	e := hutch.Errorf(hutch.CodeUnknownField, "unknown %s %q", kind, shown)
	e.Field = shown
	if near := nearest(name, known); near != "" {
		e.Message += ": did you mean " + near + "?"
	}
	return e
}

// nearest returns the known name that name was probably meant to be, else "".
func nearest(name string, known []string) string {
	const longestName = 64 // no name of ours is longer; bounds the work
	if len(name) > longestName {
		return ""
	}
	plain := func(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)) }
	best, bestDist := "", 3
	for _, k := range known {
		if plain(k) == plain(name) {
			return k
		}
		if d := distance(plain(name), plain(k)); d < bestDist && d*3 <= len(k) {
			best, bestDist = k, d
		}
	}
	if best != "" {
		return best
	}
	for _, k := range known { // "timeout" for timeout_seconds
		if len(name) >= 3 && (strings.HasPrefix(k, name+"_") || strings.HasPrefix(name, k+"_")) {
			return k
		}
	}
	return ""
}

// distance is the number of single-byte edits between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
