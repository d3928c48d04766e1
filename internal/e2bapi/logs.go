package e2bapi

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// maxLogLines is the most lines of one answer, and what it has when nobody says.
const maxLogLines = 1000

// logLine is a line as the older call answers with it.
type logLine struct {
	Timestamp string `json:"timestamp"`
	Line      string `json:"line"`
}

// logEntry is a line with what is known of it.
type logEntry struct {
	Timestamp string            `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// Levels: what a command writes as an error is one.
const (
	levelInfo  = "info"
	levelError = "error"
)

var levelRank = map[string]int{"debug": 0, levelInfo: 1, "warn": 2, levelError: 3}

func showEntry(l hutch.LogLine) logEntry {
	e := logEntry{Timestamp: showTime(l.At), Level: levelInfo, Message: l.Text, Fields: map[string]string{"stream": l.Stream, "exec": string(l.Exec)}}
	if l.Stream == hutch.Stderr {
		e.Level = levelError
	}
	return e
}

// logQuery chooses lines.
type logQuery struct {
	after    time.Time // exclusive bound in the direction of reading; zero = none
	backward bool      // newest first
	limit    int
	level    int // least rank
	search   string
}

func (q logQuery) wants(l hutch.LogLine) bool {
	e := showEntry(l)
	switch {
	case levelRank[e.Level] < q.level:
		return false
	case q.search != "" && !strings.Contains(l.Text, q.search):
		return false
	case q.after.IsZero():
		return true
	case q.backward:
		return l.At.Before(q.after)
	default:
		return !l.At.Before(q.after)
	}
}

// keep puts lines into the order of their times, whichever command wrote them, and leaves
// those that are wanted.
func (q logQuery) keep(lines []hutch.LogLine) []hutch.LogLine {
	slices.SortStableFunc(lines, func(x, y hutch.LogLine) int { return x.At.Compare(y.At) })
	if q.backward {
		return append(lines[:0], lines[max(0, len(lines)-q.limit):]...)
	}
	return lines[:min(len(lines), q.limit)]
}

// lines collects what q chooses. It holds little more than that, however much there is.
func (a *API) lines(c call, q logQuery) ([]hutch.LogLine, error) {
	if _, err := a.shown(c); err != nil {
		return nil, err
	}
	var out []hutch.LogLine
	err := a.svc.Logs.Logs(c.Context(), hutch.LogQuery{Project: c.key.Project, Sandbox: c.sandbox()}, func(l hutch.LogLine) error {
		if q.wants(l) {
			out = append(out, l)
		}
		if len(out) > 2*q.limit {
			out = q.keep(out)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if out = q.keep(out); q.backward {
		slices.Reverse(out)
	}
	return out, nil
}

func (a *API) logsV1(w http.ResponseWriter, c call) error {
	v := c.URL.Query()
	q := logQuery{}
	var err error
	if q.after, err = milliParam(v, "start"); err != nil {
		return err
	}
	if q.limit, err = limitParam(v); err != nil {
		return err
	}
	found, err := a.lines(c, q)
	if err != nil {
		return err
	}
	plain, entries := make([]logLine, 0, len(found)), make([]logEntry, 0, len(found))
	for _, l := range found {
		plain = append(plain, logLine{Timestamp: showTime(l.At), Line: l.Text})
		entries = append(entries, showEntry(l))
	}
	return ok(w, http.StatusOK, map[string]any{"logs": plain, "logEntries": entries})
}

func (a *API) logsV2(w http.ResponseWriter, c call) error {
	v := c.URL.Query()
	q := logQuery{search: v.Get("search")}
	var err error
	if q.after, err = milliParam(v, "cursor"); err != nil {
		return err
	}
	if q.limit, err = limitParam(v); err != nil {
		return err
	}
	switch d := v.Get("direction"); d {
	case "", "forward":
	case "backward":
		q.backward = true
	default:
		return hutch.FieldErrorf("direction", "must be \"forward\" or \"backward\", not %.20q", d)
	}
	if l := v.Get("level"); l != "" {
		rank, known := levelRank[l]
		if !known {
			return hutch.FieldErrorf("level", "must be \"debug\", \"info\", \"warn\" or \"error\", not %.20q", l)
		}
		q.level = rank
	}
	found, err := a.lines(c, q)
	if err != nil {
		return err
	}
	entries := make([]logEntry, 0, len(found))
	for _, l := range found {
		entries = append(entries, showEntry(l))
	}
	return ok(w, http.StatusOK, map[string]any{"logs": entries})
}

// milliParam reads a query parameter in milliseconds since 1970.
func milliParam(v url.Values, name string) (time.Time, error) {
	s := v.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, hutch.FieldErrorf(name, "must be milliseconds since 1970")
	}
	return time.UnixMilli(n), nil
}

func limitParam(v url.Values) (int, error) {
	s := v.Get("limit")
	if s == "" {
		return maxLogLines, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxLogLines {
		return 0, hutch.FieldErrorf("limit", "must be from 0 to %d", maxLogLines)
	}
	return n, nil
}
