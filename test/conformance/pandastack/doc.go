// Package pandastack drives PandaStack's published clients, at pinned versions, against a
// real server: npm @pandastack/sdk, library and command line, by the scripts in js, PyPI
// pandastack by those in py. Each call that is served is made, with its errors and with what
// is known to trip these clients; each that is not is shown to fail as its caller can
// understand. wire.py holds the rules of the wire that the clients rest on, a check a rule;
// seed.py is a program that people are shown.
//
// It needs root, `make build base`, node, npm and python3. Start with pandastack_test.go;
// docs/pandastack.md says what is served and where we differ.
package pandastack
