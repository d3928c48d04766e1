package control

import (
	"runtime"
	"time"

	"hutch.dev/hutch"
)

// finishTimeout bounds what is finished for a caller who may have left: a start is
// given 30 s by the node, a kill 20 s, and the records a moment.
const finishTimeout = time.Minute

// retryAfter is what a caller is told to wait when there is no room.
const retryAfter = 2 * time.Second

// DefaultOvercommit is how many times the host's memory is given out. Sandboxes are asked for
// with what a test suite may need at its height, and use it for minutes a day: an idle one takes
// 12 to 22 MiB, one that works some hundred. Each is still held to its own limit, and while the
// host's memory really is short nothing more is started.
const DefaultOvercommit = 10

// minReserveMB is the least that is kept back of a host's memory.
const minReserveMB = 512

// Hard limits of what may be asked for; an operator's MaxResources lies below them.
const (
	minMemoryMB = 64 // the guest agent, a shell and gVisor's own needs
	minDiskMB   = 16
	minPids     = 16
	maxMetadata = 64 // pairs; like the keys and values of labels elsewhere in the field
	maxEnv      = 256
	maxPairLen  = 32 << 10 // bytes of a key and its value together
	maxPairs    = 64 << 10 // bytes of all metadata together, which every listing has
	maxEnvLen   = 1 << 20  // bytes of a whole environment; the kernel takes two MiB with the arguments
)

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.DefaultTTL, time.Hour)
	def(&c.MaxTTL, 24*time.Hour)
	def(&c.Retention, 24*time.Hour)
	def(&c.AuditFor, 30*24*time.Hour)
	def(&c.UsageFor, 90*24*time.Hour)
	def(&c.UsageEvery, time.Second)
	def(&c.SweepInterval, 2*time.Second)
	def(&c.UseEvery, 5*time.Second)
	def(&c.SampleEvery, 5*time.Second)
	def(&c.ImagesEvery, imagesEvery)
	def(&c.ReconcileEvery, time.Minute)
	def(&c.SecondLook, SecondLook)
	def(&c.PrepareFor, 5*time.Minute)
	num(&c.MaxSandboxes, 1000)
	num(&c.Creates, 2*runtime.NumCPU())
	num(&c.Queue, 256)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Overcommit == 0 {
		c.Overcommit = DefaultOvercommit
	}
	num(&c.MaxResources.MilliCPU, 64_000)
	num(&c.MaxResources.MemoryMB, 65_536)
	num(&c.MaxResources.DiskMB, 1<<20)
	num(&c.MaxResources.Pids, 65_536)
	return c
}

// fallbackResources is the size of a sandbox when neither the request nor its template
// says: what a small project's tests and a package install need. The cap on processes
// follows the memory (see Resources.Pids in validate.go).
var fallbackResources = hutch.Resources{MilliCPU: 2000, MemoryMB: 2048, DiskMB: 10_240, DiskTier: hutch.TierDisk}
