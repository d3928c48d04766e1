package files

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
)

// An upload that nobody continues is forgotten, and one that is continued is not.
func TestUploadsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := uploads{open: map[string]*upload{}}
		var forgotten atomic.Int32
		part := func() {
			t.Helper()
			up, err := u.claim("k")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := u.claim("k"); !errors.Is(err, hutch.ErrConflict) {
				t.Errorf("a second claim: %v", err)
			}
			up.forget = func() { forgotten.Add(1) }
			u.release("k", up)
		}
		part()
		time.Sleep(uploadLife - time.Second)
		part()
		time.Sleep(uploadLife - time.Second)
		synctest.Wait()
		if forgotten.Load() != 0 {
			t.Error("it was forgotten between its parts")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if forgotten.Load() != 1 || len(u.open) != 0 {
			t.Errorf("forgotten %d times, %d left", forgotten.Load(), len(u.open))
		}
		up, err := u.claim("k")
		if err != nil {
			t.Fatal(err)
		}
		u.release("k", up) // nothing was written
		if len(u.open) != 0 {
			t.Error("an upload without parts is remembered")
		}
		for i := range maxUploads {
			up, err := u.claim(string(rune(i)))
			if err != nil {
				t.Fatal(err)
			}
			up.forget = func() {}
			u.release(string(rune(i)), up)
		}
		if _, err := u.claim("one more"); !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("one more than there can be: %v", err)
		}
		time.Sleep(2 * uploadLife)
		synctest.Wait()
	})
}
