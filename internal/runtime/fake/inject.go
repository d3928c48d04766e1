package fake

import (
	"time"

	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/runtime"
)

// Silence makes the guest stop reading, answering and writing, or go on.
func (g *Guest) Silence(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = on
	g.changeLocked()
}

// Garble makes the guest answer every call with nonsense, or be sane again.
func (g *Guest) Garble(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.garbled = on
}

// Mute makes the guest do what it is asked and keep its answers back, or speak again.
func (g *Guest) Mute(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = on
	g.changeLocked()
}

// Turns adds to what the sandbox's threads are said to have run, and to have waited for a CPU.
func (g *Guest) Turns(ran, waited time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ran += ran
	g.waited += waited
}

func (g *Guest) turns() (ran, waited time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ran, g.waited
}

// Burn adds to the CPU time that the sandbox is said to have used.
func (g *Guest) Burn(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.burnt += d
}

// Yields says whether the sandbox stands back behind others.
func (g *Guest) Yields() bool {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	return g.m.yields
}

// Restart makes the guest forget who it is, as an agent that was replaced would.
func (g *Guest) Restart() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.identified = false
}

// Identified says whether the guest has been told who it is.
func (g *Guest) Identified() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.identified
}

// WriteFile makes a file inside, which "await" waits for.
func (g *Guest) WriteFile(name string, content []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files[name] = content
	g.changeLocked()
}

// HasFile says whether there is such a file inside.
func (g *Guest) HasFile(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.files[name]
	return ok
}

// Crash ends the sandbox from inside.
func (g *Guest) Crash() { g.m.exit(false) }

// MemoryWasHigh makes the host report that memory is short, when it is no more.
func (g *Guest) MemoryWasHigh() { g.m.emit(runtime.KindMemoryHigh) }

// OOM makes the kernel end the sandbox for memory.
func (g *Guest) OOM() { g.m.exit(true) }

// PidsLimit makes the cap of processes on the host end the sandbox.
func (g *Guest) PidsLimit() {
	g.m.mu.Lock()
	g.m.pids = true
	g.m.mu.Unlock()
	g.m.exit(false)
}

// Hello returns the last hello.
func (g *Guest) Hello() guestapi.Hello {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hello
}
