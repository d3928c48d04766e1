package bench

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Conditions are what a figure means nothing without.
type Conditions struct {
	Date       time.Time `json:"date"`
	Hutch      string    `json:"hutch"`
	GVisor     string    `json:"gvisor"`
	Go         string    `json:"go"`
	Kernel     string    `json:"kernel"`
	CPU        string    `json:"cpu"`
	Cores      int       `json:"cores"`
	MemoryMB   int       `json:"memory_mb"`
	LoadBefore string    `json:"load_before"` // averages over 1, 5 and 15 minutes
	LoadAfter  string    `json:"load_after"`
	Cgroups    string    `json:"cgroups"` // "v1" or "v2"
	Server     string    `json:"server"`  // the bench's own, or which
	// Remote is a server that was there: what is said of the machine and of versions is the
	// caller's, which may be others.
	Remote bool `json:"remote,omitempty"`

	API       string `json:"api"`        // how it is called
	Records   string `json:"records"`    // how and where they are kept
	RecordsFS string `json:"records_fs"` // file system
	Link      string `json:"link"`       // network links of both subjects
	Image     string `json:"image"`      // where the root image was
	Start     string `json:"start"`      // cold, or restored from a snapshot
	Clock     string `json:"clock"`      // where the headline's clock starts and stops
}

// Host fills in what the machine says of itself. What it does not say stays empty.
func (c *Conditions) Host(now time.Time) {
	c.Date, c.Go, c.Cores = now.UTC().Truncate(time.Second), runtime.Version(), runtime.NumCPU()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		c.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	c.CPU = field("/proc/cpuinfo", "model name")
	if kb, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		c.MemoryMB = kb >> 10
	}
	c.LoadBefore = LoadAverage()
}

// LoadAverage returns the machine's load averages over 1, 5 and 15 minutes.
func LoadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	if len(f) < 3 {
		return ""
	}
	return strings.Join(f[:3], " ")
}

// field returns the first value of a name in a file of the form "name: value".
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		k, v, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// FileSystem names the type of the file system that path is on, as the mount table has it.
func FileSystem(path string) string {
	all, err := mountTable()
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	kind, longest := "", -1
	for _, m := range all {
		at := strings.TrimSuffix(m.dir, "/")
		// A later mount on the same directory hides the earlier one.
		if (path == at || strings.HasPrefix(path, at+"/")) && len(at) >= longest {
			kind, longest = m.kind, len(at)
		}
	}
	return kind
}
