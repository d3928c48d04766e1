package schedstat

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// host is a directory that looks like /proc.
type host struct {
	*testing.T
	dir string
}

func (h host) thread(id int, ran, waited time.Duration, state string) {
	h.Helper()
	dir := filepath.Join(h.dir, strconv.Itoa(id))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.Fatal(err)
	}
	for name, content := range map[string]string{
		"schedstat": fmt.Sprintf("%d %d 7\n", ran, waited),
		"stat":      fmt.Sprintf("%d (a) S (b) %s 1 2 3\n", id, state),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			h.Fatal(err)
		}
	}
}

func TestLook(t *testing.T) {
	h := host{t, t.TempDir()}
	w := Watch{proc: h.dir}
	want := func(what string, got, want Turns) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	h.thread(1, 10, 1000, "S")
	want("at first", w.Look([]int{1, 2}), Turns{})
	h.thread(1, 15, 1700, "R")
	h.thread(3, 2, 30, "D") // which has come since, and for how long it stands like that is not known
	want("later", w.Look([]int{1, 2, 3}), Turns{7, 730})
	want("with nothing new", w.Look([]int{1}), Turns{7, 730})
	h.thread(1, 5, 100, "R") // another one's number
	want("another thread", w.Look([]int{1}), Turns{12, 830})
	if err := os.WriteFile(filepath.Join(h.dir, "1", "schedstat"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("what makes no sense", w.Look([]int{1}), Turns{12, 830})
	h.thread(4, 0, 0, "D")
	w.Look([]int{4})
	before := w.at
	got := w.Look([]int{4})
	want("for a disk", got, Turns{12, 830 + w.at.Sub(before)})
}

// What the kernel says of a thread that wants a CPU which another one has, and of one that wants
// none beside them.
func TestLookAtRealThreads(t *testing.T) {
	busy, idle := make(chan int, 2), make(chan int, 1)
	stop := make(chan struct{})
	var over atomic.Bool
	defer close(stop)
	defer over.Store(true)
	for range 2 {
		go func() { // both on the same CPU
			runtime.LockOSThread() // for good: it ends with this goroutine
			var one unix.CPUSet
			if err := unix.SchedGetaffinity(0, &one); err != nil {
				t.Error(err)
			}
			for cpu, found := 0, false; cpu < 1024; cpu++ {
				if found {
					one.Clear(cpu)
				}
				found = found || one.IsSet(cpu)
			}
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(err)
			}
			busy <- unix.Gettid()
			for !over.Load() {
			}
		}()
	}
	go func() {
		runtime.LockOSThread()
		idle <- unix.Gettid()
		<-stop
	}()
	var want, none Watch
	two, one := []int{<-busy, <-busy}, []int{<-idle}
	want.Look(two)
	const much = 200 * time.Millisecond
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	reach := func(d time.Duration) {
		t.Helper()
		for {
			got := want.Look(two)
			if got.Ran > d && got.Waited > d {
				return
			}
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("two that share a CPU: %+v", got)
			}
		}
	}
	reach(much) // by now the third has come to rest
	none.Look(one)
	reach(2 * much)
	if got := none.Look(one); got.Waited > much/4 {
		t.Errorf("one that wants none: %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "1 2 3\n", "-1 2", "1 -2", "9223372036854775808 0 0", "0 0"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, ok := parse(b); got.Ran < 0 || got.Waited < 0 || !ok && got != (Turns{}) {
			t.Errorf("%q: %+v", b, got)
		}
	})
}
