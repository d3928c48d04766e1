package client_test

import (
	"strings"
	"testing"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// BenchmarkStream is how fast text comes from a command's output to the client's sink.
func BenchmarkStream(b *testing.B) {
	const size = 16 << 20
	fake := httpapitest.New()
	line := []byte(strings.Repeat("0123456789 abcdef", 60) + "\n")
	fake.Program("long", func(p *httpapitest.Process) int {
		for n := 0; n < size; n += len(line) {
			_, _ = p.Stdout.Write(line)
		}
		return 0
	})
	c := newClient(b, fake.Server(b, httpapi.Config{}).URL)
	sb, err := c.CreateSandbox(b.Context(), api.CreateSandbox{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	for b.Loop() {
		if _, err := c.Stream(b.Context(), sb.ID, api.ExecRequest{Cmd: "long"}, client.StreamOptions{}, func(client.Output) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
