package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch/client"

	"hutch.dev/hutch/internal/x/pattern"
)

const (
	// readersFiles is by how many descriptors of the records' files a server may hold more
	// than before: its pool of readers, four of two files each, fills as it is needed.
	readersFiles = 8

	// restFor bounds the wait for a server to have put away what the last call left; it
	// polls this often, and takes it for resting when nothing has changed for so many looks.
	restFor   = 30 * time.Second
	restEvery = 200 * time.Millisecond
	restLooks = 10
	// heapLooks is how often the heap is looked at, this far apart.
	heapLooks = 20
)

// holdings is what a server that rests holds.
type holdings struct {
	heap     int64
	files    map[string]map[string]int // open descriptors by process, and what they lead to
	routines map[string]int            // goroutines of this process, by where they were begun
	left     int                       // control groups and directories of sandboxes
}

func count(m map[string]int) int {
	n := 0
	for v := range maps.Values(m) {
		n += v
	}
	return n
}

func (h *holdings) book(p page) {
	p.add(MetricHeap, Bytes, h.heap)
	p.add(MetricRoutines, Count, int64(count(h.routines)))
	for _, name := range slices.Sorted(maps.Keys(h.files)) {
		p.add(MetricFiles+name, Count, int64(count(h.files[name])))
	}
	p.add(MetricLeft, Count, int64(h.left))
}

// like says whether the same numbers of everything but the heap are held.
func (h *holdings) like(o *holdings) bool {
	same := count(h.routines) == count(o.routines) && h.left == o.left && len(h.files) == len(o.files)
	for name, f := range h.files {
		same = same && (count(f) == count(o.files[name]) || name == filesOfRecords)
	}
	return same
}

// beyond names what is held more than before, and by how much.
func (h *holdings) beyond(before *holdings) []string {
	var out []string
	more := func(what string, now, then map[string]int) {
		for _, k := range slices.Sorted(maps.Keys(now)) {
			if n := now[k] - then[k]; n > 0 {
				out = append(out, fmt.Sprintf("%s: %d more of %s", what, n, k))
			}
		}
	}
	if count(h.routines) > count(before.routines) {
		more("goroutines", h.routines, before.routines)
	}
	for _, name := range slices.Sorted(maps.Keys(h.files)) {
		slack := 0
		if name == filesOfRecords {
			slack = readersFiles
		}
		if count(h.files[name]) > count(before.files[name])+slack {
			more("descriptors of the "+name, h.files[name], before.files[name])
		}
	}
	return out
}

// stir has the server open what it opens when many call at once, readers of the records
// above all, so that it is open whenever it is looked at.
func (s Server) stir(ctx context.Context) error {
	const bursts, atOnce = 8, 32
	for range bursts {
		g, gctx := errgroup.WithContext(ctx)
		for range atOnce {
			g.Go(func() error {
				for _, err := range s.API.Sandboxes(gctx, client.SandboxFilter{}) {
					if err != nil {
						return fmt.Errorf("list sandboxes: %w", err)
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until the server has put away what the last calls left, and returns what it
// holds then: until it is what it was, or, with nothing to compare with and where it never
// is, until it no longer changes.
func (s Server) rest(ctx context.Context, was *holdings) (*holdings, error) {
	if err := s.stir(ctx); err != nil {
		return nil, err
	}
	limit := time.Now().Add(restFor)
	var last *holdings
	for same := 0; ; {
		s.HTTP.CloseIdleConnections()
		h, err := s.holdings()
		if err != nil {
			return nil, err
		}
		if same++; last == nil || !h.like(last) {
			same = 0
		}
		last = h
		// A single look that agrees may be chance, of something that comes and goes.
		steady := same >= restLooks
		if (steady && (was == nil || h.like(was))) || time.Now().After(limit) {
			h.heap, err = restingHeap(ctx, was)
			return h, err
		}
		if err := pause(ctx, restEvery); err != nil {
			return nil, err
		}
	}
}

// restingHeap is the least that the heap is within a while: what timers, finalizers and
// pools hold goes by itself. The while ends early once it is no more than it was.
func restingHeap(ctx context.Context, was *holdings) (int64, error) {
	least := collected()
	for range heapLooks {
		if was != nil && least <= was.heap {
			break
		}
		if err := pause(ctx, restEvery); err != nil {
			return 0, err
		}
		least = min(least, collected())
	}
	return least, nil
}

// collected is the size of this process's heap once nothing in it is garbage.
func collected() int64 {
	var m runtime.MemStats
	// What is in pools survives one collection, and what has a finalizer another.
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (s Server) holdings() (*holdings, error) {
	h := &holdings{files: map[string]map[string]int{}, routines: routines()}
	for name, pid := range s.Host.PIDs {
		open, err := descriptors(pid)
		if err != nil {
			return nil, fmt.Errorf("list the descriptors of the %s: %w", name, err)
		}
		h.files[name] = open
	}
	h.files[filesOfRecords] = s.Host.takeRecords(h.files["server"])
	groups, err := s.Host.Groups.List()
	if err != nil {
		return nil, fmt.Errorf("list the control groups: %w", err)
	}
	dirs, err := os.ReadDir(s.Host.BoxDir(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the sandboxes' directories: %w", err)
	}
	h.left = len(groups) + len(dirs)
	return h, nil
}

// filesOfRecords is what the server's descriptors of the records' files are called.
const filesOfRecords = "server, of its records"

// takeRecords takes the records' files out of what a server has open, and returns them.
func (h *Host) takeRecords(open map[string]int) map[string]int {
	taken := map[string]int{}
	for _, name := range h.Records {
		key := kindOf(name)
		if n, ok := open[key]; ok {
			taken[key] = n
			delete(open, key)
		}
	}
	return taken
}

// number is what makes descriptors of one kind look different.
var number = pattern.New(`\d+`)

// descriptors counts what a process has open by what it is, without the one it takes to look.
func descriptors(pid int) (map[string]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, e := range entries {
		to, err := os.Readlink(dir + "/" + e.Name())
		if err != nil || to == dir { // closed meanwhile, or the one it takes
			continue
		}
		out[kindOf(to)]++
	}
	return out, nil
}

// kindOf is what descriptors of one kind lead to.
func kindOf(to string) string { return number.ReplaceAllString(to, "*") }

// routines counts the goroutines of this process by where they were begun.
func routines() map[string]int {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return parseStacks(string(buf[:n]))
		}
		buf = make([]byte, 2*len(buf))
	}
}

// parseStacks counts goroutines in a dump of all stacks.
func parseStacks(dump string) map[string]int {
	out := map[string]int{}
	for g := range strings.SplitSeq(dump, "\n\n") {
		by := "main"
		for line := range strings.SplitSeq(g, "\n") {
			if f, ok := strings.CutPrefix(line, "created by "); ok {
				by, _, _ = strings.Cut(f, " in goroutine ")
			}
		}
		out[by]++
	}
	return out
}
