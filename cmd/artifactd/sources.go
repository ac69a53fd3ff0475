package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactd/artifactd/pointer"
)

// mostLinks bounds how many links are followed: folders that lead to each other have far more paths
// than files.
const mostLinks = pointer.MaxFiles

// namedFile is a file of this machine and its path in the version.
type namedFile struct {
	file, path string
	size       int64 // bytes, when it was found
}

// walk finds the files behind the arguments, and how many bytes they have. What is wrong with them is
// told of all of them.
func (p *Program) walk(args []string, follow bool) (files []namedFile, total int64, err error) {
	w := sourceWalk{follow: follow, origin: map[string]string{}}
	for _, arg := range args {
		if err := w.argument(arg); err != nil {
			return nil, 0, err
		}
	}
	err = w.wrong.err(func(n int) string {
		return fmt.Sprintf("%d paths cannot be published as they are; nothing was published", n)
	})
	if err != nil {
		return nil, 0, err
	}
	if len(w.files) == 0 {
		return nil, 0, fmt.Errorf("%w: there is no file in %s; a version has at least one", errUsage, legible(strings.Join(args, ", ")))
	}
	p.tellCase(w.files)
	return w.files, w.total, nil
}

// tellCase tells of files that some readers cannot have side by side.
func (p *Program) tellCase(files []namedFile) {
	n := 0
	for one, other := range sameButForCase(files, func(f namedFile) string { return f.path }) {
		if n++; n <= mostFaults {
			p.note("artifactd: %s and %s differ only in upper and lower case", legible(one), legible(other))
		}
	}
	if n > mostFaults {
		p.note("artifactd: and %d more", n-mostFaults)
	}
	if n > 0 {
		p.note("artifactd: readers whose file system does not tell case apart (macOS, Windows) cannot get all of these into one folder")
	}
}

// sourceWalk is one walk over what is to be published.
type sourceWalk struct {
	follow bool
	files  []namedFile
	total  int64
	origin map[string]string // the file behind each path
	links  int               // that were followed
	wrong  faults
}

// fault takes down what is wrong with one file.
func (w *sourceWalk) fault(format string, args ...any) {
	w.wrong.add(fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...))
}

// argument walks one argument. A link that was named itself is followed, as by other programs.
func (w *sourceWalk) argument(arg string) error {
	info, err := os.Stat(arg)
	switch {
	case err != nil:
		w.wrong.add(err)
		return nil
	case info.IsDir():
		return w.folder(arg)
	case !info.Mode().IsRegular():
		w.fault("%s is not a regular file; write it to one first, so that it can be read again when an upload is repeated", legible(arg))
		return nil
	}
	return w.add(arg, filepath.Base(filepath.Clean(arg)), info)
}

// add takes a file. It returns an error when there are too many.
func (w *sourceWalk) add(file, path string, info fs.FileInfo) error {
	var invalid *pointer.InvalidError
	if errors.As(pointer.CheckPath("", path), &invalid) {
		w.fault("%s cannot be published under that name: %s; rename it", legible(shortened(file, 80)), invalid.Detail)
		return nil
	}
	switch other, ok := w.origin[path]; {
	case ok && filepath.Clean(other) == filepath.Clean(file):
		w.fault("%s is given twice; give it once", legible(file))
		return nil
	case ok:
		w.fault("%s and %s would both be named %s; publish their folder instead", legible(other), legible(file), legible(path))
		return nil
	}
	if len(w.files) == pointer.MaxFiles {
		return fmt.Errorf("%w: there are more than %d files, and a version has no more; publish parts of the tree under names of their own, or an archive of it", errUsage, pointer.MaxFiles)
	}
	w.origin[path] = file
	w.files = append(w.files, namedFile{file, path, info.Size()})
	w.total += info.Size()
	return nil
}

// folder adds every file below dir.
func (w *sourceWalk) folder(dir string) error {
	root, err := realPath(dir)
	if err != nil {
		w.wrong.add(err)
		return nil
	}
	return w.below(dir, "", root, []string{root})
}

// below adds every file below dir, whose path in the version is prefix. root is the real path of the
// folder that was named, and chain those of the folders that the walk came through by links.
func (w *sourceWalk) below(dir, prefix, root string, chain []string) error {
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			w.wrong.add(err)
			return nil // of a folder that cannot be read: nothing in it is walked
		}
		if e.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		in := path.Join(prefix, filepath.ToSlash(rel))
		if e.Type()&fs.ModeSymlink != 0 {
			return w.link(file, in, root, chain)
		}
		info, err := e.Info()
		switch {
		case err != nil:
			w.wrong.add(err)
			return nil
		case !info.Mode().IsRegular():
			// Leaving it out in silence would publish something incomplete.
			w.fault("%s is %s, not a regular file; take it out of the folder, or put a copy of what it holds in its place", legible(file), kindOf(info.Mode()))
			return nil
		}
		return w.add(file, in, info)
	})
}

// link adds what a symbolic link leads to.
func (w *sourceWalk) link(file, in, root string, chain []string) error {
	if !w.follow {
		w.fault("%s is a symbolic link; with --follow-symlinks what it leads to is published", legible(file))
		return nil
	}
	if w.links++; w.links > mostLinks {
		return fmt.Errorf("%w: more than %d symbolic links were followed, the last one %s; do they lead to each other?", errUsage, mostLinks, legible(file))
	}
	target, err := realPath(file)
	if err != nil {
		w.fault("%s is a symbolic link that leads nowhere: %s", legible(file), quotedPaths(err))
		return nil
	}
	if !within(root, target) {
		w.fault("%s is a symbolic link that leads out of the folder, to %s; put a copy in its place, or publish a folder that holds both", legible(file), legible(target))
		return nil
	}
	info, err := os.Stat(file)
	switch {
	case err != nil:
		w.wrong.add(err)
		return nil
	case info.Mode().IsRegular():
		return w.add(file, in, info)
	case !info.IsDir():
		w.fault("%s is a symbolic link to %s, not to a regular file; take it out of the folder", legible(file), kindOf(info.Mode()))
		return nil
	}
	// The folder that the link is in is below the last of the chain.
	parent, err := realPath(filepath.Dir(file))
	if err != nil {
		w.wrong.add(err)
		return nil
	}
	chain = append(slices.Clone(chain), parent)
	if slices.ContainsFunc(chain, func(c string) bool { return within(target, c) }) {
		w.fault("%s is a symbolic link to a folder that it is in itself, %s; take it out of the folder", legible(file), legible(target))
		return nil
	}
	return w.below(target, in, root, chain)
}

// realPath is where a name leads, without links.
func realPath(name string) (string, error) {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		var path *fs.PathError
		if !errors.As(err, &path) { // too many links
			err = &fs.PathError{Op: "follow", Path: name, Err: err}
		}
		return "", err
	}
	return filepath.Abs(target)
}

// within reports whether a real path is dir's own or lies below it.
func within(dir, name string) bool {
	rel, err := filepath.Rel(dir, name)
	return err == nil && filepath.IsLocal(rel)
}

// kindOf is what there is instead of a regular file.
func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}
