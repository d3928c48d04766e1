package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

// search runs a search and returns its matches as "path:line:column:text", paths from the home.
func (b *box) search(t testing.TB, q hutch.SearchFiles) ([]string, hutch.SearchResult) {
	t.Helper()
	out := []string{}
	r, err := b.SearchFiles(within(t), q, func(m hutch.FileMatch) error {
		s := strings.TrimPrefix(m.Path, b.home+"/")
		if m.Line > 0 {
			s = fmt.Sprintf("%s:%d:%d:%s", s, m.Line, m.Column, m.Text)
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatalf("search %+v: %v", q, err)
	}
	return out, r
}

func TestSearch(t *testing.T) {
	b := newBox(t)
	b.plant(t, "s/d/", "s/.git/")
	for name, content := range map[string]string{
		"s/a.go":      "package a\n\nfunc Find() {}\r\n// find\n",
		"s/d/b.go":    "no newline at the end: func Find",
		"s/d/b.txt":   "func Find",
		"s/.git/x.go": "func Find",
		"s/.hid.go":   "func Find",
		"s/bin.go":    "func Find\n\x00",
		"s/latin.go":  "caf\xe9 func Find\n",
		"s/empty.go":  "",
	} {
		putAs(t, b.home+"/"+name, content, workerID)
	}
	link(t, "a.go", b.home+"/s/link.go")
	for what, tt := range map[string]struct {
		q    hutch.SearchFiles
		want string
	}{
		"all names":  {hutch.SearchFiles{}, "s/a.go|s/bin.go|s/d|s/d/b.go|s/d/b.txt|s/empty.go|s/latin.go|s/link.go"},
		"names":      {hutch.SearchFiles{Name: "b.*"}, "s/d/b.go|s/d/b.txt"},
		"hidden":     {hutch.SearchFiles{Name: "*.go", Hidden: true}, "s/.git/x.go|s/.hid.go|s/a.go|s/bin.go|s/d/b.go|s/empty.go|s/latin.go|s/link.go"},
		"lines":      {hutch.SearchFiles{Text: `func F\w+`}, "s/a.go:3:1:func Find() {}|s/d/b.go:1:24:func Find|s/d/b.txt:1:1:func Find|s/latin.go:1:6:caf\uFFFD func Find"},
		"both":       {hutch.SearchFiles{Name: "*.txt", Text: "Find"}, "s/d/b.txt:1:6:func Find"},
		"case":       {hutch.SearchFiles{Name: "a.go", Text: "find", IgnoreCase: true}, "s/a.go:3:6:func Find() {}|s/a.go:4:4:// find"},
		"anchors":    {hutch.SearchFiles{Text: `^package \w$`}, "s/a.go:1:1:package a"},
		"line's end": {hutch.SearchFiles{Text: `\{\}$`}, "s/a.go:3:13:func Find() {}"},
		"empty line": {hutch.SearchFiles{Text: `^$`}, "s/a.go:2:1:"},
		"nothing":    {hutch.SearchFiles{Text: "nowhere"}, ""},
	} {
		tt.q.FileRef = ref("s", "")
		got, r := b.search(t, tt.q)
		if what == "lines" { // shown whole
			got[1] = strings.Replace(got[1], "no newline at the end: func Find", "func Find", 1)
		}
		if s := strings.Join(got, "|"); s != tt.want || r != (hutch.SearchResult{}) {
			t.Errorf("%s: %s %+v, want %s", what, s, r, tt.want)
		}
	}
	for field, q := range map[string]hutch.SearchFiles{
		"name": {Name: "["}, "text": {Text: "("}, "limit": {Limit: -1}, "ignore_case": {IgnoreCase: true}, "path": {FileRef: ref("s/a.go", "")},
	} {
		if q.Path == "" {
			q.FileRef = ref("s", "")
		}
		_, err := b.SearchFiles(within(t), q, func(hutch.FileMatch) error { return nil })
		wantCode(t, field, err, hutch.CodeBadRequest, field)
	}
}

func TestSearchLimits(t *testing.T) {
	b := newBox(t)
	b.plant(t, "s/closed/x")
	putAs(t, b.home+"/s/many", strings.Repeat("line\n", 100), workerID)
	put(t, b.home+"/s/secret", "line")
	if err := errors.Join(os.Chmod(b.home+"/s/closed", 0), os.Chmod(b.home+"/s/secret", 0o600)); err != nil {
		t.Fatal(err)
	}
	got, r := b.search(t, hutch.SearchFiles{FileRef: ref("s", ""), Text: "line", Limit: 7})
	if len(got) != 7 || !r.Truncated || r.Skipped != 1 {
		t.Errorf("%d matches, %+v", len(got), r)
	}
	got, r = b.search(t, hutch.SearchFiles{FileRef: ref("s", ""), Text: "line", Limit: 100})
	if len(got) != 100 || r.Truncated || r.Skipped != 2 {
		t.Errorf("%d matches, %+v", len(got), r)
	}
	// A long line is cut, and not within a character.
	putAs(t, b.home+"/s/long", "x"+strings.Repeat("é", 3<<20)+" end\nnext end\n", workerID)
	var long []hutch.FileMatch
	if _, err := b.SearchFiles(within(t), hutch.SearchFiles{FileRef: ref("s", ""), Name: "long", Text: "end$"}, func(m hutch.FileMatch) error {
		long = append(long, m)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(long) != 2 || long[0].Line != 1 || long[1].Line != 2 || len(long[0].Text) > hutch.MaxMatchBytes || strings.Contains(long[0].Text, "\uFFFD") {
		t.Errorf("%d matches in long lines", len(long))
	}
	stop := errors.New("stop")
	_, err := b.SearchFiles(within(t), hutch.SearchFiles{FileRef: ref("s", ""), Text: "line"}, func(hutch.FileMatch) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("a sink that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(within(t))
	_, err = b.SearchFiles(ctx, hutch.SearchFiles{FileRef: ref("/", "root")}, func(hutch.FileMatch) error {
		cancel()
		return nil
	})
	wantCode(t, "cancelled", err, hutch.CodeCancelled, "")
}
