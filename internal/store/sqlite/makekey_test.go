package sqlite

import (
	"os"
	"path"
	"path/filepath"
	"testing"

	"hutch.dev/hutch/internal/x/atomicfile"
	"hutch.dev/hutch/internal/x/failpoint"
)

// What a process that dies while it makes the key leaves beside it is a copy of the key. It has
// a name by which the next start finds and removes it.
func TestHalfMadeKeyIsFound(t *testing.T) {
	for _, at := range []failpoint.Name{failpoint.KeyWritten, failpoint.KeyPlaced} {
		file := filepath.Join(t.TempDir(), "hutch.db.key")
		var beside []string
		disarm, err := failpoint.Arm(failpoint.Plan{Die: at, Do: func(failpoint.Name) {
			entries, err := os.ReadDir(filepath.Dir(file))
			if err != nil {
				t.Error(err)
			}
			for _, e := range entries {
				if e.Name() != filepath.Base(file) {
					beside = append(beside, e.Name())
				}
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = makeKey(file)
		disarm()
		if err != nil {
			t.Fatal(err)
		}
		if len(beside) != 1 {
			t.Fatalf("%s: beside the key there is %q", at, beside)
		}
		if ok, _ := path.Match(atomicfile.TempPattern, beside[0]); !ok {
			t.Errorf("%s: no start removes %q", at, beside[0])
		}
	}
}
