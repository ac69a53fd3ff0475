package devstack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrFolderInUse says that another process holds a data folder.
var ErrFolderInUse = errors.New("data folder in use")

// Lock is the exclusive hold on a data folder, for as long as this process lives.
type Lock struct{ file *os.File }

// LockFolder makes dir (0700) if it is missing and takes it for this process alone. The error is
// [ErrFolderInUse], naming the holder's process id, when another process has it. The lock is the
// kernel's: it is gone when this process is, however it ended.
func LockFolder(dir string) (*Lock, error) {
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, folderError(dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data folder %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: another artifactd dev is running on %s%s; stop it, or name another folder",
			ErrFolderInUse, dir, holder(f))
	}
	if err := writeHolder(f); err != nil {
		return nil, errors.Join(folderError(dir, err), f.Close())
	}
	return &Lock{file: f}, nil
}

// Unlock gives the folder back. Doing so twice is no error.
//
// Closing the file alone would leave the lock with a child process that another goroutine is just
// starting, until that child has become its program.
func (l *Lock) Unlock() error {
	raw, err := l.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = syscall.Flock(int(fd), syscall.LOCK_UN) }) // closing does the same, later
	}
	if err = errors.Join(err, l.file.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// holder reads who wrote the lock file, as " (pid N)", or nothing if that is not known yet.
func holder(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return ""
	}
	pid := strings.TrimSpace(string(b))
	if _, err := strconv.Atoi(pid); err != nil {
		return ""
	}
	return " (pid " + pid + ")"
}

// makeFolder makes a private folder, and checks that it can be written.
func makeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return folderError(dir, err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return folderError(dir, err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

func folderError(dir string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("the data folder %s cannot be written: choose another folder, or change its owner: %w", dir, err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("the data folder %s is not a folder: choose another: %w", dir, err)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("no space is left for the data folder %s: %w", dir, err)
	}
	return fmt.Errorf("use the data folder %s: %w", dir, err)
}

// logTail is the end of a log file, for an error message.
func logTail(path string) string {
	const most = 2 << 10
	f, err := os.Open(path)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "(log unreadable: " + err.Error() + ")"
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return "(log unreadable: " + err.Error() + ")"
	}
	return string(bytes.TrimSpace(b))
}

// maxLog is how large a log may be when a server starts, in bytes; a larger one is put aside.
const maxLog = 16 << 20

// rotateLog puts a log that has grown large aside as path + ".1", replacing an earlier one.
func rotateLog(path string) error {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Size() <= maxLog {
		return nil
	}
	return os.Rename(path, path+".1")
}
