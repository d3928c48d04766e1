package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestNothingHappensUnarmed(t *testing.T) {
	for _, n := range All() {
		At(n)
	}
	if n := testing.AllocsPerRun(100, func() { At(CreateMade) }); n != 0 {
		t.Errorf("a point that is not armed allocates %v times", n)
	}
}

func TestDoesAtTheNthTime(t *testing.T) {
	var did []Name
	disarm, err := Arm(Plan{Die: CreateMade, Nth: 2, Do: func(n Name) { did = append(did, n) }})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		At(CreateRecorded)
		At(CreateMade)
	}
	disarm()
	At(CreateMade)
	if !slices.Equal(did, []Name{CreateMade}) {
		t.Errorf("got %q", did)
	}
}

func TestHolds(t *testing.T) {
	disarm, err := Arm(Plan{Hold: []Held{{At: StartGreeted, From: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer disarm()
	var begun sync.WaitGroup
	begun.Add(1)
	past := make(chan struct{})
	At(StartGreeted) // the first is let past
	go func() {      // it stays until the test's process ends
		begun.Done()
		At(StartGreeted)
		close(past)
	}()
	begun.Wait()
	select {
	case <-past:
		t.Error("it was let past")
	case <-time.After(50 * time.Millisecond):
	}
}

func TestRefusesWhatIsNoPoint(t *testing.T) {
	for _, p := range []Plan{{Die: "nowhere"}, {Die: CreateMade, Hold: []Held{{At: "nowhere"}}}, {Die: CreateMade, Nth: -1}, {Hold: []Held{{CreateMade, -1}}}} {
		if disarm, err := Arm(p); err == nil {
			disarm()
			t.Errorf("%+v was armed", p)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		die, hold string
		want      Plan
		bad       bool
	}{
		{die: "create.made", want: Plan{Die: CreateMade}},
		{die: "create.made@3", hold: "start.up,create.recorded", want: Plan{Die: CreateMade, Nth: 3, Hold: []Held{{At: StartUp}, {At: CreateRecorded}}}},
		{hold: "start.up", want: Plan{Hold: []Held{{At: StartUp}}}},
		{die: "create.made", hold: "start.up@2", want: Plan{Die: CreateMade, Hold: []Held{{StartUp, 2}}}},
		{hold: "start.up@0", bad: true},
		{hold: "start.up,start.kept@x", bad: true},
		{die: "create.made@", bad: true},
		{die: "create.made@0", bad: true},
		{die: "create.made@x", bad: true},
	} {
		got, err := Parse(c.die, c.hold)
		if (err != nil) != c.bad {
			t.Errorf("%q, %q: %v", c.die, c.hold, err)
		}
		if got.Die != c.want.Die || got.Nth != c.want.Nth || !slices.Equal(got.Hold, c.want.Hold) {
			t.Errorf("%q, %q: got %+v", c.die, c.hold, got)
		}
	}
}

const childEnv = "HUTCH_TEST_DIES"

// It dies as by kill -9, whatever runs beside it, and says where.
func TestDies(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		if _, err := Arm(Plan{Die: CreateMade}); err != nil {
			t.Fatal(err)
		}
		defer os.Stdout.WriteString("it went on")
		At(CreateMade)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDies$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
	if got := string(out); !strings.Contains(got, Mark+string(CreateMade)+"\n") || strings.Contains(got, "it went on") {
		t.Errorf("it said %q", got)
	}
}
