package control

import (
	"context"
	"fmt"
	"time"
)

// imagesEvery is how often root images are looked through for those that nothing needs:
// they cost disk, not time.
const imagesEvery = 10 * time.Minute

// Images keeps the root images that sandboxes are made from.
type Images interface {
	// Collect removes the images that keep does not want and that are not new, and says how
	// many that were. An image is new for a while after it was made: whoever makes one
	// records it afterwards.
	Collect(ctx context.Context, keep func(digest string) bool) (int, error)
}

// collectImages removes the images that no template points at and no living sandbox was
// made from.
func (c *Control) collectImages(ctx context.Context) error {
	// The living first: a sandbox that is made meanwhile has its image from a template.
	alive, err := c.allAlive(ctx)
	if err != nil {
		return err
	}
	templates, err := c.store.Templates(ctx)
	if err != nil {
		return fmt.Errorf("list templates: %w", err)
	}
	needed := map[string]bool{}
	for _, sb := range alive {
		needed[sb.Image] = true
	}
	for _, t := range templates {
		needed[t.Image] = true
	}
	n, err := c.cfg.Images.Collect(ctx, func(digest string) bool { return needed[digest] })
	if n > 0 {
		c.log.Info("removed images that nothing needs", "op", "purge", "images", n)
	}
	return err
}
