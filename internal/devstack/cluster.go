package devstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// socketName is what Postgres calls its socket on the default port.
const socketName = ".s.PGSQL.5432"

// longestSocketPath is what every platform takes, in bytes: macOS 103, Linux 107. The lock file
// beside the socket is no socket and may be longer.
const longestSocketPath = 103

// makeCluster runs initdb into a folder beside the final one and renames it, so that a cluster
// is whole or absent.
func makeCluster(ctx context.Context, in installation, id identity, dir folder, unsafe bool) error {
	partial := dir.cluster() + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return folderError(string(dir), err)
	}
	args := []string{"-D", partial, "-U", superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"}
	if unsafe {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(in.bin, "initdb"), args...)
	cmd.Env, cmd.Dir = postgresEnv(), string(dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	id.apply(cmd.SysProcAttr)
	// initdb has children of its own: they go with it when the context ends.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make a Postgres cluster in %s with %s: %w\n%s", dir, cmd.Path, err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(partial, dir.cluster()); err != nil {
		return folderError(string(dir), err)
	}
	return nil
}

// pidFile is what a postmaster says of itself.
type pidFile struct {
	pid    int
	status string // "starting", "stopping", "ready" or "standby"
}

// readPidFile reads postmaster.pid: the process id is its first line and the state its eighth.
func readPidFile(path string) (pidFile, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}, fmt.Errorf("%s is damaged: %w", path, err)
	}
	f := pidFile{pid: pid}
	if len(lines) >= 8 {
		f.status = strings.TrimSpace(lines[7])
	}
	if f.status == "standby" {
		f.status = "ready" // a standby that takes connections
	}
	return f, nil
}

// predecessorGrace is how long a Postgres whose parent was killed may take to shut down.
const predecessorGrace = time.Minute

// awaitPredecessor waits for a Postgres that still runs on the folder although nobody holds its
// lock: its parent was killed and it is shutting down. It reports whether one left its pid file.
func awaitPredecessor(ctx context.Context, dir folder, log *slog.Logger) (stale bool, err error) {
	deadline := time.Now().Add(predecessorGrace)
	told := false
	for {
		f, err := readPidFile(dir.pidFile())
		if errors.Is(err, fs.ErrNotExist) {
			return stale, nil
		}
		if err != nil {
			return false, err
		}
		stale = true
		if !isPostgres(ctx, f.pid) {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("a Postgres (pid %d) still runs on %s although its parent is gone: "+
				"stop it with `kill -INT %d` and start again", f.pid, dir.cluster(), f.pid)
		}
		if !told {
			log.Info("waiting for the last Postgres on this folder to stop", "pid", f.pid)
			told = true
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// isPostgres reports whether the process is alive and a postmaster. A process id is reused in
// time, by something else.
func isPostgres(ctx context.Context, pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	out, err := exec.CommandContext(ctx, "ps", "-o", "stat=,comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		var none *exec.ExitError
		return !errors.As(err, &none) // ps says there is none; without ps, be careful
	}
	state, name, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	return !strings.HasPrefix(state, "Z") && strings.HasPrefix(filepath.Base(strings.TrimSpace(name)), "postgres")
}

// disownPidFile readies what a killed postmaster left for the next. Postgres will not start
// while the process id in the file is anybody's but its own parent's; that number may long be
// another program's. The rest of the file stays: it names the shared memory, by which Postgres
// notices backends that survived.
func disownPidFile(dir folder) error {
	b, err := os.ReadFile(dir.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return folderError(string(dir), err)
	}
	_, rest, _ := strings.Cut(string(b), "\n")
	content := strconv.Itoa(os.Getpid()) + "\n" + rest
	if err := os.WriteFile(dir.pidFile(), []byte(content), 0o600); err != nil {
		return folderError(string(dir), err)
	}
	return nil
}

// makeSocketDir makes the private folder for the socket. A path of its own is derived from the
// data folder, so that URLs survive a restart and a killed parent leaves nothing that grows.
func makeSocketDir(asked string, dir folder, id identity) (string, error) {
	fits := func(d string) bool { return len(filepath.Join(d, socketName)) <= longestSocketPath }
	if asked != "" {
		if !fits(asked) {
			return "", fmt.Errorf("the socket folder %s is too long for a Unix socket (%d bytes with its name): choose a shorter one",
				asked, longestSocketPath)
		}
		return asked, makeFolder(asked)
	}
	candidates := []string{filepath.Join(string(dir), "socket")}
	sum := sha256.Sum256([]byte(dir))
	for _, tmp := range []string{os.TempDir(), "/tmp"} {
		candidates = append(candidates, filepath.Join(tmp, fmt.Sprintf("artifactd-%d-%s", os.Geteuid(), hex.EncodeToString(sum[:6]))))
	}
	for _, d := range candidates {
		if fits(d) {
			return d, makeOwnFolder(d, id)
		}
	}
	return "", fmt.Errorf("no folder is short enough for a Unix socket (%d bytes): set TMPDIR to a short path", longestSocketPath)
}

// makeOwnFolder makes a folder under a path that others could guess, and trusts it only when it
// is this account's and nobody else can enter: whoever reaches the socket is the superuser.
func makeOwnFolder(d string, id identity) error {
	if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return folderError(d, err)
	}
	fi, err := os.Lstat(d)
	if err != nil {
		return folderError(d, err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	owned := ok && (int(st.Uid) == os.Geteuid() || (id.Switch && int(st.Uid) == id.UID))
	if !fi.IsDir() || fi.Mode().Perm() != 0o700 || !owned {
		return fmt.Errorf("the socket folder %s is not a private folder of this account: remove it and start again", d)
	}
	if id.Switch {
		return os.Chown(d, id.UID, id.GID)
	}
	return nil
}

// removeSocketDir removes a socket folder that lies outside the data folder. Postgres has
// removed the socket.
func removeSocketDir(socketDir string, dir folder) error {
	if strings.HasPrefix(socketDir, string(dir)+string(filepath.Separator)) {
		return nil
	}
	err := os.Remove(socketDir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil // a socket left by a kill, or a folder that the caller uses for more
	}
	return err
}
