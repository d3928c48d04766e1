package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"hutch.dev/hutch"
)

// box is a sandbox, and what its caller was told of it. Only its caller changes it, but for
// what the notes say is theirs.
type box struct {
	id     hutch.SandboxID
	tokens []string // that its commands were said to have written
	maybe  []string // that they were asked to write

	struck bool // guarded by notes.mu: something was done to it
	left   bool // guarded by notes.mu: it is left to its deadline, and nothing is done to it
	asked  bool // guarded by notes.mu: its caller has asked for its end
	killed bool // guarded by notes.mu for others than its caller: and was told that it is gone
}

// compare says how what is in a sandbox differs from what its caller was told.
func (b *box) compare(found []string) error {
	rest := found
	for _, want := range b.tokens {
		i := slices.Index(rest, want)
		if i < 0 {
			return fmt.Errorf("%q was said to be written, and is not there behind what came before it", want)
		}
		for _, odd := range rest[:i] {
			if !slices.Contains(b.maybe, odd) || slices.Contains(b.tokens, odd) {
				return fmt.Errorf("%q is there once too often", odd)
			}
		}
		rest = rest[i+1:]
	}
	seen := map[string]bool{}
	for _, f := range found {
		if seen[f] || !slices.Contains(b.maybe, f) {
			return fmt.Errorf("%q is there once too often", f)
		}
		seen[f] = true
	}
	return nil
}

// notes are what all callers were told, and what was done to their sandboxes.
type notes struct {
	mu       sync.Mutex
	boxes    []*box
	calls    map[string]int
	violates []string
	unsaid   int // violations that are not in it: it would grow without end
}

// maxViolates is how many violations are kept word by word.
const maxViolates = 200

func newNotes() *notes { return &notes{calls: map[string]int{}} }

func (n *notes) add(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.boxes = append(n.boxes, b)
}

func (n *notes) answered(op string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls[op]++
}

// sawAll reports whether each of these was answered once.
func (n *notes) sawAll(ops ...string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !slices.ContainsFunc(ops, func(op string) bool { return n.calls[op] == 0 })
}

// leave says that a sandbox is left to its deadline from now on; false if something was done to it.
func (n *notes) leave(b *box) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	b.left = !b.struck
	return b.left
}

func (n *notes) killing(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b.asked = true
}

func (n *notes) killed(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b.killed = true
}

func (n *notes) violated(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.violates) == maxViolates {
		n.unsaid++
		return
	}
	n.violates = append(n.violates, fmt.Sprintf(format, args...))
}

// strike chooses a sandbox that lives as far as is known, and excuses what becomes of it.
func (n *notes) strike(rnd *rand.Rand) *box {
	n.mu.Lock()
	defer n.mu.Unlock()
	var living []*box
	for _, b := range n.boxes {
		if !b.killed && !b.struck && !b.left {
			living = append(living, b)
		}
	}
	if len(living) == 0 {
		return nil
	}
	b := living[rnd.IntN(len(living))]
	b.struck = true
	return b
}

// missed takes the excuse back: nothing was done to the sandbox. Its caller may be killing it.
func (n *notes) missed(b *box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b.struck = false
}

func (n *notes) isStruck(b *box) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return b.struck
}
