// Package fake is an implementation of package runtime in memory, with a scripted
// guest. It passes runtimetest, and exists so that everything above the port can be
// tested in milliseconds, without an isolator, and with failures that no isolator
// produces on request.
//
// What is real: the handles (a socket pair to the guest, a socket pair for the link, a
// pidfd of a small process of its own that the sandbox lives and dies by), the
// protocol on the guest's stream (guestlink and guestapi), and time. What is made up:
// everything inside.
//
// A [Host] is the machine that outlives the node agent. A [Runtime] is one node
// agent's view of it: [Runtime.Crash] ends the view and leaves the sandboxes running,
// so that another Runtime on the same Host can adopt them. [Host.Fail], [Host.Block]
// and the methods of [Guest] inject failures.
//
// # The guest's command language
//
// Steps are separated by newlines, ";" or "&&"; words may be quoted; "> FILE" and ">>
// FILE" redirect the output of echo, out and env. A command in Argv is one step. What
// is not known ends like an unknown program, with code 127.
//
//	echo WORD...   print to stdout
//	err WORD...    print to stderr
//	out N          print N bytes, the numbers 0 to 9 over and over
//	tick MS        print "tick 1", "tick 2", … every MS milliseconds, for ever
//	sleep N        wait N seconds (a fraction, or a duration such as 20ms)
//	cat [FILE]     print a file, or copy stdin to stdout until it is closed
//	rm FILE        remove a file
//	env NAME       print a variable
//	whoami         print the sandbox id that Hello told
//	uname -n       print the host name that Hello told
//	id -u          print the number of the user: 0, and in a locked sandbox another
//	spawn NAME     leave a child process behind
//	await FILE     wait until there is such a file
//	hang           wait for ever and ignore TERM
//	exit N         end with code N
//	true, false    succeed, fail
//	memory-high    make the host report that memory is short
//	oom            be killed by the kernel for memory
//	oom-child      have a child killed for memory, and end as it did
//	oom-other      have a process killed for memory, and go on
//	oom-sandbox    have the kernel kill the sandbox for memory
//	crash          end the sandbox
//
// Lock order: Runtime.mu, then Host.mu, then machine.mu, then Guest.mu. No lock is held
// across I/O.
//
// Start with [NewHost] and [New], then script.go.
package fake
