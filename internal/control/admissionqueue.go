package control

import (
	"slices"

	"hutch.dev/hutch"
)

// fairQueue holds what waits, served project by project in turn: how much one of them has
// waiting makes no difference to how long another waits for its turn. It is not safe for
// concurrent use, and reads no clock.
type fairQueue[T comparable] struct {
	most int // places in all
	n    int
	turn []hutch.ProjectID // those of which something waits, the next to be served first
	of   map[hutch.ProjectID][]T
}

func newFairQueue[T comparable](most int) *fairQueue[T] {
	return &fairQueue[T]{most: most, of: map[hutch.ProjectID][]T{}}
}

// push makes x wait, if there is a place. Every project of which something waits has the same
// share of the places. It may use more while nobody needs them: if all are taken, a project
// that has not its share takes the newest place of the one that has most, and what was there is
// out.
func (q *fairQueue[T]) push(p hutch.ProjectID, x T) (out T, isOut, pushed bool) {
	if q.n >= q.most {
		sharing := len(q.turn)
		if len(q.of[p]) == 0 {
			sharing++
		}
		if len(q.of[p]) >= q.most/sharing {
			return out, false, false
		}
		big := slices.MaxFunc(q.turn, func(a, b hutch.ProjectID) int { return len(q.of[a]) - len(q.of[b]) })
		out, isOut = q.of[big][len(q.of[big])-1], true
		q.remove(big, out)
	}
	if len(q.of[p]) == 0 {
		q.turn = append(q.turn, p)
	}
	q.of[p] = append(q.of[p], x)
	q.n++
	return out, isOut, true
}

// pop takes what is to be served next out of the queue: the oldest of the project whose turn
// it is, which then is the last to have another.
func (q *fairQueue[T]) pop() (x T, ok bool) {
	if len(q.turn) == 0 {
		return x, false
	}
	p := q.turn[0]
	x = q.of[p][0]
	q.turn = append(q.turn[1:], p)
	q.remove(p, x)
	return x, true
}

// remove takes x out of the queue and reports whether it was there.
func (q *fairQueue[T]) remove(p hutch.ProjectID, x T) bool {
	i := slices.Index(q.of[p], x)
	if i < 0 {
		return false
	}
	q.n--
	if q.of[p] = slices.Delete(q.of[p], i, i+1); len(q.of[p]) == 0 {
		delete(q.of, p)
		q.turn = slices.DeleteFunc(q.turn, func(o hutch.ProjectID) bool { return o == p })
	}
	return true
}
