package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func newKey(a *app) *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Manage API keys"}
	c.AddCommand(a.newKeyCreate(), a.newKeyLs(), a.newKeyRm())
	return c
}

func (a *app) newKeyCreate() *cobra.Command {
	var (
		scope   string
		expires durationFlag
	)
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an API key and print it, this once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := api.CreateKey{Name: args[0], Scope: hutch.Scope(scope), ExpiresInSeconds: expires.seconds()}
			cl, err := a.client()
			if err != nil {
				return err
			}
			k, err := cl.CreateKey(cmd.Context(), req)
			if err != nil {
				return err
			}
			if k.Key == "" {
				return errors.New("the answer that held the key was lost: revoke " + k.Prefix + " and make another")
			}
			if err := a.printNew(k, k.Key); err != nil {
				return fmt.Errorf("the key was made but is lost, revoke it with `hutch key rm %s`: %w", k.Prefix, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&scope, "scope", string(hutch.ScopeRun), "what it may do: read, run or admin")
	c.Flags().Var(&expires, "expires", "how long it is valid, like 30d (default: for ever)")
	return c
}

func (a *app) newKeyLs() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List API keys",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			ks, err := cl.Keys(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(ks)
			}
			rows := [][]cell{head("PREFIX", "NAME", "SCOPE", "CREATED", "VALID")}
			for _, k := range ks {
				rows = append(rows, []cell{text(k.Prefix), text(k.Name), text(string(k.Scope)), text(k.CreatedAt.Format(time.DateOnly)), a.validity(k)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) validity(k api.Key) cell {
	switch {
	case !k.RevokedAt.IsZero():
		return cell{"revoked " + k.RevokedAt.Format(time.DateOnly), dim}
	case k.ExpiresAt.IsZero():
		return text("for ever")
	case k.ExpiresAt.Before(a.Now()):
		return cell{"expired " + k.ExpiresAt.Format(time.DateOnly), dim}
	}
	return text("until " + k.ExpiresAt.Format(time.DateOnly))
}

func (a *app) newKeyRm() *cobra.Command {
	return &cobra.Command{
		Use:     "rm PREFIX...",
		Aliases: []string{"revoke"},
		Short:   "Revoke API keys, named by their first eight digits",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			return a.each(args, func(prefix string) error { return cl.RevokeKey(cmd.Context(), prefix) })
		},
	}
}

func newTemplate(a *app) *cobra.Command {
	c := &cobra.Command{Use: "template", Short: "Manage templates"}
	c.AddCommand(a.newTemplateLs(), a.newTemplateGet())
	c.AddCommand(a.TemplateCommands...)
	return c
}

func (a *app) newTemplateLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List templates",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			ts, err := cl.Templates(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(ts)
			}
			rows := [][]cell{head("NAME", "SIZE", "CPU", "MEMORY", "BUILT")}
			for _, t := range ts {
				rows = append(rows, []cell{text(t.Name), text(mib(int(t.SizeBytes >> 20))), text(orDash(t.CPU > 0, number(t.CPU))), text(orDash(t.MemoryMB > 0, mib(t.MemoryMB))), text(t.CreatedAt.Format(time.DateOnly))})
			}
			return a.table(rows)
		},
	}
}

func orDash(has bool, s string) string {
	if !has {
		return "-"
	}
	return s
}

func (a *app) newTemplateGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show a template",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			t, err := cl.Template(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(t)
			}
			rows := [][]cell{
				{{"name", dim}, text(t.Name)},
				{{"aliases", dim}, text(orDash(len(t.Aliases) > 0, strings.Join(t.Aliases, ", ")))},
				{{"about", dim}, text(orDash(t.Description != "", t.Description))},
				{{"build", dim}, text(t.BuildID)},
				{{"image", dim}, text(t.Image)},
				{{"size", dim}, text(mib(int(t.SizeBytes >> 20)))},
				{{"profile", dim}, text(orDash(t.Profile != "", string(t.Profile)))},
				{{"user", dim}, text(orDash(t.User != "", t.User))},
				{{"cwd", dim}, text(orDash(t.Cwd != "", t.Cwd))},
				{{"built", dim}, text(a.when(t.CreatedAt))},
			}
			if len(t.Entrypoint) > 0 {
				rows = append(rows, []cell{{"entrypoint", dim}, text(fmt.Sprintf("%q, not run by itself", t.Entrypoint))})
			}
			return a.table(rows)
		},
	}
}

// versions is what `version --json` prints.
type versions struct {
	Client api.BuildInfo  `json:"client"`
	Server *api.BuildInfo `json:"server,omitempty"`
}

func newVersion(a *app) *cobra.Command {
	var clientOnly bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print what this program and the server are",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: a.Build}
			if !clientOnly {
				// Without a server the program still has a version, and at once.
				if cl, err := a.client(client.WithRetries(0)); err == nil {
					if s, err := cl.ServerVersion(cmd.Context()); err == nil {
						v.Server = &s
					}
				}
			}
			if a.json {
				return a.printJSON(v)
			}
			rows := [][]cell{{{"hutch", dim}, text(a.Build.Semver)}}
			if v.Server != nil {
				rows = append(rows, []cell{{"server", dim}, text(v.Server.Semver)})
			}
			return a.table(rows)
		},
	}
	c.Flags().BoolVar(&clientOnly, "client", false, "do not ask the server")
	return c
}
