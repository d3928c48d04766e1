// Package runtimetest is the contract of package runtime as tests. Every
// implementation runs it, the fake too, so that a fake cannot lie about an isolator.
//
// A check fails for one sentence of the doc comments in package runtime. It talks to
// the guest through guestclient, so what answers is the whole way down: the runtime's
// stream, the link layer, the guest agent. Nothing in here may be true of one isolator
// only; what an isolator refuses with hutch.ErrUnsupported is skipped, visibly.
//
// To run it on an implementation:
//
//	func TestContract(t *testing.T) {
//		runtimetest.Run(t, runtimetest.Factory{
//			New:   func(t *testing.T) runtime.Runtime { … },
//			Again: func(t *testing.T, r runtime.Runtime) runtime.Runtime { … },
//			Spec:  func(t *testing.T, id hutch.SandboxID) runtime.Spec { … },
//			Commands: runtimetest.Shell,
//		})
//	}
//
// The guest must speak guestapi: Hello, StartExec, Execs, Follow and Stop are used.
// Every check kills what it makes, and checks at its end that nothing is left on the
// host.
//
// Start with [Factory] and [Run].
package runtimetest

import (
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// Factory makes what the checks need.
type Factory struct {
	// New returns a Runtime. It is called once for each check, and cleans up with
	// t.Cleanup. Checks do not mind what else is on the host.
	New func(t *testing.T) runtime.Runtime

	// Again returns another Runtime on the same host state as r, as a restarted node
	// agent makes one. r stays as it is: a process cannot be killed within a test, so
	// the checks just stop using it.
	Again func(t *testing.T, r runtime.Runtime) runtime.Runtime

	// Spec returns what a sandbox named id is made from. Its resources must be set.
	Spec func(t *testing.T, id hutch.SandboxID) runtime.Spec

	// Commands are in the language that the guest understands.
	Commands Commands

	// Patience bounds every single call; 0 = 60 s. It is only used up by failures.
	Patience time.Duration
}

// Commands are what the checks run inside.
type Commands struct {
	Tick  string                         // prints a line at least every 100 ms, for ever
	Echo  func(text string) string       // prints text and a newline
	Write func(file, text string) string // writes text and a newline to file
	Read  func(file string) string       // prints file, and fails if there is none
	File  string                         // an absolute path that can be written
	ID    string                         // prints the number of the user it runs as
	Name  string                         // prints the host name
	// System is an absolute path that only root can write, and that is no place of a locked
	// sandbox's.
	System string
}

// Shell is for guests with a POSIX shell.
var Shell = Commands{
	Tick:  "while :; do echo tick; sleep 0.05; done",
	Echo:  func(text string) string { return "echo " + text },
	Write: func(file, text string) string { return "echo " + text + " > " + file },
	Read:  func(file string) string { return "cat " + file },
	File:  "/tmp/contract",
	ID:    "id -u",
	Name:  "uname -n",

	System: "/etc/contract",
}

// Run checks the Runtime that f makes. The checks run one after the other: sandboxes
// are heavy, and figures such as List are of the whole host.
func Run(t *testing.T, f Factory) {
	if f.Patience == 0 {
		f.Patience = 60 * time.Second
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			c.check(&suite{T: t, f: f, r: f.New(t)})
		})
	}
}

// checks are in the order of the doc comments they are about.
var checks = []struct {
	name  string
	check func(*suite)
}{
	{"create: nothing runs before start", nothingRunsBeforeStart},
	{"create: handles are complete and alive", handlesAreComplete},
	{"create: an id that exists is a conflict", doubleCreateIsConflict},
	{"create: cancelled before it begins, leaves nothing", cancelledCreateLeavesNothing},
	{"create: cancelled on the way, leaves nothing or a sandbox", createCancelledOnTheWay},
	{"create: several at once", severalAtOnce},

	{"start: the guest answers", guestAnswers},
	{"start: twice is an invalid state", startTwice},
	{"start: after a failed one only kill is of use", failedStart},

	{"prepared: starts under another name", preparedForAnotherName},
	{"prepared: several, each its own", preparedAreIndependent},
	{"prepared: ended before its start", preparedEndsUnused},
	{"prepared: swept by another runtime", preparedIsSwept},

	{"pause: the guest stands still and goes on", pauseAndResume},
	{"pause: what is paused, resume: what runs", pauseTwice},

	{"checkpoint: the source runs on", checkpointLeavesRunning},
	{"checkpoint: or it ends", checkpointEnds},
	{"checkpoint: a failed one leaves the source running", failedCheckpoint},
	{"restore: into other ids, with state, unidentified, independent", restoreIntoOthers},

	{"profile: one that there is not", unknownProfile},
	{"profile: root is root", rootIsRoot},
	{"profile: locked is nobody's root", lockedIsLocked},
	{"profile: a snapshot is good for its own", profileOfSnapshot},

	{"kill: in every state", killInEveryState},
	{"kill: twice and all at once", killConcurrently},
	{"kill: during start", killDuringStart},
	{"kill: afterwards everything is gone", afterKill},

	{"adopt: by another runtime, in mid-stream", adoptInMidStream},
	{"adopt: the adopter hears of the end", adopterHearsOfTheEnd},
	{"adopt: what is gone", adoptWhatIsGone},

	{"list and sweep", listAndSweep},
	{"sweep: what is in use", sweepInUse},

	{"events: one channel, exited once and last", eventsEndOnce},
	{"events: an end unasked", endUnasked},

	{"stats: are sane", statsAreSane},
	{"yield: in every state", yieldInEveryState},
}
