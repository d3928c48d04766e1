package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// SubjectStanding is a sandbox that stands, asked for a command through the API.
const SubjectStanding = "standing"

// What a sandbox on a machine that was prepared may cost.
const (
	// PreparedLimit and PreparedTail bound the time to the first output, at the median and
	// at p99, in multiples of the floor's with a machine that was prepared.
	PreparedLimit = 1.3
	PreparedTail  = 2.5
	// ClaimLimit is by how much the median may be above that of a command in a sandbox that
	// stands.
	ClaimLimit = 3 * time.Millisecond
)

// preparedGauge is the server's own count of machines that stand ready.
const preparedGauge = "hutch_prepared_machines "

// Prepared measures creates that find a machine prepared ahead: how long a caller waits for the
// first output of the first command. Beside it the same command is run in a sandbox that
// stands, which is the least that it could be. The floor is measured if s.Baseline is set: by
// hand a machine is prepared, and the clock starts when it is let go; so is what else is installed,
// which prepares nothing. That a machine stands ready
// is waited for off the clock, so the server must be one that nobody else uses.
// When it is ended early the report is of the runs until then, and the error says why.
func Prepared(ctx context.Context, s Settings, srv Server, floor *Floor, progress func(done int)) (_ *Report, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	like := s
	like.Baseline = false // the floor's machines are prepared one by one
	st, rep, err := stand(ctx, "prepared", like, srv.API, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.kill(ctx)) }()
	rep.Settings.Baseline, rep.Settings.Sandbox.BootMode = s.Baseline, hutch.BootPrepared
	stands := &apiRunner{c: srv.API, sid: st.sid}
	subjects := []subject{
		{SubjectHutch, func(ctx context.Context, t *clock) error { return preparedRun(ctx, srv, s, t) }},
		{SubjectStanding, func(ctx context.Context, t *clock) error { return standingRun(ctx, stands, t) }},
	}
	if s.Baseline {
		subjects = append(subjects, subject{SubjectFloor, func(ctx context.Context, t *clock) error {
			return floor.preparedRun(ctx, *rep.Settings.Sandbox, t)
		}})
		defer func() { err = errors.Join(err, floor.Podman.close(ctx)) }()
		var others []subject
		others, rep.Alternatives = floor.Podman.subjects(ctx, *rep.Settings.Sandbox, floor.ImagePath)
		subjects = append(subjects, others...)
	}
	runs, err := measure(ctx, series{n: s.N, warmup: s.Warmup, parallel: 1, limit: runLimit, progress: progress}, subjects)
	return rep.finish(runs, err)
}

// preparedRun is createRun once a machine stands ready.
func preparedRun(ctx context.Context, srv Server, s Settings, t *clock) error {
	if err := srv.awaitPrepared(ctx); err != nil {
		return err
	}
	return createRun(ctx, srv.API, s, t, func(sb api.Sandbox) error {
		if sb.BootMode != hutch.BootPrepared {
			return fmt.Errorf("the sandbox is %q: it did not find the machine that was prepared", sb.BootMode)
		}
		return nil
	})
}

// standingRun runs the same command where nothing has to be made.
func standingRun(ctx context.Context, r *apiRunner, t *clock) error {
	asked := time.Now()
	first := firstByte(func(at time.Time) { t.book(MetricFirstOutput, at.Sub(asked)) })
	code, _, err := r.stream(ctx, helloArgv, first.take)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if err := first.check(code, helloText); err != nil {
		return err
	}
	return r.settle(ctx)
}

// preparedRun is createRun with the clock of a machine that was prepared.
func (f *Floor) preparedRun(ctx context.Context, like Sandbox, t *clock) error {
	whole := &clock{us: map[string]int64{}}
	if err := f.createRun(ctx, like, whole); err != nil {
		return err
	}
	t.us[MetricFirstOutput], t.us[MetricKill] = whole.us[MetricPrepared], whole.us[MetricKill]
	return nil
}

// awaitPrepared returns once the server has a machine that stands ready.
func (s Server) awaitPrepared(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("there is none after a minute: the server's log says why"))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := s.hasPrepared(ctx); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for a machine to be prepared: %w", context.Cause(ctx))
		}
	}
}

func (s Server) hasPrepared(ctx context.Context) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(s.URL, "/")+"/metrics", nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+s.Key)
	res, err := s.send(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), preparedGauge); ok {
			return n != "0", nil
		}
	}
	return false, errors.Join(errors.New("the server does not say how many machines stand ready"), lines.Err())
}

// preparedClaims is what we hold ourselves to, of the first output.
func preparedClaims(s Summary) []Claim {
	first := func(subject string) Dist { return s.of(MetricFirstOutput, subject) }
	hutch, floor, bare := first(SubjectHutch), first(SubjectFloor), first(SubjectStanding)
	var out []Claim
	if hutch.N > 0 && floor.N > 0 {
		out = append(out,
			atMost("first output on a prepared machine, of the floor's at p50", over(hutch.P50, floor.P50), PreparedLimit, "×"),
			atMost("the same at p99", over(hutch.P99, floor.P99), PreparedTail, "×"))
	}
	if hutch.N > 0 && bare.N > 0 {
		out = append(out, atMost("the same, above a command in a sandbox that stands, at p50",
			float64(hutch.P50-bare.P50)/1000, float64(ClaimLimit.Milliseconds()), "ms"))
	}
	return out
}
