package sqlite

import (
	"fmt"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// A page of commands with much output ends early: it must fit in memory.
func TestAPageOfLargeCommandsIsShort(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i1"}); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, pageBytes/4)
	for i := range 8 {
		e := hutch.Exec{ID: hutch.ExecID(fmt.Sprint(i)), Sandbox: "i1", Result: &hutch.ExecResult{Stderr: hutch.Output{Tail: out}}}
		if err := s.PutExec(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	list, next, err := s.ExecsOf(t.Context(), store.ExecFilter{Sandbox: "i1"}, store.Page{})
	if err != nil || next == "" || len(list) != 4 {
		t.Errorf("a page of commands of %d bytes: %d, cursor %q, %v; want 4 and a cursor", len(out), len(list), next, err)
	}
}
