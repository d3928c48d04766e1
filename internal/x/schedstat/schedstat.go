// Package schedstat reads how the kernel's scheduler treats threads: for how long they ran, and
// for how long they could have and did not get to.
//
// What is read here cannot be brought about by the load of the host without being its doing:
// a thread that wants nothing waits for nothing, however busy the host is.
//
// Linux keeps the figures where it is built with CONFIG_SCHED_INFO, as the kernels of
// distributions are. On one that is not, threads are said never to have waited.
package schedstat

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Turns is what threads came to, in sum.
type Turns struct {
	Ran    time.Duration // on a CPU
	Waited time.Duration // for one, or, as far as was seen, for a disk
}

// Watch follows a changing set of threads. The zero value is ready; its methods are safe for
// concurrent use.
type Watch struct {
	proc string // "/proc", but for tests

	mu   sync.Mutex
	last map[int]Turns // nil before the first look
	at   time.Time     // of the last look
	sum  Turns
}

// Look returns the turns, since the first Look, of the threads with these numbers, and of
// those that earlier ones had named. Of threads that have ended since, it misses what they came to
// after the last Look.
func (w *Watch) Look(threads []int) Turns {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, first := time.Now(), w.last == nil
	seen := make(map[int]Turns, len(threads))
	for _, id := range threads {
		t, ok := w.read(id)
		if !ok {
			continue
		}
		seen[id] = t
		if first {
			continue
		}
		before, known := w.last[id]
		if t.Ran < before.Ran || t.Waited < before.Waited { // the number is another thread's now
			before, known = Turns{}, false
		}
		w.sum.Ran += t.Ran - before.Ran
		w.sum.Waited += t.Waited - before.Waited
		if known && w.onDisk(id) {
			w.sum.Waited += now.Sub(w.at)
		}
	}
	w.last, w.at = seen, now
	return w.sum
}

// read returns what the kernel has noted of a thread.
func (w *Watch) read(id int) (Turns, bool) {
	b, err := os.ReadFile(w.file(id, "schedstat"))
	if err != nil {
		return Turns{}, false
	}
	return parse(b)
}

// parse reads nanoseconds on a CPU, nanoseconds of waiting for one, and a count of no interest.
func parse(b []byte) (Turns, bool) {
	f := bytes.Fields(b)
	if len(f) < 2 {
		return Turns{}, false
	}
	ran, err := strconv.ParseInt(string(f[0]), 10, 64)
	waited, werr := strconv.ParseInt(string(f[1]), 10, 64)
	if err != nil || werr != nil || ran < 0 || waited < 0 {
		return Turns{}, false
	}
	return Turns{time.Duration(ran), time.Duration(waited)}, true
}

// onDisk reports whether a thread waits now for what only the kernel can bring about, a page
// or a disk.
func (w *Watch) onDisk(id int) bool {
	b, err := os.ReadFile(w.file(id, "stat"))
	if err != nil {
		return false
	}
	// The name, in brackets, may hold anything; the state follows it.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(f) > 0 && string(f[0]) == "D"
}

func (w *Watch) file(id int, name string) string {
	proc := w.proc
	if proc == "" {
		proc = "/proc"
	}
	return filepath.Join(proc, strconv.Itoa(id), name)
}
