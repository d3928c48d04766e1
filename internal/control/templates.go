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

// Template returns one, hutch.ErrNotFound if there is none.
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
