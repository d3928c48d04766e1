package ports

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/procfs"
)

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5948830 2 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17
   2: 0100007F:1F90 0100007F:ABCD 01 00000000:00000000 00:00000000 00000000     0        0 18
   3: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 19
   4: 0000000000000000FFFF00000100007F:0BB9 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 x
   5: 0100007:1F90 00000000:0000 0A 0:0 00:0 0 0 0 20
   6: 0100007F:00000 00000000:0000 0A 0:0 00:0 0 0 0 21
   7: 0A
`

func TestParse(t *testing.T) {
	want := []listening{
		{netip.MustParseAddrPort("127.0.0.1:8080"), 5948830},
		{netip.MustParseAddrPort("0.0.0.0:22"), 17},
		{netip.MustParseAddrPort("[::1]:3000"), 19},
		{netip.MustParseAddrPort("127.0.0.1:3001"), 0},
	}
	if got := parse(strings.NewReader(table)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(table)
	f.Fuzz(func(t *testing.T, s string) {
		for _, l := range parse(strings.NewReader(s)) {
			if !l.addr.IsValid() || l.addr.Port() == 0 {
				t.Errorf("%v", l)
			}
		}
	})
}

func TestListFindsThisProcess(t *testing.T) {
	var l net.ListenConfig
	s, err := l.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := List(procfs.FS{Root: "/proc"})
	if err != nil {
		t.Fatal(err)
	}
	port := s.Addr().(*net.TCPAddr).Port
	i := slices.IndexFunc(list, func(l hutch.Listener) bool { return l.Port == port })
	if i < 0 {
		t.Fatalf("port %d is not listed in %+v", port, list)
	}
	if l := list[i]; l.Address != "127.0.0.1" || l.PID != os.Getpid() || l.Command == "" {
		t.Errorf("%+v, want it to be this process's, %d", l, os.Getpid())
	}
}
