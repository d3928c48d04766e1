// Package collect says how often Go collects the garbage of a process that makes none.
//
// Go's runtime collects every two minutes whatever a program does, and looks each minute whether
// it is time. In one process nobody sees that. In hundreds that idle, it is all that happens: a
// collection of a sandbox's kernel or of its guest agent takes some three milliseconds, and waking
// an agent for a look, through the kernel that it runs on, one. Collections that a
// growing heap asks for stay as they are.
//
// The runtime has no setting for it, so this package reaches for the variable. The linker refuses
// that unless it is told not to look (-checklinkname=0), so it is done only in builds with the tag
// quietgc, and others have Go's own period: they are right, and less quiet. It owns nothing else.
package collect

import "time"

// Idle is a period for processes of which there are many, and that idle: what they do not use
// goes back to the host within it.
const Idle = time.Hour
