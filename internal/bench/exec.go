package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/x/id"
)

// Kinds of runs of the exec benchmark.
const (
	seriesCommands  = "commands"
	seriesTransfers = "transfers"
)

// transferLimit bounds one transfer: 200 MB at 1 MB/s, and a while.
const transferLimit = 4 * time.Minute

var trueArgv = []string{"/bin/true"}

// Exec measures commands in one sandbox that stands: a round trip, the first byte of a
// stream, and the transfer of much output. The floor has a sandbox of its own.
// When it is ended early the report is of the runs until then, and the error says why.
func Exec(ctx context.Context, s Settings, c *client.Client, floor *Floor, progress func(done int)) (_ *Report, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	st, rep, err := stand(ctx, "exec", s, c, floor)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.kill(ctx)) }()
	runners := map[string]commandRunner{SubjectHutch: &apiRunner{c: c, sid: st.sid}}
	if st.floor != nil {
		runners[SubjectFloor] = &floorRunner{b: st.floor}
	}
	subjects := func(run func(context.Context, commandRunner, *clock) error) []subject {
		return st.subjects(func(ctx context.Context, name string, t *clock) error { return run(ctx, runners[name], t) })
	}
	runs, err := measure(ctx, series{name: seriesCommands, n: s.N, warmup: s.Warmup, parallel: 1, limit: runLimit, progress: progress}, subjects(commandRun))
	if err == nil {
		var more []Run
		more, err = measure(ctx, series{name: seriesTransfers, n: s.Transfer, warmup: min(1, s.Transfer), parallel: 1, limit: transferLimit},
			subjects(func(ctx context.Context, r commandRunner, t *clock) error { return transferRun(ctx, r, s.Bytes, t) }))
		runs = append(runs, more...)
	}
	return rep.finish(runs, err)
}

// TripLimit is how much longer a command that does nothing may take through the API than by
// hand, at the median.
const TripLimit = 2 * time.Millisecond

// execClaims is what we hold ourselves to, of commands.
func execClaims(s Summary) []Claim {
	hutch, floor := s.of(MetricRoundTrip, SubjectHutch), s.of(MetricRoundTrip, SubjectFloor)
	if hutch.N == 0 || floor.N == 0 {
		return nil
	}
	return []Claim{atMost("a command that does nothing, above the floor's, at p50", float64(hutch.P50-floor.P50)/1000, float64(TripLimit.Milliseconds()), "ms")}
}

// commandRunner runs commands in the sandbox of a subject.
type commandRunner interface {
	// result runs a command and returns its exit code.
	result(ctx context.Context, argv []string) (exitCode int, err error)
	// stream does the same and hands the command's output to sink as it comes. file is
	// where the whole of it is inside, if it is.
	stream(ctx context.Context, argv []string, sink func(p []byte)) (exitCode int, file string, err error)
	// settle returns once nothing of the last command is under way any more.
	settle(ctx context.Context) error
}

// commandRun is a round trip, then a first byte.
func commandRun(ctx context.Context, r commandRunner, t *clock) error {
	if err := tripRun(ctx, r, t); err != nil {
		return err
	}
	asked := time.Now()
	first := firstByte(func(at time.Time) { t.book(MetricFirstByte, at.Sub(asked)) })
	code, _, err := r.stream(ctx, helloArgv, first.take)
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if err := first.check(code, helloText); err != nil {
		return err
	}
	return r.settle(ctx)
}

// tripRun is a round trip.
func tripRun(ctx context.Context, r commandRunner, t *clock) error {
	asked := time.Now()
	code, err := r.result(ctx, trueArgv)
	if err != nil {
		return fmt.Errorf("round trip: %w", err)
	}
	t.since(MetricRoundTrip, asked)
	if code != 0 {
		return fmt.Errorf("round trip: exit code %d", code)
	}
	return r.settle(ctx)
}

// transferRun streams much output, without a budget, to its end.
func transferRun(ctx context.Context, r commandRunner, size int64, t *clock) error {
	var got int64
	asked := time.Now()
	code, file, err := r.stream(ctx, []string{"/usr/bin/head", "-c", fmt.Sprint(size), "/dev/zero"}, func(p []byte) { got += int64(len(p)) })
	if err != nil {
		return fmt.Errorf("transfer: %w", err)
	}
	t.since(MetricTransfer, asked)
	if code != 0 || got != size {
		return fmt.Errorf("transfer: exit code %d and %d bytes of %d", code, got, size)
	}
	if err := r.settle(ctx); err != nil || file == "" {
		return err
	}
	// What is in the file is on the sandbox's disk until someone removes it: make room.
	code, err = r.result(ctx, []string{"/bin/rm", "-f", file})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("remove the output file: %w", err)
	}
	return r.settle(ctx)
}

// apiRunner runs commands through the server.
type apiRunner struct {
	c   *client.Client
	sid hutch.SandboxID
}

func (a *apiRunner) result(ctx context.Context, argv []string) (int, error) {
	res, err := a.c.Exec(ctx, a.sid, api.ExecRequest{Argv: argv})
	return res.ExitCode, err
}

func (a *apiRunner) stream(ctx context.Context, argv []string, sink func(p []byte)) (int, string, error) {
	end, err := a.c.Stream(ctx, a.sid, api.ExecRequest{Argv: argv}, client.StreamOptions{}, func(o client.Output) error {
		sink(o.Data)
		return nil
	})
	return end.ExitCode, end.OutputPath, err
}

// settle asks for the list of commands, which the server answers when every record is
// written. Of those that run: the list of all of them would grow with each run, and the server's
// work for it would reach into the next one.
func (a *apiRunner) settle(ctx context.Context) error {
	for _, err := range a.c.Execs(ctx, a.sid, true) {
		if err != nil {
			return fmt.Errorf("wait for the records: %w", err)
		}
		break // one page is enough
	}
	return nil
}

// floorRunner runs commands by hand.
type floorRunner struct {
	b    *floorBox
	last hutch.ExecID
}

func (f *floorRunner) result(ctx context.Context, argv []string) (int, error) {
	code, _, err := f.stream(ctx, argv, func([]byte) {})
	return code, err
}

func (f *floorRunner) stream(ctx context.Context, argv []string, sink func(p []byte)) (int, string, error) {
	f.last = hutch.ExecID(id.NewExec())
	res, err := f.b.run(ctx, f.last, argv, sink)
	if err != nil {
		return 0, "", err
	}
	return res.ExitCode, res.Stdout.Path, nil
}

func (f *floorRunner) settle(ctx context.Context) error { return f.b.forget(ctx, f.last) }
