// Package e2e tests Hutch from outside: the real binary, real sandboxes, and nothing but
// its API, its command line and the host's process table.
//
// The tests named TestCase… are faults that people who run sandboxes have met elsewhere,
// each tried as a kind and not only as the instance. cases_test.go lists all of them,
// with those that wait for something Hutch does not have yet.
//
// They need root, `make build` and the base template (`make base`). Start with
// harness_test.go.
package e2e
