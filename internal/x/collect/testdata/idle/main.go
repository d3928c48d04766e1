// Command idle makes no garbage, and prints how often it was collected until that was seen twice,
// or until it has waited for its argument.
package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"hutch.dev/hutch/internal/x/collect"
)

func main() {
	limit, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	heeded := collect.Every(20 * time.Millisecond)
	runtime.GC() // the clock of the next one begins with the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	first := m.NumGC
	tick := time.NewTicker(5 * time.Millisecond)
	for end := time.Now().Add(limit); m.NumGC < first+2 && time.Now().Before(end); <-tick.C {
		runtime.ReadMemStats(&m)
	}
	fmt.Println(heeded, m.NumGC-first >= 2)
}
