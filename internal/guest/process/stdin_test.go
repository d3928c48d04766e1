package process

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
)

// A caller who leaves just when its input was taken must not cut off the one after it.
func TestStdinAfterOneWhoLeft(t *testing.T) {
	ours, theirs, err := newPipe(true)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func(r *os.File) {
		defer close(read)
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}(theirs)
	e := &Exec{stdin: newStdin(ours, nil)}
	for i := range 20_000 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, _ = e.WriteStdin(ctx, Input{Append: true}, strings.NewReader("x")) // taken, or the caller has left
		if _, err := e.WriteStdin(t.Context(), Input{Append: true}, strings.NewReader("y")); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	e.stdin.close()
	<-read
}
