package template

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Step is a part of a build.
type Step string

// The steps of a build, in their order. None makes all of them.
const (
	StepPlan      Step = "plan"      // read the machine's configuration, find the image, wait for others
	StepBase      Step = "base"      // build the recipe that this one builds upon, and copy its tree
	StepBootstrap Step = "bootstrap" // unpack and configure the packages
	StepPython    Step = "python"    // install Python packages
	StepUnpack    Step = "unpack"    // fetch, verify and unpack the layers of a container image
	StepCustomise Step = "customise" // users, files, commands; remove what differs from build to build
	StepImage     Step = "image"     // write the EROFS image
	StepRegister  Step = "register"  // put it into the store
)

// span is where a step begins and ends, as a part of the whole.
type span struct{ from, to float64 }

// recipeSpans were measured on the base template, on two cores: 68 s, of which
// bootstrap 55, image 6 and the hash 2.
var recipeSpans = map[Step]span{
	StepPlan:      {0, 0.01},
	StepBootstrap: {0.01, 0.82},
	StepPython:    {0.82, 0.82},
	StepCustomise: {0.82, 0.88},
	StepImage:     {0.88, 0.96},
	StepRegister:  {0.96, 1},
}

// layeredSpans were measured on the code interpreter, with its base built before.
var layeredSpans = map[Step]span{
	StepPlan:      {0, 0.01},
	StepBase:      {0.01, 0.1},
	StepBootstrap: {0.1, 0.2},
	StepPython:    {0.2, 0.5},
	StepCustomise: {0.5, 0.85},
	StepImage:     {0.85, 0.95},
	StepRegister:  {0.95, 1},
}

// imageSpans are those of a container image from a registry that is near.
var imageSpans = map[Step]span{
	StepPlan:      {0, 0.02},
	StepUnpack:    {0.02, 0.75},
	StepCustomise: {0.75, 0.78},
	StepImage:     {0.78, 0.95},
	StepRegister:  {0.95, 1},
}

// Progress is how far a build is.
type Progress struct {
	Step     Step
	Command  string  // name of the recipe's command under way; empty outside of one
	Fraction float64 // of the whole build, 0 to 1; it never falls
	Line     string  // the last line of output; may be empty
}

// lastLines is how much of a failed step's output its error carries.
const lastLines = 20

// maxLine cuts lines of output, in bytes, for the error and the progress; the log has
// them whole.
const maxLine = 500

// StepError says which step of a build failed, and how.
type StepError struct {
	Template string
	Step     Step
	Command  string   // name of the recipe's command; empty outside of one
	Lines    []string // the last lines of output; may be empty
	Err      error
}

// Error names template, step and cause, with the last lines below.
func (e *StepError) Error() string {
	s := fmt.Sprintf("build template %s: %s", e.Template, e.Step)
	if e.Command != "" {
		s += fmt.Sprintf(" (%s)", e.Command)
	}
	s += ": " + e.Err.Error()
	if len(e.Lines) > 0 {
		s += "; its last lines:\n  " + strings.Join(e.Lines, "\n  ")
	}
	return s
}

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// tracker follows a build: it is the writer that every command's output goes to. It
// cuts the output into lines, logs them, keeps the last ones, and reports.
type tracker struct {
	report func(Progress) // nil = nobody looks
	lines  func(Step, string)
	log    io.Writer
	spans  map[Step]span

	mu    sync.Mutex
	now   Progress
	parse func(line string) (fraction float64, ok bool) // of the current step; may be nil
	tail  []string
	part  []byte // of a line whose end has not come
}

func newTracker(o Options) *tracker {
	return &tracker{report: o.Progress, lines: o.Log, log: io.Discard, spans: recipeSpans}
}

// note writes a line of our own into the output.
func (t *tracker) note(format string, args ...any) {
	fmt.Fprintf(t, format+"\n", args...)
}

// begin starts a step, or a command within one. parse, if not nil, tells from a line
// how far the step is.
func (t *tracker) begin(step Step, command string, parse func(string) (float64, bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLocked()
	t.tail = nil
	t.parse = parse
	fmt.Fprintf(t.log, "== %s %s\n", step, command)
	t.now.Step, t.now.Command, t.now.Line = step, command, ""
	t.reportLocked(0)
}

// at says how far the current step is, 0 to 1.
func (t *tracker) at(fraction float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reportLocked(fraction)
}

// Write takes output. A carriage return ends a line too: tools draw with it.
func (t *tracker) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.log.Write(p); err != nil {
		return 0, fmt.Errorf("write build log: %w", err)
	}
	rest := p
	for {
		i := bytes.IndexAny(rest, "\r\n")
		if i < 0 {
			break
		}
		t.part = append(t.part, rest[:i]...)
		t.flushLocked()
		rest = rest[i+1:]
	}
	if len(t.part) < 4*maxLine { // what follows would be cut anyway
		t.part = append(t.part, rest...)
	}
	return len(p), nil
}

// flushLocked takes the line that is complete in part.
func (t *tracker) flushLocked() {
	line := strings.TrimRight(strings.ToValidUTF8(string(t.part), "?"), " \t")
	t.part = t.part[:0]
	if line == "" {
		return
	}
	if len(line) > maxLine {
		line = strings.ToValidUTF8(line[:maxLine], "") + "…"
	}
	if len(t.tail) == lastLines {
		t.tail = t.tail[1:]
	}
	t.tail = append(t.tail, line)
	t.now.Line = line
	if t.lines != nil {
		t.lines(t.now.Step, line)
	}
	fraction := 0.0
	if t.parse != nil {
		fraction, _ = t.parse(line)
	}
	t.reportLocked(fraction)
}

// reportLocked moves the whole forward by the step's fraction, never back.
func (t *tracker) reportLocked(fraction float64) {
	span := t.spans[t.now.Step]
	whole := span.from + min(max(fraction, 0), 1)*(span.to-span.from)
	t.now.Fraction = max(t.now.Fraction, whole)
	if t.report != nil {
		t.report(t.now)
	}
}

// fail makes the error of the current step. lines says whether the output is of use.
func (t *tracker) fail(name string, err error, lines bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLocked()
	e := &StepError{Template: name, Step: t.now.Step, Command: t.now.Command, Err: err}
	if lines {
		e.Lines = append(e.Lines, t.tail...)
	}
	return e
}
