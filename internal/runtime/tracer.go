package runtime

import (
	"context"

	"hutch.dev/hutch"
)

// Tracer is a [Runtime] that can say what there is of its sandboxes, thing by thing.
type Tracer interface {
	// Traces names everything of this Runtime that is on the host, known to this process or
	// not: all that List looks at, and what it has beside its sandboxes. Deep looks through the
	// open files of every process as well, and says of processes since when they are there, which
	// takes a second where there are many.
	Traces(ctx context.Context, deep bool) ([]hutch.Trace, error)
}
