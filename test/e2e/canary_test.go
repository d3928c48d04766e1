package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/rootfs"
)

// Nothing of a sandbox is in the next, or in one beside it: no file, memory, block of a disk,
// name, descriptor or token. A secret is planted wherever a sandbox has a place for one
// (testdata/canary), it is found there by what looks for it, and not in any other.

func TestNothingIsLeftForTheNext(t *testing.T) {
	s := common(t)
	var r [20]byte
	_, _ = rand.Read(r[:])
	c := canaries{server: s, key: hex.EncodeToString(r[:]), since: time.Now()}
	image := images(t)
	rounds := 1
	if os.Getenv("HUTCH_SOAK") != "" {
		rounds = 20
	}
	for range rounds {
		c.old = nil
		for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
			c.old = append(c.old, c.plant(t, tier))
		}
		for _, sb := range c.old {
			c.found(t, sb)
		}
		c.clean(t, "one beside it", c.next(t, hutch.TierDisk))
		for _, sb := range c.old {
			if err := s.client.Kill(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
		}
		for _, tier := range []hutch.DiskTier{hutch.TierMemory, hutch.TierDisk} {
			c.clean(t, "the next with its disk in "+string(tier), c.next(t, tier))
		}
	}
	if found := grepTree(t, s.dir, c.key); len(found) > 0 {
		t.Errorf("on the host's disk it is in %q", found)
	}
	now := images(t)
	for path, before := range image {
		if after, is := now[path]; is && after != before {
			t.Errorf("%s was %s and is %s", path, before, after)
		}
	}
}

// canaries are a key that is in every secret, and who had them.
type canaries struct {
	*server
	key   string
	since time.Time
	old   []planted
}

// planted is a sandbox that has the secrets, and the token of its agent.
type planted struct {
	ID    hutch.SandboxID
	token string
}

func (c *canaries) word(place string) string { return c.key + ":" + place + "." }

// plant makes a sandbox with the secrets.
func (c *canaries) plant(t *testing.T, tier hutch.DiskTier) planted {
	t.Helper()
	sb := c.create(t, api.CreateSandbox{
		MemoryMB: ptr(256), DiskMB: ptr(128), DiskTier: tier,
		Env: map[string]string{"CANARY": c.word("env")}, Metadata: map[string]string{"secret.canary": c.word("metadata")},
	}).ID
	c.equip(t, sb, "plant.py")
	c.background(t, sb, "exec python3 /root/canary/plant.py", func(r *api.ExecRequest) {
		r.Env = map[string]string{"EXEC_CANARY": c.word("execenv")}
		r.Stdin = ptr(c.word("stdin"))
	})
	eventually(t, "the secrets are planted", func() bool {
		return c.run(t, sb, "test -e /root/canary/planted").ExitCode == 0
	})
	return planted{sb, c.agentCall(t, sb, "", "").Header["X-Access-Token"]}
}

// next makes a sandbox like it, without any.
func (c *canaries) next(t *testing.T, tier hutch.DiskTier) hutch.SandboxID {
	t.Helper()
	return c.create(t, api.CreateSandbox{MemoryMB: ptr(256), DiskMB: ptr(128), DiskTier: tier}).ID
}

// equip gives a sandbox programs, and the key backwards.
func (c *canaries) equip(t *testing.T, sb hutch.SandboxID, programs ...string) {
	t.Helper()
	c.put(t, sb, "/root/canary/yek", []byte(reverse(c.key)))
	for _, p := range programs {
		c.put(t, sb, "/root/canary/"+p, []byte(file(filepath.Join("testdata", "canary", p))+"\n"))
	}
}

// scan looks for the secrets from inside, and returns the places that were planted.
func (c *canaries) scan(t *testing.T, sb hutch.SandboxID) (places map[string]bool, report string) {
	t.Helper()
	c.equip(t, sb, "scan.py")
	pruned := " /usr" // which takes most of the time; its upper layer is looked through from outside
	if os.Getenv("HUTCH_SOAK") != "" {
		pruned = ""
	}
	report = c.out(t, sb, fmt.Sprintf("python3 /root/canary/scan.py %d%s", c.since.Unix(), pruned), timeout(300))
	places = map[string]bool{}
	for line := range strings.Lines(report) {
		if _, place, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			places[place] = true
		}
	}
	var names, files, memory, fresh int64
	last := report[strings.LastIndexByte(report, '\n')+1:]
	if _, err := fmt.Sscanf(last, "looked through %d names, %d files, %d bytes of memory, %d fresh bytes", &names, &files, &memory, &fresh); err != nil {
		t.Fatalf("%v in %q", err, last)
	}
	if names < 1000 || files < 3 || memory < 4<<20 || fresh != 100<<20 {
		t.Errorf("too little was looked through: %s", last)
	}
	return places, report
}

// found says that who looks finds every secret where it was planted.
func (c *canaries) found(t *testing.T, sb planted) {
	t.Helper()
	onHost, _ := c.onHost(t, sb.ID)
	for _, place := range []string{"memory", "memfd", "pipe", "pair", "stream", "segment", "queue", "xattr", "link", "host", "env", "tmp"} {
		if !onHost[place] {
			t.Errorf("of what was planted in %s nothing is found in the memory of its kernel: the search shows nothing", place)
		}
	}
	want := append(strings.Fields(c.out(t, sb.ID, "cat /root/canary/planted")), "env", "execenv", "stdin")
	got, report := c.scan(t, sb.ID)
	for _, place := range want {
		switch place {
		case "removed", "freed", "pipe", "stdin":
			continue // nobody inside can get at it
		}
		if !got[place] {
			t.Errorf("of what was planted in %s nothing is found: the search shows nothing\n%s", place, report)
		}
	}
}

// clean says that a sandbox has nothing of them.
func (c *canaries) clean(t *testing.T, who string, sb hutch.SandboxID) {
	t.Helper()
	places, read := c.onHost(t, sb)
	if len(places) > 0 || read < 8<<20 {
		t.Errorf("%s: in %d bytes of its kernel's memory and disk there is %v", who, read, slices.Sorted(maps.Keys(places)))
	}
	for _, pid := range c.kernelOf(t, sb) {
		told := file(fmt.Sprintf("/proc/%d/mountinfo", pid)) + file(fmt.Sprintf("/proc/%d/cgroup", pid)) + file(fmt.Sprintf("/proc/%d/cmdline", pid)) + file(fmt.Sprintf("/proc/%d/environ", pid))
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(open) < 3 {
			t.Errorf("%s: descriptors %q, %v", who, open, err)
		}
		for _, fd := range open {
			name, _ := os.Readlink(fd)
			told += "\n" + name
		}
		for _, old := range c.old {
			if strings.Contains(told, string(old.ID)) {
				t.Errorf("%s: process %d of the host has something of the other: %s", who, pid, around(told, string(old.ID)))
			}
		}
	}
	if places, report := c.scan(t, sb); len(places) > 0 {
		t.Errorf("%s:\n%s", who, report)
	} else {
		t.Logf("%s: %s", who, report)
	}
	for _, path := range []string{"", "/events", "/execs", "/logs", "/lifecycle"} {
		if a := c.ask(t, "GET", "/v1/sandboxes/"+string(sb)+path, "").want(http.StatusOK); strings.Contains(a.body, c.key) {
			t.Errorf("%s: GET %s tells %s", who, path, around(a.body, c.key))
		}
	}
	for _, old := range c.old {
		for token, want := range map[string]int{old.token: http.StatusUnauthorized, c.agentCall(t, sb, "", "").Header["X-Access-Token"]: http.StatusOK} {
			a := c.ask(t, "GET", "/files?path=/etc/hostname&username=root", "", "Authorization", "", "E2b-Sandbox-Id", string(sb), "E2b-Sandbox-Port", "49983", "X-Access-Token", token)
			if a.status != want {
				t.Errorf("%s: by a token its agent answers %d, want %d: %.200s", who, a.status, want, a.body)
			}
		}
	}
}

// images are those that sandboxes are made from, as they are on the host.
func images(t *testing.T) map[string]string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(rootfs.CacheDir(), "images", "*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("images: %q, %v", all, err)
	}
	state := map[string]string{}
	for _, path := range all {
		if st, err := os.Stat(path); err == nil {
			state[path] = fmt.Sprint(st.Size(), st.Mode(), st.ModTime())
		}
	}
	return state
}

// onHost looks for the secrets from outside, in all that the kernel of a sandbox has in memory,
// and in the files without a name that it keeps the sandbox's memory and disk in.
func (c *canaries) onHost(t *testing.T, sb hutch.SandboxID) (places map[string]bool, read int64) {
	t.Helper()
	places = map[string]bool{}
	look := func(b []byte) {
		read += int64(len(b))
		for {
			at := bytes.Index(b, []byte(c.key))
			if at < 0 {
				return
			}
			b = b[at+len(c.key):]
			place := "?"
			if end := bytes.IndexByte(b[:min(len(b), 32)], '.'); end > 1 && b[0] == ':' {
				place = string(b[1:end])
			}
			places[place] = true
		}
	}
	for _, pid := range c.kernelOf(t, sb) {
		presentMemory(t, pid, look)
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range open {
			if name, _ := os.Readlink(fd); strings.HasSuffix(name, " (deleted)") {
				dataOf(t, fd, look)
			}
		}
	}
	return places, read
}

// presentMemory reads those pages of a process that are there.
func presentMemory(t *testing.T, pid int, look func([]byte)) {
	t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return // it has ended
	}
	defer mem.Close()
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	page := uint64(os.Getpagesize())
	buf := make([]byte, 1<<20)
	for line := range strings.Lines(file(fmt.Sprintf("/proc/%d/maps", pid))) {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if mode[0] != 'r' || strings.Contains(line, "[v") {
			continue
		}
		there := bufio.NewReader(io.NewSectionReader(pagemap, int64(from/page*8), int64((to-from)/page*8)))
		var word [8]byte
		for at := from; at < to; {
			n := uint64(0)
			for ; n < uint64(len(buf)) && at+n < to; n += page {
				if _, err := io.ReadFull(there, word[:]); err != nil || binary.LittleEndian.Uint64(word[:])>>62 == 0 {
					break // neither in memory nor swapped out
				}
			}
			if n > 0 {
				if m, _ := mem.ReadAt(buf[:n], int64(at)); m > 0 {
					look(buf[:m])
				}
			}
			if n < uint64(len(buf)) {
				n += page // the one that is not there
			}
			at += n
		}
	}
}

// dataOf reads a file without its holes.
func dataOf(t *testing.T, path string, look func([]byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		return // it is none that can be opened again
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return
	}
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to, err := f.Seek(from, unix.SEEK_HOLE)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := f.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		look(buf[:n])
		at = from + max(int64(n), 1)
	}
}
