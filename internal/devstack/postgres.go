package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// superuser is the role that owns a development Postgres. Only this account reaches its socket.
const superuser = "postgres"

// startTimeout bounds the start of a server, crash recovery included.
const startTimeout = 5 * time.Minute

// PostgresOptions configure StartPostgres.
type PostgresOptions struct {
	// DataDir is the folder that holds everything of this server: cluster, log and lock. It is
	// made when missing.
	DataDir string
	// SocketDir is the private folder of the Unix socket. Empty: inside DataDir when its path is
	// short enough for a socket, else a folder under the system's temporary one.
	SocketDir string
	// BinDir is the folder of the Postgres programs. Empty: the newest installed, or the one that
	// made DataDir.
	BinDir string
	// MaxConnections is Postgres's max_connections; 0 means 100.
	MaxConnections int
	// FsyncOff trades the safety of the data on a power cut for speed. For tests only.
	FsyncOff bool
	// Settings are further Postgres settings, by name.
	Settings map[string]string
	// Env is added to the server's environment, "KEY=value".
	Env []string
	// Logger reports what is slow: the making of the cluster, waiting for a server that stops.
	Logger *slog.Logger
}

// Postgres is a running Postgres child.
type Postgres struct {
	proc      *Process
	lock      *Lock
	folder    folder
	socketDir string
	pid       int
	in        installation
}

// folder is the layout inside PostgresOptions.DataDir.
type folder string

func (f folder) cluster() string { return filepath.Join(string(f), "data") }
func (f folder) log() string     { return filepath.Join(string(f), "postgres.log") }
func (f folder) pidFile() string { return filepath.Join(f.cluster(), "postmaster.pid") }

// StartPostgres makes the cluster if there is none and starts Postgres on it. It returns when
// connections are accepted. Errors say what to do; [ErrFolderInUse] and [ErrNoPostgres] can be
// told apart.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	if o.DataDir == "" {
		return nil, errors.New("PostgresOptions.DataDir must name a folder")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, err
	}
	lock, err := LockFolder(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := startLocked(ctx, o, folder(dir))
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	p.lock = lock
	return p, nil
}

func startLocked(ctx context.Context, o PostgresOptions, dir folder) (*Postgres, error) {
	major, err := folderMajor(dir.cluster())
	if err != nil {
		return nil, err
	}
	in, err := findPostgres(ctx, o.BinDir, major)
	if err != nil {
		return nil, err
	}
	if err := rotateLog(dir.log()); err != nil {
		return nil, folderError(string(dir), err)
	}
	id, err := postgresIdentity(ctx, in, string(dir))
	if err != nil {
		return nil, err
	}
	if major == 0 {
		o.Logger.Info("making a new Postgres cluster", "folder", dir.cluster(), "version", in.major)
		if err := makeCluster(ctx, in, id, dir, o.FsyncOff); err != nil {
			return nil, err
		}
	}
	stale, err := awaitPredecessor(ctx, dir, o.Logger)
	if err != nil {
		return nil, err
	}
	socketDir, err := makeSocketDir(o.SocketDir, dir, id)
	if err != nil {
		return nil, err
	}
	p := &Postgres{folder: dir, socketDir: socketDir, in: in}
	err = p.start(ctx, in, id, o)
	if stale && errors.Is(err, ErrEndedEarly) {
		// The last postmaster was killed. Its backends end by themselves within moments, and
		// until then Postgres refuses to start beside them.
		err = p.restart(ctx, in, id, o)
	}
	if err != nil {
		return nil, errors.Join(err, removeSocketDir(socketDir, dir))
	}
	return p, nil
}

// orphanGrace is how long the backends of a killed postmaster may take to end.
const orphanGrace = time.Minute

func (p *Postgres) restart(ctx context.Context, in installation, id identity, o PostgresOptions) error {
	deadline := time.Now().Add(orphanGrace)
	for {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		err := p.start(ctx, in, id, o)
		if err == nil || !errors.Is(err, ErrEndedEarly) || time.Now().After(deadline) {
			return err
		}
	}
}

// start runs Postgres once and waits until it accepts connections.
func (p *Postgres) start(ctx context.Context, in installation, id identity, o PostgresOptions) error {
	if err := disownPidFile(p.folder); err != nil {
		return err
	}
	proc, err := StartProcess(ctx, ProcessSpec{
		Path: filepath.Join(in.bin, "postgres"),
		Args: p.arguments(o),
		Env:  append(postgresEnv(), o.Env...),
		Dir:  p.folder.cluster(),
		Log:  p.folder.log(),
		// SIGINT is Postgres's fast shutdown: sessions are ended, the cluster is left clean.
		StopSignal: syscall.SIGINT,
		identity:   id,
	})
	if err != nil {
		return err
	}
	if err := proc.Await(ctx, p.ready); err != nil {
		proc.Kill()
		<-proc.Done()
		return fmt.Errorf("Postgres did not start in %s: %w; its log (%s) ends:\n%s",
			p.folder.cluster(), err, p.folder.log(), logTail(p.folder.log()))
	}
	p.proc = proc
	return nil
}

func (p *Postgres) arguments(o PostgresOptions) []string {
	onOff := map[bool]string{true: "on", false: "off"}
	settings := map[string]string{
		"listen_addresses":        "", // the socket only: nothing on the network
		"unix_socket_directories": p.socketDir,
		"unix_socket_permissions": "0700",
		"max_connections":         "100",
		"fsync":                   onOff[!o.FsyncOff],
		"full_page_writes":        onOff[!o.FsyncOff],
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	if o.MaxConnections > 0 {
		settings["max_connections"] = fmt.Sprint(o.MaxConnections)
	}
	for name, value := range o.Settings {
		settings[name] = value
	}
	args := []string{"-D", p.folder.cluster()}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// postgresEnv is the whole environment of Postgres: nothing of the user's settings leaks in.
func postgresEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}

// ready reports whether Postgres accepts connections, by its own word in the pid file.
func (p *Postgres) ready(context.Context) (bool, error) {
	f, err := readPidFile(p.folder.pidFile())
	if err != nil || f.pid == os.Getpid() {
		return false, nil // being written, or still the one that disownPidFile left
	}
	p.pid = f.pid
	return f.status == "ready", nil
}

// URL is the address of a database on this server, for its owner. It stays the same over a
// restart on the same folder.
func (p *Postgres) URL(database string) string { return p.URLAs(superuser, database) }

// URLAs is URL for another role. The server trusts whoever reaches its socket.
func (p *Postgres) URLAs(role, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(role), Path: "/" + database,
		RawQuery: url.Values{"host": {p.socketDir}, "port": {"5432"}}.Encode(),
	}
	return u.String()
}

// Socket is the path of the Unix socket.
func (p *Postgres) Socket() string { return filepath.Join(p.socketDir, socketName) }

// Pid is the process id of the postmaster.
func (p *Postgres) Pid() int { return p.pid }

// Major is the major version of the server.
func (p *Postgres) Major() int { return p.in.major }

// BinDir is the folder of the server's programs, pg_basebackup among them.
func (p *Postgres) BinDir() string { return p.in.bin }

// ClusterDir is the folder that Postgres itself calls its data directory.
func (p *Postgres) ClusterDir() string { return p.folder.cluster() }

// LogFile is the server's log.
func (p *Postgres) LogFile() string { return p.folder.log() }

// Done is closed when Postgres has ended, for whatever reason. Unless Stop was called that is a
// crash; LogFile says why.
func (p *Postgres) Done() <-chan struct{} { return p.proc.Done() }

// Err tells how Postgres ended; valid once Done is closed.
func (p *Postgres) Err() error { return p.proc.Err() }

// CreateDatabase makes a database unless it is there.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	// The connection has done its work; a failure to say goodbye changes nothing.
	defer func() { _ = conn.Close(ctx) }()
	var there bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there)
	if err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	return err
}

// Stop shuts Postgres down: fast first (sessions are ended), by force when the context ends. The
// folder is free afterwards.
func (p *Postgres) Stop(ctx context.Context) error {
	err := p.proc.Stop(ctx)
	return errors.Join(err, removeSocketDir(p.socketDir, p.folder), p.lock.Unlock())
}

// Kill ends the postmaster at once, as a crash does, and frees the folder.
func (p *Postgres) Kill() error {
	err := syscall.Kill(p.pid, syscall.SIGKILL)
	p.proc.Kill()
	<-p.proc.Done()
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	return errors.Join(err, p.lock.Unlock())
}
