// Package keeper stores what must outlive the node agent: each sandbox's descriptors
// (the stream to the guest, the network link, its processes) and its deadlines. A node
// agent that comes back after a crash or an upgrade gets duplicates of them and goes on.
//
// The keeper is a process of its own that does nothing else: it never reads a descriptor
// it stores, starts nothing, and writes nothing to disk but its log. By itself it acts in
// one case only, when a sandbox is past its deadline or was not used for its idle timeout:
//
//   - while no node agent is attached it kills the sandbox then;
//   - while one is, it leaves it [Grace] to do so itself, and then kills nonetheless: a
//     node agent that hangs does not void a TTL.
//
// It notes that and keeps the note, as it does for a sandbox that exits on its own, until
// the node agent deletes it.
//
// Deadlines are instants of the wall clock, and hold through suspend and through steps of
// the clock: their timer is a timerfd on CLOCK_REALTIME, which counts sleep as time and
// also wakes the keeper when the clock is set. Idle time is counted by the monotonic clock
// instead, and not while the host sleeps: a clock that is set makes nobody idle, nor does a
// host on which nobody could have worked.
//
// Every entry carries its sandbox's epoch; a call with an older one is
// [hutch.ErrStale].
//
// Stopping the keeper would void the deadlines it holds, so SIGTERM and SIGINT only make
// it leave once the last sandbox is gone. [Client.Stop] can end it with all of them.
//
// Lock order: there is one lock, Keeper.mu; no call that can block is made under it.
//
// Start with [Serve] and [Start], the two sides of the socket; the rules are in [Keeper].
package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"hutch.dev/hutch"
)

const (
	// Grace is how long past its deadline a sandbox is left to an attached node agent. It
	// is as long as a node agent may reasonably be busy, and short for whoever pays.
	Grace = 10 * time.Second
	// killRetry is when a kill is tried again after which the sandbox has not exited.
	killRetry = time.Second
	// MaxMeta bounds what a node agent may store along with the descriptors, in bytes.
	MaxMeta = 64 << 10
	// MaxEntries bounds the entries; a host runs out of memory for sandboxes before.
	MaxEntries = 4096
	// MaxFiles bounds the descriptors of one entry: three and a few processes.
	MaxFiles = 16
	// spareFiles are descriptors that stay free for connections and what Go itself needs.
	spareFiles = 256
)

// Why the keeper kills a sandbox.
const (
	ReasonDeadline = "deadline" // it is past it
	ReasonIdle     = "idle"     // it was not used for as long as it may be
	ReasonStop     = "stop"     // the keeper was told to end with every sandbox
)

// entry is what is stored of one sandbox. Once ended it holds no descriptors.
type entry struct {
	epoch    hutch.Epoch
	deadline int64         // wall clock, Unix nanoseconds
	usedAt   time.Time     // monotonic: its last use as far as is known; zero if it is not
	idle     time.Duration // how long it is kept after that; 0 = to its deadline
	meta     []byte
	files    []held
	stop     context.CancelFunc // ends the watch on its exit

	killedAt int64 // when it was killed first; 0 if it was not
	reason   string
	triedAt  int64 // when it was killed last
	exitedAt int64 // when its first process was seen gone; 0 while it lives
}

// Keeper holds the entries. It is safe for concurrent use.
type Keeper struct {
	log      *slog.Logger
	alarm    *alarm      // for deadlines
	idle     *time.Timer // for idle timeouts
	maxFiles int         // over all entries

	wg sync.WaitGroup // watches on exits

	mu       sync.Mutex
	entries  map[hutch.SandboxID]*entry
	attached map[uint64]bool // sessions of node agents
	files    int             // descriptors held
	draining bool
	closed   bool
	drained  chan struct{} // closed once draining is over
}

// newKeeper returns a Keeper that may hold maxFiles descriptors.
func newKeeper(log *slog.Logger, maxFiles int) (*Keeper, error) {
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	k := &Keeper{
		log: log, alarm: a, maxFiles: maxFiles,
		entries:  map[hutch.SandboxID]*entry{},
		attached: map[uint64]bool{},
		drained:  make(chan struct{}),
	}
	k.idle = time.NewTimer(never)
	return k, nil
}

// run keeps the deadlines until ctx ends. It then drops every entry, killing nothing.
func (k *Keeper) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, k.alarm.close)
	defer stop()
	defer k.close()
	k.wg.Go(func() { k.runIdle(ctx) })
	for {
		if err := k.alarm.wait(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("wait for the next deadline: %w", err)
		}
		k.enforce()
	}
}

// runIdle keeps the idle timeouts until ctx ends.
func (k *Keeper) runIdle(ctx context.Context) {
	defer k.idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.idle.C:
			k.enforce()
		}
	}
}

func (k *Keeper) close() {
	k.mu.Lock()
	k.closed = true
	for id := range k.entries {
		k.dropLocked(id)
	}
	k.mu.Unlock()
	k.wg.Wait()
	k.alarm.close()
}
