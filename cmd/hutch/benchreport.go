package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/bench"
	"hutch.dev/hutch/internal/x/atomicfile"
)

func newBenchReport() *cobra.Command {
	var page string
	c := &cobra.Command{
		Use:   "report FILE...",
		Short: "Make tables of raw results",
		Long: "Checks that each file's summary is what its runs come to, and prints tables in\n" +
			"Markdown. With --into they are put into a page, in place of those that are there.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var figures bytes.Buffer
			for _, name := range args {
				if err := reportFile(name, &figures); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			if page == "" {
				_, err := figures.WriteTo(cmd.OutOrStdout())
				return err
			}
			old, err := os.ReadFile(page)
			if err != nil {
				return err
			}
			text, err := bench.IntoPage(string(old), figures.String())
			if err != nil {
				return fmt.Errorf("%s: %w", page, err)
			}
			return atomicfile.Write(page, []byte(text), 0o644)
		},
	}
	c.Flags().StringVar(&page, "into", "", "page to put the tables into")
	return c
}

func reportFile(name string, w io.Writer) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	rep, err := bench.Read(f)
	if err != nil {
		return err
	}
	return rep.Markdown(w)
}
