package control

import (
	"strconv"
	"strings"

	"hutch.dev/hutch"
)

const (
	maxPorts     = 64  // labelled ports of a sandbox
	maxPortLabel = 64  // bytes of a label
	maxMaskHost  = 260 // bytes: the longest DNS name, a colon and a port
	portVariable = "${PORT}"
)

// checkAccess holds what says who reaches a sandbox against its limits.
func checkAccess(a hutch.Access) error {
	if a.Surface != hutch.SurfaceNative && a.Surface != hutch.SurfaceE2B {
		return hutch.FieldErrorf("surface", "%q is not known", a.Surface)
	}
	if err := checkMaskHost(a.MaskHost); err != nil {
		return err
	}
	if len(a.Ports) > maxPorts {
		return hutch.FieldErrorf("ports", "has %d entries, the most is %d", len(a.Ports), maxPorts)
	}
	for port, label := range a.Ports {
		if port < 1 || port > 65535 {
			return hutch.FieldErrorf("ports", "%d is not a port: they go from 1 to 65535", port)
		}
		if len(label) > maxPortLabel || strings.ContainsFunc(label, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\uFFFD' }) {
			return hutch.FieldErrorf("ports", "the label of %d must be printable text of at most %d bytes", port, maxPortLabel)
		}
	}
	return nil
}

// checkMaskHost accepts what a Host header can carry: a name or address, and a port. It
// ends in a header that servers inside parse, so nothing else is let through.
func checkMaskHost(h string) error {
	if h == "" {
		return nil
	}
	bad := hutch.FieldErrorf("mask_host", "must be a host name, with a port or without, in ASCII; %s in it stands for the port", portVariable)
	plain := strings.ReplaceAll(h, portVariable, "8080")
	if len(plain) > maxMaskHost {
		return bad
	}
	name := plain
	if i := strings.LastIndexByte(plain, ':'); i >= 0 && !strings.HasSuffix(plain, "]") {
		n, err := strconv.Atoi(plain[i+1:])
		if err != nil || n < 1 || n > 65535 || plain[i+1] == '+' {
			return bad
		}
		name = plain[:i]
	}
	name, inBrackets := strings.CutPrefix(name, "[")
	if inBrackets {
		var closed bool
		if name, closed = strings.CutSuffix(name, "]"); !closed {
			return bad
		}
	}
	if name == "" {
		return bad
	}
	for i := range len(name) {
		b := name[i]
		ok := b == '-' || b == '.' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
		if !ok && (!inBrackets || b != ':') {
			return bad
		}
	}
	return nil
}
