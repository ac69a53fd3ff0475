package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// getFlags are the flags of `get`.
type getFlags struct {
	out    string
	delete bool
}

// check refuses --delete where it makes no sense, or would do harm.
func (f getFlags) check(p *Program, path string) error {
	switch {
	case !f.delete:
		return nil
	case path != "":
		return fmt.Errorf("%w: --delete is for a whole version in a folder, not for one file", errUsage)
	case f.out == "":
		return fmt.Errorf("%w: --delete needs a folder that is the version's alone; name it with -O", errUsage)
	case f.out == "-" || isStdout(f.out):
		return fmt.Errorf("%w: --delete is for a folder, not for standard output", errUsage)
	}
	return p.mayDeleteIn(f.out)
}

func (p *Program) getCommand() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get NAME [PATH]",
		Short: "Download the current version, or one file of it",
		Long: `Download the current version, or one file of it. Bytes are verified against their published digest
before anything takes the place of a file that exists; of a whole version, what is there already and
right is not fetched again, and files that it does not have are left alone. -O names a file, a folder
or, as "-", standard output; without it files go to the current folder under their own names. What goes
to standard output, or to anything that is not a regular file, is verified too, but cannot be taken
back: check the exit code. With -o json it is told what came, unless the bytes themselves go there.

With --delete the folder that -O names becomes the version: once every file is verified and in place,
files and links that the version does not have are removed, and folders that hold none of its files.
Links are never followed. Nothing is removed when anything fails before that.`,
		Example: "  artifactd get acme.reports.daily\n  artifactd get acme.site index.html -O - | head\n  artifactd get acme.site -O /srv/site --delete",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := ""
			if len(args) == 2 {
				path = args[1]
			}
			if err := f.check(p, path); err != nil {
				return err
			}
			return damaged(p.get(cmd.Context(), args[0], path, f))
		},
	}
	cmd.Flags().StringVarP(&f.out, "out", "O", "", `file, folder, or "-" for standard output`)
	cmd.Flags().BoolVar(&f.delete, "delete", false, "remove from the folder what the version does not have")
	return p.clientCommand(cmd)
}

// damaged says what to do about bytes that came otherwise than they were published: asking for them
// again does not mend them.
func damaged(err error) error {
	if errors.Is(err, client.ErrDigestMismatch) || errors.Is(err, client.ErrSizeMismatch) {
		return fmt.Errorf("%w; the object may be damaged: see `artifactd verify --deep`, or publish the files again", err)
	}
	return err
}

// received is what `get` did, as -o json prints it.
type received struct {
	Pointer string `json:"pointer"`
	Version string `json:"version"`
	// FileCount is how many files were asked for, and are in place.
	FileCount int `json:"file_count"`
	// FetchedBytes came from the service or its store; PresentBytes were in place already.
	FetchedBytes int64 `json:"fetched_bytes"`
	PresentBytes int64 `json:"present_bytes"`
	// RemovedFiles counts files and links that the version does not have; with --delete alone.
	RemovedFiles *int `json:"removed_files,omitempty"`
}

func (p *Program) get(ctx context.Context, name, path string, f getFlags) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	defer c.Close()
	version, err := c.Resolve(ctx, name)
	if err != nil {
		return err
	}
	files, err := chosenFiles(ctx, c, version, path)
	if err != nil {
		return err
	}
	var total int64
	for _, f := range files {
		total += f.Size
	}
	bar := p.progress("receiving", total, len(files))
	defer bar.stop()
	single := path != "" || len(files) == 1 && !f.delete
	if single && (f.out == "-" || isStdout(f.out)) {
		return c.Download(ctx, files[0], p.Stdout, bar.file(files[0].Path, files[0].Size))
	}
	if f.out == "-" {
		return fmt.Errorf("%w: version %s has %d files; name one of them to write it to standard output", errUsage, version.Version, len(files))
	}
	got := received{Pointer: version.Name, Version: version.Version, FileCount: len(files), FetchedBytes: total}
	if single {
		err = getOne(ctx, c, files[0], f.destination(files[0].Path), bar)
	} else {
		err = getAll(ctx, c, files, f, &got, bar)
	}
	bar.stop()
	if removed := value(got.RemovedFiles); f.delete && (err == nil || removed > 0) {
		p.note("artifactd: removed %s from %s that version %s does not have", counted(int64(removed), "file"), f.out, version.Version)
	}
	if err != nil {
		return err
	}
	return p.printReceived(got)
}

// printReceived tells a program what came. A person has asked for files, and has them.
func (p *Program) printReceived(got received) error {
	if p.format != "json" {
		return nil
	}
	if err := p.print(got, nil); err != nil {
		return fmt.Errorf("version %s of %s is in place, but that could not be printed: %w", got.Version, got.Pointer, err)
	}
	return nil
}

// chosenFiles are the files asked for: the one at path, or all of the version.
func chosenFiles(ctx context.Context, c *client.Client, v types.ResolvedVersion, path string) ([]types.File, error) {
	var chosen []types.File
	keep := func(f types.File) {
		if path == "" || f.Path == path {
			chosen = append(chosen, f)
		}
	}
	if !v.FilesTruncated {
		for _, f := range v.Files {
			keep(f)
		}
	} else {
		for f, err := range c.Files(ctx, v.Name, v.Version) {
			if err != nil {
				return nil, err
			}
			keep(f)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: version %s of %s has no file %q", client.ErrFileNotFound, v.Version, v.Name, path)
	}
	return chosen, nil
}

// isStdout reports whether a name is one by which systems call standard output. When that is a file,
// it must be written to as it is open, not replaced.
func isStdout(out string) bool {
	switch filepath.Clean(out) {
	case "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1":
		return true
	}
	return false
}

// isFolder reports whether -O names a folder: one that exists, or any name that ends in a slash.
func isFolder(out string) bool {
	if strings.HasSuffix(out, "/") || strings.HasSuffix(out, string(filepath.Separator)) {
		return true
	}
	info, err := os.Stat(out)
	return err == nil && info.IsDir()
}

// destination is where one file goes.
func (f getFlags) destination(path string) string {
	base := filepath.Base(filepath.FromSlash(path))
	switch {
	case f.out == "":
		return base
	case isFolder(f.out):
		return filepath.Join(f.out, base)
	}
	return f.out
}

// getOne downloads a file beside its destination and renames it into place. A destination that
// exists and is not a regular file (a device, a pipe) is written to instead: renaming would replace it.
func getOne(ctx context.Context, c *client.Client, f types.File, dest string, bar *bar) error {
	dest = behindLinks(dest)
	mode := fs.FileMode(0)
	switch info, err := os.Stat(dest); {
	case err == nil && info.Mode().IsRegular():
		mode = info.Mode().Perm()
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: %s is a folder; end it in a slash to put the file into it", errUsage, dest)
	case err == nil:
		return getInto(ctx, c, f, dest, bar)
	}
	dir, base := filepath.Split(dest)
	if dir == "" {
		dir = "."
	}
	root, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	temp := temporaryName(base)
	if err := getVerified(ctx, c, f, root, temp, bar); err != nil {
		return err
	}
	return place(root, temp, base, mode)
}

// behindLinks is the file that a name leads to: a link stays one, and what it points to is replaced,
// or made when it is not there yet.
func behindLinks(name string) string {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	target, err := os.Readlink(name)
	if err != nil {
		return name
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(name), target)
	}
	return target
}

// openFolder opens the folder that files go to, and makes it when it is not there.
func openFolder(dir string) (*os.Root, error) {
	err := os.MkdirAll(dir, 0o777)
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, unwritable(dir, err)
	}
	return root, nil
}

// unwritable says where nothing can be written. Errors of os.Root name files below it that the
// person who runs this has never heard of.
func unwritable(dir string, err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return fmt.Errorf("files cannot be put into %s: %w; choose another place with -O", dir, err)
}

// place gives a verified file its name.
func place(root *os.Root, temp, name string, mode fs.FileMode) error {
	err := func() error {
		if mode != 0 {
			if err := root.Chmod(temp, mode); err != nil {
				return err
			}
		}
		return root.Rename(temp, name)
	}()
	if err != nil {
		_ = root.Remove(temp) // the error that counts is the one before
	}
	return err
}

func getInto(ctx context.Context, c *client.Client, f types.File, dest string, bar *bar) (err error) {
	w, err := os.OpenFile(dest, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := w.Close(); err == nil {
			err = closeErr
		}
	}()
	return c.Download(ctx, f, w, bar.file(f.Path, f.Size))
}

// getVerified downloads f as temp, which is gone again when that fails.
func getVerified(ctx context.Context, c *client.Client, f types.File, root *os.Root, temp string, bar *bar) (err error) {
	w, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return unwritable(root.Name(), err)
	}
	defer func() {
		if closeErr := w.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			_ = root.Remove(temp) // the error that counts is the one before
		}
	}()
	err = c.Download(ctx, f, w, bar.file(f.Path, f.Size))
	if err == nil {
		err = w.Sync()
	}
	if local := (*fs.PathError)(nil); errors.As(err, &local) {
		return unwritable(root.Name(), err)
	}
	return err
}
