package syscalls

import (
	"os"
	"testing"
)

func TestReads(t *testing.T) {
	for want := range int64(4) {
		got, err := Reads(func() {
			f, err := os.Open("/proc/self/stat")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for range want {
				if _, err := f.ReadAt(make([]byte, 1), 0); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Skip(err)
		}
		if got != want {
			t.Errorf("%d reads were counted, %d made", got, want)
		}
	}
}
