package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// specFD returns the descriptor of a file that holds the spec, as runsc hands it to a
// sentry.
func specFD(t *testing.T, spec string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

const sized = `{"linux":{"resources":{"cpu":{"quota":150000,"period":100000},"memory":{"limit":268435456}}}}`

func TestSizeSentry(t *testing.T) {
	for name, c := range map[string]struct {
		spec, args, want string
	}{
		"sets what runsc left out, and replaces what it took from the host": {
			spec: sized,
			args: "runsc-sandbox --root=/r boot --bundle=/b --spec-fd=FD --total-host-memory 900 --total-memory 800 id",
			want: "runsc-sandbox --root=/r boot --bundle=/b --spec-fd=FD --total-host-memory 900 --cpu-num=2 --cpu-quota=150000 --cpu-period=100000 --total-memory=268435456 id",
		},
		"is the same when a sentry executes itself again": {
			spec: sized,
			args: "runsc-sandbox boot --spec-fd FD --cpu-num=2 --cpu-quota=150000 --cpu-period=100000 --total-memory=268435456 id",
			want: "runsc-sandbox boot --spec-fd FD --cpu-num=2 --cpu-quota=150000 --cpu-period=100000 --total-memory=268435456 id",
		},
		"one CPU is one": {
			spec: `{"linux":{"resources":{"cpu":{"quota":10000,"period":100000}}}}`,
			args: "runsc-sandbox boot --spec-fd=FD --cpu-num 8 id",
			want: "runsc-sandbox boot --spec-fd=FD --cpu-num=1 --cpu-quota=10000 --cpu-period=100000 id",
		},
		"a spec without resources changes nothing": {
			spec: `{"linux":{}}`,
			args: "runsc-sandbox boot --spec-fd=FD --cpu-num 8 id",
			want: "runsc-sandbox boot --spec-fd=FD --cpu-num 8 id",
		},
		"other sub-commands are left alone": {
			spec: sized,
			args: "runsc-sandbox umount --spec-fd=FD id",
			want: "runsc-sandbox umount --spec-fd=FD id",
		},
	} {
		f := specFD(t, c.spec)
		fd := strconv.Itoa(int(f.Fd()))
		words := func(s string) []string { return strings.Fields(strings.ReplaceAll(s, "FD", fd)) }
		got, err := sizeSentry(words(c.args))
		if err != nil || !slices.Equal(got, words(c.want)) {
			t.Errorf("%s:\n got %v, %v\nwant %v", name, got, err, words(c.want))
		}
		if at, err := f.Seek(0, 1); err != nil || at != 0 {
			t.Errorf("%s: the spec's offset is %d, gVisor reads on from 0 (%v)", name, at, err)
		}
	}
}

func TestSizeSentryRefuses(t *testing.T) {
	bad := specFD(t, `{"linux":[`)
	for _, fd := range []string{"x", "9999", strconv.Itoa(int(bad.Fd()))} {
		if got, err := sizeSentry([]string{"runsc-sandbox", "boot", "--spec-fd=" + fd, "id"}); err == nil {
			t.Errorf("spec-fd %s was taken: %v", fd, got)
		}
	}
}
