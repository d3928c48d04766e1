package process

import (
	"bytes"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// report is what a shell says when it comes to a command, and when that has ended.
type report struct {
	nonce  string // the command's id at its begin: that need not be a secret
	status int
	cwd    string
}

// begun is the status in the report of a begin.
const begun = 256

// reportBuffer puts reports together from what comes through the pipe.
type reportBuffer struct{ b []byte }

// maxReport bounds a report: a path is 4 KiB at most, and a shell does not make one of more.
const maxReport = 16 << 10

// add adds bytes and returns the reports that are whole: "nonce status cwd", each with a zero
// byte at its end. Others inside can write to the pipe, so that anything can be there.
func (r *reportBuffer) add(b []byte) []report {
	r.b = append(r.b, b...)
	var list []report
	for {
		line, rest, ok := bytes.Cut(r.b, []byte{0})
		if !ok {
			break
		}
		r.b = rest
		if x, ok := parseReport(string(line)); ok {
			list = append(list, x)
		}
	}
	if len(r.b) > maxReport {
		r.b = nil
	}
	r.b = bytes.Clone(r.b)
	return list
}

func parseReport(line string) (report, bool) {
	f := strings.SplitN(line, " ", 3)
	if len(f) != 3 {
		return report{}, false
	}
	status, err := strconv.Atoi(f[1])
	if err != nil || status < 0 || status > begun {
		return report{}, false
	}
	x := report{nonce: f[0], status: status}
	if strings.HasPrefix(f[2], "/") && len(f[2]) <= unix.PathMax {
		x.cwd = f[2]
	}
	return x, true
}
