package process

import (
	"os"
	"strconv"
)

// unprotect undoes for a command what the agent did for itself: when memory runs out, the
// kernel must take the command first.
func unprotect(proc string, pid int) {
	f, err := os.OpenFile(proc+"/"+strconv.Itoa(pid)+"/oom_score_adj", os.O_WRONLY, 0)
	if err != nil {
		return // gone already, or the kernel has no such thing
	}
	defer f.Close()
	_, _ = f.WriteString("0")
}
