package ports

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/procfs"
)

// What is read of a sandbox that does its worst.
const (
	maxTable     = 16 << 20 // bytes of a list of sockets
	maxListeners = 1000
	maxLinks     = 200_000 // descriptors looked at to find out whose a socket is
)

// listenState is TCP_LISTEN as /proc has it.
const listenState = "0A"

// listening is a socket that listens.
type listening struct {
	addr  netip.AddrPort
	inode uint64
}

// List lists the TCP ports that something listens on, lowest first, at most maxListeners.
func List(proc procfs.FS) ([]hutch.Listener, error) {
	var found []listening
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(proc.Root + "/net/" + name)
		if err != nil {
			continue // a kernel without that family
		}
		found = append(found, parse(io.LimitReader(f, maxTable))...)
		f.Close()
	}
	slices.SortFunc(found, func(a, b listening) int {
		return cmp.Or(cmp.Compare(a.addr.Port(), b.addr.Port()), a.addr.Addr().Compare(b.addr.Addr()))
	})
	// Several sockets can share an address: one for each CPU, say.
	found = slices.CompactFunc(found, func(a, b listening) bool { return a.addr == b.addr })
	found = found[:min(len(found), maxListeners)]

	owners := owners(proc, found)
	list := make([]hutch.Listener, 0, len(found))
	for _, l := range found {
		h := hutch.Listener{Port: int(l.addr.Port()), Address: l.addr.Addr().String(), PID: owners[l.inode]}
		if p, err := proc.Read(h.PID); h.PID > 0 && err == nil {
			h.Command = p.Comm
		}
		list = append(list, h)
	}
	return list, nil
}

// parse reads a list of sockets as /proc/net/tcp has it. Lines that make no sense are left
// out.
func parse(r io.Reader) []listening {
	var list []listening
	lines := bufio.NewScanner(r)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		// sl, local address, remote address, state, queues, timer, retransmits, uid, timeout, inode
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != listenState {
			continue
		}
		addr, err := parseAddr(f[1])
		if err != nil || addr.Port() == 0 {
			continue
		}
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if err != nil {
			inode = 0
		}
		list = append(list, listening{addr, inode})
	}
	return list
}

// parseAddr reads "0100007F:1F90": the address in groups of four bytes, each in the order
// of the machine, which is little endian on all that there are, and the port.
func parseAddr(s string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of a socket: %w", err)
	}
	for i := 0; i+4 <= len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("address of a socket: %d bytes", len(b))
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port of a socket: %w", err)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

// owners finds a process that has each socket: the one with the lowest pid.
func owners(proc procfs.FS, sockets []listening) map[uint64]int {
	owner := map[uint64]int{}
	wanted := map[string]uint64{}
	for _, l := range sockets {
		if l.inode != 0 {
			wanted[fmt.Sprintf("socket:[%d]", l.inode)] = l.inode
		}
	}
	if len(wanted) == 0 {
		return owner
	}
	pids, err := proc.PIDs()
	if err != nil {
		return owner
	}
	slices.Sort(pids)
	looked := 0
	for _, pid := range pids {
		dir := proc.Root + "/" + strconv.Itoa(pid) + "/fd"
		d, err := os.Open(dir)
		if err != nil {
			continue // gone meanwhile
		}
		names, _ := d.Readdirnames(maxLinks - looked)
		d.Close()
		for _, name := range names {
			target, err := os.Readlink(dir + "/" + name)
			if inode, ok := wanted[target]; ok && err == nil && owner[inode] == 0 {
				owner[inode] = pid
			}
		}
		if looked += len(names); looked >= maxLinks || len(owner) == len(wanted) {
			break
		}
	}
	return owner
}
