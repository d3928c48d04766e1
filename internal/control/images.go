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
	// Templates before the living and after: of a sandbox that is made between two of the looks
	// the template is in one of them, even if it is deleted at once.
	needed := map[string]bool{}
	templates := func() error {
		l, err := c.store.Templates(ctx)
		if err != nil {
			return fmt.Errorf("list templates: %w", err)
		}
		for _, t := range l {
			needed[t.Image] = true
		}
		return nil
	}
	if err := templates(); err != nil {
		return err
	}
	alive, err := c.allAlive(ctx)
	if err != nil {
		return err
	}
	for _, sb := range alive {
		needed[sb.Image] = true
	}
	if err := templates(); err != nil {
		return err
	}
	n, err := c.cfg.Images.Collect(ctx, func(digest string) bool { return needed[digest] })
	if n > 0 {
		c.log.Info("removed images that nothing needs", "op", "purge", "images", n)
	}
	return err
}
