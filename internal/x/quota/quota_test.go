package quota

import (
	"sync"
	"testing"
)

func TestQuota(t *testing.T) {
	q := New[string](2)
	first, ok1 := q.Enter("a")
	second, ok2 := q.Enter("a")
	if _, ok := q.Enter("a"); !ok1 || !ok2 || ok {
		t.Errorf("entered: %v %v %v, want two of three", ok1, ok2, ok)
	}
	if leave, ok := q.Enter("b"); !ok {
		t.Error("another key is held up")
	} else {
		leave()
	}
	first()
	first()
	if _, ok := q.Enter("a"); !ok {
		t.Error("what was left is not free")
	}
	if _, ok := q.Enter("a"); ok {
		t.Error("leaving twice freed two")
	}
	second()
}

func TestNothingUnderWayCostsNothing(t *testing.T) {
	q := New[int](1000)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			if leave, ok := q.Enter(i % 7); ok {
				leave()
			}
		})
	}
	wg.Wait()
	if len(q.n) != 0 {
		t.Errorf("%d keys are kept", len(q.n))
	}
}
