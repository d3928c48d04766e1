package httpapi_test

import (
	"bytes"
	"io"
	"testing"

	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// BenchmarkExecStream is how fast output leaves the server as events, by what it is.
func BenchmarkExecStream(b *testing.B) {
	const size = 32 << 20
	for name, line := range map[string]string{
		"text":    "the quick brown fox jumps over the lazy dog, and nothing else happens\n",
		"accents": "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë\n",
		"binary":  "\x00\x01\x02\xff\xfe\x80abcdefgh\n",
	} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(line), size/len(line))
			s := newBench(b, httpapi.Config{})
			s.Program("print", func(p *httpapitest.Process) int {
				for rest := data; len(rest) > 0; {
					n := min(len(rest), 64<<10)
					_, _ = p.Stdout.Write(rest[:n])
					rest = rest[n:]
				}
				return 0
			})
			sb := s.sandbox()
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				req := s.request("POST", "/v1/sandboxes/"+sb+"/exec/stream?budget=0", `{"cmd": "print"}`)
				res := s.send(req)
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
