// Package e2b drives E2B's published clients, at pinned versions, against a real server:
// npm e2b and @e2b/code-interpreter by the scripts in js, PyPI e2b and
// e2b-code-interpreter by those in py. Each call that is served is made, with its errors and
// with what is known to break servers; each that is not is shown to fail as its caller
// can understand.
//
// It needs root, `make build base`, node, npm and python3. Start with e2b_test.go.
package e2b
