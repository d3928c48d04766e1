package sniff

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzLook: whatever comes is decided in bounded space, and the same however it is cut.
func FuzzLook(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"))
	f.Add(handshake(serverName("a.example"), extension(extensionECH, []byte{0})))
	f.Add(split(handshake(serverName("a.example")), 9))
	f.Add([]byte(`{"method":"mining.subscribe"}`))
	f.Add(preface)
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2*MaxFirst {
			return
		}
		first, need := Look(b, false)
		if need != 0 && (need <= len(b) || len(b) >= MaxFirst) {
			t.Fatalf("%d bytes are needed with %d there", need, len(b))
		}
		if need == 0 {
			if more, _ := Look(append(bytes.Clone(b), "more"...), false); first.Err == nil && (more.Protocol != first.Protocol || more.Hello.Name != first.Hello.Name || more.Head.Host != first.Head.Host) {
				t.Fatalf("more bytes changed it from %+v to %+v", first, more)
			}
		}
		if _, need := Look(b, true); need != 0 {
			t.Fatal("undecided at the end")
		}
		if first.Protocol == HTTP && need == 0 && first.Err == nil {
			head := string(b[:first.Head.Size])
			if n := strings.Count(strings.ToLower(head), "\nhost:"); n > 1 || strings.Contains(strings.ReplaceAll(head, "\r\n", ""), "\n") {
				t.Fatalf("passed: %q", head)
			}
		}
	})
}

// FuzzBody: where a body ends does not depend on how it comes.
func FuzzBody(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\nGET"), 3)
	f.Add([]byte("0\r\nX: y\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 1 || size > len(b) {
			return
		}
		end := func(step int) (int, bool, bool) {
			body := Body{chunked: true}
			at := 0
			for at < len(b) && !body.Empty() {
				p := b[at:min(at+step, len(b))]
				n, err := body.Take(p)
				if err != nil {
					return 0, false, true
				}
				at += n
			}
			return at, body.Empty(), false
		}
		n1, over1, bad1 := end(len(b))
		n2, over2, bad2 := end(size)
		if bad1 != bad2 || n1 != n2 || over1 != over2 {
			t.Fatalf("whole: %d %v %v; in pieces of %d: %d %v %v", n1, over1, bad1, size, n2, over2, bad2)
		}
	})
}

// FuzzRecords: what passes is what came, and a hello for another host never does.
func FuzzRecords(f *testing.F) {
	f.Add(handshake(serverName("evil.example")), 4, false)
	f.Add([]byte{20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 1, 0}, 1, true)
	f.Fuzz(func(t *testing.T, b []byte, size int, early bool) {
		if size < 1 {
			return
		}
		r := NewRecords(Hello{Name: "a.example", EarlyData: early})
		var passed []byte
		for at := 0; at < len(b); at += size {
			out, err := r.Next(b[at:min(at+size, len(b))])
			if err != nil {
				return
			}
			passed = append(passed, out...)
		}
		if !bytes.HasPrefix(b, passed) || len(b)-len(passed) > 2*maxHello {
			t.Fatalf("passed %x of %x", passed, b)
		}
		if h, need, err := ParseHello(passed); err == nil && need == 0 && h.Name != "a.example" {
			t.Fatalf("a hello for %q passed", h.Name)
		}
	})
}
