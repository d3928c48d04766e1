package template

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// imageUUID is the same in every image, so that equal trees make equal images.
const imageUUID = "68757463-6800-4000-8000-000000000000"

// blockSize is that of EROFS: every file takes whole blocks.
const blockSize = 4096

func (run *building) imagePath() string { return filepath.Join(run.dir, "image.erofs") }

// makeImage writes the tree as an EROFS image that gVisor can read: file data in
// blocks of its own, not packed into inodes; uncompressed; and without extended
// attributes, for it refuses any file that has some. That costs file capabilities,
// which nothing in a sandbox needs: whoever could use them is root there.
func (run *building) makeImage(ctx context.Context) error {
	run.begin(StepImage, "", nil)
	want, err := treeSize(run.tree)
	if err != nil {
		return fmt.Errorf("measure tree: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		run.watchImage(ctx, want)
	}()
	j := job{
		argv: []string{"mkfs.erofs", "--quiet", "-Enoinline_data", "-x-1", "-U" + imageUUID, run.imagePath(), run.tree},
		// Times of files are kept, but none is later than the packages: with the
		// times of its sources kept, Python's compiled code stays valid.
		env: []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(run.sourceDate.Unix(), 10)},
		out: run.tracker,
	}
	err = j.run(ctx)
	cancel()
	<-done
	return err
}

// watchImage reports the step's progress by the size of the image until ctx ends.
func (run *building) watchImage(ctx context.Context, want int64) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if info, err := os.Stat(run.imagePath()); err == nil && want > 0 {
			run.at(float64(info.Size()) / float64(want))
		}
	}
}

// treeSize is about how large the image of a tree will be, in bytes.
func treeSize(tree string) (int64, error) {
	var size int64
	err := filepath.WalkDir(tree, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type().IsRegular() {
			info, err := d.Info()
			if err != nil {
				return err
			}
			size += (info.Size() + blockSize - 1) / blockSize * blockSize
		}
		return nil
	})
	return size, err
}
