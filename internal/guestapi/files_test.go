package guestapi

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

func TestFileFrames(t *testing.T) {
	head, err := FileFrameJSON(FileHead, ReadFile{FileRef: RefOf(hutch.FileRef{Path: "a\xff", User: "worker"}), Offset: 3})
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(append(head, "content"...))
	var q ReadFile
	if err := ReadFileHead(r, &q); err != nil || q.Name() != "a\xff" || q.Asker() != "worker" || q.Offset != 3 {
		t.Errorf("%+v, %v", q, err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "content" {
		t.Errorf("after the head: %q", rest)
	}
	if f := RefOf(hutch.FileRef{Path: "ünï"}); f.Name() != "ünï" || f.RawPath != nil {
		t.Errorf("%+v", f)
	}
	if _, err := FileFrameJSON(FileItem, strings.Repeat("x", MaxFileJSON)); !errors.Is(err, ErrFrame) {
		t.Errorf("too long: %v", err)
	}
	for name, b := range map[string][]byte{
		"no type":       {0, 0, 0, 0, 0},
		"another":       {5, 0, 0, 0, 0},
		"data too long": {byte(FileData), 0, 4, 0, 1},
		"json too long": {byte(FileItem), 0, 8, 0, 1},
	} {
		if _, _, err := ReadFileFrameHeader(bytes.NewReader(b)); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ReadFileHead(bytes.NewReader([]byte{byte(FileData), 0, 0, 0, 0}), &q); !errors.Is(err, ErrFrame) {
		t.Errorf("data in place of the head: %v", err)
	}
	if err := ReadFileHead(bytes.NewReader(head[:10]), &q); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut head: %v", err)
	}
}

// The longest match that a search delivers fits a frame, whatever JSON makes of it.
func TestLongestItemFits(t *testing.T) {
	for _, c := range []string{"\x01", "<", "\uFFFD", "é"} {
		m := hutch.FileMatch{
			Path: strings.Repeat(c, hutch.MaxPathBytes/len(c)), RawPath: make([]byte, hutch.MaxPathBytes), Type: hutch.TypeDirectory,
			Line: 1 << 60, Column: 1 << 60, Text: strings.Repeat(c, hutch.MaxMatchBytes/len(c)),
		}
		if _, err := FileFrameJSON(FileItem, m); err != nil {
			t.Errorf("%q: %v", c, err)
		}
	}
	lossy := hutch.FileMatch{Path: strings.Repeat("\uFFFD", hutch.MaxPathBytes), RawPath: make([]byte, hutch.MaxPathBytes), Text: strings.Repeat("\uFFFD", hutch.MaxMatchBytes)}
	if _, err := FileFrameJSON(FileItem, lossy); err != nil {
		t.Error(err)
	}
}

// Whatever comes, a header that is read is within its bounds.
func FuzzFileFrame(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{2, 0, 4, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, n, err := ReadFileFrameHeader(bytes.NewReader(b))
		if err == nil && (n < 0 || n > MaxFileJSON || kind == FileData && n > MaxFileData || kind < FileHead || kind > FileFinal) {
			t.Fatalf("type %d, %d bytes", kind, n)
		}
		var w WriteFile
		_ = ReadFileHead(bytes.NewReader(b), &w)
	})
}
