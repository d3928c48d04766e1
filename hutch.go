// Package hutch is the vocabulary of Hutch: the things it keeps records of, their
// ids, states and transitions, and the errors every part speaks in.
//
// It owns names and the rules that hold whoever applies them: which state may
// follow which ([Sandbox.Begin]), what an epoch is, what a command's end can be.
// It does no I/O, imports the standard library only, and knows no other package
// of the project.
//
// Start with [Sandbox] and the table in state.go, then [Exec] and [Error].
package hutch
