// Package cluster tests control plane, node agent and records together: the real
// control, node, SQLite store and keeper on the fake isolator, in one process.
//
// It owns what only shows when they work together: that records, host and keeper agree
// after every failure, that a restart at any point loses nothing, and that each end is
// told once. What the parts do alone is tested beside them; what gVisor does, in test/e2e.
//
// A [world] is one machine: its host, keeper and database outlive the server on it, which
// is killed and started as a process would be. Faults are injected in the fake host
// and in thin wrappers around the ports (ports_test.go).
//
// Start with world_test.go.
package cluster
