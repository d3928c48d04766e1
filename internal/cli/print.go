package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"hutch.dev/hutch/api"
)

// printJSON prints one value; lists of the API are printed as lists.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printNew prints what was just made: the value with --json, its name without.
func (a *app) printNew(v any, name string) error {
	if a.json {
		return a.printJSON(v)
	}
	_, err := fmt.Fprintln(a.Stdout, name)
	return err
}

// printLine prints one value of a stream, in one line.
func (a *app) printLine(v any) error {
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// colour is a terminal's.
type colour string

const (
	plain  colour = ""
	bold   colour = "1"
	dim    colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

func statusColour(s api.Status) colour {
	switch s {
	case api.StatusRunning:
		return green
	case api.StatusPaused, api.StatusCreating, api.StatusStopping:
		return yellow
	case api.StatusFailed:
		return red
	case api.StatusDeleted:
		return dim
	}
	return plain
}

// cell is a field of a table.
type cell struct {
	text   string
	colour colour
}

func text(s string) cell { return cell{text: clean(s)} }

// clean keeps what others wrote from moving the cursor or breaking a table.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// table prints rows in columns, two blanks apart. Widths are counted in characters, and
// colours do not count.
func (a *app) table(rows [][]cell) error {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			b.WriteString(a.paint(c))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(a.Stdout, b.String())
	return err
}

func (a *app) paint(c cell) string {
	if c.colour == plain || !a.Terminal {
		return c.text
	}
	return "\x1b[" + string(c.colour) + "m" + c.text + "\x1b[0m"
}

func head(names ...string) []cell {
	row := make([]cell, 0, len(names))
	for _, n := range names {
		row = append(row, cell{n, bold})
	}
	return row
}

// span is a duration in its two largest units.
func span(d time.Duration) string {
	if d < 0 {
		return "-" + span(-d)
	}
	d = d.Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return twoUnits(d, time.Minute, "m", time.Second, "s")
	case d < 48*time.Hour:
		return twoUnits(d, time.Hour, "h", time.Minute, "m")
	}
	return twoUnits(d, 24*time.Hour, "d", time.Hour, "h")
}

func twoUnits(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	s := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 {
		s += fmt.Sprintf("%d%s", rest, smallName)
	}
	return s
}

func mib(n int) string {
	if n >= 1024 && n%1024 == 0 {
		return strconv.Itoa(n/1024) + "G"
	}
	return strconv.Itoa(n) + "M"
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		what += "e"
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

// durationFlag takes Go's durations ("1h30m"), days ("2d") and plain seconds.
type durationFlag struct {
	d   time.Duration
	set bool
}

func (f *durationFlag) String() string {
	if !f.set {
		return ""
	}
	return f.d.String()
}

func (*durationFlag) Type() string { return "duration" }

// Set implements pflag.Value.
func (f *durationFlag) Set(s string) error {
	d, err := parseDuration(s)
	if err != nil {
		return err
	}
	f.d, f.set = d, true
	return nil
}

func parseDuration(s string) (time.Duration, error) {
	unit, num := time.Second, s
	if days, ok := strings.CutSuffix(s, "d"); ok {
		unit, num = 24*time.Hour, days
	}
	if v, err := strconv.ParseFloat(num, 64); err == nil {
		if v < 0 || v > math.MaxInt64/float64(unit)/2 || math.IsNaN(v) {
			return 0, fmt.Errorf("%q is out of range", s)
		}
		return time.Duration(v * float64(unit)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q: want a duration like 90s, 30m, 2h or 1d", s)
	}
	return d, nil
}

// seconds is the flag's value as the API takes it; nil when it was not given.
func (f *durationFlag) seconds() *float64 {
	if !f.set {
		return nil
	}
	s := f.d.Seconds()
	return &s
}

// sizeFlag takes MiB, or a number with M or G.
type sizeFlag struct {
	mb  int
	set bool
}

func (f *sizeFlag) String() string {
	if !f.set {
		return ""
	}
	return mib(f.mb)
}

func (*sizeFlag) Type() string { return "size" }

// Set implements pflag.Value.
func (f *sizeFlag) Set(s string) error {
	num := strings.ToUpper(strings.TrimSpace(s))
	num = strings.TrimSuffix(strings.TrimSuffix(num, "B"), "I")
	factor := 1.0
	switch {
	case strings.HasSuffix(num, "G"):
		factor, num = 1024, strings.TrimSuffix(num, "G")
	case strings.HasSuffix(num, "M"):
		num = strings.TrimSuffix(num, "M")
	}
	v, err := strconv.ParseFloat(num, 64)
	if mb := v * factor; err != nil || mb < 1 || mb > math.MaxInt32 || mb != math.Trunc(mb) {
		return fmt.Errorf("%q: want whole MiB, like 512, 512M or 2G", s)
	}
	f.mb, f.set = int(v*factor), true
	return nil
}

func (f *sizeFlag) ptr() *int {
	if !f.set {
		return nil
	}
	return &f.mb
}
