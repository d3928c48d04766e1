// Package guesttest says what a guest agent must answer, whatever it is reached through:
// the handler in a test's own process, or a real sandbox.
//
// [Run] is the contract. The cases that people have reported of sandboxes like ours have
// their id in the name of their test (A01, B03, …). It needs a POSIX shell and the
// usual small programs inside, and nothing else of the image; what needs Python is
// skipped where there is none.
//
// [Nested] runs an agent for such a test on this machine, as the first process of
// namespaces of its own.
package guesttest

import (
	"testing"
)

// Run runs the contract against the agents that dial returns. Each call of dial gives a
// client of an agent that has not been told who it is yet; it may be a new agent or a new
// session with the same one.
func Run(t *testing.T, dial func(t *testing.T) *Client) {
	t.Run("Hello", func(t *testing.T) { testHello(t, dial) })

	c := dial(t)
	c.must(t, "POST", "/v1/hello", Hello(), nil)
	for name, test := range map[string]func(*testing.T, *Client){
		"Start":     testStart,
		"Env":       testEnv,
		"User":      testUser,
		"Cwd":       testCwd,
		"Refusals":  testRefusals,
		"Ends":      testEnds,
		"Stops":     testStops,
		"Tree":      testTree,
		"Output":    testOutput,
		"Follow":    testFollow,
		"Stdin":     testStdin,
		"Append":    testAppend,
		"Terminal":  testTerminal,
		"Live":      testLive,
		"Modes":     testModes,
		"Lossless":  testLossless,
		"Shell":     testShell,
		"Ports":     testPorts,
		"Disk":      testDisk,
		"Files":     testFiles,
		"Processes": testProcesses,
		"Relieve":   testRelieve,
		"Limits":    testLimits,
		"Hostile":   testHostile,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
	t.Run("NothingLeft", func(t *testing.T) { testNothingLeft(t, c) })
}
