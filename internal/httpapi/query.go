package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// query reads a request's query parameters. Each is asked for by name once; check then
// refuses whatever was not asked for, so no parameter is ignored.
type query struct {
	values map[string][]string
	asked  []string
	err    error
}

func newQuery(r *http.Request) *query { return &query{values: r.URL.Query()} }

func (q *query) str(name string) string {
	q.asked = append(q.asked, name)
	v := q.values[name]
	if len(v) > 1 && q.err == nil {
		q.err = hutch.FieldErrorf(name, "is given twice")
	}
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

// num reads a whole number of at least zero; def when it is not given.
func (q *query) num(name string, def int64) int64 {
	s := q.str(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if (err != nil || n < 0) && q.err == nil {
		q.err = hutch.FieldErrorf(name, "must be a whole number, zero or more")
	}
	return n
}

// seconds reads a duration of at most so many seconds, with fractions; def when it is not given.
func (q *query) seconds(name string, def, most time.Duration) time.Duration {
	s := q.str(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseFloat(s, 64)
	if (err != nil || !(n >= 0 && n <= most.Seconds())) && q.err == nil {
		q.err = hutch.FieldErrorf(name, "must be a number of seconds, between 0 and %g", most.Seconds())
	}
	if q.err != nil {
		return def
	}
	return time.Duration(n * float64(time.Second))
}

// limit reads a page's size. Listings of the compatible API give as much as they may
// when it is left out, because their clients do not turn pages.
func (q *query) limit(def int64) int {
	n := q.num("limit", def)
	if q.err == nil && (n > maxPage || n == 0 && q.values["limit"] != nil) {
		q.err = hutch.FieldErrorf("limit", "must be between 1 and %d", maxPage)
	}
	return int(n)
}

// maxPage is the most entries a listing answers at once.
const maxPage = 1000

func (q *query) flag(name string, def bool) bool {
	switch s := q.str(name); s {
	case "":
		return def
	case "1", "true":
		return true
	case "0", "false":
		return false
	default:
		if q.err == nil {
			q.err = hutch.FieldErrorf(name, "must be 1, true, 0 or false")
		}
		return def
	}
}

// list reads a parameter that may be given several times.
func (q *query) list(name string) []string {
	q.asked = append(q.asked, name)
	return q.values[name]
}

// pairs reads parameters of the form prefix.key=value.
func (q *query) pairs(prefix string) map[string]string {
	var m map[string]string
	for name := range q.values {
		if key, ok := strings.CutPrefix(name, prefix+"."); ok {
			if m == nil {
				m = make(map[string]string)
			}
			m[key] = q.str(name)
		}
	}
	return m
}

// check returns the first fault found.
func (q *query) check() error {
	if q.err != nil {
		return q.err
	}
	for _, name := range keys(q.values) {
		if name != tokenParam && !slices.Contains(q.asked, name) {
			return unknownName("query parameter", name, q.asked)
		}
	}
	return nil
}
