// Command guest is the first process of the sandboxes in this package's tests: it
// runs commands that come on its standard input, one JSON object a line each way.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"sync"
)

type request struct {
	ID   int
	Argv []string // empty: only answer
	Go   bool     // leave it running, answer at once
}

type response struct {
	ID   int
	Out  string
	Code int
	Err  string
}

func main() {
	var mu sync.Mutex
	enc := json.NewEncoder(os.Stdin) // both directions of one stream
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			continue // the rest of a line that a restore cut
		}
		go func() {
			a := run(r)
			mu.Lock()
			defer mu.Unlock()
			enc.Encode(a)
		}()
	}
	select {} // the host closed its end; whether that ends the sandbox is its affair
}

func run(r request) response {
	a := response{ID: r.ID}
	if len(r.Argv) == 0 {
		return a
	}
	if r.Argv[0] == "exit" {
		os.Exit(3)
	}
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	if r.Go {
		if err := cmd.Start(); err != nil {
			a.Err = err.Error()
			return a
		}
		go cmd.Wait()
		return a
	}
	out, err := cmd.CombinedOutput()
	a.Out = string(out)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		a.Code = exit.ExitCode()
	case err != nil:
		a.Err = err.Error()
	}
	return a
}
