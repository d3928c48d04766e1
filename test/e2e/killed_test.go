package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// What a client leaves behind that is killed in the middle of a call. It is a process of its
// own each time, which ends as a crash ends it: it says no more, and its connections close
// when the kernel finds them.

// Killed at any moment of a create, it leaves a sandbox that is on record and can be used, or
// none: never one that only the host or only the record has.
func TestClientIsKilledInACreate(t *testing.T) {
	s := own(t)
	list := func() (all []api.Sandbox) {
		for sb, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, sb)
		}
		return all
	}
	begun := 0
	for i := range 8 {
		before := len(list())
		var p *process
		if i%2 == 0 {
			p = s.startHutch(t, "create", "--memory", "256")
		} else {
			p = startCall(t, oneCall{Method: http.MethodPost, URL: s.base + "/v2/sandboxes", Body: []byte(`{"templateID":"base"}`), Header: map[string]string{"X-API-KEY": s.key}})
		}
		if i < 4 { // as soon as the server has begun
			eventually(t, "there is a record of it", func() bool { return len(list()) > before })
			begun++
		} else {
			<-time.After(time.Duration(i-3) * 20 * time.Millisecond)
		}
		p.kill()
	}
	var left []api.Sandbox
	eventually(t, "records and host agree", func() bool {
		left = list()
		whole := !slices.ContainsFunc(left, func(sb api.Sandbox) bool { return sb.State != hutch.StateRunning || sb.Transition != "" })
		return whole && s.sentries() == len(left)
	})
	if len(left) < begun {
		t.Errorf("%d are left of %d that had begun", len(left), begun)
	}
	for _, sb := range left {
		if out := s.out(t, sb.ID, "echo alive"); out != "alive" {
			t.Errorf("%s answers %q", sb.ID, out)
		}
		if err := s.client.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "nothing of them is on the host", func() bool { return s.sandboxProcesses() == 0 })
}

// Killed while it follows a command, it ends nothing: the command goes on, is on record with
// all that it wrote, can be followed and cancelled by anyone, and then nothing of it is left.
func TestClientIsKilledInAStream(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	const script = `echo begun; while [ ! -e /tmp/go-%s ]; do sleep 0.05; done; echo went on; sleep 432%s`
	for i, how := range []string{"command line", "a session", "E2B"} {
		t.Run(how, func(t *testing.T) {
			line := fmt.Sprintf(script, itoa(i), itoa(i))
			var p *process
			switch how {
			case "command line":
				p = s.startHutch(t, "exec", string(sb.ID), "-c", line)
			case "a session":
				p = s.startHutch(t, "exec", "-s", "main", string(sb.ID), "-c", line)
			default:
				call := s.agentCall(t, sb.ID, "/process.Process/Start", "application/connect+json")
				msg, err := json.Marshal(map[string]any{"process": map[string]any{"cmd": "/bin/sh", "args": []string{"-c", line}}, "stdin": false})
				if err != nil {
					t.Fatal(err)
				}
				call.Body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(msg))), msg...)
				p = startCall(t, call)
				if first := frame(t, p); !strings.Contains(first, `"start"`) {
					t.Errorf("got %s", first)
				}
				if second := frame(t, p); !strings.Contains(second, `"stdout":"YmVndW4K"`) {
					t.Errorf("got %s", second)
				}
			}
			if how != "E2B" {
				if got := string(p.read(t, len("begun\n"))); got != "begun\n" {
					t.Errorf("got %q", got)
				}
			}
			p.kill()
			var id hutch.ExecID
			for x, err := range s.client.Execs(t.Context(), sb.ID, true) {
				if err != nil {
					t.Fatal(err)
				}
				id = x.ExecID
			}
			if id == "" {
				t.Fatal("no command is on record as running")
			}
			s.out(t, sb.ID, "touch /tmp/go-"+itoa(i))
			eventually(t, "it goes on", func() bool { return s.alive(t, sb.ID, "^sleep 432"+itoa(i)) == 1 })
			x, err := s.client.Cancel(t.Context(), id, nil)
			if err != nil || x.Result == nil || x.Result.Stdout != "begun\nwent on\n" {
				t.Errorf("got %+v, %v, want all of its output", x.Result, err)
			}
			if n := s.alive(t, sb.ID, "^sleep 432"+itoa(i)); n != 0 {
				t.Errorf("%d are left", n)
			}
			if how == "a session" {
				if out, errOut, err := s.hutchCLI(t, "exec", "-s", "main", string(sb.ID), "-c", "echo $((6*7))"); err != nil || out != "42\n" {
					t.Errorf("the session afterwards: %q, %q, %v", out, errOut, err)
				}
			}
		})
	}
}

// Killed in an upload, it leaves the old file, and none where there was none, whichever way
// the bytes come.
func TestClientIsKilledInAnUpload(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	native := oneCall{Method: http.MethodPut, Header: map[string]string{"Authorization": "Bearer " + s.key}, Stdin: true}
	octets := s.agentCall(t, sb.ID, "/files?username=root&path=", "application/octet-stream")
	form := s.agentCall(t, sb.ID, "/files?username=root&path=", "multipart/form-data; boundary=b")
	octets.Stdin, form.Stdin = true, true
	form.Body = []byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n")
	for how, start := range map[string]func(path string) *process{
		"command line": func(path string) *process { return s.startHutch(t, "cp", "-", string(sb.ID)+":"+path) },
		"native": func(path string) *process {
			native.URL = s.base + "/v1/sandboxes/" + string(sb.ID) + "/fs?path=" + path
			return startCall(t, native)
		},
		"E2B":         func(path string) *process { c := octets; c.URL += path; return startCall(t, c) },
		"E2B, a form": func(path string) *process { c := form; c.URL += path; return startCall(t, c) },
	} {
		t.Run(how, func(t *testing.T) {
			s.out(t, sb.ID, "rm -rf /workspace/d && mkdir /workspace/d && echo old >/workspace/d/old")
			for _, name := range []string{"old", "new"} {
				p := start("/workspace/d/" + name)
				// More than the pipe, the sockets and the command line hold: a part of it has arrived.
				if _, err := io.CopyN(p.stdin, &pattern{n: 24 << 20}, 24<<20); err != nil {
					t.Fatalf("%v\n%s", err, p.log)
				}
				p.kill()
			}
			if how != "command line" {
				eventually(t, "nothing is left of it", func() bool { return s.out(t, sb.ID, "ls -A /workspace/d") == "old" })
			}
			// What the command line has sent in parts is kept under another name for a while.
			if got := s.out(t, sb.ID, "cat /workspace/d/old; ls /workspace/d"); got != "old\nold" {
				t.Errorf("inside: %q", got)
			}
		})
	}
}

// Killed in the copy of a tree, it leaves whole files only.
func TestClientIsKilledInTheCopyOfATree(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(1024)})
	src := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	const files, size = 90, 8 << 20
	content := make([]byte, size)
	if _, err := io.ReadFull(&pattern{n: size}, content); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(src, "f00")
	if err := os.WriteFile(first, content, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range files - 1 {
		if err := os.Link(first, filepath.Join(src, fmt.Sprintf("f%02d", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	p := s.startHutch(t, "cp", src, string(sb.ID)+":/workspace/")
	eventually(t, "the first file is there, and the next has begun", func() bool {
		n, err := strconv.Atoi(s.out(t, sb.ID, "ls /workspace/tree 2>/dev/null | wc -l"))
		return err == nil && n >= 2
	})
	p.kill()
	want := sumOf(t, bytes.NewReader(content))
	eventually(t, "what is there is whole", func() bool {
		others := fmt.Sprintf("cd /workspace/tree && { ls -A | grep -v '^f[0-9][0-9]$'; sha256sum f* | grep -v ^%s; } || true", want)
		return s.out(t, sb.ID, others) == ""
	})
	n, err := strconv.Atoi(s.out(t, sb.ID, "ls /workspace/tree | wc -l"))
	if err != nil || n < 1 || n >= files {
		t.Errorf("%d files of %d, %v; want some, as it was killed on the way", n, files, err)
	}
}
