package control

import (
	"context"
	"fmt"

	"hutch.dev/hutch"
)

// ListTemplates returns all templates, by name.
func (c *Control) ListTemplates(ctx context.Context) ([]hutch.Template, error) {
	l, err := c.store.Templates(ctx)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return l, nil
}

// Template returns one by its name or an alias, hutch.ErrNotFound if there is none.
func (c *Control) Template(ctx context.Context, name string) (hutch.Template, error) {
	t, err := c.store.Template(ctx, name)
	if err != nil {
		return t, fmt.Errorf("read template %s: %w", name, err)
	}
	return t, nil
}

// PutTemplate makes a name point at a build. Sandboxes that run keep theirs.
func (c *Control) PutTemplate(ctx context.Context, t hutch.Template) error {
	if err := c.store.PutTemplate(ctx, t); err != nil {
		return fmt.Errorf("record template %s: %w", t.Name, err)
	}
	return nil
}

// DeleteTemplate makes a template, named by its name or an alias, unknown. Sandboxes that
// run from it keep its image, which is removed when nothing needs it any more.
func (c *Control) DeleteTemplate(ctx context.Context, name string) error {
	t, err := c.Template(ctx, name)
	if err != nil {
		return err
	}
	if err := c.store.DeleteTemplate(ctx, t.Name); err != nil {
		return fmt.Errorf("delete template %s: %w", t.Name, err)
	}
	return nil
}
