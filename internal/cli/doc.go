// Package cli is the part of the command line that talks to a server: create ls get exec
// shell cp follow logs events cancel rm extend pause resume template key version.
//
// It owns finding the server, flags, what is printed and exit codes. What a command means
// is the server's; conversation, retries and going on after a broken connection are the
// client's. It never acts on this machine: serve, doctor and bench are cmd/hutch's.
//
// Output for people goes to stdout in columns, with colours on a terminal only; with
// --json it is the API's own objects. Messages go to stderr. Exit codes: 0, the
// command's own for exec and follow, 1 for a failure, 2 for a wrong call, 125 when exec
// or follow failed before there was an exit code, 130 after Ctrl-C.
//
// Start with [Commands] and exec.go.
package cli
