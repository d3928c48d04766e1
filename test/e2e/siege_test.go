package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// mark is in all that an attack writes. No log of the host may ever hold it.
const mark = "xEscApEx"

// siege is a server with something to lose, and what of the host is watched.
type siege struct {
	*server
	neighbour hutch.SandboxID
	word      string            // what the neighbour was given
	secrets   map[string]string // what must not be found inside, and what it is
	dir       string            // of the host, with files an attack looks for
	reached   *atomic.Int64     // connections and datagrams that came to the host's listeners
	target    map[string]any    // what the attacks are told
	host      map[string]string // the host before
}

func besiege(t *testing.T) *siege {
	t.Helper()
	b := &siege{dir: t.TempDir(), reached: new(atomic.Int64)}
	secret := func() string {
		var r [20]byte
		_, _ = rand.Read(r[:])
		return hex.EncodeToString(r[:])
	}
	ofServer, ofNeighbour := secret(), secret()
	t.Setenv("HUTCH_TEST_CANARY", ofServer) // the server and its companions inherit it
	b.server = own(t)
	neighbour := b.create(t, api.CreateSandbox{MemoryMB: ptr(256), Env: map[string]string{"CANARY": ofNeighbour}})
	b.neighbour, b.word = neighbour.ID, ofNeighbour
	b.background(t, b.neighbour, "echo "+ofNeighbour+" >/srv/secret; cd /srv && exec python3 -m http.server 8099")
	b.secrets = map[string]string{
		ofServer: "the server's environment", ofNeighbour: "the neighbour's environment", string(b.neighbour): "the neighbour's id",
		b.server.dir: "the data directory's name", b.key: "the administrator's key", b.key[len(b.key)-40:]: "the digits of the administrator's key",
	}
	if err := os.WriteFile(filepath.Join(b.dir, "canary"), []byte(ofServer), 0o644); err != nil {
		t.Fatal(err)
	}
	b.target = b.aim(t)
	b.host = b.state(t)
	return b
}

// aim listens where attacks try to get to, and returns what they are told of the host.
func (b *siege) aim(t *testing.T) map[string]any {
	t.Helper()
	counted := func(port int) int {
		l, err := net.Listen("tcp", ":"+itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				b.reached.Add(1)
				_ = c.Close()
			}
		}()
		return l.Addr().(*net.TCPAddr).Port
	}
	port := counted(0)
	u, err := net.ListenPacket("udp", ":"+itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte(mark)) {
				b.reached.Add(1)
			}
		}
	}()
	abstract := "@hutch-escape-" + filepath.Base(b.server.dir)
	un, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = un.Close() })
	_, own, err := net.SplitHostPort(strings.TrimPrefix(b.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	ownPort, _ := strconv.Atoi(own)
	four, six, links := hostNetwork(t)
	pids := append(b.companionPIDs("keeper"), b.companionPIDs("egress")...)
	pids = append(pids, b.cmd.Process.Pid, os.Getpid())
	for _, p := range b.descendants() {
		pids = append(pids, p.pid)
	}
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"ports": []int{port, ownPort, 8099}, "addresses4": four, "addresses6": six, "links": links, "pids": pids, "needles": b.secrets,
		"files":    []string{filepath.Join(b.dir, "canary"), b.server.dir, filepath.Join(b.server.dir, "keeper.sock")},
		"unix":     []string{abstract, filepath.Join(b.server.dir, "keeper.sock"), filepath.Join(b.server.dir, "egress.sock"), "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket"},
		"hostname": hostname, "release": unix.ByteSliceToString(uts.Release[:]), "boot_id": file("/proc/sys/kernel/random/boot_id"),
		"ipc": hostIPC(t), "key": hostKey(t), "own": ownCanary,
	}
}

const ownCanary = "what-the-attacker-was-given"

func reverse(s string) string {
	r := []byte(s)
	slices.Reverse(r)
	return string(r)
}

// file is what a file holds, trimmed; why not if it cannot be read.
func file(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

// attacker is a sandbox with the attacks in it.
func (b *siege) attacker(t *testing.T, req api.CreateSandbox) hutch.SandboxID {
	t.Helper()
	req.Env = map[string]string{"OWN": ownCanary}
	sb := b.create(t, req).ID
	aim, err := json.Marshal(b.target)
	if err != nil {
		t.Fatal(err)
	}
	b.put(t, sb, "/root/attack/target.nosj", []byte(reverse(string(aim))))
	attacks, err := filepath.Glob("testdata/escape/*.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range attacks {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b.put(t, sb, "/root/attack/"+filepath.Base(name), src)
	}
	return sb
}

func (s *server) put(t *testing.T, sb hutch.SandboxID, path string, content []byte) {
	t.Helper()
	if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb, Path: path}, bytes.NewReader(content), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

var tried = regexp.MustCompile(mark + ` (\d+) tried\n$`)

// attack runs one, which must have tried as much as least, and finds the host unharmed.
func (b *siege) attack(t *testing.T, sb hutch.SandboxID, cmd string, least int) {
	t.Helper()
	res := b.run(t, sb, "cd /root/attack && python3 "+cmd, timeout(300))
	m := tried.FindStringSubmatch(res.Stdout)
	if m == nil || res.ExitCode != 0 {
		t.Errorf("%s: exit code %d, %s\n%s%s", cmd, res.ExitCode, res.EndReason, res.Stdout, res.Stderr)
	} else if n, _ := strconv.Atoi(m[1]); n < least {
		t.Errorf("%s tried %d things only", cmd, n)
	}
	b.unharmed(t)
}

// unharmed finds the host as it was, the server serving, and the neighbour at work.
func (b *siege) unharmed(t *testing.T) {
	t.Helper()
	b.inside(t, b.neighbour, "cat /srv/secret; echo $CANARY", b.word+"\n"+b.word)
	if n := b.reached.Load(); n != 0 {
		t.Errorf("%d connections came to the host", n)
	}
	now := b.state(t)
	for what, before := range b.host {
		if now[what] != before {
			t.Errorf("%s changed from %.500q to %.500q", what, before, now[what])
		}
	}
	for _, p := range b.descendants() {
		if in := file(fmt.Sprintf("/proc/%d/cgroup", p.pid)); !strings.Contains(in, b.cgroup()+"/") && !strings.Contains(in, "no such file") {
			t.Errorf("process %d (%s) is in %q", p.pid, p.args, in)
		}
	}
	logs, err := filepath.Glob(filepath.Join(b.server.dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{"serve": b.log.String()}
	for _, l := range logs {
		said[l] = file(l)
	}
	for name, text := range said {
		if at := strings.Index(text, mark); at >= 0 {
			t.Errorf("%s holds what a tenant wrote: %.400q", name, text[max(0, at-200):])
		}
	}
}

type hostProcess struct {
	pid  int
	args string
}

// descendants are the host's processes below this server's sentries and gofers, and they.
func (b *siege) descendants() []hostProcess {
	parents, args := map[int]int{}, map[int]string{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range stats {
		text := file(p)
		var pid, ppid int
		if _, err := fmt.Sscanf(text, "%d", &pid); err != nil {
			continue
		}
		if _, err := fmt.Sscanf(text[strings.LastIndexByte(text, ')')+1:], " %1s %d", new(string), &ppid); err != nil {
			continue
		}
		parents[pid] = ppid
		args[pid] = strings.ReplaceAll(file(fmt.Sprintf("/proc/%d/cmdline", pid)), "\x00", " ")
	}
	var found []hostProcess
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if strings.HasPrefix(args[p], "runsc-") && strings.Contains(args[p], b.server.dir+"/") {
				found = append(found, hostProcess{pid, args[pid]})
				break
			}
		}
	}
	return found
}

// state is what of the host an attack might change. Other tests use the host meanwhile, so
// lists that they change are searched for the attackers' mark only.
func (b *siege) state(t *testing.T) map[string]string {
	t.Helper()
	s := map[string]string{"canary": file(filepath.Join(b.dir, "canary"))}
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/randomize_va_space",
		"/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/shmmax", "/proc/sys/kernel/panic", "/proc/sys/fs/suid_dumpable", "/proc/sys/fs/file-max", "/proc/sys/fs/nr_open", "/proc/sys/vm/overcommit_memory",
		"/proc/sys/vm/mmap_min_addr", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/core/rmem_max", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
	} {
		s[path] = file(path)
	}
	s["areas of swap"] = firstWords(file("/proc/swaps"))
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(b.server.dir, "guest", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(kept, exe, "/etc/passwd", "/etc/hosts") {
		if st, err := os.Stat(path); err == nil {
			s[path] = fmt.Sprint(st.Size(), st.Mode(), st.ModTime())
		}
		if path != exe {
			s["content of "+path] = fmt.Sprintf("%x", sha256.Sum256([]byte(file(path))))
		}
	}
	for _, p := range []int{b.cmd.Process.Pid, b.companionPIDs("keeper")[0], b.companionPIDs("egress")[0]} {
		s[fmt.Sprintf("process %d", p)] = file(fmt.Sprintf("/proc/%d/oom_score_adj", p)) + " " + file(fmt.Sprintf("/proc/%d/cgroup", p))
	}
	for _, list := range []string{"/proc/self/mountinfo", "/proc/net/unix", "/proc/keys"} {
		s[mark+" in "+list] = strconv.Itoa(strings.Count(file(list), mark))
	}
	s["segment 0x5eca9e"] = strconv.FormatBool(strings.Contains(file("/proc/sysvipc/shm"), strconv.Itoa(0x5eca9e)))
	ifs, _ := net.Interfaces()
	s["links of attackers"] = strconv.FormatBool(slices.ContainsFunc(ifs, func(i net.Interface) bool { return strings.HasPrefix(i.Name, "esc") }))
	for _, dir := range []string{"/", "/tmp", "/root", "/run", "/dev", "/workspace", "/etc", "/opt/hutch", b.dir, b.server.dir, filepath.Join(b.server.dir, "*"), filepath.Join(b.server.dir, "*", "*"), filepath.Join(b.server.dir, "*", "*", "*")} {
		left, err := filepath.Glob(filepath.Join(dir, "*"+mark+"*"))
		if err != nil {
			t.Fatal(err)
		}
		s["files of attackers in "+dir] = fmt.Sprint(left)
	}
	return s
}

// firstWords are those of each line: how much a thing is used changes by itself.
func firstWords(text string) string {
	var words []string
	for line := range strings.Lines(text) {
		word, _, _ := strings.Cut(line, " ")
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// outOfMemory is how often the host refused a sandbox memory over its limit; 0 once it is gone.
func (b *siege) outOfMemory(t *testing.T, sb hutch.SandboxID) (n int) {
	t.Helper()
	path := filepath.Join("/sys/fs/cgroup/memory", b.cgroup(), string(sb), "memory.failcnt")
	if !b.isV1(t) {
		path = filepath.Join("/sys/fs/cgroup", b.cgroup(), string(sb), "memory.events")
	}
	for line := range strings.Lines(file(path)) {
		if v, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "max "))); err == nil {
			n = v
		}
	}
	return n
}
