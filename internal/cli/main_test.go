package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/cli"
)

// asCLI makes the test binary act as the command line.
const asCLI = "HUTCH_TEST_AS_CLI"

func TestMain(m *testing.M) {
	if os.Getenv(asCLI) == "" {
		os.Exit(m.Run())
	}
	// As cmd/hutch does.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot(cli.OSEnv(api.BuildInfo{Semver: "1.2.3"})).ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

func newRoot(env cli.Env) *cobra.Command {
	root := &cobra.Command{Use: "hutch", SilenceUsage: true, SilenceErrors: true}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.AddCommand(&cobra.Command{Use: "serve", Hidden: true, Args: cobra.NoArgs, Run: func(*cobra.Command, []string) {}})
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
