package template

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// transcript is what mmdebstrap prints, shortened to two and four packages.
const transcript = `I: chroot architecture amd64 is equal to the host's architecture
I: running apt-get update...
Get:1 http://mirror.example/debian bookworm InRelease [151 kB]
Get:2 http://mirror.example/debian bookworm/main amd64 Packages [8790 kB]
I: downloading packages with apt...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://mirror.example/debian bookworm/main amd64 libc6 amd64 2.36-9 [2759 kB]
Get:2 http://mirror.example/debian bookworm/main amd64 dash amd64 0.5 [50 kB]
I: extracting archives...
I: installing essential packages...
Selecting previously unselected package libc6:amd64.
Unpacking libc6:amd64 (2.36-9) ...
Setting up libc6:amd64 (2.36-9) ...
Unpacking dash (0.5) ...
Setting up dash (0.5) ...
I: installing remaining packages inside the chroot...
0 upgraded, 4 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://mirror.example/debian bookworm/main amd64 a amd64 1 [1 B]
Get:2 http://mirror.example/debian bookworm/main amd64 b amd64 1 [1 B]
Get:3 http://mirror.example/debian bookworm/main amd64 c amd64 1 [1 B]
Get:4 http://mirror.example/debian bookworm/main amd64 d amd64 1 [1 B]
Unpacking a (1) ...
Unpacking b (1) ...
Unpacking c (1) ...
Unpacking d (1) ...
Setting up a (1) ...
Setting up b (1) ...
Setting up c (1) ...
Setting up d (1) ...
I: success in 60.1 seconds
`

func TestBootstrapProgress(t *testing.T) {
	p := &bootstrapProgress{}
	at := map[string]float64{}
	last := 0.0
	for line := range strings.Lines(transcript) {
		f, _ := p.line(strings.TrimSpace(line))
		if f < last || f > 1 {
			t.Errorf("%q moves from %v to %v", line, last, f)
		}
		last = f
		at[strings.TrimSpace(line)] = f
	}
	for line, want := range map[string]float64{
		"I: running apt-get update...":                          0,
		"I: installing essential packages...":                   essentialExtracted,
		"Setting up dash (0.5) ...":                             essentialTo,
		"I: installing remaining packages inside the chroot...": essentialTo,
		"Setting up d (1) ...":                                  restTo,
		"I: success in 60.1 seconds":                            1,
	} {
		if got := at[line]; got < want-0.001 || got > want+0.001 {
			t.Errorf("after %q: %.3f, want %.3f", line, got, want)
		}
	}
	if a, b := at["Unpacking a (1) ..."], at["Unpacking d (1) ..."]; a >= b {
		t.Errorf("unpacking moves nothing: %v, %v", a, b)
	}
}

func FuzzBootstrapProgress(f *testing.F) {
	f.Add(transcript)
	f.Add("0 upgraded, 99999999999999999999 newly installed\nGet:1\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := &bootstrapProgress{}
		for line := range strings.Lines(text) {
			if f, _ := p.line(line); !(f >= 0 && f <= 1) {
				t.Fatalf("%q: %v", line, f)
			}
		}
	})
}

func TestTrackerLines(t *testing.T) {
	var seen []Progress
	var log bytes.Buffer
	tr := &tracker{spans: recipeSpans, report: func(p Progress) { seen = append(seen, p) }, log: &log}
	tr.begin(StepBootstrap, "", nil)
	for _, part := range []string{"hal", "f\nReading 5%\rReading 10%\r\n\n", strings.Repeat("x", 10*maxLine), "\nno end"} {
		if n, err := tr.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	var e *StepError
	if err := tr.fail("demo", errors.New("boom"), true); !errors.As(err, &e) {
		t.Fatalf("%v is no StepError", err)
	}
	want := []string{"half", "Reading 5%", "Reading 10%", strings.Repeat("x", maxLine) + "…", "no end"}
	if strings.Join(e.Lines, "|") != strings.Join(want, "|") {
		t.Errorf("lines %q\nwant %q", e.Lines, want)
	}
	if !strings.Contains(log.String(), strings.Repeat("x", 10*maxLine)) {
		t.Error("the log lacks a part of the long line")
	}
	if len(seen) != 6 || seen[1].Line != "half" || seen[1].Step != StepBootstrap {
		t.Errorf("reported %+v", seen)
	}
}

func TestTrackerKeepsTheLastLinesOfTheStep(t *testing.T) {
	tr := &tracker{spans: recipeSpans, log: &bytes.Buffer{}}
	tr.begin(StepBootstrap, "", nil)
	fmt.Fprintln(tr, "of another step")
	tr.begin(StepCustomise, "compile", nil)
	for i := range 50 {
		fmt.Fprintf(tr, "line %d\n", i)
	}
	err := tr.fail("demo", errors.New("exit status 1"), true)
	text := err.Error()
	if !strings.HasPrefix(text, "build template demo: customise (compile): exit status 1; its last lines:\n  line 30\n") || !strings.HasSuffix(text, "\n  line 49") {
		t.Errorf("error is\n%s", text)
	}
	if strings.Count(text, "\n") != lastLines {
		t.Errorf("%d lines, want %d", strings.Count(text, "\n"), lastLines)
	}
	if strings.Contains(tr.fail("demo", errors.New("x"), false).Error(), "line") {
		t.Error("lines that were not wanted")
	}
}

func TestProgressNeverFalls(t *testing.T) {
	last := 0.0
	tr := &tracker{spans: recipeSpans, log: &bytes.Buffer{}, report: func(p Progress) {
		if p.Fraction < last || p.Fraction > 1 {
			t.Errorf("from %v to %v in %s", last, p.Fraction, p.Step)
		}
		last = p.Fraction
	}}
	for _, step := range []Step{StepPlan, StepBootstrap, StepCustomise, StepImage, StepRegister} {
		tr.begin(step, "", func(string) (float64, bool) { return 0.2, true })
		for _, f := range []float64{0.5, 0.1, -1, 7, 0} {
			tr.at(f)
		}
		fmt.Fprintln(tr, "a line")
	}
	if last != 1 {
		t.Errorf("ends at %v", last)
	}
}

func TestStepsAreInARow(t *testing.T) {
	for name, tt := range map[string]struct {
		spans map[Step]span
		order []Step
	}{
		"recipe":  {recipeSpans, []Step{StepPlan, StepBootstrap, StepPython, StepCustomise, StepImage, StepRegister}},
		"layered": {layeredSpans, []Step{StepPlan, StepBase, StepBootstrap, StepPython, StepCustomise, StepImage, StepRegister}},
		"image":   {imageSpans, []Step{StepPlan, StepUnpack, StepCustomise, StepImage, StepRegister}},
	} {
		at := 0.0
		for _, step := range tt.order {
			if s := tt.spans[step]; s.from != at || s.to < at {
				t.Errorf("%s: %s is at %+v, want it to begin at %v", name, step, s, at)
			}
			at = tt.spans[step].to
		}
		if at != 1 || len(tt.spans) != len(tt.order) {
			t.Errorf("%s: the last step ends at %v", name, at)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	info := `22 1 8:1 / / rw - ext4 /dev/sda rw
30 22 0:5 / /var/work/a rw - tmpfs t rw
31 30 0:5 / /var/work/a/tree/proc rw - proc proc rw
32 22 0:5 / /var/work/a/with\040blank rw - tmpfs t rw
33 22 0:5 / /var/work/ab rw - tmpfs t rw
broken
`
	got := mountsBelow(info, "/var/work/a")
	want := []string{"/var/work/a/tree/proc", "/var/work/a/with blank"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCarriedSettings(t *testing.T) {
	for line, want := range map[string]bool{
		`Acquire::http::Proxy "http://proxy.example:3142";`:    true,
		`Acquire::https::Proxy::mirror.example "DIRECT";`:      true,
		`Acquire::https::SslCert "/etc/ssl/client.pem";`:       true,
		`Acquire::Check-Valid-Until "false";`:                  true,
		`Acquire::Retries "5";`:                                true,
		`Acquire::http "";`:                                    true,
		`Acquire::IndexTargets::deb::DEP-11::MetaKey "x";`:     false,
		`Acquire::Languages:: "en";`:                           false,
		`Acquire::httpx::Proxy "x";`:                           false,
		`Dir "/elsewhere";`:                                    false,
		`DPkg::Pre-Invoke:: "rm -rf / ";`:                      false,
		`APT::Update::Post-Invoke:: "Acquire::http::Proxy x";`: false,
	} {
		if got := carried.MatchString(line); got != want {
			t.Errorf("%s: carried %v, want %v", line, got, want)
		}
	}
}
