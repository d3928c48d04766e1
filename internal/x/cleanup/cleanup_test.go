package cleanup_test

import (
	"fmt"
	"reflect"
	"testing"

	"hutch.dev/hutch/internal/x/cleanup"
)

func Example() {
	undo := cleanup.New()
	undo.Add(func() { fmt.Println("remove directory") })
	undo.Add(func() { fmt.Println("close file") })
	undo.Run()
	// Output:
	// close file
	// remove directory
}

func TestRunIsReversedAndOnce(t *testing.T) {
	undo := cleanup.New()
	var got []int
	for i := range 3 {
		undo.Add(func() { got = append(got, i) })
	}
	undo.Run()
	undo.Run()
	if want := []int{2, 1, 0}; !reflect.DeepEqual(got, want) {
		t.Fatalf("steps ran as %v, want %v", got, want)
	}
}

func TestReleaseKeepsEverything(t *testing.T) {
	undo := cleanup.New()
	undo.Add(func() { t.Error("a step ran after Release") })
	undo.Release()
	undo.Run()
}

func TestPanicRunsTheRest(t *testing.T) {
	undo := cleanup.New()
	ran := false
	undo.Add(func() { ran = true })
	undo.Add(func() { panic("boom") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		undo.Run()
	}()
	if !ran {
		t.Fatal("the step below the panicking one did not run")
	}
}
