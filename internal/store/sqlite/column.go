package sqlite

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"
)

// instant stores a time as nanoseconds since 1970, the zero time as NULL.
type instant time.Time

// The instants that fit: int64 nanoseconds around 1970.
var (
	minInstant = time.Unix(0, -1<<63).UTC()  // in 1677
	maxInstant = time.Unix(0, 1<<63-1).UTC() // in 2262
)

// Value implements driver.Valuer. A time that does not fit is an error, not another time.
func (i instant) Value() (driver.Value, error) {
	t := time.Time(i)
	if t.IsZero() {
		return nil, nil
	}
	if t.Before(minInstant) || t.After(maxInstant) {
		return nil, fmt.Errorf("time %s cannot be stored: it is not between the years %d and %d",
			t.UTC().Format(time.RFC3339), minInstant.Year()+1, maxInstant.Year()-1)
	}
	return t.UnixNano(), nil
}

// Scan implements sql.Scanner.
func (i *instant) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*i = instant{}
	case int64:
		*i = instant(time.Unix(0, v).UTC())
	default:
		return fmt.Errorf("a time is stored as %T", v)
	}
	return nil
}

// stored is t as it comes back from the store: UTC, no monotonic reading.
func stored(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(0, t.UnixNano()).UTC()
}

// jsonOf stores V as JSON text. An empty map or list comes back nil.
type jsonOf[T any] struct{ V *T }

func asJSON[T any](v *T) jsonOf[T] { return jsonOf[T]{v} }

// Value implements driver.Valuer.
func (j jsonOf[T]) Value() (driver.Value, error) {
	b, err := json.Marshal(j.V)
	return string(b), err
}

// Scan implements sql.Scanner.
func (j jsonOf[T]) Scan(v any) error {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("JSON is stored as %T", v)
	}
	return json.Unmarshal([]byte(s), j.V)
}

// pairs is a map of strings that comes back nil when it is empty.
type pairs struct{ m *map[string]string }

// Value implements driver.Valuer.
func (p pairs) Value() (driver.Value, error) {
	if len(*p.m) == 0 {
		return "{}", nil
	}
	b, err := json.Marshal(*p.m)
	return string(b), err
}

// Scan implements sql.Scanner.
func (p pairs) Scan(v any) error {
	if v == "{}" {
		*p.m = nil
		return nil
	}
	return asJSON(p.m).Scan(v)
}
