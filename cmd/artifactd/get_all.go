package main

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// getAll downloads every file of a version into a folder, but for those that are there already, and
// removes what is not of the version, if that is wanted; got is told of both. All are verified in a
// folder of their own before the first is renamed into place. Paths come from whoever published: os.Root
// keeps them, and links that lie in the folder already, from leading out of it.
func getAll(ctx context.Context, c *client.Client, files []types.File, f getFlags, got *received, bar *bar) error {
	dir := f.out
	if dir == "" {
		dir = "."
	}
	root, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	mirror, err := getStaged(ctx, c, files, root, f.delete, got, bar)
	if err != nil || mirror == nil {
		return err
	}
	removed, err := mirror.clean()
	got.RemovedFiles = &removed
	return err
}

// getStaged is getAll but for removing. What it returns does that; nil when it is not wanted.
func getStaged(ctx context.Context, c *client.Client, files []types.File, root *os.Root, mirrored bool, got *received, bar *bar) (m *mirror, err error) {
	dir := root.Name()
	staging := temporaryName("get")
	if err := root.Mkdir(staging, 0o700); err != nil {
		return nil, unwritable(dir, err)
	}
	defer func() {
		if err != nil && m != nil {
			m.restore()
		}
		if removeErr := root.RemoveAll(staging); err == nil {
			err = removeErr
		}
	}()
	fold := foldsCase(root, staging)
	if fold {
		if err := oneInCase(files, dir); err != nil {
			return nil, err
		}
	}
	if mirrored {
		m = newMirror(root, files, fold)
		if _, _, err := m.survey(); err != nil {
			return m, err
		}
	}
	missing, err := fetch(ctx, c, files, m, root, staging, bar)
	if err != nil {
		return m, err
	}
	for i, f := range files {
		if !missing[i] {
			got.FetchedBytes -= f.Size
			got.PresentBytes += f.Size
			continue
		}
		if m != nil {
			if err := m.makeWay(staging, f.Path); err != nil {
				return m, err
			}
		}
		if err := placeBelow(root, stagedName(staging, i), f.Path); err != nil {
			return m, err
		}
	}
	return m, nil
}

// fetch downloads what is not there, and tells what that was.
func fetch(ctx context.Context, c *client.Client, files []types.File, m *mirror, root *os.Root, staging string, bar *bar) ([]bool, error) {
	missing := make([]bool, len(files))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(client.DefaultParallel)
	for i, f := range files {
		group.Go(func() error {
			there, err := false, error(nil)
			if m == nil || m.straight(f.Path) {
				there, err = isThere(ctx, root, f)
			}
			if there {
				bar.file(f.Path, f.Size)(f.Size)
			}
			if there || err != nil {
				return err
			}
			missing[i] = true
			return getVerified(ctx, c, f, root, stagedName(staging, i), bar)
		})
	}
	return missing, group.Wait()
}

// isThere reports whether a file lies in its place already, right to the last byte. One that cannot
// be read is fetched.
func isThere(ctx context.Context, root *os.Root, f types.File) (bool, error) {
	name := filepath.FromSlash(f.Path)
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
		return false, nil
	}
	r, err := root.Open(name)
	if err != nil {
		return false, nil
	}
	defer r.Close()
	digest, err := client.DigestOf(ctx, r)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil && digest == f.Digest, nil
}

// oneInCase refuses the files that would be one in dir, where case is not told apart.
func oneInCase(files []types.File, dir string) error {
	var all faults
	for one, other := range sameButForCase(files, func(f types.File) string { return f.Path }) {
		all.add(fmt.Errorf("%q and %q differ only in upper and lower case, which %s does not keep apart; choose a place that does, or get them one by one with -O", one, other, dir))
	}
	return all.err(func(n int) string {
		return fmt.Sprintf("%d files cannot be told apart in %s; nothing was written", n, dir)
	})
}

// sameButForCase walks the pairs of paths that are one where case is not told apart: of several, each
// with the first.
func sameButForCase[T any](files []T, path func(T) string) iter.Seq2[string, string] {
	return func(yield func(one, other string) bool) {
		seen := make(map[string]string, len(files))
		for _, f := range files {
			folded := foldedPath(path(f))
			if first, ok := seen[folded]; !ok {
				seen[folded] = path(f)
			} else if !yield(first, path(f)) {
				return
			}
		}
	}
}

// foldedPath is the same for paths that differ only in case.
func foldedPath(path string) string { return strings.ToLower(strings.ToUpper(path)) }

// foldsCase reports whether a folder takes a name in capital letters for the same one. name is in it.
func foldsCase(root *os.Root, name string) bool {
	a, err := root.Stat(name)
	if err != nil {
		return false
	}
	b, err := root.Stat(strings.ToUpper(name))
	return err == nil && os.SameFile(a, b)
}

func stagedName(staging string, i int) string { return fmt.Sprintf("%s/%d", staging, i) }

func placeBelow(root *os.Root, temp, path string) error {
	name := filepath.FromSlash(path)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the version has a file %q, which leads out of the folder; get it by name with -O", path)
	}
	if dir := filepath.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0)
	switch info, err := root.Lstat(name); {
	case err == nil && info.Mode().IsRegular():
		mode = info.Mode().Perm()
	case err == nil:
		return fmt.Errorf("%s is there and is not a regular file; move it away or choose another folder", name)
	}
	return place(root, temp, name, mode)
}
