package sse_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"hutch.dev/hutch/internal/x/sse"
)

func readAll(r io.Reader, limit int) ([]sse.Event, error) {
	var (
		in  = sse.NewReader(r, limit)
		out []sse.Event
	)
	for {
		ev, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, ev)
	}
}

func TestWriterFrames(t *testing.T) {
	var b bytes.Buffer
	w := sse.NewWriter(&b)
	for _, err := range []error{
		w.Event("stdout", "", []byte(`{"chunk":"x"}`)),
		w.Comment("keepalive"),
		w.Comment(""),
		w.Event("", "7", []byte("a\nb")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := "event: stdout\ndata: {\"chunk\":\"x\"}\n\n: keepalive\n\n:\n\nid: 7\ndata: a\ndata: b\n\n"
	if b.String() != want {
		t.Errorf("wrote %q, want %q", b.String(), want)
	}
	if err := w.Event("a\nb", "", nil); err == nil {
		t.Error("an event name with a line end was accepted")
	}
}

func TestReader(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []sse.Event
		err      error
	}{
		{"plain", "event: exit\ndata: 1\n\n", []sse.Event{{Name: "exit", Data: "1"}}, nil},
		{"no blank after the colon", "data:1\n\n", []sse.Event{{Name: "message", Data: "1"}}, nil},
		{"only one blank is cut", "data:  1\n\n", []sse.Event{{Name: "message", Data: " 1"}}, nil},
		{"CRLF", "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", []sse.Event{{Name: "a", Data: "1"}, {Name: "message", Data: "2"}}, nil},
		{"CR", "data: 1\r\rdata: 2\r\r", []sse.Event{{Name: "message", Data: "1"}, {Name: "message", Data: "2"}}, nil},
		{"several data lines", "data: a\ndata\ndata: c\n\n", []sse.Event{{Name: "message", Data: "a\n\nc"}}, nil},
		{"comments and unknown fields", ": hi\n\nretry: 5\nfoo: x\ndata: 1\n\n", []sse.Event{{Name: "message", Data: "1"}}, nil},
		{"a name without data does not leak", "event: a\n\ndata: 1\n\n", []sse.Event{{Name: "message", Data: "1"}}, nil},
		{"ids stay", "id: 4\ndata: 1\n\ndata: 2\n\nid\ndata: 3\n\n", []sse.Event{{Name: "message", ID: "4", Data: "1"}, {Name: "message", ID: "4", Data: "2"}, {Name: "message", Data: "3"}}, nil},
		{"byte order mark", "\ufeffdata: 1\n\n", []sse.Event{{Name: "message", Data: "1"}}, nil},
		{"cut inside a line", "data: 1\n\ndat", []sse.Event{{Name: "message", Data: "1"}}, io.ErrUnexpectedEOF},
		{"cut before the closing line", "data: 1\n", nil, io.ErrUnexpectedEOF},
		{"too long", "data: " + strings.Repeat("x", 100) + "\n\n", nil, sse.ErrTooLong},
		{"too long over many lines", strings.Repeat("data: xxxxx\n", 20) + "\n", nil, sse.ErrTooLong},
		{"comments do not add up", strings.Repeat(": xxxxxxxx\n\n", 100) + "data: 1\n\n", []sse.Event{{Name: "message", Data: "1"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := readAll(iotest.OneByteReader(strings.NewReader(c.in)), 64)
			if !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("event %d: got %+v, want %+v", i, got[i], c.want[i])
				}
			}
		})
	}
}

// An event must reach the reader when its last byte does, not with the next one.
func TestReaderDoesNotWaitForMore(t *testing.T) {
	pr, pw := io.Pipe()
	go func() { _, _ = pw.Write([]byte("data: 1\r\n\r\n")) }()
	ev, err := sse.NewReader(pr, 64).Next()
	if err != nil || ev.Data != "1" {
		t.Fatalf("got %+v, %v", ev, err)
	}
	if err := pr.Close(); err != nil {
		t.Fatal(err)
	}
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{"data: 1\n\n", "event: a\r\ndata: b\r\n\r\n", ":\n\n", "id: \x00\ndata\n\n", "\ufeffdata:x\r\r", strings.Repeat("data: y\n", 50)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit = 256
		events, err := readAll(bytes.NewReader(in), limit)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, sse.ErrTooLong) {
			t.Fatalf("error %v is not one a reader gives", err)
		}
		// What was read can be written and read again to the same events.
		var b bytes.Buffer
		w := sse.NewWriter(&b)
		for _, ev := range events {
			if len(ev.Data) > limit {
				t.Fatalf("an event of %d bytes came through a limit of %d", len(ev.Data), limit)
			}
			if strings.ContainsRune(ev.Name, 0) {
				return
			}
			if err := w.Event(ev.Name, ev.ID, []byte(ev.Data)); err != nil {
				t.Fatal(err)
			}
		}
		again, err := readAll(&b, 100*limit)
		if err != nil || len(again) != len(events) {
			t.Fatalf("second reading: %v, %d events of %d", err, len(again), len(events))
		}
		for i := range again {
			if again[i].Name != events[i].Name || again[i].Data != events[i].Data {
				t.Fatalf("event %d changed: %+v, was %+v", i, again[i], events[i])
			}
		}
	})
}
