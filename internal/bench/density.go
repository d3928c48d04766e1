package bench

import (
	"context"
	"errors"
	"fmt"

	"hutch.dev/hutch"
)

// What is measured of sandboxes that stand, besides times.
const (
	MetricAnswer     = "answer"      // asking for a command, in each of many sandboxes, to its result
	MetricPSS        = "pss"         // memory of a sandbox's processes, shared pages by share
	MetricOwn        = "own"         // the part of it that is the sandbox's alone
	MetricShared     = "shared"      // its share of pages of files: the binary and the images
	MetricRSS        = "rss"         // the same with shared pages counted in full
	MetricCharge     = "charge"      // what its control group is charged with
	MetricProcesses  = "processes"   // on the host, of a sandbox
	MetricCPU        = "cpu"         // of a sandbox
	MetricCPUAll     = "cpu_all"     // of all sandboxes together
	MetricCPUSlice   = "cpu_slice"   // the same, by slices of the time that was looked at
	MetricCPUOf      = "cpu_of."     // of a process of the server
	MetricCPUMachine = "cpu_machine" // of all there is on the machine, by the same slices
	MetricCPUBeside  = "cpu_beside"  // of that, of processes that were there before and are not ours
	MetricCPUOurs    = "cpu_ours"    // of that, the rest: sandboxes, server, and what the kernel does for them
	MetricRest       = "rest"        // from the making of the last one until they had come to rest
	MetricPSSOf      = "pss_of."     // of a process of the server
	MetricAvailable  = "available"   // memory that the machine has left, less than before, by sandbox
	MetricDisk       = "disk"        // that a sandbox has taken
	MetricRecords    = "records"     // that the records of all sandboxes have taken
	MetricImage      = "image"       // root image, which all share
	MetricFreeLess   = "free_less"   // by how much the file system's free space has shrunk, by sandbox
	MetricHeap       = "heap"        // of the server, after a collection
	MetricRoutines   = "goroutines"  // of the server
	MetricFiles      = "files."      // descriptors that a process of the server has open
	MetricLeft       = "left"        // what is on the host of sandboxes that were ended
	MetricLeaks      = "leaks"       // lines of `hutch leaks`
	MetricRate       = "rate"        // creates, with their kills
)

// What we hold ourselves to with many sandboxes that idle. The limits of memory are those
// of one sandbox, its guest agent and gVisor's kernel included.
const (
	PSSLimitDisk   = 22 << 20 // bytes
	PSSLimitMemory = 16 << 20
	// CreateLimit is how much longer a create may take beside the crowd than without it.
	CreateLimit = 1.5
	// IdleCPULimit is what counts as no CPU, for all sandboxes together: a hundredth of one,
	// which is what the kernel's own clocks are good for.
	IdleCPULimit = 0.01
)

// Phases of the benchmark of density, on each disk tier.
const (
	phaseNone = "none alive"
	phaseFill = "filling"
	phaseIdle = "all alive"
	phaseUsed = "after a command in each"
	phaseEnd  = "ending"
)

func tierPhase(tier hutch.DiskTier, phase string) string { return string(tier) + " tier, " + phase }

// Density measures s.N sandboxes that stand and do nothing, on each of s.Tiers: what one
// has of the machine's memory, how much CPU they take over s.Window and the machine does then and
// without them, whether each answers, and how long a create takes beside them, against one with
// none. When it is ended early the report is of what there is until then, and the error says why.
func Density(ctx context.Context, s Settings, srv Server, progress func(done int)) (*Report, error) {
	if srv.Host == nil {
		return nil, errOwn
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	b := &book{}
	rep, err := begin(ctx, "density", s, srv.API)
	if err != nil {
		return nil, err
	}
	done := 0
	for _, tier := range s.Tiers {
		d := density{s: s, srv: srv, b: b, tier: tier, made: func() {
			if done++; progress != nil {
				progress(done)
			}
		}}
		d.s.Tier = string(tier)
		if err = d.measure(ctx); err != nil {
			break
		}
	}
	return rep.conclude(b, err)
}

// density is the measurement of one disk tier.
type density struct {
	s    Settings
	srv  Server
	b    *book
	tier hutch.DiskTier
	made func()
}

func (d *density) page(phase string) page {
	return d.b.page(tierPhase(d.tier, phase), SubjectHutch, 0)
}

func (d *density) measure(ctx context.Context) (err error) {
	none, idle, used := d.page(phaseNone), d.page(phaseIdle), d.page(phaseUsed)
	for range d.s.Warmup {
		if err := createRun(ctx, d.srv.API, d.s, &clock{us: map[string]int64{}}, nil); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	if err := d.probe(ctx, none); err != nil {
		return err
	}
	w := gather(d.s, d.srv.API)
	if err := pause(ctx, d.s.calmLook()); err != nil { // what the probes left to do
		return err
	}
	if err := w.idleness(ctx, d.srv.Host, none, d.s.Window); err != nil {
		return err
	}
	if err := d.serverMemory(none); err != nil {
		return err
	}
	before, err := available()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.end(ctx, d.page(phaseEnd))) }()
	if err := w.fill(ctx, d.s.N, d.page(phaseFill), d.made); err != nil {
		return err
	}
	if err := w.rest(ctx, d.srv.Host, idle, d.s.calmLook()); err != nil {
		return err
	}
	if err := w.idleness(ctx, d.srv.Host, idle, d.s.Window); err != nil {
		return err
	}
	after, err := available()
	if err != nil {
		return err
	}
	idle.add(MetricAvailable, Bytes, (before-after)/int64(len(w.ids)))
	w.memory(d.srv.Host, idle)
	if err := d.serverMemory(idle); err != nil {
		return err
	}
	if err := d.probe(ctx, idle); err != nil {
		return err
	}
	if err := w.answers(ctx, used); err != nil {
		return err
	}
	w.memory(d.srv.Host, used)
	return nil
}

// probe makes sandboxes one after the other, with a first command in each, and ends them.
func (d *density) probe(ctx context.Context, p page) error {
	for range d.s.Probes {
		rctx, cancel := context.WithTimeout(ctx, runLimit)
		c := &clock{us: map[string]int64{}}
		err := createRun(rctx, d.srv.API, d.s, c, nil)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			p.fault("%v", err)
			if err := d.b.hopeless(p.phase); err != nil {
				return err
			}
		default:
			p.times(c)
		}
	}
	return nil
}

func (d *density) serverMemory(p page) error {
	for _, name := range d.srv.Host.processes() {
		m, err := memoryOf(d.srv.Host.PIDs[name])
		if err != nil {
			return fmt.Errorf("memory of the %s: %w", name, err)
		}
		p.add(MetricPSSOf+name, Bytes, m.PSS)
	}
	return nil
}

// densityClaims are what is held of a density.
func densityClaims(s Settings, fs figures) []Claim {
	var out []Claim
	for _, tier := range s.Tiers {
		none, idle, used := tierPhase(tier, phaseNone), tierPhase(tier, phaseIdle), tierPhase(tier, phaseUsed)
		if d, ok := fs.of(idle, MetricPSS, SubjectHutch); ok {
			limit := PSSLimitDisk
			if tier == hutch.TierMemory {
				limit = PSSLimitMemory
			}
			out = append(out, atMost(fmt.Sprintf("%s tier: memory of the largest of %d idle sandboxes (PSS)", tier, d.N), float64(d.Max)/(1<<20), float64(limit)/(1<<20), "MiB"))
		}
		if d, ok := fs.of(idle, MetricCPUAll, SubjectHutch); ok {
			out = append(out, atMost(fmt.Sprintf("%s tier: CPU of all of them", tier), float64(d.Max)/1e4, 100*IdleCPULimit, "% of one"))
		}
		out = append(out, busyClaim(tier, fs)...)
		a, ok := fs.of(none, MetricCreate, SubjectHutch)
		b, ok2 := fs.of(idle, MetricCreate, SubjectHutch)
		if ok && ok2 {
			out = append(out, atMost(fmt.Sprintf("%s tier: create beside them over create with none, p50", tier), over(b.P50, a.P50), CreateLimit, ""))
		}
		if d, ok := fs.of(used, MetricAnswer, SubjectHutch); ok {
			out = append(out, atLeast(fmt.Sprintf("%s tier: sandboxes that answer", tier), float64(d.N), float64(s.N)))
		}
	}
	return out
}

// busyClaim is that nobody who looks at the machine could tell whether they are there: what it does
// while they idle is no more than what it does without them by as much as that differs from one
// time to another. What other processes take is left out: what watches a machine takes longer over
// more processes, whatever they do.
func busyClaim(tier hutch.DiskTier, fs figures) []Claim {
	none, ok := fs.of(tierPhase(tier, phaseNone), MetricCPUOurs, SubjectHutch)
	idle, ok2 := fs.of(tierPhase(tier, phaseIdle), MetricCPUOurs, SubjectHutch)
	if !ok || !ok2 {
		return nil
	}
	what := fmt.Sprintf("%s tier: CPU of the machine but for other processes, median with them less that with none; the limit is the spread with none", tier)
	return []Claim{atMost(what, float64(idle.P50-none.P50)/1e4, round3(float64(none.Max-none.Min)/1e4), "% of one")}
}
