package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"hutch.dev/hutch/internal/template"
)

// progress shows a build: a bar on a terminal, a line for each step elsewhere.
type progress struct {
	w    io.Writer
	name string
	bar  *progressbar.ProgressBar // nil when w is no terminal
	last template.Step
}

func newProgress(w io.Writer, name string) *progress {
	p := &progress{w: w, name: name}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(1000, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(30),
			progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetDescription(name), progressbar.OptionShowElapsedTimeOnFinish())
	}
	return p
}

// step takes the news of a build; it is called from one goroutine at a time.
func (p *progress) step(s template.Progress) {
	if p.bar != nil {
		label := string(s.Step)
		if s.Command != "" {
			label += ": " + s.Command
		}
		p.bar.Describe(fmt.Sprintf("%s %-24.24s", p.name, label))
		_ = p.bar.Set(int(s.Fraction * 1000))
		return
	}
	if s.Step != p.last {
		p.last = s.Step
		_, _ = fmt.Fprintf(p.w, "%s: %s\n", p.name, s.Step)
	}
}

func (p *progress) done() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
