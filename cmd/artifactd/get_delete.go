package main

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactd/artifactd/api/types"
)

// mayDeleteIn refuses --delete where a slip would cost more than a download: in the root folder, in a
// folder that holds the user's home, and inside of a data folder of `dev`. What lies below dir is looked
// at by survey.
func (p *Program) mayDeleteIn(dir string) error {
	real, err := filepath.Abs(behindLinks(dir))
	if err != nil {
		return err
	}
	refuse := func(why string) error {
		return fmt.Errorf("%w: --delete removes what is in a folder and not in the version, and %s %s; name another folder with -O", errUsage, dir, why)
	}
	if sameFolder(real, "/") {
		return refuse("is the root of the file system")
	}
	homes := []string{parseEnviron(p.Environ)["HOME"]}
	if u, err := user.Current(); err == nil {
		homes = append(homes, u.HomeDir)
	}
	for _, home := range homes {
		for at := range upwards(home) {
			if sameFolder(real, at) {
				return refuse("is your home folder, or holds it")
			}
		}
	}
	for at := range upwards(real) {
		if isDataFolder(os.Stat, at) || sameFolder(p.data, at) {
			return refuse("belongs to a data folder of `artifactd dev`")
		}
	}
	return nil
}

// upwards yields a folder and those that it lies in, but for the root.
func upwards(dir string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if dir == "" {
			return
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		for dir != filepath.Dir(dir) && yield(dir) {
			dir = filepath.Dir(dir)
		}
	}
}

func sameFolder(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// isDataFolder knows the folder of `dev` by what that keeps in it.
func isDataFolder(stat func(string) (fs.FileInfo, error), dir string) bool {
	if info, err := stat(path.Join(dir, secretsName)); err != nil || !info.Mode().IsRegular() {
		return false
	}
	for _, name := range []string{"s3", "postgres"} {
		if info, err := stat(path.Join(dir, name)); err == nil && info.IsDir() {
			return true
		}
	}
	return false
}

// mirror makes a folder hold the files of a version and nothing else.
type mirror struct {
	root  *os.Root
	fold  bool            // the file system does not tell case apart
	files map[string]bool // of the version, and
	dirs  map[string]bool // the folders that they are in
	aside []moved
	count int // files and links in what was moved aside
}

// moved is something that stood in the way of a file, and where it is kept until all are in place.
type moved struct{ from, to string }

func newMirror(root *os.Root, files []types.File, fold bool) *mirror {
	m := &mirror{root: root, fold: fold, files: map[string]bool{}, dirs: map[string]bool{".": true}}
	for _, f := range files {
		m.files[m.known(f.Path)] = true
		for dir := range foldersOf(f.Path) {
			m.dirs[m.known(dir)] = true
		}
	}
	return m
}

// foldersOf yields the folders that a path of a version lies in, the inner ones first.
func foldersOf(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			i := strings.LastIndexByte(name, '/')
			if name = name[:max(i, 0)]; name == "" || !yield(name) {
				return
			}
		}
	}
}

// known is how a path stands in the maps.
func (m *mirror) known(name string) string {
	if m.fold {
		return foldedPath(name)
	}
	return name
}

// survey finds what is not of the version: first files and whatever else is no folder, then folders,
// the inner ones first. No link is followed. A data folder of `dev` among it is an error.
func (m *mirror) survey() (others, folders []string, err error) {
	err = fs.WalkDir(m.root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("%s cannot be looked through: %w", m.root.Name(), err)
		case !e.IsDir():
			if !m.files[m.known(name)] {
				others = append(others, name)
			}
		case isDataFolder(m.root.Lstat, name):
			return fmt.Errorf("%w: --delete would remove a data folder of `artifactd dev`, %s; name another folder with -O", errUsage, filepath.Join(m.root.Name(), name))
		case !m.dirs[m.known(name)]:
			folders = append(folders, name)
		}
		return nil
	})
	slices.Reverse(folders)
	return others, folders, err
}

// straight reports whether no link stands among the folders on the way to a file: behind one it would
// lie in a place that is not the version's.
func (m *mirror) straight(name string) bool {
	for dir := range foldersOf(name) {
		if info, err := m.root.Lstat(dir); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// makeWay moves aside what is a file, or a link, where the version has a folder, and the other way
// round.
func (m *mirror) makeWay(staging, name string) error {
	segments := strings.Split(name, "/")
	for i := range segments {
		at := path.Join(segments[:i+1]...)
		info, err := m.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return unwritable(m.root.Name(), err)
		}
		if last := i == len(segments)-1; last && info.Mode().IsRegular() || !last && info.IsDir() {
			continue
		}
		to := path.Join(staging, fmt.Sprintf("aside-%d", len(m.aside)))
		if err := m.root.Rename(at, to); err != nil {
			return unwritable(m.root.Name(), err)
		}
		m.aside = append(m.aside, moved{at, to})
		if !info.IsDir() {
			m.count++
			return nil
		}
		return fs.WalkDir(m.root.FS(), to, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				m.count++
			}
			return err
		})
	}
	return nil
}

// restore puts back what was moved aside, where not everything could be put in place.
func (m *mirror) restore() {
	for i := len(m.aside) - 1; i >= 0; i-- {
		_ = m.root.RemoveAll(m.aside[i].from) // what was put there a moment ago
		_ = m.root.Rename(m.aside[i].to, m.aside[i].from)
	}
}

// clean removes what is not of the version, once all that is of it is in place, and tells how many
// files and links those were, with those that were moved aside.
func (m *mirror) clean() (removed int, err error) {
	removed = m.count
	others, folders, err := m.survey()
	if err != nil {
		return removed, err
	}
	for _, name := range others {
		if err := m.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, notRemoved(m.root.Name(), name, err)
		}
		removed++
	}
	for _, name := range folders {
		// Somebody may have put something into it meanwhile.
		if err := m.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return removed, notRemoved(m.root.Name(), name, err)
		}
	}
	return removed, nil
}

func notRemoved(dir, name string, err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	return fmt.Errorf("the version is in place, but %s, which it does not have, cannot be removed: %w", filepath.Join(dir, name), err)
}
