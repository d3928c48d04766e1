package e2e

import (
	"crypto/rand"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hostIPC makes a segment, a semaphore and a queue on the host, and returns the key of each.
func hostIPC(t *testing.T) []int {
	t.Helper()
	var r [3]byte
	_, _ = rand.Read(r[:])
	key := 1<<24 | int(r[0])<<16 | int(r[1])<<8 | int(r[2])
	for _, c := range []struct {
		get, size, ctl uintptr
		remove         [3]uintptr // of ctl: what comes after the id
	}{
		{unix.SYS_SHMGET, 4096, unix.SYS_SHMCTL, [3]uintptr{unix.IPC_RMID}},
		{unix.SYS_SEMGET, 1, unix.SYS_SEMCTL, [3]uintptr{0, unix.IPC_RMID}},
		{unix.SYS_MSGGET, unix.IPC_CREAT | unix.IPC_EXCL | 0o666, unix.SYS_MSGCTL, [3]uintptr{unix.IPC_RMID}},
	} {
		id, _, e := unix.Syscall(c.get, uintptr(key), c.size, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
		if e != 0 {
			t.Fatalf("call %d: %v", c.get, e)
		}
		t.Cleanup(func() {
			if _, _, e := unix.Syscall6(c.ctl, id, c.remove[0], c.remove[1], c.remove[2], 0, 0); e != 0 {
				t.Errorf("call %d: %v", c.ctl, e)
			}
		})
	}
	return []int{key}
}

// hostKey keeps a key in the host's kernel, and returns what it is called.
func hostKey(t *testing.T) string {
	t.Helper()
	const name, unlink, userKeyring = "hutch-escape", 9, -4
	id, err := unix.AddKey("user", name, []byte("x"), userKeyring)
	if err != nil {
		t.Logf("the host keeps no keys: %v", err)
		return name
	}
	t.Cleanup(func() {
		if _, err := unix.KeyctlInt(unlink, id, userKeyring, 0, 0); err != nil {
			t.Error(err)
		}
	})
	return name
}

// hostNetwork is some of the host's addresses, and its links but those that a sandbox has too.
func hostNetwork(t *testing.T) (four, six, links []string) {
	t.Helper()
	four, six, links = []string{}, []string{}, []string{}
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifs {
		if i.Name != "lo" && i.Name != "eth0" {
			links = append(links, i.Name)
		}
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			ip := a.(*net.IPNet).IP
			switch {
			case ip.IsLoopback() || len(four) >= 4 && len(six) >= 4:
			case ip.To4() != nil && !strings.HasPrefix(ip.String(), "10.200.0."):
				four = append(four, ip.String())
			case ip.To4() == nil:
				six = append(six, ip.String())
			}
		}
	}
	return four, six, links
}
