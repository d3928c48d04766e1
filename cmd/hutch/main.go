// Command hutch is the one binary of the platform: server, companions, command line, and,
// by re-executing itself, the kernel of every sandbox.
//
// It wires: nothing here decides. Start with serve.go.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/cli"
)

// buildVersion is set by the build.
var buildVersion = "dev"

// Files in the data directory.
const (
	dbFile      = "hutch.db"   // the server's records
	lockFile    = "serve.lock" // locked while a server works there
	guestImages = "guest"      // directory of the guest agents' images
)

func main() {
	maybeRunsc()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "hutch",
		Short:         "A machine of its own for every coding agent",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       buildVersion,
	}
	root.AddCommand(mayDie(newServe()), mayDie(newKeeper()), mayDie(newEgress()), newDoctor(), newLeaks(), newBench(), newChaos())
	env := cli.OSEnv(buildInfo())
	env.TemplateCommands = templateCommands()
	root.AddCommand(cli.Commands(env)...)
	cli.Strict(root)
	return root
}

func exitCode(err error) int {
	var code interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return code.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "hutch: "+err.Error())
	return 1
}

func defaultDataDir() string {
	return cmp.Or(os.Getenv(cli.EnvDataDir), cli.DefaultDataDir)
}
