package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"

	"hutch.dev/hutch/internal/control"
)

// hostMemory reads what memory this host has.
func hostMemory() (control.Memory, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return control.Memory{}, err
	}
	return parseMemory(b)
}

// parseMemory reads the two lines of /proc/meminfo that matter here; they are in KiB.
func parseMemory(b []byte) (m control.Memory, err error) {
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var to *int
		f := bytes.Fields(s.Bytes())
		switch {
		case len(f) < 2:
			continue
		case string(f[0]) == "MemTotal:":
			to = &m.TotalMB
		case string(f[0]) == "MemAvailable:":
			to = &m.AvailableMB
		default:
			continue
		}
		kib, err := strconv.Atoi(string(f[1]))
		if err != nil {
			return m, fmt.Errorf("meminfo: %s %q: %w", f[0], f[1], err)
		}
		*to = kib >> 10
	}
	if m.TotalMB == 0 || m.AvailableMB == 0 {
		return m, fmt.Errorf("meminfo says %d MiB in all and %d MiB available", m.TotalMB, m.AvailableMB)
	}
	return m, nil
}
